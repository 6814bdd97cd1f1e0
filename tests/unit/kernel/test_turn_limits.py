"""A turn has a bound: what coordinators do within it is counted, and past the bound it fails by name (clause A3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from coordlog.api.coordinator import EventFuture
from coordlog.errors import AttemptNotRunningError, TurnLimitError
from coordlog.kernel.builder import KernelConfig, limits_of, with_limits
from coordlog.kernel.refusals import encoded
from coordlog.limits import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from coordlog.projections.job.state import Phase
from coordlog.restore.rebuild import projection_of
from coordlog.runtime import turns
from coordlog.schemas.builtin_types import AttemptSnapshot, OperatorState, SplitFinished
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import Down, Noted, Noting, NotingProvider, chain_of


def sends_again(coordinator: Noting) -> None:
    """Sends, and sends again when that has failed: to an attempt that is over, without end."""

    def again(future: EventFuture) -> None:
        try:
            future.result()
        except AttemptNotRunningError:
            sends_again(coordinator)

    coordinator.gateways[0].send_event(Down(n=1)).add_done_callback(again)


def records_without_end(coordinator: Noting) -> None:
    while True:
        coordinator.context.record(Noted(text="x" * 30))


def calls_without_end(coordinator: Noting) -> None:
    while True:
        coordinator.context.schedule(1, lambda: None)


@pytest.mark.clause("A3")
@pytest.mark.parametrize(
    ("act", "limit", "value", "said"),
    [
        (sends_again, "TURN_RECORDS_MAX", 500, "501 records"),
        (records_without_end, "TURN_BYTES_MAX", 1_000, "bytes of records"),
        (calls_without_end, "TURN_CALLS_MAX", 50, "51 calls and timers"),
    ],
)
@pytest.mark.may_fail("one turn has made")
def test_a_turn_that_would_not_end_fails_by_name_and_leaves_nothing(
    act: Callable[[Noting], None],
    limit: str,
    value: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, limit, value)
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    provider.on["failed"] = lambda coordinator, *_said: act(coordinator)

    attempt.lose()

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert failure.operator_id == "source"
    assert "TurnLimitError: one turn has made " in (failure.reason or "")
    assert said in (failure.reason or "")
    assert f"the limit is {value}" in (failure.reason or "")
    assert job.history(Kind.FACT) == []
    assert job.runtime.host.open_work() == {}
    job.stage_ends()
    del provider.on["failed"]
    job.advance(60)
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("A3")
def test_what_the_kernel_itself_records_in_a_turn_is_not_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_RECORDS_MAX", 10)
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    for _ in range(30):
        provider.on["event"] = lambda coordinator, *_said: coordinator.gateways[0].send_event(
            Down(n=1)
        )
        attempt.send("source", Down(n=0))

    attempt.lose()

    assert len(job.history(Kind.EVENT_FAILED)) == 30
    assert job.history(Kind.GLOBAL_FAILURE) == []


@pytest.mark.clause("K6")
def test_a_coordinator_that_goes_on_past_the_bound_appends_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_RECORDS_MAX", 6)
    provider = NotingProvider()
    refused: list[str] = []

    def record_all(coordinator: Noting, *_said: object) -> None:
        for n in range(10):
            try:
                coordinator.context.record(Noted(text=str(n)))
            except TurnLimitError as error:
                refused.append(str(error))

    provider.on["ready"] = record_all
    job = HandDrivenJob(chain_of(provider))
    job.register(0)

    facts = job.history(Kind.FACT)
    assert len(facts) + len(refused) == 10
    assert len(facts) <= 6
    assert job.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("K6")
@pytest.mark.clause("D2")
def test_an_event_of_just_the_size_that_is_allowed_is_handled() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    rest = len(encoded(Down(n=1, text="x" * PAYLOAD_BYTES_MAX))[1]) - PAYLOAD_BYTES_MAX
    attempt.send("source", Down(n=1, text="x" * (PAYLOAD_BYTES_MAX - rest)))
    attempt.send("source", Down(n=2, text="x" * (PAYLOAD_BYTES_MAX - rest + 1)))

    assert provider.said("event", "failed") == [("event", 0, 0, 1), ("failed", 0, 0)]
    (record,) = job.history(Kind.EVENT_TO_COORDINATOR)
    assert len(record.payload or b"") == PAYLOAD_BYTES_MAX


def just_fits(size_of: Callable[[int], int]) -> int:
    """The `n` for which `size_of(n)`, `n` and a rest that hardly grows, is the limit of a record."""
    n = RECORD_BYTES_MAX
    while size_of(n) > RECORD_BYTES_MAX:
        n -= size_of(n) - RECORD_BYTES_MAX
    assert size_of(n) == RECORD_BYTES_MAX
    return n


@pytest.mark.clause("K6")
@pytest.mark.parametrize("more", [0, 1])
def test_a_snapshot_of_just_the_size_that_is_allowed_is_taken(more: int) -> None:
    def snapshot(n: int) -> AttemptSnapshot:
        state = OperatorState(operator_id="source", state=b"x" * n)
        return AttemptSnapshot(states=[state], committables=[])

    size = just_fits(lambda n: len(encoded(snapshot(n))[1])) + more
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, second = job.register_all()
    job.trigger()
    first.ack_checkpoint(1, states={"source": b"x" * size})
    second.complete(states={"source": b"x" * size})

    for kind in (Kind.CHECKPOINT_ACKED, Kind.SUBTASK_COMPLETED):
        assert len(job.history(kind)) == 1 - more
    assert len(job.history(Kind.ATTEMPT_FAILED)) == 2 * more


@pytest.mark.clause("K6")
@pytest.mark.parametrize("more", [0, 1])
def test_a_split_end_of_just_the_size_that_is_allowed_is_taken(more: int) -> None:
    def end_of(n: int) -> SplitFinished:
        return SplitFinished(split_id="s" * n, rows=1, bytes_read=1, committables=[])

    size = just_fits(lambda n: len(encoded(end_of(n))[1])) + more
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0).finish_split("source", "s" * size)

    assert len(job.history(Kind.SPLIT_FINISHED)) == 1 - more
    assert len(job.history(Kind.ATTEMPT_FAILED)) == more


def config_of(job: HandDrivenJob) -> KernelConfig:
    return KernelConfig(
        projection=projection_of(job.chain),
        operators=job.runtime.state.operators,
        is_batch=False,
        keeps_finished_splits=False,
    )


@pytest.mark.clause("K7")
def test_every_limit_of_an_epoch_is_recorded_and_read_again() -> None:
    config = config_of(HandDrivenJob(chain_of(NotingProvider())))
    numbers: dict[str, Any] = {
        one.name: type(one.default)(3 + index)
        for index, one in enumerate(fields(KernelConfig))
        if isinstance(one.default, int | float) and not isinstance(one.default, bool)
    }
    changed = replace(config, **numbers)

    assert len(limits_of(changed)) == len(numbers) > 0
    assert with_limits(config, limits_of(changed)) == changed
    assert with_limits(config, {}) == config
