"""`coordlog doctor`: what is wrong, or soon will be, with the broker, the logs and this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Protocol

import click
from rich.text import Text

from coordlog.cli.console import json_of, new_console, print_json
from coordlog.cli.exit_status import Exit, exit_of, message_of
from coordlog.cli.log_access import Logs, no_such_job, options_given, with_finder
from coordlog.cli.reading import opened
from coordlog.errors import (
    AccessError,
    CoordlogError,
    EnvironmentSetupError,
    LogError,
    LogUnavailableError,
    RecordError,
    TopicError,
)
from coordlog.limits import RETAINED_CHECKPOINTS
from coordlog.log.broker.java import find_java
from coordlog.log.interface import Log, StoredRecord
from coordlog.log.kafka.cluster_info import BrokerFacts
from coordlog.log.local.paths import home_folder
from coordlog.offline.doctor import (
    Finding,
    Grade,
    JobFacts,
    MachineFacts,
    Needed,
    NoBroker,
    examine_all,
)
from coordlog.projections.inspection.prune_plan import plan_prune
from coordlog.projections.tables.waiting_splits import waiting_in
from coordlog.restore.snapshots import newest_named
from coordlog.schemas.record import Kind

__all__ = ["doctor"]

_LOOKED_BACK = 16
"""Offsets before the end among which a last record is looked for."""
_MEND = "mend that, then run the same command again"
_PACKAGES = (
    "coordlog",
    "fastavro",
    "fsspec",
    "immutables",
    "kafka-python",
    "pyarrow",
    "pyspark",
    "websockets",
)
_STYLES = {
    Grade.FINE: "green",
    Grade.NOTE: "cyan",
    Grade.WARNING: "bold yellow",
    Grade.WRONG: "bold red",
}


class _Examined(Logs, Protocol):
    """Logs at a broker that can be asked about itself."""

    def examine(self, job_ids: tuple[str, ...]) -> BrokerFacts:
        """What it says of itself and of these jobs' topics."""
        ...

    def clock_ahead_s(self) -> float:
        """By how much its clock is ahead of this machine's."""
        ...


@click.command()
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@with_finder
def doctor(find: Callable[[], _Examined], *, job: str | None, as_json: bool) -> None:
    """Look for what is wrong, or soon will be, with the broker, all logs at it and this machine.

    With JOB its whole log is read too: the snapshots against the topic's retention, and what a
    prune would free. Exit status 0 where nothing is to be done, else 1; where the broker cannot be
    asked, this machine is looked at alone, and the status is that of every command.
    """
    machine, where = _machine(), options_given()
    try:
        logs = find()
        there = logs.jobs()
        asked = tuple(one for one in there if job in (None, one))
        broker = logs.examine(asked) if asked or job is None else None
    except (LogError, EnvironmentSetupError, OSError) as error:
        found = examine_all(machine, _no_broker(error), (), where=where)
        _show(found, as_json=as_json)
        click.get_current_context().exit(exit_of(error))
    if broker is None:
        assert job is not None, "all jobs that there are may be asked for"
        raise no_such_job(job, logs.where, there)
    jobs = tuple(_job(logs, one, where, is_read=one == job) for one in asked)
    found = examine_all(_with_clock(machine, logs), broker, jobs, where=where)
    _show(found, as_json=as_json)
    if any(one.grade in (Grade.WARNING, Grade.WRONG) for one in found):
        click.get_current_context().exit(Exit.FAILED)


def _no_broker(error: LogError | EnvironmentSetupError | OSError) -> NoBroker:
    servers = click.get_current_context().params["bootstrap_servers"]
    where = f"broker at {servers}" if servers else "shared local broker"
    match error:
        case EnvironmentSetupError():
            return NoBroker(where=where, problem=error.what, next_step=error.next_step)
        case TopicError() | AccessError():
            return NoBroker(where=where, problem=error.problem, next_step=error.next_step)
        case LogUnavailableError():
            last = f" (last: {error.last_error})" if error.last_error else ""
            return NoBroker(
                where=where,
                problem=f"no answer for {error.waited_s:.1f} s while {error.doing}{last}",
                next_step="see that it runs and can be reached, then run the same command again",
            )
        case OSError():
            return NoBroker(where=where, problem=message_of(error), next_step=_MEND)
        case _:
            return NoBroker(where=where, problem=str(error), next_step=_MEND)


