"""`coordlog checkpoints`: the checkpoints of a job."""

from __future__ import annotations

from collections import Counter

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
from coordlog.cli.reading import audit_of
from coordlog.cli.table_output import json_option, print_rows, sum_up
from coordlog.projections.tables.checkpoints import CheckpointRow, CheckpointStatus
from coordlog.projections.tables.payload_json import on_one_line

__all__ = ["checkpoints"]


_REASON_CHARS = 120


_STATUS_STYLES = {
    CheckpointStatus.PENDING: "cyan",
    CheckpointStatus.COMPLETED: "green",
    CheckpointStatus.ABORTED: "red",
    CheckpointStatus.ABANDONED: "magenta",
}


_CHECKPOINT_COLUMNS = (
    Column("CKPT", is_right=True),
    Column("EPOCH", is_right=True, rank=1),
    Column("STATUS"),
    Column("TRIGGERED (UTC)"),
    Column("CUT AFTER", is_right=True, rank=2),
    Column("ENDED AFTER", is_right=True),
    Column("ACKS", is_right=True, rank=3),
    Column("BYTES", is_right=True, rank=4),
    Column("MISSING"),
    Column("WHY"),
)


@click.command()
@click.argument("job", shell_complete=JOB)
@json_option
@with_history
@with_pager
def checkpoints(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the checkpoints of JOB, with their status and the times of trigger, cut and end.

    MISSING names the coordinators without a cut and the subtasks without an ack, for which a
    pending checkpoint waits, or an aborted one waited.
    """
    audit = audit_of(logs, job)
    if as_json:
        print_rows("checkpoints", audit.checkpoints)
        return
    cells = [_checkpoint_cells(row) for row in audit.checkpoints]
    print_table(new_console(), _CHECKPOINT_COLUMNS, cells)
    statuses = Counter(row.status.value for row in audit.checkpoints)
    sum_up(many(len(audit.checkpoints), "checkpoint"), statuses, audit)


def _checkpoint_cells(row: CheckpointRow) -> tuple[str | Text, ...]:
    return (
        str(row.checkpoint_id),
        str(row.epoch),
        Text(row.status.value, style=_STATUS_STYLES[row.status]),
        time_of(row.triggered_us),
        lasted(row.triggered_us, row.cut_us),
        lasted(row.triggered_us, row.ended_us),
        str(row.acks),
        f"{row.state_bytes:,}",
        on_one_line(row.missing, _REASON_CHARS),
        reason_text(row.reason),
    )
