"""The end of a real driver, alone and beside another one (scenario SD2; clauses A2, A5, K2)."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from coordlog.api.chain import Chain
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import FencedError, RequestError
from coordlog.limits import CALLBACK_TIMEOUT_S, WORKER_COUNT
from coordlog.log.memory import MemoryLog
from coordlog.runtime import mailbox as mailbox_module
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.mailbox import CallbackTimeoutError, Mailbox, WorkTimeoutError
from coordlog.runtime.requests import Requests
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import SplitsDiscovered
from coordlog.testing.in_memory import InMemorySurroundings
from fakes.kernel_fakes import HANDLED, Noted, Noting, NotingProvider, chain_of
from fakes.split_fakes import chain_of as splits_chain

WAIT_S = 30.0


def driver_of(
    provider: NotingProvider, log: MemoryLog, *, callback_timeout_s: float = CALLBACK_TIMEOUT_S
) -> JobDriver:
    return driver_on(chain_of(provider), log, callback_timeout_s=callback_timeout_s)


def driver_on(
    chain: Chain, log: MemoryLog, *, callback_timeout_s: float = CALLBACK_TIMEOUT_S
) -> JobDriver:
    return JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job", parallelism=1, is_batch=False, callback_timeout_s=callback_timeout_s
        ),
        surroundings=InMemorySurroundings(chain, "job", 1),
    )


@pytest.mark.flink("SD2")
@pytest.mark.clause("A2")
def test_an_ending_driver_closes_its_coordinators_with_all_workers_busy() -> None:
    provider = NotingProvider()
    begun, end = threading.Semaphore(0), threading.Event()
    closed_on: list[str] = []

    def work() -> Noted:
        begun.release()
        assert end.wait(WAIT_S)
        return Noted(text="late")

    def occupy(coordinator: Noting) -> None:
        for _ in range(WORKER_COUNT):
            coordinator.context.call_async(work, lambda *_: None)

    provider.on["start"] = occupy
    provider.on["close"] = lambda _: closed_on.append(threading.current_thread().name)
    driver = driver_of(provider, MemoryLog("job"))
    driver.start()
    try:
        for _ in range(WORKER_COUNT):
            assert begun.acquire(timeout=WAIT_S)
        driver.stop(with_checkpoint=False)
        result = driver.wait(WAIT_S)
        assert result is not None
        assert result.status is JobStatus.STOPPED
        assert provider.said("close") == [("close",)]
        assert closed_on != ["coordlog-mailbox"]
    finally:
        end.set()


@pytest.mark.clause("A2")
def test_a_reset_closes_the_old_coordinator_with_all_workers_busy() -> None:
    """What it holds outside, a connection say, would otherwise stay open beside its successor's."""
    provider = NotingProvider()
    begun, end, closed = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def work() -> Noted:
        begun.release()
        assert end.wait(WAIT_S)
        return Noted(text="late")

    def start(coordinator: Noting) -> None:
        if len(provider.made) == 1:
            for _ in range(WORKER_COUNT):
                coordinator.context.call_async(work, lambda *_: None)

    provider.on["start"] = start
    provider.on["close"] = lambda _: closed.release()
    driver = driver_of(provider, MemoryLog("job"))
    driver.start()
    try:
        for _ in range(WORKER_COUNT):
            assert begun.acquire(timeout=WAIT_S)
        provider.made[0].context.fail_job("scripted")
        assert closed.acquire(timeout=WAIT_S)
        driver.stop(with_checkpoint=False)
        assert driver.wait(WAIT_S) is not None
        assert closed.acquire(timeout=WAIT_S)
    finally:
        end.set()


@pytest.mark.clause("A5")
def test_time_in_which_the_process_was_stopped_is_none_of_a_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead_s = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + ahead_s[0], time_ns=time.time_ns, time=time.time
    )
    monkeypatch.setattr(mailbox_module, "time", clock)
    provider = NotingProvider()
    begun, end = threading.Event(), threading.Event()

    def slow(_coordinator: Noting) -> None:
        begun.set()
        assert end.wait(WAIT_S)

    provider.on["start"] = slow
    driver = driver_of(provider, MemoryLog("job"), callback_timeout_s=4.0)
    driver.start()
    try:
        assert begun.wait(WAIT_S)
        assert driver.wait(1.5) is None
        ahead_s[0] = 1_000.0
        assert driver.wait(1.5) is None
    finally:
        end.set()
        driver.stop(with_checkpoint=False)
        result = driver.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED


@pytest.mark.clause("A6")
def test_calls_of_a_closed_coordinator_delay_none_of_its_successor() -> None:
    """Those that have not begun do not begin: they would act beside the successor's."""
    provider = NotingProvider()
    begun, end, answered = threading.Semaphore(0), threading.Event(), threading.Event()
    calls: list[int] = []

    def waiting() -> Noted:
        calls.append(len(provider.made))
        begun.release()
        assert end.wait(WAIT_S)
        return Noted(text="late")

    def start(coordinator: Noting) -> None:
        if len(provider.made) == 1:
            for _ in range(WORKER_COUNT + 1):
                coordinator.context.call_async(waiting, lambda *_: None)
        else:
            coordinator.context.call_async(lambda: Noted(text="soon"), lambda *_: answered.set())

    provider.on["start"] = start
    driver = driver_of(provider, MemoryLog("job"))
    driver.start()
    try:
        for _ in range(WORKER_COUNT):
            assert begun.acquire(timeout=WAIT_S)
        provider.made[0].context.fail_job("scripted")
        assert answered.wait(5.0), "its workers are its own"
        end.set()
        assert not begun.acquire(timeout=0.5), "a call of the closed coordinator has begun"
        assert calls == [1] * WORKER_COUNT
    finally:
        end.set()
        driver.stop(with_checkpoint=False)
        assert driver.wait(WAIT_S) is not None


