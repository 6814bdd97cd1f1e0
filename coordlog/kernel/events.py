"""Decisions about events to subtasks: sending, failing with the attempt, the limit of remembered events."""

from __future__ import annotations

from coordlog.kernel import checkpoints
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import (
    SendEvent,
)
from coordlog.kernel.outputs import (
    CallFuture,
    DeliverEvent,
    StopAckTimer,
)
from coordlog.kernel.refusals import (
    why_not_handled,
)
from coordlog.projections.job.event_skips import skip_of_event
from coordlog.projections.job.remembered import FORGETS, weight
from coordlog.projections.job.state import (
    DownEvent,
    GatewayState,
    JobState,
    SkippedEvent,
    sorted_items,
)
from coordlog.schemas.record import SKIPPED_BY, Kind

__all__ = ["fail_events", "forget_above_limit", "send_event", "unacked_events"]


def send_event(step: StepBuilder, action: SendEvent) -> int:
    """Record an event to a subtask, and deliver it unless a checkpoint closes the gateway. Returns the event's id.

    An event to an attempt that is over is recorded as failed instead (B5: events to dead attempts).
    """
    attempt = step.state.attempt(action.subtask, action.attempt_number)
    attributes = {} if attempt is None else forget_above_limit(step, action.payload)
    state = step.state
    event_id = state.next_event_id
    gateway = state.gateways.get((action.operator_id, action.subtask))
    if action.is_loss_tolerant:
        attributes["loss_tolerant"] = "true"
    if attempt is None:
        reason = why_not_handled(state, action.subtask, action.attempt_number)
        record = step.add(
            Kind.EVENT_FAILED,
            operator_id=action.operator_id,
            subtask=action.subtask,
            attempt_number=action.attempt_number,
            event_id=event_id,
            payload_type=action.payload_type,
            payload=action.payload,
            reason=reason,
            attributes={"never_sent": "true", **attributes},
        )
        assert record.event_id == event_id
        step.calls.append(
            CallFuture(
                operator_id=action.operator_id,
                event_id=event_id,
                subtask=action.subtask,
                attempt_number=action.attempt_number,
                reason=reason,
            )
        )
        return event_id
    holders = () if gateway is None else gateway.closed_by
    if holders:
        attributes["held_by"] = ",".join(map(str, holders))
    record = step.add(
        Kind.EVENT_TO_SUBTASK,
        operator_id=action.operator_id,
        subtask=action.subtask,
        attempt_number=action.attempt_number,
        event_id=event_id,
        payload_type=action.payload_type,
        payload=action.payload,
        attributes=attributes,
    )
    sent = step.state.gateways[action.operator_id, action.subtask].unacked[event_id]
    assert sent.sequence == record.sequence
    skip = skip_of_event(step.state, sent)
    if skip is not None:
        _ack_skipped(step, sent, skip)
    elif not holders:
        step.effects.append(DeliverEvent(event=sent))
    return event_id


def _ack_skipped(step: StepBuilder, event: DownEvent, skip: SkippedEvent) -> None:
    """Record a skipped event as acked: coordinators would send a failed one again and again (J2: skip poison)."""
    step.add(
        Kind.EVENT_ACKED,
        operator_id=event.operator_id,
        subtask=event.subtask,
        attempt_number=event.attempt_number,
        event_id=event.event_id,
        cause=event.sequence,
        reason=f"it is skipped and not delivered: {skip.reason}",
        attributes={SKIPPED_BY: str(skip.sequence)},
    )
    step.calls.append(
        CallFuture(
            operator_id=event.operator_id,
            event_id=event.event_id,
            subtask=event.subtask,
            attempt_number=event.attempt_number,
            reason=None,
        )
    )


def unacked_events(state: JobState, subtask: int) -> list[DownEvent]:
    """Events that the subtask's attempt has not acked, in send order."""
    events: list[DownEvent] = []
    for operator_id in (*state.operators, *state.former_operators):
        gateway: GatewayState | None = state.gateways.get((operator_id, subtask))
        if gateway is not None:
            events.extend(event for _, event in sorted_items(gateway.unacked))
    return sorted(events, key=lambda event: event.sequence)


def fail_events(step: StepBuilder, subtask: int, reason: str) -> None:
    """Fail a subtask's unacked events, held ones too, and their futures, in send order (C7, C9, G4: dead attempts)."""
    for event in unacked_events(step.state, subtask):
        step.add(
            Kind.EVENT_FAILED,
            operator_id=event.operator_id,
            subtask=subtask,
            attempt_number=event.attempt_number,
            event_id=event.event_id,
            cause=event.sequence,
            reason=reason,
            attributes={"loss_tolerant": "true"} if event.is_loss_tolerant else None,
        )
        step.effects.append(StopAckTimer(event_id=event.event_id))
        step.calls.append(
            CallFuture(
                operator_id=event.operator_id,
                event_id=event.event_id,
                subtask=subtask,
                attempt_number=event.attempt_number,
                reason=reason,
            )
        )


def forget_above_limit(step: StepBuilder, payload: bytes) -> dict[str, str]:
    """Keep remembered events within the limit (D5: limit of events). Returns attributes for the next event's record.

    If the event would exceed the limit, its record makes the job forget all events before it. Pending checkpoints are
    aborted first, because their channel state may be among these events.
    """
    limit = step.config.remembered_bytes_max
    if step.state.remembered_bytes + weight(payload) <= limit or not step.state.remembered_bytes:
        return {}
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(
            step,
            checkpoint_id,
            f"the events since the last completed checkpoint exceed {limit} bytes and are forgotten",
        )
    return {FORGETS: "true"}
