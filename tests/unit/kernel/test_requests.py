"""A client's request: recorded, handled, answered after release; and every way in which it has no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from coordlog.api.coordinator import Query
from coordlog.errors import (
    CoordinatorRestartingError,
    CoordlogError,
    NoSuchOperatorError,
    NotRequestHandlerError,
    PayloadTypeError,
    RequestFailedError,
    RequestRefusedError,
    RequestUnansweredError,
    TooLargeError,
)
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import RequestArrived, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import PAYLOAD_BYTES_MAX, REQUESTS_OPEN_MAX
from coordlog.projections.job.state import Phase
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.runtime.requests import Requests
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import FakeRequest, HandDrivenJob
from fakes.kernel_fakes import (
    HANDLED,
    TYPES,
    Down,
    Noted,
    Noting,
    NotingProvider,
    Stranger,
    Up,
    chain_of,
    delivered,
    kinds,
    prefix_of,
)
from fakes.request_fakes import AnsweringProvider, HowMany, SoMany


def made_job(
    provider: NotingProvider | None = None,
    *,
    is_held: bool = False,
    configure: Callable[[KernelConfig], KernelConfig] | None = None,
) -> HandDrivenJob:
    provider = provider or AnsweringProvider()
    return HandDrivenJob(chain_of(provider), is_held=is_held, configure=configure)


def outcome_of(asked: FakeRequest) -> RequestOutcome:
    (effect,) = asked.answers
    return effect.outcome


@pytest.mark.clause("J1")
@pytest.mark.flink("SD30")
def test_a_request_is_answered_with_the_sequence_of_its_answer_in_the_log() -> None:
    job = made_job()
    answer = job.ask("source", HowMany(of="rules")).answer()

    assert answer.response == SoMany(n=1)
    asked, said = job.history(Kind.REQUEST, Kind.RESPONSE)
    assert (asked.kind, asked.operator_id, asked.payload_type) == (
        Kind.REQUEST,
        "source",
        "test.how_many@1",
    )
    assert (said.kind, said.cause, said.payload_type) == (
        Kind.RESPONSE,
        asked.sequence,
        "test.so_many@1",
    )
    assert said.attributes == {"outcome": "answered"}
    assert answer.sequence == said.sequence
    assert (asked.turn_remaining, said.turn_remaining) == (2, 0), (
        "one turn, the answer's type in it"
    )


@pytest.mark.clause("J1")
@pytest.mark.clause("K1")
@pytest.mark.clause("A6")
def test_the_answer_leaves_after_release() -> None:
    provider = AnsweringProvider()
    job = made_job(provider)
    job.is_held = True
    asked = job.ask("source", HowMany())

    assert provider.said("request") == [("request", "")], "handled before it is durable"
    assert asked.is_open
    assert job.history(Kind.REQUEST) == []
    job.release()
    assert asked.answer().response == SoMany(n=1)


@pytest.mark.clause("J1")
@pytest.mark.clause("A6")
def test_what_a_request_does_is_in_its_turn_and_leaves_with_its_answer() -> None:
    provider = AnsweringProvider()
    job = made_job(provider)
    attempt = job.register(0)
    worked: list[str] = []

    def work() -> Payload:
        worked.append("done")
        return Noted(text="worked")

    def act(coordinator: Noting) -> None:
        coordinator.gateways[0].send_event(Down(n=7))
        coordinator.context.record(Noted(text="asked"))
        coordinator.context.call_async(work, lambda *_: None)

    provider.on["request"] = act
    job.is_held = True
    before = job.log.high_watermark()
    asked = job.ask("source", HowMany())
    assert (delivered(job, attempt), worked) == ([], [])
    job.release()

    assert (delivered(job, attempt), worked) == ([7], ["done"])
    made = [one for one in job.history() if (one.sequence or 0) >= before - 1]
    assert kinds(made)[:4] == ["REQUEST", "EVENT_TO_SUBTASK", "FACT", "RESPONSE"]
    assert asked.answer().response == SoMany(n=1)


@pytest.mark.clause("J1")
def test_requests_are_handled_in_the_order_in_which_they_are_asked() -> None:
    provider = AnsweringProvider()
    job = made_job(provider)
    job.is_held = True
    asked = [job.ask("source", HowMany(of=name)) for name in "abc"]
    job.release()

    assert [one.answer().response for one in asked] == [SoMany(n=1), SoMany(n=2), SoMany(n=3)]
    sequences = [one.answer().sequence for one in asked]
    assert sequences == sorted(sequences)


@pytest.mark.clause("J1")
@pytest.mark.flink("SD31")
def test_a_coordinator_that_answers_no_requests_is_named() -> None:
    job = made_job(NotingProvider(payload_types=(*TYPES, HowMany, SoMany)))
    asked = job.ask("source", HowMany())

    with pytest.raises(NotRequestHandlerError, match="'source': Noting answers no requests"):
        asked.answer()
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("J1")
@pytest.mark.flink("SD32")
def test_a_request_to_an_unknown_operator_is_answered_with_the_known_ones() -> None:
    job = made_job()
    asked = job.ask("sauce", HowMany())

    with pytest.raises(NoSuchOperatorError, match=r"'sauce' .* are: source"):
        asked.answer()
    assert job.history(Kind.REQUEST, Kind.RESPONSE) == []


@pytest.mark.clause("J1")
@pytest.mark.clause("A3")
def test_a_refusal_is_an_answer_and_fails_nothing() -> None:
    provider = AnsweringProvider()

    def refuse(_coordinator: Noting) -> None:
        raise RequestRefusedError("not on Sundays")

    provider.on["request"] = refuse
    job = made_job(provider)
    asked = job.ask("source", HowMany())

    with pytest.raises(RequestRefusedError, match="not on Sundays"):
        asked.answer()
    (said,) = job.history(Kind.RESPONSE)
    assert (said.reason, said.payload_type) == ("not on Sundays", None)
    assert said.attributes == {"outcome": "refused"}
    assert job.history(Kind.GLOBAL_FAILURE) == []
    del provider.on["request"]
    assert job.ask("source", HowMany()).answer().response == SoMany(n=2)


def note_and_refuse(coordinator: Noting) -> None:
    coordinator.context.record(Noted(text="done already"))
    raise RequestRefusedError("too late")


def schedule_and_refuse(coordinator: Noting) -> None:
    coordinator.context.schedule(1.0, lambda: None)
    raise RequestRefusedError("too late")


def blunder(_coordinator: Noting) -> None:
    raise ValueError("no such thing")


def answer_a_stranger(_coordinator: Noting) -> Payload:
    return Stranger(n=1)


def answer_too_much(_coordinator: Noting) -> Payload:
    return Noted(text="x" * (PAYLOAD_BYTES_MAX + 1))


def fail_job(coordinator: Noting) -> None:
    coordinator.context.fail_job("enough")


@pytest.mark.clause("J1")
@pytest.mark.clause("A3")
@pytest.mark.parametrize(
    ("act", "says"),
    [
        (blunder, "handle_coordination_request of operator 'source' raised ValueError: no such"),
        (note_and_refuse, "refused after something was done for it: too late"),
        (schedule_and_refuse, "refused after something was done for it: too late"),
        (answer_a_stranger, "test.stranger.*not registered with this job"),
        (answer_too_much, "the limit is"),
        (fail_job, "operator 'source' failed the job: enough"),
    ],
)
@pytest.mark.may_fail(
    "no such thing", "refused after something was done", "not registered", "the limit is", "enough"
)
def test_any_other_error_of_a_handler_fails_the_job_with_an_answer(
    act: Callable[[Noting], object], says: str
) -> None:
    provider = AnsweringProvider()
    provider.on["request"] = act
    job = made_job(provider)
    job.is_held = True
    asked = job.ask("source", HowMany())
    assert asked.is_open, "the failure is not in the log yet"
    job.release()

    with pytest.raises(RequestFailedError, match=says):
        asked.answer()
    last = job.history()[-3:]
    assert kinds(last) == ["REQUEST", "RESPONSE", "GLOBAL_FAILURE"]
    assert last[1].attributes == {"outcome": "failed"}
    assert job.history(Kind.FACT) == [], "of its turn only the kernel's records stay"
    assert job.runtime.state.phase is Phase.FAILING


@pytest.mark.clause("J1")
@pytest.mark.clause("A3")
@pytest.mark.may_fail("ValueError: no such thing")
def test_a_request_that_fails_the_job_for_good_is_answered() -> None:
    provider = AnsweringProvider()
    provider.on["request"] = blunder
    job = made_job(provider, configure=lambda config: replace(config, restarts_max=0))
    asked = job.ask("source", HowMany())

    assert job.runtime.state.phase is Phase.FAILED
    assert outcome_of(asked) is RequestOutcome.FAILED
    later = job.ask("source", HowMany())
    with pytest.raises(RequestUnansweredError, match="the job is failed"):
        later.answer()


@pytest.mark.clause("J1")
@pytest.mark.may_fail("no reason")
def test_while_the_job_goes_back_a_request_is_told_to_come_again() -> None:
    provider = AnsweringProvider()
    job = made_job(provider)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    asked = job.ask("source", HowMany())

    with pytest.raises(CoordinatorRestartingError, match="the job is failing; ask again"):
        asked.answer()
    assert CoordinatorRestartingError.retriable
    assert (provider.said("request"), job.history(Kind.REQUEST)) == ([], [])
    job.advance(60)
    assert job.ask("source", HowMany()).answer().response == SoMany(n=1)


@pytest.mark.clause("J1")
@pytest.mark.clause("K1")
@pytest.mark.may_fail("no reason")
def test_that_the_job_goes_back_is_not_told_before_it_is_in_the_log() -> None:
    job = made_job()
    job.is_held = True
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    asked = job.ask("source", HowMany())

    assert asked.is_open
    job.release()
    assert outcome_of(asked) is RequestOutcome.RESTARTING


@pytest.mark.clause("J1")
@pytest.mark.may_fail("no reason")
def test_a_handled_request_is_answered_if_the_job_fails_before_its_release() -> None:
    job = made_job()
    job.is_held = True
    asked = job.ask("source", HowMany())
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.advance(60)
    assert asked.is_open
    job.release()

    assert asked.answer().response == SoMany(n=1)


@pytest.mark.fault("X13")
@pytest.mark.clause("J1")
def test_a_driver_that_ends_answers_what_is_open() -> None:
    job = made_job()
    job.is_held = True
    asked = job.ask("source", HowMany())
    job.crash()

    with pytest.raises(RequestUnansweredError, match="the driver ended before"):
        asked.answer()
    with pytest.raises(RequestUnansweredError, match="the driver has ended"):
        job.ask("source", HowMany()).answer()


@pytest.mark.clause("J1")
def test_after_a_batch_jobs_last_completion_no_coordinator_is_asked() -> None:
    provider = AnsweringProvider()
    job = HandDrivenJob(chain_of(provider), is_batch=True)
    job.register(0).complete()
    assert job.runtime.state.phase is Phase.FINISHED

    assert outcome_of(job.ask("source", HowMany())) is RequestOutcome.OVER
    assert provider.said("request") == []


@pytest.mark.clause("J2")
def test_a_rollback_handles_no_request_again_and_a_checkpoint_holds_none() -> None:
    provider = AnsweringProvider()
    job = made_job(provider)
    attempt = job.register(0)
    job.trigger()
    job.ask("source", HowMany(of="in the cut"))
    attempt.send("source", Up(n=5))
    attempt.ack_checkpoint(1)
    job.ask("source", HowMany(of="after the checkpoint"))
    assert [one.payload_type for one in job.runtime.state.completed[1].in_flight] == ["test.up@1"]
    job.crash()
    provider.calls.clear()
    again = HandDrivenJob(job.chain, log=job.log)

    assert again.mode == "rollback"
    assert [one[0] for one in provider.calls] == ["create", "restore", "start", "event", "complete"]
    assert len(again.history(Kind.REQUEST)) == len(again.history(Kind.RESPONSE)) == 2


def _asked(state: tuple[str, ...], record: Record, value: Payload | None) -> tuple[str, ...]:
    if record.kind is Kind.REQUEST and isinstance(value, HowMany):
        return (*state, value.of)
    return state


ASKED: OperatorProjection[tuple[str, ...]] = OperatorProjection(
    name="test.asked", version=1, initial=(), apply=_asked
)


@pytest.mark.clause("J2")
def test_requests_to_an_event_sourced_coordinator_are_undone_by_rollback() -> None:
    for restore, left in (("rollback", ("before",)), ("resume", ("before", "after"))):
        provider = AnsweringProvider(projection=ASKED)
        job = made_job(provider)
        attempt = job.register(0)
        job.ask("source", HowMany(of="before"))
        job.trigger()
        attempt.ack_checkpoint(1)
        job.ask("source", HowMany(of="after"))
        job.crash()
        provider.calls.clear()
        again = HandDrivenJob(job.chain, log=job.log, restore=restore)

        assert again.runtime.state.projections["source"] == left
        assert provider.said("request") == []


@pytest.mark.clause("J1")
@pytest.mark.clause("K5")
def test_a_request_whose_turn_a_crash_cut_off_counts_for_nothing() -> None:
    provider = AnsweringProvider()
    job = made_job(provider)
    job.is_held = True
    job.ask("source", HowMany())
    whole = job.runtime.turns.take_group()
    assert len(whole) == 4, "two types, the request and its answer"
    job.crash()
    for count in range(1, len(whole)):
        cut = prefix_of(job.log, job.log.high_watermark())
        cut.writer().append(whole[:count], timeout_s=1)
        again = HandDrivenJob(job.chain, log=cut)
        assert again.history(Kind.REQUEST, Kind.RESPONSE) == []
        assert again.runtime.state.types.get("test.how_many@1") is None


# --- `Requests` alone ------------------------------------------------------------------------------------------------
def told(requests: Requests, payload_type: str, payload: bytes) -> AnswerRequest:
    answers: list[AnswerRequest] = []
    requests.ask("source", payload_type, payload, answers.append)
    (answer,) = answers
    return answer


@pytest.mark.clause("J1")
@pytest.mark.clause("K6")
@pytest.mark.parametrize(
    ("payload_type", "payload", "says"),
    [
        ("test.unheard@1", b"", "unknown here"),
        ("test.how_many@1", b"", "EOFError"),
        ("test.how_many@1", b"\x00" * (PAYLOAD_BYTES_MAX + 1), "the limit is"),
    ],
)
def test_what_cannot_be_read_reaches_no_coordinator(
    payload_type: str, payload: bytes, says: str
) -> None:
    job = made_job()
    before = job.log.high_watermark()
    answer = told(job.requests, payload_type, payload)

    assert answer.outcome is RequestOutcome.UNREADABLE
    assert says in str(answer.reason)
    assert job.log.high_watermark() == before
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("J1")
def test_a_request_of_a_foreign_type_or_too_large_raises_where_it_is_asked() -> None:
    job = made_job()
    for value, error in (
        (Stranger(n=1), PayloadTypeError),
        (HowMany(of="x" * (PAYLOAD_BYTES_MAX + 1)), TooLargeError),
    ):
        expected: type[CoordlogError] = error
        with pytest.raises(expected):
            job.requests.request("source", value, timeout_s=0)


@pytest.mark.clause("J1")
def test_one_request_more_than_may_be_open_is_turned_away() -> None:
    job = made_job()
    job.is_held = True
    asked = [job.ask("source", HowMany()) for _ in range(REQUESTS_OPEN_MAX)]
    late = job.ask("source", HowMany())

    with pytest.raises(RequestUnansweredError, match="1000 other requests wait"):
        late.answer()
    job.release()
    job.is_held = False
    assert all(not one.is_open for one in asked)
    assert job.ask("source", HowMany()).answer().response == SoMany(n=REQUESTS_OPEN_MAX + 1)


@pytest.mark.clause("J1")
def test_a_wait_is_bounded_and_what_comes_later_is_dropped() -> None:
    job = made_job()
    job.is_held = True
    with pytest.raises(RequestUnansweredError, match="none came within 0 s"):
        job.requests.request("source", HowMany(), timeout_s=0)
    job.release()

    assert len(job.history(Kind.RESPONSE)) == 1
    job.requests.end()


@pytest.mark.clause("J1")
def test_requests_whose_callers_have_gone_count_until_the_driver_answers() -> None:
    """While the log stalls, clients with short timeouts would queue without limit, each up to 256 KiB."""
    requests = Requests(made_job().chain.payload_types)
    arrived: list[RequestArrived] = []
    requests.begin(arrived.append)

    for _ in range(REQUESTS_OPEN_MAX):
        with pytest.raises(RequestUnansweredError, match="none came within"):
            requests.request("source", HowMany(), timeout_s=0)
    with pytest.raises(RequestUnansweredError, match="other requests wait"):
        requests.request("source", HowMany(), timeout_s=0)
    requests.answered(
        AnswerRequest(request_id=arrived[0].request_id, outcome=RequestOutcome.REFUSED)
    )
    with pytest.raises(RequestUnansweredError, match="none came within"):
        requests.request("source", HowMany(), timeout_s=0)

    assert len(arrived) == REQUESTS_OPEN_MAX + 1
    assert requests.open_count == 0
    requests.end()


@pytest.mark.clause("J1")
def test_before_the_job_is_restored_a_client_is_told_to_come_again() -> None:
    requests = Requests(made_job().chain.payload_types)

    with pytest.raises(CoordinatorRestartingError, match="being restored"):
        requests.request("source", HowMany(), timeout_s=0)


@dataclass(eq=False)
class QueriedProvider(AnsweringProvider):
    """`HowMany` is a query here, answered by `query`."""

    query: Query = field(kw_only=True)
    projection: OperatorProjection[Any] | None = HANDLED

    def __post_init__(self) -> None:
        self.queries = {HowMany: self.query}


def _raising(_state: object, _asked: Payload) -> Payload:
    raise KeyError("missing")


def _panicking(_state: object, _asked: Payload) -> Payload:
    raise SystemExit(0)


@pytest.mark.clause("J1")
@pytest.mark.parametrize(
    ("query", "why"),
    [
        (_raising, "KeyError: 'missing'"),
        (_panicking, "SystemExit: 0"),
        (lambda _state, _asked: Stranger(n=1), "test.stranger@1"),
        (lambda _state, _asked: Noted(text="x" * PAYLOAD_BYTES_MAX), "the limit is"),
    ],
    ids=["raises", "panics", "unregistered type", "too large"],
)
def test_a_query_that_cannot_be_answered_is_refused_and_the_job_goes_on(
    query: Query, why: str
) -> None:
    job = made_job(QueriedProvider(query=query))
    before = len(job.history())

    asked = job.ask("source", HowMany())

    with pytest.raises(RequestRefusedError, match=why):
        asked.answer()
    assert len(job.history()) == before
    assert job.runtime.state.phase is Phase.RUNNING