@pytest.mark.clause("A6")
def test_calls_that_wait_for_long_delay_no_commit() -> None:
    mailbox = Mailbox(requests=Requests(chain_of(NotingProvider()).payload_types))
    end, committed = threading.Event(), threading.Event()

    def wait() -> None:
        end.wait(WAIT_S)

    try:
        for _ in range(2 * WORKER_COUNT):
            mailbox.run_call(1, wait)
        mailbox.run(committed.set)
        assert committed.wait(5.0)
    finally:
        end.set()
        mailbox.close()


@pytest.mark.clause("K2")
def test_a_driver_that_another_has_replaced_ends_by_itself_and_says_so() -> None:
    log = MemoryLog("job")
    before = set(threading.enumerate())
    first_provider, second_provider = NotingProvider(), NotingProvider()
    ready = threading.Semaphore(0)
    for one in (first_provider, second_provider):
        one.on["ready"] = lambda *_: ready.release()
    first, second = driver_of(first_provider, log), driver_of(second_provider, log)
    first.start()
    assert ready.acquire(timeout=WAIT_S)
    second.start()
    first.trigger_checkpoint()
    with pytest.raises(FencedError) as raised:
        first.wait(WAIT_S)
    assert (raised.value.epoch, raised.value.epoch_in_force) == (0, 1)
    assert raised.value.driver_in_force == second.driver_id
    assert first_provider.said("complete", "close") == [("close",)]

    assert ready.acquire(timeout=WAIT_S), "the second one's attempt"
    second.stop(with_checkpoint=True)
    result = second.wait(WAIT_S)
    assert result is not None
    assert (result.status, result.epoch) == (JobStatus.STOPPED, 1)
    assert result.last_checkpoint >= 1
    left = [one.name for one in set(threading.enumerate()) - before]
    assert not [one for one in left if one in ("coordlog-mailbox", "coordlog-log")]


@pytest.mark.clause("A5")
def test_a_callback_that_does_not_return_ends_the_driver_with_its_stack() -> None:
    """Were it waited for, the job would stand still, and nobody could tell where."""
    end = threading.Event()
    provider = NotingProvider()
    provider.on["start"] = lambda _: end.wait(WAIT_S)
    driver = driver_of(provider, MemoryLog("job"), callback_timeout_s=0.1)
    driver.start()
    assert driver._mailbox.wait(WAIT_S)
    end.set()
    with pytest.raises(CallbackTimeoutError) as raised:
        driver.wait(WAIT_S)

    assert raised.value.callback == "start of operator 'source'"
    assert str(raised.value).startswith("start of operator 'source' has not returned within 0.1 s")
    assert "end.wait(WAIT_S)" in raised.value.stack


@pytest.mark.clause("A5")
def test_a_query_that_does_not_return_ends_the_driver_with_its_stack() -> None:
    """It is answered on the mailbox: were it waited for, the job would stand still."""
    end = threading.Event()

    def hanging(_state: object, _asked: Payload) -> Payload:
        end.wait(WAIT_S)
        return Noted(text="late")

    provider = NotingProvider(projection=HANDLED)
    provider.queries = {Noted: hanging}
    ready = threading.Event()
    provider.on["ready"] = lambda *_: ready.set()
    driver = driver_of(provider, MemoryLog("job"), callback_timeout_s=1.0)
    driver.start()
    try:
        assert ready.wait(WAIT_S)
        with pytest.raises(RequestError):
            driver.request("source", Noted(text="?"), timeout_s=5.0)
        assert driver._mailbox.wait(5.0)
    finally:
        end.set()
    with pytest.raises(CallbackTimeoutError) as raised:
        driver.wait(WAIT_S)
    assert raised.value.callback == "the query test.noted@1 of operator 'source'"
    assert "end.wait(WAIT_S)" in raised.value.stack


def test_a_listing_that_does_not_return_ends_the_driver_with_its_stack() -> None:
    """A file system that hangs: were it waited for, the job would idle for ever."""
    end = threading.Event()

    def hanging() -> SplitsDiscovered:
        end.wait(WAIT_S)
        return SplitsDiscovered(splits=[], is_complete=True)

    provider = SplitCoordinatorProvider("source", discover=hanging)
    driver = driver_on(splits_chain(provider), MemoryLog("job"), callback_timeout_s=1.0)
    driver._mailbox._work_timeout_s = driver._mailbox._slow_s = 0.1
    driver.start()
    assert driver._mailbox.wait(WAIT_S)
    end.set()
    with pytest.raises(
        WorkTimeoutError, match=r"has not returned within 0\.1 s: check that the service"
    ):
        driver.wait(WAIT_S)
