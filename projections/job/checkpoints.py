"""Functions that apply the records of checkpoints and resets to the job state."""

from __future__ import annotations

from typing import Any, Final

from immutables import Map

from coordlog.projections.job.attempts import (
    gateway_of,
    handed,
    required,
    with_attempt,
    with_failure,
)
from coordlog.projections.job.branches import (
    abandoned_by_reset,
    allowed_by,
    needed_by,
    savepoint_numbers,
)
from coordlog.projections.job.grants import marks_of_grants
from coordlog.projections.job.remembered import weights
from coordlog.projections.job.state import (
    WRITTEN_AT,
    CompletedCheckpoint,
    Completion,
    Cut,
    FinishedPart,
    GatewayState,
    Granted,
    HeldEvent,
    JobState,
    PendingCheckpoint,
    Phase,
    SubtaskState,
    UpEvent,
    sorted_items,
    sorted_values,
)
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    CheckpointMetadata,
    CheckpointTriggered,
    Committable,
    OperatorState,
)
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import NO_CHECKPOINT, Record

__all__ = [
    "REFUSED_CONNECTIONS",
    "barrier_injected",
    "channel_state",
    "checkpoint_aborted",
    "checkpoint_acked",
    "checkpoint_completed",
    "checkpoint_triggered",
    "completed_from",
    "coordinator_checkpointed",
    "reset_to_checkpoint",
    "restoring_subtasks",
]

REFUSED_CONNECTIONS: Final = "refused_connections"
"""Attribute of `CHECKPOINT_TRIGGERED`: number of connections refused since the last trigger; absent if 0."""


def checkpoint_triggered(state: JobState, record: Record, value: CheckpointTriggered) -> JobState:
    """`CHECKPOINT_TRIGGERED`: the checkpoint waits for all coordinators and for the listed attempts."""
    checkpoint_id = required(record.checkpoint_id)
    pending = PendingCheckpoint(
        checkpoint_id=checkpoint_id,
        triggered_sequence=required(record.sequence),
        triggered_us=record.timestamp_us,
        attempts=Map({attempt.subtask: attempt.attempt_number for attempt in value.attempts}),
        finished=tuple(value.finished_subtasks),
    )
    return evolve(
        state,
        pending=state.pending.set(checkpoint_id, pending),
        next_checkpoint_id=checkpoint_id + 1,
    )


def coordinator_checkpointed(state: JobState, record: Record) -> JobState:
    """`COORDINATOR_CHECKPOINTED`: sets the operator's cut, and closes its gateways (G1: close at cut)."""
    checkpoint_id, operator_id = required(record.checkpoint_id), record.operator_id or ""
    pending = state.pending[checkpoint_id]
    gateways, waiting = state.gateways, pending.waiting
    for subtask, attempt_number in sorted_items(pending.attempts):
        if state.attempt(subtask, attempt_number) is None or subtask in pending.acks:
            continue
        gateway = gateway_of(state, operator_id, subtask, attempt_number)
        for event_id, event in sorted_items(gateway.unacked):
            if not event.is_loss_tolerant:
                waiting = waiting.set(event_id, None)
        closed = evolve(gateway, closed_by=(*gateway.closed_by, checkpoint_id))
        gateways = gateways.set((operator_id, subtask), closed)
    cut = Cut(
        sequence=required(record.sequence),
        state=record.payload,
        projection=state.projections.get(operator_id),
    )
    pending = evolve(pending, cuts=pending.cuts.set(operator_id, cut), waiting=waiting)
    return evolve(state, gateways=gateways, pending=state.pending.set(checkpoint_id, pending))


def _opened(gateway: GatewayState, checkpoint_id: int) -> GatewayState:
    """The gateway without this checkpoint as a reason to be closed (G3, F10: reopening).

    It still holds the first event that another checkpoint holds and all events after that one, to keep their order.
    """
    if checkpoint_id not in gateway.closed_by:
        return gateway
    held: list[HeldEvent] = []
    for event in gateway.held:
        holders = tuple(number for number in event.held_by if number != checkpoint_id)
        if holders or held:
            held.append(evolve(event, held_by=holders))
    closed_by = tuple(number for number in gateway.closed_by if number != checkpoint_id)
    return evolve(gateway, closed_by=closed_by, held=tuple(held))


