"""`coordlog splits`: the splits of a job, and work on them that was thrown away."""

from __future__ import annotations

from collections import Counter

import click
from rich.text import Text

from coordlog.amounts import many
from coordlog.cli.completing import JOB
from coordlog.cli.console import (
    Column,
    new_console,
    print_table,
    reason_text,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.paging import with_pager
from coordlog.cli.reading import audit_of
from coordlog.cli.table_output import json_option, number_text, print_rows, sum_up
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.projections.tables.splits import SplitPlace, SplitRow

__all__ = ["splits"]


_REASON_CHARS = 120


_PLACE_STYLES = {
    SplitPlace.WAITING: "yellow",
    SplitPlace.ASSIGNED: "cyan",
    SplitPlace.FINISHED: "",
    SplitPlace.IN_CHECKPOINT: "green",
    SplitPlace.COMMITTED: "bold green",
    SplitPlace.SKIPPED: "bold yellow",
    SplitPlace.WITHDRAWN: "yellow",
}


_REJECTED = Column("BAD ROWS", is_right=True, rank=2)
"""Only shown if a split has some."""

_SPLIT_COLUMNS = (
    Column("SPLIT"),
    Column("PLACE"),
    Column("CKPT", is_right=True, rank=3),
    Column("READ BY"),
    Column("ROWS", is_right=True, rank=2),
    _REJECTED,
    Column("ASSIGNED TO", rank=1),
    Column("WHY SKIPPED, OR THROWN AWAY"),
)


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option("--thrown-away", is_flag=True, help="Only splits with work that was thrown away.")
@click.option("--skipped", is_flag=True, help="Only skipped splits.")
@json_option
@with_history
@with_pager
def splits(logs: Logs, *, job: str, thrown_away: bool, skipped: bool, as_json: bool) -> None:
    """List the splits of JOB, with place and attempts of each, and work on it that was thrown away.

    Work is thrown away if its subtask goes back to a checkpoint without it: all work on the split
    if it was assigned after that checkpoint, else a part.
    """
    audit = audit_of(logs, job)
    rows = tuple(
        row
        for row in audit.splits
        if (row.thrown_away or not thrown_away) and (row.skipped_because is not None or not skipped)
    )
    if as_json:
        print_rows("splits", rows)
        return
    has_rejects = any(row.rejected for row in audit.splits)
    columns = [column for column in _SPLIT_COLUMNS if has_rejects or column is not _REJECTED]
    cells = [_split_cells(row, has_rejects=has_rejects) for row in rows]
    print_table(new_console(), columns, cells)
    losses = [loss for row in audit.splits for loss in row.thrown_away]
    whole = sum(loss.is_whole for loss in losses)
    total = (
        f"{many(len(audit.splits), 'split')}, thrown away {many(len(losses), 'time')} "
        f"({whole} in whole, {len(losses) - whole} in part)"
    )
    sum_up(total, Counter(row.place.value for row in audit.splits), audit)


def _split_cells(row: SplitRow, *, has_rejects: bool) -> tuple[str | Text, ...]:
    attempts = [
        f"{assignment.subtask}/{assignment.attempt_number}" for assignment in row.assignments
    ]
    return (
        on_one_line(row.split_id, _REASON_CHARS),
        Text(row.place.value, style=_PLACE_STYLES[row.place]),
        number_text(row.checkpoint_id),
        "" if row.finished_by is None else f"{row.finished_by[0]}/{row.finished_by[1]}",
        "" if row.rows is None else f"{row.rows:,}",
        *([f"{row.rejected:,}" if row.rejected else ""] if has_rejects else []),
        " ".join(attempts),
        "\n".join(
            [
                *_skipped(row),
                *(
                    f"{loss.subtask}/{loss.attempt_number} back to {loss.checkpoint_id}, "
                    f"{'whole' if loss.is_whole else 'part'}: "
                    f"{reason_text(loss.reason)}"
                    for loss in row.thrown_away
                ),
            ]
        ),
    )


def _skipped(row: SplitRow) -> tuple[str, ...]:
    why = row.skipped_because
    return () if why is None else (f"skipped: {reason_text(why)}",)
