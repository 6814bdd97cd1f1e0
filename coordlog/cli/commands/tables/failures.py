"""`coordlog failures`: the failures of a job, and their cost."""

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
from coordlog.projections.tables.failures import FailureRow, FailureScope

__all__ = ["failures"]


_SCOPE_STYLES = {
    FailureScope.ATTEMPT: "red",
    FailureScope.GLOBAL: "bold red",
    FailureScope.JOB: "bold red",
}


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


@click.command()
@click.argument("job", shell_complete=JOB)
@json_option
@with_history
@with_pager
def failures(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the failures of JOB: of attempts, of the whole job, and the final one.

    BACK TO is the checkpoint of the reset, -1 the start; ON AFTER is the time until the next attempt.
    """
    rows = audit_of(logs, job).failures
    if as_json:
        print_rows("failures", rows)
        return
    print_table(new_console(), _FAILURE_COLUMNS, [_failure_cells(row) for row in rows])
    sum_up(many(len(rows), "failure"), Counter(row.scope.value for row in rows))


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