def _open_gateways(state: JobState, checkpoint_id: int, subtask: int | None) -> JobState:
    gateways = state.gateways
    for key, gateway in sorted_items(gateways):
        if subtask is None or key[1] == subtask:
            opened = _opened(gateway, checkpoint_id)
            if opened is not gateway:
                gateways = gateways.set(key, opened)
    return evolve(state, gateways=gateways)


def checkpoint_acked(state: JobState, record: Record, value: AttemptSnapshot) -> JobState:
    """`CHECKPOINT_ACKED`: the attempt hands over its committables (I4: grants), and its gateways reopen.

    Committables are handed over even if the checkpoint is not pending any more.
    """
    subtask, checkpoint_id = required(record.subtask), required(record.checkpoint_id)
    attempt = state.attempt(subtask, required(record.attempt_number))
    assert attempt is not None, "a live attempt acks"
    handed_over = attempt.handed_over
    if value.committables:
        handed_over = (*handed_over, handed(checkpoint_id, value))
    state = with_attempt(
        state, evolve(attempt, last_barrier=checkpoint_id, handed_over=handed_over)
    )
    pending = state.pending.get(checkpoint_id)
    if pending is not None:
        pending = evolve(pending, acks=pending.acks.set(subtask, tuple(value.states)))
        state = evolve(state, pending=state.pending.set(checkpoint_id, pending))
    gateways = state.gateways
    for operator_id in state.operators:
        key = (operator_id, subtask)
        if key in gateways:
            gateways = gateways.set(key, _opened(gateways[key], checkpoint_id))
    return evolve(state, gateways=gateways)


def checkpoint_aborted(state: JobState, record: Record) -> JobState:
    """`CHECKPOINT_ABORTED`: its gateways reopen, and handed-over committables stay (E4: abort keeps data)."""
    checkpoint_id = required(record.checkpoint_id)
    state = _open_gateways(state, checkpoint_id, None)
    timed_out = record.attributes.get("timed_out") == "true"
    subsumed = record.attributes.get("subsumed") == "true"
    if state.finished_count == state.parallelism and not subsumed:
        # This is the last checkpoint of a stream. The job fails if it is aborted too often, with these reasons
        # (H5: last checkpoint).
        state = evolve(state, reasons=(record.reason or "", *state.reasons)[:5])
    return evolve(
        state,
        pending=state.pending.delete(checkpoint_id),
        aborts_in_a_row=state.aborts_in_a_row + (0 if subsumed else 1),
        timeouts_in_a_row=state.timeouts_in_a_row + (1 if timed_out else 0),
    )


def channel_state(state: JobState, pending: PendingCheckpoint) -> tuple[UpEvent, ...]:
    """Events of a checkpoint that attempts sent before the barrier and coordinators received after their cut.

    In log order.
    """
    events: list[UpEvent] = []
    for number in sorted({*pending.attempts, *pending.finished}):
        subtask = state.subtasks[number]
        if subtask.attempt is not None and number in pending.attempts:
            received = subtask.attempt.received
        elif subtask.completion is not None:
            received = subtask.completion.received
        else:
            continue
        for _, event in sorted_items(received):
            cut = pending.cuts.get(event.operator_id)
            is_before = event.last_barrier < pending.checkpoint_id
            if cut is not None and is_before and event.sequence > cut.sequence:
                events.append(event)
    return tuple(sorted(events, key=lambda event: event.sequence))


def completed_from(
    state: JobState, pending: PendingCheckpoint, sequence: int
) -> CompletedCheckpoint:
    """The completed checkpoint that a pending one becomes with the `CHECKPOINT_COMPLETED` at `sequence`."""
    return CompletedCheckpoint(
        checkpoint_id=pending.checkpoint_id,
        sequence=sequence,
        parallelism=state.parallelism,
        cuts=pending.cuts,
        states=pending.acks,
        finished=Map({n: _finished_part(state, n) for n in pending.finished}),
        in_flight=channel_state(state, pending),
        abandoned=state.abandoned,
        destinations=Map(state.launch_info.destinations),
    )


