"""Decisions about attempts: registering, events both ways, acks, failing and completing."""

from __future__ import annotations

from collections.abc import Sequence

from coordlog.errors import PayloadLostError, PayloadStoreUnreachableError, TooLargeError
from coordlog.kernel import checkpoints, remembering
from coordlog.kernel import failover as failures
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import (
    AttemptLost,
    AttemptRegistered,
    CompletionArrived,
    EventAckArrived,
    EventArrived,
    SendEvent,
    SplitFinishedArrived,
)
from coordlog.kernel.outputs import (
    AcceptAttempt,
    AnswerFinished,
    CallAttemptFailed,
    CallAttemptReady,
    CallComplete,
    CallEvent,
    CallFuture,
    CallSubtaskReset,
    DelayNextAttempt,
    DeliverEvent,
    FenceAttempt,
    KillTask,
    RefuseAttempt,
    StopAckTimer,
)
from coordlog.kernel.poison import attributes_of_event, marked, with_poison
from coordlog.kernel.restart_policy import local_backoff_s
from coordlog.limits import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from coordlog.projections.job.attempts import required
from coordlog.projections.job.checkpoints import states_of
from coordlog.projections.job.lifecycle import HANDLED_IN
from coordlog.projections.job.skips import skip_of_event, skipped_in_reader
from coordlog.projections.job.state import (
    AttemptState,
    DownEvent,
    GatewayState,
    JobState,
    Phase,
    SkippedEvent,
    UpEvent,
    sorted_items,
)
from coordlog.schemas.builtin_types import Committable, Refused
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import BATCH_COMPLETE, Kind

__all__ = [
    "attempt_lost",
    "attempt_registered",
    "completion_arrived",
    "encoded",
    "event_ack_arrived",
    "event_arrived",
    "fail_attempt",
    "is_handled",
    "is_lost_by_committables",
    "lose",
    "refuse",
    "refuse_and_fence",
    "send_event",
    "split_finished_arrived",
    "stale_attempt",
    "too_large",
]


def refuse(step: StepBuilder, what: str, subtask: int, attempt_number: int, reason: str) -> None:
    """Record what is refused; it changes no state."""
    step.add(
        Kind.FACT,
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        value=Refused(what=what),
    )


def encoded(value: Payload) -> tuple[str, bytes]:
    """Type and bytes of a payload, for who must know its size before its record has a place (clause K6)."""
    declared = payload_type_of(value)
    return declared.key, declared.encode(value)


def too_large(what: str, data: bytes) -> str:
    """Why a message or a record is refused for its size."""
    return str(TooLargeError(what, len(data), RECORD_BYTES_MAX))


def is_handled(state: JobState, subtask: int, attempt_number: int) -> bool:
    """Whether what this attempt sends is handled here (clauses B3, D1)."""
    return state.phase in HANDLED_IN and state.attempt(subtask, attempt_number) is not None


def why_not_handled(state: JobState, subtask: int, attempt_number: int) -> str:
    """The reason, for the record and for the sender."""
    if state.phase not in HANDLED_IN:
        return f"the job is {state.phase.value}"
    known = state.subtasks.get(subtask)
    if known is not None and known.completion is not None:
        return f"subtask {subtask} has completed"
    return f"attempt {attempt_number} of subtask {subtask} is over"


def refuse_and_fence(step: StepBuilder, what: str, subtask: int, attempt_number: int) -> None:
    """Record what an attempt sent that is over, and tell it so (clause B3)."""
    reason = why_not_handled(step.state, subtask, attempt_number)
    refuse(step, what, subtask, attempt_number, reason)
    step.effects.append(
        FenceAttempt(
            driver_id=step.state.driver_id,
            subtask=subtask,
            attempt_number=attempt_number,
            reason=reason,
            is_finished=False,
        )
    )


