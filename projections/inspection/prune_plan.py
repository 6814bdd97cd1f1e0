"""Removable beginning of a log: the log must then begin with a `SNAPSHOT` that leaves all kept checkpoints restorable.

A checkpoint is restorable if the job state holds it. A snapshot holds the checkpoints retained at its place; those
completed behind it are in the log. So a log may begin with a snapshot if each checkpoint to keep is of either kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coordlog.errors import PayloadLostError, RecordError
from coordlog.projections.inspection.codeless_fold import PlainFold
from coordlog.projections.job.state import JobState, sorted_values
from coordlog.projections.snapshot.codec import SnapshotUnusableError, state_and_kept_apart
from coordlog.projections.tables.audit import Applying, AuditRecord, Stored, audit_records
from coordlog.schemas.payload_address import address_in
from coordlog.schemas.record import Kind, Record

__all__ = ["PrunePlan", "SnapshotPlace", "plan_prune", "savepoint_checkpoints"]

_OVERHEAD_BYTES = 61
"""Size of a record on disk beside key and value: header, lengths, a part of its batch's 61 bytes."""


def savepoint_checkpoints(state: JobState) -> tuple[int, ...]:
    """Checkpoints of savepoints, ascending."""
    return tuple(sorted(set(sorted_values(state.savepoints))))


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlace:
    """A `SNAPSHOT` that counts."""

    offset: int
    sequence: int
    timestamp_us: int
    completed: frozenset[int]
    """Checkpoints in its state."""
    bytes_below: int
    records_below: int
    why_not: str | None = None
    """Reason if no log can begin with it, else None."""
    kept_apart: tuple[bytes, ...] = ()
    """Addresses of payloads in the payload store that only the driver of the job needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """Plan of pruning a log."""

    start: int
    """First offset of the log; 0 if it is empty."""
    end: int
    """Offset after the last record."""
    state: JobState
    """State at the end, without projections of coordinators."""
    began_us: int
    """Time of the first record; 0 if the log is empty."""
    checkpoints: tuple[int, ...]
    """Checkpoints that stay restorable, ascending: the last ones, and savepoints."""
    oldest_us: int | None
    """Completion time of the oldest of them, or None if there is none or its record was pruned."""
    begins_with: SnapshotPlace | None
    """First record after the prune, or None if no record can be removed."""
    why_not: str
    """Reason if no record can be removed, else empty."""
    record_count: int
    """Number of records in the log."""
    byte_count: int
    newest: SnapshotPlace | None
    """Newest snapshot that a log can begin with, whichever checkpoints are kept."""


def plan_prune(stored: Iterable[Stored], *, keep_checkpoints: int) -> PrunePlan:
    """Plan of a prune that keeps the last `keep_checkpoints` restorable checkpoints and all savepoints.

    Args:
        stored: All of the log, from its first record on.
        keep_checkpoints: 1 or more. If fewer are restorable, all of them stay.

    Raises:
        RecordError: A record that counts cannot be read or applied.
    """
    fold = _Fold()
    for entry in audit_records(fold.noting(stored)):
        fold.feed(entry)
    state = fold.state
    restorable = sorted(n for n in state.completed if n <= state.last_checkpoint)
    wanted = tuple(sorted({*restorable[-keep_checkpoints:], *savepoint_checkpoints(state)}))
    usable = [snapshot for snapshot in fold.snapshots if snapshot.why_not is None]
    # The remaining log must hold a snapshot that the job's own code can start from.
    named = [snapshot for snapshot in usable if snapshot.offset <= fold.named]
    sufficient = [snapshot for snapshot in named if all(fold.has(snapshot, n) for n in wanted)]
    begins_with = max(sufficient, key=lambda snapshot: snapshot.offset, default=None)
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
        newest=max(named, key=lambda snapshot: snapshot.offset, default=None),
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
        """Offset of the newest snapshot that the last driver has taken or read, from its headers."""
        self._pointers: dict[int, int] = {}
        self._is_command = False

    @property
    def state(self) -> JobState:
        return self._plain.state

    def noting(self, stored: Iterable[Stored]) -> Iterator[Stored]:
        """The records; keeps the pointer of each header until the record is fed."""
        for entry in stored:
            header = entry.header
            if header is not None:
                self._pointers[entry.offset] = header.snapshot_offset
            yield entry

    def feed(self, entry: AuditRecord) -> None:
        if self.start < 0:
            self.start, self.began_us = entry.offset, entry.timestamp_ms * 1000
        self.end = entry.offset + 1
        pointer = self._pointers.pop(entry.offset, -1)
        if entry.counts:
            self._apply(entry)
            self._name(entry, pointer)
        self.record_count += 1
        self.byte_count += _OVERHEAD_BYTES + len(entry.key or b"") + len(entry.value or b"")

    def _apply(self, entry: AuditRecord) -> None:
        record = entry.known()
        with Applying(entry.offset, record):
            if record.kind is Kind.SNAPSHOT:
                self._snapshot(entry, record)
            self._plain.apply(entry)
        if record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id is not None:
            self._completed[record.checkpoint_id] = entry.offset
            self.completed_us[record.checkpoint_id] = record.timestamp_us

    def _name(self, entry: AuditRecord, pointer: int) -> None:
        """Update `named`. Ignores pointers of commands: the job may be unable to read those snapshots."""
        kind = None if entry.record is None else entry.record.kind
        if kind is Kind.EPOCH_STARTED:
            self._is_command = self.state.launch_info.is_command
            if not self._is_command:
                self.named = pointer
        elif not self._is_command:
            self.named = max(self.named, pointer, entry.offset if kind is Kind.SNAPSHOT else -1)
        elif kind is Kind.SNAPSHOT:  # a command that takes a snapshot has the job's projections
            self.named = max(self.named, entry.offset)

    def _snapshot(self, entry: AuditRecord, record: Record) -> None:
        """Add a snapshot. If its state is not the state of the fold, no log may begin with it."""
        why_not = None
        try:
            held, apart = state_and_kept_apart(record)
            why_not = _strange(apart)
        except (SnapshotUnusableError, PayloadLostError) as error:
            if entry.beginning is not None:
                raise RecordError(entry.offset, record.kind.value, str(error)) from error
            held, apart, why_not = self.state, (), str(error)
        if entry.beginning is not None:
            self._plain.begin_with(held)
        elif held != self.state:
            why_not = "its state is not the fold's there"
        self.snapshots.append(
            SnapshotPlace(
                offset=entry.offset,
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
        """Whether a log that begins with the snapshot holds the checkpoint."""
        completed_at = self._completed.get(checkpoint_id)
        return checkpoint_id in snapshot.completed or (
            completed_at is not None and completed_at > snapshot.offset
        )


def _strange(apart: Iterable[bytes]) -> str | None:
    """Fault of the first value that is no address (damaged, or of a newer version), or None."""
    try:
        for data in apart:
            address_in(data)
    except ValueError as error:
        return str(error)
    return None
