"""Completed checkpoints of a job: offset of each, and whether the job can roll back to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coordlog.errors import OptionError, RecordError
from coordlog.projections.inspection.codeless_fold import PlainFold
from coordlog.projections.job.branches import ahead_of
from coordlog.projections.job.savepoints import names_of, why_not_retained
from coordlog.projections.job.state import CompletedCheckpoint, JobState, Phase, sorted_items
from coordlog.projections.tables.audit import Applying, AuditRecord
from coordlog.schemas.checkpoint_metadata import ReadMetadata, read_metadata
from coordlog.schemas.payload_address import content_length
from coordlog.schemas.record import Kind, Record

__all__ = [
    "CheckpointPart",
    "CompletedRow",
    "ShownCheckpoint",
    "completed_checkpoints",
    "show_checkpoint",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRow:
    """A completed checkpoint."""

    checkpoint_id: int
    offset: int | None
    """Offset of its `CHECKPOINT_COMPLETED`; None if that was pruned, so that only the state has the checkpoint."""
    log_start: int
    """First offset of the log: pruned records were before it."""
    epoch: int | None
    """Epoch of its record, or None if that was pruned."""
    completed_us: int | None
    """Time of its record in microseconds since 1970, UTC; None if that was pruned."""
    triggered_us: int | None
    """Time of its `CHECKPOINT_TRIGGERED`, or None if the log does not have that any more."""
    is_last: bool
    """Whether the job continues from it."""
    savepoints: tuple[str, ...]
    """Names of the savepoints that keep it."""
    why_not: str | None
    """Reason why the job cannot roll back to it, or None if it can."""


def completed_checkpoints(records: Iterable[AuditRecord]) -> tuple[CompletedRow, ...]:
    """Completed checkpoints by ascending number: those in the log, and those that the state has from before it.

    Args:
        records: All of the job's log, from its first record on.

    Raises:
        RecordError: A record that counts cannot be read or applied.
    """
    triggered: dict[int, int] = {}
    completed: dict[int, tuple[AuditRecord, Record]] = {}
    fold = PlainFold()
    for entry in records:
        record = fold.apply(entry)
        if record is None or record.checkpoint_id is None:
            continue
        if record.kind is Kind.CHECKPOINT_TRIGGERED:
            triggered[record.checkpoint_id] = record.timestamp_us
        elif record.kind is Kind.CHECKPOINT_COMPLETED:
            completed[record.checkpoint_id] = entry, record
    return tuple(
        _row(fold, number, completed.get(number), triggered.get(number))
        for number in sorted({*completed, *sorted(fold.state.completed)})
    )


def _row(
    fold: PlainFold,
    number: int,
    stored: tuple[AuditRecord, Record] | None,
    triggered_us: int | None,
) -> CompletedRow:
    state = fold.state
    return CompletedRow(
        checkpoint_id=number,
        offset=None if stored is None else stored[0].offset,
        log_start=fold.start,
        epoch=None if stored is None else stored[1].epoch,
        completed_us=None if stored is None else stored[1].timestamp_us,
        triggered_us=triggered_us,
        is_last=number == state.last_checkpoint,
        savepoints=names_of(state, number),
        why_not=_why_not(state, number),
    )


def _why_not(state: JobState, checkpoint_id: int) -> str | None:
    if state.phase is Phase.FINISHED:
        return "the job has finished"
    why_not = why_not_retained(state, checkpoint_id)
    if why_not is not None:
        return why_not
    commits = [
        f"{operator_id!r} commits checkpoint {newest}" + (f" to {place}" if place else "")
        for operator_id, place, newest in ahead_of(state, checkpoint_id)
    ]
    return f"only writing elsewhere: {', '.join(commits)}" if commits else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """Part of a checkpoint that belongs to one operator."""

    operator_id: str
    cut_sequence: int | None
    """Sequence of its coordinator's cut; None if it has none, or the metadata does not hold it."""
    coordinator_bytes: int | None
    """Size of its coordinator's state; None if that is the fold at the cut, or there is none."""
    subtask_bytes: tuple[tuple[int, int], ...]
    """Subtask and size in bytes, for each subtask with a state."""
    in_flight: int
    """Number of events to its coordinator that crossed the cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCheckpoint:
    """A completed checkpoint by its record and the fold, or by the state alone if its record was pruned."""

    checkpoint_id: int
    job_id: str
    sequence: int
    """Sequence of its `CHECKPOINT_COMPLETED`."""
    parallelism: int
    offset: int | None
    """Offset of its record. None if that was pruned, as are the other fields that only the record has."""
    log_start: int
    """First offset of the log."""
    epoch: int | None
    completed_us: int | None
    metadata: ReadMetadata | None
    metadata_bytes: int
    parts: tuple[CheckpointPart, ...]
    finished: tuple[int, ...]


def show_checkpoint(records: Iterable[AuditRecord], checkpoint_id: int) -> ShownCheckpoint:
    """A completed checkpoint with its parts.

    Args:
        records: All of the job's log, from its first record on.
        checkpoint_id: Number of the checkpoint.

    Raises:
        RecordError: A record that counts cannot be read or applied; its metadata is of an unknown version.
        OptionError: The checkpoint has not completed in this log, and the state does not have it from before.
    """
    fold, completed = PlainFold(), []
    for entry in records:
        is_wanted = (
            entry.counts
            and entry.record is not None
            and entry.record.kind is Kind.CHECKPOINT_COMPLETED
            and entry.record.checkpoint_id == checkpoint_id
        )
        if is_wanted and entry.record is not None:
            metadata = _metadata(entry, entry.record)  # before the fold, which refuses it too
            with Applying(entry.offset, entry.record):
                fold.apply(entry)
                return _shown(fold, fold.state.completed[checkpoint_id], entry, metadata)
        record = fold.apply(entry)
        if record is not None and record.kind is Kind.CHECKPOINT_COMPLETED:
            completed.append(str(record.checkpoint_id))
    retained = fold.state.completed.get(checkpoint_id)
    if retained is not None:
        return _shown(fold, retained, None, None)
    completed += [
        str(number) for number in sorted(fold.state.completed) if str(number) not in completed
    ]
    known = ", ".join(sorted(completed, key=int)) or "none has"
    expected = f"one that has completed in this log: {known}"
    raise OptionError("checkpoint", checkpoint_id, expected)


def _metadata(entry: AuditRecord, record: Record) -> ReadMetadata:
    try:
        return read_metadata(record.payload_type, record.payload)
    except ValueError as error:
        raise RecordError(entry.offset, record.kind.value, str(error)) from error


def _shown(
    fold: PlainFold,
    completed: CompletedCheckpoint,
    entry: AuditRecord | None,
    metadata: ReadMetadata | None,
) -> ShownCheckpoint:
    record = None if entry is None else entry.record
    return ShownCheckpoint(
        checkpoint_id=completed.checkpoint_id,
        job_id=fold.state.job_id,
        sequence=completed.sequence,
        parallelism=completed.parallelism,
        offset=None if entry is None else entry.offset,
        log_start=fold.start,
        epoch=None if record is None else record.epoch,
        completed_us=None if record is None else record.timestamp_us,
        metadata=metadata,
        metadata_bytes=0 if record is None else len(record.payload or b""),
        parts=_parts(completed, has_cuts=metadata is None or metadata.version > 1),
        finished=tuple(sorted(completed.finished)),
    )


def _parts(completed: CompletedCheckpoint, *, has_cuts: bool) -> tuple[CheckpointPart, ...]:
    sizes: dict[str, list[tuple[int, int]]] = {}
    by_subtask = {number: part.states for number, part in sorted_items(completed.finished)}
    by_subtask.update(sorted_items(completed.states))
    for number, states in sorted(by_subtask.items()):
        for operator in states:
            if operator.state is not None:
                size = content_length(operator.state)
                sizes.setdefault(operator.operator_id, []).append((number, size))
    in_flight = [event.operator_id for event in completed.in_flight]
    cuts = dict(completed.cuts.items()) if has_cuts else {}
    parts = []
    for operator_id in sorted({*sizes, *cuts, *in_flight}):
        cut = cuts.get(operator_id)
        state = None if cut is None else cut.state
        parts.append(
            CheckpointPart(
                operator_id=operator_id,
                cut_sequence=None if cut is None else cut.sequence,
                coordinator_bytes=None if state is None else content_length(state),
                subtask_bytes=tuple(sizes.get(operator_id, ())),
                in_flight=in_flight.count(operator_id),
            )
        )
    return tuple(parts)
