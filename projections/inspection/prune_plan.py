"""What of a log's beginning can be removed: it must begin with a `SNAPSHOT` from which all is there that is to be kept.

Restorable is what the job state holds. A snapshot holds the checkpoints that were retained where it was taken; those
that completed behind it stand in the log. So a log may begin with a snapshot where each checkpoint that is to be kept
is of one or the other kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coordlog.errors import PayloadLostError, RecordError
from coordlog.projections.inspection.codeless_fold import PlainFold, record_of
from coordlog.projections.job.state import JobState, sorted_values
from coordlog.projections.snapshot.codec import SnapshotUnusableError, state_and_kept_apart
from coordlog.projections.tables.apply_errors import Applying
from coordlog.projections.tables.audit import AuditRecord, Stored, audit_records
from coordlog.schemas.payload_address import address_in
from coordlog.schemas.record import Kind, Record

__all__ = ["PrunePlan", "SnapshotPlace", "kept_checkpoints", "plan_prune"]

_OVERHEAD_BYTES = 61
"""What a record takes on disk beside key and value: its header, its lengths, a part of its batch's 61 bytes."""


def kept_checkpoints(state: JobState) -> tuple[int, ...]:
    """The checkpoints that are kept by name, ascending."""
    return tuple(sorted(set(sorted_values(state.kept))))


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlace:
    """A `SNAPSHOT` that counts."""

    offset: int
    sequence: int
    timestamp_us: int
    completed: frozenset[int]
    """The checkpoints that its state holds."""
    bytes_below: int
    records_below: int
    why_not: str | None = None
    """Why nothing can begin with it; None where it can."""
    kept_apart: tuple[bytes, ...] = ()
    """Addresses: of what stands in the payload store, and only the job's own driver needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """How a log would be pruned."""

    start: int
    """The log's first offset; 0 where it is empty."""
    end: int
    """The offset after its last record."""
    state: JobState
    """At its end, without coordinators' projections."""
    began_us: int
    """The time of its first record, 0 where it is empty."""
    checkpoints: tuple[int, ...]
    """Those that stay restorable, ascending: the last ones, and what is kept."""
    oldest_us: int | None
    """When the oldest of them completed; None where there is none, or that is not in the log any more."""
    begins_with: SnapshotPlace | None
    """What the log would begin with; None where nothing can be removed."""
    why_not: str
    """Why nothing can be; empty where something can."""
    record_count: int
    """Of all that is there."""
    byte_count: int
    newest: SnapshotPlace | None
    """The newest snapshot that a log can begin with, whatever is to be kept."""


def plan_prune(stored: Iterable[Stored], *, keep_checkpoints: int) -> PrunePlan:
    """What could be removed, so that the last `keep_checkpoints` restorable checkpoints and all kept ones stay.

    Args:
        stored: All of the log, from its first record on.
        keep_checkpoints: 1 or more. Where fewer are restorable, all of them.

    Raises:
        RecordError: A record that counts cannot be read or applied.
    """
    fold = _Fold()
    for one in audit_records(fold.noting(stored)):
        fold.feed(one)
    state = fold.state
    restorable = sorted(n for n in state.completed if n <= state.last_checkpoint)
    wanted = tuple(sorted({*restorable[-keep_checkpoints:], *kept_checkpoints(state)}))
    usable = [one for one in fold.snapshots if one.why_not is None]
    # Behind what the log begins with must stand one that the job's own code can start from.
    named = [one for one in usable if one.offset <= fold.named]
    fitting = [one for one in named if all(fold.has(one, n) for n in wanted)]
    begins_with = max(fitting, key=lambda one: one.offset, default=None)
    why_not = ""
    if not usable:
        why_not = "it has no snapshot"
        if fold.snapshots:
            last = fold.snapshots[-1]
            why_not = f"no snapshot can be used, the one at offset {last.offset} as {last.why_not}"
    elif not named:
        why_not = "its last driver could start from no snapshot that there is"
    elif begins_with is None:
        why_not = f"no snapshot leaves all of the checkpoints {', '.join(map(str, wanted))}"
    elif begins_with.offset <= fold.start:
        begins_with, why_not = None, "it begins there already"
    return PrunePlan(
        start=max(0, fold.start),
        end=fold.end,
        state=state,
        began_us=fold.began_us,
        checkpoints=wanted,
        oldest_us=fold.completed_us.get(wanted[0]) if wanted else None,
        begins_with=begins_with,
        why_not=why_not,
        record_count=fold.record_count,
        byte_count=fold.byte_count,
        newest=max(named, key=lambda one: one.offset, default=None),
    )


