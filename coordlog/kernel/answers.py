"""Responses to requests that the driver itself handles: recorded, then sent (J1: answer after release)."""

from __future__ import annotations

from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind

__all__ = ["answer"]


def answer(
    step: StepBuilder,
    request: RequestArrived,
    cause: int | None,
    value: Payload | None,
    why_not: str | None,
) -> None:
    """Record a `RESPONSE` to the `REQUEST` at sequence `cause`, and send it once released.

    The request is answered with `value`, or refused with the reason `why_not` if that is not None.
    """
    outcome = RequestOutcome.ANSWERED if why_not is None else RequestOutcome.REFUSED
    response = step.add(
        Kind.RESPONSE,
        cause=cause,
        value=value if why_not is None else None,
        reason=why_not,
        attributes={"outcome": outcome.value},
    )
    step.effects.append(
        AnswerRequest(
            request_id=request.request_id,
            outcome=outcome,
            sequence=response.sequence,
            payload_type=response.payload_type,
            payload=response.payload,
            reason=why_not,
        )
    )
