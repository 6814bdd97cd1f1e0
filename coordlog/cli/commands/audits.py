"""`coordlog events`, `commits`, `failures` and `epochs`: further tables of a job's history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click
from rich.text import Text

from coordlog.amounts import many
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
from coordlog.projections.tables.audit import Applying
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

    TOOK is the time from an event's sending to its ack. An event to a coordinator is handled at
    its place in the log; each delivery after a restore has a line of its own.
    """
    settled = _events(logs, job)
    if as_json:
        print_rows("events", settled)
        return
    rows = list(settled)
    print_table(new_console(), _EVENT_COLUMNS, [_event_cells(row) for row in rows])
    _sum_up(many(len(rows), "event"), Counter(row.status.value for row in rows))


def _events(logs: Logs, job: str) -> Iterator[EventRow]:
    fold = EventFold()
    with opened(logs, job) as log:
        for entry in whole(log).records():
            if entry.counts and entry.record is not None:
                with Applying(entry.offset, entry.record):
                    settled = fold.apply(entry.record)
                yield from settled
    yield from fold.rows()


def _event_cells(row: EventRow) -> tuple[str | Text, ...]:
    acked_us = None if row.milliseconds is None else row.ended_us
    return (
        str(row.sequence),
        row.direction.value,
        row.operator_id,
        f"{row.subtask}/{row.attempt_number}",
        str(row.event_id),
        row.event_type or "",
        f"{row.payload_bytes:,}",
        time_of(row.sent_us),
        "" if row.sent_us is None else lasted(row.sent_us, acked_us),
        Text(row.status.value, style=_EVENT_STYLES[row.status]),
        reason_text(row.reason),
    )


@click.command()
@click.argument("job")
@json_option
@with_history
def commits(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the commits of JOB: the intents, and whether each is settled.

    CKPT is the checkpoint that allows the commit, -1 the end of a batch job; BY EPOCH is the epoch
    that settled it.
    """
    rows = audit_of(logs, job).commits
    if as_json:
        print_rows("commits", rows)
        return
    print_table(new_console(), _COMMIT_COLUMNS, [_commit_cells(row) for row in rows])
    _sum_up(many(len(rows), "commit"), Counter(row.status.value for row in rows))


def _commit_cells(row: CommitRow) -> tuple[str | Text, ...]:
    return (
        str(row.sequence),
        str(row.checkpoint_id),
        row.operator_id,
        str(row.epoch),
        time_of(row.intended_us),
        lasted(row.intended_us, row.settled_us),
        Text(row.status.value, style=_COMMIT_STYLES[row.status]),
        number_text(row.settled_epoch),
        str(row.failed_tries),
        reason_text(row.reason),
    )


@click.command()
@click.argument("job")
@json_option
@with_history
def failures(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the failures of JOB: of attempts, of the whole job, and the final one.

    BACK TO is the checkpoint of the reset, -1 the start; ON AFTER is the time until the next attempt.
    """
    rows = audit_of(logs, job).failures
    if as_json:
        print_rows("failures", rows)
        return
    print_table(new_console(), _FAILURE_COLUMNS, [_failure_cells(row) for row in rows])
    _sum_up(many(len(rows), "failure"), Counter(row.scope.value for row in rows))


def _failure_cells(row: FailureRow) -> tuple[str | Text, ...]:
    return (
        str(row.sequence),
        str(row.epoch),
        Text(row.scope.value, style=_SCOPE_STYLES[row.scope]),
        "" if row.attempt_number is None else f"{row.subtask}/{row.attempt_number}",
        time_of(row.failed_us),
        number_text(row.reset_to),
        lasted(row.failed_us, row.restarted_us),
        reason_text(row.reason),
    )


@click.command()
@click.argument("job")
@json_option
@with_history
def epochs(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the epochs of JOB, with driver, first checkpoint and end of each.

    FAILOVERS counts how often the whole job went back to a checkpoint under the same driver.
    """
    rows = audit_of(logs, job).epochs
    if as_json:
        print_rows("epochs", rows)
        return
    print_table(new_console(), _EPOCH_COLUMNS, [_epoch_cells(row) for row in rows])
    _sum_up(many(len(rows), "epoch"), Counter(row.end.value for row in rows))


def _epoch_cells(row: EpochRow) -> tuple[str | Text, ...]:
    return (
        str(row.epoch),
        row.driver_id,
        f"{row.host or '?'}:{number_text(row.pid)}",
        time_of(row.started_us),
        lasted(row.started_us, row.last_us),
        row.restored_by or "",
        number_text(row.restored_from),
        number_text(row.parallelism),
        f"{row.record_count:,}",
        str(row.attempts_started),
        str(row.checkpoints_completed),
        str(row.failovers_global),
        Text(row.end.value, style=_END_STYLES[row.end]),
    )


def _sum_up(total: str, parts: Counter[str]) -> None:
    counts = ", ".join(f"{parts[name]:,} {name}" for name in sorted(parts))
    click.echo(f"\n{total}{': ' if counts else ''}{counts}.")
