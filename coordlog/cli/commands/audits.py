"""`coordlog events`, `commits`, `failures` and `epochs`: more tables that a job's history adds up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click
from rich.text import Text

from coordlog.cli.commands.tables import json_option, number_text, print_rows
from coordlog.cli.console import (
    Column,
    lasted,
    new_console,
    print_table,
    reason_text,
    time_of,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.reading import audit_of, opened, whole
from coordlog.projections.tables.apply_errors import Applying
from coordlog.projections.tables.audit import audit_records
from coordlog.projections.tables.commits import CommitRow, CommitStatus
from coordlog.projections.tables.epochs import EpochEnd, EpochRow
from coordlog.projections.tables.events import EventFold, EventRow, EventStatus
from coordlog.projections.tables.failures import FailureRow, FailureScope

__all__ = ["commits", "epochs", "events", "failures"]

_EVENT_STYLES = {
    EventStatus.SENT: "cyan",
    EventStatus.ACKED: "green",
    EventStatus.FAILED: "red",
    EventStatus.HANDLED: "",
    EventStatus.REDELIVERED: "yellow",
    EventStatus.SKIPPED: "bold yellow",
}
_COMMIT_STYLES = {CommitStatus.OPEN: "cyan", CommitStatus.SETTLED: "green"}
_SCOPE_STYLES = {
    FailureScope.ATTEMPT: "red",
    FailureScope.GLOBAL: "bold red",
    FailureScope.JOB: "bold red",
}
_END_STYLES = {
    EpochEnd.OPEN: "cyan",
    EpochEnd.REPLACED: "magenta",
    EpochEnd.FINISHED: "green",
    EpochEnd.FAILED: "red",
    EpochEnd.STOPPED: "",
}

_EVENT_COLUMNS = (
    Column("SEQ", is_right=True),
    Column("WAY"),
    Column("OPERATOR", rank=2),
    Column("ATTEMPT"),
    Column("EVENT", is_right=True, rank=3),
    Column("TYPE"),
    Column("BYTES", is_right=True, rank=4),
    Column("SENT (UTC)", rank=1),
    Column("TOOK", is_right=True),
    Column("STATUS"),
    Column("WHY"),
)
_COMMIT_COLUMNS = (
    Column("SEQ", is_right=True),
    Column("CKPT", is_right=True),
    Column("OPERATOR"),
    Column("EPOCH", is_right=True, rank=1),
    Column("INTENDED (UTC)", rank=2),
    Column("TOOK", is_right=True),
    Column("STATUS"),
    Column("BY EPOCH", is_right=True, rank=3),
    Column("TRIES FAILED", is_right=True, rank=4),
    Column("WHY"),
)
_FAILURE_COLUMNS = (
    Column("SEQ", is_right=True),
    Column("EPOCH", is_right=True, rank=2),
    Column("WHAT"),
    Column("ATTEMPT"),
    Column("FAILED (UTC)", rank=1),
    Column("BACK TO", is_right=True),
    Column("ON AFTER", is_right=True),
    Column("WHY"),
)
_EPOCH_COLUMNS = (
    Column("EPOCH", is_right=True),
    Column("DRIVER", rank=3),
    Column("WHERE", rank=2),
    Column("BEGAN (UTC)"),
    Column("LASTED", is_right=True),
    Column("BY", rank=1),
    Column("FROM", is_right=True, rank=1),
    Column("SUBTASKS", is_right=True, rank=4),
    Column("RECORDS", is_right=True, rank=5),
    Column("ATTEMPTS", is_right=True, rank=6),
    Column("CKPTS", is_right=True, rank=7),
    Column("FAILOVERS", is_right=True, rank=8),
    Column("END"),
)


@click.command()
@click.argument("job")
@json_option
@with_history
def events(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the operator events of JOB, in the order in which they were settled.

    TOOK is the time from an event's sending to its ack. An event up is handled at its place in the
    log; one that a restore hands over again is a line of its own.
    """
    rows = _events(logs, job)
    if as_json:
        print_rows("events", rows)
        return
    found = list(rows)
    print_table(new_console(), _EVENT_COLUMNS, [_event_cells(one) for one in found])
    _sum_up(f"{len(found):,} events", Counter(one.status.value for one in found))


