"""`coordlog begin`: a job from a checkpoint of another one."""

from __future__ import annotations

from typing import Final

import click

from coordlog.cli.log_access import CreatingLogs, Logs, with_logs
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.errors import CommandError
from coordlog.log.job_id import check_job_id
from coordlog.offline.fork import begin_from, find_beginning

__all__ = ["begin"]

_SHOWN_FROM: Final = 50_000
"""Records: with fewer, they are copied before anybody has read that they are."""


@click.command()
@click.argument("job")
@click.argument("origin", metavar="OTHER@CHECKPOINT")
@payload_store_option
@with_logs
def begin(logs: Logs, *, job: str, origin: str, payload_store: str | None) -> None:
    """Give a new job JOB the history of OTHER up to a checkpoint: it goes on from there on its own.

    CHECKPOINT is the name that keeps it, or its number.

    Then run it with `coordlog ingest --job-id JOB`, or as `Job(job_id=...)`, with the source of the
    other one and a destination of its own: it gets the rows from that checkpoint on.
    """
    other, _, checkpoint = origin.partition("@")
    if not other or not checkpoint:
        raise click.UsageError(f"{origin!r} is given; it must be OTHER@NAME, or OTHER@N")
    check_job_id(job)
    assert isinstance(logs, CreatingLogs), "a file is no place for a new log"
    if job in logs.jobs():
        raise CommandError(
            job, "it has a log already", f"give another id, or `coordlog delete {job}` first"
        )
    there = logs.open(other)
    try:
        beginning = find_beginning(there, other, checkpoint)
        log = logs.create(job)
        try:
            begin_from(
                there,
                log,
                beginning,
                job_id=job,
                on_progress=_copied,
                payload_store=StoreFinder(other, payload_store).store_of(there),
            )
        finally:
            log.close()
    finally:
        there.close()
    click.echo(
        f"job {job} begins from checkpoint {beginning.checkpoint_id} of job {other}: "
        f"{beginning.end_offset:,} records copied; run it with a destination of its own",
        err=True,
    )
    if beginning.unsettled:
        numbers = ", ".join(map(str, beginning.unsettled))
        click.echo(
            f"job {other} may not have committed all that these checkpoints allow: {numbers}; {job} never does: "
            f"unless {other} runs, start it once more, or nobody has those rows",
            err=True,
        )


def _copied(count: int, total: int) -> None:
    if total >= _SHOWN_FROM:
        click.echo(f"copied {count:,} of {total:,} records", err=True)