def _show(found: tuple[Finding, ...], *, as_json: bool) -> None:
    if not as_json:
        _print(found)
        return
    for one in found:
        print_json(json_of(one))


def _print(found: tuple[Finding, ...]) -> None:
    console = new_console()
    for one in found:
        line = Text(f"{one.grade.value:<8}", style=_STYLES[one.grade])
        line.append(f"{one.what}: {one.value}", style="default")
        if one.should_be:
            line.append(f"; should be {one.should_be}", style="default")
        console.print(line, soft_wrap=True)
        if one.next_step:
            console.print(Text(f"        to do: {one.next_step}"), soft_wrap=True)
    counts = [sum(one.grade is grade for one in found) for grade in (Grade.WRONG, Grade.WARNING)]
    click.echo(f"{len(found)} things looked at: {counts[0]} wrong, {counts[1]} warnings")


def _machine() -> MachineFacts:
    """Its clock is not compared with any yet."""
    home = home_folder()
    usage = shutil.disk_usage(next(one for one in (home, *home.parents) if one.exists()))
    java = java_problem = ""
    try:
        java = find_java()
    except CoordlogError as error:
        java_problem = str(error)
    return MachineFacts(
        now_us=time.time_ns() // 1000,
        clock_ahead_s=None,
        java=java,
        java_problem=java_problem,
        versions={one: _version_of(one) for one in _PACKAGES},
        home=str(Path(home)),
        home_total_bytes=usage.total,
        home_free_bytes=usage.free,
    )


def _with_clock(machine: MachineFacts, logs: _Examined) -> MachineFacts:
    try:
        return replace(machine, clock_ahead_s=logs.clock_ahead_s())
    except LogError as error:
        return replace(machine, clock_problem=str(error))


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _job(logs: _Examined, job_id: str, where: str, *, is_read: bool) -> JobFacts:
    start = end = began = last = 0
    plan, needed, problem, waiting = None, None, "", ""
    try:
        with opened(logs, job_id) as log:
            start, end = log.start_offset(), log.high_watermark()
            first = next(iter(log.read(start, end)), None)
            if first is not None:
                began, last = first.timestamp_ms * 1000, _last_us(log, start, end)
                if is_read:
                    plan = plan_prune(log.read(start, end), keep_checkpoints=RETAINED_CHECKPOINTS)
                    waiting = waiting_in(log.read(start, end))
                else:
                    needed = _needed(log, start, first, end)
            elif start > 0:
                needed = Needed(offset=0, timestamp_us=0, is_snapshot=False, is_there=False)
    except RecordError as error:
        problem = f"{error}; `coordlog verify {job_id}{where}` tells all"
    except LogError as error:
        problem = str(error)
    return JobFacts(
        job_id=job_id,
        records=end - start,
        began_us=began,
        last_us=last,
        start=start,
        plan=plan,
        needed=needed,
        problem=problem,
        waiting=waiting,
    )


def _last_us(log: Log, start: int, end: int) -> int:
    """The time of the last record, in microseconds; 0 where there is none so near the end.

    The end of a transaction, which somebody else's writer may have left, takes an offset and is no record.
    """
    latest = list(log.read(max(start, end - _LOOKED_BACK), end))
    return latest[-1].timestamp_ms * 1000 if latest else 0


def _needed(log: Log, start: int, first: StoredRecord, end: int) -> Needed:
    """What a restart needs, without a fold: the snapshot that the last records name, else all of the log."""
    named = newest_named(log, start, end)
    snapshot = _snapshot_at(log, named) if start <= named < end else None
    if snapshot is None and start > 0 and _is_snapshot(first):
        snapshot = first  # nothing need name the one with which a pruned log begins
    if snapshot is None and start > 0:
        is_named = 0 <= named < start
        return Needed(
            offset=named if is_named else 0,
            timestamp_us=0,
            is_snapshot=is_named,
            is_there=False,
        )
    found = snapshot or first
    return Needed(
        offset=found.offset,
        timestamp_us=found.timestamp_ms * 1000,
        is_snapshot=snapshot is not None,
    )


def _snapshot_at(log: Log, offset: int) -> StoredRecord | None:
    """None where another record stands there, as in a topic that is the copy of one."""
    found = next(iter(log.read(offset, offset + 1)), None)
    return found if found is not None and _is_snapshot(found) else None


def _is_snapshot(one: StoredRecord) -> bool:
    header = one.header
    return header is not None and one.record(header).kind is Kind.SNAPSHOT
