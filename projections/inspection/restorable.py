"""The completed checkpoints of a job: where each stands, and whether the job can go back to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coordlog.errors import OptionError, RecordError
from coordlog.projections.inspection.codeless_fold import PlainFold
from coordlog.projections.job.branches import ahead_of
from coordlog.projections.job.retention import why_not_retained
from coordlog.projections.job.savepoints import names_of
from coordlog.projections.job.state import CompletedCheckpoint, JobState, Phase, sorted_items
from coordlog.projections.tables.apply_errors import Applying
from coordlog.projections.tables.audit import AuditRecord
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
    """One checkpoint that has completed."""

    checkpoint_id: int
    offset: int | None
    """Of its `CHECKPOINT_COMPLETED`; None where that was pruned, and the state alone has the checkpoint."""
    log_start: int
    """The first offset of the log: what was pruned stood before it."""
    epoch: int | None
    """None where its record was pruned."""
    completed_us: int | None
    """Microseconds since 1970, UTC; None where its record was pruned."""
    triggered_us: int | None
    """None where the log does not have that any more."""
    is_last: bool
    """The one that the job goes on from."""
    kept_as: tuple[str, ...]
    """The names that keep it."""
    why_not: str | None
    """Why the job cannot go back to it; None where it can."""


def completed_checkpoints(records: Iterable[AuditRecord]) -> tuple[CompletedRow, ...]:
    """The completed checkpoints of a job, by number: those in the log, and those that the state has from before it.

    Args:
        records: All of its log, from its first record on.

    Raises:
        RecordError: A record that counts cannot be read or applied.
    """
    triggered: dict[int, int] = {}
    completed: dict[int, tuple[AuditRecord, Record]] = {}
    fold = PlainFold()
    for one in records:
        record = fold.apply(one)
        if record is None or record.checkpoint_id is None:
            continue
        if record.kind is Kind.CHECKPOINT_TRIGGERED:
            triggered[record.checkpoint_id] = record.timestamp_us
        elif record.kind is Kind.CHECKPOINT_COMPLETED:
            completed[record.checkpoint_id] = one, record
    return tuple(
        _row(fold, number, completed.get(number), triggered.get(number))
        for number in sorted({*completed, *sorted(fold.state.completed)})
    )


def _row(
    fold: PlainFold, number: int, there: tuple[AuditRecord, Record] | None, triggered_us: int | None
) -> CompletedRow:
    state = fold.state
    return CompletedRow(
        checkpoint_id=number,
        offset=None if there is None else there[0].offset,
        log_start=fold.start,
        epoch=None if there is None else there[1].epoch,
        completed_us=None if there is None else there[1].timestamp_us,
        triggered_us=triggered_us,
        is_last=number == state.last_checkpoint,
        kept_as=names_of(state, number),
        why_not=_why_not(state, number),
    )


def _why_not(state: JobState, checkpoint_id: int) -> str | None:
    if state.phase is Phase.FINISHED:
        return "the job has finished"
    why_not = why_not_retained(state, checkpoint_id)
    if why_not is not None:
        return why_not
    above = [
        f"{operator_id!r} commits checkpoint {newest}" + (f" to {there}" if there else "")
        for operator_id, there, newest in ahead_of(state, checkpoint_id)
    ]
    return f"only writing elsewhere: {', '.join(above)}" if above else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """What a checkpoint has of one operator."""

    operator_id: str
    cut_sequence: int | None
    """Of its coordinator's cut; None where it has none, or the metadata does not tell."""
    coordinator_bytes: int | None
    """None: its coordinator's state is the fold at the cut, or it has none."""
    subtask_bytes: tuple[tuple[int, int], ...]
    """Subtask and bytes, of those that have a state of it."""
    in_flight: int
    """Events to its coordinator that crossed the cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCheckpoint:
    """A completed checkpoint as its record and the fold have it; or the state alone, where its record was pruned."""

    checkpoint_id: int
    job_id: str
    sequence: int
    """Of its `CHECKPOINT_COMPLETED`."""
    parallelism: int
    offset: int | None
    """None where its record was pruned, and so with what only that says."""
    log_start: int
    """The first offset of the log."""
    epoch: int | None
    completed_us: int | None
    metadata: ReadMetadata | None
    metadata_bytes: int
    parts: tuple[CheckpointPart, ...]
    finished: tuple[int, ...]


def show_checkpoint(records: Iterable[AuditRecord], checkpoint_id: int) -> ShownCheckpoint:
    """One completed checkpoint.

    Args:
        records: All of the job's log, from its first record on.
        checkpoint_id: Which.

    Raises:
        RecordError: A record that counts cannot be read or applied; its metadata is of an unknown version.
        OptionError: It has not completed in this log, and the state does not have it from before.
    """
    fold, done = PlainFold(), []
    for one in records:
        is_wanted = (
            one.counts
            and one.record is not None
            and one.record.kind is Kind.CHECKPOINT_COMPLETED
            and one.record.checkpoint_id == checkpoint_id
        )
        if is_wanted and one.record is not None:
            metadata = _metadata(one, one.record)  # before the fold, which refuses it too
            with Applying(one.offset, one.record):
                fold.apply(one)
                return _shown(fold, fold.state.completed[checkpoint_id], one, metadata)
        record = fold.apply(one)
        if record is not None and record.kind is Kind.CHECKPOINT_COMPLETED:
            done.append(str(record.checkpoint_id))
    held = fold.state.completed.get(checkpoint_id)
    if held is not None:
        return _shown(fold, held, None, None)
    done += [str(number) for number in sorted(fold.state.completed) if str(number) not in done]
    there = ", ".join(sorted(done, key=int)) or "none has"
    expected = f"one that has completed in this log: {there}"
    raise OptionError("checkpoint", checkpoint_id, expected)


def _metadata(one: AuditRecord, record: Record) -> ReadMetadata:
    try:
        return read_metadata(record.payload_type, record.payload)
    except ValueError as error:
        raise RecordError(one.offset, record.kind.value, str(error)) from error


def _shown(
    fold: PlainFold,
    completed: CompletedCheckpoint,
    one: AuditRecord | None,
    metadata: ReadMetadata | None,
) -> ShownCheckpoint:
    record = None if one is None else one.record
    return ShownCheckpoint(
        checkpoint_id=completed.checkpoint_id,
        job_id=fold.state.job_id,
        sequence=completed.sequence,
        parallelism=completed.parallelism,
        offset=None if one is None else one.offset,
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
        for each in states:
            if each.state is not None:
                sizes.setdefault(each.operator_id, []).append((number, content_length(each.state)))
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
