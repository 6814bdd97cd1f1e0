"""`coordlog export`: a job's whole log as one file."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import click

from coordlog.amounts import many
from coordlog.cli.completing import JOB
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.reading import opened, progress_printer, whole
from coordlog.cli.table_output import print_result, result_option
from coordlog.export import write_exported
from coordlog.log.credentials import without_credentials
from coordlog.log.file import check_target
from coordlog.log.interface import Log, StoredRecord
from coordlog.log.local.drafts import name_draft, unnamed_draft_of
from coordlog.log.local.fsync import naming
from coordlog.projections.inspection.redact import Redaction
from coordlog.projections.telemetry.spans import Span, SpanFold
from coordlog.telemetry.opening import check_extras
from coordlog.telemetry.otlp import write_spans

__all__ = ["export"]


@click.command()
@click.argument("job", shell_complete=JOB)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--redact",
    is_flag=True,
    help="Leave out payloads, reasons, split ids, paths and hosts, for a bug report.",
)
@click.option(
    "--otlp",
    is_flag=True,
    help="Write traces of checkpoints, failovers and restores in place of records; FILE may be a URL.",
)
@result_option
@with_history
def export(
    logs: Logs, *, job: str, file: str, force: bool, redact: bool, otlp: bool, as_json: bool
) -> None:
    """Write the whole log of JOB, void records included, to FILE.

    FILE is an Avro container file, written whole or not at all. JOB may be such a file. With --otlp FILE has traces in
    OTLP's JSON, or is the URL of an endpoint for traces, as http://127.0.0.1:4318/v1/traces.
    """
    if otlp and redact:
        raise click.UsageError(
            "give either --otlp or --redact; traces of a redacted file have no reasons"
        )
    if otlp and file.lower().startswith(("http://", "https://")):
        _send_traces(logs, job, file, as_json=as_json)
        return
    path = Path(file)
    check_target(path, "FILE")
    if path.exists() and not force:
        raise click.BadParameter(f"{path} exists; --force replaces it", param_hint="FILE")
    if otlp:
        _write_traces(logs, job, path, is_overwriting=force, as_json=as_json)
        return
    _export(logs, job, path, force=force, redact=redact, as_json=as_json)


def _export(logs: Logs, job: str, file: Path, *, force: bool, redact: bool, as_json: bool) -> None:
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
    print_result(
        f"exported {records} of job {job} to {file}",
        {
            "job_id": job,
            "status": "exported",
            "file": str(file),
            "record_count": count,
            "is_redacted": redact,
        },
        as_json=as_json,
    )


def _write_traces(logs: Logs, job: str, path: Path, *, is_overwriting: bool, as_json: bool) -> None:
    with opened(logs, job) as log, naming(path), unnamed_draft_of(path) as (draft, file):
        count = write_spans(_spans_of(log), file)
        file.flush()
        try:
            name_draft(draft, path, is_replacing=is_overwriting)
        except FileExistsError as error:
            raise click.BadParameter(
                f"{path} exists; --force replaces it", param_hint="FILE"
            ) from error
    print_result(
        f"exported {many(count, 'span')} of job {job} to {path}",
        {"job_id": job, "status": "exported", "file": str(path), "span_count": count},
        as_json=as_json,
    )


def _send_traces(logs: Logs, job: str, endpoint: str, *, as_json: bool) -> None:
    check_extras("otlp", "--otlp with a URL")
    from coordlog.telemetry.otlp_http import send_spans  # noqa: PLC0415, an extra

    with opened(logs, job) as log:
        count = send_spans(_spans_of(log), endpoint)
    shown = without_credentials(endpoint, "(hidden)")
    print_result(
        f"sent {many(count, 'span')} of job {job} to {shown}",
        {"job_id": job, "status": "sent", "endpoint": shown, "span_count": count},
        as_json=as_json,
    )


def _spans_of(log: Log) -> Iterator[Span]:
    fold = SpanFold()
    for entry in whole(log).records():
        if entry.counts:
            yield from fold.apply(entry.known())


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
