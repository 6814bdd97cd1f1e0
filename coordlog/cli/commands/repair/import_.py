"""`coordlog import`: an exported history as a log, for inspection."""

from __future__ import annotations

from pathlib import Path

import click

from coordlog.amounts import many
from coordlog.cli.commands.repair.adopt import FILE, copied
from coordlog.cli.log_access import NewLogs, with_logs
from coordlog.cli.table_output import print_result, result_option
from coordlog.history import History
from coordlog.log.file import ExportedLog
from coordlog.log.job_id import check_job_id
from coordlog.offline.adopt import copy_history

__all__ = ["import_"]


@click.command(name="import")
@click.argument("file", type=FILE)
@click.option("--as", "name", metavar="JOB", help="Name of the job there; by default its own name.")
@result_option
@with_logs
def import_(logs: NewLogs, *, file: Path, name: str | None, as_json: bool) -> None:
    """Put an exported history into a log at the broker, to be inspected there, as with Spark SQL.

    No job continues from this log: `coordlog adopt` is for that. The commands that show a history
    also read FILE itself.
    """
    source = ExportedLog(file)
    job = name or source.job_id
    check_job_id(job)
    for _ in History(source).stored():
        pass  # a truncated file raises here, before any of it is at the broker
    target = logs.create(job)
    try:
        count = copy_history(source, target, job, on_progress=copied)
    finally:
        target.close()
    print_result(
        f"imported {many(count, 'record')} as the log of job {job} at {logs.where}",
        {"job_id": job, "status": "imported", "where": logs.where, "record_count": count},
        as_json=as_json,
    )
