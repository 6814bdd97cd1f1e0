"""What clients of a simulated job ask for: orders, which a coordinator takes once each, however often it is asked."""

# No `from __future__ import annotations` here: payloads are declared below.

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
)
from coordlog.api.operator import Operator
from coordlog.errors import RequestRefusedError
from coordlog.kernel.inputs import RequestOutcome
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.builtin_types import SplitSkipped
from coordlog.schemas.payload import (
    Payload,
    PayloadTypes,
    fact,
    payload_type_of,
    request,
    response,
)
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import AddSplits

__all__ = [
    "TALK",
    "TILL",
    "Order",
    "Passing",
    "Taken",
    "TillProvider",
    "order_problems",
    "place_of",
    "taken_by",
]

TALK, TILL = "talk", "till"
_SKIPPED: Final = payload_type_of(SplitSkipped).key
_ADD_SPLITS: Final = payload_type_of(AddSplits).key


@request("simulation.order", version=1)
class Order(Payload):
    """Take this order, unless it is taken already."""

    number: int
    is_wrong: bool
    """It is to be refused."""


@response("simulation.taken", version=1)
class Taken(Payload):
    """The order stands at this place among those that are taken, from 0."""

    number: int
    place: int


@fact("simulation.order.taken", version=1)
class OrderTaken(Payload):
    """An order is taken."""

    number: int


def place_of(order: Payload, taken: Sequence[int]) -> tuple[int, bool]:
    """Where this order stands or is to stand, and whether it is new.

    Raises:
        RequestRefusedError: It is wrong.
    """
    assert isinstance(order, Order)
    if order.is_wrong:
        raise RequestRefusedError(f"order {order.number} is wrong")
    if order.number in taken:
        return taken.index(order.number), False
    return len(taken), True


# --- a coordinator that keeps its orders in the log, and no books of its own ------------------------------------------
Orders = tuple[int, ...]
"""Those that are taken, oldest first."""


def _apply(taken: Orders, record: Record, value: Payload | None) -> Orders:
    if record.kind is Kind.FACT and isinstance(value, OrderTaken):
        return (*taken, value.number)
    return taken


class Till(EventSourcedCoordinator[Orders]):
    """Takes orders, each as a fact."""

    def __init__(self, context: CoordinatorContext, slip: Callable[[], None]) -> None:
        super().__init__(context)
        self._slip = slip

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Its subtasks say nothing."""

    def handle_coordination_request(self, request: Payload) -> Taken:
        """Take it; by chance fail behind the fact, which then must not be."""
        place, is_new = place_of(request, self.state)
        assert isinstance(request, Order)
        if is_new:
            self.context.record(OrderTaken(number=request.number))
        self._slip()
        return Taken(number=request.number, place=place)


class TillProvider(CoordinatorProvider):
    """Makes Tills. `slip` raises by chance."""

    operator_id = TILL
    payload_types: tuple[type[Payload], ...] = (Order, Taken, OrderTaken)
    projection: OperatorProjection[Any] | None = OperatorProjection(
        name="simulation.till",
        version=1,
        initial=(),
        apply=_apply,
        codec=DerivedCodec(tuple[int, ...]),
    )

    def __init__(self, slip: Callable[[], None]) -> None:
        self._slip = slip

    def create(self, context: CoordinatorContext) -> Till:
        """A new coordinator."""
        return Till(context, self._slip)


class Passing(Operator):
    """Passes rows on."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Pass it on."""
        return (batch,)


# --- what the log must say of them ------------------------------------------------------------------------------------
def order_problems(counted: Iterable[Record], types: PayloadTypes) -> Iterator[str]:
    """What is not as it must be with the requests in a log: its records that count, in order.

    A simple reader of its own, which knows nothing of the fold: each request has one answer, in its
    turn; an order is taken once, stays so until the job goes back to a cut before it, and is not
    taken again by itself after that; a split that is skipped is assigned no more, whatever the job
    goes back to.
    """
    asked: dict[int, Record] = {}
    taken: list[int] = []
    cuts: dict[int, list[int]] = {}
    skipped: set[str] = set()
    for record in counted:
        match record.kind:
            case Kind.REQUEST:
                asked[record.sequence or 0] = record
            case Kind.RESPONSE:
                request = asked.pop(-1 if record.cause is None else record.cause, None)
                if request is None:
                    yield f"record {record.sequence} answers {record.cause}, which waits for no answer"
                elif record.attributes["outcome"] == RequestOutcome.ANSWERED.value:
                    yield from _answer_problems(request, record, types, taken)
            case Kind.FACT if record.payload_type == _SKIPPED:
                skipped.add(_skipped_in(record, types))
            case Kind.EVENT_TO_SUBTASK if record.payload_type == _ADD_SPLITS:
                given = types.decode(record.payload_type, record.payload)
                assert isinstance(given, AddSplits)
                again = sorted(skipped & {one.split_id for one in given.splits})
                if again:
                    yield f"record {record.sequence} assigns the splits {again}, which are skipped"
            case Kind.COORDINATOR_CHECKPOINTED if record.operator_id == taken_by(types):
                cuts[record.checkpoint_id or 0] = list(taken)
            case Kind.RESET_TO_CHECKPOINT:
                taken = list(
                    cuts.get(-1 if record.checkpoint_id is None else record.checkpoint_id, ())
                )
            case _:
                pass
        if record.turn_remaining == 0 and asked:
            yield f"the requests {sorted(asked)} have no answer in their turn"
            asked.clear()


def _skipped_in(record: Record, types: PayloadTypes) -> str:
    fact = types.decode(record.payload_type, record.payload)
    assert isinstance(fact, SplitSkipped)
    return fact.split_id


def taken_by(types: PayloadTypes) -> str:
    """Who takes this job's orders: a chain has one such operator."""
    return TILL if payload_type_of(OrderTaken).key in types else TALK


def _answer_problems(
    request: Record, response: Record, types: PayloadTypes, taken: list[int]
) -> Iterator[str]:
    order = types.decode(request.payload_type, request.payload)
    answer = types.decode(response.payload_type, response.payload)
    if not isinstance(order, Order):
        return
    assert isinstance(answer, Taken)
    if order.number not in taken:
        taken.append(order.number)
    expected = Taken(number=order.number, place=taken.index(order.number))
    if answer != expected:
        yield f"record {response.sequence} says {answer}; of what the log has, it is {expected}"