def checkpoint_completed(state: JobState, record: Record, value: CheckpointMetadata) -> JobState:
    """`CHECKPOINT_COMPLETED`: failovers now reset to it, and its committables are granted."""
    checkpoint_id = required(record.checkpoint_id)
    pending = state.pending[checkpoint_id]
    completed = completed_from(state, pending, required(record.sequence))
    state = _granted(state, pending)
    state = _open_gateways(state, checkpoint_id, None)
    state = _pruned(state, pending)
    retained, savepoints = state.completed.set(checkpoint_id, completed), savepoint_numbers(state)
    for old, _ in sorted_items(retained):
        if old < value.oldest_retained and old not in savepoints:
            retained = retained.delete(old)
    return evolve(
        state,
        set_aside=needed_by(state, state.set_aside, retained),
        pending=state.pending.delete(checkpoint_id),
        completed=retained,
        last_checkpoint=checkpoint_id,
        owed_complete=checkpoint_id,
        aborts_in_a_row=0,
        timeouts_in_a_row=0,
    )


def _finished_part(state: JobState, number: int) -> FinishedPart:
    completion = state.subtasks[number].completion
    assert completion is not None, "a finished subtask has a completion"
    return FinishedPart(
        attempt_number=completion.attempt_number,
        sequence=completion.sequence,
        states=completion.states,
    )


def _granted(state: JobState, pending: PendingCheckpoint) -> JobState:
    """The state with grants for the committables of acked attempts and of finished subtasks (I4: grants)."""
    grants: list[Granted] = []
    ends: list[int] = []
    for number in sorted({*pending.acks, *pending.finished}):
        subtask = state.subtasks[number]
        attempt, completion = subtask.attempt, subtask.completion
        if completion is not None and completion.all_committables():
            ends.append(completion.sequence)
        if number in pending.finished:
            assert completion is not None, "a finished subtask has a completion"
            attempt_number, committables = completion.attempt_number, completion.all_committables()
            emptied = evolve(completion, handed_over=(), ungranted=())
            subtask = evolve(subtask, completion=emptied)
        elif attempt is not None:
            attempt_number = attempt.attempt_number
            handovers = attempt.handed_over
            covered = [item for item in handovers if item.checkpoint_id <= pending.checkpoint_id]
            later = [item for item in handovers if item.checkpoint_id > pending.checkpoint_id]
            committables = tuple(part for item in covered for part in item.committables)
            subtask = evolve(subtask, attempt=evolve(attempt, handed_over=tuple(later)))
        else:
            # It acked at its barrier and has completed since: later committables wait for the next checkpoint.
            attempt_number, committables, subtask = _split_completion(subtask, pending)
        state = evolve(state, subtasks=state.subtasks.set(number, subtask))
        grants.extend(
            Granted(
                operator_id=committable.operator_id,
                subtask=number,
                attempt_number=attempt_number,
                split_id=None,
                content=committable.content,
            )
            for committable in committables
        )
    if not grants:
        return state
    return evolve(
        state,
        granted=state.granted.set(pending.checkpoint_id, tuple(grants)),
        launch=marks_of_grants(state, pending.checkpoint_id, ends),
    )


def _split_completion(
    subtask: SubtaskState, pending: PendingCheckpoint
) -> tuple[int, tuple[Committable, ...], SubtaskState]:
    completion = subtask.completion
    assert completion is not None, "an attempt that acked is live or has completed"
    handovers = completion.handed_over
    covered = [item for item in handovers if item.checkpoint_id <= pending.checkpoint_id]
    later = [item for item in handovers if item.checkpoint_id > pending.checkpoint_id]
    changed = evolve(completion, handed_over=tuple(later))
    committables = tuple(part for item in covered for part in item.committables)
    return completion.attempt_number, committables, evolve(subtask, completion=changed)


def _pruned(state: JobState, pending: PendingCheckpoint) -> JobState:
    """The state without the remembered events that no later failover needs."""
    oldest_cuts = _oldest_cuts_above(state, pending.checkpoint_id)

    def needed(received: Map[int, UpEvent]) -> Map[int, UpEvent]:
        for sequence, event in sorted_items(received):
            # Events that cross the cut of a pending checkpoint stay: they are its channel state.
            is_needed = sequence > oldest_cuts.get(event.operator_id, sequence)
            if event.last_barrier < pending.checkpoint_id and not is_needed:
                received = received.delete(sequence)
        return received

    subtasks, remembered = state.subtasks, state.remembered_bytes
    for number in sorted({*pending.attempts, *pending.finished}):
        subtask = subtasks[number]
        if subtask.attempt is not None:
            before, sent = subtask.attempt, subtask.attempt.sent
            for sequence, down in sorted_items(sent):
                cut = pending.cuts.get(down.operator_id)
                if cut is not None and sequence < cut.sequence:
                    sent = sent.delete(sequence)
            # Events are forgotten only while no checkpoint is pending, so before the trigger of this one. Failovers to
            # it do not need them.
            attempt = evolve(
                before, received=needed(before.received), sent=sent, has_forgotten=False
            )
            remembered += weights(attempt.received, sent) - weights(before.received, before.sent)
            subtasks = subtasks.set(number, evolve(subtask, attempt=attempt))
        elif subtask.completion is not None:
            received = needed(subtask.completion.received)
            remembered += weights(received) - weights(subtask.completion.received)
            completion = evolve(subtask.completion, received=received)
            subtasks = subtasks.set(number, evolve(subtask, completion=completion))
    return evolve(state, subtasks=subtasks, remembered_bytes=remembered)


