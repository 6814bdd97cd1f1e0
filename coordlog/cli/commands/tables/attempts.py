"""`coordlog attempts`: the execution attempts of a job."""

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
from coordlog.cli.table_output import json_option, number_text, print_rows, sum_up
from coordlog.projections.tables.attempts import AttemptEnd, AttemptRow

__all__ = ["attempts"]


_END_STYLES = {
    AttemptEnd.RUNNING: "cyan",
    AttemptEnd.COMPLETED: "green",
    AttemptEnd.FAILED: "red",
    AttemptEnd.FENCED: "magenta",
    AttemptEnd.STOPPED: "",
}


_ATTEMPT_COLUMNS = (
    Column("ATTEMPT"),
    Column("EPOCH", is_right=True, rank=2),
    Column("RUN", is_right=True, rank=7),
    Column("TASK", is_right=True, rank=6),
    Column("WHERE", rank=3),
    Column("BEGAN (UTC)", rank=1),
    Column("LASTED", is_right=True),
    Column("FROM", is_right=True),
    Column("END"),
    Column("SPLITS", is_right=True),
    Column("ROWS", is_right=True),
    Column("EVENTS", is_right=True, rank=5),
    Column("CKPTS", is_right=True, rank=4),
    Column("RESETS"),
    Column("WHY"),
)


@click.command()
@click.argument("job", shell_complete=JOB)
@json_option
@with_history
@with_pager
def attempts(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the execution attempts of JOB, with host, duration, work and end of each.

    SPLITS are finished of assigned, EVENTS up, down, failed. FROM is the checkpoint that the
    attempt began from, and RESETS those that its subtask went back to after it; -1 is the start.
    """
    audit = audit_of(logs, job)
    if as_json:
        print_rows("attempts", audit.attempts)
        return
    print_table(new_console(), _ATTEMPT_COLUMNS, [_attempt_cells(row) for row in audit.attempts])
    ends = Counter(row.end.value for row in audit.attempts)
    subtasks = len({row.subtask for row in audit.attempts})
    sum_up(f"{many(len(audit.attempts), 'attempt')} of {many(subtasks, 'subtask')}", ends, audit)


def _attempt_cells(row: AttemptRow) -> tuple[str | Text, ...]:
    return (
        f"{row.subtask}/{row.attempt_number}",
        str(row.epoch),
        number_text(row.stage_run),
        number_text(row.spark_task_attempt_id),
        f"{row.host or '?'}:{number_text(row.pid)}",
        time_of(row.started_us),
        lasted(row.started_us, row.ended_us),
        str(row.restored_from),
        Text(row.end.value, style=_END_STYLES[row.end]),
        f"{row.splits_finished}/{row.splits_assigned}",
        f"{row.rows:,}",
        f"{row.events_up}/{row.events_down}/{row.events_failed}",
        str(row.checkpoints_acked),
        " ".join(map(str, row.resets)),
        reason_text(row.reason),
    )