def _events(logs: Logs, job: str) -> Iterator[EventRow]:
    fold = EventFold()
    with opened(logs, job) as log:
        for one in audit_records(whole(log)):
            if one.counts and one.record is not None:
                with Applying(one.offset, one.record):
                    settled = fold.apply(one.record)
                yield from settled
    yield from fold.rows()


def _event_cells(one: EventRow) -> tuple[str | Text, ...]:
    took = None if one.milliseconds is None else one.ended_us
    return (
        str(one.sequence),
        one.direction.value,
        one.operator_id,
        f"{one.subtask}/{one.attempt_number}",
        str(one.event_id),
        one.event_type or "",
        f"{one.payload_bytes:,}",
        time_of(one.sent_us),
        "" if one.sent_us is None else lasted(one.sent_us, took),
        Text(one.status.value, style=_EVENT_STYLES[one.status]),
        reason_text(one.reason),
    )


@click.command()
@click.argument("job")
@json_option
@with_history
def commits(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the commits of JOB: what was intended, and whether the outside has it.

    CKPT is the checkpoint that allows it, -1 the end of a batch job; BY EPOCH is the epoch that
    settled it.
    """
    found = audit_of(logs, job).commits
    if as_json:
        print_rows("commits", found)
        return
    print_table(new_console(), _COMMIT_COLUMNS, [_commit_cells(one) for one in found])
    _sum_up(f"{len(found):,} commits", Counter(one.status.value for one in found))


def _commit_cells(one: CommitRow) -> tuple[str | Text, ...]:
    return (
        str(one.sequence),
        str(one.checkpoint_id),
        one.operator_id,
        str(one.epoch),
        time_of(one.intended_us),
        lasted(one.intended_us, one.settled_us),
        Text(one.status.value, style=_COMMIT_STYLES[one.status]),
        number_text(one.settled_epoch),
        str(one.failed_tries),
        reason_text(one.reason),
    )


@click.command()
@click.argument("job")
@json_option
@with_history
def failures(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the failures of JOB: of attempts, of the whole job, and of the job for good.

    BACK TO is the checkpoint of the reset, -1 the start; ON AFTER the time until the next attempt.
    """
    found = audit_of(logs, job).failures
    if as_json:
        print_rows("failures", found)
        return
    print_table(new_console(), _FAILURE_COLUMNS, [_failure_cells(one) for one in found])
    _sum_up(f"{len(found):,} failures", Counter(one.scope.value for one in found))


def _failure_cells(one: FailureRow) -> tuple[str | Text, ...]:
    return (
        str(one.sequence),
        str(one.epoch),
        Text(one.scope.value, style=_SCOPE_STYLES[one.scope]),
        "" if one.attempt_number is None else f"{one.subtask}/{one.attempt_number}",
        time_of(one.failed_us),
        number_text(one.reset_to),
        lasted(one.failed_us, one.restarted_us),
        reason_text(one.reason),
    )


@click.command()
@click.argument("job")
@json_option
@with_history
def epochs(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the epochs of JOB: their drivers, what each began from, how it ended.

    FAILOVERS counts how often the whole job went back to a checkpoint while its driver lived.
    """
    found = audit_of(logs, job).epochs
    if as_json:
        print_rows("epochs", found)
        return
    print_table(new_console(), _EPOCH_COLUMNS, [_epoch_cells(one) for one in found])
    _sum_up(f"{len(found):,} epochs", Counter(one.end.value for one in found))


def _epoch_cells(one: EpochRow) -> tuple[str | Text, ...]:
    return (
        str(one.epoch),
        one.driver_id,
        f"{one.host or '?'}:{number_text(one.pid)}",
        time_of(one.started_us),
        lasted(one.started_us, one.last_us),
        one.restored_by or "",
        number_text(one.restored_from),
        number_text(one.parallelism),
        f"{one.record_count:,}",
        str(one.attempts_started),
        str(one.checkpoints_completed),
        str(one.failovers_global),
        Text(one.end.value, style=_END_STYLES[one.end]),
    )


def _sum_up(what: str, parts: Counter[str]) -> None:
    counted = ", ".join(f"{parts[name]:,} {name}" for name in sorted(parts))
    click.echo(f"\n{what}{': ' if counted else ''}{counted}.")
