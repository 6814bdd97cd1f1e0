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
       array_join(transform(resets, one -> cast(one AS STRING)), ' '),
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
    """The attempts, by subtask and number, as `ATTEMPTS_SQL` gives them."""
    return [
        (
            one.subtask,
            one.attempt_number,
            one.epoch,
            one.restored_from,
            " ".join(str(number) for number in one.resets),
            one.end.value,
            one.splits_assigned,
            one.splits_finished,
            one.rows,
            one.checkpoints_acked,
            one.reason,
        )
        for one in sorted(attempts, key=lambda one: (one.subtask, one.attempt_number))
    ]


def thrown_rows(splits: Iterable[SplitRow]) -> list[Row]:
    """What was thrown away, in the order of the resets, as `THROWN_SQL` gives it."""
    thrown = [one for split in splits for one in split.thrown_away]
    thrown.sort(key=lambda one: (one.sequence, one.split_id, one.subtask, one.attempt_number))
    return [
        (
            one.split_id.rsplit("/", 1)[-1],
            one.subtask,
            one.attempt_number,
            one.checkpoint_id,
            one.was_finished,
            "its beginning" if one.is_whole else "the checkpoint",
            None if one.reread_by is None else one.reread_by[0],
            None if one.reread_by is None else one.reread_by[1],
        )
        for one in thrown
    ]


def unequal(what: str, folded: Sequence[Row], in_sql: Sequence[Row]) -> list[str]:
    """What is not the same in two tables, a line each; nothing where all is."""
    lines = []
    if len(folded) != len(in_sql):
        lines.append(f"{what}: {len(folded)} rows by the fold, {len(in_sql)} in Spark SQL")
    for one, other in zip(folded, in_sql, strict=False):
        if one != other:
            lines.append(f"{what}: {one} by the fold, {other} in Spark SQL")
    return lines


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """The rows, with long text cut."""
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