def attempt_registered(step: StepBuilder, given: AttemptRegistered) -> None:
    """Make the task an attempt, unless its subtask has finished or a newer task has come before (clauses B4, B7)."""
    state = step.state
    known = state.subtasks.get(given.subtask)
    if known is None:
        step.effects.append(
            RefuseAttempt(
                connection_id=given.connection_id,
                reason=f"there is no subtask {given.subtask} of {state.parallelism}",
            )
        )
        return
    if known.completion is not None:
        step.effects.append(
            AnswerFinished(
                connection_id=given.connection_id,
                attempt_number=known.completion.attempt_number,
            )
        )
        return
    task = (state.epoch, given.stage_run, given.task_attempt_id)
    if not given.is_current_run or state.phase is not Phase.RUNNING:
        _refuse_task(
            step, given, f"stage run {given.stage_run} is over, and the job is {state.phase.value}"
        )
        return
    if task <= known.newest_task:
        reason = (
            f"task {given.task_attempt_id} of stage run {given.stage_run} is not newer than task "
            f"{known.newest_task[2]} of stage run {known.newest_task[1]}, which has been an attempt"
        )
        _refuse_task(step, given, reason)
        return
    if known.attempt is not None:
        reason = f"fenced by the newer task {given.task_attempt_id}"
        fail_attempt(
            step,
            AttemptLost(
                subtask=given.subtask,
                attempt_number=known.attempt.attempt_number,
                reason=reason,
            ),
        )
        if step.state.phase is not Phase.RUNNING:
            step.effects.append(RefuseAttempt(connection_id=given.connection_id, reason=reason))
            return
    _start_attempt(step, given)


def _refuse_task(step: StepBuilder, given: AttemptRegistered, reason: str) -> None:
    newest = step.state.subtasks[given.subtask].next_attempt_number - 1
    refuse(step, "registration", given.subtask, max(newest, 0), reason)
    step.effects.append(RefuseAttempt(connection_id=given.connection_id, reason=reason))


def _start_attempt(step: StepBuilder, given: AttemptRegistered) -> None:
    known = step.state.subtasks[given.subtask]
    attempt_number = known.next_attempt_number
    step.add(
        Kind.ATTEMPT_STARTED,
        subtask=given.subtask,
        attempt_number=attempt_number,
        checkpoint_id=known.restore_from,
        attributes={
            "stage_run": str(given.stage_run),
            "spark_task_attempt_id": str(given.task_attempt_id),
            "spark_attempt_number": str(given.spark_attempt_number),
            "host": given.host,
            "pid": str(given.pid),
        },
    )
    step.effects.append(
        AcceptAttempt(
            connection_id=given.connection_id,
            subtask=given.subtask,
            attempt_number=attempt_number,
            epoch=step.state.epoch,
            restored_checkpoint=known.restore_from,
            states=states_of(step.state, given.subtask),
            skipped_splits=skipped_in_reader(step.state, given.subtask),
        )
    )
    step.call_all(
        lambda operator_id: CallAttemptReady(
            operator_id=operator_id, subtask=given.subtask, attempt_number=attempt_number
        )
    )


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


def lose(step: StepBuilder, subtask: int, attempt_number: int, reason: str) -> None:
    """Fail an attempt for what it has sent: that one alone (clause D2)."""
    fail_attempt(step, AttemptLost(subtask=subtask, attempt_number=attempt_number, reason=reason))


def is_lost_by_committables(
    step: StepBuilder, subtask: int, attempt_number: int, committables: Sequence[Committable]
) -> bool:
    """Fail the job if an operator hands over committables and has no coordinator to commit them (clause H4).

    The same operator would hand them over again, so that there is no restart.
    """
    operators = step.config.operators
    stray = next(
        (one.operator_id for one in committables if one.operator_id not in operators), None
    )
    if stray is None:
        return False
    count = sum(1 for one in committables if one.operator_id == stray)
    reason = (
        f"operator {stray!r} handed over {count} committables and has no coordinator, so that "
        "nothing would commit them: give its OperatorSpec a coordinator with a sink"
    )
    lost = AttemptLost(
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        operator_id=stray,
        final="no coordinator",
    )
    fail_attempt(step, lost)
    return True


