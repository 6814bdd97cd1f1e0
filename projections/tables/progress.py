"""How far a job is, for people who watch it: a small state, folded from the records that count."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from immutables import Map

from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.lifecycle import is_driver_stopped, is_opened_again
from coordlog.projections.job.savepoints import FACTS
from coordlog.projections.job.skips import reason_in_words, skip_command
from coordlog.projections.job.state import Phase, sorted_items
from coordlog.projections.snapshot.codec import state_before
from coordlog.projections.tables.attempts import split_ids
from coordlog.projections.tables.payload_json import Fields, PayloadReader
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import NO_CHECKPOINT, JobMode, Kind, Record
from coordlog.schemas.validity import Beginning

__all__ = ["FinishedWork", "JobEnd", "Progress", "ProgressFold", "apply", "progress"]

_DISCOVERED = "coordlog.splits_discovered@"
_SKIPPED = "coordlog.split_skipped@"
_WITHDRAWN = "coordlog.splits_withdrawn@"
_NOT_LISTED = "coordlog.listing_failed@"
_LEFT_OUT = "coordlog.files_left_out@"


class JobEnd(enum.Enum):
    """Whether a job has ended, and how."""

    OPEN = "open"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedWork:
    """A split that an attempt has read to its end, until a reset throws that work away."""

    subtask: int
    last_barrier: int
    """Last barrier that the attempt had passed before the split's end."""
    is_kept: bool
    """Whether it stays finished when its attempt dies (L4: kept finished splits)."""
    rows: int
    bytes_read: int
    rejected: int = 0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a job is. Only `apply` creates it."""

    job_id: str = ""
    epoch: int = -1
    driver_id: str = ""
    is_batch: bool = False
    parallelism: int = 0
    end: JobEnd = JobEnd.OPEN
    is_pruned: bool = False
    """Whether the log begins with a `SNAPSHOT`: splits, rows, files, checkpoints and failures count since then."""
    started_us: int | None = None
    """Start of the first epoch; microseconds since 1970, UTC."""
    ended_us: int | None = None
    last_us: int = 0
    """Time of the last record."""
    next_sequence: int = 0
    known: Map[str, None] = field(default_factory=Map)
    """Splits that a listing has found."""
    is_listing_complete: bool = False
    listing_tries: int = 0
    """Number of consecutive listings that have failed; 0 after a complete one."""
    listing_problem: str = ""
    """Reason of the last failed listing."""
    listing_failing_since_us: int = 0
    """Time of the first failed listing."""
    left_out: int = 0
    """Number of files that listings have left out for their age."""
    left_out_first: str = ""
    """The first file of the last such record."""
    unreleased: int = 0
    """Number of splits whose committed input could not be archived or deleted, counted at each try."""
    unreleased_problem: str = ""
    """Split and problem of the last one."""
    finished: Map[str, FinishedWork] = field(default_factory=Map)
    """Finished work by split id."""
    skipped: Map[str, str] = field(default_factory=Map)
    """Reason by id of the split that is skipped for good (J2: skip poison)."""
    poison: Map[str, str] = field(default_factory=Map)
    """Command that skips it, without the options of the log; by split id, or by an event's sequence."""
    rows: int = 0
    """Rows of the finished splits."""
    bytes_read: int = 0
    """Bytes of the finished splits."""
    rejected: int = 0
    """Rows of the finished splits that were left out as bad."""
    splits_thrown_away: int = 0
    """Number of finished splits that had to be read again."""
    live: Map[int, int] = field(default_factory=Map)
    """Number of the running attempt, by subtask."""
    attempts_started: int = 0
    attempts_lost: int = 0
    """Number of attempts that ended before their subtask completed, for any reason."""
    last_checkpoint: int = NO_CHECKPOINT
    """Highest completed checkpoint of the current branch."""
    last_checkpoint_us: int | None = None
    """Time of its completion."""
    retained: Map[int, Map[str, FinishedWork]] = field(default_factory=Map)
    """Finished work at the completion of each retained checkpoint, for a job that goes back to one."""
    savepoints: Map[str, int] = field(default_factory=Map)
    """Checkpoints by the names that retain them."""
    checkpoints_completed: int = 0
    checkpoints_aborted: int = 0
    rows_published: int = 0
    files_published: int = 0
    bytes_published: int = 0
    failures: int = 0
    """Number of local and global failovers caused by a failure."""
    last_failure: str | None = None
    openings: int = 1
    """How often the job was opened: once by its first run, and after each end."""
    rows_before: int = 0
    """Rows published before the job was last opened again."""
    files_before: int = 0
    """Files published before the job was last opened again."""

    @property
    def splits_known(self) -> int:
        """Number of splits that a listing has found."""
        return len(self.known)

    @property
    def splits_finished(self) -> int:
        """Number of splits that are finished now."""
        return len(self.finished)


