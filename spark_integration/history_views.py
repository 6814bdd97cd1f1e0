"""The tables that a job's history adds up to, as Spark has them: by the same folds as everywhere.

One pass over the log, in its order, on one partition, gives the rows of all of them: each row of
`tables_of` has one column that is not NULL, a struct with the columns of the view of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from coordlog.errors import RecordError
from coordlog.projections.attempts import AttemptRow
from coordlog.projections.audit import Audit, AuditFold, audit_records
from coordlog.projections.checkpoint_audit import CheckpointRow
from coordlog.projections.commit_audit import CommitRow
from coordlog.projections.epoch_audit import EpochRow
from coordlog.projections.event_audit import EventFold, EventRow
from coordlog.projections.failure_audit import FailureRow
from coordlog.projections.split_audit import SplitRow, ThrownAway
from coordlog.schemas.header import Header, decode_header

from .history_folds import LogOrder

__all__ = ["UNREADABLE", "VIEWS", "tables_of", "tables_schema"]

_BATCH_ROWS: Final = 4_096

_Columns = Mapping[str, pa.DataType]

_INT, _LONG, _TEXT, _FLAG = pa.int32(), pa.int64(), pa.string(), pa.bool_()
_TIME: Final = pa.timestamp("us", tz="UTC")
_MILLISECONDS: Final = pa.float64()

_ATTEMPTS: Final[_Columns] = {
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
    "ended": _TEXT,
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
    "resets": pa.list_(_LONG),
}
_SPLITS: Final[_Columns] = {
    "operator_id": _TEXT,
    "split_id": _TEXT,
    "place": _TEXT,
    "discovered_at": _TIME,
    "assigned": _INT,
    "assignments": pa.list_(
        pa.struct(
            [
                ("subtask", _INT),
                ("attempt_number", _INT),
                ("sequence", _LONG),
                ("assigned_at", _TIME),
            ]
        )
    ),
    "finished_subtask": _INT,
    "finished_attempt": _INT,
    "rows": _LONG,
    "checkpoint_id": _LONG,
    "committed_at": _TIME,
    "skipped_because": _TEXT,
    "thrown_away": _INT,
    "thrown_away_whole": _INT,
    "thrown_away_because": pa.list_(_TEXT),
}
_THROWN_AWAY: Final[_Columns] = {
    "operator_id": _TEXT,
    "split_id": _TEXT,
    "subtask": _INT,
    "attempt_number": _INT,
    "checkpoint_id": _LONG,
    "sequence": _LONG,
    "is_whole": _FLAG,
    "was_finished": _FLAG,
    "reason": _TEXT,
    "reread_subtask": _INT,
    "reread_attempt": _INT,
}
_CHECKPOINTS: Final[_Columns] = {
    "checkpoint_id": _LONG,
    "epoch": _INT,
    "status": _TEXT,
    "triggered_at": _TIME,
    "cut_at": _TIME,
    "ended_at": _TIME,
    "duration_ms": _MILLISECONDS,
    "cut_to_ack_ms": _MILLISECONDS,
    "acks": _INT,
    "coordinator_bytes": _LONG,
    "bytes": _LONG,
    "reason": _TEXT,
    "missing_coordinators": pa.list_(_TEXT),
    "missing_subtasks": pa.list_(_INT),
    "subtasks": pa.list_(
        pa.struct(
            [
                ("subtask", _INT),
                ("attempt_number", _INT),
                ("barrier_at", _TIME),
                ("acked_at", _TIME),
                ("cut_to_ack_ms", _MILLISECONDS),
                ("bytes", _LONG),
            ]
        )
    ),
}
_EVENTS: Final[_Columns] = {
    "sequence": _LONG,
    "direction": _TEXT,
    "operator_id": _TEXT,
    "subtask": _INT,
    "attempt_number": _INT,
    "event_id": _LONG,
    "event_type": _TEXT,
    "bytes": _LONG,
    "sent_at": _TIME,
    "status": _TEXT,
    "ended_at": _TIME,
    "latency_ms": _MILLISECONDS,
    "held_by": _TEXT,
    "reason": _TEXT,
}
_COMMITS: Final[_Columns] = {
    "sequence": _LONG,
    "operator_id": _TEXT,
    "checkpoint_id": _LONG,
    "epoch": _INT,
    "intent_type": _TEXT,
    "bytes": _LONG,
    "intended_at": _TIME,
    "status": _TEXT,
    "settled_at": _TIME,
    "settled_epoch": _INT,
    "duration_ms": _MILLISECONDS,
    "failed_tries": _INT,
    "reason": _TEXT,
}
_FAILURES: Final[_Columns] = {
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
_EPOCHS: Final[_Columns] = {
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
    "ended": _TEXT,
    "restored_by": _TEXT,
    "restored_from": _LONG,
    "records": _LONG,
    "attempts_started": _LONG,
    "checkpoints_completed": _LONG,
    "failovers_global": _LONG,
}
VIEWS: Final[Mapping[str, _Columns]] = {
    "attempts": _ATTEMPTS,
    "splits": _SPLITS,
    "thrown_away": _THROWN_AWAY,
    "checkpoints": _CHECKPOINTS,
    "events": _EVENTS,
    "commits": _COMMITS,
    "failures": _FAILURES,
    "epochs": _EPOCHS,
}
"""The columns of each view."""

UNREADABLE: Final = "unreadable"
"""The column of the record that counts and cannot be read, with which the tables end."""

_UNREADABLE: Final[_Columns] = {"offset": _LONG, "kind": _TEXT, "problem": _TEXT}

_STRUCTS: Final = {
    name: pa.struct(list(columns.items()))
    for name, columns in {**VIEWS, UNREADABLE: _UNREADABLE}.items()
}


def tables_schema() -> str:
    """What `tables_of` gives, as Spark's DDL."""
    return ", ".join(f"{name} {_ddl(struct)}" for name, struct in _STRUCTS.items())


