"""`coordlog stop`: has a job's driver stop in order, and waits for its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import click

from coordlog.cli.awaiting import wait_for_records
from coordlog.cli.completing import JOB
from coordlog.cli.driver_request import driver_of, live_driver, request_driver, timeout_option
from coordlog.cli.log_access import Logs, with_logs
from coordlog.cli.reading import opened
from coordlog.cli.table_output import print_result, result_option
from coordlog.errors import (
    CheckpointFailedError,
    JobFailedError,
    NoDriverError,
    RequestUnansweredError,
)
from coordlog.history import History
from coordlog.limits import STOP_RECORD_S, STOP_TIMEOUT_S
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.tables.payload_json import Json
from coordlog.schemas.builtin_types import SavepointTaken, StopRecorded, StopWanted
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.driver.liveness import Liveness, NamedDriver, driver_liveness

__all__ = ["stop"]

_TIMEOUT_S: Final = STOP_TIMEOUT_S + 2 * STOP_RECORD_S + 30.0
"""Longest stop of a driver, and some time for a slow log."""
_TAKEN: Final = payload_type_of(SavepointTaken)
_NEXT: Final = "`coordlog jobs` shows its state"
_POLL_S: Final = 0.2


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option(
    "--savepoint", metavar="NAME", help="Retain the checkpoint of the stop as this savepoint."
)
@click.option(
    "--no-checkpoint",
    is_flag=True,
    help="Take no checkpoint: work since the last one is done again.",
)
@click.option("--no-wait", is_flag=True, help="End once the stop is recorded.")
@timeout_option(_TIMEOUT_S, "Longest wait for the driver's end.")
@result_option
@with_logs
def stop(
    logs: Logs,
    *,
    job: str,
    savepoint: str | None,
    no_checkpoint: bool,
    no_wait: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Stop JOB's driver, after a checkpoint and its commits, as SIGTERM does.

    The same program continues the job later. A job that was stopped, or has ended, is left as it is.
    """
    if savepoint is not None and (no_checkpoint or no_wait):
        raise click.UsageError(
            "--savepoint needs a checkpoint and a wait for it: leave out --no-checkpoint and --no-wait"
        )
    with opened(logs, job) as log:
        history = History(log)
        try:
            driver = live_driver(history, job)
        except NoDriverError:
            if savepoint is None and _is_stopped(history, job, as_json=as_json):
                return
            raise
    answer = request_driver(
        driver,
        StopWanted(with_checkpoint=not no_checkpoint, savepoint=savepoint),
        StopRecorded,
        next_step=_NEXT,
    )
    assert isinstance(answer.response, StopRecorded), "it was decoded as that"
    if no_wait:
        _report(job, _End(), answer.sequence, as_json=as_json, is_awaited=False)
        return
    effect = "after a checkpoint" if answer.response.with_checkpoint else "without a checkpoint"
    click.echo(
        f"job {job}: its driver stops {effect} (recorded at sequence {answer.sequence})", err=True
    )
    awaited, until_s = _Awaited(driver), time.monotonic() + timeout_s
    wait_for_records(
        logs,
        job,
        awaited.take,
        after=answer.sequence,
        timeout_s=timeout_s,
        waits_for="the driver's end",
    )
    _wait_for_silence(driver, until_s)
    end = awaited.end
    if end.how == "failed":
        raise JobFailedError(job, (end.reason,))
    if savepoint is not None and savepoint not in end.savepoints:
        reason = f"the job {end.how}, and no checkpoint completed before"
        raise CheckpointFailedError(job, f"savepoint {savepoint!r}", reason)
    _report(job, end, answer.sequence, as_json=as_json, is_awaited=True)


@dataclass(slots=True, kw_only=True)
class _End:
    """End of a driver, as the log shows it."""

    how: str = "stops"
    reason: str = ""
    checkpoint: int | None = None
    savepoints: tuple[str, ...] = ()


class _Awaited:
    """Reads the records of a stop."""

    def __init__(self, driver: NamedDriver) -> None:
        self._epoch = driver.epoch
        self.end = _End()

    def take(self, record: Record) -> bool:
        """Take in a record; returns whether the driver has ended."""
        end = self.end
        match record.kind:
            case Kind.EPOCH_STARTED if record.epoch > self._epoch:
                end.how, end.reason = "was replaced", f"epoch {record.epoch} has begun"
            case Kind.JOB_FINISHED:
                end.how = "has finished"
            case Kind.JOB_FAILED:
                end.how, end.reason = "failed", record.reason or ""
            case Kind.FACT if is_driver_stopped(record):
                end.how = "is stopped"
            case Kind.FACT if record.payload_type == _TAKEN.key and record.payload is not None:
                taken = _TAKEN.decode(record.payload)
                assert isinstance(taken, SavepointTaken), "of that type"
                end.savepoints += (taken.name,)
                return False
            case Kind.CHECKPOINT_COMPLETED:
                end.checkpoint = record.checkpoint_id
                click.echo(f"checkpoint {record.checkpoint_id} has completed", err=True)
                return False
            case _:
                return False
        return True


def _wait_for_silence(driver: NamedDriver, until_s: float) -> None:
    """Wait till the driver, whose end is in the log, answers no more: until then a start of its job is refused.

    Raises:
        RequestUnansweredError: It still answers at `until_s`, monotonic seconds.
    """
    while driver_liveness(driver).liveness is Liveness.LIVES:
        if time.monotonic() > until_s:
            reason = (
                f"its end is in the log, but the driver at {driver.endpoint} has not closed yet"
            )
            raise RequestUnansweredError("", reason)
        time.sleep(_POLL_S)


def _is_stopped(history: History, job: str, *, as_json: bool) -> bool:
    """Whether the job was stopped in order or has ended; reported then."""
    driver = driver_of(history, job)
    if driver is None or not (driver.is_stopped or driver.is_over):
        return False
    state = "was stopped before" if driver.is_stopped else "has ended before"
    facts = _facts(job, _End(how=state), None)
    print_result(f"job {job} {state}: no driver of it runs", facts, as_json=as_json)
    return True


def _report(job: str, end: _End, sequence: int, *, as_json: bool, is_awaited: bool) -> None:
    facts = _facts(job, end, sequence)
    if not is_awaited:
        sentence = f"job {job}: the stop is recorded at sequence {sequence}; `coordlog tail {job}` follows it"
        print_result(sentence, facts, as_json=as_json)
        return
    parts = [] if end.checkpoint is None else [f"its last checkpoint is {end.checkpoint}"]
    parts += [f"savepoint {name!r}" for name in end.savepoints]
    if end.reason:
        parts.insert(0, end.reason)
    details = f": {', '.join(parts)}" if parts else ""
    print_result(f"job {job} {end.how}{details}", facts, as_json=as_json)


def _facts(job: str, end: _End, sequence: int | None) -> dict[str, Json]:
    return {
        "job_id": job,
        "status": end.how,
        "sequence": sequence,
        "checkpoint": end.checkpoint,
        "savepoints": list(end.savepoints),
    }
