"""What a coordinator's code may call, from where, and what becomes of it (clauses A1, A2, A4 to A6, C9, K6, K7)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from coordlog.api.coordinator import EventFuture
from coordlog.errors import ClosedError, CoordlogError, WrongThreadError
from coordlog.projections.job.state import Phase
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import (
    HANDLED,
    Down,
    Noted,
    Noting,
    NotingProvider,
    Stranger,
    Up,
    chain_of,
    inside,
    kinds,
)


class SilentError(Exception):
    """An error whose text is fetched from a process that has died."""

    def __str__(self) -> str:
        raise ConnectionError("gone")


def started(provider: NotingProvider) -> tuple[HandDrivenJob, FakeAttempt]:
    job = HandDrivenJob(chain_of(provider))
    return job, job.register(0)


def failed_over(job: HandDrivenJob) -> None:
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(1)


def on_another_thread(act: Callable[[], object]) -> BaseException | None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except CoordlogError as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="elsewhere")
    thread.start()
    thread.join()
    return raised[0] if raised else None


CALLS: dict[str, Callable[[Noting], object]] = {
    "gateway.send_event": lambda c: c.gateways[0].send_event(Down(n=1)),
    "result.complete": lambda c: c.results[1].complete(b""),
    "result.fail": lambda c: c.results[1].fail("no"),
    "context.record": lambda c: c.context.record(Noted(text="x")),
    "context.state": lambda c: c.context.state,
    "context.is_redelivery": lambda c: c.context.is_redelivery,
    "context.now_us": lambda c: c.context.now_us(),
    "context.random": lambda c: c.context.random(),
    "context.current_parallelism": lambda c: c.context.current_parallelism(),
    "context.call_async": lambda c: c.context.call_async(lambda: Noted(text=""), lambda *_: None),
    "context.schedule": lambda c: c.context.schedule(1.0, lambda: None),
    "context.committables": lambda c: c.context.committables(1),
    "context.commit": lambda c: c.context.commit(1, Noted(text="x")),
    "context.lost_events": lambda c: c.context.lost_events(0),
}


@pytest.mark.clause("A5")
@pytest.mark.parametrize("what", CALLS)
def test_elsewhere_than_in_a_callback_every_call_raises(what: str) -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, _ = started(provider)
    job.trigger()
    before = job.runtime.state

    with pytest.raises(WrongThreadError) as raised:
        CALLS[what](provider.newest)
    error = on_another_thread(lambda: CALLS[what](provider.newest))

    assert raised.value.what == what
    assert isinstance(error, WrongThreadError)
    assert (error.what, error.thread) == (what, "elsewhere")
    assert job.runtime.state is before


@pytest.mark.flink("RC3")
@pytest.mark.clause("A1")
@pytest.mark.parametrize("what", [*CALLS, "context.fail_job"])
@pytest.mark.may_fail("no reason")
def test_a_closed_coordinators_calls_raise_and_reach_nothing(what: str) -> None:
    provider = NotingProvider(is_cut_at_once=False)
    job, _ = started(provider)
    job.trigger()
    old = provider.newest
    failed_over(job)
    assert provider.newest is not old
    before = job.runtime.state
    calls = dict(CALLS)
    calls["context.fail_job"] = lambda c: c.context.fail_job("late")

    with pytest.raises(ClosedError):
        calls[what](old)

    assert job.runtime.state is before


@pytest.mark.clause("A5")
def test_a_running_callback_is_known_by_name_operator_and_subtask() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    called: list[str | None] = []
    for name in ("ready", "event", "cut"):
        provider.on[name] = lambda *_: called.append(job.runtime.host.calling)
    _, attempt = job.register_all()
    attempt.send("source", Up(n=1))
    job.trigger()

    assert called == [
        "execution_attempt_ready of operator 'source' for subtask 0",
        "execution_attempt_ready of operator 'source' for subtask 1",
        "handle_event_from_operator of operator 'source' for subtask 1",
        "checkpoint_coordinator of operator 'source'",
    ]
    assert job.runtime.host.calling is None


@pytest.mark.flink("RC2")
@pytest.mark.clause("A4")
@pytest.mark.may_fail("ValueError: bad")
def test_fail_job_may_be_called_from_any_thread_and_enters_as_a_turn() -> None:
    provider = NotingProvider()
    job, _ = started(provider)
    assert on_another_thread(lambda: provider.newest.context.fail_job(ValueError("bad"))) is None
    assert job.runtime.state.phase is Phase.RUNNING
    job.pump()

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert (failure.reason, failure.operator_id) == ("ValueError: bad", "source")


@pytest.mark.clause("A1")
@pytest.mark.clause("A4")
@pytest.mark.may_fail("no reason")
def test_fail_job_of_a_coordinator_closed_before_its_turn_does_nothing() -> None:
    provider = NotingProvider()
    job, _ = started(provider)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    provider.newest.context.fail_job("late")
    posted = job._posted.popleft()
    job.stage_ends()
    job.advance(1)
    job.run(posted)

    assert len(job.history(Kind.GLOBAL_FAILURE)) == 1
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("A2")
@pytest.mark.may_fail("no reason")
def test_close_is_called_once_on_a_worker_whatever_happened() -> None:
    provider = NotingProvider()

    def explode(*_said: object) -> None:
        raise RuntimeError("bang")

    provider.on["close"] = explode
    job, _ = started(provider)
    job.is_work_held = True
    failed_over(job)
    assert provider.said("close") == []
    job.is_work_held = False
    job.pump()
    assert provider.said("close") == [("close",)]
    job.runtime.host.close_all()
    job.runtime.host.close_all()
    job.pump()

    assert provider.said("close") == [("close",), ("close",)], "one each"
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("A5")
@pytest.mark.clause("A6")
def test_call_async_starts_after_release_and_its_result_enters_as_a_fact() -> None:
    provider = NotingProvider()
    job, attempt = started(provider)
    heard: list[tuple[Payload | None, str | None]] = []
    worked: list[int] = []

    def work() -> Noted:
        worked.append(1)
        return Noted(text="found")

    job.is_held = True
    inside(
        attempt,
        provider,
        lambda c: c.context.call_async(work, lambda result, error: heard.append((result, error))),
    )
    assert worked == []
    job.release()
    job.release()

    assert heard == [(Noted(text="found"), None)]
    fact = job.history(Kind.FACT)[-1]
    asked = job.history(Kind.EVENT_TO_COORDINATOR)[-1]
    assert fact.payload_type == "test.noted@1"
    assert fact.attributes["call"] == "0"
    assert int(fact.attributes["turn"]) <= (asked.sequence or 0)


@pytest.mark.clause("A6")
@pytest.mark.clause("K6")
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (BaseException("panicked"), "BaseException: panicked"),
        (FileNotFoundError("caf\udce9.csv"), "FileNotFoundError: caf\\udce9.csv"),
        (ValueError("x" * 5_000), "ValueError: xxx"),
        (SilentError(), "SilentError, whose text cannot be read (ConnectionError)"),
        (Stranger(n=1), "payload type test.stranger@1: not registered with this job"),
        ("text", "the work returned str, not a payload"),
        (Noted(text="x" * 300_000), "a test.noted@1 is 3000"),
    ],
    ids=[
        "raises",
        "panics",
        "names a file that is not UTF-8",
        "has a long text",
        "has no text",
        "unregistered",
        "no payload",
        "too large",
    ],
)
def test_work_that_brings_no_result_is_heard_of_as_an_error(result: object, said: str) -> None:
    provider = NotingProvider()
    job, attempt = started(provider)
    heard: list[str | None] = []

    def work() -> Payload:
        if isinstance(result, BaseException):
            raise result
        return result  # type: ignore[return-value]

    inside(
        attempt,
        provider,
        lambda c: c.context.call_async(work, lambda _, error: heard.append(error)),
    )

    (error,) = heard
    assert str(error).startswith(said)
    assert job.history(Kind.FACT)[-1].reason == error


@pytest.mark.clause("A6")
@pytest.mark.may_fail("no reason")
def test_a_result_for_a_closed_coordinator_is_recorded_only() -> None:
    provider = NotingProvider(projection=HANDLED)
    job, attempt = started(provider)
    heard: list[object] = []
    job.is_work_held = True
    inside(
        attempt,
        provider,
        lambda c: c.context.call_async(
            lambda: Noted(text="late"), lambda *said: heard.append(said)
        ),
    )
    failed_over(job)
    before = job.runtime.state.projections
    job.is_work_held = False
    job.pump()

    fact = job.history(Kind.FACT)[-1]
    assert heard == []
    assert (fact.attributes["closed"], fact.reason) == ("true", "its coordinator is closed")
    assert job.runtime.state.projections is before


@pytest.mark.clause("A6")
@pytest.mark.may_fail("no reason")
def test_failed_work_of_a_closed_coordinator_is_recorded_with_its_error() -> None:
    provider = NotingProvider()
    job, attempt = started(provider)
    job.is_work_held = True

    def work() -> Payload:
        raise OSError("gone")

    inside(attempt, provider, lambda c: c.context.call_async(work, lambda *_: None))
    failed_over(job)
    job.is_work_held = False
    job.pump()

    assert job.history(Kind.FACT)[-1].reason == "its coordinator is closed: OSError: gone"


@pytest.mark.clause("A6")
@pytest.mark.may_fail("no reason")
def test_a_timer_fires_in_a_turn_of_its_own_and_not_after_a_reset() -> None:
    provider = NotingProvider()
    job, attempt = started(provider)
    inside(
        attempt,
        provider,
        lambda c: c.context.schedule(10.0, lambda: provider.calls.append(("fired",))),
    )
    job.advance(9.9)
    assert provider.said("fired") == []
    job.advance(0.2)
    assert provider.said("fired") == [("fired",)]
    assert job.history(Kind.FACT)[-1].payload_type == "coordlog.work_done@1"
    inside(
        attempt,
        provider,
        lambda c: c.context.schedule(10.0, lambda: provider.calls.append(("fired",))),
    )
    failed_over(job)
    job.advance(60)

    assert provider.said("fired") == [("fired",)]


@pytest.mark.clause("A3")
@pytest.mark.may_fail("raised FileNotFoundError: caf", "raised SilentError, whose text")
@pytest.mark.parametrize("error", [FileNotFoundError("caf\udce9.csv"), SilentError()])
def test_an_error_without_a_readable_text_fails_the_job_as_any_other(error: Exception) -> None:
    provider = NotingProvider()
    job, attempt = started(provider)

    def explode(_coordinator: Noting) -> None:
        raise error

    inside(attempt, provider, explode)

    assert kinds(job.history())[-1] == "GLOBAL_FAILURE"


@pytest.mark.clause("A3")
@pytest.mark.may_fail("OptionError: delay_s")
@pytest.mark.parametrize("delay_s", [math.nan, math.inf, timedelta(seconds=1), "1", None])
def test_a_delay_that_is_no_number_of_seconds_is_an_error_of_its_callback(delay_s: object) -> None:
    provider = NotingProvider()
    job, attempt = started(provider)

    inside(attempt, provider, lambda c: c.context.schedule(delay_s, lambda: None))  # type: ignore[arg-type]

    reason = str(job.history()[-1].reason)
    assert kinds(job.history())[-1] == "GLOBAL_FAILURE"
    assert "OptionError: delay_s" in reason
    assert "a finite number of seconds" in reason


@pytest.mark.clause("A3")
@pytest.mark.may_fail("RuntimeError: bang")
def test_an_exception_in_the_handler_of_call_async_fails_the_job() -> None:
    provider = NotingProvider()
    job, attempt = started(provider)

    def explode(*_said: object) -> None:
        raise RuntimeError("bang")

    inside(attempt, provider, lambda c: c.context.call_async(lambda: Noted(text=""), explode))

    assert kinds(job.history())[-2:] == ["FACT", "GLOBAL_FAILURE"]
    assert "the handler of call_async or schedule of operator 'source' raised" in str(
        job.history()[-1].reason
    )


@pytest.mark.clause("C9")
@pytest.mark.may_fail("no reason")
def test_futures_of_a_closed_coordinator_never_resolve() -> None:
    provider = NotingProvider()
    job, attempt = started(provider)
    futures: list[EventFuture] = []
    inside(attempt, provider, lambda c: futures.append(c.gateways[0].send_event(Down(n=1))))
    failed_over(job)

    assert not futures[0].done()


@pytest.mark.clause("A6")
@pytest.mark.clause("K7")
def test_now_and_random_come_from_the_turns_place_in_the_log() -> None:
    provider = NotingProvider()
    seen: list[tuple[int, float]] = []
    for _ in range(2):
        job, attempt = started(provider)
        inside(
            attempt,
            provider,
            lambda c: seen.append((c.context.now_us(), c.context.random().random())),
        )
        assert job.history(Kind.EVENT_TO_COORDINATOR)[-1].timestamp_us == seen[-1][0]

    assert seen[0] == seen[1]


def test_an_event_sourced_coordinator_sees_its_records_at_once() -> None:
    provider = NotingProvider(projection=HANDLED)
    seen: list[object] = []
    provider.on["event"] = lambda c, *_: seen.append(c.context.state)
    _, attempt = started(provider)
    attempt.send("source", Up(n=4))
    attempt.send("source", Up(n=5))

    assert seen == [(4,), (4, 5)]
