"""Decisions about checkpoints: triggering, cuts, barriers, acks, completing, aborting (clauses F and G)."""

from __future__ import annotations

from dataclasses import replace

from coordlog.kernel import refusals
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import (
    CheckpointDue,
    CheckpointReleased,
    CompleteCheckpoint,
    FailCheckpoint,
)
from coordlog.kernel.outputs import (
    CallAborted,
    CallCheckpoint,
    CallComplete,
    CompletedReleased,
    DeliverEvent,
    InjectBarrier,
    NotifyAttempt,
    StartCheckpointTimer,
)
from coordlog.limits import RECORD_BYTES_MAX
from coordlog.projections.job.branches import savepoint_numbers
from coordlog.projections.job.checkpoint_digest import digest_of_checkpoint, fingerprints_of
from coordlog.projections.job.checkpoints import (
    REFUSED_CONNECTIONS,
    completed_from,
)
from coordlog.projections.job.state import (
    GatewayState,
    HeldEvent,
    JobState,
    PendingCheckpoint,
    Phase,
    sorted_items,
    sorted_values,
)
from coordlog.schemas.builtin_types import (
    AttemptRef,
    CheckpointMetadata,
    CheckpointTriggered,
    CoordinatorCut,
    FinishedSubtask,
    SubtaskSnapshot,
)
from coordlog.schemas.record import Kind, Notified

__all__ = [
    "abort",
    "advance",
    "can_trigger",
    "checkpoint_due",
    "checkpoint_released",
    "complete_checkpoint",
    "deliver_released",
    "fail_checkpoint",
    "gateways_of",
    "last_is_final",
    "notify_complete",
]


def can_trigger(state: JobState, *, is_overlap_allowed: bool) -> bool:
    """Whether a checkpoint may start now (F8: when checkpoints start)."""
    return (
        state.phase is Phase.RUNNING
        and not state.is_batch
        and not state.is_restoring
        and state.owed_complete is None
        and (is_overlap_allowed or not state.pending)
        and state.live_count + state.finished_count == state.parallelism
    )


def checkpoint_due(step: StepBuilder, due: CheckpointDue) -> None:
    """Trigger a checkpoint if it may start; no barrier is sent before all cuts (F1: coordinators first)."""
    state = step.state
    if not can_trigger(state, is_overlap_allowed=step.config.is_overlap_allowed):
        return
    live, finished = [], []
    for subtask in sorted_values(state.subtasks):
        if subtask.attempt is not None:
            live.append(
                AttemptRef(subtask=subtask.subtask, attempt_number=subtask.attempt.attempt_number)
            )
        else:
            finished.append(subtask.subtask)
    checkpoint_id = state.next_checkpoint_id
    step.add(
        Kind.CHECKPOINT_TRIGGERED,
        checkpoint_id=checkpoint_id,
        value=CheckpointTriggered(attempts=live, finished_subtasks=finished),
        attributes=(
            {REFUSED_CONNECTIONS: str(due.refused_connections)} if due.refused_connections else {}
        ),
    )
    step.effects.append(StartCheckpointTimer(checkpoint_id=checkpoint_id))
    step.call_all(
        lambda operator_id: CallCheckpoint(operator_id=operator_id, checkpoint_id=checkpoint_id)
    )
    advance(step)


def complete_checkpoint(step: StepBuilder, action: CompleteCheckpoint) -> None:
    """Record a coordinator's cut. Does nothing if the checkpoint is aborted (F6: late results)."""
    pending = step.state.pending.get(action.checkpoint_id)
    if pending is None or action.operator_id in pending.cuts:
        return
    if action.operator_id not in step.config.operators:
        return  # `_is_cut` counts cuts: one of an unknown operator would count for a missing one (F9: complete sets)
    for older, checkpoint in sorted_items(step.state.pending):
        # Barriers keep the order of their checkpoints, so cuts must keep it too (F10: overlapping checkpoints).
        if older < action.checkpoint_id and action.operator_id not in checkpoint.cuts:
            abort(
                step,
                older,
                f"operator {action.operator_id!r} completed its part of checkpoint "
                f"{action.checkpoint_id} first",
            )
    step.add(
        Kind.COORDINATOR_CHECKPOINTED,
        operator_id=action.operator_id,
        checkpoint_id=action.checkpoint_id,
        payload=action.state,
        attributes={"state": "folded" if action.state is None else "bytes"},
    )
    advance(step)


