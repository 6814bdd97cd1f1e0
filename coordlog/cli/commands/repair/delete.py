"""`coordlog delete`: the removal of a log, with its history and its large payloads."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

import click

from coordlog.cli.completing import JOB
from coordlog.cli.console import iso, print_json
from coordlog.cli.living import driver_in, refuse_live_driver
from coordlog.cli.log_access import Logs, no_such_job, with_logs
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.reading import opened
from coordlog.cli.table_output import result_option
from coordlog.errors import CommandError, CoordlogError, OptionError, PayloadStoreError, TopicError
from coordlog.history import History
from coordlog.log.interface import LogIdentity
from coordlog.log.payload_store import PayloadFile, PayloadStore, is_draft, is_payload
from coordlog.payloads.gc import FileUse, PayloadUse, payload_use
from coordlog.projections.tables.payload_json import Json
from coordlog.schemas.header import Header

__all__ = ["delete"]


_FOLDERS_SHOWN = 5


_OF_KNOWN_EPOCHS = (FileUse.ADDRESSED, FileUse.LEFT_OVER, FileUse.IN_FORCE)


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Assume that no driver runs, if that cannot be known.",
)
@click.option(
    "--keep-payloads",
    "is_keeping",
    is_flag=True,
    help="Keep the large payloads, because a copy of the history needs them.",
)
@click.option(
    "--all-payloads",
    "is_all",
    is_flag=True,
    help="Remove all of the job's folder in the payload store, because no other log of it is needed.",
)
@payload_store_option
@result_option
@with_logs
def delete(
    logs: Logs,
    *,
    job: str,
    yes: bool,
    is_take_over: bool,
    is_keeping: bool,
    is_all: bool,
    payload_store: str | None,
    as_json: bool,
) -> None:
    """Delete the log of JOB, with its history and its large payloads; committed files stay.

    The deletion is refused while a driver of JOB runs. A later job of that name begins from its
    start, without knowledge of earlier commits. If this log is a copy, its payloads stay. Payloads
    of epochs before an adoption stay, because the original log may need them, and so do those of
    epochs missing from the log, as after a prune, unless --all-payloads is given. If JOB was or
    will be adopted from this log, pass --keep-payloads. If JOB has no log any more, --all-payloads
    with --payload-store removes the large payloads that a cut-off deletion has left.
    """
    if is_keeping and is_all:
        raise OptionError("--all-payloads", "set", "left out with --keep-payloads")
    job_ids = logs.jobs()
    if job not in job_ids:
        if not is_all or payload_store is None:
            raise no_such_job(job, logs.where, job_ids)
        folder = PayloadStore(payload_store, job)
        count = _delete_left_payloads(logs, folder, yes=yes)
        if as_json:
            print_json(_facts(job, logs.where, folder, count, "payloads deleted"))
        return
    if not is_take_over:
        _refuse_live_driver(logs, job)
    if not yes:
        click.confirm(f"{_described(logs, job)}. Delete it for good?", abort=True, err=True)
    finder = None if is_keeping else StoreFinder(job, payload_store)
    store, doomed, why_kept = _payloads_of(logs, job, finder, is_all=is_all)
    if not is_take_over:
        seen = _refuse_live_driver(logs, job)  # again: a prompt may wait for hours
        _refuse_change(logs, job, seen)
    logs.delete(job)
    click.echo(f"deleted the log of job {job} at {logs.where}", err=True)
    if store is not None and doomed:
        _remove(store, doomed)
    if why_kept:
        kept = "others of its large payloads" if doomed else "its large payloads, if there are any,"
        where = "" if store is None else f" in {store.where}"
        click.echo(f"{kept} stay{where}: {why_kept}", err=True)
    if as_json:
        facts = _facts(job, logs.where, store, len(doomed), "deleted")
        print_json({**facts, "kept_payloads": why_kept or None})


def _facts(
    job: str, where: str, store: PayloadStore | None, payload_count: int, status: str
) -> dict[str, Json]:
    """Result of a deletion, printed after all of it: a failed removal of payloads has an error only."""
    return {
        "job_id": job,
        "status": status,
        "where": where,
        "payload_store": None if store is None else store.where,
        "payload_count": payload_count,
    }


def _delete_left_payloads(logs: Logs, store: PayloadStore, *, yes: bool) -> int:
    """Remove the payloads of a job that has no log: only the user knows whether another log needs them.

    Returns their number.
    """
    left = [kept for kept in store.listed() if is_payload(kept) or is_draft(kept)]
    if left and not yes:
        described = f"job {store.job_id} has no log at {logs.where}, and {len(left):,} payloads in {store.where}"
        click.confirm(f"{described}. Delete them for good?", abort=True, err=True)
    _remove(store, left)
    return len(left)


def _remove(store: PayloadStore, doomed: Sequence[PayloadFile]) -> None:
    """Remove payloads after their log. An error names the command that removes the rest."""
    try:
        store.remove(doomed)
    except PayloadStoreError as error:
        place = f"--payload-store {shlex.quote(store.url)}"
        command = f"coordlog delete {store.job_id} --all-payloads {place}"
        next_step = f"the log is deleted: fix this, then remove the rest with `{command}`"
        raise type(error)(error.store, error.doing, error.problem, next_step) from error
    click.echo(f"deleted {len(doomed):,} payloads in {store.where}", err=True)


class _LogVersion(NamedTuple):
    """Identity and end of a log at one time."""

    identity: LogIdentity
    end_offset: int


def _refuse_live_driver(logs: Logs, job: str) -> _LogVersion:
    try:
        with opened(logs, job) as log:
            # Taken before the reading: later records are a change.
            seen = _LogVersion(log.identity, log.high_watermark())
            driver = driver_in(log, job)
    except TopicError as error:  # of several partitions, for example: a driver may write one
        raise CommandError(
            job,
            f"topic {error.topic} cannot be read as a log: {error.problem}",
            f"if surely no driver runs, `coordlog delete {job} --take-over` removes the topic",
        ) from error
    if driver is not None:
        refuse_live_driver(driver, is_take_over=False)
    return seen


def _refuse_change(logs: Logs, job: str, seen: _LogVersion) -> None:
    """Refuse if a driver may have begun since the check of the last one, which takes seconds if it does not answer.

    A broker deletes a topic whatever its content, so a driver that begins between this check and the deletion, a
    round trip or two, is not noticed.
    """
    with opened(logs, job) as log:
        now = _LogVersion(log.identity, log.high_watermark())
    if now == seen:
        return
    problem = (
        f"its log has grown from {seen.end_offset} records to {now.end_offset} since its driver was checked"
        if now.identity == seen.identity
        else "its topic was replaced by another one since its driver was checked"
    )
    raise CommandError(
        job, problem, "a driver may have begun on it: check that none runs, and try again"
    )


def _payloads_of(
    logs: Logs, job: str, finder: StoreFinder | None, *, is_all: bool
) -> tuple[PayloadStore | None, Sequence[PayloadFile], str]:
    """Store and payloads to delete, those of this log's own epochs; and the reason why payloads are kept.

    The store has one folder for a job, shared by all of its logs: another log may need the payloads of its epochs.
    """
    if finder is None:
        return None, (), "--keep-payloads"
    try:
        with opened(logs, job) as log:
            store = finder.store_of(log)
            if store is None:
                return None, (), ""
            use = payload_use(log, store)
    except CoordlogError as error:
        return None, (), error.problem if isinstance(error, TopicError) else str(error)
    if use.copy_of:
        return None, (), f"it is a copy of {use.copy_of}, which may need them"
    known = [file.kept for file in use.files if file.use in _OF_KNOWN_EPOCHS]
    shared = [payload for payload in known if payload.owner in use.shared]
    if is_all:
        return store, [*known, *use.of(FileUse.UNKNOWN)], _why_kept([], use)
    own = [payload for payload in known if payload.owner not in use.shared]
    return store, own, _why_kept([*use.of(FileUse.UNKNOWN), *shared], use)


def _why_kept(others: Sequence[PayloadFile], use: PayloadUse) -> str:
    """Number and folders of the files that are kept, with the reasons; empty if there are none."""
    shared = [payload for payload in others if payload.owner in use.shared]
    unknown = [payload for payload in others if payload.owner not in use.shared]
    foreign = use.of(FileUse.FOREIGN)
    parts = []
    if shared:
        why = "of epochs before its adoption, which the original log may need"
        parts.append(f"{len(shared):,} {why}{_folders(shared)}")
    if unknown:
        why = "of epochs that are not in the log, as after a prune"
        parts.append(f"{len(unknown):,} {why}{_folders(unknown)}")
    if shared or unknown:
        parts[-1] += "; --all-payloads would have removed them"
    if foreign:
        parts.append(f"{len(foreign):,} files that are no payloads{_folders(foreign)}")
    return ", and ".join(parts)


def _folders(files: Sequence[PayloadFile]) -> str:
    names = sorted({payload.owner for payload in files})
    more = f" and {len(names) - _FOLDERS_SHOWN:,} more" if len(names) > _FOLDERS_SHOWN else ""
    return f" (in {', '.join(names[:_FOLDERS_SHOWN])}{more})"


def _described(logs: Logs, job: str) -> str:
    """Description of the log to delete: its size, and the time of its last record."""
    where = f"The log of job {job} at {logs.where}"
    try:
        with opened(logs, job) as log:
            history = History(log)
            start, end = history.start, history.end
            last = next(history.stored(end - 1), None) if start < end else None
    except TopicError as error:
        return f"{where} cannot be read: {error.problem}"
    if last is None:
        return f"{where} is empty"
    header: Header | None = last.header
    epoch = "" if header is None else f", in epoch {header.epoch}"
    return (
        f"{where} has {end - start:,} records, the last of {iso(last.timestamp_ms * 1000)}{epoch}"
    )
