"""Decisions about clients' requests: recorded before they are handled, answered after release (J1: requests).

The driver itself answers those of `driver_requests`.
"""

from __future__ import annotations

from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.driver_requests import DRIVER_REQUESTS, asked_by, driver_requested
from coordlog.kernel.inputs import RequestArrived, RequestOutcome, Respond
from coordlog.kernel.outputs import AnswerRequest, CallRequest
from coordlog.projections.job.attempts import required
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind

__all__ = ["request_arrived", "respond"]


def request_arrived(step: StepBuilder, request: RequestArrived) -> None:
    """Record `REQUEST` and call the coordinator; a request that none can handle is answered, not recorded."""
    if request.payload_type in DRIVER_REQUESTS:
        driver_requested(step, request)
        return
    why_not = _why_not(step, request.operator_id)
    if why_not is not None:
        # An effect without a record: it does not overtake the records on which it depends.
        outcome, reason = why_not
        step.effects.append(
            AnswerRequest(request_id=request.request_id, outcome=outcome, reason=reason)
        )
        return
    record = step.add(
        Kind.REQUEST,
        operator_id=request.operator_id,
        payload_type=request.payload_type,
        payload=request.payload,
        attributes=asked_by(request),
    )
    step.calls.append(
        CallRequest(
            operator_id=request.operator_id,
            request_id=request.request_id,
            sequence=required(record.sequence),
            payload_type=request.payload_type,
            payload=request.payload,
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
    return RequestOutcome.OVER, f"the job is {phase.value}: no coordinator is called any more"


def respond(step: StepBuilder, action: Respond) -> None:
    """Record `RESPONSE`, in the turn of its request; the client receives it once released."""
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
