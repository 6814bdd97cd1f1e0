"""Values of the rows of a job's tables, by the column names of `columns`."""

from __future__ import annotations

import re
from typing import assert_never

from coordlog.projections.tables.attempts import AttemptRow
from coordlog.projections.tables.checkpoints import CheckpointRow
from coordlog.projections.tables.columns import TABLES
from coordlog.projections.tables.commits import CommitRow
from coordlog.projections.tables.epochs import EpochRow
from coordlog.projections.tables.events import EventRow
from coordlog.projections.tables.failures import FailureRow
from coordlog.projections.tables.splits import SplitRow, ThrownAway

__all__ = ["TableRow", "values_of"]

TableRow = (
    AttemptRow
    | SplitRow
    | ThrownAway
    | CheckpointRow
    | EventRow
    | CommitRow
    | FailureRow
    | EpochRow
)


def values_of(row: TableRow) -> dict[str, object]:
    """The values of a row, by its table's columns and in their order."""
    match row:
        case AttemptRow():
            return _values("attempts", row, status=row.end.value)
        case SplitRow():
            return _split(row)
        case ThrownAway():
            return {"operator_id": row.operator_id, "split_id": row.split_id, **_lost_work(row)}
        case CheckpointRow():
            return _checkpoint(row)
        case EventRow():
            return _values(
                "events",
                row,
                direction=row.direction.value,
                status=row.status.value,
                latency_ms=row.milliseconds,
            )
        case CommitRow():
            return _values("commits", row, status=row.status.value, duration_ms=row.milliseconds)
        case FailureRow():
            return _values("failures", row, scope=row.scope.value, restart_ms=row.milliseconds)
        case EpochRow():
            return _values("epochs", row, status=row.end.value)
        case _:
            assert_never(row)


def _values(table: str, row: TableRow, **overrides: object) -> dict[str, object]:
    """Values by column: `overrides`, else the row's field of that name; column `…_at` is field `…_us`."""
    return {
        column: overrides[column]
        if column in overrides
        else getattr(row, re.sub("_at$", "_us", column))
        for column in TABLES[table]
    }


def _split(split: SplitRow) -> dict[str, object]:
    by = split.finished_by
    return _values(
        "splits",
        split,
        place=split.place.value,
        assignment_count=len(split.assignments),
        assignments=[
            {
                "subtask": assignment.subtask,
                "attempt_number": assignment.attempt_number,
                "sequence": assignment.sequence,
                "assigned_at": assignment.timestamp_us,
            }
            for assignment in split.assignments
        ],
        finished_subtask=None if by is None else by[0],
        finished_attempt_number=None if by is None else by[1],
        thrown_away_count=len(split.thrown_away),
        thrown_away_whole_count=sum(lost.is_whole for lost in split.thrown_away),
        thrown_away=[_lost_work(lost) for lost in split.thrown_away],
    )


def _lost_work(lost: ThrownAway) -> dict[str, object]:
    by = lost.reread_by
    return {
        "subtask": lost.subtask,
        "attempt_number": lost.attempt_number,
        "checkpoint_id": lost.checkpoint_id,
        "sequence": lost.sequence,
        "is_whole": lost.is_whole,
        "was_finished": lost.was_finished,
        "reason": lost.reason,
        "reread_subtask": None if by is None else by[0],
        "reread_attempt_number": None if by is None else by[1],
    }


def _checkpoint(checkpoint: CheckpointRow) -> dict[str, object]:
    last = max((ack.acked_us for ack in checkpoint.acked), default=None)
    return _values(
        "checkpoints",
        checkpoint,
        status=checkpoint.status.value,
        duration_ms=checkpoint.milliseconds,
        cut_to_ack_ms=_between(checkpoint.cut_us, last),
        ack_count=checkpoint.acks,
        acks=[
            {
                "subtask": ack.subtask,
                "attempt_number": ack.attempt_number,
                "barrier_at": ack.barrier_us,
                "acked_at": ack.acked_us,
                "cut_to_ack_ms": _between(checkpoint.cut_us, ack.acked_us),
                "snapshot_bytes": ack.snapshot_bytes,
            }
            for ack in checkpoint.acked
        ],
    )


def _between(began_us: int | None, ended_us: int | None) -> float | None:
    return None if began_us is None or ended_us is None else (ended_us - began_us) / 1000
