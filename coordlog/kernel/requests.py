"""Decisions about clients' requests: recorded before they are handled, answered once that is in the log (clause J1)."""

from __future__ import annotations

from coordlog.kernel import savepoints as keeps
from coordlog.kernel import skips
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import RequestArrived, RequestOutcome, Respond
from coordlog.kernel.outputs import AnswerRequest, CallRequest
from coordlog.projections.job.attempts import required
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind

__all__ = ["request_arrived", "respond"]


def request_arrived(step: StepBuilder, given: RequestArrived) -> None:
    """`REQUEST`, then the coordinator's call; one that no coordinator can be asked is answered, not recorded."""
    if given.payload_type in skips.REQUESTS:
        skips.skip_requested(step, given)
        return
    if given.payload_type in keeps.REQUESTS:
        keeps.keep_requested(step, given)
        return
    why_not = _why_not(step, given.operator_id)
    if why_not is not None:
        # An effect without a record: it does not overtake the records that it follows from.
        outcome, reason = why_not
        step.effects.append(
            AnswerRequest(request_id=given.request_id, outcome=outcome, reason=reason)
        )
        return
    record = step.add(
        Kind.REQUEST,
        operator_id=given.operator_id,
        payload_type=given.payload_type,
        payload=given.payload,
    )
    step.calls.append(
        CallRequest(
            operator_id=given.operator_id,
            request_id=given.request_id,
            sequence=required(record.sequence),
            payload_type=given.payload_type,
            payload=given.payload,
        )
    )


def _why_not(step: StepBuilder, operator_id: str) -> tuple[RequestOutcome, str] | None:
    operators, phase = step.config.operators, step.state.phase
    if operator_id not in operators:
        known = ", ".join(operators) or "none"
        return RequestOutcome.NO_SUCH_OPERATOR, f"the operators with a coordinator are: {known}"
    if phase is Phase.RUNNING:
        return None
    if phase in (Phase.STARTING, Phase.FAILING):
        return RequestOutcome.RESTARTING, f"the job is {phase.value}"
    return RequestOutcome.OVER, f"the job is {phase.value}: no coordinator is asked any more"


def respond(step: StepBuilder, action: Respond) -> None:
    """`RESPONSE`, in the turn of its request; its client hears of it once released."""
    record = step.add(
        Kind.RESPONSE,
        operator_id=action.operator_id,
        cause=action.cause,
        payload_type=action.payload_type,
        payload=action.payload,
        reason=action.reason,
        attributes={"outcome": action.outcome.value},
    )
    step.effects.append(
        AnswerRequest(
            request_id=action.request_id,
            outcome=action.outcome,
            sequence=record.sequence,
            payload_type=action.payload_type,
            payload=action.payload,
            reason=record.reason,
        )
    )
