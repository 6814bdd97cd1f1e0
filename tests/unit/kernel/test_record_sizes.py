"""Records that no broker would take: the attempt that sent them fails, or the driver ends, clearly (clause K6)."""

from __future__ import annotations

import pytest

from coordlog.errors import TooLargeError
from coordlog.kernel.inputs import StopAsked
from coordlog.messages import Fail, SkipSplit, UpMessage
from coordlog.projections.job.state import Phase
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import Down, FakeSink, Noting, NotingProvider, chain_of, inside

pytestmark = pytest.mark.clause("K6")

LARGE = "x" * 2_000_000


@pytest.mark.parametrize(
    "message",
    [
        Fail(operator_id="source", callback="poll", reason="it broke", split_id=LARGE),
        SkipSplit(operator_id="source", last_barrier=-1, split_id=LARGE, rows=0, reason="bad"),
    ],
    ids=["failure", "skip"],
)
def test_a_message_that_makes_a_record_too_large_fails_its_attempt_alone(
    message: UpMessage,
) -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, _ = job.register_all()

    first.say(message)

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert (failed.subtask, failed.attempt_number) == (0, 0)
    assert "bytes; the limit is 965536" in str(failed.reason)
    assert job.runtime.state.phase is Phase.RUNNING
    assert job.runtime.state.live_count == 1


def test_a_drivers_own_too_large_record_ends_it_with_a_readable_log() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    before = job.log.high_watermark()

    with pytest.raises(TooLargeError, match=r"a record FACT is \d+ bytes; the limit is 965536"):
        job.run(
            lambda: job.runtime.stop(
                StopAsked(by=LARGE, with_checkpoint=False, is_at_once=False), lambda: None
            )
        )

    assert job.log.high_watermark() == before
    assert rebuild(job.log, job.chain, projection_of(job.chain)).state.live_count == 1


def test_what_a_coordinator_makes_too_large_raises_in_its_call() -> None:
    provider = NotingProvider(sink=FakeSink())
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    raised: list[str] = []

    def act(coordinator: Noting) -> None:
        try:
            coordinator.context.commit(-1, _large())
        except TooLargeError as error:
            raised.append(str(error))

    inside(attempt, provider, act)

    assert len(raised) == 1
    assert job.history(Kind.GLOBAL_FAILURE) == []


def _large() -> Down:
    return Down(n=1, text=LARGE)
