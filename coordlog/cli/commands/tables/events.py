"""`coordlog events`: the operator events of a job, and their acks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click
from rich.text import Text

from coordlog.amounts import many
from coordlog.cli.completing import JOB
from coordlog.cli.console import (
    Column,
    lasted,
    new_console,
    print_table,
    reason_text,
    time_of,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.paging import with_pager
from coordlog.cli.reading import note_beginning, opened, whole
from coordlog.cli.table_output import json_option, print_rows, sum_up
from coordlog.projections.tables.audit import Applying, state_at_beginning
from coordlog.projections.tables.events import EventFold, EventRow, EventStatus

__all__ = ["events"]


_EVENT_STYLES = {
    EventStatus.SENT: "cyan",
    EventStatus.ACKED: "green",
    EventStatus.FAILED: "red",
    EventStatus.HANDLED: "",
    EventStatus.REDELIVERED: "yellow",
    EventStatus.SKIPPED: "bold yellow",
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


@click.command()
@click.argument("job", shell_complete=JOB)
@json_option
@with_history
@with_pager
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
    sum_up(many(len(rows), "event"), Counter(row.status.value for row in rows))


def _events(logs: Logs, job: str) -> Iterator[EventRow]:
    fold = EventFold()
    with opened(logs, job) as log:
        note_beginning(log)
        for entry in whole(log).records():
            state = state_at_beginning(entry)
            if state is not None:
                fold.begin(state)
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
