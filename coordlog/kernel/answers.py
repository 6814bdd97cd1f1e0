"""The answer to a request that the driver itself answers: recorded, then told (clause J1)."""

from __future__ import annotations

from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind

__all__ = ["answer"]


def answer(
    step: StepBuilder,
    given: RequestArrived,
    cause: int | None,
    value: Payload | None,
    why_not: str | None,
) -> None:
    """`RESPONSE` to the `REQUEST` at `cause`, with `value`, or refused because of `why_not`."""
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
            request_id=given.request_id,
            outcome=outcome,
            sequence=response.sequence,
            payload_type=response.payload_type,
            payload=response.payload,
            reason=why_not,
        )
    )
