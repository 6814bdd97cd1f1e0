"""`coordlog payloads`: compares a job's payload store with its log, and removes payloads without an address."""

from __future__ import annotations

from collections.abc import Sequence

import click

from coordlog.amounts import many
from coordlog.cli.completing import JOB
from coordlog.cli.console import print_json
from coordlog.cli.exit_status import Exit
from coordlog.cli.log_access import FileLogs, Logs, with_history
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.reading import opened
from coordlog.errors import OptionError
from coordlog.log.file import ExportedLog
from coordlog.log.payload_store import PayloadFile, PayloadStore
from coordlog.payloads.gc import FileUse, PayloadUse, clean, payload_use
from coordlog.projections.tables.payload_json import Json

__all__ = ["payloads"]


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option("--clean", "is_cleaning", is_flag=True, help="Remove left-over payloads.")
@click.option(
    "--drop-payloads",
    "is_dropping",
    is_flag=True,
    help="Also remove payloads of pruned records; an archive of those records is incomplete without them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@payload_store_option
@with_history
def payloads(
    logs: Logs,
    *,
    job: str,
    is_cleaning: bool,
    is_dropping: bool,
    as_json: bool,
    payload_store: str | None,
) -> None:
    """Show the payloads of JOB in its payload store, and those that no record addresses.

    A payload is left over if its driver or task ended before a record with its address was
    appended. --clean removes these payloads. It never removes payloads that a record addresses,
    payloads of the driver in force, and payloads of epochs that are not in this log.

    If the log was pruned, --clean --drop-payloads also removes payloads of the epochs before its
    beginning: be sure that no archive and no other log needs them.

    The exit status is 1 if an addressed payload is missing; `coordlog verify` names its records.
    JOB may be an exported file, but not with --clean.
    """
    if is_dropping and not is_cleaning:
        raise OptionError("--drop-payloads", "set", "left out without --clean")
    if isinstance(logs, FileLogs) and is_cleaning:
        raise click.UsageError(
            f"{logs.where} is an exported file, and newer records of the log may address more payloads: "
            "pass --clean the job's id"
        )
    with opened(logs, job) as log:
        if isinstance(log, ExportedLog) and log.is_redacted:
            raise click.UsageError(
                f"{logs.where} is redacted: the addresses of its payloads were removed"
            )
        store = StoreFinder(job, payload_store, log).store_of(log)
        if store is None:
            raise OptionError("--payload-store", None, "set: the history of this job names none")
        use = payload_use(log, store)
    if is_dropping and use.copy_of:
        raise OptionError(
            "--drop-payloads", "set", f"left out: this log is a copy of {use.copy_of}"
        )
    removed = clean(store, use, is_dropping=is_dropping) if is_cleaning else ()
    if as_json:
        print_json(_as_json(store, use, removed))
    else:
        _print(job, store, use, is_cleaning=is_cleaning, is_dropping=is_dropping)
    if use.missing:
        click.get_current_context().exit(Exit.FAILED)


def _as_json(store: PayloadStore, use: PayloadUse, removed: Sequence[PayloadFile]) -> Json:
    return {
        "store": store.where,
        "high_watermark": use.high_watermark,
        "record_count": use.record_count,
        "files": [
            {"path": file.kept.path, "bytes": file.kept.size_bytes, "use": file.use.name.lower()}
            for file in use.files
        ],
        "missing": list(use.missing),
        "removed": [payload.path for payload in removed],
    }


def _print(
    job: str,
    store: PayloadStore,
    use: PayloadUse,
    *,
    is_cleaning: bool,
    is_dropping: bool,
) -> None:
    click.echo(f"{store.where}, compared with {many(use.record_count, 'record')}:")
    click.echo(f"  {_count_and_size(use.of(FileUse.ADDRESSED))} addressed by records")
    left_over = use.of(FileUse.LEFT_OVER)
    done = "removed" if is_cleaning else f"`coordlog payloads {job} --clean` removes them"
    click.echo(f"  {_count_and_size(left_over)} left over" + (f": {done}" if left_over else ""))
    drop = (
        f"`coordlog payloads {job} --clean --drop-payloads` removes them, if no archive needs them"
    )
    pruned = frozenset(use.pruned)
    unknown = [kept for kept in use.of(FileUse.UNKNOWN) if kept not in pruned]
    for files, text in (
        (use.of(FileUse.IN_FORCE), "of the driver in force, not addressed yet: not removed"),
        (
            use.pruned,
            f"of epochs of pruned records: {'removed' if is_dropping else drop}",
        ),
        (unknown, "of drivers that are not in this log, but maybe in another log: not removed"),
        (use.of(FileUse.FOREIGN), "other than payloads: not removed"),
    ):
        if files:
            click.echo(f"  {_count_and_size(files)} {text}")
    for path in use.missing:
        click.echo(f"  missing: {path}")


def _count_and_size(files: Sequence[PayloadFile]) -> str:
    size = sum(file.size_bytes for file in files)
    return f"{many(len(files), 'file')} of {many(size, 'byte')}"
