"""What attempts say, as the kernel takes it."""

from __future__ import annotations

from typing import assert_never

from coordlog.kernel.inputs import (
    AttemptLost,
    AttemptRegistered,
    CheckpointAckArrived,
    CompletionArrived,
    EventAckArrived,
    EventArrived,
    Input,
    SplitFinishedArrived,
    SplitSkippedArrived,
)
from coordlog.messages import (
    AckCheckpoint,
    AckEvent,
    Complete,
    Fail,
    FinishSplit,
    Register,
    SendEvent,
    SkipSplit,
    UpMessage,
)
from coordlog.projections.splits import Assigned, SplitsState
from coordlog.projections.state import JobState, sorted_values

__all__ = ["input_of", "lost_connection", "registration_of"]


def input_of(subtask: int, attempt_number: int, message: UpMessage) -> Input:
    """The kernel's input for a message of a registered attempt."""
    match message:
        case SendEvent():
            return EventArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                operator_id=message.operator_id,
                event_id=message.event_id,
                last_barrier=message.last_barrier,
                payload_type=message.payload_type,
                payload=message.payload,
            )
        case AckEvent():
            return EventAckArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                operator_id=message.operator_id,
                event_id=message.event_id,
                last_barrier=message.last_barrier,
            )
        case AckCheckpoint():
            return CheckpointAckArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                checkpoint_id=message.checkpoint_id,
                snapshot=message.snapshot,
            )
        case FinishSplit():
            return SplitFinishedArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                operator_id=message.operator_id,
                last_barrier=message.last_barrier,
                finished=message.finished,
            )
        case SkipSplit():
            return SplitSkippedArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                operator_id=message.operator_id,
                last_barrier=message.last_barrier,
                split_id=message.split_id,
                rows=message.rows,
                reason=message.reason,
            )
        case Complete():
            return CompletionArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                last_barrier=message.last_barrier,
                snapshot=message.snapshot,
            )
        case Fail():
            return _failure_of(subtask, attempt_number, message)
        case Register():
            return AttemptLost(
                subtask=subtask,
                attempt_number=attempt_number,
                reason="its connection asked to become another attempt",
            )
        case _:
            assert_never(message)


def _failure_of(subtask: int, attempt_number: int, message: Fail) -> AttemptLost:
    raised = message.reason.strip().rpartition("\n")[2]
    return AttemptLost(
        subtask=subtask,
        attempt_number=attempt_number,
        reason=f"{message.callback} of operator {message.operator_id!r} raised "
        f"{raised}\n{message.reason}",
        operator_id=message.operator_id,
        split_id=message.split_id,
        event_id=message.event_id,
        final=message.final,
    )


def lost_connection(
    state: JobState, source_id: str, key: tuple[int, int], reason: str, *, is_with_another: bool
) -> AttemptLost:
    """The kernel's input for an attempt whose connection is gone (clause B8).

    Its process could not say what it did: where one split alone had come to it, it read that; but one
    that another has taken with it is not to be blamed on what it read.

    Args:
        state: Before it.
        source_id: The source.
        key: Subtask and attempt number.
        reason: Why the connection is gone.
        is_with_another: See `Losses`.
    """
    subtask, attempt_number = key
    return AttemptLost(
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        split_id=None if is_with_another else _read_alone(state, source_id, subtask),
        is_with_another=is_with_another,
    )


def _read_alone(state: JobState, source_id: str, subtask: int) -> str | None:
    """The one split that a subtask had to read; None where there were several, or none."""
    splits = state.projections.get(source_id)
    if not isinstance(splits, SplitsState):
        return None
    places = {one: splits.splits.place(one) for one in splits.reader(subtask).splits}
    given = {one: place.sequence for one, place in places.items() if isinstance(place, Assigned)}
    gateway = state.gateways.get((source_id, subtask))
    on_their_way = set[int]()
    if gateway is not None:
        on_their_way = {one.sequence for one in sorted_values(gateway.unacked)}
    # Of one that was given while another was read, as to who begins with what was given back, no ack has come.
    reading = [one for one, sequence in given.items() if sequence not in on_their_way]
    alone = reading or list(given)
    return alone[0] if len(alone) == 1 else None


def registration_of(
    connection_id: int, message: Register, *, is_current_run: bool
) -> AttemptRegistered:
    """The kernel's input for a task that asks to become an attempt."""
    return AttemptRegistered(
        connection_id=connection_id,
        subtask=message.subtask,
        stage_run=message.stage_run,
        task_attempt_id=message.task_attempt_id,
        spark_attempt_number=message.spark_attempt_number,
        host=message.host,
        pid=message.pid,
        is_current_run=is_current_run,
    )
