"""Values of the tables that a job's history adds up to, by the names of `table_columns`."""

from __future__ import annotations

from typing import assert_never

from .attempts import AttemptRow
from .checkpoint_audit import CheckpointRow
from .commit_audit import CommitRow
from .epoch_audit import EpochRow
from .event_audit import EventRow
from .failure_audit import FailureRow
from .split_audit import SplitRow, ThrownAway

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
            return _attempt(row)
        case SplitRow():
            return _split(row)
        case ThrownAway():
            return {"operator_id": row.operator_id, "split_id": row.split_id, **_lost_work(row)}
        case CheckpointRow():
            return _checkpoint(row)
        case EventRow():
            return _event(row)
        case CommitRow():
            return _commit(row)
        case FailureRow():
            return _failure(row)
        case EpochRow():
            return _epoch(row)
        case _:
            assert_never(row)


def _attempt(attempt: AttemptRow) -> dict[str, object]:
    return {
        "subtask": attempt.subtask,
        "attempt_number": attempt.attempt_number,
        "epoch": attempt.epoch,
        "driver_id": attempt.driver_id,
        "stage_run": attempt.stage_run,
        "spark_task_attempt_id": attempt.spark_task_attempt_id,
        "spark_attempt_number": attempt.spark_attempt_number,
        "host": attempt.host,
        "pid": attempt.pid,
        "restored_from": attempt.restored_from,
        "started_at": attempt.started_us,
        "status": attempt.end.value,
        "ended_at": attempt.ended_us,
        "reason": attempt.reason,
        "splits_assigned": attempt.splits_assigned,
        "splits_finished": attempt.splits_finished,
        "rows": attempt.rows,
        "events_up": attempt.events_up,
        "events_down": attempt.events_down,
        "events_acked": attempt.events_acked,
        "events_failed": attempt.events_failed,
        "checkpoints_acked": attempt.checkpoints_acked,
        "resets": attempt.resets,
    }


def _split(split: SplitRow) -> dict[str, object]:
    by = split.finished_by
    return {
        "operator_id": split.operator_id,
        "split_id": split.split_id,
        "place": split.place.value,
        "discovered_at": split.discovered_us,
        "assignment_count": len(split.assignments),
        "assignments": [
            {
                "subtask": assignment.subtask,
                "attempt_number": assignment.attempt_number,
                "sequence": assignment.sequence,
                "assigned_at": assignment.timestamp_us,
            }
            for assignment in split.assignments
        ],
        "finished_subtask": None if by is None else by[0],
        "finished_attempt_number": None if by is None else by[1],
        "rows": split.rows,
        "checkpoint_id": split.checkpoint_id,
        "committed_at": split.committed_us,
        "skipped_because": split.skipped_because,
        "thrown_away_count": len(split.thrown_away),
        "thrown_away_whole_count": sum(lost.is_whole for lost in split.thrown_away),
        "thrown_away": [_lost_work(lost) for lost in split.thrown_away],
    }


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
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "epoch": checkpoint.epoch,
        "status": checkpoint.status.value,
        "triggered_at": checkpoint.triggered_us,
        "cut_at": checkpoint.cut_us,
        "ended_at": checkpoint.ended_us,
        "duration_ms": checkpoint.milliseconds,
        "cut_to_ack_ms": _between(checkpoint.cut_us, last),
        "ack_count": checkpoint.acks,
        "coordinator_bytes": checkpoint.coordinator_bytes,
        "state_bytes": checkpoint.state_bytes,
        "reason": checkpoint.reason,
        "missing_coordinators": checkpoint.missing_coordinators,
        "missing_subtasks": checkpoint.missing_subtasks,
        "acks": [
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
    }


def _event(event: EventRow) -> dict[str, object]:
    return {
        "sequence": event.sequence,
        "direction": event.direction.value,
        "operator_id": event.operator_id,
        "subtask": event.subtask,
        "attempt_number": event.attempt_number,
        "event_id": event.event_id,
        "event_type": event.event_type,
        "payload_bytes": event.payload_bytes,
        "sent_at": event.sent_us,
        "status": event.status.value,
        "ended_at": event.ended_us,
        "latency_ms": event.milliseconds,
        "held_by": event.held_by,
        "reason": event.reason,
    }


def _commit(commit: CommitRow) -> dict[str, object]:
    return {
        "sequence": commit.sequence,
        "operator_id": commit.operator_id,
        "checkpoint_id": commit.checkpoint_id,
        "epoch": commit.epoch,
        "intent_type": commit.intent_type,
        "intent_bytes": commit.intent_bytes,
        "intended_at": commit.intended_us,
        "status": commit.status.value,
        "settled_at": commit.settled_us,
        "settled_epoch": commit.settled_epoch,
        "duration_ms": commit.milliseconds,
        "failed_tries": commit.failed_tries,
        "reason": commit.reason,
    }


def _failure(failure: FailureRow) -> dict[str, object]:
    return {
        "sequence": failure.sequence,
        "epoch": failure.epoch,
        "scope": failure.scope.value,
        "operator_id": failure.operator_id,
        "subtask": failure.subtask,
        "attempt_number": failure.attempt_number,
        "failed_at": failure.failed_us,
        "reason": failure.reason,
        "reset_at": failure.reset_us,
        "reset_to": failure.reset_to,
        "is_with_job": failure.is_with_job,
        "restarted_at": failure.restarted_us,
        "restart_ms": failure.milliseconds,
    }


def _epoch(epoch: EpochRow) -> dict[str, object]:
    return {
        "epoch": epoch.epoch,
        "job_id": epoch.job_id,
        "driver_id": epoch.driver_id,
        "host": epoch.host,
        "pid": epoch.pid,
        "mode": epoch.mode,
        "parallelism": epoch.parallelism,
        "coordlog_version": epoch.coordlog_version,
        "started_at": epoch.started_us,
        "last_at": epoch.last_us,
        "status": epoch.end.value,
        "restored_by": epoch.restored_by,
        "restored_from": epoch.restored_from,
        "record_count": epoch.record_count,
        "attempts_started": epoch.attempts_started,
        "checkpoints_completed": epoch.checkpoints_completed,
        "failovers_global": epoch.failovers_global,
    }


def _between(began_us: int | None, ended_us: int | None) -> float | None:
    return None if began_us is None or ended_us is None else (ended_us - began_us) / 1000
