"""`coordlog jobs`: the list of jobs with a log."""

from __future__ import annotations

import time
from typing import Final

import click
from click.core import ParameterSource
from rich.text import Text

from coordlog.cli.console import Column, lasted, new_console, print_table
from coordlog.cli.job_states import UNREADABLE, JobRow, job_rows
from coordlog.cli.log_access import Logs, with_logs
from coordlog.cli.paging import with_pager
from coordlog.cli.table_output import json_option, print_all
from coordlog.projections.inspection.verdict import VerdictState
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.spark_integration.driver.liveness import Liveness

__all__ = ["jobs"]


_REASON_CHARS: Final = 200


_COLUMNS: Final = (
    Column("JOB"),
    Column("STATUS"),
    Column("CHECKPOINT"),
    Column("ROWS", is_right=True),
    Column("SPLITS", is_right=True, rank=2),
    Column("FAILURES", is_right=True, rank=1),
    Column("LAST RECORD", rank=3),
    Column("DRIVER"),
)


_STYLES: Final = {
    VerdictState.PROGRESSING.value: "cyan",
    VerdictState.SLOW.value: "yellow",
    VerdictState.STUCK.value: "bold red",
    VerdictState.FINISHED.value: "green",
    VerdictState.FAILED.value: "red",
    UNREADABLE: "red",
}
_EXPLAINED: Final = (
    VerdictState.SLOW.value,
    VerdictState.STUCK.value,
    VerdictState.FAILED.value,
    UNREADABLE,
)
"""Statuses with a reason, which is printed below the table."""
_DRIVERS: Final = {
    Liveness.LIVES.value: "alive",
    Liveness.GONE.value: "gone",
    Liveness.UNKNOWN.value: "not reached",
}


@click.command()
@click.option("--names", is_flag=True, help="Print only the names, one a line; no log is read.")
@click.option("--whole", "is_whole", is_flag=True, help="Read each log from its beginning.")
@json_option
@with_logs
@with_pager
def jobs(logs: Logs, *, names: bool, is_whole: bool, as_json: bool) -> None:
    """List the jobs that have a log, with state, progress and driver of each.

    STATUS is progressing, slow or stuck, or the end: stopped, finished or failed. A job is stuck if
    its driver is gone without a stop. CHECKPOINT is the last completed one, with its age. ROWS and
    SPLITS are those of finished splits.

    Of a long log only the last records are read: counts with a + are those since a snapshot.
    """
    source = click.get_current_context().get_parameter_source("as_json")
    if names and as_json and source is ParameterSource.COMMANDLINE:  # else it is for all commands
        raise click.UsageError("pass either --json or --names: --names has no fields")
    job_ids = logs.jobs()
    if names:
        for job_id in job_ids:
            click.echo(job_id)
    elif job_ids:
        rows = job_rows(logs, job_ids, is_whole=is_whole)
        if as_json:
            print_all(rows)
        else:
            _print(rows)
    if not job_ids:
        click.echo(f"there are no jobs at {logs.where}", err=True)


def _print(rows: tuple[JobRow, ...]) -> None:
    now_us, console = time.time_ns() // 1000, new_console()
    print_table(console, _COLUMNS, [_cells(row, now_us) for row in rows])
    explained = [row for row in rows if row.status in _EXPLAINED]
    if explained:
        console.print()
    for row in explained:
        console.print(Text.assemble((row.job_id, "bold"), _explanation(row, now_us)))
    partial = [row for row in rows if row.counted_from]
    if partial:
        pruned = ", ".join(row.job_id for row in partial if row.is_pruned)
        but = f"; these logs were pruned: {pruned}" if pruned else ""
        console.print(f"\n+ counted since a snapshot; --whole counts all that the log has{but}")


def _cells(row: JobRow, now_us: int) -> tuple[str | Text, ...]:
    more = "+" if row.counted_from else ""
    has_counts = row.epoch is not None
    return (
        row.job_id,
        Text(row.status, style=_STYLES.get(row.status, "")),
        _checkpoint(row, now_us),
        f"{row.rows:,}{more}" if has_counts else "",
        f"{row.splits_finished:,}/{row.splits_known:,}{more}" if has_counts else "",
        f"{row.failures:,}{more}" if has_counts else "",
        _ago(row.last_record_us, now_us),
        _driver(row),
    )


def _checkpoint(row: JobRow, now_us: int) -> str:
    if row.last_checkpoint is None:
        return ""
    age = _ago(row.last_checkpoint_us, now_us)
    return f"{row.last_checkpoint}, {age}" if age else str(row.last_checkpoint)


def _driver(row: JobRow) -> str:
    if row.driver is None:
        return ""
    process = "" if row.driver_pid is None else f" {row.driver_pid}"
    return f"{row.driver_host or '?'}{process} {_DRIVERS[row.driver]}"


def _explanation(row: JobRow, now_us: int) -> str:
    since = (
        "" if row.since_us is None else f" for {lasted(row.since_us, max(now_us, row.since_us))}"
    )
    reason = row.reason or ""
    if row.driver == Liveness.GONE.value and row.driver_reason:
        reason += f": {row.driver_reason}"
    return f" {row.status}{since}: {on_one_line(reason, _REASON_CHARS)}"


def _ago(time_us: int | None, now_us: int) -> str:
    return "" if time_us is None else f"{lasted(time_us, max(now_us, time_us))} ago"
