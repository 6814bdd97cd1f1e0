"""Which input a recorded turn began with: what K7 promises, read backwards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeVar

from coordlog.kernel.inputs import (
    AdvanceCheckpoints,
    AttemptLost,
    AttemptRegistered,
    CheckpointAckArrived,
    CheckpointDue,
    CheckpointReleased,
    CheckpointTimedOut,
    CommitSettled,
    CompletionArrived,
    Conclude,
    EventAckArrived,
    EventArrived,
    FailGlobally,
    FinishJob,
    Input,
    Redeliver,
    Reopen,
    RequestArrived,
    Resume,
    Rollback,
    SplitFinishedArrived,
    SplitSkippedArrived,
    StaleAttempt,
    Start,
    TellRestored,
    WorkDone,
)
from coordlog.kernel.job_end import BEFORE, DRIVER_ENDED, UNFINISHED
from coordlog.kernel.poison import without_poison
from coordlog.projections.job.checkpoints import REFUSED_CONNECTIONS
from coordlog.projections.job.reopen import AGAIN, CONCLUDE
from coordlog.projections.job.state import JobState, Phase
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas.payload import Payload, PayloadTypes, payload_type_of
from coordlog.schemas.record import Kind, Record

__all__ = ["input_of_turn"]

P = TypeVar("P", bound=Payload)

_SPLIT_SKIPPED: Final = payload_type_of(builtin.SplitSkipped).key
_TIMEOUT: Final = re.compile(r"not whole after (\S+) s;")
_CLOSED: Final = "its coordinator is closed"
_TIMER_KEY: Final = payload_type_of(builtin.WorkDone).key
_TYPES: Final = PayloadTypes(builtin.BUILTIN_PAYLOADS)


def input_of_turn(turn: Sequence[Record], state: JobState) -> Input | None:
    """The input that led to this turn; None where no record tells it and no coordinator was called.

    Args:
        turn: The records of one turn that counts, not an `EPOCH_STARTED`.
        state: Before the turn.
    """
    by_kind: dict[Kind, Record] = {}
    for record in turn:
        by_kind.setdefault(record.kind, record)
    reset = by_kind.get(Kind.RESET_TO_CHECKPOINT)
    if reset is not None:
        return Rollback(
            checkpoint_id=_int(reset.checkpoint_id),
            is_failover=reset.attributes["restore"] == "failover",
        )
    started = by_kind.get(Kind.COORDINATORS_STARTED)
    if started is not None:
        ways: dict[str, Input] = {"resume": Resume(), AGAIN: Reopen(), CONCLUDE: Conclude()}
        return ways.get(started.attributes["restore"], Start())
    first = next((one for one in turn if one.kind is not Kind.TYPE_REGISTERED), None)
    if first is None:
        return None  # the type of the snapshot in the turn after it
    if first.kind in (Kind.EVENT_FAILED, Kind.ATTEMPT_FAILED):
        for kind in (Kind.ATTEMPT_STARTED, Kind.SUBTASK_COMPLETED, Kind.ATTEMPT_FAILED):
            if kind in by_kind:
                first = by_kind[kind]
                break
    return _of_attempt(first) or _of_driver(first, state)


def _of_attempt(one: Record) -> Input | None:
    subtask, attempt_number = _int(one.subtask), _int(one.attempt_number)
    operator_id, last_barrier = one.operator_id or "", _int(one.last_barrier)
    match one.kind:
        case Kind.ATTEMPT_STARTED:
            about = one.attributes
            return AttemptRegistered(
                connection_id=_int(one.sequence),
                subtask=subtask,
                stage_run=int(about["stage_run"]),
                task_attempt_id=int(about["spark_task_attempt_id"]),
                spark_attempt_number=int(about["spark_attempt_number"]),
                host=about["host"],
                pid=int(about["pid"]),
            )
        case Kind.ATTEMPT_FAILED:
            event_id, event = one.attributes.get("event_id"), one.attributes.get("event")
            return AttemptLost(
                subtask=subtask,
                attempt_number=attempt_number,
                reason=without_poison(one.reason or ""),
                operator_id=None if event is None else event.split("/")[0],
                split_id=one.attributes.get("split_id"),
                event_id=None if event_id is None else int(event_id),
                is_with_another="with_another" in one.attributes,
                final=one.attributes.get("final", ""),
            )
        case Kind.EVENT_TO_COORDINATOR:
            return EventArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                operator_id=operator_id,
                event_id=_int(one.event_id),
                last_barrier=last_barrier,
                payload_type=one.payload_type or "",
                payload=one.payload or b"",
            )
        case Kind.EVENT_ACKED:
            return EventAckArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                operator_id=operator_id,
                event_id=_int(one.event_id),
                last_barrier=last_barrier,
            )
        case Kind.CHECKPOINT_ACKED:
            return CheckpointAckArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                checkpoint_id=_int(one.checkpoint_id),
                snapshot=_decoded(one, builtin.AttemptSnapshot),
            )
        case Kind.SPLIT_FINISHED:
            return SplitFinishedArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                operator_id=operator_id,
                last_barrier=last_barrier,
                finished=_decoded(one, builtin.SplitFinished),
            )
        case Kind.SUBTASK_COMPLETED:
            return CompletionArrived(
                subtask=subtask,
                attempt_number=attempt_number,
                last_barrier=last_barrier,
                snapshot=_decoded(one, builtin.AttemptSnapshot),
            )
        case _:
            return None


def _of_driver(one: Record, state: JobState) -> Input | None:
    match one.kind:
        case Kind.EVENT_REDELIVERED:
            return Redeliver()
        case Kind.SUBTASK_RESET:
            return StaleAttempt(subtask=_int(one.subtask))
        case Kind.BARRIER_INJECTED | Kind.CHECKPOINT_COMPLETED:
            return AdvanceCheckpoints()
        case Kind.JOB_FINISHED:
            return FinishJob()
        case Kind.JOB_FAILED if (one.reason or "").startswith(DRIVER_ENDED):
            return Resume() if state.phase is Phase.STARTING else Conclude()
        case Kind.JOB_FAILED:
            left = (one.reason or "").removeprefix(UNFINISHED).split(BEFORE)[0]
            return FinishJob(left=left, final=one.attributes.get("final", ""))
        case Kind.CHECKPOINT_TRIGGERED:
            refused = int(one.attributes.get(REFUSED_CONNECTIONS, "0"))
            return CheckpointDue(refused_connections=refused)
        case Kind.CHECKPOINT_ABORTED:
            found = _TIMEOUT.match(one.reason or "")
            timeout_s = float(found[1]) if found else 0.0
            return CheckpointTimedOut(checkpoint_id=_int(one.checkpoint_id), timeout_s=timeout_s)
        case Kind.COORDINATOR_NOTIFIED:
            if state.is_restore_owed:
                return TellRestored()
            return CheckpointReleased(checkpoint_id=_int(one.checkpoint_id))
        case Kind.COMMIT_OUTCOME:
            is_settled = one.attributes["settled"] == "true"
            return CommitSettled(
                sequence=_int(one.cause),
                payload_type=one.payload_type,
                payload=one.payload,
                error=None if is_settled else one.reason or "",
                final=one.attributes.get("final", ""),
            )
        case Kind.GLOBAL_FAILURE:
            return FailGlobally(
                reason=one.reason or "",
                operator_id=one.operator_id,
                subtask=one.subtask,
                final=one.attributes.get("final", ""),
            )
        case Kind.REQUEST:
            return RequestArrived(
                request_id=_int(one.sequence),
                operator_id=one.operator_id or "",
                payload_type=one.payload_type or "",
                payload=one.payload or b"",
            )
        case Kind.FACT if one.payload_type == _SPLIT_SKIPPED and one.subtask is not None:
            return _split_skipped(one, one.subtask)
        case Kind.FACT if "generation" in one.attributes:
            return _work_done(one, state)
        case _:
            return None


def _split_skipped(one: Record, subtask: int) -> SplitSkippedArrived:
    skipped = _decoded(one, builtin.SplitSkipped)
    return SplitSkippedArrived(
        subtask=subtask,
        attempt_number=_int(one.attempt_number),
        operator_id=one.operator_id or "",
        last_barrier=_int(one.last_barrier),
        split_id=skipped.split_id,
        rows=_int(skipped.rows),
        reason=one.reason or "",
    )


def _work_done(one: Record, state: JobState) -> WorkDone:
    is_closed = one.attributes.get("closed") == "true"
    error = one.reason
    if is_closed and error is not None:
        error = error.removeprefix(_CLOSED).removeprefix(": ") or None
    is_plain = one.payload_type == _TIMER_KEY
    return WorkDone(
        operator_id=one.operator_id or "",
        generation=int(one.attributes["generation"]),
        turn_sequence=int(one.attributes["turn"]),
        call_number=int(one.attributes["call"]),
        is_timer=is_plain and _decoded(one, builtin.WorkDone).is_timer,
        payload_type=None if is_plain else one.payload_type,
        payload=None if is_plain else one.payload,
        error=error,
        is_orphan=is_closed and state.phase is Phase.RUNNING,
    )


def _decoded(one: Record, declared: type[P]) -> P:
    value = _TYPES.decode(one.payload_type, one.payload)
    assert isinstance(value, declared)
    return value


def _int(value: int | None) -> int:
    return -1 if value is None else value