def send_event(step: StepBuilder, given: SendEvent) -> int:
    """Append an event down; deliver it now, or when nothing holds the gateway any more. Returns its id.

    An event to an attempt that is over is in the log as failed, in the same turn (clause B5).
    """
    attempt = step.state.attempt(given.subtask, given.attempt_number)
    attributes = {} if attempt is None else remembering.make_room(step, given.payload)
    state = step.state
    event_id = state.next_event_id
    gateway = state.gateways.get((given.operator_id, given.subtask))
    if given.is_loss_tolerant:
        attributes["loss_tolerant"] = "true"
    if attempt is None:
        reason = why_not_handled(state, given.subtask, given.attempt_number)
        record = step.add(
            Kind.EVENT_FAILED,
            operator_id=given.operator_id,
            subtask=given.subtask,
            attempt_number=given.attempt_number,
            event_id=event_id,
            payload_type=given.payload_type,
            payload=given.payload,
            reason=reason,
            attributes={"never_sent": "true", **attributes},
        )
        assert record.event_id == event_id
        step.calls.append(
            CallFuture(
                operator_id=given.operator_id,
                event_id=event_id,
                subtask=given.subtask,
                attempt_number=given.attempt_number,
                reason=reason,
            )
        )
        return event_id
    holders = () if gateway is None else gateway.closed_by
    if holders:
        attributes["held_by"] = ",".join(map(str, holders))
    record = step.add(
        Kind.EVENT_TO_SUBTASK,
        operator_id=given.operator_id,
        subtask=given.subtask,
        attempt_number=given.attempt_number,
        event_id=event_id,
        payload_type=given.payload_type,
        payload=given.payload,
        attributes=attributes,
    )
    sent = step.state.gateways[given.operator_id, given.subtask].unacked[event_id]
    assert sent.sequence == record.sequence
    skip = skip_of_event(step.state, sent)
    if skip is not None:
        _ack_skipped(step, sent, skip)
    elif not holders:
        step.effects.append(DeliverEvent(event=sent))
    return event_id


