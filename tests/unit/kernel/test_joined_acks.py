"""Acks of several events in one message and one record (clauses C5, C6, D2)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from immutables import Map

from coordlog.api.coordinator import EventFuture, SubtaskGateway
from coordlog.history import History
from coordlog.messages import AckCheckpoint, AckEvent, Marker, SendEvent, UpMessage, joined_acks
from coordlog.projections.inspection.explain import explain_event
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.tables.attempts import attempts
from coordlog.projections.tables.events import EventStatus, events
from coordlog.projections.telemetry.metrics import EVENT_ACK, MeasureFold
from coordlog.schemas.builtin_types import AttemptSnapshot
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import ALSO_ACKED, Kind, Record, acked_events
from coordlog.testing import replay
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import Down, Noting, NotingProvider, chain_of, event_ids, inside, send_down


def ack(event_id: int, *also: int, operator_id: str = "source") -> AckEvent:
    return AckEvent(operator_id=operator_id, event_id=event_id, last_barrier=-1, also=also)


def sent(event_id: int) -> SendEvent:
    return SendEvent(
        operator_id="source", event_id=event_id, last_barrier=-1, payload_type="up@1", payload=b""
    )


PASSED = AckCheckpoint(
    checkpoint_id=1, last_barrier=1, snapshot=AttemptSnapshot(states=[], committables=[])
)


@pytest.mark.clause("D2")
@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([ack(1)], [ack(1)]),
        ([sent(0), ack(1), sent(1), ack(2)], [sent(0), sent(1), ack(1, 2)]),
        ([ack(1), PASSED, ack(2), ack(3)], [ack(1), PASSED, ack(2, 3)]),
        ([ack(1), Marker(number=4), ack(2)], [ack(1), Marker(number=4), ack(2)]),
        ([ack(1, 2), ack(3)], [ack(1, 2, 3)]),
        (
            [ack(1), ack(2, operator_id="sink"), ack(3)],
            [ack(1, 3), ack(2, operator_id="sink")],
        ),
    ],
)
def test_acks_move_behind_events_and_behind_nothing_else(
    messages: Sequence[UpMessage], expected: Sequence[UpMessage]
) -> None:
    assert list(joined_acks([(one, one) for one in messages], lambda one: one)) == expected


def running(
    provider: NotingProvider, *numbers: int, parallelism: int = 1
) -> tuple[HandDrivenJob, FakeAttempt]:
    """A job with these events on their way to subtask 0."""
    job = HandDrivenJob(chain_of(provider), parallelism=parallelism)
    attempt = job.register_all()[0]
    inside(attempt, provider, send_down(provider, 0, *numbers))
    return job, attempt


@pytest.mark.clause("C5")
@pytest.mark.clause("C9")
def test_one_record_acks_several_events_and_resolves_their_futures() -> None:
    provider, heard = NotingProvider(), list[int]()
    job, attempt = running(provider)

    def send(coordinator: Noting) -> None:
        for n in (5, 6, 7):
            future = coordinator.gateways[0].send_event(Down(n=n))
            future.add_done_callback(lambda one: heard.append(one.result().event_id))

    inside(attempt, provider, send)
    attempt.ack("source", *event_ids(attempt))

    (acked,) = job.history(Kind.EVENT_ACKED)
    assert (acked.event_id, acked.attributes, acked.cause) == (0, {ALSO_ACKED: "1,2"}, None)
    assert acked_events(acked) == (0, 1, 2)
    assert heard == [0, 1, 2]
    assert not job.runtime.state.gateways["source", 0].unacked


def test_an_ack_of_one_event_names_the_record_of_that_event() -> None:
    job, attempt = running(NotingProvider(), 5)
    attempt.ack("source", 0)

    (acked,), (down,) = job.history(Kind.EVENT_ACKED), job.history(Kind.EVENT_TO_SUBTASK)
    assert (acked.attributes, acked.cause) == ({}, down.sequence)


@pytest.mark.clause("C6")
@pytest.mark.parametrize("acked", [(0, 12), (12, 0), (0, 0), (0, 1, 2)])
def test_an_ack_that_also_names_a_foreign_event_changes_nothing(acked: tuple[int, ...]) -> None:
    provider = NotingProvider()
    job, attempt = running(provider, 5, 6)
    job.trigger()  # it holds the third event
    inside(attempt, provider, send_down(provider, 0, 7))
    before = job.runtime.state.gateways

    attempt.ack("source", *acked)

    assert job.runtime.state.gateways == before
    assert job.history(Kind.EVENT_ACKED) == []
    (refused,) = job.history(Kind.FACT)
    assert refused.reason is not None
    assert refused.reason.endswith("is not waiting for an ack")
    assert job.runtime.state.live_count == 1


@pytest.mark.clause("F3")
def test_a_checkpoint_waits_until_the_last_of_its_events_is_acked() -> None:
    job, attempt = running(NotingProvider(), 5, 6, 7)
    job.trigger()
    attempt.ack("source", 0, 1)
    assert job.runtime.state.pending[1].waiting == Map({2: None})
    assert not job.runtime.state.pending[1].is_injected

    attempt.ack("source", 2)
    assert job.runtime.state.pending[1].is_injected


@pytest.mark.clause("C4")
def test_each_event_of_a_joined_ack_has_no_time_limit_any_more() -> None:
    job, attempt = running(NotingProvider(), 5, 6, 7)
    assert job.runtime.next_timer_s() is not None
    attempt.ack("source", 0, 1, 2)
    assert job.runtime.next_timer_s() is None
    job.advance(1_000)

    assert job.runtime.state.live_count == 1


def test_a_projection_gets_an_ack_of_each_event() -> None:
    seen: list[tuple[int | None, int | None, dict[str, str]]] = []

    def noted(state: int, record: Record, _value: Payload | None) -> int:
        if record.kind is Kind.EVENT_ACKED:
            seen.append((record.event_id, record.cause, dict(record.attributes)))
        return state

    job, attempt = running(
        NotingProvider(
            projection=OperatorProjection(name="test.acks", version=1, initial=0, apply=noted)
        )
    )
    provider = job.chain.coordinators[0]
    assert isinstance(provider, NotingProvider)
    inside(attempt, provider, send_down(provider, 0, 5, 6))
    attempt.ack("source", 0, 1)

    downs = [one.sequence for one in job.history(Kind.EVENT_TO_SUBTASK)]
    assert seen == [(0, downs[0], {}), (1, downs[1], {})]


@pytest.mark.clause("K7")
def test_a_joined_ack_is_replayed_with_what_its_futures_do() -> None:
    def chatting() -> NotingProvider:
        def ready(_coordinator: Noting, _subtask: int, _number: int) -> None:
            gateway: SubtaskGateway = _coordinator.gateways[0]

            def again(one: EventFuture) -> None:
                if one.result().event_id < 3:
                    gateway.send_event(Down(n=10 + one.result().event_id))

            for n in (5, 6, 7):
                gateway.send_event(Down(n=n)).add_done_callback(again)

        return NotingProvider(on={"ready": ready})

    job = HandDrivenJob(chain_of(chatting()))
    attempt = job.register(0)
    attempt.ack("source", 0, 1, 2)
    attempt.ack("source", *event_ids(attempt)[3:])

    assert [one.event_id for one in job.history(Kind.EVENT_TO_SUBTASK)] == [0, 1, 2, 3, 4, 5]
    assert [acked_events(one) for one in job.history(Kind.EVENT_ACKED)] == [(0, 1, 2), (3, 4, 5)]
    replayed = replay(job.log, chain_of(chatting()))
    assert replayed.record_count == len(job.history()) - 1


def test_the_tables_have_each_event_of_a_joined_ack() -> None:
    job, attempt = running(NotingProvider(), 5, 6, 7)
    attempt.ack("source", 0, 1, 2)
    records = job.history()

    down = [row for row in events(records) if row.status is EventStatus.ACKED]
    assert [row.event_id for row in down] == [0, 1, 2]
    assert all(row.milliseconds is not None for row in down)
    assert [row.events_acked for row in attempts(records)] == [3]


def test_the_metrics_have_each_event_of_a_joined_ack() -> None:
    job, attempt = running(NotingProvider(), 5, 6, 7)
    attempt.ack("source", 0, 1, 2)
    fold = MeasureFold()

    samples = [sample for record in job.history() for sample in fold.apply(record)]

    assert len([one for one in samples if one.metric is EVENT_ACK]) == 3


def test_an_event_is_explained_by_the_joined_ack_alone() -> None:
    job, attempt = running(NotingProvider(), 5, 6, 7)
    attempt.ack("source", 0, 1, 2)
    downs = job.history(Kind.EVENT_TO_SUBTASK)

    assert downs[1].sequence is not None
    found = explain_event(History(job.log).stored(), downs[1].sequence)

    assert found.outcome.endswith(": acked")
    assert found.steps[-1].words == "attempt 0 of subtask 0 had processed events 0, 1, 2"
    sequences = {one.sequence for one in found.steps}
    assert not sequences & {downs[0].sequence, downs[2].sequence}
