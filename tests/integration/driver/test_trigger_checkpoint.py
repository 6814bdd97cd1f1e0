"""`trigger_checkpoint` of a real driver: remembered until a checkpoint may start, and waited for by its handle."""

from __future__ import annotations

import threading

import pytest

from coordlog.errors import CheckpointFailedError, UsageError
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.triggers import CheckpointHandle
from coordlog.schemas.record import Kind
from coordlog.testing.in_memory import InMemorySurroundings
from fakes.kernel_fakes import Noting, NotingProvider, chain_of

WAIT_S = 30.0

pytestmark = pytest.mark.clause("F8")


def driver_of(
    provider: NotingProvider, log: MemoryLog, *, is_batch: bool = False, parallelism: int = 1
) -> JobDriver:
    chain = chain_of(provider)
    return JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job", parallelism=parallelism, is_batch=is_batch, restart_backoff_s=0.01
        ),
        surroundings=InMemorySurroundings(chain, "job", parallelism),
    )


def end(driver: JobDriver) -> None:
    driver.stop(with_checkpoint=False)
    driver.wait(WAIT_S)


def completed_in(log: MemoryLog) -> list[int | None]:
    records = [stored.record() for stored in log.read(0, log.high_watermark())]
    return [each.checkpoint_id for each in records if each.kind is Kind.CHECKPOINT_COMPLETED]


def test_a_trigger_before_the_first_attempt_is_remembered() -> None:
    log = MemoryLog("job")
    driver = driver_of(NotingProvider(), log, parallelism=3)
    driver.start()

    handle = driver.trigger_checkpoint()

    assert handle.wait(WAIT_S) == handle.checkpoint_id
    assert handle.checkpoint_id in completed_in(log)
    end(driver)


def test_a_trigger_within_a_completions_callback_is_remembered() -> None:
    """None may start there: the callback belongs to the completion."""
    provider, log = NotingProvider(), MemoryLog("job")
    driver = driver_of(provider, log)
    handles: list[CheckpointHandle] = []
    triggered = threading.Event()

    def trigger(_coordinator: Noting, checkpoint_id: int) -> None:
        if checkpoint_id < 3:
            handles.append(driver.trigger_checkpoint())
        else:
            triggered.set()

    provider.on["complete"] = trigger
    driver.start()

    first = driver.trigger_checkpoint().wait(WAIT_S)
    assert triggered.wait(WAIT_S), "each completion triggers the next"

    assert first == 1
    assert [handle.wait(WAIT_S) for handle in handles] == [2, 3]
    end(driver)


def test_the_log_has_a_checkpoint_before_its_handle_is_done() -> None:
    log = MemoryLog("job")
    driver = driver_of(NotingProvider(), log)
    driver.start()

    for _ in range(5):
        assert driver.trigger_checkpoint().wait(WAIT_S) == completed_in(log)[-1]

    end(driver)


def test_an_aborted_checkpoint_fails_its_handle_with_the_reason() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    provider.on["cut"] = lambda coordinator, n: coordinator.results[n].fail(ValueError("no disk"))
    driver = driver_of(provider, MemoryLog("job"))
    driver.start()

    handle = driver.trigger_checkpoint()

    with pytest.raises(CheckpointFailedError, match=r"checkpoint 1 has not completed: .*no disk"):
        handle.wait(WAIT_S)
    end(driver)


def test_a_driver_that_ends_fails_the_handles_that_are_open() -> None:
    cut = threading.Event()
    provider = NotingProvider(is_cut_at_once=False)
    provider.on["cut"] = lambda *_: cut.set()
    driver = driver_of(provider, MemoryLog("job"))
    driver.start()
    begun = driver.trigger_checkpoint()
    assert cut.wait(WAIT_S)
    behind = driver.trigger_checkpoint()

    driver.stop(with_checkpoint=False)

    for handle, name in ((begun, "checkpoint 1"), (behind, "a checkpoint that never began")):
        with pytest.raises(CheckpointFailedError, match=f"{name} has not .*driver has ended"):
            handle.wait(WAIT_S)
    driver.wait(WAIT_S)
    with pytest.raises(CheckpointFailedError, match="driver has ended"):
        driver.trigger_checkpoint().wait(WAIT_S)


def test_a_wait_that_is_too_short_returns_none_and_loses_nothing() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    driver = driver_of(provider, MemoryLog("job"))
    cut = threading.Event()
    provider.on["cut"] = lambda *_: cut.set()
    driver.start()
    handle = driver.trigger_checkpoint()
    assert cut.wait(WAIT_S)

    assert handle.wait(0.01) is None
    assert not handle.is_done

    driver._mailbox.post(lambda: driver._runtime.fail_job("source", "scripted"))  # type: ignore[union-attr]
    with pytest.raises(CheckpointFailedError, match="the job goes back"):
        handle.wait(WAIT_S)
    end(driver)


def test_a_callback_may_trigger_and_not_wait() -> None:
    provider = NotingProvider()
    driver = driver_of(provider, MemoryLog("job"))
    errors: list[UsageError] = []

    def wait(_coordinator: Noting, _checkpoint_id: int) -> None:
        with pytest.raises(UsageError, match="inside a callback") as raised:
            driver.trigger_checkpoint().wait(WAIT_S)
        errors.append(raised.value)
        provider.on.pop("complete")

    provider.on["complete"] = wait
    driver.start()
    driver.trigger_checkpoint().wait(WAIT_S)
    assert driver.trigger_checkpoint().wait(WAIT_S) is not None
    assert len(errors) == 1
    end(driver)


def test_a_batch_refuses_a_trigger() -> None:
    driver = driver_of(NotingProvider(), MemoryLog("job"), is_batch=True)
    driver.start()

    with pytest.raises(UsageError, match="is a batch and takes no checkpoints"):
        driver.trigger_checkpoint()

    end(driver)