def fail_checkpoint(step: StepBuilder, action: FailCheckpoint) -> None:
    """Abort a checkpoint because a coordinator failed its part; the job continues (F5: failed results)."""
    if action.checkpoint_id in step.state.pending:
        abort(step, action.checkpoint_id, f"operator {action.operator_id!r}: {action.reason}")


def advance(step: StepBuilder) -> None:
    """Inject and complete the checkpoints that are ready, oldest first. Returns at once if none is pending."""
    if not step.state.pending:
        return
    for checkpoint_id in sorted(step.state.pending):
        # Completing a checkpoint removes older ones only, so this one is still pending.
        pending = step.state.pending[checkpoint_id]
        if not pending.is_injected and _is_cut(step.state, pending):
            _inject(step, pending)
            pending = step.state.pending[checkpoint_id]
        if pending.is_injected and len(pending.acks) == len(pending.attempts):
            _complete(step, pending)


def can_advance(state: JobState) -> bool:
    """Whether `advance` would inject or complete a checkpoint."""
    return any(
        len(pending.acks) == len(pending.attempts)
        if pending.is_injected
        else _is_cut(state, pending)
        for pending in state.pending.values()
    )


def _is_cut(state: JobState, pending: PendingCheckpoint) -> bool:
    return len(pending.cuts) == len(state.operators) and not pending.waiting


def _inject(step: StepBuilder, pending: PendingCheckpoint) -> None:
    checkpoint_id = pending.checkpoint_id
    for subtask, attempt_number in sorted_items(pending.attempts):
        step.add(
            Kind.BARRIER_INJECTED,
            subtask=subtask,
            attempt_number=attempt_number,
            checkpoint_id=checkpoint_id,
        )
        step.effects.append(
            InjectBarrier(
                subtask=subtask, attempt_number=attempt_number, checkpoint_id=checkpoint_id
            )
        )
    if not pending.attempts:
        step.add(Kind.BARRIER_INJECTED, checkpoint_id=checkpoint_id)


def _complete(step: StepBuilder, pending: PendingCheckpoint) -> None:
    checkpoint_id = pending.checkpoint_id
    savepoints = savepoint_numbers(step.state)
    others = [number for number in sorted(step.state.completed) if number not in savepoints]
    retained = [*others, checkpoint_id][-step.config.retained_checkpoints :]
    before = dict(step.state.gateways.items())
    attributes = {}
    metadata = _metadata(step, pending, retained[0])
    key, encoded = refusals.encoded(metadata)
    if len(encoded) > RECORD_BYTES_MAX:
        # Folds do not need the states here: they read them from the records of the cuts and acks.
        attributes["states"] = "in the records of its cuts and acks"
        key, encoded = refusals.encoded(_without_states(metadata))
    if len(encoded) > RECORD_BYTES_MAX:
        abort(step, checkpoint_id, refusals.too_large("its metadata", encoded))
        return
    step.add(
        Kind.CHECKPOINT_COMPLETED,
        checkpoint_id=checkpoint_id,
        cause=pending.triggered_sequence,
        payload_type=key,
        payload=encoded,
        attributes=attributes,
    )
    deliver_released(step, before)
    for older in sorted(step.state.pending):
        if older < checkpoint_id:
            abort(step, older, f"checkpoint {checkpoint_id} completed first", is_subsumed=True)
    step.effects.append(CompletedReleased(checkpoint_id=checkpoint_id))
    _notify_attempts(step, checkpoint_id, is_completed=True)


def _metadata(
    step: StepBuilder, pending: PendingCheckpoint, oldest_retained: int
) -> CheckpointMetadata:
    state = step.state
    completed = completed_from(state, pending, state.next_sequence)  # as the fold computes it
    subtasks = [
        SubtaskSnapshot(
            subtask=subtask,
            attempt_number=pending.attempts[subtask],
            states=list(states),
        )
        for subtask, states in sorted_items(pending.acks)
    ]
    finished = [
        FinishedSubtask(
            subtask=number, attempt_number=part.attempt_number, states=list(part.states)
        )
        for number, part in sorted_items(completed.finished)
    ]
    return CheckpointMetadata(
        metadata_version=3,
        job_id=state.job_id,
        epoch=state.epoch,
        checkpoint_id=pending.checkpoint_id,
        triggered_sequence=pending.triggered_sequence,
        cluster_id=step.config.cluster_id,
        topic_id=step.config.topic_id,
        parallelism=state.parallelism,
        coordinators=[
            CoordinatorCut(
                operator_id=operator_id,
                sequence=cut.sequence,
                state=cut.state,
            )
            for operator_id, cut in sorted_items(pending.cuts)
        ],
        subtasks=subtasks,
        finished=finished,
        in_flight_events=[event.sequence for event in completed.in_flight],
        oldest_retained=oldest_retained,
        schemas=fingerprints_of(state),
        state_sha256=digest_of_checkpoint(completed),
    )