def tables_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of all tables, of a whole log; the function of a `mapInArrow`.

    Where a record that counts cannot be read, a row says so: a task that raised would be tried
    again, in a job's session a thousand times.

    Args:
        batches: `offset: int64`, `key`, `value` and `header: binary`, in log order.
    """
    try:
        yield from _told(batches)
    except RecordError as error:
        row: dict[str, object] = {
            "offset": error.offset,
            "kind": error.kind,
            "problem": error.problem,
        }
        yield _batch(UNREADABLE, [row])


def _told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    audit_fold, event_fold = AuditFold(), EventFold()
    waiting: list[EventRow] = []
    for one in audit_records(_entries(batches)):
        audit_fold.apply(one)
        if one.counts and one.record is not None:
            waiting += event_fold.apply(one.record)
            if len(waiting) >= _BATCH_ROWS:
                yield _batch("events", [_event(row) for row in waiting])
                waiting.clear()
    waiting += event_fold.rows()
    yield _batch("events", [_event(row) for row in waiting])
    yield from _tables(audit_fold.audit())


def _tables(found: Audit) -> Iterator[pa.RecordBatch]:
    thrown = [one for split in found.splits for one in split.thrown_away]
    yield from _batches("attempts", found.attempts, _attempt)
    yield from _batches("splits", found.splits, _split)
    yield from _batches("thrown_away", thrown, _thrown)
    yield from _batches("checkpoints", found.checkpoints, _checkpoint)
    yield from _batches("commits", found.commits, _commit)
    yield from _batches("failures", found.failures, _failure)
    yield from _batches("epochs", found.epochs, _epoch)


def _batches(
    name: str, rows: Iterable[Any], to_row: Callable[[Any], dict[str, object]]
) -> Iterator[pa.RecordBatch]:
    told = [to_row(one) for one in rows]
    for first in range(0, len(told), _BATCH_ROWS):
        yield _batch(name, told[first : first + _BATCH_ROWS])


def _batch(name: str, rows: list[dict[str, object]]) -> pa.RecordBatch:
    columns = [
        pa.array(rows, struct) if one == name else pa.nulls(len(rows), struct)
        for one, struct in _STRUCTS.items()
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(_STRUCTS))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record as Spark's Kafka source has it."""

    offset: int
    key: bytes | None
    value: bytes | None
    header_bytes: bytes | None
    timestamp_ms: int = 0

    @property
    def header(self) -> Header | None:
        return decode_header(self.header_bytes)


def _entries(batches: Iterable[pa.RecordBatch]) -> Iterator[_Entry]:
    order = LogOrder()
    for batch in batches:
        order.check(batch.column("offset"))
        columns = [batch.column(one).to_pylist() for one in ("offset", "key", "value", "header")]
        for offset, key, value, header in zip(*columns, strict=True):
            yield _Entry(offset, key, value, header)


def _attempt(one: AttemptRow) -> dict[str, object]:
    return {
        "subtask": one.subtask,
        "attempt_number": one.attempt_number,
        "epoch": one.epoch,
        "driver_id": one.driver_id,
        "stage_run": one.stage_run,
        "spark_task_attempt_id": one.spark_task_attempt_id,
        "spark_attempt_number": one.spark_attempt_number,
        "host": one.host,
        "pid": one.pid,
        "restored_from": one.restored_from,
        "started_at": one.started_us,
        "ended": one.end.value,
        "ended_at": one.ended_us,
        "reason": one.reason,
        "splits_assigned": one.splits_assigned,
        "splits_finished": one.splits_finished,
        "rows": one.rows,
        "events_up": one.events_up,
        "events_down": one.events_down,
        "events_acked": one.events_acked,
        "events_failed": one.events_failed,
        "checkpoints_acked": one.checkpoints_acked,
        "resets": one.resets,
    }


