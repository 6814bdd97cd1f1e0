"""`coordlog jobs` and `coordlog delete`: which jobs have a log, and removing one."""

from __future__ import annotations

import click

from coordlog.schemas.header import Header

from .console import iso
from .logs import Logs, no_such_job, with_logs

__all__ = ["delete", "jobs"]


@click.command()
@with_logs
def jobs(logs: Logs) -> None:
    """List the jobs that have a log, one a line."""
    found = logs.jobs()
    for one in found:
        click.echo(one)
    if not found:
        click.echo(f"there are no jobs at {logs.where}", err=True)


@click.command()
@click.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_logs
def delete(logs: Logs, *, job: str, yes: bool) -> None:
    """Delete the log of JOB, with all its history; files that it has committed stay.

    A job that is started under that name later begins from nothing: it does not know what the old
    one has committed.
    """
    there = logs.jobs()
    if job not in there:
        raise no_such_job(job, logs.where, there)
    if not yes:
        click.confirm(f"{_described(logs, job)}. Delete it for good?", abort=True)
    logs.delete(job)
    click.echo(f"deleted the log of job {job} at {logs.where}", err=True)


def _described(logs: Logs, job: str) -> str:
    """What is about to be deleted: how much, and since when nothing has come."""
    log = logs.open(job)
    try:
        start, end = log.start_offset(), log.high_watermark()
        last = next(log.read(end - 1, end), None) if start < end else None
    finally:
        log.close()
    where = f"The log of job {job} at {logs.where}"
    if last is None:
        return f"{where} is empty"
    header: Header | None = last.header
    epoch = "" if header is None else f", in epoch {header.epoch}"
    return (
        f"{where} has {end - start:,} records, the last of {iso(last.timestamp_ms * 1000)}{epoch}"
    )
