"""Decisions about commits: which intent its sink settles, when, and what becomes of one that it cannot (clause H3).

The intents of one operator are settled in the order of their checkpoints: a later one waits for the outcome of the
earlier, so that what stands outside last is what was committed last. Those of one checkpoint are settled side by side.
"""

from __future__ import annotations

from coordlog.kernel import job_end
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import CommitSettled, GiveCommit
from coordlog.kernel.outputs import CallComplete, CallCreate, CallStart, Settle
from coordlog.projections.job.grants import COVERS, uncommitted
from coordlog.projections.job.reopen import CONCLUDE
from coordlog.projections.job.state import JobState, OpenIntent, sorted_values
from coordlog.schemas.record import BATCH_COMPLETE, Kind

__all__ = ["commit_settled", "conclude", "give_commit", "settle_open", "to_settle"]


def to_settle(state: JobState) -> list[Settle]:
    """The open intents that wait for no other: of each operator those before one of another checkpoint."""
    found = []
    first: dict[str, int] = {}
    waiting: set[str] = set()
    for intent in sorted_values(state.intents):  # by sequence
        operator_id = intent.operator_id
        if first.setdefault(operator_id, intent.checkpoint_id) != intent.checkpoint_id:
            waiting.add(operator_id)
        if operator_id not in waiting:
            found.append(_settle(intent))
    return found


def settle_open(step: StepBuilder) -> None:
    """An intent in the log is carried out, never dropped (clause E6)."""
    step.effects += to_settle(step.state)


def conclude(step: StepBuilder) -> None:
    """The first turn of a driver that finds a batch job with all subtasks completed (clause I3).

    The coordinators that have committables left are made anew and notified again; there is no reset.
    """
    if step.state.is_end_committed and job_end.is_given_up(step):
        return  # the start after that goes on here, and counts afresh
    left, counted = uncommitted(step.state), job_end.counted_if_dead(step.state)
    if left or counted:
        step.add(Kind.COORDINATORS_STARTED, attributes={"restore": CONCLUDE, **counted})
    for operator_id in left:
        step.calls += [CallCreate(operator_id=operator_id), CallStart(operator_id=operator_id)]
    for operator_id in left:
        step.add(
            Kind.COORDINATOR_NOTIFIED,
            operator_id=operator_id,
            checkpoint_id=BATCH_COMPLETE,
            attributes={"what": "complete"},
        )
        step.calls.append(CallComplete(operator_id=operator_id, checkpoint_id=BATCH_COMPLETE))
    settle_open(step)


def give_commit(step: StepBuilder, given: GiveCommit) -> None:
    """`COMMIT_INTENT`; settled after release, and after those of the operator's earlier checkpoints."""
    record = step.add(
        Kind.COMMIT_INTENT,
        operator_id=given.operator_id,
        checkpoint_id=given.checkpoint_id,
        payload_type=given.payload_type,
        payload=given.payload,
        attributes=None if given.covers is None else {COVERS: given.covers},
    )
    step.effects += [one for one in to_settle(step.state) if one.sequence == record.sequence]


def commit_settled(step: StepBuilder, given: CommitSettled) -> None:
    """`COMMIT_OUTCOME`; a sink that could not is tried again, within bounds."""
    intent = step.state.intents.get(given.sequence)
    if intent is None:
        return
    under_way = {one.sequence for one in to_settle(step.state)}
    is_settled = given.error is None
    step.add(
        Kind.COMMIT_OUTCOME,
        operator_id=intent.operator_id,
        checkpoint_id=intent.checkpoint_id,
        cause=intent.sequence,
        payload_type=given.payload_type,
        payload=given.payload,
        reason=given.error,
        attributes={
            "settled": "true" if is_settled else "false",
            **job_end.final_of(given.final),
        },
    )
    if step.state.is_over:
        return
    if is_settled:
        step.effects += [one for one in to_settle(step.state) if one.sequence not in under_way]
        return
    tries = intent.failed_tries + 1
    if given.final or tries >= step.config.settle_attempts_max:
        times = "once" if tries == 1 else f"{tries} times"
        job_end.fail_job(
            step,
            f"operator {intent.operator_id!r}: the commit of checkpoint {intent.checkpoint_id} "
            f"failed {times}: {given.error}",
            final=given.final,
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