def _without_states(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """The metadata without the states; their hash stays."""
    return replace(
        metadata,
        coordinators=[replace(cut, state=None) for cut in metadata.coordinators],
        subtasks=[replace(part, states=[]) for part in metadata.subtasks],
        finished=[replace(part, states=[]) for part in metadata.finished],
    )


def abort(
    step: StepBuilder,
    checkpoint_id: int,
    reason: str,
    *,
    is_subsumed: bool = False,
    is_timed_out: bool = False,
    is_notified: bool = True,
) -> None:
    """Abort a checkpoint: deliver events that it alone held, notify coordinators and attempts (G3, H2: aborts)."""
    before = dict(step.state.gateways.items())
    attributes = {}
    if is_subsumed:
        attributes["subsumed"] = "true"
    if is_timed_out:
        attributes["timed_out"] = "true"
    step.add(
        Kind.CHECKPOINT_ABORTED,
        checkpoint_id=checkpoint_id,
        reason=reason,
        attributes=attributes,
    )
    deliver_released(step, before)
    if not is_notified:
        return
    for operator_id in step.config.operators:
        step.add(
            Kind.COORDINATOR_NOTIFIED,
            operator_id=operator_id,
            checkpoint_id=checkpoint_id,
            attributes={"what": Notified.ABORTED},
        )
    step.call_all(
        lambda operator_id: CallAborted(operator_id=operator_id, checkpoint_id=checkpoint_id)
    )
    _notify_attempts(step, checkpoint_id, is_completed=False)


def checkpoint_released(step: StepBuilder, release: CheckpointReleased) -> None:
    """Notify the coordinators that a checkpoint has completed, once the log has it (H1: notify after release)."""
    if step.state.owed_complete != release.checkpoint_id or step.state.phase is not Phase.RUNNING:
        return
    notify_complete(step, release.checkpoint_id)


def notify_complete(step: StepBuilder, checkpoint_id: int) -> None:
    """Record `COORDINATOR_NOTIFIED` for each coordinator, and call its `notify_checkpoint_complete`."""
    for operator_id in step.config.operators:
        step.add(
            Kind.COORDINATOR_NOTIFIED,
            operator_id=operator_id,
            checkpoint_id=checkpoint_id,
            attributes={"what": Notified.COMPLETE},
        )
    step.call_all(
        lambda operator_id: CallComplete(operator_id=operator_id, checkpoint_id=checkpoint_id)
    )
    if not step.config.operators:
        step.add(
            Kind.COORDINATOR_NOTIFIED,
            checkpoint_id=checkpoint_id,
            attributes={"what": Notified.COMPLETE},
        )


def _notify_attempts(step: StepBuilder, checkpoint_id: int, *, is_completed: bool) -> None:
    for subtask in sorted_values(step.state.subtasks):
        if subtask.attempt is not None:
            step.effects.append(
                NotifyAttempt(
                    subtask=subtask.subtask,
                    attempt_number=subtask.attempt.attempt_number,
                    checkpoint_id=checkpoint_id,
                    is_completed=is_completed,
                )
            )


def gateways_of(state: JobState, subtask: int) -> dict[tuple[str, int], GatewayState]:
    """The gateways of a subtask, by operator id and subtask."""
    keys = [(operator_id, subtask) for operator_id in state.operators]
    return {key: state.gateways[key] for key in keys if key in state.gateways}


def deliver_released(step: StepBuilder, before: dict[tuple[str, int], GatewayState]) -> None:
    """Deliver events, in send order, that were held in `before` and are not held now (G2: order of held events)."""
    released: list[HeldEvent] = []
    for key in sorted(before):
        old, new = before[key], step.state.gateways[key]
        if new is not old:
            still_held = {held.event.event_id for held in new.held}
            released.extend(held for held in old.held if held.event.event_id not in still_held)
    released.sort(key=lambda held: held.event.sequence)
    step.effects.extend(DeliverEvent(event=held.event) for held in released)


def last_is_final(state: JobState) -> bool:
    """Whether all subtasks had finished at the last completed checkpoint."""
    return state.finished_in(state.last_checkpoint) == state.parallelism
