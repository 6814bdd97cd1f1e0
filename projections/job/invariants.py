"""Invariants of a job's state after every turn, for every history."""

from __future__ import annotations

from collections.abc import Iterator

from coordlog.projections.job.grants import uncommitted
from coordlog.projections.job.state import JobState, PendingCheckpoint, Phase, sorted_items
from coordlog.projections.splits.fold import SplitsState
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = ["faults_of"]


def faults_of(state: JobState) -> tuple[str, ...]:
    """Violated invariants, in words; empty if there are none. For the state between two turns."""
    return (
        *_subtasks(state),
        *_gateways(state),
        *_checkpoints(state),
        *_commits(state),
        *_splits(state),
    )


def _subtasks(state: JobState) -> Iterator[str]:
    live = finished = 0
    for number, subtask in sorted_items(state.subtasks):
        attempt = subtask.attempt
        live += attempt is not None
        finished += subtask.completion is not None
        if attempt is None:
            continue
        name = f"attempt {number}/{attempt.attempt_number}"
        if subtask.completion is not None:
            yield f"{name} is live, and its subtask has finished"
        if attempt.attempt_number >= subtask.next_attempt_number:
            yield f"{name} is live, and the next number is {subtask.next_attempt_number}"
        if attempt.started_sequence >= state.next_sequence:
            yield f"{name} began at sequence {attempt.started_sequence}, which is to come"
        if attempt.epoch > state.epoch:
            yield f"{name} is of epoch {attempt.epoch}, and {state.epoch} is in force"
    if (live, finished) != (state.live_count, state.finished_count):
        yield (
            f"{live} attempts live and {finished} subtasks finished, but {state.live_count} and "
            f"{state.finished_count} are counted"
        )
    if state.phase is Phase.FINISHED and live:
        yield f"the job has finished, and {live} attempts live"


def _gateways(state: JobState) -> Iterator[str]:
    for (operator_id, subtask), gateway in sorted_items(state.gateways):
        name = f"the gateway of {operator_id!r} to {subtask}/{gateway.attempt_number}"
        if state.attempt(subtask, gateway.attempt_number) is None:
            yield f"{name} leads to an attempt that is over"
        if unknown := sorted(set(gateway.closed_by) - set(state.pending)):
            yield f"{name} is closed by {unknown}, which are not pending"
        if gateway.held and not gateway.held[0].held_by:
            yield f"{name} holds event {gateway.held[0].event.event_id}, and nothing holds that"
        for held in gateway.held:
            if not set(held.held_by) <= set(gateway.closed_by):
                yield f"{name} holds event {held.event.event_id} for {held.held_by}"
            if held.event.event_id not in gateway.unacked:
                yield f"{name} holds event {held.event.event_id}, which counts as acked"
        if late := [number for number in sorted(gateway.unacked) if number >= state.next_event_id]:
            yield f"{name} has event {late[0]} un-acked, and {state.next_event_id} is the next"


def _checkpoints(state: JobState) -> Iterator[str]:
    unacked = {event_id for gateway in state.gateways.values() for event_id in gateway.unacked}
    for number, pending in sorted_items(state.pending):
        name = f"checkpoint {number}"
        if not state.last_checkpoint < number < state.next_checkpoint_id:
            yield (
                f"{name} is pending, after {state.last_checkpoint} has completed and "
                f"with {state.next_checkpoint_id} as the next"
            )
        if lost := sorted(set(pending.waiting) - unacked):
            yield f"{name} waits for event {lost[0]}, which is not un-acked"
        if stray := sorted(set(pending.acks) - set(pending.attempts)):
            yield f"{name} has an ack of subtask {stray[0]}, which it does not wait for"
        if state.phase is Phase.RUNNING:
            yield from _waiting(state, name, pending)
        if state.phase is Phase.FINISHED:
            yield f"{name} is pending, and the job has finished"
    if state.last_checkpoint != NO_CHECKPOINT and state.last_checkpoint not in state.completed:
        yield f"checkpoint {state.last_checkpoint} is the last completed one, and is not retained"
    for name, number in sorted_items(state.savepoints):
        if number not in state.completed:
            yield f"checkpoint {number} is savepoint {name!r}, and is not retained"
    for number, completed in sorted_items(state.completed):
        have = {*completed.states, *completed.finished}
        if have != set(range(completed.parallelism)):
            yield f"checkpoint {number} holds the subtasks {sorted(have)} of {completed.parallelism}"


def _waiting(state: JobState, name: str, pending: PendingCheckpoint) -> Iterator[str]:
    for subtask, attempt_number in sorted_items(pending.attempts):
        if subtask not in pending.acks and state.attempt(subtask, attempt_number) is None:
            yield f"{name} waits for attempt {subtask}/{attempt_number}, which is over"


def _commits(state: JobState) -> Iterator[str]:
    for sequence, intent in sorted_items(state.intents):
        if sequence >= state.next_sequence or intent.sequence != sequence:
            yield f"an intent is stored at sequence {sequence} and names {intent.sequence}"
        last = max(
            (n for (name, _), n in sorted_items(state.last_intents) if name == intent.operator_id),
            default=NO_CHECKPOINT,
        )
        if intent.checkpoint_id > last:
            yield f"an intent of checkpoint {intent.checkpoint_id}, and {last} is the last"
    if state.phase is Phase.FINISHED and state.intents:
        yield f"the job has finished, and {len(state.intents)} intents have no outcome"
    if state.phase is Phase.FINISHED:
        for operator_id, count in uncommitted(state).items():
            if operator_id in state.away:
                continue  # it had been removed before the end, and has not worked since
            yield f"the job has finished, and {count} committables of {operator_id!r} are left"


def _splits(state: JobState) -> Iterator[str]:
    """A finished job has read, or skipped, every split that it knows (L6: no split waits)."""
    if state.phase is not Phase.FINISHED:
        return
    for operator_id, splits in sorted_items(state.projections):
        if not isinstance(splits, SplitsState):
            continue
        waiting = splits.unassigned()
        if waiting:
            yield (
                f"the job has finished, and {len(waiting)} of {len(splits.splits)} splits of "
                f"{operator_id!r} wait, the first {waiting[0]!r}"
            )
