"""Snapshots in a log: when a driver takes the next one, and where a reader finds the newest that it can start from.

Each header names the offset of the newest `SNAPSHOT` that its driver had seen released, a snapshot's own header the one
before it. What is named was released, so that it counts, whatever becomes of the record that names it; one that
nothing names is no place to start, because only a fold from further back tells whether it counts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from coordlog.errors import (
    OutOfRangeError,
    PayloadLostError,
    PayloadStoreError,
    RecordError,
)
from coordlog.kernel.inputs import RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import (
    RECORD_BYTES_MAX,
    SNAPSHOT_BYTES_PER_RECORD,
    SNAPSHOT_CHAIN_MAX,
    SNAPSHOT_CHEAP_BYTES,
)
from coordlog.log.port import Log, StoredRecord
from coordlog.payloads import DriverPayloads
from coordlog.projections.snapshots import (
    SNAPSHOT_TYPE,
    DecodedSnapshot,
    SnapshotCodec,
    SnapshotTooLargeError,
    SnapshotUnusableError,
    snapshot_in,
)
from coordlog.projections.state import JobState
from coordlog.schemas.builtin import SnapshotTaken, SnapshotWanted
from coordlog.schemas.counting import Counting
from coordlog.schemas.payload import open_inline, payload_type_of
from coordlog.schemas.record import Kind, Record

__all__ = [
    "NO_SNAPSHOT",
    "FoundSnapshot",
    "NewestSnapshot",
    "SnapshotSearch",
    "SnapshotTaker",
    "find_snapshot",
    "first_snapshot",
    "snapshot_answer",
]

_log = logging.getLogger(__name__)

_WANTED = payload_type_of(SnapshotWanted).key
_TAILS = (64, 4_096)
"""Records at a log's end that are looked at for one with a header of ours: others may stand behind it."""
_ENVELOPE_BYTES = 2_048
"""Of a record, what its payload leaves to key, header and the other fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSnapshot:
    """The newest `SNAPSHOT` that a driver knows to count."""

    offset: int = -1
    """-1 where there is none: headers say so too."""
    sequence: int = 0


NO_SNAPSHOT = NewestSnapshot()


# --- a driver's -------------------------------------------------------------------------------------------------------
class SnapshotTaker:
    """A driver's snapshots. On the mailbox; does no I/O.

    The owner must tell it of each record for which `is_watched`: with `closed` when its turn is closed, with `released`
    once it counts.

    Args:
        codec: The job's.
        every: Records from one snapshot to the next; None for no snapshots.
        newest: That the restore has come across.
        checkpoint_offset: Of the newest `CHECKPOINT_COMPLETED` that counts.
        payloads: Keep a state that is large; without a store it must fit a record.
    """

    def __init__(
        self,
        codec: SnapshotCodec,
        every: int | None,
        newest: NewestSnapshot,
        checkpoint_offset: int | None,
        payloads: DriverPayloads | None = None,
    ) -> None:
        self.offset = newest.offset
        """Of the newest released snapshot, for headers; -1 for none."""
        self._codec, self._every = codec, every
        self._sequence, self._wait = newest.sequence, every or 0
        self._checkpoint_offset = checkpoint_offset
        self._payloads = payloads or DriverPayloads()
        self._unreleased = 0
        self._asked: deque[RequestArrived] = deque()
        self.why_not = ""
        """Why `take` has given none the last time."""
        if every is not None and codec.without_codec:
            self._every = None
            _log.warning(
                "no snapshots: the projections of the operators %s have no codec, so that each restore folds the "
                "log from its start; give them one, as in `codec=DerivedCodec(MyState)`",
                ", ".join(codec.without_codec),
            )

    @staticmethod
    def is_watched(record: Record) -> bool:
        """Whether it must hear of this record."""
        return record.kind in (Kind.SNAPSHOT, Kind.CHECKPOINT_COMPLETED)

    def closed(self) -> None:
        """A watched record waits for the log."""
        self._unreleased += 1

    def released(self, record: Record, offset: int) -> None:
        """A watched record counts, at `offset`."""
        self._unreleased -= 1
        if record.kind is Kind.SNAPSHOT:
            self.offset = offset
        else:
            self._checkpoint_offset = offset

    def asks(self, given: object) -> bool:
        """Whether this input is a client's wish for a snapshot: it waits for `next_asked` then."""
        is_asked = isinstance(given, RequestArrived) and given.payload_type == _WANTED
        if is_asked:
            self._asked.append(cast("RequestArrived", given))
        return is_asked

    def next_asked(self) -> RequestArrived | None:
        """The next wish that can be met now; none while something that is watched waits for the log."""
        return self._asked.popleft() if self._asked and not self._unreleased else None

    def is_due(self, state: JobState) -> bool:
        """Whether one is to be taken of this state.

        Not while one waits for the log, nor while a completed checkpoint does: its offset goes in.
        """
        return (
            self._every is not None
            and state.next_sequence - self._sequence >= self._wait
            and not self._unreleased
            and not state.is_over
        )

    def take(self, state: JobState, *, is_asked: bool = False) -> bytes | None:
        """The payload of a snapshot of `state`; None where there can be none, which is logged.

        One that is asked for stands in the log itself: a log may begin with it.
        """
        if state.is_over:
            self.why_not = f"the job is {state.phase.value}"
            return None
        if self._codec.without_codec:
            operators = ", ".join(self._codec.without_codec)
            self.why_not = f"the projections of the operators {operators} have no codec"
            return None
        self._sequence = state.next_sequence
        try:
            made = self._codec.encode(state, checkpoint_offset=self._checkpoint_offset)
        except SnapshotTooLargeError as error:
            self._put_off(state, str(error))
            return None
        except Exception as error:  # noqa: BLE001, a user's codec: the job goes on without
            _log.exception("no snapshots any more: job=%s epoch=%d", state.job_id, state.epoch)
            self._every = None
            self.why_not = f"its state cannot be encoded: {type(error).__name__}: {error}"
            return None
        is_kept = not is_asked and self._payloads.options.is_kept(None, len(made.state))
        if is_kept:
            # Bounded by what an encoded state may have, far below what the store takes.
            made = replace(made, state=self._payloads.seal("a snapshot", None, made.state))
        payload = SNAPSHOT_TYPE.encode(made)
        if len(payload) + _ENVELOPE_BYTES > RECORD_BYTES_MAX:
            self._put_off(
                state,
                f"the state has {made.state_bytes} bytes, compressed {len(payload)}, and a record holds "
                f"{RECORD_BYTES_MAX}",
            )
            return None
        large = max(0, made.state_bytes - SNAPSHOT_CHEAP_BYTES)
        self._wait = max(self._every or 0, large // SNAPSHOT_BYTES_PER_RECORD)
        return payload

    def _put_off(self, state: JobState, why: str) -> None:
        """Say why there is none now; the next one is tried after twice as many records."""
        self.why_not = why
        self._wait *= 2
        _log.warning(
            "no snapshot: job=%s epoch=%d sequence=%d: %s; a restore folds from offset %d; tried again after %d "
            "records",
            state.job_id,
            state.epoch,
            state.next_sequence,
            why,
            max(0, self.offset),
            self._wait,
        )


def snapshot_answer(
    request_id: int, sequence: int, payload: bytes | None, why_not: str
) -> AnswerRequest:
    """What a client is told that wanted a snapshot: where it stands, or why there is none."""
    if payload is None:
        return AnswerRequest(
            request_id=request_id, outcome=RequestOutcome.REFUSED, reason=f"no snapshot: {why_not}"
        )
    taken = payload_type_of(SnapshotTaken)
    return AnswerRequest(
        request_id=request_id,
        outcome=RequestOutcome.ANSWERED,
        sequence=sequence,
        payload_type=taken.key,
        payload=taken.encode(SnapshotTaken(payload_bytes=len(payload))),
    )


# --- a reader's -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSnapshot:
    """A place to start a fold from, its own record included."""

    offset: int
    counting: Counting
    decoded: DecodedSnapshot


class _OtherRecordError(SnapshotUnusableError):
    """What stands there is no snapshot."""


@dataclass(slots=True, kw_only=True)
class SnapshotSearch:
    """What looking for one has come to."""

    found: FoundSnapshot | None = None
    passed_over: dict[int, str] = field(default_factory=dict)
    """By offset, newest first: why a snapshot on the way is no place to start."""
    others: set[int] = field(default_factory=set)
    """Of these offsets, those at which another record stands."""


def find_snapshot(
    log: Log,
    codec: SnapshotCodec,
    start: int,
    end: int,
    open_payload: Callable[[bytes], bytes] = open_inline,
) -> SnapshotSearch:
    """The newest snapshot that a reader of this job can start from; none: it starts at the log's start.

    Args:
        log: The job's.
        codec: The job's.
        start: The log's first offset.
        end: Its high watermark.
        open_payload: Gives the state of one that stands outside the log. One that cannot be opened
            is passed over.

    Raises:
        LogUnavailableError: The log does not answer.
    """
    search = SnapshotSearch()
    offset = _named_at_the_end(log, start, end)
    for _ in range(SNAPSHOT_CHAIN_MAX):
        if not start <= offset < end:
            break
        following = _try(log, codec, offset, search, open_payload)
        if search.found is not None or not -1 <= following < offset:
            break
        offset = following
    if search.found is None and 0 < start < end and start not in search.passed_over:
        # Nothing need name the snapshot with which a pruned log begins.
        _try(log, codec, start, search, open_payload)
    for at, why in search.passed_over.items():
        _log.warning("passed over the snapshot at offset=%d of %s: %s", at, log.identity.name, why)
    return search


def first_snapshot(
    log: Log,
    codec: SnapshotCodec,
    start: int,
    open_payload: Callable[[bytes], bytes] = open_inline,
) -> SnapshotSearch:
    """The one with which a pruned log begins, at its first offset `start`.

    Raises:
        LogUnavailableError: The log does not answer.
    """
    search = SnapshotSearch()
    _try(log, codec, start, search, open_payload)
    return search


def _named_at_the_end(log: Log, start: int, end: int) -> int:
    """The newest that one of the last records names, -1 for none."""
    for count in _TAILS:
        first = max(start, end - count)
        headers = [one.header for one in _read(log, first, end)]
        named = [header.snapshot_offset for header in headers if header is not None]
        if named or first == start:
            return max(named, default=-1)
    return -1


def _try(
    log: Log,
    codec: SnapshotCodec,
    offset: int,
    search: SnapshotSearch,
    open_payload: Callable[[bytes], bytes],
) -> int:
    """Look at one; returns the offset of the one before it, -1 for none."""
    stored = next((one for one in _read(log, offset, offset + 1) if one.offset == offset), None)
    if stored is None or stored.header is None:
        search.passed_over[offset] = "there is no record of this log's format"
        return -1
    try:
        search.found = _found(stored, codec, open_payload)
    except _OtherRecordError as error:
        search.passed_over[offset] = str(error)
        search.others.add(offset)
    except (RecordError, SnapshotUnusableError, PayloadLostError, PayloadStoreError) as error:
        search.passed_over[offset] = str(error)
    return stored.header.snapshot_offset


def _read(log: Log, first: int, end: int) -> Iterator[StoredRecord]:
    """Nothing where retention has been there in between."""
    try:
        yield from log.read(first, end)
    except OutOfRangeError:
        return


def _found(
    stored: StoredRecord, codec: SnapshotCodec, open_payload: Callable[[bytes], bytes]
) -> FoundSnapshot:
    header = stored.header
    assert header is not None, "its caller has looked"
    record = stored.record(header=header)
    if record.kind is not Kind.SNAPSHOT or header.turn_remaining:
        raise _OtherRecordError(f"it is a {record.kind.value}, and no snapshot")
    decoded = codec.decode(snapshot_in(record, open_payload))
    state = decoded.state
    there, here = (
        (record.job_id, record.epoch, record.sequence),
        (state.job_id, state.epoch, state.next_sequence),
    )
    if there != here:
        raise SnapshotUnusableError(f"it stands at {there}, and its state is of {here}")
    place = header.sequence
    counting = Counting(epoch=header.epoch, next_sequence=place, turn_began=place)
    return FoundSnapshot(offset=stored.offset, counting=counting, decoded=decoded)
