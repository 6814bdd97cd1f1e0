"""`coordlog skip`: go on without a split or an event at which a job fails again and again."""

from __future__ import annotations

from dataclasses import dataclass

import click

from coordlog.cli.driver_request import ask_driver
from coordlog.cli.living import driver_lives
from coordlog.cli.log_access import WritableLogs, with_logs
from coordlog.errors import SkipError
from coordlog.log.interface import Log
from coordlog.offline.epoch import append_fact, read_job
from coordlog.projections.job.skips import digest_of, event_key
from coordlog.projections.job.state import JobState, Phase
from coordlog.projections.tables.audit import audit, audit_records
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
from coordlog.schemas.source_events import AddSplits, NoMoreSplits, RequestSplit
from coordlog.spark_integration.driver.liveness import NamedDriver
from coordlog.spark_integration.kafka.payloads import KafkaListing

__all__ = ["skip"]

_OF_SPLITS = frozenset(payload_type_of(one).key for one in (AddSplits, NoMoreSplits, RequestSplit))
_DONE = (SplitPlace.FINISHED, SplitPlace.IN_CHECKPOINT, SplitPlace.COMMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is to be skipped, as the log has it."""

    shown: str
    operator_id: str
    subtask: int | None
    fact: SplitSkipped | EventSkipped


@click.command()
@click.argument("job")
@click.option("--split", "split_id", metavar="ID", help="As `coordlog splits` shows it.")
@click.option(
    "--event",
    "sequence",
    type=click.IntRange(min=0),
    metavar="SEQUENCE",
    help="SEQ of its record, as `coordlog history` shows it.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for the history.")
@click.option(
    "--rest-of-partition",
    is_flag=True,
    help="Where the split is a topic's partition: leave out all of it that is not read yet.",
)
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Where it cannot be known whether a driver lives: take its place.",
)
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
) -> None:
    """Skip a split, or an event, of JOB: the job goes on without it, and no restart brings it back.

    What has been committed of a split stays; the history says up to which row. An event is told by
    its content: one that is sent again to, or by, the same subtask is skipped too.

    A driver that lives is asked to do it; else it is appended to the log, and the next run goes on
    without what is skipped.
    """
    if (split_id is None) == (sequence is None):
        raise click.UsageError("give either --split or --event")
    why = reason or "skipped by command"
    log = logs.open_to_write(job)
    try:
        wanted = (
            _find_event(log, job, sequence) if split_id is None else _find_split(log, job, split_id)
        )
        made = read_job(log, job, _check_goes_on)
        if split_id is not None and not rest_of_partition:
            _check_is_no_partition(made.state, split_id)
        if _is_skipped(made.state, wanted):
            click.echo(f"{wanted.shown} of job {job} is skipped already", err=True)
        elif driver_lives(NamedDriver.of(made.state), is_take_over=is_take_over):
            _ask(job, made.state, wanted, why)
        else:
            _append(log, job, made, wanted, why)
    finally:
        log.close()


def _check_goes_on(state: JobState) -> None:
    if state.phase in (Phase.FINISHED, Phase.ENDING):
        raise SkipError(
            state.job_id,
            f"it is {state.phase.value}",
            "nothing of it is read or handled any more",
        )
    if payload_type_of(ReadsOpened).key in state.types:
        raise SkipError(
            state.job_id,
            "its source is read by queries, each of which reads all of it",
            "mend the split's file as it was, or read what is left under another job id",
        )


def _find_split(log: Log, job: str, split_id: str) -> _Wanted:
    found = [
        one
        for one in audit(log.read(log.start_offset(), log.high_watermark())).splits
        if one.split_id == split_id
    ]
    if not found:
        raise SkipError(
            job, f"it has no split {split_id!r}", f"`coordlog splits {job}` lists those that it has"
        )
    (split,) = found[:1]
    shown = f"split {split_id!r}"
    if split.place in _DONE:
        raise SkipError(job, f"{shown} has been read to its end", "there is nothing to skip")
    return _Wanted(
        shown=shown,
        operator_id=split.operator_id,
        subtask=None,
        fact=SplitSkipped(split_id=split_id),
    )


def _check_is_no_partition(state: JobState, split_id: str) -> None:
    """A split of a topic is all that is still to be read of a partition, and perhaps what will come."""
    if payload_type_of(KafkaListing).key in state.types:
        raise SkipError(
            state.job_id,
            f"split {split_id!r} is a part of a topic: to skip it leaves out not one record, but "
            "all of its partition that is not read yet, for ever where it has no end",
            "let the transform pass over the records that it cannot handle: a job goes on with one "
            "that has changed; or leave the partition out with --rest-of-partition",
        )


def _find_event(log: Log, job: str, sequence: int | None) -> _Wanted:
    record = _record_at(log, sequence)
    if record is None or record.kind not in (Kind.EVENT_TO_SUBTASK, Kind.EVENT_TO_COORDINATOR):
        what = "no record" if record is None else record.kind.value
        raise SkipError(
            job,
            f"sequence {sequence} is {what}, and no operator event",
            f"`coordlog history {job} --kind EVENT_TO_SUBTASK --kind EVENT_TO_COORDINATOR` has them",
        )
    if record.payload_type in _OF_SPLITS:
        raise SkipError(
            job,
            f"sequence {sequence} is a {record.payload_type}, without which a source stops",
            "skip the split instead, with --split",
        )
    return _Wanted(
        shown=f"event {sequence}, a {record.payload_type}",
        operator_id=record.operator_id or "",
        subtask=record.subtask,
        fact=EventSkipped(
            event_sequence=record.sequence or 0,
            is_down=record.kind is Kind.EVENT_TO_SUBTASK,
            event_type=record.payload_type or "",
            digest=digest_of(record.payload or b""),
        ),
    )


def _record_at(log: Log, sequence: int | None) -> Record | None:
    for one in audit_records(log.read(log.start_offset(), log.high_watermark())):
        if one.counts and one.record is not None and one.record.sequence == sequence:
            return one.record
    return None


def _is_skipped(state: JobState, wanted: _Wanted) -> bool:
    fact = wanted.fact
    if isinstance(fact, SplitSkipped):
        return (wanted.operator_id, fact.split_id) in state.skipped_splits
    key = event_key(
        operator_id=wanted.operator_id,
        subtask=wanted.subtask or 0,
        is_down=fact.is_down,
        event_type=fact.event_type,
        digest=fact.digest,
    )
    return key in state.skipped_events


def _ask(job: str, state: JobState, wanted: _Wanted, why: str) -> None:
    fact = wanted.fact
    request: SkipSplit | SkipEvent
    if isinstance(fact, SplitSkipped):
        request = SkipSplit(split_id=fact.split_id, why=why)
    else:
        request = SkipEvent(
            operator_id=wanted.operator_id, subtask=wanted.subtask or 0, skipped=fact, why=why
        )
    answer = ask_driver(
        job,
        state,
        request,
        SkipRecorded,
        refusal=SkipError,
        next_step="see what it is with `coordlog splits`",
    )
    click.echo(
        f"skipped {wanted.shown} of job {job}, by its driver, at sequence {answer.sequence}",
        err=True,
    )


def _append(log: Log, job: str, made: Rebuild, wanted: _Wanted, why: str) -> None:
    sequence = append_fact(
        log,
        made,
        wanted.fact,
        command="skip",
        check=_check_goes_on,
        operator_id=wanted.operator_id,
        subtask=wanted.subtask,
        why=why,
    )
    click.echo(
        f"skipped {wanted.shown} of job {job}, at sequence {sequence}; run the job again to go on",
        err=True,
    )
