"""`coordlog jobs` and `coordlog delete`: which jobs have a log, and removing one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import click
from click.core import ParameterSource
from rich.text import Text

from coordlog.cli.commands.tables import json_option, print_all
from coordlog.cli.console import Column, iso, lasted, new_console, print_table
from coordlog.cli.job_states import JobRow, JobState, job_rows
from coordlog.cli.living import driver_in, refuse_live_driver
from coordlog.cli.log_access import Logs, no_such_job, with_logs
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.reading import opened
from coordlog.errors import CommandError, CoordlogError, OptionError
from coordlog.log.interface import LogIdentity
from coordlog.log.payload_store import KeptPayload, PayloadStore
from coordlog.payloads.gc import FileUse, PayloadUse, payload_use
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.schemas.header import Header

__all__ = ["delete", "jobs"]

_FOLDERS_SHOWN = 5
_REASON_CHARS = 200
_OF_KNOWN_EPOCHS = (FileUse.ADDRESSED, FileUse.LEFT_OVER, FileUse.IN_FORCE)


_COLUMNS = (
    Column("JOB"),
    Column("STATE"),
    Column("LAST RECORD"),
    Column("SPLITS", is_right=True),
    Column("ROWS", is_right=True),
    Column("FAILURES", is_right=True, rank=1),
    Column("LAST FAILURE"),
)
_STYLES = {
    JobState.NEW: "",
    JobState.RUNNING: "cyan",
    JobState.STOPPED: "",
    JobState.UNANSWERED: "magenta",
    JobState.FINISHED: "green",
    JobState.FAILED: "red",
    JobState.COPY: "",
    JobState.UNREADABLE: "red",
}


@click.command()
@click.option("--names", is_flag=True, help="Only their names, one a line: no log is read.")
@json_option
@with_logs
def jobs(logs: Logs, *, names: bool, as_json: bool) -> None:
    """List the jobs that have a log: what each does now, how far it is, and its last failure.

    STATE is running if its driver answers, stopped if it was stopped in order, else: no driver
    answers; or how the job has ended. SPLITS are finished of known, ROWS those of finished splits; of a job
    whose log was pruned these and FAILURES count what has come since.
    """
    source = click.get_current_context().get_parameter_source("as_json")
    if names and as_json and source is ParameterSource.COMMANDLINE:  # else it is for all commands
        raise click.UsageError("give either --json or --names: --names has no fields")
    found = logs.jobs()
    if names:
        for one in found:
            click.echo(one)
    elif found:
        rows = job_rows(logs, found)
        if as_json:
            print_all(rows)
        else:
            print_table(new_console(), _COLUMNS, [_cells(row, _now_us()) for row in rows])
            pruned = [row.job_id for row in rows if row.is_pruned]
            if pruned:
                click.echo(f"\ncounted since their logs were pruned: {', '.join(pruned)}")
    if not found:
        click.echo(f"there are no jobs at {logs.where}", err=True)


def _cells(row: JobRow, now_us: int) -> tuple[str | Text, ...]:
    age = "" if row.last_us is None else f"{lasted(row.last_us, max(now_us, row.last_us))} ago"
    is_why = row.last_failure is None and row.state in (JobState.UNREADABLE, JobState.UNANSWERED)
    failure = (row.why if is_why else row.last_failure) or ""
    return (
        row.job_id,
        Text(row.state.value, style=_STYLES[row.state]),
        age,
        f"{row.splits_finished:,}/{row.splits_known:,}",
        f"{row.rows:,}",
        str(row.failures),
        on_one_line(failure, _REASON_CHARS),
    )


def _now_us() -> int:
    return time.time_ns() // 1000


@click.command()
@click.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Where it cannot be known whether a driver lives: it does not.",
)
@click.option(
    "--keep-payloads",
    "is_keeping",
    is_flag=True,
    help="Its large payloads stay: a copy of its history needs them.",
)
@click.option(
    "--all-payloads",
    "is_all",
    is_flag=True,
    help="All that its folder of the payload store holds goes: no other log of this job is needed.",
)
@payload_store_option
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
) -> None:
    """Delete the log of JOB, with all its history and its large payloads; files that it has committed stay.

    Refused while a driver of it lives. A job that is started under that name later begins from
    nothing: it does not know what the old one has committed. Payloads stay where this log is a
    copy, those of epochs before it was adopted, which the log it comes from may need, and those of
    epochs that it does not know, as after a prune; --all-payloads removes these too, but those of a
    copy. Where JOB was adopted from this log, or is to be, give --keep-payloads.
    """
    if is_keeping and is_all:
        raise OptionError("--all-payloads", "given", "left out with --keep-payloads")
    there = logs.jobs()
    if job not in there:
        raise no_such_job(job, logs.where, there)
    if not is_take_over:
        _refuse_live_driver(logs, job)
    if not yes:
        click.confirm(f"{_described(logs, job)}. Delete it for good?", abort=True)
    finder = None if is_keeping else StoreFinder(job, payload_store)
    store, kept, why_not = _payloads_of(logs, job, finder, is_all=is_all)
    if not is_take_over:
        looked = _refuse_live_driver(logs, job)  # again: a prompt may stand for hours
        _refuse_change(logs, job, looked)
    logs.delete(job)
    click.echo(f"deleted the log of job {job} at {logs.where}", err=True)
    if store is not None and kept:
        store.remove(kept)
        click.echo(f"deleted {len(kept):,} payloads in {store.where}", err=True)
    if why_not:
        what = "others of its large payloads" if kept else "its large payloads, if there are any,"
        where = "" if store is None else f" in {store.where}"
        click.echo(f"{what} stay{where}: {why_not}", err=True)


class _Looked(NamedTuple):
    """What a log was when it was looked at."""

    identity: LogIdentity
    end_offset: int


def _refuse_live_driver(logs: Logs, job: str) -> _Looked:
    with opened(logs, job) as log:
        # Before it is read: what comes later is a change.
        looked = _Looked(log.identity, log.high_watermark())
        driver = driver_in(log, job)
    if driver is not None:
        refuse_live_driver(driver, is_take_over=False)
    return looked


def _refuse_change(logs: Logs, job: str, looked: _Looked) -> None:
    """Refuse where a driver may have begun since the log was looked at: to ask one that is gone takes seconds.

    A broker deletes a topic whatever stands in it, so one that begins between this and the deletion, a round trip or
    two, is not seen.
    """
    with opened(logs, job) as log:
        now = _Looked(log.identity, log.high_watermark())
    if now == looked:
        return
    problem = (
        f"its log has grown from {looked.end_offset} records to {now.end_offset} since its driver was asked"
        if now.identity == looked.identity
        else "another topic of its name stands there than when its driver was asked"
    )
    raise CommandError(
        job, problem, "a driver may have begun on it: see that none runs, and try again"
    )


def _payloads_of(
    logs: Logs, job: str, finder: StoreFinder | None, *, is_all: bool
) -> tuple[PayloadStore | None, Sequence[KeptPayload], str]:
    """What the epochs of this very log have kept, which is what goes with it; and why something stays.

    The store has one folder for a job, whichever log it is in: what another log's epochs kept there, that log may need.
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
        return None, (), str(error)
    if use.copy_of:
        return None, (), f"it is a copy of {use.copy_of}, which may need them"
    known = [one.kept for one in use.files if one.use in _OF_KNOWN_EPOCHS]
    others = [*use.of(FileUse.UNKNOWN), *(one for one in known if one.owner in use.shared)]
    if is_all:
        return store, [*known, *use.of(FileUse.UNKNOWN)], _staying([], use)
    return store, [one for one in known if one.owner not in use.shared], _staying(others, use)


def _staying(others: Sequence[KeptPayload], use: PayloadUse) -> str:
    """Of which epochs' folders how many files stay, and why; empty where none does."""
    shared = [one for one in others if one.owner in use.shared]
    unknown = [one for one in others if one.owner not in use.shared]
    foreign = use.of(FileUse.FOREIGN)
    parts = []
    if shared:
        why = "of before it was adopted, which the log it comes from may need"
        parts.append(f"{len(shared):,} {why}{_folders(shared)}")
    if unknown:
        why = "of epochs that the log does not know, as after a prune"
        parts.append(f"{len(unknown):,} {why}{_folders(unknown)}")
    if shared or unknown:
        parts[-1] += "; --all-payloads would have removed them"
    if foreign:
        parts.append(f"{len(foreign):,} files that are no payloads{_folders(foreign)}")
    return ", and ".join(parts)


def _folders(files: Sequence[KeptPayload]) -> str:
    names = sorted({one.owner for one in files})
    more = f" and {len(names) - _FOLDERS_SHOWN:,} more" if len(names) > _FOLDERS_SHOWN else ""
    return f" (in {', '.join(names[:_FOLDERS_SHOWN])}{more})"


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
