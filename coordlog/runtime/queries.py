"""Queries: read-only requests, answered from the state once the log has it, and not recorded."""

from __future__ import annotations

from coordlog.api.chain import Chain
from coordlog.api.coordinator import Query
from coordlog.causes import encodable, text_of
from coordlog.errors import RequestRefusedError
from coordlog.kernel.inputs import Input, RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import REASON_CHARS_MAX
from coordlog.projections.job.state import JobState, Phase
from coordlog.runtime.effects import encoded_within_limit
from coordlog.schemas.payload import payload_type_of

__all__ = ["Queries"]


class Queries:
    """Answers the clients' requests that a chain's providers declare as queries. Mailbox only."""

    def __init__(self, chain: Chain) -> None:
        self._types = chain.payload_types
        self._projections = {
            provider.operator_id: provider.projection for provider in chain.coordinators
        }
        self._by_key: dict[tuple[str, str], Query] = {
            (provider.operator_id, payload_type_of(request).key): query
            for provider in chain.coordinators
            for request, query in provider.queries.items()
        }
        self.calling: str | None = None
        """The running query in words, for the watchdog's message, or None; any thread."""
        self.call_count = 0

    def answer(self, input_: Input, state: JobState) -> AnswerRequest | None:
        """Answer of a query, to be released after the turns up to `state`; None if the input is no query."""
        if not self._by_key or not isinstance(input_, RequestArrived):
            return None
        query = self._by_key.get((input_.operator_id, input_.payload_type))
        if query is None:
            return None
        if state.phase is not Phase.RUNNING:
            return AnswerRequest(
                request_id=input_.request_id,
                outcome=RequestOutcome.RESTARTING,
                reason=f"the job is {state.phase.value}",
            )
        request = self._types.decode(input_.payload_type, input_.payload)
        self.call_count += 1
        self.calling = f"the query {input_.payload_type} of operator {input_.operator_id!r}"
        try:
            answered = state.projections[input_.operator_id]
            if (projection := self._projections[input_.operator_id]) is not None:
                answered = projection.apart(answered)  # a query may sort a list of it in place
            response = query(answered, request)
            payload_type, payload = encoded_within_limit(self._types, response)
        except RequestRefusedError as refused:
            return AnswerRequest(
                request_id=input_.request_id,
                outcome=RequestOutcome.REFUSED,
                reason=encodable(refused.reason)[:REASON_CHARS_MAX],
            )
        except BaseException as error:  # noqa: BLE001, a query changes nothing: its client gets the error, and the job continues
            raised = f"the query that answers it raised {text_of(error)}"
            return AnswerRequest(
                request_id=input_.request_id,
                outcome=RequestOutcome.REFUSED,
                reason=encodable(raised)[:REASON_CHARS_MAX],
            )
        finally:
            self.calling = None
        return AnswerRequest(
            request_id=input_.request_id,
            outcome=RequestOutcome.ANSWERED,
            sequence=state.next_sequence - 1,
            payload_type=payload_type,
            payload=payload,
        )
