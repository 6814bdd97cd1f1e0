"""Refusals: messages of attempts that are not handled, recorded with the reason."""

from __future__ import annotations

from coordlog.errors import TooLargeError
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.outputs import (
    FenceAttempt,
)
from coordlog.limits import RECORD_BYTES_MAX
from coordlog.projections.job.lifecycle import HANDLED_IN
from coordlog.projections.job.state import (
    JobState,
)
from coordlog.schemas.builtin_types import Refused
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind

__all__ = ["encoded", "is_handled", "refuse", "refuse_and_fence", "too_large", "why_not_handled"]


def refuse(step: StepBuilder, what: str, subtask: int, attempt_number: int, reason: str) -> None:
    """Record a refused message, which changes no state; `what` names its kind."""
    step.add(
        Kind.FACT,
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        value=Refused(what=what),
    )


def encoded(value: Payload) -> tuple[str, bytes]:
    """Type key and bytes of a payload, for a check of its size before it is recorded (K6: sizes are checked)."""
    declared = payload_type_of(value)
    return declared.key, declared.encode(value)


def too_large(what: str, data: bytes) -> str:
    """Reason to refuse a message or a record for its size; `what` names it."""
    return str(TooLargeError(what, len(data), RECORD_BYTES_MAX))


def is_handled(state: JobState, subtask: int, attempt_number: int) -> bool:
    """Whether messages of this attempt are handled in this state (B3, D1: live attempts)."""
    return state.phase in HANDLED_IN and state.attempt(subtask, attempt_number) is not None


def why_not_handled(state: JobState, subtask: int, attempt_number: int) -> str:
    """Reason why messages of an attempt are not handled, for the record and for the sender."""
    if state.phase not in HANDLED_IN:
        return f"the job is {state.phase.value}"
    known = state.subtasks.get(subtask)
    if known is not None and known.completion is not None:
        return f"subtask {subtask} has completed"
    return f"attempt {attempt_number} of subtask {subtask} is over"


def refuse_and_fence(step: StepBuilder, what: str, subtask: int, attempt_number: int) -> None:
    """Record the message of an attempt that is over, and fence the attempt (B3: dead attempts)."""
    reason = why_not_handled(step.state, subtask, attempt_number)
    refuse(step, what, subtask, attempt_number, reason)
    step.effects.append(
        FenceAttempt(
            driver_id=step.state.driver_id,
            subtask=subtask,
            attempt_number=attempt_number,
            reason=reason,
            is_finished=False,
        )
    )