def progress(records: Iterable[Record]) -> Progress:
    """How far a job is.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    fold = ProgressFold()
    for record in records:
        fold.apply(record)
    return fold.progress


class ProgressFold:
    """Folds records with the payload types that they register.

    One thread applies; any thread may read `progress`.
    """

    def __init__(self) -> None:
        self._reader = PayloadReader()
        self.progress = Progress()

    def apply(self, record: Record) -> None:
        """Apply a record that counts, in log order; a record applied before changes nothing."""
        before = self.progress
        if record.kind is Kind.EPOCH_STARTED:
            is_known = record.epoch <= before.epoch
        else:
            is_known = record.sequence is not None and record.sequence < before.next_sequence
        if not is_known:
            self.progress = apply(before, record, self._reader.read(record))

    def begin(self, beginning: Beginning) -> None:
        """Where the log begins, before its first record: a snapshot does not hold what was read and published before.

        Raises:
            RecordError: As `state_before`.
        """
        record = beginning.snapshot
        if record is None:
            return
        state = state_before(beginning)
        self._reader.begin(state.schemas)
        ends = {Phase.FINISHED: JobEnd.FINISHED, Phase.FAILED: JobEnd.FAILED}
        subtasks = sorted_items(state.subtasks)
        self.progress = Progress(
            job_id=state.job_id,
            epoch=state.epoch,
            driver_id=state.driver_id,
            is_batch=state.is_batch,
            parallelism=state.parallelism,
            end=ends.get(state.phase, JobEnd.OPEN),
            is_pruned=True,
            last_checkpoint=state.last_checkpoint,
            started_us=record.timestamp_us,
            last_us=record.timestamp_us,
            next_sequence=(record.sequence or 0) + 1,
            live=Map(
                {
                    number: subtask.attempt.attempt_number
                    for number, subtask in subtasks
                    if subtask.attempt
                }
            ),
            attempts_started=sum(subtask.next_attempt_number for _, subtask in subtasks),
        )


def apply(state: Progress, record: Record, fields: Fields | None) -> Progress:
    """The progress after one more record that counts.

    Args:
        state: Progress before the record.
        record: Next record in log order.
        fields: Its decoded payload, or None if it has none or it cannot be decoded.
    """
    state = _by_kind(state, record, fields or {})
    if "poison" in record.attributes:
        key = record.attributes.get("split_id") or record.attributes.get("event_sequence", "")
        command = skip_command(record.job_id, record.attributes)
        state = evolve(state, poison=state.poison.set(key, command))
    sequence = record.sequence
    return evolve(
        state,
        last_us=record.timestamp_us,
        next_sequence=state.next_sequence if sequence is None else sequence + 1,
    )


def _by_kind(state: Progress, record: Record, fields: Fields) -> Progress:
    match record.kind:
        case Kind.EPOCH_STARTED:
            return _epoch_started(state, record)
        case Kind.FACT if record.attributes.get("closed") == "true":
            return (
                state  # for a coordinator that was closed: recorded only (A6: late calls recorded)
            )
        case Kind.FACT if (record.payload_type or "").startswith(_DISCOVERED):
            return _discovered(state, fields)
        case Kind.FACT if (record.payload_type or "").startswith(_WITHDRAWN):
            return _withdrawn(state, fields)
        case Kind.FACT if (record.payload_type or "").startswith(_NOT_LISTED):
            is_first = state.listing_tries == 0
            since_us = record.timestamp_us if is_first else state.listing_failing_since_us
            return evolve(
                state,
                listing_tries=state.listing_tries + 1,
                listing_problem=str(fields.get("problem")),
                listing_failing_since_us=since_us,
            )
        case Kind.FACT if (record.payload_type or "").startswith(_LEFT_OUT):
            return _left_out(state, fields)
        case Kind.FACT if (record.payload_type or "").startswith(_SKIPPED):
            return _skipped(state, record, fields)
        case Kind.FACT if record.payload_type in FACTS:
            return _savepoint(state, fields)
        case Kind.FACT if is_driver_stopped(record):
            return evolve(state, live=Map())
        case Kind.ATTEMPT_STARTED | Kind.ATTEMPT_FAILED | Kind.SUBTASK_COMPLETED:
            return _attempt(state, record)
        case Kind.SPLIT_FINISHED:
            return _split_finished(state, record, fields)
        case Kind.SUBTASK_RESET | Kind.RESET_TO_CHECKPOINT:
            return _reset(state, record)
        case Kind.CHECKPOINT_COMPLETED | Kind.CHECKPOINT_ABORTED:
            return _checkpoint(state, record, fields)
        case Kind.COMMIT_OUTCOME if record.attributes.get("settled") == "true":
            state = _unreleased(state, fields)
            return evolve(
                state,
                rows_published=state.rows_published + _number(fields, "rows"),
                files_published=state.files_published + _number(fields, "file_count"),
                bytes_published=state.bytes_published + _number(fields, "size_bytes"),
            )
        case Kind.COORDINATORS_STARTED:
            if is_opened_again(record):
                state = _opened_again(state)
            return evolve(state, end=JobEnd.OPEN, ended_us=None)
        case Kind.GLOBAL_FAILURE:
            state = _all_lost(state)  # their own records follow, and are no further failures
            return evolve(state, failures=state.failures + 1, last_failure=reason_in_words(record))
        case Kind.JOB_FINISHED:
            return evolve(state, end=JobEnd.FINISHED, ended_us=record.timestamp_us)
        case Kind.JOB_FAILED:
            state = _all_lost(state)
            return evolve(
                state,
                end=JobEnd.FAILED,
                ended_us=record.timestamp_us,
                last_failure=reason_in_words(record),
            )
        case _:
            return state


def _epoch_started(state: Progress, record: Record) -> Progress:
    attributes = record.attributes
    if state.epoch >= 0 and record.job_id != state.job_id:
        state = _forked(state)
    return evolve(
        _all_lost(state),
        job_id=record.job_id,
        epoch=record.epoch,
        driver_id=record.driver_id,
        is_batch=attributes.get("mode") == JobMode.BATCH,
        listing_tries=0,
        parallelism=LaunchInfo(attributes).parallelism,
        started_us=record.timestamp_us if state.started_us is None else state.started_us,
    )


def _forked(state: Progress) -> Progress:
    """Progress of a forked job: rows read up to the checkpoint count, other work of the old job does not."""
    return evolve(
        _all_lost(state),
        started_us=None,
        attempts_started=0,
        attempts_lost=0,
        splits_thrown_away=0,
        checkpoints_completed=0,
        checkpoints_aborted=0,
        rows_published=0,
        files_published=0,
        bytes_published=0,
        failures=0,
        last_failure=None,
        openings=1,
        rows_before=0,
        files_before=0,
    )


def _left_out(state: Progress, fields: Fields) -> Progress:
    paths = fields.get("paths")
    first = str(paths[0]) if isinstance(paths, list) and paths else ""
    count = _number(fields, "file_count")
    return evolve(state, left_out=state.left_out + count, left_out_first=first)


def _unreleased(state: Progress, fields: Fields) -> Progress:
    splits = fields.get("unreleased")
    if not isinstance(splits, list) or not splits:
        return state
    last = splits[-1]
    problem = f"{last.get('split_id')}: {last.get('problem')}" if isinstance(last, dict) else ""
    unreleased = state.unreleased + len(splits)
    return evolve(state, unreleased=unreleased, unreleased_problem=problem)


def _discovered(state: Progress, fields: Fields) -> Progress:
    known = state.known
    for split_id in split_ids(fields):
        known = known.set(split_id, None)
    is_complete = state.is_listing_complete or fields.get("is_complete") is True
    return evolve(
        state,
        known=known,
        is_listing_complete=is_complete,
        listing_tries=0,
    )


def _withdrawn(state: Progress, fields: Fields) -> Progress:
    ids = fields.get("split_ids")
    withdrawn = {str(split_id) for split_id in ids} if isinstance(ids, list) else set[str]()
    known = state.known
    for split_id in sorted(withdrawn):
        known = known.delete(split_id) if split_id in known else known
    return evolve(state, known=known)


def _savepoint(state: Progress, fields: Fields) -> Progress:
    """A savepoint is taken, with its checkpoint, or released."""
    name, savepoints = str(fields.get("name")), state.savepoints
    if "checkpoint" in fields:
        savepoints = savepoints.set(name, _number(fields, "checkpoint"))
    elif name in savepoints:
        savepoints = savepoints.delete(name)
    return evolve(state, savepoints=savepoints)


def _skipped(state: Progress, record: Record, fields: Fields) -> Progress:
    split_id = str(fields.get("split_id"))
    poison = state.poison.delete(split_id) if split_id in state.poison else state.poison
    return evolve(state, skipped=state.skipped.set(split_id, record.reason or ""), poison=poison)


def _attempt(state: Progress, record: Record) -> Progress:
    subtask, attempt_number = record.subtask, record.attempt_number
    if subtask is None or attempt_number is None:
        return state
    if record.kind is Kind.ATTEMPT_STARTED:
        return evolve(
            state,
            live=state.live.set(subtask, attempt_number),
            attempts_started=state.attempts_started + 1,
        )
    is_live = state.live.get(subtask) == attempt_number
    live = state.live.delete(subtask) if is_live else state.live
    if record.kind is Kind.SUBTASK_COMPLETED:
        return evolve(state, live=live)
    # The end of a driver and a global failover end an attempt before its own record: count it once.
    return evolve(
        state,
        live=live,
        attempts_lost=state.attempts_lost + (1 if is_live else 0),
        failures=state.failures + (1 if is_live else 0),
        last_failure=reason_in_words(record) if is_live else state.last_failure,
    )


def _opened_again(state: Progress) -> Progress:
    """Progress of a job opened again: finished splits are committed, no reset releases them."""
    finished = state.finished
    for split_id, work in sorted_items(finished):
        settled = replace(work, last_barrier=NO_CHECKPOINT - 1, is_kept=True)
        finished = finished.set(split_id, settled)
    retained = _retained(state, finished, state.last_checkpoint, state.last_checkpoint)
    return evolve(
        state,
        finished=finished,
        retained=retained,
        is_listing_complete=False,
        openings=state.openings + 1,
        rows_before=state.rows_published,
        files_before=state.files_published,
    )


def _all_lost(state: Progress) -> Progress:
    return evolve(state, live=Map(), attempts_lost=state.attempts_lost + len(state.live))


def _split_finished(state: Progress, record: Record, fields: Fields) -> Progress:
    if record.subtask is None:
        return state
    barrier = record.last_barrier
    work = FinishedWork(
        subtask=record.subtask,
        last_barrier=NO_CHECKPOINT if barrier is None else barrier,
        is_kept=record.attributes.get("kept") == "true",
        rows=_number(fields, "rows"),
        bytes_read=_number(fields, "bytes_read"),
        rejected=int(record.attributes.get("rejected", "0")),
    )
    split_id = str(fields.get("split_id"))
    before = state.finished.get(split_id)
    return evolve(
        state,
        finished=state.finished.set(split_id, work),
        rows=state.rows + work.rows - (before.rows if before else 0),
        bytes_read=state.bytes_read + work.bytes_read - (before.bytes_read if before else 0),
        rejected=state.rejected + work.rejected - (before.rejected if before else 0),
    )


def _reset(state: Progress, record: Record) -> Progress:
    """Release the splits that the checkpoint of the reset does not have; one of another branch brings back its own."""
    number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
    is_local = record.kind is Kind.SUBTASK_RESET
    before = state.finished
    is_branch = number != state.last_checkpoint and not is_local
    finished = state.retained.get(number, before) if is_branch else before
    # The map is not sorted, as elsewhere: of many splits a reset releases few, and sums have no order.
    released = [
        split_id
        for split_id, work in finished.items()
        if work.last_barrier >= number
        and not (is_local and (work.subtask != record.subtask or work.is_kept))
    ]
    for split_id in sorted(released):
        finished = finished.delete(split_id)
    thrown = len(released)
    if is_branch:
        thrown = sum(finished.get(split_id) != work for split_id, work in before.items())
    works = list(finished.values())
    state = evolve(
        state,
        finished=finished,
        rows=sum(work.rows for work in works),
        bytes_read=sum(work.bytes_read for work in works),
        rejected=sum(work.rejected for work in works),
        splits_thrown_away=state.splits_thrown_away + thrown,
    )
    if is_local:
        return state
    return evolve(
        _all_lost(state),
        last_checkpoint=number,
        end=JobEnd.OPEN,
        ended_us=None,
        listing_tries=0,
    )


def _retained(
    state: Progress, finished: Map[str, FinishedWork], number: int, oldest: int
) -> Map[int, Map[str, FinishedWork]]:
    """The work of the retained checkpoints: this one, those from `oldest` on, and savepoints."""
    retained = state.retained.set(number, finished)
    named = {checkpoint for _, checkpoint in sorted_items(state.savepoints)}
    for other, _ in sorted_items(retained):
        if other < oldest and other not in named:
            retained = retained.delete(other)
    return retained


def _checkpoint(state: Progress, record: Record, fields: Fields) -> Progress:
    if record.kind is Kind.CHECKPOINT_ABORTED:
        return evolve(state, checkpoints_aborted=state.checkpoints_aborted + 1)
    number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
    return evolve(
        state,
        retained=_retained(state, state.finished, number, _number(fields, "oldest_retained")),
        last_checkpoint=number,
        last_checkpoint_us=record.timestamp_us,
        checkpoints_completed=state.checkpoints_completed + 1,
    )


def _number(fields: Fields, name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
