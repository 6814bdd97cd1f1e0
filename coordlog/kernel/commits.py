"""Decisions about commits: order of settling, retries and failures (H3: settle in order).

The intents of one operator are settled in the order of their checkpoints: an intent waits for the outcomes of earlier
checkpoints, so that the last commit is the last change outside. Intents of one checkpoint are settled in parallel, but
the intent to release input waits until all other operators have committed its rows.
"""

from __future__ import annotations

from coordlog.kernel import job_end
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import CommitSettled, GiveCommit
from coordlog.kernel.outputs import CallComplete, CallCreate, CallStart, Settle
from coordlog.projections.job.grants import COVERS, is_held_back, uncommitted
from coordlog.projections.job.state import JobState, OpenIntent, sorted_values
from coordlog.schemas.record import (
    BATCH_COMPLETE,
    NO_CHECKPOINT,
    Kind,
    Notified,
    RestoredBy,
)

__all__ = ["commit_settled", "conclude", "give_commit", "settle_open", "to_settle"]


def to_settle(state: JobState) -> list[Settle]:
    """The open intents that wait for no other: for each operator, those of its earliest checkpoint."""
    settles = []
    first: dict[str, int] = {}
    waiting: set[str] = set()
    for intent in sorted_values(state.intents):  # by sequence
        operator_id = intent.operator_id
        if first.setdefault(operator_id, intent.checkpoint_id) != intent.checkpoint_id:
            waiting.add(operator_id)
        if operator_id not in waiting and not is_held_back(state, intent):
            settles.append(_settle(intent))
    return settles


def settle_open(step: StepBuilder) -> None:
    """Settle open intents: an intent in the log is never dropped (E6: intents are settled)."""
    step.effects += to_settle(step.state)


def conclude(step: StepBuilder) -> None:
    """The first turn of a driver if all subtasks of a batch job have completed (I3: batch commit).

    New coordinators of operators with uncommitted committables are notified again; there is no reset.
    """
    if step.state.is_end_committed and job_end.fail_if_drivers_keep_ending(step):
        return  # the next start continues here, with a new count
    operator_ids, counted = uncommitted(step.state), job_end.counted_if_dead(step.state)
    if operator_ids or counted:
        step.add(Kind.COORDINATORS_STARTED, attributes={"restore": RestoredBy.CONCLUDE, **counted})
    for operator_id in operator_ids:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]
    for operator_id in operator_ids:
        step.add(
            Kind.COORDINATOR_NOTIFIED,
            operator_id=operator_id,
            checkpoint_id=BATCH_COMPLETE,
            attributes={"what": Notified.COMPLETE},
        )
        step.calls.append(CallComplete(operator_id=operator_id, checkpoint_id=BATCH_COMPLETE))
    settle_open(step)


def give_commit(step: StepBuilder, action: GiveCommit) -> None:
    """Record `COMMIT_INTENT`; it is settled once released and once no other intent comes first."""
    record = step.add(
        Kind.COMMIT_INTENT,
        operator_id=action.operator_id,
        checkpoint_id=action.checkpoint_id,
        payload_type=action.payload_type,
        payload=action.payload,
        attributes=None if action.covers is None else {COVERS: action.covers},
    )
    step.effects += [
        settle for settle in to_settle(step.state) if settle.sequence == record.sequence
    ]


def commit_settled(step: StepBuilder, outcome: CommitSettled) -> None:
    """Record `COMMIT_OUTCOME`; a failed commit is tried up to `settle_attempts_max` times."""
    intent = step.state.intents.get(outcome.sequence)
    if intent is None:
        return
    in_progress = {settle.sequence for settle in to_settle(step.state)}
    is_settled = outcome.error is None
    step.add(
        Kind.COMMIT_OUTCOME,
        operator_id=intent.operator_id,
        checkpoint_id=intent.checkpoint_id,
        cause=intent.sequence,
        payload_type=outcome.payload_type,
        payload=outcome.payload,
        reason=outcome.error,
        attributes={
            "settled": "true" if is_settled else "false",
            **job_end.final_of(outcome.final),
        },
    )
    if step.state.is_over:
        return
    if is_settled:
        step.effects += [
            settle for settle in to_settle(step.state) if settle.sequence not in in_progress
        ]
        return
    tries = intent.failed_tries + 1
    if outcome.final or tries >= step.config.settle_attempts_max:
        times = "once" if tries == 1 else f"{tries} times"
        commit = (
            "a commit"
            if intent.checkpoint_id == NO_CHECKPOINT
            else f"the commit of checkpoint {intent.checkpoint_id}"
        )
        job_end.fail_job(
            step,
            f"operator {intent.operator_id!r}: {commit} failed {times}: {outcome.error}",
            final=outcome.final,
        )
        return
    delay_s = min(step.config.restart_backoff_s * 2**tries, step.config.restart_backoff_max_s)
    step.effects.append(_settle(intent, delay_s))


def _settle(intent: OpenIntent, delay_s: float = 0.0) -> Settle:
    return Settle(
        sequence=intent.sequence,
        operator_id=intent.operator_id,
        checkpoint_id=intent.checkpoint_id,
        payload_type=intent.payload_type,
        payload=intent.payload,
        delay_s=delay_s,
    )