def _oldest_cuts_above(state: JobState, checkpoint_id: int) -> dict[str, int]:
    """Sequence of the cut of the oldest pending checkpoint above `checkpoint_id`, by operator."""
    oldest: dict[str, int] = {}
    for number, checkpoint in sorted_items(state.pending):
        if number > checkpoint_id:
            for operator_id, cut in sorted_items(checkpoint.cuts):
                oldest.setdefault(operator_id, cut.sequence)
    return oldest


def reset_to_checkpoint(state: JobState, record: Record, initial: Map[str, Any]) -> JobState:
    """`RESET_TO_CHECKPOINT`: the state at that checkpoint, or at the start if it is -1; some fields are not reset."""
    checkpoint_id = required(record.checkpoint_id)
    checkpoint = None if checkpoint_id == NO_CHECKPOINT else state.completed[checkpoint_id]
    finished_count = 0
    former, subtasks = state.subtasks.update(state.retired), Map[int, SubtaskState]()
    launch = state.launch
    for number in range(state.parallelism):
        completion = None if checkpoint is None else _completion_in(state, checkpoint, number)
        if checkpoint is not None and completion is not None:
            numbers = restoring_subtasks(checkpoint.parallelism, state.parallelism, number)
            written = state.written_at(checkpoint.finished[one].sequence for one in numbers)
            if len(written) > 1:
                mark = f"{WRITTEN_AT}{completion.sequence}"
                launch = launch.set(mark, " ".join(map(str, written)))
        finished_count += completion is not None
        changed = evolve(
            former.get(number) or SubtaskState(subtask=number),
            restore_from=checkpoint_id,
            is_reset=True,
            attempt=None,
            completion=completion,
        )
        subtasks = subtasks.set(number, changed)
    retired = Map[int, SubtaskState]()
    for number, subtask in sorted_items(former):
        if number >= state.parallelism:
            retired = retired.set(number, evolve(subtask, attempt=None, completion=None))
    projections = initial
    if checkpoint is not None:
        for operator_id, cut in sorted_items(checkpoint.cuts):
            if operator_id in initial:
                projections = projections.set(operator_id, cut.projection)
    retained, savepoints = state.completed, savepoint_numbers(state)
    granted, other_grants = allowed_by(state, checkpoint_id)
    for other, _ in sorted_items(retained):
        if other > checkpoint_id and other not in savepoints:
            retained = retained.delete(other)
    return evolve(
        with_failure(state, record, is_counted_by_default=True),
        phase=Phase.RUNNING,
        is_another_jobs=False,
        subtasks=subtasks,
        retired=retired,
        finished_count=finished_count,
        live_count=0,
        stale=(),
        gateways=Map(),
        remembered_bytes=0,
        pending=Map(),
        completed=retained,
        last_checkpoint=checkpoint_id,
        abandoned=abandoned_by_reset(state, checkpoint_id),
        granted=granted,
        set_aside=needed_by(state, other_grants, retained),
        launch=launch,
        kept_splits=Map(),
        owed_redeliveries=() if checkpoint is None else checkpoint.in_flight,
        owed_complete=None if checkpoint is None else checkpoint_id,
        is_restore_owed=checkpoint is not None,
        aborts_in_a_row=0,
        timeouts_in_a_row=0,
        projections=projections,
    )


def restoring_subtasks(old_parallelism: int, parallelism: int, subtask: int) -> tuple[int, ...]:
    """Numbers of the checkpoint's subtasks whose states restore this subtask of the job (E7: rescaling).

    The first is the subtask's own number. If the parallelism is lower than before, the removed subtasks follow, round
    robin; if it is higher, an added subtask has none and begins without state.
    """
    if parallelism == old_parallelism:
        return (subtask,)
    return tuple(range(subtask, old_parallelism, min(old_parallelism, parallelism)))


