"""`step(config, state, input) -> Step`: what one input leads to. Pure: the runtime does what it says.

A turn is one `step` of an input from outside, the calls that it asks for, each of whose actions is a `step` of its own
(`act`), and what `due` says is next belongs to the turns after it.
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
    finishing,
    from_attempts,
    global_failover,
    job_end,
    requests,
    skips,
)
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.kernel.inputs import (
    Action,
    AdvanceCheckpoints,
    AttemptLost,
    AttemptRegistered,
    CheckpointAckArrived,
    CheckpointDue,
    CheckpointReleased,
    CheckpointTimedOut,
    CommitSettled,
    CompleteCheckpoint,
    CompletionArrived,
    Conclude,
    DriverStops,
    EventAckArrived,
    EventArrived,
    FailCheckpoint,
    FailGlobally,
    FinishJob,
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
    SplitFinishedArrived,
    SplitSkippedArrived,
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


def step(config: KernelConfig, state: JobState, given: Input, now_us: int) -> Step:
    """What an input leads to. `now_us` is the clock's reading, microseconds since 1970, UTC; it enters the records.

    The times of records never go back: a reading before the last record's time gives records of that time.
    """
    builder = _builder(config, state, now_us)
    _dispatch(builder, given)
    return builder.built()


def act(config: KernelConfig, state: JobState, action: Action, now_us: int) -> Step:
    """What a coordinator's code does within a turn leads to."""
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


def _dispatch(builder: StepBuilder, given: Input) -> None:
    match given:
        case EventArrived():
            from_attempts.event_arrived(builder, given)
        case EventAckArrived():
            from_attempts.event_ack_arrived(builder, given)
        case CheckpointAckArrived():
            from_attempts.checkpoint_ack_arrived(builder, given)
        case SplitFinishedArrived():
            from_attempts.split_finished_arrived(builder, given)
        case SplitSkippedArrived():
            skips.split_skipped_arrived(builder, given)
        case CompletionArrived():
            from_attempts.completion_arrived(builder, given)
        case RequestArrived():
            requests.request_arrived(builder, given)
        case AttemptRegistered():
            attempts.attempt_registered(builder, given)
        case AttemptLost():
            attempts.attempt_lost(builder, given)
        case StaleAttempt():
            attempts.stale_attempt(builder, given.subtask)
        case CheckpointDue():
            checkpoints.checkpoint_due(builder, given)
        case CheckpointTimedOut():
            failover.checkpoint_timed_out(builder, given)
        case CheckpointReleased():
            checkpoints.checkpoint_released(builder, given)
        case CommitSettled():
            commits.commit_settled(builder, given)
        case WorkDone():
            failover.work_done(builder, given)
        case FailGlobally():
            global_failover.fail_globally(builder, given)
        case Start():
            failover.start(builder)
        case Resume():
            failover.resume(builder)
        case Rollback():
            failover.rollback(builder, given)
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
            job_end.finish_job(builder, given)
        case StopAsked():
            job_end.record_stop(builder, given)
        case DriverStops():
            job_end.record_end_of_driver(builder, given)
        case RegisterType():
            builder.register(given.payload_type)
        case TakeSnapshot():
            assert given.payload_type in builder.state.types, "its turn has one record"
            builder.add(Kind.SNAPSHOT, payload_type=given.payload_type, payload=given.payload)
        case _:
            assert_never(given)


def due(state: JobState, open_work: Mapping[str, int] = finishing.NO_WORK) -> Input | None:
    """What is to be done before anything else that arrives; None where nothing is.

    The caller runs it as a turn of its own and asks again. Every answer changes the state, so that this ends.

    Args:
        state: The job's.
        open_work: Number of calls and timers in progress, by operator: the log has no record of one until it ends.
    """
    if finishing.is_at_its_end(state):
        return finishing.end_of(state, open_work)
    if state.phase is not Phase.RUNNING:
        return None
    if state.owed_redeliveries:
        return Redeliver()
    if state.is_restore_owed:
        return TellRestored()
    if state.stale:
        return StaleAttempt(subtask=state.stale[0])
    if checkpoints.can_advance(state):
        return AdvanceCheckpoints()
    if state.is_batch or state.finished_count < state.parallelism:
        return None
    if checkpoints.last_is_final(state):
        return None  # a notification or a pending checkpoint comes before the end
    # Never beside another: one that no coordinator cuts would be followed by the next without end.
    if state.aborts_in_a_row == 0 and checkpoints.can_trigger(state, is_overlap_allowed=False):
        return CheckpointDue()
    return None


def is_final_owed(state: JobState) -> bool:
    """Whether a stream's last checkpoint was aborted, so that `due` leaves it to a timer to try again."""
    return (
        state.finished_count == state.parallelism
        and state.aborts_in_a_row > 0
        and not checkpoints.last_is_final(state)
        and checkpoints.can_trigger(state, is_overlap_allowed=False)
    )


def is_ready_for_attempts(state: JobState) -> bool:
    """Whether the Spark stage may start: all that precedes the first attempt is done, intents settled."""
    return (
        state.phase is Phase.RUNNING
        and not state.is_restoring
        and not state.intents
        and state.finished_count < state.parallelism
    )
