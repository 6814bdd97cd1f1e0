"""`coordlog commits`: the commits of a job, and the open ones."""

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
from coordlog.projections.tables.commits import CommitRow, CommitStatus

__all__ = ["commits"]


_COMMIT_STYLES = {CommitStatus.OPEN: "cyan", CommitStatus.SETTLED: "green"}


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


@click.command()
@click.argument("job", shell_complete=JOB)
@json_option
@with_history
@with_pager
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
    sum_up(many(len(rows), "commit"), Counter(row.status.value for row in rows))


def _commit_cells(row: CommitRow) -> tuple[str | Text, ...]:
    return (
        str(row.sequence),
        str(row.checkpoint_id),
        row.operator_id,
        number_text(row.epoch),
        time_of(row.intended_us),
        lasted(row.intended_us, row.settled_us),
        Text(row.status.value, style=_COMMIT_STYLES[row.status]),
        number_text(row.settled_epoch),
        str(row.failed_tries),
        reason_text(row.reason),
    )
