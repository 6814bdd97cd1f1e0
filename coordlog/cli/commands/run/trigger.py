"""`coordlog trigger`: has a job's driver take a checkpoint now, and waits for it."""

from __future__ import annotations

import click

from coordlog.cli.awaiting import wait_for_records
from coordlog.cli.completing import JOB
from coordlog.cli.console import lasted
from coordlog.cli.driver_request import live_driver, request_driver, timeout_option
from coordlog.cli.log_access import Logs, with_logs
from coordlog.cli.reading import opened
from coordlog.cli.table_output import print_result, result_option
from coordlog.errors import CheckpointFailedError
from coordlog.history import History
from coordlog.limits import CHECKPOINT_TIMEOUT_S
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.schemas.builtin_types import CheckpointQueued, CheckpointWanted
from coordlog.schemas.record import Kind, Record

__all__ = ["trigger"]


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option("--no-wait", is_flag=True, help="End once the request is recorded.")
@timeout_option(CHECKPOINT_TIMEOUT_S, "Longest wait for the checkpoint.")
@result_option
@with_logs
def trigger(logs: Logs, *, job: str, no_wait: bool, timeout_s: float, as_json: bool) -> None:
    """Take a checkpoint of JOB now, and wait until it has completed.

    If one is pending, the new one begins after it. `coordlog savepoint JOB NAME` retains the last one.
    """
    with opened(logs, job) as log:
        driver = live_driver(History(log), job)
    answer = request_driver(
        driver, CheckpointWanted(), CheckpointQueued, next_step="`coordlog jobs` shows its state"
    )
    assert isinstance(answer.response, CheckpointQueued), "it was decoded as that"
    number = answer.response.checkpoint
    awaited = _Awaited(job, number)
    if not no_wait:
        wait_for_records(
            logs,
            job,
            awaited.take,
            after=answer.sequence,
            timeout_s=timeout_s,
            waits_for=f"checkpoint {number}",
        )
    took = awaited.took
    end = (
        f"has completed{f' in {took}' if took else ''}"
        if awaited.status == "completed"
        else "is requested"
    )
    print_result(
        f"checkpoint {number} of job {job} {end} (request recorded at sequence {answer.sequence})",
        {
            "job_id": job,
            "status": awaited.status,
            "sequence": answer.sequence,
            "checkpoint": number,
        },
        as_json=as_json,
    )


class _Awaited:
    """Reads the records of one checkpoint."""

    def __init__(self, job: str, number: int) -> None:
        self._job, self._number = job, number
        self._triggered_us: int | None = None
        self.status, self.took = "requested", ""

    def take(self, record: Record) -> bool:
        """Take in a record; returns whether the checkpoint has completed. Raises CheckpointFailedError if it cannot."""
        is_own = record.checkpoint_id == self._number
        match record.kind:
            case Kind.CHECKPOINT_TRIGGERED if is_own:
                self._triggered_us = record.timestamp_us
            case Kind.CHECKPOINT_COMPLETED if is_own:
                self.status, self.took = (
                    "completed",
                    lasted(self._triggered_us, record.timestamp_us),
                )
                return True
            case Kind.CHECKPOINT_ABORTED if is_own:
                self._fail(record.reason or "it was aborted")
            case Kind.EPOCH_STARTED:
                self._fail(f"another driver has taken over, in epoch {record.epoch}")
            case Kind.JOB_FINISHED | Kind.JOB_FAILED:
                self._fail(
                    "the job has ended"
                    if record.reason is None
                    else f"the job has failed: {record.reason}"
                )
            case Kind.FACT if is_driver_stopped(record):
                self._fail("its driver was stopped")
            case _:
                pass
        return False

    def _fail(self, reason: str) -> None:
        raise CheckpointFailedError(self._job, f"checkpoint {self._number}", reason)