def states_of(state: JobState, subtask: int) -> tuple[OperatorState, ...]:
    """States that restore the next attempt of a subtask. After a rescaling an operator may have several."""
    checkpoint = state.completed.get(state.subtasks[subtask].restore_from)
    if checkpoint is None:
        return ()
    states: list[OperatorState] = []
    for number in restoring_subtasks(checkpoint.parallelism, state.parallelism, subtask):
        part = checkpoint.finished.get(number)
        states.extend(checkpoint.states.get(number, ()) if part is None else part.states)
    return tuple(states)


def _completion_in(
    state: JobState, checkpoint: CompletedCheckpoint, subtask: int
) -> Completion | None:
    """Completion of a subtask if all subtasks that restore it had finished at the checkpoint, else None."""
    numbers = restoring_subtasks(checkpoint.parallelism, state.parallelism, subtask)
    parts = [checkpoint.finished[number] for number in numbers if number in checkpoint.finished]
    if not numbers or len(parts) < len(numbers):
        return None
    return Completion(
        attempt_number=max(part.attempt_number for part in parts),
        sequence=max(part.sequence for part in parts),
        states=tuple(state for part in parts for state in part.states),
        ungranted=(),
    )


def coordinator_state(state: JobState, checkpoint_id: int, operator_id: str) -> bytes | None:
    """Bytes to reset a coordinator to. None if there are none, as for a coordinator whose state is its projection."""
    checkpoint = state.completed.get(checkpoint_id)
    cut = None if checkpoint is None else checkpoint.cuts.get(operator_id)
    return None if cut is None else cut.state


def missing_parts(state: JobState, pending: PendingCheckpoint, operators: tuple[str, ...]) -> str:
    """Text that lists the missing cuts and acks of a pending checkpoint (F12: abort reasons)."""
    coordinators = [operator_id for operator_id in operators if operator_id not in pending.cuts]
    late = late_attempts(state, pending)
    subtasks = ", ".join(str(subtask) for subtask, _ in late)
    parts = []
    if coordinators:
        parts.append(f"cuts of the coordinators {', '.join(coordinators)}")
    if pending.waiting:
        count = len(pending.waiting)
        parts.append(f"acks of {count} events sent before the cuts, of the subtasks {subtasks}")
    if pending.is_injected and late:
        parts.append(f"acks of the subtasks {subtasks}")
    return " and ".join(parts) or "nothing"


def late_attempts(state: JobState, pending: PendingCheckpoint) -> list[tuple[int, int]]:
    """Subtask and attempt number of each attempt that still has to ack: the barrier, or events before the cuts."""
    if pending.is_injected:
        return [
            attempt for attempt in sorted_items(pending.attempts) if attempt[0] not in pending.acks
        ]
    late: dict[int, int] = {}
    for (_, subtask), gateway in sorted_items(state.gateways):
        if any(event_id in pending.waiting for event_id in sorted(gateway.unacked)):
            late[subtask] = gateway.attempt_number
    return sorted(late.items())


def held_committables(state: JobState, operator_id: str) -> tuple[bytes, ...]:
    """Contents of all committables of an operator in the job state, on any branch. Their files must be kept."""
    held: list[Committable] = []
    for subtask in sorted_values(state.subtasks):
        if subtask.attempt is not None:
            for handover in subtask.attempt.handed_over:
                held.extend(handover.committables)
        if subtask.completion is not None:
            held.extend(subtask.completion.all_committables())
    for kept_split in sorted_values(state.kept_splits):
        held.extend(kept_split.committables)
    contents = [
        committable.content for committable in held if committable.operator_id == operator_id
    ]
    for grants in (*sorted_values(state.granted), *sorted_values(state.set_aside)):
        contents.extend(grant.content for grant in grants if grant.operator_id == operator_id)
    return tuple(contents)


def barrier_injected(state: JobState, record: Record) -> JobState:
    """`BARRIER_INJECTED`: all cuts are recorded, and all events sent before them are acked."""
    checkpoint_id = required(record.checkpoint_id)
    pending = evolve(state.pending[checkpoint_id], is_injected=True)
    return evolve(state, pending=state.pending.set(checkpoint_id, pending))
