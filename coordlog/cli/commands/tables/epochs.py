"""`coordlog epochs`: the epochs of a job's log, with their ends."""

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
    time_of,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.paging import with_pager
from coordlog.cli.reading import audit_of
from coordlog.cli.table_output import json_option, number_text, print_rows, sum_up
from coordlog.projections.tables.epochs import EpochEnd, EpochRow

__all__ = ["epochs"]


_END_STYLES = {
    EpochEnd.OPEN: "cyan",
    EpochEnd.REPLACED: "magenta",
    EpochEnd.FINISHED: "green",
    EpochEnd.FAILED: "red",
    EpochEnd.STOPPED: "",
}


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
@click.argument("job", shell_complete=JOB)
@json_option
@with_history
@with_pager
def epochs(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the epochs of JOB, with driver, first checkpoint and end of each.

    FAILOVERS counts how often the whole job went back to a checkpoint under the same driver.
    """
    rows = audit_of(logs, job).epochs
    if as_json:
        print_rows("epochs", rows)
        return
    print_table(new_console(), _EPOCH_COLUMNS, [_epoch_cells(row) for row in rows])
    sum_up(many(len(rows), "epoch"), Counter(row.end.value for row in rows))


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