class _Fold:
    def __init__(self) -> None:
        self._plain = PlainFold()
        self.start, self.end, self.began_us = -1, 0, 0
        self.record_count = self.byte_count = 0
        self.snapshots: list[SnapshotPlace] = []
        self._completed: dict[int, int] = {}
        self.completed_us: dict[int, int] = {}
        self.named = -1
        """The newest snapshot that the last driver has taken or come across, by what its headers say."""
        self._pointers: dict[int, int] = {}
        self._is_command = False

    @property
    def state(self) -> JobState:
        return self._plain.state

    def noting(self, stored: Iterable[Stored]) -> Iterator[Stored]:
        """The records, with their headers' pointers kept until they are fed."""
        for one in stored:
            header = one.header
            if header is not None:
                self._pointers[one.offset] = header.snapshot_offset
            yield one

    def feed(self, one: AuditRecord) -> None:
        if self.start < 0:
            self.start, self.began_us = one.offset, one.timestamp_ms * 1000
        self.end = one.offset + 1
        pointer = self._pointers.pop(one.offset, -1)
        if one.counts:
            self._apply(one)
            self._name(one, pointer)
        self.record_count += 1
        self.byte_count += _OVERHEAD_BYTES + len(one.key or b"") + len(one.value or b"")

    def _apply(self, one: AuditRecord) -> None:
        record = record_of(one)
        with Applying(one.offset, record):
            if record.kind is Kind.SNAPSHOT:
                self._snapshot(one, record)
            self._plain.apply(one)
        if record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id is not None:
            self._completed[record.checkpoint_id] = one.offset
            self.completed_us[record.checkpoint_id] = record.timestamp_us

    def _name(self, one: AuditRecord, pointer: int) -> None:
        """A command folds without the job's projections: what its headers name, the job may not be able to read."""
        kind = None if one.record is None else one.record.kind
        if kind is Kind.EPOCH_STARTED:
            self._is_command = "command" in self.state.launch
            if not self._is_command:
                self.named = pointer
        elif not self._is_command:
            self.named = max(self.named, pointer, one.offset if kind is Kind.SNAPSHOT else -1)
        elif kind is Kind.SNAPSHOT:  # a command that takes one has folded what it needs to
            self.named = max(self.named, one.offset)

    def _snapshot(self, one: AuditRecord, record: Record) -> None:
        """Its state must be the fold's there: what it is not, no log may begin with."""
        why_not = None
        try:
            held, apart = state_and_kept_apart(record)
            why_not = _strange(apart)
        except (SnapshotUnusableError, PayloadLostError) as error:
            if not self._plain.is_begun:
                raise RecordError(one.offset, record.kind.value, str(error)) from error
            held, apart, why_not = self.state, (), str(error)
        if not self._plain.is_begun:
            self._plain.begin_with(held)
        elif held != self.state:
            why_not = "its state is not the fold's there"
        self.snapshots.append(
            SnapshotPlace(
                offset=one.offset,
                sequence=-1 if record.sequence is None else record.sequence,
                timestamp_us=record.timestamp_us,
                completed=frozenset(held.completed),
                bytes_below=self.byte_count,
                records_below=self.record_count,
                why_not=why_not,
                kept_apart=apart,
            )
        )

    def has(self, snapshot: SnapshotPlace, checkpoint_id: int) -> bool:
        """Whether a log that begins with the snapshot comes to the checkpoint."""
        completed_at = self._completed.get(checkpoint_id)
        return checkpoint_id in snapshot.completed or (
            completed_at is not None and completed_at > snapshot.offset
        )


def _strange(apart: Iterable[bytes]) -> str | None:
    """Why one of these is no address, damaged or of a newer version; None where each is."""
    try:
        for data in apart:
            address_in(data)
    except ValueError as error:
        return str(error)
    return None
