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
    SNAPSHOT_PART_BYTES,
)
from coordlog.log.interface import Log, StoredRecord
from coordlog.payloads.offload import DriverPayloads
from coordlog.projections.job.state import JobState, sorted_items
from coordlog.projections.snapshot.codec import (
    SNAPSHOT_TYPE,
    DecodedSnapshot,
    SnapshotCodec,
    SnapshotTooLargeError,
    SnapshotUnusableError,
    snapshot_in,
)
from coordlog.schemas.builtin_types import JobSnapshot, SnapshotTaken, SnapshotWanted
from coordlog.schemas.payload import open_inline, payload_type_of
from coordlog.schemas.payload_address import PayloadAddress, inline
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import Counting

__all__ = [
    "NO_SNAPSHOT",
    "FoundSnapshot",
    "NewestSnapshot",
    "SnapshotMisfitError",
    "SnapshotSearch",
    "SnapshotTaker",
    "StandingSnapshot",
    "find_snapshot",
    "first_snapshot",
    "newest_named",
    "snapshot_answer",
    "standing_snapshot",
]

_log = logging.getLogger(__name__)

_NAME_A_STORE = (
    "name a folder for large payloads with payload_store (--payload-store): what coordinators "
    "remember goes there"
)
_LET_GO = "let kept checkpoints go (`coordlog checkpoint JOB --release NAME`)"
_REMEMBER_LESS = "give the subtasks less to remember"
_WANTED = payload_type_of(SnapshotWanted).key
_TAILS = (64, 4_096)
"""Records at a log's end that are looked at for one with a header of ours: others may stand behind it."""
_NO_OWNER = "0-" + 16 * "0"
"""As long as another: to see whether a store would help."""
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
            payload, state_bytes = self._standing(state) if is_asked else self._any(state)
        except (SnapshotTooLargeError, SnapshotMisfitError) as error:
            self._put_off(state, str(error))
            return None
        except Exception as error:  # noqa: BLE001, a user's codec: the job goes on without
            _log.exception("no snapshots any more: job=%s epoch=%d", state.job_id, state.epoch)
            self._every = None
            self.why_not = f"its state cannot be encoded: {type(error).__name__}: {error}"
            return None
        large = max(0, state_bytes - SNAPSHOT_CHEAP_BYTES)
        self._wait = max(self._every or 0, large // SNAPSHOT_BYTES_PER_RECORD)
        return payload

    def _any(self, state: JobState) -> tuple[bytes, int]:
        """The payload, and how long the encoded state is."""
        made = self._codec.encode(state, checkpoint_offset=self._checkpoint_offset)
        if self._payloads.options.is_kept(None, len(made.state)):
            # Bounded by what an encoded state may have, far below what the store takes.
            made = replace(made, state=self._payloads.seal("a snapshot", None, made.state))
        has_store = self._payloads.options.store is not None
        step = _lesser(state) if has_store else _NAME_A_STORE
        return _fitting(made, "the state", step), made.state_bytes

    def _standing(self, state: JobState) -> tuple[bytes, int]:
        made = standing_snapshot(
            self._codec,
            state,
            checkpoint_offset=self._checkpoint_offset,
            owner=self._payloads.owner,
        )
        for part in made.parts:
            self._payloads.hold(part)
        return made.payload, made.state_bytes

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


class SnapshotMisfitError(ValueError):
    """A snapshot that does not fit into a record."""

    def __init__(
        self, what: str, state_bytes: int, payload_bytes: int, rest_bytes: int, next_step: str
    ) -> None:
        super().__init__(what, state_bytes, payload_bytes, rest_bytes, next_step)
        self.what, self.state_bytes = what, state_bytes
        self.payload_bytes, self.rest_bytes = payload_bytes, rest_bytes
        self.next_step = next_step
        """Empty where there is none."""

    @property
    def problem(self) -> str:
        """Without what to do."""
        return (
            f"{self.what} has {self.state_bytes} bytes; compressed {self.payload_bytes} and "
            f"{self.rest_bytes} for the rest of its record are "
            f"{self.payload_bytes + self.rest_bytes}, and a record holds {RECORD_BYTES_MAX}"
        )

    def __str__(self) -> str:
        return f"{self.problem}; {self.next_step}" if self.next_step else self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingSnapshot:
    """One with which a log may begin. Its parts must be stored before it is appended."""

    payload: bytes
    state_bytes: int
    """How long the encoded state is, its parts included."""
    parts: tuple[bytes, ...] = ()
    """What it addresses in the payload store; none where all of it stands in the log."""


def standing_snapshot(
    codec: SnapshotCodec,
    state: JobState,
    *,
    checkpoint_offset: int | None,
    owner: str,
    spare_bytes: int = 0,
) -> StandingSnapshot:
    """A snapshot with which a log may begin; does no I/O.

    All of it stands in the log, where that fits; else what coordinators remember goes to the payload store, which
    nobody needs but the job's own driver.

    Args:
        codec: The job's.
        state: Its state.
        checkpoint_offset: Of the newest `CHECKPOINT_COMPLETED` before it.
        owner: The folder for its parts in the payload store; empty where there is no store.
        spare_bytes: Bytes of the record that must stay free.

    Raises:
        SnapshotMisfitError: It does not fit.
        SnapshotTooLargeError: It, or a part of it, is larger than what is read again.
    """
    made = codec.encode(state, checkpoint_offset=checkpoint_offset)
    misfit: SnapshotMisfitError
    try:
        payload = _fitting(made, "the state", _NAME_A_STORE, spare_bytes)
        return StandingSnapshot(payload=payload, state_bytes=made.state_bytes)
    except SnapshotMisfitError as error:
        misfit = error
    parts: list[bytes] = []

    def seal(data: bytes) -> bytes:
        if len(data) <= SNAPSHOT_PART_BYTES:
            return inline(data)
        parts.append(data)
        return PayloadAddress.of(data, owner or _NO_OWNER).encode()

    apart = codec.encode(state, checkpoint_offset=checkpoint_offset, seal=seal)
    what = "the state without what coordinators remember" if parts else "the state"
    payload = _fitting(apart, what, _lesser(state), spare_bytes)
    if not owner:
        raise misfit
    return StandingSnapshot(payload=payload, state_bytes=made.state_bytes, parts=tuple(parts))


def _lesser(state: JobState) -> str:
    """What could make the part of a state shorter that must stand in the log; empty for nothing."""
    steps = [_LET_GO] if state.kept else []
    if any(
        one.state
        for _, checkpoint in sorted_items(state.completed)
        for _, states in sorted_items(checkpoint.states)
        for one in states
    ):
        steps.append(_REMEMBER_LESS)
    return ", or ".join(steps)


def _fitting(made: JobSnapshot, what: str, next_step: str, spare_bytes: int = 0) -> bytes:
    payload, rest = SNAPSHOT_TYPE.encode(made), _ENVELOPE_BYTES + spare_bytes
    if len(payload) + rest > RECORD_BYTES_MAX:
        raise SnapshotMisfitError(what, made.state_bytes, len(payload), rest, next_step)
    return payload


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
    lost: set[int] = field(default_factory=set)
    """Of these offsets, those at which a payload is addressed that cannot be had."""
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
    offset = newest_named(log, start, end)
    for _ in range(SNAPSHOT_CHAIN_MAX):
        if not start <= offset < end:
            break
        is_first = offset == start > 0
        following = _try(log, codec, offset, search, open_payload, is_first=is_first)
        if search.found is not None or not -1 <= following < offset:
            break
        offset = following
    if search.found is None and 0 < start < end and start not in search.passed_over:
        # Nothing need name the snapshot with which a pruned log begins.
        _try(log, codec, start, search, open_payload, is_first=True)
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
    _try(log, codec, start, search, open_payload, is_first=True)
    return search


def newest_named(log: Log, start: int, end: int) -> int:
    """The offset of the newest snapshot that one of the last records names, -1 for none; nothing is looked at there.

    Raises:
        LogUnavailableError: The log does not answer.
    """
    for count in _TAILS:
        first = max(start, end - count)
        found = [(one.offset, one.header) for one in _read(log, first, end)]
        named = [
            header.snapshot_offset
            for offset, header in found
            if header is not None and header.snapshot_offset < offset  # else it is a stranger's
        ]
        if named or first == start:
            return max(named, default=-1)
    return -1


def _try(
    log: Log,
    codec: SnapshotCodec,
    offset: int,
    search: SnapshotSearch,
    open_payload: Callable[[bytes], bytes],
    *,
    is_first: bool,
) -> int:
    """Look at one; returns the offset of the one before it, -1 for none.

    The one with which a pruned log begins (`is_first`) may hold projections' states of an earlier schema: nothing else
    stands for what was before it. Others are passed over then: the fold of the records is exact.
    """
    stored = next((one for one in _read(log, offset, offset + 1) if one.offset == offset), None)
    if stored is None or stored.header is None:
        search.passed_over[offset] = "there is no record of this log's format"
        return -1
    try:
        search.found = _found(stored, codec, open_payload, upcasts=is_first)
    except _OtherRecordError as error:
        search.passed_over[offset] = str(error)
        search.others.add(offset)
    except (PayloadLostError, PayloadStoreError) as error:
        search.passed_over[offset] = str(error)
        search.lost.add(offset)
    except (RecordError, SnapshotUnusableError) as error:
        search.passed_over[offset] = str(error)
    return stored.header.snapshot_offset


def _read(log: Log, first: int, end: int) -> Iterator[StoredRecord]:
    """Nothing where retention has been there in between."""
    try:
        yield from log.read(first, end)
    except OutOfRangeError:
        return


def _found(
    stored: StoredRecord,
    codec: SnapshotCodec,
    open_payload: Callable[[bytes], bytes],
    *,
    upcasts: bool,
) -> FoundSnapshot:
    header = stored.header
    assert header is not None, "its caller has looked"
    record = stored.record(header=header)
    if record.kind is not Kind.SNAPSHOT or header.turn_remaining:
        raise _OtherRecordError(f"it is a {record.kind.value}, and no snapshot")
    decoded = codec.decode(snapshot_in(record, open_payload), open_payload, upcasts=upcasts)
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
