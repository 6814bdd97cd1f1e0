"""`coordlog export`: a job's whole log as one file."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from coordlog.amounts import many
from coordlog.cli.completing import JOB
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.reading import progress_printer
from coordlog.export import write_exported
from coordlog.log.file import check_target
from coordlog.log.interface import StoredRecord
from coordlog.projections.inspection.redact import Redaction

__all__ = ["export"]


@click.command()
@click.argument("job", shell_complete=JOB)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--redact",
    is_flag=True,
    help="Leave out payloads, reasons, split ids, paths and hosts, for a bug report.",
)
@with_history
def export(logs: Logs, *, job: str, file: Path, force: bool, redact: bool) -> None:
    """Write the whole log of JOB, void records included, to FILE.

    FILE is an Avro container file, written whole or not at all. JOB may be such a file.
    """
    check_target(file, "FILE")
    if file.exists() and not force:
        raise click.BadParameter(f"{file} exists; --force replaces it", param_hint="FILE")

    log = logs.open(job)
    try:
        count = write_exported(
            log,
            job,
            file,
            is_overwriting=force,
            redact=_Redacting() if redact else None,
            on_progress=progress_printer(log.high_watermark(), "read"),
        )
    except FileExistsError as error:
        raise click.BadParameter(
            f"{file} exists; --force replaces it", param_hint="FILE"
        ) from error
    finally:
        log.close()
    records = many(count, "redacted record" if redact else "record")
    click.echo(f"exported {records} of job {job} to {file}", err=True)


class _Redacting:
    """Redacts stored records, in log order."""

    def __init__(self) -> None:
        self._redaction = Redaction(secrets.token_bytes(32))

    def __call__(self, stored: StoredRecord) -> StoredRecord:
        redacted = self._redaction.record(stored)
        return StoredRecord(
            stored.offset,
            redacted.key,
            redacted.value,
            redacted.header_bytes,
            stored.timestamp_ms,
        )
