"""Failures that trying again cannot mend: the job ends at once, and nothing that is committed goes with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordlog.api.chain import Chain
from coordlog.causes import OUT_OF_SPACE, is_out_of_space
from coordlog.errors import JobFailedError, OutOfSpaceError
from coordlog.kernel.inputs import AttemptLost, CommitSettled, FailGlobally
from coordlog.limits import LOST_TOGETHER_S, REASON_CHARS_MAX
from coordlog.messages import Fenced
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import Phase
from coordlog.restore.rebuild import projection_of
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from coordlog.testing.replay_inputs import input_of_turn
from fakes.kernel_fakes import FakeSink, NotingProvider, chain_of
from fakes.split_fakes import ask, pull_of
from fakes.split_fakes import chain_of as split_chain_of


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/out")


@pytest.mark.clause("E2")
@pytest.mark.may_fail("no space left")
def test_an_attempt_without_disk_space_fails_the_job_and_starts_no_other() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, second = job.register_all()

    first.fail("no space left", split_id="in/a.csv", final=OUT_OF_SPACE)

    assert job.runtime.state.phase is Phase.FAILED
    end = job.runtime.outcome
    assert end is not None
    assert (end.is_finished, end.final) == (False, OUT_OF_SPACE)
    assert end.where == "attempt 0 of subtask 0, which read split 'in/a.csv'"
    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.attributes["final"] == OUT_OF_SPACE
    (over,) = job.history(Kind.JOB_FAILED)
    assert over.attributes == {"where": end.where, "final": OUT_OF_SPACE}
    assert job.history(Kind.SUBTASK_RESET) == []
    assert second.is_closed
    assert str(JobFailedError("job", end.reasons, end.where, end.final)).startswith(
        "job job failed in attempt 0 of subtask 0, which read split 'in/a.csv' "
        "(no restart: out of space): poll of operator 'source' raised no space left"
    )


@pytest.mark.may_fail("scripted")
def test_the_next_run_goes_on_with_a_fresh_count() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0).fail(final=OUT_OF_SPACE)
    job.crash()
    again = HandDrivenJob(job.chain, log=job.log, clock=job.clock)

    again.register(0).fail("something else")

    assert again.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("H3")
@pytest.mark.may_fail("it is full")
def test_a_commit_without_space_fails_the_job_and_is_settled_by_the_next() -> None:
    class FullSink(FakeSink):
        def settle(self, intent: Any) -> Any:  # noqa: ANN401, as the base
            if self.failures:
                self.tries += 1
                raise OutOfSpaceError("/out", "it is full", "make room")
            return super().settle(intent)

    sink = FullSink()
    sink.failures = 1
    job = HandDrivenJob(chain_of(NotingProvider(sink=sink)))
    (attempt,) = job.register_all()
    n = job.trigger()
    assert n is not None
    attempt.ack_checkpoint(n, committables=[("source", b"a")])

    assert sink.tries == 1
    (over,) = job.history(Kind.JOB_FAILED)
    assert "failed once: OutOfSpaceError: /out: it is full; make room" in str(over.reason)
    assert job.runtime.outcome is not None
    assert job.runtime.outcome.final == OUT_OF_SPACE
    sink.failures = 0
    HandDrivenJob(job.chain, log=job.log, clock=job.clock)
    assert sink.settled == [("a",)]


def act_in(provider: NotingProvider, act: Callable[..., None]) -> HandDrivenJob:
    provider.on["ready"] = act
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    return job


@pytest.mark.may_fail("ValueError: cannot write")
def test_a_callback_that_finds_no_space_ends_the_job() -> None:
    def fill(*_: object) -> None:
        raise ValueError("cannot write") from no_space()

    job = act_in(NotingProvider(), fill)

    assert job.runtime.outcome is not None
    assert job.runtime.outcome.final == OUT_OF_SPACE


@pytest.mark.clause("A4")
@pytest.mark.may_fail("enough")
def test_a_coordinator_may_fail_its_job_for_good() -> None:
    job = act_in(NotingProvider(), lambda c, *_: c.context.fail_job("enough", is_final=True))

    assert job.runtime.state.phase is Phase.FAILED
    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert failure.attributes == {"final": "it would fail again"}
    assert job.history(Kind.RESET_TO_CHECKPOINT) == []


@pytest.mark.clause("A4")
@pytest.mark.may_fail("enough", "no reason")
def test_a_failure_for_good_ends_a_job_that_was_about_to_go_back() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    assert job.runtime.state.phase is Phase.FAILING

    provider.newest.context.fail_job("enough", is_final=True)
    job.pump()

    assert job.runtime.state.phase is Phase.FAILED  # type: ignore[comparison-overlap]  # it has moved on
    assert len(job.history(Kind.JOB_FAILED)) == 1
    job.stage_ends("cancelled")
    job.advance(60.0)
    assert job.history(Kind.RESET_TO_CHECKPOINT) == []


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (no_space(), True),
        (OSError(errno.EDQUOT, "quota"), True),
        (OSError(errno.EFBIG, "File too large"), True),
        (OutOfSpaceError("/out", "full", "make room"), True),
        (OSError(errno.EIO, "broken"), False),
        (ValueError("No space left on device"), False),
    ],
)
def test_what_is_out_of_space_is_told_by_number_and_kind(error: Exception, *, is_it: bool) -> None:
    behind = RuntimeError("the transform")
    behind.__cause__ = error

    assert is_out_of_space(error) is is_it
    assert is_out_of_space(behind) is is_it


def test_a_process_that_is_gone_is_told_with_the_split_that_it_had() -> None:
    job = HandDrivenJob(split_chain_of(pull_of("in/a.csv", "in/b.csv")))
    (attempt,) = job.register_all()
    attempt.lose("it broke")
    attempt = job.register(0)
    ask(attempt)
    attempt.lose("it broke")

    idle, working = job.history(Kind.ATTEMPT_FAILED)
    assert "split_id" not in idle.attributes
    assert working.attributes["split_id"] == "in/a.csv"


def test_a_process_with_several_splits_is_blamed_on_none_of_them() -> None:
    job = HandDrivenJob(split_chain_of(pull_of("in/a.csv", "in/b.csv")))
    (attempt,) = job.register_all()
    ask(attempt)
    ask(attempt)
    attempt.lose("it broke")

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert "split_id" not in failed.attributes


@pytest.mark.clause("K7")
@pytest.mark.may_fail("two")
def test_a_replay_finds_that_a_failure_was_for_good() -> None:
    def finals(chain: Chain, records: list[Record]) -> list[str]:
        projection: JobProjection = projection_of(chain)
        state, turn, found = projection.initial(), list[Record](), list[str]()
        before = state
        for record in records:
            turn.append(record)
            state = projection.apply(state, record)
            if record.turn_remaining:
                continue
            if record.kind is not Kind.EPOCH_STARTED:
                given = input_of_turn(turn, before)
                if isinstance(given, (AttemptLost, CommitSettled, FailGlobally)):
                    found.append(given.final)
            turn, before = [], state
        return found

    lost = HandDrivenJob(chain_of(NotingProvider()))
    lost.register(0).fail("one")
    lost.register(0).fail("two", final=OUT_OF_SPACE)
    assert finals(lost.chain, lost.history()) == ["", OUT_OF_SPACE]


@pytest.mark.clause("E2")
def test_attempts_that_a_machine_takes_with_it_are_one_failure() -> None:
    job = HandDrivenJob(split_chain_of(pull_of("a", "b", "c")), parallelism=3)
    for _ in range(4):
        attempts = job.register_all()
        for one in attempts:
            ask(one)
        for one in attempts:
            one.lose("it broke")
            job.advance(0.1)

    assert job.runtime.state.phase is Phase.RUNNING, "4 failures of 10, not 12"
    assert len(job.runtime.state.failures_us) == 4
    lost = job.history(Kind.ATTEMPT_FAILED)
    assert [one.attributes.get("with_another") for one in lost] == [None, "true", "true"] * 4
    assert ["split_id" in one.attributes for one in lost] == [True, False, False] * 4


@pytest.mark.clause("E2")
def test_attempts_that_fail_at_once_are_one_failure() -> None:
    """A store that rejects every request for a second fails more attempts than the policy allows failures."""
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=12)
    for attempt in job.register_all():
        attempt.fail("OSError: 503")

    assert job.runtime.state.phase is Phase.RUNNING
    assert len(job.runtime.state.failures_us) == 1

    for attempt in job.register_all():
        attempt.fail("OSError: 503")
    assert len(job.runtime.state.failures_us) == 2, "the next attempts have a failure of their own"


@pytest.mark.clause("E2")
def test_an_attempt_that_began_after_a_failure_has_its_own() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=2)
    first, second = job.register_all()
    first.fail("one")
    job.register(0).fail("again, at once")
    second.fail("with the first")

    assert len(job.runtime.state.failures_us) == 2


@pytest.mark.clause("E2")
def test_attempts_that_are_lost_one_after_the_other_are_failures_each() -> None:
    job = HandDrivenJob(split_chain_of(pull_of("a")), parallelism=3)
    for one in job.register_all():
        one.lose("it broke")
        job.advance(LOST_TOGETHER_S + 0.1)
    job.register(0).lose("it broke")
    job.register(0).lose("it broke")

    assert len(job.runtime.state.failures_us) == 5


@pytest.mark.clause("E2")
@pytest.mark.parametrize("before", ["a", "abc"])
@pytest.mark.may_fail("zzz")
def test_a_jobs_last_record_favours_the_last_failure_and_trims_the_others(
    before: str,
) -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        configure=lambda config: replace(config, restarts_max=len(before)),
    )
    for letter in f"{before}z":
        job.register(0).lose(letter * REASON_CHARS_MAX)

    (failed,) = job.history(Kind.JOB_FAILED)
    said = str(failed.reason).split("; before that: ")
    assert [set(one) for one in said] == [{"z"}, *({one} for one in reversed(before))]
    older = REASON_CHARS_MAX // 2 // len(before) - len("; before that: ")
    assert [len(one) for one in said] == [REASON_CHARS_MAX // 2, *(older for _ in before)]


@pytest.mark.clause("E2")
@pytest.mark.may_fail("connection lost")
def test_a_job_that_has_failed_ends_every_attempt() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider()),
        parallelism=2,
        configure=lambda config: replace(config, restarts_max=0),
    )
    first, second = job.register_all()
    first.lose()

    assert second.got(Fenced) == [Fenced(reason="the job has failed", is_finished=False)]


@pytest.mark.clause("H3")
@pytest.mark.may_fail("connection lost")
def test_a_commit_that_fails_after_the_jobs_end_is_left_to_the_next() -> None:
    sink = FakeSink()
    sink.failures = 1
    job = HandDrivenJob(
        chain_of(NotingProvider(sink=sink)),
        configure=lambda config: replace(config, restarts_max=0),
    )
    attempt = job.register(0)
    job.is_work_held = True
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    attempt.lose()
    job.is_work_held = False
    job.pump()
    job.advance(300)

    assert [one.attributes["settled"] for one in job.history(Kind.COMMIT_OUTCOME)] == ["false"]
    assert (sink.tries, sink.settled) == (1, [])
    assert len(job.history(Kind.JOB_FAILED)) == 1
