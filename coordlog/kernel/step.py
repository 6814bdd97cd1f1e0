"""`step(config, state, input) -> Step`: records, calls and effects of one input. Pure: the runtime carries them out.

A turn is one `step` of an input, then its calls; each action of a call is a further step (`act`). Inputs that `due`
returns are turns of their own, before any other input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from coordlog.kernel import (
    attempts,
    checkpoints,
    commits,
    events,
    failover,
    from_attempts,
    job_end,
    requests,
)
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.kernel.driver_requests import asked_by
from coordlog.kernel.inputs import (
    Action,
    AdvanceCheckpoints,
    AttemptLost,
    AttemptRegistered,
    CheckpointDue,
    CheckpointReleased,
    CheckpointTimedOut,
    CommitSettled,
    CompleteCheckpoint,
    Conclude,
    DriverStops,
    FailCheckpoint,
    FailGlobally,
    FinishJob,
    FromAttempt,
    GiveCommit,
    Input,
    RecordFact,
    Redeliver,
    RegisterType,
    Reopen,
    RequestArrived,
    Respond,
    Resume,
    Rollback,
    SendEvent,
    StaleAttempt,
    Start,
    StopAsked,
    TakeSnapshot,
    TellRestored,
    WorkDone,
)
from coordlog.kernel.outputs import Step
from coordlog.projections.job.state import JobState, Phase
from coordlog.schemas.record import Kind

__all__ = ["act", "due", "is_final_owed", "is_ready_for_attempts", "step"]


def step(config: KernelConfig, state: JobState, input_: Input, now_us: int) -> Step:
    """The result of an input. `now_us` is the clock's reading, in microseconds since 1970, UTC; it enters the records.

    Times of records never decrease: if the reading is before the last record's time, that time is used.
    """
    builder = _builder(config, state, now_us)
    _dispatch(builder, input_)
    return builder.built()


def act(config: KernelConfig, state: JobState, action: Action, now_us: int) -> Step:
    """The result of an action of a coordinator's code within a turn."""
    builder = _builder(config, state, now_us)
    match action:
        case SendEvent():
            events.send_event(builder, action)
        case CompleteCheckpoint():
            checkpoints.complete_checkpoint(builder, action)
        case FailCheckpoint():
            checkpoints.fail_checkpoint(builder, action)
        case RecordFact():
            failover.record_fact(builder, action)
        case GiveCommit():
            commits.give_commit(builder, action)
        case Respond():
            requests.respond(builder, action)
        case _:
            assert_never(action)
    return builder.built()


def _builder(config: KernelConfig, state: JobState, now_us: int) -> StepBuilder:
    placed_us = max(now_us, state.timestamp_us)
    return StepBuilder(config=config, state=state, now_us=placed_us, clock_us=now_us)


def _dispatch(builder: StepBuilder, input_: Input) -> None:
    match input_:
        case FromAttempt():
            from_attempts.message_arrived(builder, input_)
        case RequestArrived():
            requests.request_arrived(builder, input_)
        case AttemptRegistered():
            attempts.attempt_registered(builder, input_)
        case AttemptLost():
            attempts.attempt_lost(builder, input_)
        case StaleAttempt():
            attempts.reset_stale_subtask(builder, input_.subtask)
        case CheckpointDue():
            checkpoints.checkpoint_due(builder, input_)
        case CheckpointTimedOut():
            failover.checkpoint_timed_out(builder, input_)
        case CheckpointReleased():
            checkpoints.checkpoint_released(builder, input_)
        case CommitSettled():
            commits.commit_settled(builder, input_)
        case WorkDone():
            failover.work_done(builder, input_)
        case FailGlobally():
            job_end.fail_globally(builder, input_)
        case Start():
            failover.start(builder)
        case Resume():
            failover.resume(builder)
        case Rollback():
            failover.rollback(builder, input_)
        case Reopen():
            failover.reopen(builder)
        case Redeliver():
            failover.redeliver(builder)
        case TellRestored():
            failover.tell_restored(builder)
        case AdvanceCheckpoints():
            checkpoints.advance(builder)
        case Conclude():
            commits.conclude(builder)
        case FinishJob():
            job_end.finish_job(builder, input_)
        case StopAsked():
            job_end.record_stop(builder, input_)
        case DriverStops():
            job_end.record_end_of_driver(builder, input_)
        case RegisterType():
            builder.register(input_.payload_type)
        case TakeSnapshot():
            assert input_.payload_type in builder.state.types, "its turn has one record"
            builder.add(
                Kind.SNAPSHOT,
                payload_type=input_.payload_type,
                payload=input_.payload,
                attributes=asked_by(input_),
            )
        case _:
            assert_never(input_)


def due(state: JobState, open_work: Mapping[str, int] = job_end.NO_WORK) -> Input | None:
    """The input that must come before any other that arrives, or None.

    The caller must run it as a separate turn and call this again. Each such turn changes the state, so the loop ends.

    Args:
        state: State of the job.
        open_work: Number of calls and timers in progress, by operator: they are not recorded before they end.
    """
    if job_end.is_at_its_end(state):
        return job_end.end_of(state, open_work)
    if state.phase is not Phase.RUNNING:
        return None
    if state.owed_redeliveries:
        return Redeliver()
    if state.is_restore_owed:
        return TellRestored()
    if state.stale:
        return StaleAttempt(subtask=state.stale[0])
    if state.pending and checkpoints.can_advance(state):
        return AdvanceCheckpoints()
    if state.is_batch or state.finished_count < state.parallelism:
        return None
    if checkpoints.last_is_final(state):
        return None  # a notification or a pending checkpoint comes before the end
    # Never with another pending: if no coordinator cuts it, checkpoints would be triggered without end.
    if state.aborts_in_a_row == 0 and checkpoints.can_trigger(state, is_overlap_allowed=False):
        return CheckpointDue()
    return None


def is_final_owed(state: JobState) -> bool:
    """Whether a stream's last checkpoint was aborted: a timer, not `due`, tries it again."""
    return (
        state.finished_count == state.parallelism
        and state.aborts_in_a_row > 0
        and not checkpoints.last_is_final(state)
        and checkpoints.can_trigger(state, is_overlap_allowed=False)
    )


def is_ready_for_attempts(state: JobState) -> bool:
    """Whether the Spark stage may start: restore, redeliveries and settling of open intents are done."""
    return (
        state.phase is Phase.RUNNING
        and not state.is_restoring
        and not commits.to_settle(state)
        and state.finished_count < state.parallelism
    )
