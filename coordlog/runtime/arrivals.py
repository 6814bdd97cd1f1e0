"""What attempts say, as the kernel takes it."""

from __future__ import annotations

from typing import Final, assert_never

from coordlog.api.chain import SourceSpec
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
    Marker,
    Register,
    SendEvent,
    SkipSplit,
    UpMessage,
)
from coordlog.projections.job.state import JobState, sorted_values
from coordlog.projections.splits.fold import Assigned, SplitsState

__all__ = ["input_of", "lost_connection", "registration_of"]

_HOST_CHARS_MAX: Final = 255
"""Of a name in DNS."""


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
        case Marker():
            raise AssertionError("a marker is no input: the runtime takes it")
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
    at = "" if message.event_id is None else f" (with event {message.event_id})"
    return AttemptLost(
        subtask=subtask,
        attempt_number=attempt_number,
        reason=f"{message.callback} of operator {message.operator_id!r} raised "
        f"{raised}{at}\n{message.reason}",
        operator_id=message.operator_id,
        split_id=message.split_id,
        event_id=message.event_id,
        final=message.final,
    )


def lost_connection(
    state: JobState, source: SourceSpec, key: tuple[int, int], reason: str, *, is_with_another: bool
) -> AttemptLost:
    """The kernel's input for an attempt whose connection is gone (clause B8).

    Its process could not report the split that it read: it is the one that had come to it, or the first of
    several if the source reads them in order. An attempt that another one has taken with it blames none.

    Args:
        state: Before it.
        source: The source.
        key: Subtask and attempt number.
        reason: Why the connection is gone.
        is_with_another: See `Losses`.
    """
    subtask, attempt_number = key
    return AttemptLost(
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        split_id=None if is_with_another else _read_last(state, source, subtask),
        is_with_another=is_with_another,
    )


def _read_last(state: JobState, source: SourceSpec, subtask: int) -> str | None:
    """The split that a subtask read; None if it had none, or several of a source that reads in no order."""
    splits = state.projections.get(source.operator_id)
    if not isinstance(splits, SplitsState):
        return None
    places = {one: splits.splits.place(one) for one in splits.reader(subtask).splits}
    given = {one: place.sequence for one, place in places.items() if isinstance(place, Assigned)}
    gateway = state.gateways.get((source.operator_id, subtask))
    on_their_way = set[int]()
    if gateway is not None:
        on_their_way = {one.sequence for one in sorted_values(gateway.unacked)}
    # Of one that was given while another was read, as to who begins with what was given back, no ack has come.
    reading = [one for one, sequence in given.items() if sequence not in on_their_way]
    left = reading or list(given)
    is_known = len(left) == 1 or (bool(left) and source.reads_in_order)
    return left[0] if is_known else None


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
        host=message.host[:_HOST_CHARS_MAX],
        pid=message.pid,
        is_current_run=is_current_run,
    )
