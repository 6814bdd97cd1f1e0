"""Messages of attempts: events, acks, finished splits, completions, acks of checkpoints."""

from __future__ import annotations

from coordlog.errors import PayloadLostError, PayloadStoreUnreachableError, TooLargeError
from coordlog.kernel import attempts, checkpoints, refusals, remembering
from coordlog.kernel.attempts import is_lost_by_committables, lose
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.checkpoints import advance, deliver_released, gateways_of
from coordlog.kernel.events import fail_events, is_held
from coordlog.kernel.inputs import (
    CheckpointAckArrived,
    CompletionArrived,
    EventAckArrived,
    EventArrived,
    SplitFinishedArrived,
)
from coordlog.kernel.outputs import (
    CallComplete,
    CallEvent,
    CallFuture,
    FenceAttempt,
    StopAckTimer,
)
from coordlog.kernel.refusals import (
    encoded,
    is_handled,
    refuse,
    refuse_and_fence,
    too_large,
)
from coordlog.limits import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from coordlog.projections.job.attempts import required
from coordlog.projections.job.lifecycle import HANDLED_IN
from coordlog.projections.job.skips import skip_of_event
from coordlog.projections.job.state import (
    Phase,
    UpEvent,
)
from coordlog.schemas.record import BATCH_COMPLETE, Kind

__all__ = [
    "checkpoint_ack_arrived",
    "completion_arrived",
    "event_ack_arrived",
    "event_arrived",
    "split_finished_arrived",
]


def event_arrived(step: StepBuilder, given: EventArrived) -> None:
    """Record an event, then have its coordinator handle it."""
    if not is_handled(step.state, given.subtask, given.attempt_number):
        refuse_and_fence(step, "event", given.subtask, given.attempt_number)
        return
    fault = _fault_of(step, given)
    if fault is not None:
        lose(step, given.subtask, given.attempt_number, fault)
        return
    event = UpEvent(
        sequence=step.state.next_sequence,
        operator_id=given.operator_id,
        subtask=given.subtask,
        attempt_number=given.attempt_number,
        event_id=given.event_id,
        last_barrier=given.last_barrier,
        payload_type=given.payload_type,
        payload=given.payload,
    )
    skip = skip_of_event(step.state, event)
    if skip is not None:
        # Handled no more (clause J2): it is recorded, and changes nothing.
        reason = f"event {given.payload_type} is skipped: {skip.reason}"
        refuse(step, "event", given.subtask, given.attempt_number, reason)
        return
    attributes = remembering.make_room(step, given.payload)
    record = step.add(
        Kind.EVENT_TO_COORDINATOR,
        operator_id=given.operator_id,
        subtask=given.subtask,
        attempt_number=given.attempt_number,
        event_id=given.event_id,
        last_barrier=given.last_barrier,
        payload_type=given.payload_type,
        payload=given.payload,
        attributes=attributes,
    )
    # Its type may have been registered before it.
    event = event._replace(sequence=required(record.sequence))
    step.calls.append(CallEvent(event=event, is_redelivery=False))


def _fault_of(step: StepBuilder, given: EventArrived) -> str | None:
    """Why an event cannot be taken from its attempt; None where it can (clauses D2, K6)."""
    types = step.config.projection.types
    if given.operator_id not in step.config.operators or given.payload_type not in types:
        return (
            f"it sent an event of type {given.payload_type} to operator {given.operator_id!r}; "
            "the job has no such type, or no coordinator there"
        )
    size = len(given.payload)
    if size > PAYLOAD_BYTES_MAX:
        return str(TooLargeError(f"an event {given.payload_type}", size, PAYLOAD_BYTES_MAX))
    try:
        types.decode(given.payload_type, given.payload)
    except (ValueError, PayloadLostError) as error:
        return f"it sent a damaged event of type {given.payload_type}: {error}"
    except PayloadStoreUnreachableError as error:
        # It sends the event again when it is restarted, and the restart policy says how often (clause D2).
        return f"it sent an event of type {given.payload_type} that cannot be read now: {error}"
    return None


def event_ack_arrived(step: StepBuilder, given: EventAckArrived) -> None:
    """Record an ack and resolve its future; a late, doubled or foreign one changes nothing (clause C6)."""
    event = None
    if is_handled(step.state, given.subtask, given.attempt_number):
        # A gateway goes with its attempt, so that one of a live attempt's subtask is its own.
        gateway = step.state.gateways.get((given.operator_id, given.subtask))
        if gateway is not None and not is_held(gateway, given.event_id):
            event = gateway.unacked.get(given.event_id)
    if event is None:
        refuse(
            step,
            "event ack",
            given.subtask,
            given.attempt_number,
            f"event {given.event_id} of operator {given.operator_id!r} is not waiting for an ack",
        )
        return
    step.add(
        Kind.EVENT_ACKED,
        operator_id=given.operator_id,
        subtask=given.subtask,
        attempt_number=given.attempt_number,
        event_id=given.event_id,
        last_barrier=given.last_barrier,
        cause=event.sequence,
    )
    step.effects.append(StopAckTimer(event_id=given.event_id))
    step.calls.append(
        CallFuture(
            operator_id=given.operator_id,
            event_id=given.event_id,
            subtask=given.subtask,
            attempt_number=given.attempt_number,
            reason=None,
        )
    )
    checkpoints.advance(step)


