"""`coordlog health`: the verdict on a job as an exit status, for scripts."""

from __future__ import annotations

import time
from typing import Final

import click

from coordlog.cli.console import lasted, print_json
from coordlog.cli.exit_status import Exit
from coordlog.cli.living import DriverFold
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.reading import opened, whole
from coordlog.limits import VERDICT_STUCK_INTERVALS
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log
from coordlog.option_types import check_range
from coordlog.projections.inspection.verdict import Thresholds, Verdict
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.snapshot.codec import state_before
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.telemetry.health import health_of

__all__ = ["health"]

_REASON_CHARS: Final = 500


@click.command()
@click.argument("job")
@click.option(
    "--stuck-intervals",
    type=float,
    default=VERDICT_STUCK_INTERVALS,
    show_default=True,
    metavar="N",
    help="Checkpoint intervals without a checkpoint from which the job is stuck; 60 s at least.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_history
def health(logs: Logs, *, job: str, stuck_intervals: float, as_json: bool) -> None:
    """Judge JOB by its log, and by whether its driver answers.

    The exit status is 1 if the job is stuck or has failed, else 0: also if it has finished or was
    stopped in order. A job is stuck if no driver answers, or if checkpoints, attempts or commits are
    overdue. With --metrics-port the driver reports the same at /healthz, and no log is read.
    """
    check_range("stuck_intervals", stuck_intervals, 1, 10_000)
    now_us = time.time_ns() // 1000
    with opened(logs, job) as log:
        verdict = _verdict(log, job, now_us, Thresholds(stuck_intervals=stuck_intervals))
    result = health_of(verdict)
    reason = on_one_line(verdict.reason, _REASON_CHARS)
    if as_json:
        print_json(
            {
                "job_id": job,
                "is_healthy": result.is_healthy,
                "state": result.state,
                "since_us": verdict.since_us,
                "reason": verdict.reason,
            }
        )
    else:
        since = lasted(verdict.since_us, max(now_us, verdict.since_us))
        click.echo(
            f"{job} is {result.state}, for {since}: {reason}"
            if reason
            else f"{job} is {result.state}"
        )
    if not result.is_healthy:
        click.get_current_context().exit(Exit.FAILED)


def _verdict(log: Log, job: str, now_us: int, thresholds: Thresholds) -> Verdict:
    fold, driver = VerdictFold(thresholds=thresholds), DriverFold(job, log.identity)
    for entry in whole(log).records():
        driver.apply(entry)
        if entry.beginning is not None and entry.beginning.snapshot is not None:
            fold.begin(state_before(entry.beginning))
        if entry.counts:
            fold.apply(entry.known())
    if isinstance(log, ExportedLog):
        return fold.verdict(None)  # as of its last record: no driver writes to a file
    is_over = fold.verdict(now_us).state.is_over
    return fold.verdict(now_us, driver_answers=None if is_over else driver.answers())
