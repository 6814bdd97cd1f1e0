"""Snapshots of a driver: when the next one is taken, and how its size is kept below that of a record.

Each header has the offset of the newest `SNAPSHOT` known to be released; the header of a snapshot has that of the one
before. A snapshot in a header was released, so it counts, even if the record with the header does not. A
snapshot in no header is no place to start, because only a fold from further back shows whether it counts.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from typing import cast

from coordlog.kernel.inputs import RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import (
    RECORD_BYTES_MAX,
    SNAPSHOT_BYTES_PER_RECORD,
    SNAPSHOT_CHEAP_BYTES,
    SNAPSHOT_PART_BYTES,
)
from coordlog.payloads.offload import DriverPayloads
from coordlog.projections.job.state import JobState, sorted_items
from coordlog.projections.snapshot.codec import (
    SNAPSHOT_TYPE,
    SnapshotCodec,
    SnapshotTooLargeError,
)
from coordlog.schemas.builtin_types import JobSnapshot, SnapshotTaken, SnapshotWanted
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.payload_address import PayloadAddress, inline
from coordlog.schemas.record import Kind, Record

__all__ = [
    "NO_SNAPSHOT",
    "NewestSnapshot",
    "SnapshotMisfitError",
    "SnapshotTaker",
    "StandingSnapshot",
    "snapshot_answer",
    "standing_snapshot",
]

_log = logging.getLogger(__name__)

_NAME_A_STORE = (
    "name a folder for large payloads with payload_store (--payload-store): the states of "
    "coordinators go there"
)
_RELEASE = "release savepoints (`coordlog savepoint JOB NAME --release`)"
_SMALLER_STATES = "reduce the states of the subtasks"
_WANTED = payload_type_of(SnapshotWanted).key
_NO_OWNER = "0-" + 16 * "0"
"""Folder name as long as a real one, to find out whether a store would help."""
_ENVELOPE_BYTES = 2_048
"""Bytes of a record that are kept for key, header and the fields other than the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSnapshot:
    """Newest `SNAPSHOT` that is known to count."""

    offset: int = -1
    """Offset of the snapshot, or -1 if there is none, as in headers."""
    sequence: int = 0


NO_SNAPSHOT = NewestSnapshot()


