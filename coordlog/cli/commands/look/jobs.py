"""`coordlog jobs`: the list of jobs with a log."""

from __future__ import annotations

import time

import click
from click.core import ParameterSource
from rich.text import Text

from coordlog.cli.console import Column, lasted, new_console, print_table
from coordlog.cli.job_states import JobRow, JobStatus, job_rows
from coordlog.cli.log_access import Logs, with_logs
from coordlog.cli.table_output import json_option, print_all
from coordlog.projections.tables.payload_json import on_one_line

__all__ = ["jobs"]


_REASON_CHARS = 200


_COLUMNS = (
    Column("JOB"),
    Column("STATUS"),
    Column("LAST RECORD"),
    Column("SPLITS", is_right=True),
    Column("ROWS", is_right=True),
    Column("FAILURES", is_right=True, rank=1),
    Column("LAST FAILURE"),
)


_STYLES = {
    JobStatus.NEW: "",
    JobStatus.RUNNING: "cyan",
    JobStatus.STOPPED: "",
    JobStatus.UNANSWERED: "magenta",
    JobStatus.FINISHED: "green",
    JobStatus.FAILED: "red",
    JobStatus.COPY: "",
    JobStatus.UNREADABLE: "red",
}


@click.command()
@click.option("--names", is_flag=True, help="Print only the names, one a line; no log is read.")
@json_option
@with_logs
def jobs(logs: Logs, *, names: bool, as_json: bool) -> None:
    """List the jobs that have a log, with status, progress and last failure of each.

    STATUS is running if the driver answers, stopped if it was stopped in order, and otherwise: no
    driver answers; a job that has ended is finished or failed. SPLITS are finished of known, ROWS
    those of finished splits; if the log was pruned, these and FAILURES are counted since then.
    """
    source = click.get_current_context().get_parameter_source("as_json")
    if names and as_json and source is ParameterSource.COMMANDLINE:  # else it is for all commands
        raise click.UsageError("pass either --json or --names: --names has no fields")
    job_ids = logs.jobs()
    if names:
        for job_id in job_ids:
            click.echo(job_id)
    elif job_ids:
        rows = job_rows(logs, job_ids)
        if as_json:
            print_all(rows)
        else:
            print_table(new_console(), _COLUMNS, [_cells(row, _now_us()) for row in rows])
            pruned = [row.job_id for row in rows if row.is_pruned]
            if pruned:
                click.echo(f"\ncounted since their logs were pruned: {', '.join(pruned)}")
    if not job_ids:
        click.echo(f"there are no jobs at {logs.where}", err=True)


def _cells(row: JobRow, now_us: int) -> tuple[str | Text, ...]:
    last_us = row.last_record_us
    age = "" if last_us is None else f"{lasted(last_us, max(now_us, last_us))} ago"
    has_no_failure = row.last_failure is None
    is_reason = has_no_failure and row.status in (JobStatus.UNREADABLE, JobStatus.UNANSWERED)
    failure = (row.reason if is_reason else row.last_failure) or ""
    return (
        row.job_id,
        Text(row.status.value, style=_STYLES[row.status]),
        age,
        f"{row.splits_finished:,}/{row.splits_known:,}",
        f"{row.rows:,}",
        str(row.failures),
        on_one_line(failure, _REASON_CHARS),
    )


def _now_us() -> int:
    return time.time_ns() // 1000
