"""The columns of the tables that a job's history adds up to.

One declaration for Spark's views of these names and for `--json` of the commands, so that a column
has one name, one type and one meaning in both. Rules of the names: a time ends in `_at`, a duration
in `_ms`, a size in `_bytes`; the state of a row is its `status`, that of a split its `place`; a list
has the plain name, its length that name with `_count`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["TABLES", "ColumnType", "Columns", "ListOf"]


class ColumnType(enum.Enum):
    """Types of single values, by their names in Spark's SQL."""

    INT = "INT"
    LONG = "BIGINT"
    TEXT = "STRING"
    FLAG = "BOOLEAN"
    TIME = "TIMESTAMP"
    """Microseconds since 1970, UTC; in JSON a text in ISO 8601."""
    MILLISECONDS = "DOUBLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """The type of lists.

    Args:
        item: Type of each item: a single value, or the columns of a structure.
    """

    item: ColumnType | Columns


Columns = Mapping[str, ColumnType | ListOf]
"""Types of a table's columns, or of a structure's fields, by their names and in their order."""

_INT, _LONG, _TEXT = ColumnType.INT, ColumnType.LONG, ColumnType.TEXT
_FLAG, _TIME, _MILLISECONDS = ColumnType.FLAG, ColumnType.TIME, ColumnType.MILLISECONDS

_ATTEMPTS: Final[Columns] = {
    "subtask": _INT,
    "attempt_number": _INT,
    "epoch": _INT,
    "driver_id": _TEXT,
    "stage_run": _INT,
    "spark_task_attempt_id": _LONG,
    "spark_attempt_number": _INT,
    "host": _TEXT,
    "pid": _INT,
    "restored_from": _LONG,
    "started_at": _TIME,
    "status": _TEXT,
    "ended_at": _TIME,
    "reason": _TEXT,
    "splits_assigned": _LONG,
    "splits_finished": _LONG,
    "rows": _LONG,
    "events_up": _LONG,
    "events_down": _LONG,
    "events_acked": _LONG,
    "events_failed": _LONG,
    "checkpoints_acked": _LONG,
    "resets": ListOf(item=_LONG),
}
_LOST_WORK: Final[Columns] = {
    "subtask": _INT,
    "attempt_number": _INT,
    "checkpoint_id": _LONG,
    "sequence": _LONG,
    "is_whole": _FLAG,
    "was_finished": _FLAG,
    "reason": _TEXT,
    "reread_subtask": _INT,
    "reread_attempt_number": _INT,
}
"""An attempt's work on a split that was lost."""
_SPLITS: Final[Columns] = {
    "operator_id": _TEXT,
    "split_id": _TEXT,
    "place": _TEXT,
    "discovered_at": _TIME,
    "assignment_count": _INT,
    "assignments": ListOf(
        item={
            "subtask": _INT,
            "attempt_number": _INT,
            "sequence": _LONG,
            "assigned_at": _TIME,
        }
    ),
    "finished_subtask": _INT,
    "finished_attempt_number": _INT,
    "rows": _LONG,
    "checkpoint_id": _LONG,
    "committed_at": _TIME,
    "skipped_because": _TEXT,
    "rejected": _LONG,
    "thrown_away_count": _INT,
    "thrown_away_whole_count": _INT,
    "thrown_away": ListOf(item=_LOST_WORK),
}
_THROWN_AWAY: Final[Columns] = {"operator_id": _TEXT, "split_id": _TEXT, **_LOST_WORK}
_CHECKPOINTS: Final[Columns] = {
    "checkpoint_id": _LONG,
    "epoch": _INT,
    "status": _TEXT,
    "triggered_at": _TIME,
    "cut_at": _TIME,
    "ended_at": _TIME,
    "duration_ms": _MILLISECONDS,
    "cut_to_ack_ms": _MILLISECONDS,
    "ack_count": _INT,
    "coordinator_bytes": _LONG,
    "state_bytes": _LONG,
    "reason": _TEXT,
    "missing_coordinators": ListOf(item=_TEXT),
    "missing_subtasks": ListOf(item=_INT),
    "acks": ListOf(
        item={
            "subtask": _INT,
            "attempt_number": _INT,
            "barrier_at": _TIME,
            "acked_at": _TIME,
            "cut_to_ack_ms": _MILLISECONDS,
            "snapshot_bytes": _LONG,
        }
    ),
}
_EVENTS: Final[Columns] = {
    "sequence": _LONG,
    "direction": _TEXT,
    "operator_id": _TEXT,
    "subtask": _INT,
    "attempt_number": _INT,
    "event_id": _LONG,
    "event_type": _TEXT,
    "payload_bytes": _LONG,
    "sent_at": _TIME,
    "status": _TEXT,
    "ended_at": _TIME,
    "latency_ms": _MILLISECONDS,
    "held_by": _TEXT,
    "reason": _TEXT,
}
_COMMITS: Final[Columns] = {
    "sequence": _LONG,
    "operator_id": _TEXT,
    "checkpoint_id": _LONG,
    "epoch": _INT,
    "intent_type": _TEXT,
    "intent_bytes": _LONG,
    "intended_at": _TIME,
    "status": _TEXT,
    "settled_at": _TIME,
    "settled_epoch": _INT,
    "duration_ms": _MILLISECONDS,
    "failed_tries": _INT,
    "reason": _TEXT,
}
_FAILURES: Final[Columns] = {
    "sequence": _LONG,
    "epoch": _INT,
    "scope": _TEXT,
    "operator_id": _TEXT,
    "subtask": _INT,
    "attempt_number": _INT,
    "failed_at": _TIME,
    "reason": _TEXT,
    "reset_at": _TIME,
    "reset_to": _LONG,
    "is_with_job": _FLAG,
    "restarted_at": _TIME,
    "restart_ms": _MILLISECONDS,
}
_EPOCHS: Final[Columns] = {
    "epoch": _INT,
    "job_id": _TEXT,
    "driver_id": _TEXT,
    "host": _TEXT,
    "pid": _INT,
    "mode": _TEXT,
    "parallelism": _INT,
    "coordlog_version": _TEXT,
    "started_at": _TIME,
    "last_at": _TIME,
    "status": _TEXT,
    "restored_by": _TEXT,
    "restored_from": _LONG,
    "record_count": _LONG,
    "attempts_started": _LONG,
    "checkpoints_completed": _LONG,
    "failovers_global": _LONG,
}
TABLES: Final[Mapping[str, Columns]] = {
    "attempts": _ATTEMPTS,
    "splits": _SPLITS,
    "thrown_away": _THROWN_AWAY,
    "checkpoints": _CHECKPOINTS,
    "events": _EVENTS,
    "commits": _COMMITS,
    "failures": _FAILURES,
    "epochs": _EPOCHS,
}
"""Columns of each table, by its name."""
