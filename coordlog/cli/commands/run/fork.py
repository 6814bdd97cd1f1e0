"""`coordlog fork`: a job from a checkpoint of another job."""

from __future__ import annotations

from typing import Final

import click

from coordlog.cli.completing import JOB
from coordlog.cli.log_access import CreatingLogs, Logs, with_logs
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.table_output import print_result, result_option
from coordlog.log.job_id import check_job_id
from coordlog.offline.fork import find_fork_point, fork_to

__all__ = ["fork"]

_SHOWN_FROM: Final = 50_000
"""Number of records from which progress is printed; fewer are copied at once."""


@click.command()
@click.argument("job", shell_complete=JOB)
@click.argument("origin", metavar="OTHER@CHECKPOINT")
@payload_store_option
@result_option
@with_logs
def fork(logs: Logs, *, job: str, origin: str, payload_store: str | None, as_json: bool) -> None:
    """Begin a new job JOB from a checkpoint of OTHER; the history of OTHER up to it is copied.

    CHECKPOINT is the name of a savepoint, or a number.

    Then run JOB with `coordlog ingest --job-id JOB`, or as `Job(job_id=...)`, with the source of
    OTHER and a destination of its own: it gets the rows after that checkpoint. After an
    interruption, the same command continues.
    """
    other, _, checkpoint = origin.partition("@")
    if not other or not checkpoint:
        raise click.UsageError(f"{origin!r} is set; it must be OTHER@NAME, or OTHER@N")
    check_job_id(job)
    assert isinstance(logs, CreatingLogs), "a file is no place for a new log"
    if job == other:
        raise click.UsageError(f"{job} is to begin from itself: use another id for the new job")
    other_log = logs.open(other)
    try:
        fork_point = find_fork_point(other_log, other, checkpoint)
        log = logs.create(job)
        try:
            is_new = fork_to(
                other_log,
                log,
                fork_point,
                job_id=job,
                on_progress=_copied,
                payload_store=StoreFinder(other, payload_store).store_of(other_log),
            )
        finally:
            log.close()
    finally:
        other_log.close()
    done = f"{fork_point.end_offset:,} records copied" if is_new else "an earlier call has begun it"
    print_result(
        f"job {job} begins from checkpoint {fork_point.checkpoint_id} of job {other}: {done}; run it with a "
        "destination of its own",
        {
            "job_id": job,
            "status": "begun" if is_new else "was begun before",
            "from_job_id": other,
            "checkpoint": fork_point.checkpoint_id,
            "record_count": fork_point.end_offset,
            "unsettled_checkpoints": list(fork_point.unsettled),
        },
        as_json=as_json,
    )
    if fork_point.unsettled:
        numbers = ", ".join(map(str, fork_point.unsettled))
        click.echo(
            f"job {other} may not have committed all that these checkpoints allow: {numbers}; {job} never does: "
            f"unless {other} runs, start it once more, or those rows are missing",
            err=True,
        )


def _copied(count: int, total: int) -> None:
    if total >= _SHOWN_FROM:
        click.echo(f"copied {count:,} of {total:,} records", err=True)
