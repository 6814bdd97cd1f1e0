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
from coordlog.errors import PayloadStoreError, RecordError
from coordlog.history import History
from coordlog.limits import VERDICT_STUCK_INTERVALS
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log, StoredRecord
from coordlog.option_types import check_range
from coordlog.projections.inspection.verdict import Thresholds, Verdict
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.snapshot.codec import state_before
from coordlog.projections.tables.audit import Applying
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.schemas.validity import beginning_at
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
    overdue. The log is read from a snapshot on. With --metrics-port the driver reports the same at
    /healthz, and reads no log.
    """
    check_range("stuck_intervals", stuck_intervals, 1, 10_000)
    now_us = time.time_ns() // 1000
    with opened(logs, job) as log:
        verdict, is_longer = _verdict(log, job, now_us, Thresholds(stuck_intervals=stuck_intervals))
    result = health_of(verdict)
    reason = on_one_line(verdict.reason, _REASON_CHARS)
    if as_json:
        print_json(
            {
                "job_id": job,
                "is_healthy": result.is_healthy,
                "state": result.state,
                "since_us": verdict.since_us,
                "is_since_earlier": is_longer,
                "reason": verdict.reason,
            }
        )
    else:
        since = lasted(verdict.since_us, max(now_us, verdict.since_us))
        least = "at least " if is_longer else ""
        click.echo(
            f"{job} is {result.state}, for {least}{since}: {reason}"
            if reason
            else f"{job} is {result.state}"
        )
    if not result.is_healthy:
        click.get_current_context().exit(Exit.FAILED)


def _verdict(log: Log, job: str, now_us: int, thresholds: Thresholds) -> tuple[Verdict, bool]:
    """The verdict, and whether its wait may be longer: it was there at the snapshot from which the log was read."""
    fold, driver = VerdictFold(thresholds=thresholds), DriverFold(job, log.identity)
    history = whole(log)
    begun_us = 0
    for entry in history.records_from(_place(history, now_us, thresholds)):
        driver.apply(entry)
        if entry.beginning is not None and entry.beginning.snapshot is not None:
            state = state_before(entry.beginning)
            begun_us = state.timestamp_us
            fold.begin(state)
        if entry.counts:
            record = entry.known()
            with Applying(entry.offset, record):
                fold.apply(record)
    verdict = _judged(fold, log, driver, now_us)
    began_us = verdict.since_us if verdict.wait_since_us is None else verdict.wait_since_us
    return verdict, began_us <= begun_us


def _judged(fold: VerdictFold, log: Log, driver: DriverFold, now_us: int) -> Verdict:
    if isinstance(log, ExportedLog):
        return fold.verdict(None)  # as of its last record: no driver writes to a file
    is_over = fold.verdict(now_us).state.is_over
    return fold.verdict(now_us, driver_answers=None if is_over else driver.answers())


def _place(history: History, now_us: int, thresholds: Thresholds) -> int:
    """Offset from which the log is read: a snapshot so old that a wait from before it makes the job stuck anyway.

    Without a recorded interval of checkpoints the whole log is read: only its triggers show the interval.
    """
    last = next(history.stored(history.end - 1), None) if history.end > history.start else None
    # Of a file, the moment of the verdict is its last record.
    moment_us = now_us if last is None else min(now_us, last.timestamp_ms * 1000)
    has_interval = True

    def is_early(stored: StoredRecord) -> bool:
        nonlocal has_interval
        beginning = beginning_at(stored)
        if beginning is None:
            return False
        state = state_before(beginning)
        interval_s = state.launch_info.checkpoint_interval_s
        has_interval = interval_s is not None or state.is_batch
        age_s = (moment_us - state.timestamp_us) / 1e6
        return not has_interval or age_s > thresholds.longest_s(interval_s)

    try:
        place = history.place_before(is_early)
    except (RecordError, PayloadStoreError):
        return history.start
    return place if has_interval else history.start
