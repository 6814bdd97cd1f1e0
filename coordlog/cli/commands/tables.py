"""`coordlog attempts`, `splits` and `checkpoints`: the tables that a job's history adds up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import click
from rich.text import Text

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
    "--json", "as_json", is_flag=True, help="One JSON object a line, with everything."
)


@click.command()
@click.argument("job")
@json_option
@with_history
def attempts(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the execution attempts of JOB: where each ran, what it did, how it ended.

    SPLITS are finished of assigned, EVENTS up, down, failed; FROM is the checkpoint that the
    attempt began from and RESETS those that its subtask went back to after it, -1 for the start.
    """
    found = audit_of(logs, job)
    if as_json:
        print_rows("attempts", found.attempts)
        return
    print_table(new_console(), _ATTEMPT_COLUMNS, [_attempt_cells(one) for one in found.attempts])
    ends = Counter(one.end.value for one in found.attempts)
    subtasks = len({one.subtask for one in found.attempts})
    _sum_up(found, f"{_many(len(found.attempts), 'attempt')} of {_many(subtasks, 'subtask')}", ends)


def _attempt_cells(one: AttemptRow) -> tuple[str | Text, ...]:
    return (
        f"{one.subtask}/{one.attempt_number}",
        str(one.epoch),
        number_text(one.stage_run),
        number_text(one.spark_task_attempt_id),
        f"{one.host or '?'}:{number_text(one.pid)}",
        time_of(one.started_us),
        lasted(one.started_us, one.ended_us),
        str(one.restored_from),
        Text(one.end.value, style=_END_STYLES[one.end]),
        f"{one.splits_finished}/{one.splits_assigned}",
        f"{one.rows:,}",
        f"{one.events_up}/{one.events_down}/{one.events_failed}",
        str(one.checkpoints_acked),
        " ".join(map(str, one.resets)),
        reason_text(one.reason),
    )


@click.command()
@click.argument("job")
@click.option("--thrown-away", is_flag=True, help="Only splits of which work was thrown away.")
@click.option("--skipped", is_flag=True, help="Only splits that are skipped.")
@json_option
@with_history
def splits(logs: Logs, *, job: str, thrown_away: bool, skipped: bool, as_json: bool) -> None:
    """List the splits of JOB: where each is, who had it, whose work on it was thrown away and why.

    Work is thrown away where an attempt's subtask went back to a checkpoint that does not hold it:
    in whole where the split was assigned after that checkpoint, else in part.
    """
    found = audit_of(logs, job)
    rows = tuple(
        one
        for one in found.splits
        if (one.thrown_away or not thrown_away) and (one.skipped_because is not None or not skipped)
    )
    if as_json:
        print_rows("splits", rows)
        return
    print_table(new_console(), _SPLIT_COLUMNS, [_split_cells(one) for one in rows])
    lost = [thrown for one in found.splits for thrown in one.thrown_away]
    whole = sum(one.is_whole for one in lost)
    what = (
        f"{_many(len(found.splits), 'split')}, thrown away {_many(len(lost), 'time')} "
        f"({whole} in whole, {len(lost) - whole} in part)"
    )
    _sum_up(found, what, Counter(one.place.value for one in found.splits))


def _split_cells(one: SplitRow) -> tuple[str | Text, ...]:
    given = [f"{each.subtask}/{each.attempt_number}" for each in one.assignments]
    return (
        on_one_line(one.split_id, _REASON_CHARS),
        Text(one.place.value, style=_PLACE_STYLES[one.place]),
        number_text(one.checkpoint_id),
        "" if one.finished_by is None else f"{one.finished_by[0]}/{one.finished_by[1]}",
        "" if one.rows is None else f"{one.rows:,}",
        " ".join(given),
        "\n".join(
            [
                *_skipped(one),
                *(
                    f"{each.subtask}/{each.attempt_number} back to {each.checkpoint_id}, "
                    f"{'whole' if each.is_whole else 'part'}: "
                    f"{reason_text(each.reason)}"
                    for each in one.thrown_away
                ),
            ]
        ),
    )


def _skipped(one: SplitRow) -> tuple[str, ...]:
    why = one.skipped_because
    return () if why is None else (f"skipped: {reason_text(why)}",)


@click.command()
@click.argument("job")
@json_option
@with_history
def checkpoints(logs: Logs, *, job: str, as_json: bool) -> None:
    """List the checkpoints of JOB: when each was triggered and cut, and what became of it.

    MISSING names the coordinators without a cut and the subtasks without an ack: of a pending
    checkpoint those that it waits for, of an aborted one those that it waited for.
    """
    found = audit_of(logs, job)
    if as_json:
        print_rows("checkpoints", found.checkpoints)
        return
    cells = [_checkpoint_cells(one) for one in found.checkpoints]
    print_table(new_console(), _CHECKPOINT_COLUMNS, cells)
    statuses = Counter(one.status.value for one in found.checkpoints)
    _sum_up(found, _many(len(found.checkpoints), "checkpoint"), statuses)


def _checkpoint_cells(one: CheckpointRow) -> tuple[str | Text, ...]:
    return (
        str(one.checkpoint_id),
        str(one.epoch),
        Text(one.status.value, style=_STATUS_STYLES[one.status]),
        time_of(one.triggered_us),
        lasted(one.triggered_us, one.cut_us),
        lasted(one.triggered_us, one.ended_us),
        str(one.acks),
        f"{one.state_bytes:,}",
        on_one_line(one.missing, _REASON_CHARS),
        reason_text(one.reason),
    )


def print_all(rows: Iterable[object]) -> None:
    """Each row as a line of JSON."""
    for one in rows:
        print_json(json_of(one))


def print_rows(table: str, rows: Iterable[TableRow]) -> None:
    """Each row as a line of JSON, with the columns of `TABLES`."""
    for row in rows:
        print_json(table_json(TABLES[table], values_of(row)))


def _sum_up(found: Audit, what: str, parts: Counter[str]) -> None:
    counted = ", ".join(f"{parts[name]} {name}" for name in sorted(parts))
    void = f", {found.void_count:,} do not count" if found.void_count else ""
    colon = ": " if counted else ""
    click.echo(f"\n{what}{colon}{counted}. {_many(found.record_count, 'record')}{void}.")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def number_text(value: int | None) -> str:
    """The number; nothing where there is none."""
    return "" if value is None else str(value)
