"""Derives a recorded turn's input from its records (K7: calls follow from records)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeVar

from coordlog.kernel.inputs import (
    AdvanceCheckpoints,
    Asker,
    AttemptLost,
    AttemptRegistered,
    CheckpointDue,
    CheckpointReleased,
    CheckpointTimedOut,
    CommitSettled,
    Conclude,
    FailGlobally,
    FinishJob,
    FromAttempt,
    Input,
    Redeliver,
    Reopen,
    RequestArrived,
    Resume,
    Rollback,
    StaleAttempt,
    Start,
    TellRestored,
    WorkDone,
)
from coordlog.kernel.job_end import BEFORE, DRIVER_ENDED, UNFINISHED
from coordlog.messages import (
    AckCheckpoint,
    AckEvent,
    AttemptMessage,
    Complete,
    EndOfSplit,
    FinishSplit,
    Register,
    SendEvent,
    SkipSplit,
)
from coordlog.projections.job.checkpoints import REFUSED_CONNECTIONS
from coordlog.projections.job.state import JobState, Phase
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas.payload import Payload, PayloadTypes, payload_type_of
from coordlog.schemas.record import Kind, Record, RestoredBy, acked_events

__all__ = ["input_of_turn"]

P = TypeVar("P", bound=Payload)

_SPLIT_SKIPPED: Final = payload_type_of(builtin.SplitSkipped).key
_TIMEOUT: Final = re.compile(r"not whole after (\S+) s;")
_CLOSED: Final = "its coordinator is closed"
_TIMER_KEY: Final = payload_type_of(builtin.WorkDone).key
_TYPES: Final = PayloadTypes(builtin.BUILTIN_PAYLOADS)


def input_of_turn(turn: Sequence[Record], state: JobState) -> Input | None:
    """The input of a turn, or None for a turn that calls no coordinator and whose records do not show the input.

    Args:
        turn: All records of a counted turn that is no `EPOCH_STARTED`.
        state: State before the turn.
    """
    by_kind: dict[Kind, Record] = {}
    for record in turn:
        by_kind.setdefault(record.kind, record)
    reset = by_kind.get(Kind.RESET_TO_CHECKPOINT)
    if reset is not None:
        return Rollback(
            checkpoint_id=_int(reset.checkpoint_id),
            is_failover=reset.attributes["restore"] == RestoredBy.FAILOVER,
        )
    started = by_kind.get(Kind.COORDINATORS_STARTED)
    if started is not None:
        ways: dict[str, Input] = {
            RestoredBy.RESUME: Resume(),
            RestoredBy.AGAIN: Reopen(),
            RestoredBy.CONCLUDE: Conclude(),
        }
        return ways.get(started.attributes["restore"], Start())
    first = next((record for record in turn if record.kind is not Kind.TYPE_REGISTERED), None)
    if first is None:
        return None  # registers the type of the snapshot in the next turn
    if first.kind in (Kind.EVENT_FAILED, Kind.ATTEMPT_FAILED):
        for kind in (Kind.ATTEMPT_STARTED, Kind.SUBTASK_COMPLETED, Kind.ATTEMPT_FAILED):
            if kind in by_kind:
                first = by_kind[kind]
                break
    if first.kind is Kind.CHECKPOINT_ABORTED and "timed_out" not in first.attributes:
        first = by_kind.get(Kind.EVENT_TO_COORDINATOR, first)  # room was made for this event
    if first.kind is Kind.SPLIT_FINISHED:
        return _of_ends([record for record in turn if record.kind is Kind.SPLIT_FINISHED])
    return _of_attempt(first) or _of_driver(first, state)


def _of_ends(records: Sequence[Record]) -> Input:
    """Input that ends the splits of these records, which share the committables of the last one."""
    *before, last = records
    ends = [(_decoded(record, builtin.SplitFinished), record.attributes) for record in before]
    return FromAttempt(
        subtask=_int(last.subtask),
        attempt_number=_int(last.attempt_number),
        message=FinishSplit(
            operator_id=last.operator_id or "",
            last_barrier=_int(last.last_barrier),
            finished=_decoded(last, builtin.SplitFinished),
            rejected=int(last.attributes.get("rejected", "0")),
            before=tuple(
                EndOfSplit(
                    split_id=end.split_id,
                    rows=end.rows,
                    bytes_read=end.bytes_read,
                    rejected=int(attributes.get("rejected", "0")),
                )
                for end, attributes in ends
            ),
        ),
    )


def _of_attempt(record: Record) -> Input | None:
    subtask, attempt_number = _int(record.subtask), _int(record.attempt_number)
    match record.kind:
        case Kind.ATTEMPT_STARTED:
            attributes = record.attributes
            registration = Register(
                driver_id=record.driver_id,
                subtask=subtask,
                stage_run=int(attributes["stage_run"]),
                task_attempt_id=int(attributes["spark_task_attempt_id"]),
                spark_attempt_number=int(attributes["spark_attempt_number"]),
                host=attributes["host"],
                pid=int(attributes["pid"]),
            )
            return AttemptRegistered(connection_id=_int(record.sequence), message=registration)
        case Kind.ATTEMPT_FAILED:
            event_id, event = record.attributes.get("event_id"), record.attributes.get("event")
            return AttemptLost(
                subtask=subtask,
                attempt_number=attempt_number,
                reason=record.reason or "",
                operator_id=None if event is None else event.split("/")[0],
                split_id=record.attributes.get("split_id"),
                event_id=None if event_id is None else int(event_id),
                is_with_another="with_another" in record.attributes,
                final=record.attributes.get("final", ""),
            )
        case _:
            message = _message_of(record)
            if message is None:
                return None
            return FromAttempt(subtask=subtask, attempt_number=attempt_number, message=message)


def _message_of(record: Record) -> AttemptMessage | None:
    operator_id, last_barrier = record.operator_id or "", _int(record.last_barrier)
    match record.kind:
        case Kind.EVENT_TO_COORDINATOR:
            return SendEvent(
                operator_id=operator_id,
                event_id=_int(record.event_id),
                last_barrier=last_barrier,
                payload_type=record.payload_type or "",
                payload=record.payload or b"",
            )
        case Kind.EVENT_ACKED:
            first, *also = acked_events(record)
            return AckEvent(
                operator_id=operator_id,
                event_id=first,
                last_barrier=last_barrier,
                also=tuple(also),
            )
        case Kind.CHECKPOINT_ACKED:
            return AckCheckpoint(
                checkpoint_id=_int(record.checkpoint_id),
                last_barrier=last_barrier,
                snapshot=_decoded(record, builtin.AttemptSnapshot),
            )
        case Kind.FACT if record.payload_type == _SPLIT_SKIPPED and record.subtask is not None:
            skipped = _decoded(record, builtin.SplitSkipped)
            return SkipSplit(
                operator_id=operator_id,
                last_barrier=last_barrier,
                split_id=skipped.split_id,
                rows=_int(skipped.rows),
                reason=record.reason or "",
            )
        case Kind.SUBTASK_COMPLETED:
            return Complete(
                last_barrier=last_barrier, snapshot=_decoded(record, builtin.AttemptSnapshot)
            )
        case _:
            return None


def _of_driver(record: Record, state: JobState) -> Input | None:
    match record.kind:
        case Kind.EVENT_REDELIVERED:
            return Redeliver()
        case Kind.SUBTASK_RESET:
            return StaleAttempt(subtask=_int(record.subtask))
        case Kind.BARRIER_INJECTED | Kind.CHECKPOINT_COMPLETED:
            return AdvanceCheckpoints()
        case Kind.JOB_FINISHED:
            return FinishJob()
        case Kind.JOB_FAILED if (record.reason or "").startswith(DRIVER_ENDED):
            return Resume() if state.phase is Phase.STARTING else Conclude()
        case Kind.JOB_FAILED:
            unfinished = (record.reason or "").removeprefix(UNFINISHED).split(BEFORE)[0]
            return FinishJob(left=unfinished, final=record.attributes.get("final", ""))
        case Kind.CHECKPOINT_TRIGGERED:
            refused = int(record.attributes.get(REFUSED_CONNECTIONS, "0"))
            return CheckpointDue(refused_connections=refused)
        case Kind.CHECKPOINT_ABORTED:
            timeout = _TIMEOUT.match(record.reason or "")
            timeout_s = float(timeout[1]) if timeout else 0.0
            return CheckpointTimedOut(checkpoint_id=_int(record.checkpoint_id), timeout_s=timeout_s)
        case Kind.COORDINATOR_NOTIFIED:
            if state.is_restore_owed:
                return TellRestored()
            return CheckpointReleased(checkpoint_id=_int(record.checkpoint_id))
        case Kind.COMMIT_OUTCOME:
            is_settled = record.attributes["settled"] == "true"
            return CommitSettled(
                sequence=_int(record.cause),
                payload_type=record.payload_type,
                payload=record.payload,
                error=None if is_settled else record.reason or "",
                final=record.attributes.get("final", ""),
            )
        case Kind.GLOBAL_FAILURE:
            return FailGlobally(
                reason=record.reason or "",
                operator_id=record.operator_id,
                subtask=record.subtask,
                final=record.attributes.get("final", ""),
            )
        case Kind.REQUEST:
            return RequestArrived(
                request_id=_int(record.sequence),
                operator_id=record.operator_id or "",
                payload_type=record.payload_type or "",
                payload=record.payload or b"",
                asked_by=_asker_of(record),
            )
        case Kind.FACT if "generation" in record.attributes:
            return _work_done(record, state)
        case _:
            return None


def _asker_of(record: Record) -> Asker | None:
    attributes = record.attributes
    if "user" not in attributes:
        return None
    return Asker(
        user=attributes["user"],
        host=attributes["host"],
        pid=int(attributes["pid"]),
        command=attributes.get("command", ""),
    )


def _work_done(record: Record, state: JobState) -> WorkDone:
    is_closed = record.attributes.get("closed") == "true"
    error = record.reason
    if is_closed and error is not None:
        error = error.removeprefix(_CLOSED).removeprefix(": ") or None
    is_plain = record.payload_type == _TIMER_KEY
    return WorkDone(
        operator_id=record.operator_id or "",
        generation=int(record.attributes["generation"]),
        turn_sequence=int(record.attributes["turn"]),
        call_number=int(record.attributes["call"]),
        is_timer=is_plain and _decoded(record, builtin.WorkDone).is_timer,
        payload_type=None if is_plain else record.payload_type,
        payload=None if is_plain else record.payload,
        error=error,
        is_orphan=is_closed and state.phase is Phase.RUNNING,
    )


def _decoded(record: Record, declared: type[P]) -> P:
    value = _TYPES.decode(record.payload_type, record.payload)
    assert isinstance(value, declared)
    return value


def _int(value: int | None) -> int:
    return -1 if value is None else value
