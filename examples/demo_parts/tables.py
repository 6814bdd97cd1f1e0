"""The two tables of the demo, attempts and thrown-away splits: by the fold, and in Spark SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coordlog.projections.tables.attempts import AttemptRow
from coordlog.projections.tables.splits import SplitRow

__all__ = [
    "ATTEMPTS_SQL",
    "ATTEMPT_COLUMNS",
    "THROWN_COLUMNS",
    "THROWN_SQL",
    "Row",
    "attempt_rows",
    "print_table",
    "thrown_rows",
    "unequal",
]

Row = tuple[object, ...]

# "from" and "resets" are checkpoints, -1 the start; "acked" counts checkpoints.
ATTEMPT_COLUMNS: Final = (
    "subtask",
    "attempt",
    "epoch",
    "from",
    "resets",
    "end",
    "splits",
    "done",
    "rows",
    "acked",
    "why it ended",
)

ATTEMPTS_SQL: Final = """
SELECT subtask, attempt_number, epoch, restored_from,
       array_join(transform(resets, reset -> cast(reset AS STRING)), ' '),
       status, splits_assigned, splits_finished, rows, checkpoints_acked, reason
FROM {prefix}attempts ORDER BY subtask, attempt_number
"""

THROWN_COLUMNS: Final = (
    "split",
    "subtask",
    "attempt",
    "reset to",
    "finished",
    "read again from",
    "by",
    "attempt",
)

THROWN_SQL: Final = """
SELECT element_at(split(split_id, '/'), -1), subtask, attempt_number, checkpoint_id, was_finished,
       if(is_whole, 'its beginning', 'the checkpoint'), reread_subtask, reread_attempt_number
FROM {prefix}thrown_away ORDER BY sequence, split_id, subtask, attempt_number
"""

_REASON_CHARS: Final = 40


def attempt_rows(attempts: Iterable[AttemptRow]) -> list[Row]:
    """The attempts, by subtask and number, in the form of `ATTEMPTS_SQL`."""
    return [
        (
            attempt.subtask,
            attempt.attempt_number,
            attempt.epoch,
            attempt.restored_from,
            " ".join(str(number) for number in attempt.resets),
            attempt.end.value,
            attempt.splits_assigned,
            attempt.splits_finished,
            attempt.rows,
            attempt.checkpoints_acked,
            attempt.reason,
        )
        for attempt in sorted(attempts, key=lambda row: (row.subtask, row.attempt_number))
    ]


def thrown_rows(splits: Iterable[SplitRow]) -> list[Row]:
    """The thrown-away splits, in the order of the resets, in the form of `THROWN_SQL`."""
    thrown_away = [row for split in splits for row in split.thrown_away]
    thrown_away.sort(key=lambda row: (row.sequence, row.split_id, row.subtask, row.attempt_number))
    return [
        (
            row.split_id.rsplit("/", 1)[-1],
            row.subtask,
            row.attempt_number,
            row.checkpoint_id,
            row.was_finished,
            "its beginning" if row.is_whole else "the checkpoint",
            None if row.reread_by is None else row.reread_by[0],
            None if row.reread_by is None else row.reread_by[1],
        )
        for row in thrown_away
    ]


def unequal(table: str, folded: Sequence[Row], in_sql: Sequence[Row]) -> list[str]:
    """Differences of two tables, a line each; empty if there are none."""
    lines = []
    if len(folded) != len(in_sql):
        lines.append(f"{table}: {len(folded)} rows by the fold, {len(in_sql)} in Spark SQL")
    for folded_row, sql_row in zip(folded, in_sql, strict=False):
        if folded_row != sql_row:
            lines.append(f"{table}: {folded_row} by the fold, {sql_row} in Spark SQL")
    return lines


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print the rows, with long text cut."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(columns):
        is_number = any(type(row[index]) is int for row in rows)
        width = max([len(name), *(len(_shown(row[index])) for row in rows)])
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(name, justify=justify, no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*(_shown(value) for value in row))
    console.print(table)


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value).replace("\n", " ")
    return text if len(text) <= _REASON_CHARS else f"{text[: _REASON_CHARS - 1]}…"