def split_finished_arrived(step: StepBuilder, given: SplitFinishedArrived) -> None:
    """Record the end of a split; in a batch chain without state across splits it stays finished (clause L4)."""
    if not is_handled(step.state, given.subtask, given.attempt_number):
        refuse_and_fence(step, "split end", given.subtask, given.attempt_number)
        return
    made = given.finished.committables
    if is_lost_by_committables(step, given.subtask, given.attempt_number, made):
        return
    key, data = encoded(given.finished)
    if len(data) > RECORD_BYTES_MAX:
        reason = too_large(f"the end of split {given.finished.split_id!r}", data)
        lose(step, given.subtask, given.attempt_number, reason)
        return
    kept = {"kept": str(step.config.keeps_finished_splits).lower()} if step.config.is_batch else {}
    step.add(
        Kind.SPLIT_FINISHED,
        operator_id=given.operator_id,
        subtask=given.subtask,
        attempt_number=given.attempt_number,
        last_barrier=given.last_barrier,
        payload_type=key,
        payload=data,
        attributes=kept,
    )


def completion_arrived(step: StepBuilder, given: CompletionArrived) -> None:
    """Record that a subtask has finished; it counts as its barriers and acks (clause F8)."""
    subtask, attempt_number = given.subtask, given.attempt_number
    if not is_handled(step.state, subtask, attempt_number):
        refuse_and_fence(step, "completion", subtask, attempt_number)
        return
    if is_lost_by_committables(step, subtask, attempt_number, given.snapshot.committables):
        return
    key, data = encoded(given.snapshot)
    if len(data) > RECORD_BYTES_MAX:
        lose(step, subtask, attempt_number, too_large("its last snapshot", data))
        return
    fail_events(step, subtask, f"subtask {subtask} has completed")
    step.add(
        Kind.SUBTASK_COMPLETED,
        subtask=subtask,
        attempt_number=attempt_number,
        last_barrier=given.last_barrier,
        payload_type=key,
        payload=data,
    )
    step.effects.append(
        FenceAttempt(
            driver_id=step.state.driver_id,
            subtask=subtask,
            attempt_number=attempt_number,
            reason="completed",
            is_finished=True,
        )
    )
    if step.state.phase is Phase.ENDING:
        # Clause H1: told in this very turn, so that the intents stand in it too.
        for operator_id in step.config.operators:
            step.add(
                Kind.COORDINATOR_NOTIFIED,
                operator_id=operator_id,
                checkpoint_id=BATCH_COMPLETE,
                attributes={"what": "complete"},
            )
        step.call_all(
            lambda operator_id: CallComplete(operator_id=operator_id, checkpoint_id=BATCH_COMPLETE)
        )
        return


def checkpoint_ack_arrived(step: StepBuilder, given: CheckpointAckArrived) -> None:
    """An attempt has passed a barrier. One of an aborted checkpoint still hands over its committables (clause I4)."""
    subtask, attempt_number = given.subtask, given.attempt_number
    state = step.state
    attempt = state.attempt(subtask, attempt_number)
    if attempt is None or state.phase not in HANDLED_IN:
        reason = refusals.why_not_handled(state, subtask, attempt_number)
        refusals.refuse(step, "checkpoint ack", subtask, attempt_number, reason)
        return
    if not attempt.last_barrier < given.checkpoint_id < state.next_checkpoint_id:
        refusals.refuse(
            step,
            "checkpoint ack",
            subtask,
            attempt_number,
            f"checkpoint {given.checkpoint_id} is not above {attempt.last_barrier}, the last that "
            f"it passed, and below {state.next_checkpoint_id}, the next to be triggered",
        )
        return
    pending = state.pending.get(given.checkpoint_id)
    if pending is not None and not pending.is_injected:
        refusals.refuse(
            step,
            "checkpoint ack",
            subtask,
            attempt_number,
            f"the barrier of checkpoint {given.checkpoint_id} has not been sent",
        )
        return
    made = given.snapshot.committables
    if attempts.is_lost_by_committables(step, subtask, attempt_number, made):
        return
    key, encoded = refusals.encoded(given.snapshot)
    if len(encoded) > RECORD_BYTES_MAX:
        reason = refusals.too_large(f"its snapshot of checkpoint {given.checkpoint_id}", encoded)
        attempts.lose(step, subtask, attempt_number, reason)
        return
    is_late = pending is None
    before = gateways_of(state, subtask)
    step.add(
        Kind.CHECKPOINT_ACKED,
        subtask=subtask,
        attempt_number=attempt_number,
        checkpoint_id=given.checkpoint_id,
        last_barrier=given.checkpoint_id,
        payload_type=key,
        payload=encoded,
        reason="the checkpoint was aborted before" if is_late else None,
    )
    deliver_released(step, before)
    advance(step)
