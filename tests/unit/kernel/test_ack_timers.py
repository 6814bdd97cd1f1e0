"""The time from delivery to ack: no ack is missing before its attempt has handled all that came before (clause C4)."""

from __future__ import annotations

import pytest

from coordlog.messages import Marker
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import NotingProvider, chain_of, event_ids, inside, send_down

pytestmark = pytest.mark.clause("C4")


def busy(provider: NotingProvider) -> tuple[HandDrivenJob, FakeAttempt]:
    """An attempt that is in a long call, and an ack timeout of 5 s."""
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(ack_timeout_s=5))
    attempt = job.register(0)
    attempt.returns_markers = False
    return job, attempt


def test_an_attempt_in_a_long_call_does_not_miss_an_ack() -> None:
    provider = NotingProvider()
    job, attempt = busy(provider)
    inside(attempt, provider, send_down(provider, 0, 1))

    job.advance(500)
    attempt.ack("source", event_ids(attempt)[0])
    attempt.return_marker()
    job.advance(500)

    assert job.history(Kind.ATTEMPT_FAILED) == []


def test_an_event_is_missed_in_time_although_one_before_it_was_acked_late() -> None:
    provider = NotingProvider()
    job, attempt = busy(provider)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.advance(2)
    inside(attempt, provider, send_down(provider, 0, 2))
    job.advance(2)
    attempt.ack("source", event_ids(attempt)[0])

    job.advance(2.9)
    assert attempt.got(Marker) == []
    job.advance(0.2)
    assert len(attempt.got(Marker)) == 1


def test_an_event_that_was_acked_ahead_of_others_is_not_missed() -> None:
    provider = NotingProvider()
    job, attempt = busy(provider)
    inside(attempt, provider, send_down(provider, 0, 1, 2, 3))
    attempt.ack("source", event_ids(attempt)[1])
    job.advance(4)
    attempt.ack("source", event_ids(attempt)[2])
    attempt.ack("source", event_ids(attempt)[0])
    job.advance(4)

    assert attempt.got(Marker) == []


def test_no_timer_is_left_once_all_events_are_acked() -> None:
    provider = NotingProvider()
    job, attempt = busy(provider)
    before = job.runtime.next_timer_s()
    inside(attempt, provider, send_down(provider, 0, 1, 2))
    assert job.runtime.next_timer_s() != before
    attempt.ack("source", *event_ids(attempt))

    assert job.runtime.next_timer_s() == before


def test_one_marker_serves_all_events_that_wait_on_a_connection() -> None:
    provider = NotingProvider()
    job, attempt = busy(provider)
    inside(attempt, provider, send_down(provider, 0, *range(50)))

    job.advance(500)

    assert len(attempt.got(Marker)) == 1


def test_an_attempt_that_returns_only_the_marker_fails_by_the_events_name() -> None:
    provider = NotingProvider()
    job, attempt = busy(provider)
    inside(attempt, provider, send_down(provider, 0, 1, 2))
    first, second = event_ids(attempt)
    job.advance(6)
    attempt.ack("source", first)

    attempt.return_marker()

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.reason == (
        f"no ack of event {second} (test.down@1) to operator 'source' within 5 s"
    )


def test_events_whose_time_runs_out_behind_a_marker_get_the_next_one() -> None:
    provider = NotingProvider()
    job, attempt = busy(provider)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.advance(6)
    inside(attempt, provider, send_down(provider, 0, 2))
    job.advance(10)
    first, _ = event_ids(attempt)

    attempt.ack("source", first)
    attempt.return_marker()
    assert job.history(Kind.ATTEMPT_FAILED) == []
    attempt.return_marker()

    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1


def test_a_marker_of_a_connection_that_is_gone_fails_nobody() -> None:
    provider = NotingProvider()
    job, attempt = busy(provider)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.advance(6)
    attempt.lose()
    job.register(0)

    attempt.return_marker()

    assert len(job.history(Kind.ATTEMPT_FAILED)) == 1
    assert job.runtime.state.live_count == 1
