"""`coordlog doctor`: diagnosis of the broker, the logs and this machine."""

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
from coordlog.history import History
from coordlog.log.broker.java import find_java
from coordlog.log.interface import StoredRecord
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

__all__ = ["doctor"]

_LAST_OFFSETS = 16
"""Number of offsets before the log's end that are searched for the last record."""
_REPAIR = "repair that, then run the same command again"
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


class _ExaminableLogs(Logs, Protocol):
    """Logs at a broker that returns facts about itself."""

    def examine(self, job_ids: tuple[str, ...]) -> BrokerFacts:
        """Facts of the broker and of these jobs' topics."""
        ...

    def clock_ahead_s(self) -> float:
        """Seconds by which the broker's clock is ahead of this machine's."""
        ...


@click.command()
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@with_finder
def doctor(find: Callable[[], _ExaminableLogs], *, job: str | None, as_json: bool) -> None:
    """Check the broker, all logs at it and this machine for faults, and show how to repair them.

    With JOB its whole log is read too, to compare its snapshots with the topic's retention and to
    estimate a prune. The exit status is 0 if there is nothing to do, else 1. If the broker does not
    answer, only this machine is checked, and the exit status is that of the broker's error.
    """
    machine, where = _machine(), options_given()
    try:
        logs = find()
        names = logs.jobs()
        examined = tuple(name for name in names if job in (None, name))
        broker = logs.examine(examined) if examined or job is None else None
    except (LogError, EnvironmentSetupError, OSError) as error:
        findings = examine_all(machine, _no_broker(error), (), where=where)
        _show(findings, as_json=as_json)
        click.get_current_context().exit(exit_of(error))
    if broker is None:
        assert job is not None, "without JOB, the broker alone is examined"
        raise no_such_job(job, logs.where, names)
    jobs = tuple(_job(logs, name, where, is_read=name == job) for name in examined)
    findings = examine_all(_with_clock(machine, logs), broker, jobs, where=where)
    _show(findings, as_json=as_json)
    if any(finding.grade in (Grade.WARNING, Grade.WRONG) for finding in findings):
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
                next_step="check that it runs and can be reached, then run the same command again",
            )
        case OSError():
            return NoBroker(where=where, problem=message_of(error), next_step=_REPAIR)
        case _:
            return NoBroker(where=where, problem=str(error), next_step=_REPAIR)


def _show(findings: tuple[Finding, ...], *, as_json: bool) -> None:
    if not as_json:
        _print(findings)
        return
    for finding in findings:
        print_json(json_of(finding))


def _print(findings: tuple[Finding, ...]) -> None:
    console = new_console()
    for finding in findings:
        line = Text(f"{finding.grade.value:<8}", style=_STYLES[finding.grade])
        line.append(f"{finding.subject}: {finding.value}", style="default")
        if finding.should_be:
            line.append(f"; should be {finding.should_be}", style="default")
        console.print(line, soft_wrap=True)
        if finding.next_step:
            console.print(Text(f"        to do: {finding.next_step}"), soft_wrap=True)
    grades = [finding.grade for finding in findings]
    wrong, warnings = grades.count(Grade.WRONG), grades.count(Grade.WARNING)
    click.echo(f"{len(findings)} things checked: {wrong} wrong, {warnings} warnings")


def _machine() -> MachineFacts:
    """Facts of this machine, without a comparison of its clock."""
    home = home_folder()
    usage = shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists()))
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
        versions={name: _version_of(name) for name in _PACKAGES},
        home=str(Path(home)),
        home_total_bytes=usage.total,
        home_free_bytes=usage.free,
    )


def _with_clock(machine: MachineFacts, logs: _ExaminableLogs) -> MachineFacts:
    try:
        return replace(machine, clock_ahead_s=logs.clock_ahead_s())
    except LogError as error:
        return replace(machine, clock_problem=str(error))


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _job(logs: _ExaminableLogs, job_id: str, where: str, *, is_read: bool) -> JobFacts:
    start = end = began = last = 0
    plan, needed, problem, waiting = None, None, "", ""
    try:
        with opened(logs, job_id) as log:
            history = History(log)
            start, end, first = history.start, history.end, next(history.stored(), None)
            if first is not None:
                began, last = first.timestamp_ms * 1000, _last_us(history)
                if is_read:
                    plan = plan_prune(history.stored())
                    waiting = waiting_in(history.stored())
                else:
                    needed = _needed(history, first)
            elif start > 0:
                needed = Needed(offset=0, timestamp_us=0, is_snapshot=False, is_there=False)
    except RecordError as error:
        problem = f"{error}; `coordlog verify {job_id}{where}` lists all faults"
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


def _last_us(history: History) -> int:
    """Time of the last record, microseconds since 1970, UTC; 0 if the last offsets have none.

    The end of a transaction, which another writer may have left, takes an offset and is no record.
    """
    latest = list(history.stored(max(history.start, history.end - _LAST_OFFSETS)))
    return latest[-1].timestamp_ms * 1000 if latest else 0


def _needed(history: History, first: StoredRecord) -> Needed:
    """Oldest record of a restart, without a fold: the snapshot that the last records name, else the log's first."""
    pointer = history.newest_named()
    snapshot = None
    # In a copy of a topic, the offset may be another record's.
    if history.start <= pointer < history.end and history.snapshot_at(pointer) is not None:
        snapshot = next(history.stored(pointer, pointer + 1), None)
    if snapshot is None and history.start > 0 and history.snapshot_at(history.start) is not None:
        snapshot = first  # the snapshot that a pruned log begins with need not be named
    if snapshot is None and history.start > 0:
        was_pruned = 0 <= pointer < history.start
        return Needed(
            offset=pointer if was_pruned else 0,
            timestamp_us=0,
            is_snapshot=was_pruned,
            is_there=False,
        )
    oldest = snapshot or first
    return Needed(
        offset=oldest.offset,
        timestamp_us=oldest.timestamp_ms * 1000,
        is_snapshot=snapshot is not None,
    )
