"""A skip of an event on the branches of a history, and in batch: it leaves out one event on each (clause J2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordlog.projections.job.event_skips import fold_uses
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.schemas.builtin_types import TakeSavepoint
from coordlog.schemas.record import SKIPPED_BY, Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of, skip_event
from fakes.split_fakes import fail_globally

pytestmark = pytest.mark.clause("J2")


def handled(job: HandDrivenJob) -> int:
    return len(job.history(Kind.EVENT_TO_COORDINATOR))


def begun(
    *, is_batch: bool = False, projection: OperatorProjection[Any] | None = HANDLED
) -> tuple[HandDrivenJob, FakeAttempt]:
    job = HandDrivenJob(chain_of(NotingProvider(projection=projection)), is_batch=is_batch)
    return job, job.register(0)


def sent_and_skipped(job: HandDrivenJob, attempt: FakeAttempt) -> FakeAttempt:
    """Its next attempt, which has sent the event again: this one is skipped."""
    attempt.send("source", Up(n=7))
    (sent,) = job.history(Kind.EVENT_TO_COORDINATOR)
    skip_event(job, sent.sequence or 0)
    attempt.fail()
    attempt = job.register(0)
    attempt.send("source", Up(n=7))
    assert handled(job) == 1
    return attempt


def back(job: HandDrivenJob, checkpoint_id: int) -> tuple[HandDrivenJob, FakeAttempt]:
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, from_checkpoint=checkpoint_id)
    return job, job.register(0)


@pytest.mark.may_fail("scripted")
@pytest.mark.parametrize("projection", [None, HANDLED])
def test_a_branch_on_which_it_was_skipped_skips_no_other(
    projection: OperatorProjection[Any] | None,
) -> None:
    job, attempt = begun(projection=projection)
    job.trigger()
    attempt.ack_checkpoint(1)
    job.ask("", TakeSavepoint(name="one", checkpoint=1))
    attempt = sent_and_skipped(job, attempt)
    job.trigger()
    attempt.ack_checkpoint(2)
    job.ask("", TakeSavepoint(name="two", checkpoint=2))

    job, attempt = back(job, 1)
    attempt.send("source", Up(n=7))
    assert handled(job) == 1, "it is sent again, and skipped again"
    job, attempt = back(job, 2)
    attempt.send("source", Up(n=7))
    assert handled(job) == 2, "it is another event"


@pytest.mark.may_fail("scripted")
@pytest.mark.parametrize("is_local", [False, True])
def test_a_further_opening_of_a_batch_skips_no_other(*, is_local: bool) -> None:
    job, attempt = begun(is_batch=True)
    sent_and_skipped(job, attempt).complete()
    job.advance(1)
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, is_batch=True, again=True)
    attempt = job.register(0)
    if is_local:
        attempt.fail()
    else:
        fail_globally(job)
    job.register(0).send("source", Up(n=7))
    assert handled(job) == 2


@pytest.mark.may_fail("scripted")
def test_in_a_batch_the_event_of_a_split_that_stays_read_is_not_sent_again() -> None:
    chain = chain_of(NotingProvider(projection=HANDLED), keeps_state=False)
    job = HandDrivenJob(chain, is_batch=True)
    attempt = sent_and_skipped(job, job.register(0))
    attempt.finish_split("source", "a")
    attempt.fail()
    attempt = job.register(0)
    attempt.send("source", Up(n=7))
    assert handled(job) == 2, "it is another event"
    fail_globally(job)
    job.register(0).send("source", Up(n=7))
    assert handled(job) == 2, "all splits are read again"


def test_a_record_that_names_no_skip_uses_none() -> None:
    """As a development build wrote it."""
    job, attempt = begun()
    attempt.send("source", Up(n=7))
    (sent,) = job.history(Kind.EVENT_TO_COORDINATOR)
    skip_event(job, sent.sequence or 0)
    state = job.runtime.state
    record = replace(sent, kind=Kind.FACT, attributes={SKIPPED_BY: "true"})
    assert fold_uses(state, state, record).skipped_events == state.skipped_events
