"""`coordlog skip`: skips a split or an event at which a job fails again and again."""

from __future__ import annotations

from dataclasses import dataclass

import click

from coordlog.cli.completing import JOB
from coordlog.cli.driver_request import ask_driver
from coordlog.cli.living import driver_lives
from coordlog.cli.log_access import WritableLogs, with_logs
from coordlog.cli.table_output import print_result, result_option
from coordlog.errors import SkipError
from coordlog.history import History
from coordlog.log.interface import Log
from coordlog.offline.epoch import append_fact, read_job
from coordlog.projections.job.event_skips import digest_of, key_of_skip
from coordlog.projections.job.state import JobState, Phase
from coordlog.projections.tables.audit import audit
from coordlog.projections.tables.splits import SplitPlace
from coordlog.restore.rebuild import Rebuild
from coordlog.schemas.builtin_types import (
    EventSkipped,
    SkipEvent,
    SkipRecorded,
    SkipSplit,
    SplitSkipped,
)
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.reads import ReadsOpened
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import AddSplits, NoMoreSplits, RequestSplit
from coordlog.spark_integration.driver.liveness import NamedDriver
from coordlog.spark_integration.kafka.payloads import KafkaListing

__all__ = ["skip"]

_SPLIT_EVENTS = frozenset(
    payload_type_of(event).key for event in (AddSplits, NoMoreSplits, RequestSplit)
)
_EVENT_SKIPPED = payload_type_of(EventSkipped)
_READ = (SplitPlace.FINISHED, SplitPlace.IN_CHECKPOINT, SplitPlace.COMMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Split or event to skip, as it is in the log."""

    shown: str
    operator_id: str
    subtask: int | None
    fact: SplitSkipped | EventSkipped
    is_skipped: bool


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option(
    "--split", "split_id", metavar="ID", help="Skip this split; `coordlog splits` lists the ids."
)
@click.option(
    "--event",
    "sequence",
    type=click.IntRange(min=0),
    metavar="SEQUENCE",
    help="Skip the event with this SEQ in `coordlog history`.",
)
@click.option("--reason", default="", metavar="TEXT", help="Reason, recorded in the history.")
@click.option(
    "--rest-of-partition",
    is_flag=True,
    help="If the split is a partition of a topic: skip all unread records of the partition.",
)
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Replace the driver if this command cannot find out whether it runs.",
)
@result_option
@with_logs
def skip(
    logs: WritableLogs,
    *,
    job: str,
    split_id: str | None,
    sequence: int | None,
    reason: str,
    rest_of_partition: bool,
    is_take_over: bool,
    as_json: bool,
) -> None:
    """Skip a split, or an event, of JOB: the job continues without it, also after a restart.

    Committed rows of a split stay; the history has their number. An event is sent again with
    another SEQ, so the next one of the same content to, or from, the same subtask is skipped in
    its place: one event, and one again if a restore takes that back.

    If a driver runs, it records the skip; otherwise this command appends it to the log, and the
    next run continues without the split or event.
    """
    if (split_id is None) == (sequence is None):
        raise click.UsageError("pass either --split or --event")
    why = reason or "skipped by command"
    log = logs.open_to_write(job)
    try:
        rebuild = read_job(log, job, _check_can_skip)
        state = rebuild.state
        target = (
            _find_event(log, state, sequence)
            if split_id is None
            else _find_split(log, state, split_id)
        )
        if split_id is not None and not rest_of_partition:
            _check_is_no_partition(state, split_id)
        if target.is_skipped:
            sentence, sequence_done = f"{target.shown} of job {job} is skipped already", None
        elif driver_lives(NamedDriver.of(state), is_take_over=is_take_over):
            sequence_done = _skip_by_driver(job, state, target, why)
            sentence = (
                f"skipped {target.shown} of job {job}, by its driver, at sequence {sequence_done}"
            )
        else:
            sequence_done = _append(log, rebuild, target, why)
            sentence = (
                f"skipped {target.shown} of job {job}, at sequence {sequence_done}; "
                "run the job again to continue"
            )
    finally:
        log.close()
    print_result(
        sentence,
        {
            "job_id": job,
            "status": "was skipped before" if sequence_done is None else "skipped",
            "sequence": sequence_done,
            "split_id": split_id,
            "event_sequence": sequence,
        },
        as_json=as_json,
    )


def _check_can_skip(state: JobState) -> None:
    if state.phase in (Phase.FINISHED, Phase.ENDING):
        raise SkipError(
            state.job_id,
            f"it is {state.phase.value}",
            "it reads no split and handles no event any more: there is nothing to skip",
        )
    if payload_type_of(ReadsOpened).key in state.types:
        raise SkipError(
            state.job_id,
            "each query on its source reads every split",
            "put the split's file back unchanged, or read the other files under another job id",
        )


def _find_split(log: Log, state: JobState, split_id: str) -> _Target:
    rows = audit(History(log).stored()).splits
    split = next((row for row in rows if row.split_id == split_id), None)
    shown = f"split {split_id!r}"
    if split is not None and split.place in _READ:
        problem = f"{shown} has been read to its end"
        raise SkipError(state.job_id, problem, "there is nothing to skip")
    operator_id = _failed_source(log, state, split_id) if split is None else split.operator_id
    return _Target(
        shown=shown,
        operator_id=operator_id,
        subtask=None,
        fact=SplitSkipped(split_id=split_id),
        is_skipped=(operator_id, split_id) in state.skipped_splits,
    )


def _failed_source(log: Log, state: JobState, split_id: str) -> str:
    """Operator of a split that only the removed part of a pruned log names, and at which an attempt has failed.

    Raises:
        SkipError: The job has no such split, or no attempt has failed at it.
    """
    start, next_step = log.start_offset(), f"`coordlog splits {state.job_id}` lists its splits"
    if start and f"split_id:{split_id}" in state.poison:
        return state.operators[0]
    problem = f"it has no split {split_id!r}"
    if start:
        next_step = (
            f"the log begins at offset {start}: a split that only the pruned records name can be skipped "
            "once an attempt has failed at it"
        )
    raise SkipError(state.job_id, problem, next_step)


def _check_is_no_partition(state: JobState, split_id: str) -> None:
    """Refuse a split of a topic: it is not one record, but the unread rest of a partition."""
    if payload_type_of(KafkaListing).key in state.types:
        raise SkipError(
            state.job_id,
            f"split {split_id!r} is a partition of a topic: this skips all its unread records, and later "
            "ones if the source has no end",
            "make the transform skip the records that it cannot handle (a job continues with a changed "
            "transform), or skip the partition with --rest-of-partition",
        )


def _find_event(log: Log, state: JobState, sequence: int | None) -> _Target:
    job, record, was_skipped = state.job_id, None, False
    for entry in History(log).records():
        if entry.counts and entry.record is not None:
            if entry.record.sequence == sequence:
                record = entry.record
            was_skipped = was_skipped or _names(entry.record, sequence)
    if record is None or record.kind not in (Kind.EVENT_TO_SUBTASK, Kind.EVENT_TO_COORDINATOR):
        problem = "does not exist" if record is None else f"is {record.kind.value}, not an event"
        raise SkipError(
            job,
            f"sequence {sequence} {problem}",
            f"`coordlog history {job} --kind EVENT_TO_SUBTASK --kind EVENT_TO_COORDINATOR` lists events",
        )
    if record.payload_type in _SPLIT_EVENTS:
        raise SkipError(
            job,
            f"sequence {sequence} is a {record.payload_type}, and its source needs this event",
            "skip the split instead, with --split",
        )
    direction = "to" if record.kind is Kind.EVENT_TO_SUBTASK else "from"
    operator_id, subtask = record.operator_id or "", record.subtask or 0
    fact = EventSkipped(
        event_sequence=record.sequence or 0,
        is_down=record.kind is Kind.EVENT_TO_SUBTASK,
        event_type=record.payload_type or "",
        digest=digest_of(record.payload or b""),
    )
    return _Target(
        shown=f"event {sequence}, a {record.payload_type} {direction} subtask {subtask},",
        operator_id=operator_id,
        subtask=subtask,
        fact=fact,
        is_skipped=was_skipped or key_of_skip(operator_id, subtask, fact) in state.skipped_events,
    )


def _names(record: Record, sequence: int | None) -> bool:
    """Whether it is the skip of the event with this sequence: a second one would leave out another event."""
    if record.kind is not Kind.FACT or record.payload_type != _EVENT_SKIPPED.key:
        return False
    fact = _EVENT_SKIPPED.decode(record.payload or b"")
    return isinstance(fact, EventSkipped) and fact.event_sequence == sequence


def _skip_by_driver(job: str, state: JobState, target: _Target, why: str) -> int:
    """Have the driver record the skip. Returns the sequence of its answer."""
    fact = target.fact
    request: SkipSplit | SkipEvent
    if isinstance(fact, SplitSkipped):
        request = SkipSplit(split_id=fact.split_id, why=why)
    else:
        request = SkipEvent(
            operator_id=target.operator_id, subtask=target.subtask or 0, skipped=fact, why=why
        )
    answer = ask_driver(
        job,
        state,
        request,
        SkipRecorded,
        refusal=SkipError,
        next_step="`coordlog splits` shows the split",
    )
    return answer.sequence


def _append(log: Log, rebuild: Rebuild, target: _Target, why: str) -> int:
    """Record the skip in an epoch of this command. Returns its sequence."""
    return append_fact(
        log,
        rebuild,
        target.fact,
        command="skip",
        check=_check_can_skip,
        operator_id=target.operator_id,
        subtask=target.subtask,
        why=why,
    )
