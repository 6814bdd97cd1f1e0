"""Clients of a simulated job: other processes, each with one order, which ask until they have a final answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from coordlog.errors import (
    CoordinatorRestartingError,
    NoSuchOperatorError,
    NotRequestHandlerError,
    RequestFailedError,
    RequestRefusedError,
    RequestUnansweredError,
)
from coordlog.kernel.inputs import RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.runtime.requests import Requests, answer_of, encoded_request
from coordlog.schemas.builtin_types import SkipRecorded, SkipSplit
from coordlog.schemas.payload import Payload, PayloadTypes
from coordlog.schemas.record import Kind
from simulation.agenda import Agenda, Span, Weather
from simulation.job import SOURCE
from simulation.log import SimulatedLog
from simulation.orders import Order, Taken
from simulation.tasks import Faults

__all__ = ["Client", "ClientSurroundings", "Counter", "Question"]

_FIRST: Span = (0.005, 0.15)
_AGAIN: Span = (0.002, 0.03)
NOBODY, DRIVER = "nobody", ""


class ClientSurroundings(Protocol):
    """What clients share with all else in a simulation."""

    agenda: Agenda
    weather: Weather
    log: SimulatedLog

    @property
    def book(self) -> Faults:
        """What must not be is noted there."""
        ...

    @property
    def payload_types(self) -> PayloadTypes:
        """The job's."""
        ...

    def a_counter(self) -> Counter | None:
        """One of the drivers that live, by chance: clients may know an older one's address."""
        ...


class Question:
    """One request on one connection, from its sending to its answer or the connection's end."""

    def __init__(self, client: Client, epoch: Callable[[], int]) -> None:
        self.client, self._epoch = client, epoch
        self.is_taken = self.is_answered = self.is_over = False
        """Whether its driver has it, has answered it, and whether its client knows what came of it."""

    def answered(self, effect: AnswerRequest) -> None:
        """Its driver answers it: once, and not before the log has what it says (clause J1)."""
        client = self.client
        around = client.around
        around.book.look(not self.is_answered, f"{client.order} was answered twice: {effect}")
        self.is_answered = True
        problem = self._problem(effect)
        around.book.look(problem is None, f"{client.order} was told {effect}: {problem}")
        around.agenda.later(around.weather.wire_s, lambda: self._hears(effect))

    def _problem(self, effect: AnswerRequest) -> str | None:
        recorded = {
            RequestOutcome.ANSWERED,
            RequestOutcome.REFUSED,
            RequestOutcome.FAILED,
            RequestOutcome.NOT_A_HANDLER,
        }
        if effect.outcome not in recorded:
            return None if effect.sequence is None else "nothing of it is in the log"
        counted, place = self.client.around.log.counted, effect.sequence
        if place is None or place >= len(counted):
            return "its record does not count yet"
        there = counted[place]
        says = (there.kind, there.epoch, there.payload, there.attributes.get("outcome"))
        if says != (Kind.RESPONSE, self._epoch(), effect.payload, effect.outcome.value):
            return f"the log has {there}"
        return None

    def _hears(self, effect: AnswerRequest) -> None:
        if not self.is_over:
            self.is_over = True
            self.client.hears(effect)

    def broken(self) -> None:
        """Its connection is gone, and with it an answer that was on its way."""
        if not self.is_over:
            self.is_over = True
            self.client.heard.append("lost")
            self.client.asks_again()


