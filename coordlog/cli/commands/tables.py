"""`coordlog attempts`, `splits` and `checkpoints`: tables of a job's history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import click
from rich.text import Text

from coordlog.amounts import many
from coordlog.cli.console import (
    Column,
    json_of,
    lasted,
    new_console,
    print_json,
    print_table,
    reason_text,
    table_json,
    time_of,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.reading import audit_of
from coordlog.projections.tables.attempts import AttemptEnd, AttemptRow
from coordlog.projections.tables.audit import Audit
from coordlog.projections.tables.checkpoints import CheckpointRow, CheckpointStatus
from coordlog.projections.tables.columns import TABLES
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.projections.tables.splits import SplitPlace, SplitRow
from coordlog.projections.tables.values import TableRow, values_of

__all__ = [
    "attempts",
    "checkpoints",
    "json_option",
    "number_text",
    "print_all",
    "print_rows",
    "splits",
]

_REASON_CHARS = 120

_END_STYLES = {
    AttemptEnd.RUNNING: "cyan",
    AttemptEnd.COMPLETED: "green",
    AttemptEnd.FAILED: "red",
    AttemptEnd.FENCED: "magenta",
    AttemptEnd.STOPPED: "",
}
_STATUS_STYLES = {
    CheckpointStatus.PENDING: "cyan",
    CheckpointStatus.COMPLETED: "green",
    CheckpointStatus.ABORTED: "red",
    CheckpointStatus.ABANDONED: "magenta",
}
_PLACE_STYLES = {
    SplitPlace.WAITING: "yellow",
    SplitPlace.ASSIGNED: "cyan",
    SplitPlace.FINISHED: "",
    SplitPlace.IN_CHECKPOINT: "green",
    SplitPlace.COMMITTED: "bold green",
    SplitPlace.SKIPPED: "bold yellow",
    SplitPlace.WITHDRAWN: "yellow",
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
_SPLIT_COLUMNS = (
    Column("SPLIT"),
    Column("PLACE"),
    Column("CKPT", is_right=True, rank=3),
    Column("READ BY"),
    Column("ROWS", is_right=True, rank=2),
    Column("ASSIGNED TO", rank=1),
    Column("WHY SKIPPED, OR THROWN AWAY"),
)
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

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line, with all fields."
)


@click.command()
@click.argument("job")
@json_option
@with_history
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
    _sum_up(audit, f"{many(len(audit.attempts), 'attempt')} of {many(subtasks, 'subtask')}", ends)


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


@click.command()
@click.argument("job")
@click.option("--thrown-away", is_flag=True, help="Only splits with work that was thrown away.")
@click.option("--skipped", is_flag=True, help="Only skipped splits.")
@json_option
@with_history
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
    print_table(new_console(), _SPLIT_COLUMNS, [_split_cells(row) for row in rows])
    losses = [loss for row in audit.splits for loss in row.thrown_away]
    whole = sum(loss.is_whole for loss in losses)
    total = (
        f"{many(len(audit.splits), 'split')}, thrown away {many(len(losses), 'time')} "
        f"({whole} in whole, {len(losses) - whole} in part)"
    )
    _sum_up(audit, total, Counter(row.place.value for row in audit.splits))


def _split_cells(row: SplitRow) -> tuple[str | Text, ...]:
    attempts = [
        f"{assignment.subtask}/{assignment.attempt_number}" for assignment in row.assignments
    ]
    return (
        on_one_line(row.split_id, _REASON_CHARS),
        Text(row.place.value, style=_PLACE_STYLES[row.place]),
        number_text(row.checkpoint_id),
        "" if row.finished_by is None else f"{row.finished_by[0]}/{row.finished_by[1]}",
        "" if row.rows is None else f"{row.rows:,}",
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


@click.command()
@click.argument("job")
@json_option
@with_history
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
    _sum_up(audit, many(len(audit.checkpoints), "checkpoint"), statuses)


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


def print_all(rows: Iterable[object]) -> None:
    """Print each row as a line of JSON."""
    for row in rows:
        print_json(json_of(row))


def print_rows(table: str, rows: Iterable[TableRow]) -> None:
    """Print each row as a line of JSON, with the columns of `TABLES`."""
    for row in rows:
        print_json(table_json(TABLES[table], values_of(row)))


def _sum_up(audit: Audit, total: str, parts: Counter[str]) -> None:
    counts = ", ".join(f"{parts[name]} {name}" for name in sorted(parts))
    void = f", {audit.void_count:,} do not count" if audit.void_count else ""
    colon = ": " if counts else ""
    click.echo(f"\n{total}{colon}{counts}. {many(audit.record_count, 'record')}{void}.")


def number_text(value: int | None) -> str:
    """The number as text; empty for None."""
    return "" if value is None else str(value)
