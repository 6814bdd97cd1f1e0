"""Looks: questions that change nothing, answered from the state once the log has it, and not recorded."""

from __future__ import annotations

from coordlog.api.chain import Chain
from coordlog.api.coordinator import Look
from coordlog.errors import RequestRefusedError
from coordlog.kernel.inputs import Input, RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.projections.job.state import JobState, Phase
from coordlog.schemas.payload import payload_type_of

__all__ = ["Looks"]


class Looks:
    """Answers those questions of clients that a chain's providers call looks. Mailbox only."""

    def __init__(self, chain: Chain) -> None:
        self._types = chain.payload_types
        self._by_key: dict[tuple[str, str], Look] = {
            (provider.operator_id, payload_type_of(asked).key): look
            for provider in chain.coordinators
            for asked, look in provider.looks.items()
        }

    def answer(self, given: Input, state: JobState) -> AnswerRequest | None:
        """The answer, to be released behind what `state` follows from; None where this is no look."""
        if not self._by_key or not isinstance(given, RequestArrived):
            return None
        look = self._by_key.get((given.operator_id, given.payload_type))
        if look is None:
            return None
        if state.phase is not Phase.RUNNING:
            return AnswerRequest(
                request_id=given.request_id,
                outcome=RequestOutcome.RESTARTING,
                reason=f"the job is {state.phase.value}",
            )
        asked = self._types.decode(given.payload_type, given.payload)
        try:
            response = look(state.projections[given.operator_id], asked)
        except RequestRefusedError as refused:
            return AnswerRequest(
                request_id=given.request_id,
                outcome=RequestOutcome.REFUSED,
                reason=refused.reason,
            )
        declared = self._types.of(response)
        return AnswerRequest(
            request_id=given.request_id,
            outcome=RequestOutcome.ANSWERED,
            sequence=state.next_sequence - 1,
            payload_type=declared.key,
            payload=declared.encode(response),
        )
