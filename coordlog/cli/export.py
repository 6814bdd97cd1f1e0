"""`coordlog export`: a job's whole log as one file, for a copy or a replay test."""

from __future__ import annotations

from pathlib import Path

import click

from coordlog.testing.replay_history import write_history

from .logs import Logs, with_logs

__all__ = ["export"]


@click.command()
@click.argument("job")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE where it is there.")
@with_logs
def export(logs: Logs, *, job: str, file: Path, force: bool) -> None:
    """Write the whole log of JOB, void records included, to FILE.

    FILE is an Avro container file; it is there whole, or not at all.
    """
    if file.exists() and not force:
        raise click.BadParameter(f"{file} is there; --force replaces it", param_hint="FILE")

    def progress(offset: int, end: int) -> None:
        click.echo(f"read {offset:,} of {end:,} records", err=True)

    log = logs.open(job)
    try:
        count = write_history(log, job, file, is_overwriting=force, on_progress=progress)
    except FileExistsError as error:
        raise click.BadParameter(
            f"{file} is there; --force replaces it", param_hint="FILE"
        ) from error
    finally:
        log.close()
    click.echo(f"exported {count:,} records of job {job} to {file}", err=True)
