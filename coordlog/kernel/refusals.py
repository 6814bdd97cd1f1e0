"""Refusals: what an attempt sends that is not handled, recorded with the reason."""

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
    """Record what is refused; it changes no state."""
    step.add(
        Kind.FACT,
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        value=Refused(what=what),
    )


def encoded(value: Payload) -> tuple[str, bytes]:
    """Type and bytes of a payload, for who must know its size before its record has a place (clause K6)."""
    declared = payload_type_of(value)
    return declared.key, declared.encode(value)


def too_large(what: str, data: bytes) -> str:
    """Why a message or a record is refused for its size."""
    return str(TooLargeError(what, len(data), RECORD_BYTES_MAX))


def is_handled(state: JobState, subtask: int, attempt_number: int) -> bool:
    """Whether what this attempt sends is handled here (clauses B3, D1)."""
    return state.phase in HANDLED_IN and state.attempt(subtask, attempt_number) is not None


def why_not_handled(state: JobState, subtask: int, attempt_number: int) -> str:
    """The reason, for the record and for the sender."""
    if state.phase not in HANDLED_IN:
        return f"the job is {state.phase.value}"
    known = state.subtasks.get(subtask)
    if known is not None and known.completion is not None:
        return f"subtask {subtask} has completed"
    return f"attempt {attempt_number} of subtask {subtask} is over"


def refuse_and_fence(step: StepBuilder, what: str, subtask: int, attempt_number: int) -> None:
    """Record what an attempt sent that is over, and tell it so (clause B3)."""
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
