"""Changes of the job state by records of attempts and events, and the failures that the restart policy counts.

Times of records never decrease. If an earlier clock was ahead they stay constant until it is passed, and failures of
many hours would appear simultaneous. During that time, records of failures also hold the reading of the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from immutables import Map

from coordlog.projections.job.event_skips import digest_of
from coordlog.projections.job.grants import batch_grants, batch_sequences, marks_of_grants
from coordlog.projections.job.remembered import FORGETS, forget, is_remembered, weight, weights
from coordlog.projections.job.state import (
    AttemptState,
    Completion,
    DownEvent,
    GatewayState,
    HandedOver,
    HeldEvent,
    JobState,
    KeptSplit,
    Phase,
    SubtaskState,
    UpEvent,
    sorted_items,
)
from coordlog.schemas.builtin_types import AttemptSnapshot, SplitFinished
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import Kind, Record, acked_events

__all__ = [
    "CLOCK_US",
    "FAILURES",
    "attempt_failed",
    "attempt_started",
    "event_acked",
    "event_failed",
    "event_to_coordinator",
    "event_to_subtask",
    "failure_us",
    "poisoned",
    "split_finished",
    "subtask_completed",
    "subtask_reset",
    "with_attempt",
    "with_failure",
]


def required(value: int | None) -> int:
    """The value of a field that each record of the kind has."""
    assert value is not None, "the kind has this field"
    return value


def with_attempt(state: JobState, attempt: AttemptState, **changes: object) -> JobState:
    """The state with a changed live attempt, and with `changes` of its own fields."""
    subtask = evolve(state.subtasks[attempt.subtask], attempt=attempt)
    return evolve(state, subtasks=state.subtasks.set(attempt.subtask, subtask), **changes)


def attempt_started(state: JobState, record: Record) -> JobState:
    """`ATTEMPT_STARTED`: the attempt is live, and each coordinator has a new open gateway to it."""
    number, attempt_number = required(record.subtask), required(record.attempt_number)
    known = state.subtasks[number]
    stage_run = int(record.attributes["stage_run"])
    task = int(record.attributes["spark_task_attempt_id"])
    attempt = AttemptState(
        subtask=number,
        attempt_number=attempt_number,
        epoch=record.epoch,
        driver_id=record.driver_id,
        stage_run=stage_run,
        task_attempt_id=task,
        started_sequence=required(record.sequence),
        restored_checkpoint=required(record.checkpoint_id),
        last_barrier=required(record.checkpoint_id),
    )
    subtask = evolve(
        known,
        next_attempt_number=attempt_number + 1,
        newest_task=(record.epoch, stage_run, task),
        is_reset=False,
        attempt=attempt,
    )
    return evolve(
        state,
        subtasks=state.subtasks.set(number, subtask),
        live_count=state.live_count + 1,
    )


def event_to_subtask(state: JobState, record: Record) -> JobState:
    """`EVENT_TO_SUBTASK`: sent, un-acked, and held if a checkpoint holds the gateway."""
    if FORGETS in record.attributes:
        state = forget(state)
    operator_id, subtask = record.operator_id or "", required(record.subtask)
    event = DownEvent(
        sequence=required(record.sequence),
        operator_id=operator_id,
        subtask=subtask,
        attempt_number=required(record.attempt_number),
        event_id=required(record.event_id),
        payload_type=record.payload_type or "",
        payload=record.payload or b"",
        is_loss_tolerant=record.attributes.get("loss_tolerant") == "true",
    )
    gateway = gateway_of(state, operator_id, subtask, event.attempt_number)
    held = gateway.held
    if gateway.closed_by:
        held = (*held, HeldEvent(event=event, held_by=gateway.closed_by))
    gateway = evolve(gateway, held=held, unacked=gateway.unacked.set(event.event_id, event))
    attempt = state.attempt(subtask, event.attempt_number)
    assert attempt is not None, "an event is sent to a live attempt"
    gateways = state.gateways.set((operator_id, subtask), gateway)
    if not is_remembered(state, event):
        return evolve(state, gateways=gateways, next_event_id=event.event_id + 1)
    return with_attempt(
        state,
        evolve(attempt, sent=attempt.sent.set(event.sequence, event)),
        gateways=gateways,
        next_event_id=event.event_id + 1,
        remembered_bytes=state.remembered_bytes + weight(event.payload),
    )


def gateway_of(
    state: JobState, operator_id: str, subtask: int, attempt_number: int
) -> GatewayState:
    """The gateway to an attempt; an open, empty gateway if no event has passed it yet."""
    known = state.gateways.get((operator_id, subtask))
    if known is None or known.attempt_number != attempt_number:
        return GatewayState(attempt_number=attempt_number)
    return known


def _without_events(state: JobState, record: Record, event_ids: Sequence[int]) -> JobState:
    key = (record.operator_id or "", required(record.subtask))
    gateway = state.gateways.get(key)
    known = () if gateway is None else [one for one in event_ids if one in gateway.unacked]
    if gateway is None or not known:
        return state
    held, unacked = gateway.held, gateway.unacked
    if held:
        held = tuple(waiting for waiting in held if waiting.event.event_id not in known)
    for event_id in known:
        unacked = unacked.delete(event_id)
    gateway = evolve(gateway, unacked=unacked, held=held)
    gateways, pending = state.gateways.set(key, gateway), state.pending
    for checkpoint_id, checkpoint in sorted_items(pending) if pending else ():
        waiting = checkpoint.waiting
        for event_id in known:
            if event_id in waiting:
                waiting = waiting.delete(event_id)
        if waiting is not checkpoint.waiting:
            pending = pending.set(checkpoint_id, evolve(checkpoint, waiting=waiting))
    return evolve(state, gateways=gateways, pending=pending)


def event_acked(state: JobState, record: Record) -> JobState:
    """`EVENT_ACKED`: no checkpoint waits for its events any more."""
    acked = acked_events(record)
    if state.poison:
        gateway = state.gateways.get((record.operator_id or "", required(record.subtask)))
        for event_id in acked:
            event = None if gateway is None else gateway.unacked.get(event_id)
            if event is not None:
                key = f"event:{event.operator_id}/{event.payload_type}/{digest_of(event.payload)}"
                if key in state.poison:
                    state = evolve(state, poison=state.poison.delete(key))
    return _without_events(state, record, acked)


def event_failed(state: JobState, record: Record) -> JobState:
    """`EVENT_FAILED`: the event is not delivered; other records of its turn abort a checkpoint, if needed."""
    if record.attributes.get("never_sent") == "true":
        return evolve(state, next_event_id=required(record.event_id) + 1)
    return _without_events(state, record, (required(record.event_id),))


def event_to_coordinator(state: JobState, record: Record) -> JobState:
    """`EVENT_TO_COORDINATOR`: it may be channel state of checkpoints whose barrier follows."""
    if FORGETS in record.attributes:
        state = forget(state)
    attempt = state.attempt(required(record.subtask), required(record.attempt_number))
    assert attempt is not None, "an event is handled from a live attempt"
    event = UpEvent(
        sequence=required(record.sequence),
        operator_id=record.operator_id or "",
        subtask=attempt.subtask,
        attempt_number=attempt.attempt_number,
        event_id=required(record.event_id),
        last_barrier=required(record.last_barrier),
        payload_type=record.payload_type or "",
        payload=record.payload or b"",
    )
    if not is_remembered(state, event):
        return state
    return with_attempt(
        state,
        evolve(attempt, received=attempt.received.set(event.sequence, event)),
        remembered_bytes=state.remembered_bytes + weight(event.payload),
    )


def attempt_failed(state: JobState, record: Record) -> JobState:
    """`ATTEMPT_FAILED`: committables handed over after the last completed checkpoint are dropped (I4: grants)."""
    number = required(record.subtask)
    known = state.subtasks[number]
    gateways = state.gateways
    for operator_id in (*state.operators, *state.former_operators):
        if (operator_id, number) in gateways:
            gateways = gateways.delete((operator_id, number))
    lost = known.attempt
    freed = 0 if lost is None else weights(lost.received, lost.sent)
    return evolve(
        state,
        subtasks=state.subtasks.set(number, evolve(known, attempt=None)),
        live_count=state.live_count - (lost is not None),
        remembered_bytes=state.remembered_bytes - freed,
        gateways=gateways,
        poison=poisoned(state.poison, record),
        reasons=(record.reason or "", *state.reasons)[:5],
    )


def poisoned(poison: Map[str, int], record: Record) -> Map[str, int]:
    """Consecutive failures by event and split, with this failure; a final failure is not counted."""
    if "final" in record.attributes:
        return poison
    for attribute in ("split_id", "event"):
        if attribute in record.attributes:
            key = f"{attribute}:{record.attributes[attribute]}"
            poison = poison.set(key, poison.get(key, 0) + 1)
    return poison


def subtask_reset(state: JobState, record: Record) -> JobState:
    """`SUBTASK_RESET`: sets the checkpoint of the next attempt. Counted by the restart policy."""
    number = required(record.subtask)
    subtask = evolve(
        state.subtasks[number], restore_from=required(record.checkpoint_id), is_reset=True
    )
    return evolve(
        with_failure(state, record, is_counted_by_default=True),
        subtasks=state.subtasks.set(number, subtask),
        stale=tuple(stale for stale in state.stale if stale != number) if state.stale else (),
        timeouts_in_a_row=0,
    )


def split_finished(state: JobState, record: Record, value: SplitFinished) -> JobState:
    """`SPLIT_FINISHED`: a split whose committables hold all its rows stays finished (L4: batch failover)."""
    poison_key = f"split_id:{value.split_id}"
    if poison_key in state.poison:
        state = evolve(state, poison=state.poison.delete(poison_key))
    if not state.is_batch or record.attributes.get("kept") != "true":
        return state
    operator_id = record.operator_id or ""
    kept = KeptSplit(
        operator_id=operator_id,
        split_id=value.split_id,
        subtask=required(record.subtask),
        attempt_number=required(record.attempt_number),
        sequence=required(record.sequence),
        committables=tuple(value.committables),
    )
    return evolve(state, kept_splits=state.kept_splits.set((operator_id, value.split_id), kept))


def subtask_completed(state: JobState, record: Record, value: AttemptSnapshot) -> JobState:
    """`SUBTASK_COMPLETED`: counts as barrier and ack of every pending checkpoint (F8: completion acks)."""
    number, attempt_number = required(record.subtask), required(record.attempt_number)
    known = state.subtasks[number]
    attempt = known.attempt
    assert attempt is not None, "a live attempt completes its subtask"
    # A completed subtask has no failover, and later checkpoints are cut after all its events.
    received = attempt.received if state.pending else Map[int, UpEvent]()
    remembered = state.remembered_bytes - weights(attempt.received, attempt.sent)
    completion = Completion(
        attempt_number=attempt_number,
        sequence=required(record.sequence),
        states=tuple(value.states),
        handed_over=attempt.handed_over,
        ungranted=tuple(value.committables),
        received=received,
    )
    state = evolve(
        state,
        subtasks=state.subtasks.set(number, evolve(known, attempt=None, completion=completion)),
        finished_count=state.finished_count + 1,
        live_count=state.live_count - 1,
        remembered_bytes=remembered + weights(received),
    )
    gateways = state.gateways
    for operator_id in state.operators:
        if (operator_id, number) in gateways:
            gateways = gateways.delete((operator_id, number))
    pending = state.pending
    for checkpoint_id, checkpoint in sorted_items(pending):
        if checkpoint.attempts.get(number) == attempt_number and number not in checkpoint.acks:
            finished = tuple(sorted((*checkpoint.finished, number)))
            waited_for = checkpoint.attempts.delete(number)
            pending = pending.set(
                checkpoint_id, evolve(checkpoint, attempts=waited_for, finished=finished)
            )
    state = evolve(state, gateways=gateways, pending=pending)
    if state.is_batch and state.finished_count == state.parallelism:
        return evolve(
            state,
            phase=Phase.ENDING,
            granted=state.granted.set(-1, batch_grants(state)),
            launch=marks_of_grants(state, -1, batch_sequences(state)),
        )
    if state.finished_count == state.parallelism:
        # Earlier aborts are not of the last checkpoint (H5: its tries).
        return evolve(state, aborts_in_a_row=0)
    return state


def handed(checkpoint_id: int, value: AttemptSnapshot) -> HandedOver:
    """Committables that an attempt hands over at a barrier."""
    return HandedOver(checkpoint_id=checkpoint_id, committables=tuple(value.committables))


def fresh_subtasks(parallelism: int) -> Map[int, SubtaskState]:
    """Subtasks that have had no attempt yet."""
    return Map({number: SubtaskState(subtask=number) for number in range(parallelism)})


CLOCK_US: Final = "clock_us"
"""Attribute with the reading of the driver's clock, microseconds since 1970, UTC; absent if it is the record's time."""

FAILURES: Final[frozenset[Kind]] = frozenset(
    {
        Kind.ATTEMPT_FAILED,
        Kind.GLOBAL_FAILURE,
        Kind.SUBTASK_RESET,
        Kind.RESET_TO_CHECKPOINT,
        Kind.COORDINATORS_STARTED,
        Kind.JOB_FAILED,
    }
)
"""Kinds of the records that the policy counts, and of those whose turns use the policy."""

_COUNT_MAX: Final = 1_000
"""Failures whose times are kept: far more than any policy counts."""


def failure_us(record: Record) -> int:
    """Time of a failure by its driver's clock: microseconds since 1970, UTC."""
    return int(record.attributes.get(CLOCK_US, record.timestamp_us))


def with_failure(state: JobState, record: Record, *, is_counted_by_default: bool) -> JobState:
    """The state with the failover of this record, if the restart policy counts it."""
    default = "true" if is_counted_by_default else "false"
    if record.attributes.get("counted", default) != "true":
        return state
    assert record.sequence is not None, "records of failovers are folded by sequence"
    return evolve(
        state,
        failures_us=(*state.failures_us, failure_us(record))[-_COUNT_MAX:],
        failure_sequence=record.sequence,
    )
