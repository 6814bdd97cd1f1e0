"""Removable beginning of a log: all records before the newest `SNAPSHOT` that the job and every reader can start from.

A snapshot holds the whole job state: every retained checkpoint, savepoint and open intent is in it, or is in the log
behind it. So none of them needs a record before it.
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

__all__ = ["PrunePlan", "SnapshotPlace", "plan_prune"]

_OVERHEAD_BYTES = 61
"""Size of a record on disk beside key and value: header, lengths, a part of its batch's 61 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlace:
    """A `SNAPSHOT` that counts."""

    offset: int
    sequence: int
    timestamp_us: int
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
    """Checkpoints that stay restorable, ascending: the retained ones, and savepoints."""
    begins_with: SnapshotPlace | None
    """First record after the prune, or None if no record can be removed."""
    why_not: str
    """Reason if no record can be removed, else empty."""
    record_count: int
    """Number of records in the log."""
    byte_count: int
    newest: SnapshotPlace | None
    """Newest snapshot that a log can begin with; the log may begin there already."""


def plan_prune(stored: Iterable[Stored]) -> PrunePlan:
    """Plan of a prune up to the newest snapshot.

    Args:
        stored: All of the log, from its first record on.

    Raises:
        RecordError: A record that counts cannot be read or applied.
    """
    fold = _Fold()
    for entry in audit_records(fold.noting(stored)):
        fold.feed(entry)
    state = fold.state
    restorable = (n for n in state.completed if n <= state.last_checkpoint)
    usable = [snapshot for snapshot in fold.snapshots if snapshot.why_not is None]
    # The remaining log must hold a snapshot that the job's own code can start from.
    newest = next((place for place in reversed(usable) if place.offset <= fold.named), None)
    is_begun_there = newest is not None and newest.offset <= fold.start
    why_not = ""
    if is_begun_there:
        why_not = "it begins there already"
    elif newest is None and usable:
        why_not = "its last driver could start from no snapshot that there is"
    elif newest is None:
        why_not = "it has no snapshot"
        if fold.snapshots:
            last = fold.snapshots[-1]
            why_not = f"no snapshot can be used, the one at offset {last.offset} as {last.why_not}"
    return PrunePlan(
        start=max(0, fold.start),
        end=fold.end,
        state=state,
        began_us=fold.began_us,
        checkpoints=tuple(sorted({*restorable, *sorted_values(state.savepoints)})),
        begins_with=None if is_begun_there else newest,
        why_not=why_not,
        record_count=fold.record_count,
        byte_count=fold.byte_count,
        newest=newest,
    )


class _Fold:
    def __init__(self) -> None:
        self._plain = PlainFold()
        self.start, self.end, self.began_us = -1, 0, 0
        self.record_count = self.byte_count = 0
        self.snapshots: list[SnapshotPlace] = []
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

    def _name(self, entry: AuditRecord, pointer: int) -> None:
        """Update `named`. Ignores pointers of commands: the job may be unable to read those snapshots."""
        kind = None if entry.record is None else entry.record.kind
        if kind is Kind.EPOCH_STARTED:
            self._is_command = self.state.launch_info.is_command
            if not self._is_command:
                self.named = pointer
        elif not self._is_command:
            self.named = max(self.named, pointer, entry.offset if kind is Kind.SNAPSHOT else -1)

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
                bytes_below=self.byte_count,
                records_below=self.record_count,
                why_not=why_not,
                kept_apart=apart,
            )
        )


def _strange(apart: Iterable[bytes]) -> str | None:
    """Fault of the first value that is no address (damaged, or of a newer version), or None."""
    try:
        for data in apart:
            address_in(data)
    except ValueError as error:
        return str(error)
    return None