class SnapshotTaker:
    """Snapshots of a driver. On the mailbox; does no I/O.

    For each record with `is_watched`, the owner must call `closed` when its turn is closed, and `released` once it
    counts.

    Args:
        codec: Snapshot codec of the job.
        every: Records from one snapshot to the next; None for no snapshots.
        newest: Newest snapshot at the restore.
        checkpoint_offset: Offset of the newest `CHECKPOINT_COMPLETED` that counts.
        payloads: Store of large states; without a store, a state must be small enough for a record.
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
        """Offset of the newest released snapshot, for headers; -1 for none."""
        self._codec, self._every = codec, every
        self._sequence, self._wait = newest.sequence, every or 0
        self._checkpoint_offset = checkpoint_offset
        self._payloads = payloads or DriverPayloads()
        self._unreleased = 0
        self._requests: deque[RequestArrived] = deque()
        self.why_not = ""
        """Reason why the last `take` has returned None."""
        if every is not None and codec.without_codec:
            self._every = None
            _log.warning(
                "no snapshots: the projections of the operators %s have no codec, so that each restore folds the "
                "log from its start; set one, as in `codec=DerivedCodec(MyState)`",
                ", ".join(codec.without_codec),
            )

    @staticmethod
    def is_watched(record: Record) -> bool:
        """Whether `closed` and `released` must be called for this record."""
        return record.kind in (Kind.SNAPSHOT, Kind.CHECKPOINT_COMPLETED)

    def closed(self) -> None:
        """Count a watched record that waits for the log."""
        self._unreleased += 1

    def released(self, record: Record, offset: int) -> None:
        """Note that a watched record counts, at `offset`."""
        self._unreleased -= 1
        if record.kind is Kind.SNAPSHOT:
            self.offset = offset
        else:
            self._checkpoint_offset = offset

    def queue_request(self, input_: object) -> bool:
        """Queue the input for `next_request` if it is a client's request for a snapshot; returns whether it is."""
        is_request = isinstance(input_, RequestArrived) and input_.payload_type == _WANTED
        if is_request:
            self._requests.append(cast("RequestArrived", input_))
        return is_request

    def next_request(self) -> RequestArrived | None:
        """Next request that can be served now, or None; none can be while a watched record waits for the log."""
        return self._requests.popleft() if self._requests and not self._unreleased else None

    def is_due(self, state: JobState) -> bool:
        """Whether a snapshot is to be taken of this state.

        Not while a snapshot or a completed checkpoint waits for the log: a snapshot holds the offset of the latter.
        """
        return (
            self._every is not None
            and state.next_sequence - self._sequence >= self._wait
            and not self._unreleased
            and not state.is_over
        )

    def is_owed_at_end(self, state: JobState) -> bool:
        """Whether the driver's last act is to take a snapshot: not if the newest one is the log's last record."""
        return (
            self._every is not None
            and not self._unreleased
            and self._sequence != state.next_sequence - 1
        )

    def take(self, state: JobState, *, is_standing: bool) -> bytes | None:
        """Payload of a snapshot of `state`, or None if there can be none, which is logged.

        A standing snapshot is stored in the log itself as far as possible, because a log may begin with it.
        """
        if self._codec.without_codec:
            operators = ", ".join(self._codec.without_codec)
            self.why_not = f"the projections of the operators {operators} have no codec"
            return None
        self._sequence = state.next_sequence
        try:
            payload, state_bytes = self._standing(state) if is_standing else self._any(state)
        except (SnapshotTooLargeError, SnapshotMisfitError) as error:
            self._postpone(state, str(error))
            return None
        except Exception as error:  # noqa: BLE001, a user's codec: the job continues without snapshots
            _log.exception("no snapshots any more: job=%s epoch=%d", state.job_id, state.epoch)
            self._every = None
            self.why_not = f"its state cannot be encoded: {type(error).__name__}: {error}"
            return None
        large = max(0, state_bytes - SNAPSHOT_CHEAP_BYTES)
        self._wait = max(self._every or 0, large // SNAPSHOT_BYTES_PER_RECORD)
        return payload

    def _any(self, state: JobState) -> tuple[bytes, int]:
        """Payload of a snapshot, and length of the encoded state in bytes."""
        snapshot = self._codec.encode(state, checkpoint_offset=self._checkpoint_offset)
        if self._payloads.options.is_kept(None, len(snapshot.state)):
            # The limit of an encoded state is far below that of the store.
            snapshot = replace(
                snapshot, state=self._payloads.seal("a snapshot", None, snapshot.state)
            )
        has_store = self._payloads.options.store is not None
        step = _shortening(state) if has_store else _NAME_A_STORE
        return _encoded(snapshot, "the state", step), snapshot.state_bytes

    def _standing(self, state: JobState) -> tuple[bytes, int]:
        standing = standing_snapshot(
            self._codec,
            state,
            checkpoint_offset=self._checkpoint_offset,
            owner=self._payloads.owner,
        )
        for part in standing.parts:
            self._payloads.hold(part)
        return standing.payload, standing.state_bytes

    def _postpone(self, state: JobState, why: str) -> None:
        """Log why there is no snapshot now; the next one is tried after twice as many records."""
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
    """A snapshot that is too large for a record."""

    def __init__(
        self, what: str, state_bytes: int, payload_bytes: int, rest_bytes: int, next_step: str
    ) -> None:
        super().__init__(what, state_bytes, payload_bytes, rest_bytes, next_step)
        self.what, self.state_bytes = what, state_bytes
        self.payload_bytes, self.rest_bytes = payload_bytes, rest_bytes
        self.next_step = next_step
        """Advice to the user, or empty."""

    def __str__(self) -> str:
        problem = (
            f"{self.what} has {self.state_bytes} bytes; compressed {self.payload_bytes} and "
            f"{self.rest_bytes} for the rest of its record are "
            f"{self.payload_bytes + self.rest_bytes}, and a record holds {RECORD_BYTES_MAX}"
        )
        return f"{problem}; {self.next_step}" if self.next_step else problem


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingSnapshot:
    """A snapshot with which a log may begin. Its parts must be stored before it is appended."""

    payload: bytes
    state_bytes: int
    """Length of the encoded state, its parts included."""
    parts: tuple[bytes, ...] = ()
    """Parts that it addresses in the payload store; empty if all of it is in the log."""


def standing_snapshot(
    codec: SnapshotCodec,
    state: JobState,
    *,
    checkpoint_offset: int | None,
    owner: str,
) -> StandingSnapshot:
    """A snapshot with which a log may begin; does no I/O.

    All of it is in the log if it is small enough. Else the states of coordinators go to the payload store: only the
    job's own driver needs them.

    Args:
        codec: Snapshot codec of the job.
        state: State of the job.
        checkpoint_offset: Offset of the newest `CHECKPOINT_COMPLETED` before it.
        owner: Folder for its parts in the payload store; empty if there is no store.

    Raises:
        SnapshotMisfitError: The snapshot is too large for a record.
        SnapshotTooLargeError: The state, or a part of it, is larger than a reader accepts.
    """
    snapshot = codec.encode(state, checkpoint_offset=checkpoint_offset)
    misfit: SnapshotMisfitError
    try:
        payload = _encoded(snapshot, "the state", _NAME_A_STORE)
        return StandingSnapshot(payload=payload, state_bytes=snapshot.state_bytes)
    except SnapshotMisfitError as error:
        misfit = error
    parts: list[bytes] = []

    def seal(data: bytes) -> bytes:
        if len(data) <= SNAPSHOT_PART_BYTES:
            return inline(data)
        parts.append(data)
        return PayloadAddress.of(data, owner or _NO_OWNER).encode()

    apart = codec.encode(state, checkpoint_offset=checkpoint_offset, seal=seal)
    what = "the state without those of coordinators" if parts else "the state"
    payload = _encoded(apart, what, _shortening(state))
    if not owner:
        raise misfit
    return StandingSnapshot(payload=payload, state_bytes=snapshot.state_bytes, parts=tuple(parts))


def _shortening(state: JobState) -> str:
    """Advice that would shorten the part of a state that must be in the log; empty if there is none."""
    steps = [_RELEASE] if state.savepoints else []
    if any(
        part.state
        for _, checkpoint in sorted_items(state.completed)
        for _, states in sorted_items(checkpoint.states)
        for part in states
    ):
        steps.append(_SMALLER_STATES)
    return ", or ".join(steps)


def _encoded(snapshot: JobSnapshot, what: str, next_step: str) -> bytes:
    payload, rest = SNAPSHOT_TYPE.encode(snapshot), _ENVELOPE_BYTES
    if len(payload) + rest > RECORD_BYTES_MAX:
        raise SnapshotMisfitError(what, snapshot.state_bytes, len(payload), rest, next_step)
    return payload


def snapshot_answer(
    request_id: int, sequence: int, payload: bytes | None, why_not: str
) -> AnswerRequest:
    """Answer to a client's request for a snapshot: its sequence, or the reason why there is none."""
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