def _ack_skipped(step: StepBuilder, event: DownEvent, skip: SkippedEvent) -> None:
    """A skipped event counts as processed: one that failed would be sent again without end (clause J2)."""
    step.add(
        Kind.EVENT_ACKED,
        operator_id=event.operator_id,
        subtask=event.subtask,
        attempt_number=event.attempt_number,
        event_id=event.event_id,
        cause=event.sequence,
        reason=f"not delivered: it is skipped: {skip.reason}",
        attributes={"skipped": "true"},
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


def event_ack_arrived(step: StepBuilder, given: EventAckArrived) -> None:
    """Record an ack and resolve its future; a late, doubled or foreign one changes nothing (clause C6)."""
    event = None
    if is_handled(step.state, given.subtask, given.attempt_number):
        # A gateway goes with its attempt, so that one of a live attempt's subtask is its own.
        gateway = step.state.gateways.get((given.operator_id, given.subtask))
        if gateway is not None and not _is_held(gateway, given.event_id):
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


def _is_held(gateway: GatewayState, event_id: int) -> bool:
    return event_id in {one.event.event_id for one in gateway.held}


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
    # Pending checkpoints go on in a turn of their own: a coordinator that cannot do without what has failed here may
    # fail the job in this one, and then no checkpoint may hold the subtask as finished.


def unacked_events(state: JobState, subtask: int) -> list[DownEvent]:
    """What the subtask's attempt has not acked, in send order."""
    events: list[DownEvent] = []
    for operator_id in (*state.operators, *state.former_operators):
        gateway: GatewayState | None = state.gateways.get((operator_id, subtask))
        if gateway is not None:
            events.extend(event for _, event in sorted_items(gateway.unacked))
    return sorted(events, key=lambda event: event.sequence)


def fail_events(step: StepBuilder, subtask: int, reason: str) -> None:
    """Fail all that is un-acked, held events included (clauses C7, G4); futures in send order (C9)."""
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


def attempt_lost(step: StepBuilder, given: AttemptLost) -> None:
    """An attempt is over: a local failover; unless it was over already."""
    state = step.state
    if state.attempt(given.subtask, given.attempt_number) is None:
        return
    if state.phase is not Phase.RUNNING:
        reason = f"the job is {state.phase.value}; {given.reason}"
        refuse(step, "failure", given.subtask, given.attempt_number, reason)
        return
    fail_attempt(step, given, is_counted=not given.is_with_another)


def fail_attempt(step: StepBuilder, given: AttemptLost, *, is_counted: bool = True) -> None:
    """The one turn of a local failover (clauses B2, C7, C9, E1): the end, the failed events, the aborts, the reset."""
    state = step.state
    attempt = state.attempt(given.subtask, given.attempt_number)
    assert attempt is not None, "a live attempt fails"
    is_exhausted = is_counted and failures.is_exhausted(step.config, state, step.clock_us)
    lost_up, lost_down = _lost(state, attempt)
    attributes = _at_what(state, given)
    attributes = (
        attributes | failures.final_of(given.final) if given.final else marked(state, attributes)
    )
    if given.is_with_another:
        attributes["with_another"] = "true"
    reason = with_poison(state.job_id, given.reason, attributes)
    fail_events(step, given.subtask, given.reason)
    step.add(
        Kind.ATTEMPT_FAILED,
        operator_id=None,
        subtask=given.subtask,
        attempt_number=given.attempt_number,
        reason=reason,
        attributes=attributes,
    )
    step.effects.append(
        FenceAttempt(
            driver_id=attempt.driver_id,
            subtask=given.subtask,
            attempt_number=given.attempt_number,
            reason=given.reason,
            is_finished=False,
        )
    )
    if attempt.epoch == state.epoch:
        step.effects.append(
            KillTask(
                stage_run=attempt.stage_run,
                task_attempt_id=attempt.task_attempt_id,
                reason=given.reason,
            )
        )
    if is_exhausted or given.final:
        failures.fail_job(step, reason, where=_where(given), final=given.final)
        return
    if attempt.has_forgotten:
        remembering.fail_without_events(step, attempt, reason)
        return
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(
            step, checkpoint_id, f"attempt {given.attempt_number} of subtask {given.subtask} failed"
        )
    last = step.state.last_checkpoint
    step.add(
        Kind.SUBTASK_RESET,
        subtask=given.subtask,
        checkpoint_id=last,
        attributes={"counted": "true" if is_counted else "false"},
    )
    if is_counted or given.is_with_another:
        delay_s = local_backoff_s(step.config, step.state, step.clock_us)
        step.effects.append(DelayNextAttempt(subtask=given.subtask, delay_s=delay_s))
    _tell_of_failure(step, given, reason, lost_up, lost_down)


def _where(given: AttemptLost) -> str:
    split = "" if given.split_id is None else f", which read split {given.split_id!r}"
    return f"attempt {given.attempt_number} of subtask {given.subtask}{split}"


def _tell_of_failure(
    step: StepBuilder,
    given: AttemptLost,
    reason: str,
    lost_up: tuple[UpEvent, ...],
    lost_down: tuple[DownEvent, ...],
) -> None:
    step.call_all(
        lambda operator_id: CallAttemptFailed(
            operator_id=operator_id,
            subtask=given.subtask,
            attempt_number=given.attempt_number,
            reason=reason,
        )
    )
    _tell_of_reset(step, given.subtask, lost_up, lost_down)


def _tell_of_reset(
    step: StepBuilder,
    subtask: int,
    lost_up: tuple[UpEvent, ...] = (),
    lost_down: tuple[DownEvent, ...] = (),
) -> None:
    last = step.state.last_checkpoint
    step.call_all(
        lambda operator_id: CallSubtaskReset(
            operator_id=operator_id,
            subtask=subtask,
            checkpoint_id=last,
            lost_up=tuple(one for one in lost_up if one.operator_id == operator_id),
            lost_down=tuple(one for one in lost_down if one.operator_id == operator_id),
        )
    )


def _at_what(state: JobState, given: AttemptLost) -> dict[str, str]:
    """The split and the event at which an attempt failed; an event sent again has another id, not another content."""
    attributes = {}
    if given.split_id is not None:
        attributes["split_id"] = given.split_id
    if given.event_id is not None:
        attributes["event_id"] = str(given.event_id)
        gateway = state.gateways.get((given.operator_id or "", given.subtask))
        event = None if gateway is None else gateway.unacked.get(given.event_id)
        if event is not None:
            attributes.update(attributes_of_event(event))
    return attributes


def _lost(
    state: JobState, attempt: AttemptState
) -> tuple[tuple[UpEvent, ...], tuple[DownEvent, ...]]:
    """What a failover to the last completed checkpoint loses (clause D5)."""
    last = state.last_checkpoint
    up = tuple(event for _, event in sorted_items(attempt.received) if event.last_barrier >= last)
    # What was sent before its cut was forgotten when it completed.
    return up, tuple(event for _, event in sorted_items(attempt.sent))


def stale_attempt(step: StepBuilder, subtask: int) -> None:
    """At a resume: what the dead driver had is a local failover."""
    attempt = step.state.subtasks[subtask].attempt
    if attempt is None:
        step.add(
            Kind.SUBTASK_RESET,
            subtask=subtask,
            checkpoint_id=step.state.last_checkpoint,
            attributes={"counted": "false"},
        )
        _tell_of_reset(step, subtask)
        return
    fail_attempt(
        step,
        AttemptLost(
            subtask=subtask,
            attempt_number=attempt.attempt_number,
            reason=f"its driver, of epoch {attempt.epoch}, is gone",
        ),
        is_counted=False,
    )