class Client:
    """Wants one thing. By chance it asks the wrong operator first, or asks once more than it must.

    Args:
        around: The simulation.
        order: What it wants: an order taken, or a split skipped, which the driver itself does.
        operator_id: Who takes orders.
    """

    def __init__(
        self, around: ClientSurroundings, order: Order | SkipSplit, operator_id: str
    ) -> None:
        self.around, self.order = around, order
        self._taker = operator_id if isinstance(order, Order) else DRIVER
        chance = around.agenda.chance
        self._asks = deque([self._taker] * chance.choice((1, 1, 2)))
        if isinstance(order, Order) and chance.random() < 0.2:
            self._asks.appendleft(chance.choice((SOURCE, NOBODY)))
        self.heard: list[str] = []
        """What came of each of its questions."""
        around.agenda.later(_FIRST, self._ask)

    def asks_again(self) -> None:
        """A little later."""
        if self._asks:
            self.around.agenda.later(_AGAIN, self._ask)

    def _ask(self) -> None:
        around = self.around
        if around.log.is_finished:
            return
        counter = around.a_counter()
        if counter is None:
            self.asks_again()
            return
        counter.come(Question(self, counter.epoch), self._asks[0])

    def hears(self, effect: AnswerRequest) -> None:
        """What a client in Python would see, and whether it may be that."""
        self.heard.append(effect.outcome.value)
        asked, look = self._asks[0], self.around.book.look
        key, _ = encoded_request(self.around.payload_types, self.order)
        fits = False
        try:
            answer = answer_of(effect, self.around.payload_types, asked, key)
        except (RequestFailedError, CoordinatorRestartingError, RequestUnansweredError):
            self.asks_again()
            return
        except RequestRefusedError:
            fits = asked == self._taker and self._may_be_refused
        except NotRequestHandlerError:
            fits = asked == SOURCE
        except NoSuchOperatorError:
            fits = asked == NOBODY
        else:
            fits = asked == self._taker and self._is_answer(answer.response)
        look(fits, f"{self.order} asked of {asked!r} was told {effect}")
        self._asks.popleft()
        self.asks_again()

    @property
    def _may_be_refused(self) -> bool:
        # A split has been read, or a job has ended, at some place of the log that only the driver knows.
        return isinstance(self.order, SkipSplit) or self.order.is_wrong

    def _is_answer(self, said: Payload) -> bool:
        if isinstance(self.order, SkipSplit):
            return isinstance(said, SkipRecorded)
        is_its = isinstance(said, Taken) and said.number == self.order.number
        return is_its and not self.order.is_wrong


class Counter:
    """One driver's open requests, behind its endpoint: the real ones, and the connections that they came by."""

    def __init__(
        self,
        around: ClientSurroundings,
        *,
        epoch: Callable[[], int],
        do: Callable[[Callable[[], None]], None],
    ) -> None:
        self._around, self.epoch, self._do = around, epoch, do
        self._requests = Requests(around.payload_types)
        self.answered = self._requests.answered
        self._questions: list[Question] = []
        self._on_the_way = 0
        """Handed to the mailbox, which has not come to them."""

    def begin(self, handle: Callable[[RequestArrived], None]) -> None:
        """The driver runs: `handle` is a turn on its mailbox."""

        def handled(given: RequestArrived) -> None:
            self._on_the_way -= 1
            handle(given)

        def deliver(given: RequestArrived) -> None:
            self._on_the_way += 1
            self._around.agenda.later((0.0, 0.001), lambda: self._do(lambda: handled(given)))

        self._requests.begin(deliver)

    def come(self, question: Question, operator_id: str) -> None:
        """A client has connected, and its request is on its way."""
        self._questions.append(question)
        key, payload = encoded_request(self._around.payload_types, question.client.order)

        def arrive() -> None:
            question.is_taken = True
            self._requests.ask(operator_id, key, payload, question.answered)

        self._around.agenda.later(self._around.weather.wire_s, lambda: self._do(arrive))

    @property
    def waiting(self) -> int:
        """Requests that the mailbox has handled and nobody has answered."""
        return self._requests.open_count - self._on_the_way

    def end(self, *, is_killed: bool) -> None:
        """The driver is gone; an orderly end leaves none open that it has taken."""
        if not is_killed:
            self._requests.end()
        for question in self._questions:
            if question.is_over:
                continue
            self._around.book.look(
                is_killed or question.is_answered or not question.is_taken,
                f"{question.client.order} was left open by a driver that ended",
            )
            self._around.agenda.later(self._around.weather.notice_s, question.broken)
        self._questions.clear()
