"""Messages of registered attempts: one handler for each type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from coordlog.errors import TooLargeError
from coordlog.kernel.attempts import attempt_lost, fail_sender, fail_stray_committables
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.checkpoints import advance, deliver_released, gateways_of
from coordlog.kernel.events import fail_events, forget_above_limit
from coordlog.kernel.inputs import AttemptLost, FromAttempt
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
    why_not_handled,
)
from coordlog.limits import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, SPLITS_AT_ONCE_MAX
from coordlog.messages import (
    AckCheckpoint,
    AckEvent,
    Complete,
    EndOfSplit,
    Fail,
    FinishSplit,
    SendEvent,
    SkipSplit,
)
from coordlog.projections.job.attempts import required
from coordlog.projections.job.event_skips import skip_of_event
from coordlog.projections.job.lifecycle import HANDLED_IN
from coordlog.projections.job.state import GatewayState, Phase, UpEvent
from coordlog.schemas.builtin_types import Refused, SplitFinished, SplitSkipped
from coordlog.schemas.record import (
    ALSO_ACKED,
    BATCH_COMPLETE,
    ROWS_WITH,
    SKIPPED_BY,
    Kind,
    Notified,
)

__all__ = ["message_arrived"]


def message_arrived(step: StepBuilder, sender: FromAttempt) -> None:
    """Hand a message to the handler of its type."""
    message = sender.message
    match message:
        case SendEvent():
            _event_sent(step, sender, message)
        case AckEvent():
            _event_acked(step, sender, message)
        case AckCheckpoint():
            _checkpoint_acked(step, sender, message)
        case FinishSplit():
            _split_finished(step, sender, message)
        case SkipSplit():
            _split_skipped(step, sender, message)
        case Complete():
            _completed(step, sender, message)
        case Fail():
            _call_raised(step, sender, message)
        case _:
            assert_never(message)


def _event_sent(step: StepBuilder, sender: FromAttempt, message: SendEvent) -> None:
    """Record an event, then have its coordinator handle it."""
    if not is_handled(step.state, sender.subtask, sender.attempt_number):
        refuse_and_fence(step, "event", sender.subtask, sender.attempt_number)
        return
    fault = _fault_of(step, message)
    if fault is not None:
        fail_sender(step, sender.subtask, sender.attempt_number, fault)
        return
    event = UpEvent(
        sequence=step.state.next_sequence,
        operator_id=message.operator_id,
        subtask=sender.subtask,
        attempt_number=sender.attempt_number,
        event_id=message.event_id,
        last_barrier=message.last_barrier,
        payload_type=message.payload_type,
        payload=message.payload,
    )
    skip = skip_of_event(step.state, event)
    if skip is not None:
        # A skipped event is recorded and not handled (J2: skip poison).
        step.add(
            Kind.FACT,
            subtask=sender.subtask,
            attempt_number=sender.attempt_number,
            last_barrier=message.last_barrier,
            reason=f"event {message.payload_type} is skipped: {skip.reason}",
            value=Refused(what="event"),
            attributes={SKIPPED_BY: str(skip.sequence)},
        )
        return
    attributes = forget_above_limit(step, message.payload)
    record = step.add(
        Kind.EVENT_TO_COORDINATOR,
        operator_id=message.operator_id,
        subtask=sender.subtask,
        attempt_number=sender.attempt_number,
        event_id=message.event_id,
        last_barrier=message.last_barrier,
        payload_type=message.payload_type,
        payload=message.payload,
        attributes=attributes,
    )
    if (
        event.sequence != record.sequence
    ):  # a record of its type, or of an abort, has taken that one
        event = event._replace(sequence=required(record.sequence))
    step.calls.append(CallEvent(event=event, is_redelivery=False))


def _fault_of(step: StepBuilder, message: SendEvent) -> str | None:
    """Reason to reject an event of an attempt, or None (D2, K6: refused events). The caller has read its payload."""
    types = step.config.projection.types
    if message.operator_id not in step.config.operators or message.payload_type not in types:
        return (
            f"it sent an event of type {message.payload_type} to operator {message.operator_id!r}; "
            "the job has no such type, or no coordinator there"
        )
    size = len(message.payload)
    if size > PAYLOAD_BYTES_MAX:
        return str(TooLargeError(f"an event {message.payload_type}", size, PAYLOAD_BYTES_MAX))
    return None


def _event_acked(step: StepBuilder, sender: FromAttempt, message: AckEvent) -> None:
    """Record an ack and resolve its futures; a late, doubled or foreign one changes nothing (C6: foreign acks).

    One that also names an event that does not wait is foreign as a whole: no attempt of ours sends such a one.
    """
    gateway = None
    if is_handled(step.state, sender.subtask, sender.attempt_number):
        # A gateway ends with its attempt, so the subtask's gateway belongs to the live attempt.
        gateway = step.state.gateways.get((message.operator_id, sender.subtask))
    acked = (message.event_id, *message.also)
    foreign = _foreign(gateway, acked)
    if foreign is not None:
        refuse(
            step,
            "event ack",
            sender.subtask,
            sender.attempt_number,
            f"event {foreign} of operator {message.operator_id!r} is not waiting for an ack",
        )
        return
    assert gateway is not None, "an event waits"
    also = {ALSO_ACKED: ",".join(map(str, message.also))} if message.also else None
    step.add(
        Kind.EVENT_ACKED,
        operator_id=message.operator_id,
        subtask=sender.subtask,
        attempt_number=sender.attempt_number,
        event_id=message.event_id,
        last_barrier=message.last_barrier,
        cause=None if also else gateway.unacked[message.event_id].sequence,
        attributes=also,
    )
    for event_id in acked:
        step.effects.append(StopAckTimer(event_id=event_id))
        step.calls.append(
            CallFuture(
                operator_id=message.operator_id,
                event_id=event_id,
                subtask=sender.subtask,
                attempt_number=sender.attempt_number,
                reason=None,
            )
        )
    advance(step)


def _foreign(gateway: GatewayState | None, acked: Sequence[int]) -> int | None:
    """The first of these events that does not wait for an ack, or that is named twice; None if all of them wait."""
    if gateway is None:
        return acked[0]
    refused = {waiting.event.event_id for waiting in gateway.held}
    for event_id in acked:
        if event_id in refused or event_id not in gateway.unacked:
            return event_id
        refused.add(event_id)
    return None


def _split_finished(step: StepBuilder, sender: FromAttempt, message: FinishSplit) -> None:
    """Record the end of a split; a batch chain without state across splits keeps it finished (L4: batch failover).

    Splits that share committables end in one turn: a crash leaves all of them finished, or none.
    """
    if not is_handled(step.state, sender.subtask, sender.attempt_number):
        refuse_and_fence(step, "split end", sender.subtask, sender.attempt_number)
        return
    count = len(message.before) + 1
    if count > SPLITS_AT_ONCE_MAX:  # a turn of that many records would be one append
        reason = f"it sent the ends of {count} splits at once; the limit is {SPLITS_AT_ONCE_MAX}"
        fail_sender(step, sender.subtask, sender.attempt_number, reason)
        return
    committables = message.finished.committables
    if fail_stray_committables(step, sender.subtask, sender.attempt_number, committables):
        return
    key, data = encoded(message.finished)
    if len(data) > RECORD_BYTES_MAX:
        reason = too_large(f"the end of split {message.finished.split_id!r}", data)
        fail_sender(step, sender.subtask, sender.attempt_number, reason)
        return
    kept = {"kept": str(step.config.keeps_finished_splits).lower()} if step.config.is_batch else {}
    together = {ROWS_WITH: message.finished.split_id}
    ends = [(*encoded(_without_rows(each)), each.rejected, together) for each in message.before]
    for type_key, payload, rejected, with_others in (*ends, (key, data, message.rejected, {})):
        step.add(
            Kind.SPLIT_FINISHED,
            operator_id=message.operator_id,
            subtask=sender.subtask,
            attempt_number=sender.attempt_number,
            last_barrier=message.last_barrier,
            payload_type=type_key,
            payload=payload,
            attributes=kept | ({"rejected": str(rejected)} if rejected else {}) | with_others,
        )


def _without_rows(end: EndOfSplit) -> SplitFinished:
    """The end of a split whose rows are in the committables of a later one of its turn."""
    return SplitFinished(
        split_id=end.split_id, rows=end.rows, bytes_read=end.bytes_read, committables=[]
    )


def _split_skipped(step: StepBuilder, sender: FromAttempt, message: SkipSplit) -> None:
    """Record that a reader has abandoned a split, with the number of its rows that stay."""
    if not is_handled(step.state, sender.subtask, sender.attempt_number):
        refuse_and_fence(step, "split skip", sender.subtask, sender.attempt_number)
        return
    skip = step.state.skipped_splits.get((message.operator_id, message.split_id))
    step.add(
        Kind.FACT,
        operator_id=message.operator_id,
        subtask=sender.subtask,
        attempt_number=sender.attempt_number,
        last_barrier=message.last_barrier,
        # A reader that follows a skip in the log has no reason of its own: that of the skip counts.
        reason=message.reason if skip is None else skip.reason,
        value=SplitSkipped(split_id=message.split_id, rows=message.rows),
    )


def _completed(step: StepBuilder, sender: FromAttempt, message: Complete) -> None:
    """Record that a subtask has finished; this replaces its barriers and acks (F8: completion acks)."""
    subtask, attempt_number = sender.subtask, sender.attempt_number
    if not is_handled(step.state, subtask, attempt_number):
        refuse_and_fence(step, "completion", subtask, attempt_number)
        return
    if fail_stray_committables(step, subtask, attempt_number, message.snapshot.committables):
        return
    key, data = encoded(message.snapshot)
    if len(data) > RECORD_BYTES_MAX:
        fail_sender(step, subtask, attempt_number, too_large("its last snapshot", data))
        return
    fail_events(step, subtask, f"subtask {subtask} has completed")
    step.add(
        Kind.SUBTASK_COMPLETED,
        subtask=subtask,
        attempt_number=attempt_number,
        last_barrier=message.last_barrier,
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
        # Notified in this turn, so that the intents are in it too (H1: notify after completion).
        for operator_id in step.config.operators:
            step.add(
                Kind.COORDINATOR_NOTIFIED,
                operator_id=operator_id,
                checkpoint_id=BATCH_COMPLETE,
                attributes={"what": Notified.COMPLETE},
            )
        step.call_all(
            lambda operator_id: CallComplete(operator_id=operator_id, checkpoint_id=BATCH_COMPLETE)
        )
    # Pending checkpoints continue in the next turn: in this one a coordinator may fail the job because of events that
    # have failed here, and then no checkpoint may hold the subtask as finished.


def _checkpoint_acked(step: StepBuilder, sender: FromAttempt, message: AckCheckpoint) -> None:
    """Record that an attempt has passed a barrier.

    The ack of an aborted checkpoint still hands over its committables (I4: grants).
    """
    subtask, attempt_number = sender.subtask, sender.attempt_number
    state = step.state
    attempt = state.attempt(subtask, attempt_number)
    if attempt is None or state.phase not in HANDLED_IN:
        reason = why_not_handled(state, subtask, attempt_number)
        refuse(step, "checkpoint ack", subtask, attempt_number, reason)
        return
    if not attempt.last_barrier < message.checkpoint_id < state.next_checkpoint_id:
        refuse(
            step,
            "checkpoint ack",
            subtask,
            attempt_number,
            f"checkpoint {message.checkpoint_id} is not above {attempt.last_barrier}, the last that "
            f"it passed, and below {state.next_checkpoint_id}, the next to be triggered",
        )
        return
    pending = state.pending.get(message.checkpoint_id)
    if pending is not None and not pending.is_injected:
        refuse(
            step,
            "checkpoint ack",
            subtask,
            attempt_number,
            f"the barrier of checkpoint {message.checkpoint_id} has not been sent",
        )
        return
    committables = message.snapshot.committables
    if fail_stray_committables(step, subtask, attempt_number, committables):
        return
    key, data = encoded(message.snapshot)
    if len(data) > RECORD_BYTES_MAX:
        reason = too_large(f"its snapshot of checkpoint {message.checkpoint_id}", data)
        fail_sender(step, subtask, attempt_number, reason)
        return
    is_late = pending is None
    before = gateways_of(state, subtask)
    step.add(
        Kind.CHECKPOINT_ACKED,
        subtask=subtask,
        attempt_number=attempt_number,
        checkpoint_id=message.checkpoint_id,
        last_barrier=message.checkpoint_id,
        payload_type=key,
        payload=data,
        reason="the checkpoint was aborted before" if is_late else None,
    )
    deliver_released(step, before)
    advance(step)


def _call_raised(step: StepBuilder, sender: FromAttempt, message: Fail) -> None:
    """End an attempt because a call of its chain raised (M3: callback exceptions)."""
    error_line = message.reason.strip().rpartition("\n")[2]
    at = "" if message.event_id is None else f" (with event {message.event_id})"
    attempt_lost(
        step,
        AttemptLost(
            subtask=sender.subtask,
            attempt_number=sender.attempt_number,
            reason=f"{message.callback} of operator {message.operator_id!r} raised "
            f"{error_line}{at}\n{message.reason}",
            operator_id=message.operator_id,
            split_id=message.split_id,
            event_id=message.event_id,
            final=message.final,
        ),
    )
