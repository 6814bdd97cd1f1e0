"""`coordlog payloads`: a job's payload store held against its log, and what no record addresses removed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from coordlog.cli.console import print_json
from coordlog.cli.exit_status import Exit
from coordlog.cli.log_access import FileLogs, Logs, with_history
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.reading import opened
from coordlog.errors import OptionError
from coordlog.log.file import ExportedLog
from coordlog.log.payload_store import KeptPayload, PayloadStore
from coordlog.payloads.gc import FileUse, PayloadUse, clean, payload_use
from coordlog.projections.tables.payload_json import Json

__all__ = ["payloads"]


@click.command()
@click.argument("job")
@click.option("--clean", "is_cleaning", is_flag=True, help="Remove what is left over.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@payload_store_option
@with_history
def payloads(
    logs: Logs, *, job: str, is_cleaning: bool, as_json: bool, payload_store: str | None
) -> None:
    """Show what of JOB is in its payload store, and what no record addresses.

    Left over is what a driver or a task kept and could not append any more. Nothing goes that a
    record addresses, nor what the driver in force keeps, nor what this log knows nothing of. Exit
    status 1 where a payload that is addressed is not there; `coordlog verify` names its records.
    Against a file, in JOB's place, nothing is removed.
    """
    if isinstance(logs, FileLogs) and is_cleaning:
        raise click.UsageError(
            f"{logs.where} is a file, and the log itself may address more by now: --clean takes a job's id"
        )
    with opened(logs, job) as log:
        if isinstance(log, ExportedLog) and log.is_redacted:
            raise click.UsageError(
                f"{logs.where} is redacted: it has no addresses of payloads any more"
            )
        store = StoreFinder(job, payload_store, log).store_of(log)
        if store is None:
            raise OptionError("--payload-store", None, "given: the history of this job names none")
        use = payload_use(log, store)
    removed = clean(store, use) if is_cleaning else ()
    if as_json:
        print_json(_as_json(store, use, removed))
    else:
        _print(job, store, use, is_cleaning=is_cleaning)
    if use.missing:
        click.get_current_context().exit(Exit.FAILED)


def _as_json(store: PayloadStore, use: PayloadUse, removed: Sequence[KeptPayload]) -> Json:
    return {
        "store": store.where,
        "high_watermark": use.high_watermark,
        "files": [
            {"path": one.kept.path, "bytes": one.kept.size_bytes, "use": one.use.name.lower()}
            for one in use.files
        ],
        "missing": list(use.missing),
        "removed": [one.path for one in removed],
    }


def _print(job: str, store: PayloadStore, use: PayloadUse, *, is_cleaning: bool) -> None:
    click.echo(f"{store.where}, held against {use.high_watermark:,} records:")
    click.echo(f"  {_sum(use.of(FileUse.ADDRESSED))} addressed by records")
    over = use.of(FileUse.LEFT_OVER)
    done = "removed" if is_cleaning else f"`coordlog payloads {job} --clean` removes them"
    click.echo(f"  {_sum(over)} left over" + (f": {done}" if over else ""))
    for worth, why in (
        (FileUse.IN_FORCE, "of the driver in force, not addressed so far: they stay"),
        (FileUse.UNKNOWN, "of drivers that this log does not know: they stay; is it theirs?"),
        (FileUse.FOREIGN, "that are no payloads: they stay"),
    ):
        found = use.of(worth)
        if found:
            click.echo(f"  {_sum(found)} {why}")
    for path in use.missing:
        click.echo(f"  missing: {path}")


def _sum(files: Sequence[KeptPayload]) -> str:
    size = sum(one.size_bytes for one in files)
    noun = "file" if len(files) == 1 else "files"
    return f"{len(files):,} {noun} of {size:,} bytes"
