"""A coordinator or a query that changes the projection's state in place: the state stays that of the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordlog.api.chain import Chain
from coordlog.api.coordinator import CoordinatorContext, EventSourcedCoordinator
from coordlog.coordinators import DerivedCodec, OperatorProjection
from coordlog.errors import RequestRefusedError
from coordlog.schemas.payload import Payload, event, fact, request, response
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob, UnexpectedFailureError
from coordlog.testing.real_attempt import silent_source
from fakes.kernel_fakes import NotingProvider

Keys = list[str]
Act = Callable[[EventSourcedCoordinator[Keys]], object]


@event("coordinators_state.seen", version=1)
class Seen(Payload):
    key: str


@fact("coordinators_state.noted", version=1)
class Noted(Payload):
    key: str


@request("coordinators_state.first", version=1)
class First(Payload):
    pass


@response("coordinators_state.key", version=1)
class Key(Payload):
    key: str


def note(state: Keys, record: Record, value: Payload | None) -> Keys:
    if record.kind is Kind.EVENT_TO_COORDINATOR and isinstance(value, Seen):
        state.append(value.key)
    if isinstance(value, Noted):
        state.remove(value.key)
    return state


def take_first(state: Keys, _request: Payload) -> Payload:
    if not state:
        raise RequestRefusedError("no key is left")
    return Key(key=state.pop(0))


class Actor(EventSourcedCoordinator[Keys]):
    def __init__(self, context: CoordinatorContext, act: Act) -> None:
        super().__init__(context)
        self._act = act

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Seen) -> None:
        self._act(self)


class ActorProvider(NotingProvider):
    act: Act = staticmethod(lambda _coordinator: None)

    def create(self, context: CoordinatorContext) -> Actor:
        return Actor(context, self.act)


def job_of(act: Act, *, has_codec: bool = True) -> HandDrivenJob:
    projection: OperatorProjection[Keys] = OperatorProjection(
        name="coordinators_state.keys",
        version=1,
        initial=[],
        apply=note,
        codec=DerivedCodec(Keys) if has_codec else None,
    )
    provider = ActorProvider(payload_types=(Seen, Noted, First, Key), projection=projection)
    provider.act, provider.queries = act, {First: take_first}
    job = HandDrivenJob(Chain(source=silent_source(provider), operators=[]))
    (attempt,) = job.register_all()
    attempt.send("source", Seen(key="x"))
    return job


def take_and_note(coordinator: EventSourcedCoordinator[Keys]) -> None:
    coordinator.context.record(Noted(key=coordinator.state.pop()))


@pytest.mark.clause("K3")
@pytest.mark.parametrize("act", [lambda self: self.state.pop(), take_and_note])
def test_a_coordinator_that_changes_its_state_in_place_fails_by_name(act: Act) -> None:
    with pytest.raises(UnexpectedFailureError, match="'source' has changed its state in place"):
        job_of(act)


@pytest.mark.clause("K3")
def test_a_state_without_a_codec_is_not_changed_by_its_coordinator() -> None:
    job = job_of(lambda self: self.state.pop(), has_codec=False)

    assert job.runtime.state.projections["source"] == ["x"]


@pytest.mark.clause("K3")
def test_a_query_that_changes_the_state_changes_a_copy() -> None:
    job = job_of(lambda _self: None)

    keys = [job.ask("source", First()).answer().response for _ in range(2)]

    assert keys == [Key(key="x"), Key(key="x")]


def test_a_coordinator_reads_its_state_with_each_record_of_its_turn() -> None:
    read: list[Keys] = []

    def act(self: EventSourcedCoordinator[Keys]) -> None:
        read.append(self.state)
        self.context.record(Noted(key="x"))
        read.append(self.state)

    job_of(act)

    assert read == [["x"], []]