def _split(one: SplitRow) -> dict[str, object]:
    by = one.finished_by
    return {
        "operator_id": one.operator_id,
        "split_id": one.split_id,
        "place": one.place.value,
        "discovered_at": one.discovered_us,
        "assigned": len(one.assignments),
        "assignments": [
            {
                "subtask": each.subtask,
                "attempt_number": each.attempt_number,
                "sequence": each.sequence,
                "assigned_at": each.timestamp_us,
            }
            for each in one.assignments
        ],
        "finished_subtask": None if by is None else by[0],
        "finished_attempt": None if by is None else by[1],
        "rows": one.rows,
        "checkpoint_id": one.checkpoint_id,
        "committed_at": one.committed_us,
        "skipped_because": one.skipped_because,
        "thrown_away": len(one.thrown_away),
        "thrown_away_whole": sum(each.is_whole for each in one.thrown_away),
        "thrown_away_because": [each.reason for each in one.thrown_away],
    }


def _thrown(one: ThrownAway) -> dict[str, object]:
    by = one.reread_by
    return {
        "operator_id": one.operator_id,
        "split_id": one.split_id,
        "subtask": one.subtask,
        "attempt_number": one.attempt_number,
        "checkpoint_id": one.checkpoint_id,
        "sequence": one.sequence,
        "is_whole": one.is_whole,
        "was_finished": one.was_finished,
        "reason": one.reason,
        "reread_subtask": None if by is None else by[0],
        "reread_attempt": None if by is None else by[1],
    }


def _checkpoint(one: CheckpointRow) -> dict[str, object]:
    last = max((each.acked_us for each in one.acked), default=None)
    return {
        "checkpoint_id": one.checkpoint_id,
        "epoch": one.epoch,
        "status": one.status.value,
        "triggered_at": one.triggered_us,
        "cut_at": one.cut_us,
        "ended_at": one.ended_us,
        "duration_ms": one.milliseconds,
        "cut_to_ack_ms": _between(one.cut_us, last),
        "acks": one.acks,
        "coordinator_bytes": one.coordinator_bytes,
        "bytes": one.state_bytes,
        "reason": one.reason,
        "missing_coordinators": one.missing_coordinators,
        "missing_subtasks": one.missing_subtasks,
        "subtasks": [
            {
                "subtask": each.subtask,
                "attempt_number": each.attempt_number,
                "barrier_at": each.barrier_us,
                "acked_at": each.acked_us,
                "cut_to_ack_ms": _between(one.cut_us, each.acked_us),
                "bytes": each.snapshot_bytes,
            }
            for each in one.acked
        ],
    }


def _event(one: EventRow) -> dict[str, object]:
    return {
        "sequence": one.sequence,
        "direction": one.direction.value,
        "operator_id": one.operator_id,
        "subtask": one.subtask,
        "attempt_number": one.attempt_number,
        "event_id": one.event_id,
        "event_type": one.event_type,
        "bytes": one.payload_bytes,
        "sent_at": one.sent_us,
        "status": one.status.value,
        "ended_at": one.ended_us,
        "latency_ms": one.milliseconds,
        "held_by": one.held_by,
        "reason": one.reason,
    }


def _commit(one: CommitRow) -> dict[str, object]:
    return {
        "sequence": one.sequence,
        "operator_id": one.operator_id,
        "checkpoint_id": one.checkpoint_id,
        "epoch": one.epoch,
        "intent_type": one.intent_type,
        "bytes": one.intent_bytes,
        "intended_at": one.intended_us,
        "status": one.status.value,
        "settled_at": one.settled_us,
        "settled_epoch": one.settled_epoch,
        "duration_ms": one.milliseconds,
        "failed_tries": one.failed_tries,
        "reason": one.reason,
    }


def _failure(one: FailureRow) -> dict[str, object]:
    return {
        "sequence": one.sequence,
        "epoch": one.epoch,
        "scope": one.scope.value,
        "operator_id": one.operator_id,
        "subtask": one.subtask,
        "attempt_number": one.attempt_number,
        "failed_at": one.failed_us,
        "reason": one.reason,
        "reset_at": one.reset_us,
        "reset_to": one.reset_to,
        "is_with_job": one.is_with_job,
        "restarted_at": one.restarted_us,
        "restart_ms": one.milliseconds,
    }


def _epoch(one: EpochRow) -> dict[str, object]:
    return {
        "epoch": one.epoch,
        "job_id": one.job_id,
        "driver_id": one.driver_id,
        "host": one.host,
        "pid": one.pid,
        "mode": one.mode,
        "parallelism": one.parallelism,
        "coordlog_version": one.coordlog_version,
        "started_at": one.started_us,
        "last_at": one.last_us,
        "ended": one.end.value,
        "restored_by": one.restored_by,
        "restored_from": one.restored_from,
        "records": one.record_count,
        "attempts_started": one.attempts_started,
        "checkpoints_completed": one.checkpoints_completed,
        "failovers_global": one.failovers_global,
    }


def _between(began_us: int | None, ended_us: int | None) -> float | None:
    return None if began_us is None or ended_us is None else (ended_us - began_us) / 1000


def _ddl(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {_ddl(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_ddl(kind.value_type)}>"
    return _NAMES[kind]


_NAMES: Final = {
    _INT: "INT",
    _LONG: "BIGINT",
    _TEXT: "STRING",
    _FLAG: "BOOLEAN",
    _TIME: "TIMESTAMP",
    _MILLISECONDS: "DOUBLE",
}
