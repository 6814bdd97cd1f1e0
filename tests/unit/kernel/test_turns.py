"""Turns: atomic, held until acknowledged, grouped (clauses A3, A6, K1, K3, K4, K5)."""

from __future__ import annotations

import weakref

import pytest

from coordlog.errors import AppendRefusedError
from coordlog.limits import APPEND_LINGER_S
from coordlog.log.memory import Refuse, Unknown
from coordlog.messages import Accepted
from coordlog.projections.job.state import JobState
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime import waiting_turns
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import (
    HANDLED,
    Down,
    Noted,
    Noting,
    NotingProvider,
    Up,
    chain_of,
    delivered,
    inside,
    kinds,
    prefix_of,
    send_down,
)


@pytest.mark.clause("K1")
def test_no_effect_leaves_before_its_records_are_released() -> None:
    provider = NotingProvider()
    provider.on["ready"] = send_down(provider, 0, 1)
    job = HandDrivenJob(chain_of(provider), is_held=True)
    assert job.stage.submitted == []
    job.release()
    assert job.stage.submitted == [1]
    attempt = job.register(0, stage_run=1)
    assert provider.said("ready") == [("ready", 0, 0)], "a callback runs before its turn is durable"
    assert attempt.inbox == []
    job.release()

    assert isinstance(attempt.inbox[0], Accepted)
    assert delivered(job, attempt) == [1]


@pytest.mark.clause("A6")
def test_the_next_turn_finds_things_as_the_log_will_have_them() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.is_held = True
    attempt.send("source", Up(n=1))
    attempt.send("source", Up(n=2))
    end = job.log.high_watermark()

    assert provider.said("event") == [("event", 0, 0, 1), ("event", 0, 0, 2)]
    assert len(job.runtime.turns) == 2
    assert job.log.high_watermark() == end
    assert len(job.runtime.turns.take_group()) == 3, "one append for both turns, and a type"
    assert job.runtime.turns.take_group() == [], "one in flight at a time"


def test_states_between_turns_of_events_that_wait_are_freed() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.is_held = True
    states: list[weakref.ref[JobState]] = []
    for n in range(3):
        attempt.send("source", Up(n=n))
        inside(attempt, provider, lambda coordinator: coordinator.gateways[0].send_event(Down(n=1)))
        states.append(weakref.ref(job.runtime.state))

    assert len(job.runtime.turns) == 6
    assert [state() is not None for state in states] == [False, False, True]

    job.release()
    assert delivered(job, attempt) == [1, 1, 1]


def test_an_append_without_effects_waits_a_moment_for_company() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    assert job.runtime.turns.append_due_s is None, "no turn waits"
    job.is_held = True
    now_s = job.clock.monotonic_s()
    attempt.send("source", Up(n=1))
    assert job.runtime.turns.append_due_s == now_s + APPEND_LINGER_S, (
        "nothing waits for its release"
    )
    job.clock.seconds += APPEND_LINGER_S / 2
    attempt.send("source", Up(n=2))
    assert job.runtime.turns.append_due_s == now_s + APPEND_LINGER_S, "from the first turn on"

    inside(attempt, provider, lambda coordinator: coordinator.gateways[0].send_event(Down(n=1)))
    assert job.runtime.turns.append_due_s == 0.0, "the delivery of an event waits for its release"
    assert len(job.runtime.turns.take_group()) > 3
    assert job.runtime.turns.append_due_s is None, "during an append"


def test_turns_that_a_full_append_leaves_are_appended_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_turns, "GROUP_RECORDS_MAX", 2)
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = job.register(0)
    job.is_held = True
    for n in range(5):
        attempt.send("source", Up(n=n))
    appended = []
    while group := job.runtime.turns.take_group():
        appended.append(len(group))
        assert job.runtime.turns.append_due_s is None, "during an append"
        job.runtime.acknowledged(job.appender.append(group))
        assert (job.runtime.turns.append_due_s == 0.0) == (len(job.runtime.turns) > 0)

    assert appended == [2, 2, 2], "a type, and five events"


@pytest.mark.clause("A3")
@pytest.mark.clause("K5")
@pytest.mark.may_fail("RuntimeError: bang")
def test_of_a_turn_whose_callback_raises_the_kernels_records_stay() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)

    def act(coordinator: Noting) -> None:
        coordinator.gateways[0].send_event(Down(n=1))
        coordinator.context.record(Noted(text="gone"))
        coordinator.context.call_async(lambda: Noted(text="never"), lambda *_: None)
        raise RuntimeError("bang")

    inside(attempt, provider, act)

    assert kinds(job.history())[-2:] == ["EVENT_TO_COORDINATOR", "GLOBAL_FAILURE"]
    assert delivered(job, attempt) == []
    assert len(job.works) == 0
    assert job.runtime.state.next_event_id == 0


@pytest.mark.clause("A6")
@pytest.mark.clause("B5")
def test_an_effect_whose_addressee_is_gone_by_its_release_is_dropped() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.is_held = True
    attempt = job.register(0)
    attempt.lose()
    job.release()

    assert attempt.inbox == []
    assert kinds(job.history())[-3:] == ["ATTEMPT_STARTED", "ATTEMPT_FAILED", "SUBTASK_RESET"]


@pytest.mark.clause("K4")
def test_an_append_of_unknown_outcome_is_repeated_unnoticed_by_attempts() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.log.faults.next_append(Unknown(stored=None), Unknown(stored=(0,)))
    inside(attempt, provider, send_down(provider, 0, 1))
    attempt.ack("source", 0)

    assert delivered(job, attempt) == [1]
    assert not attempt.is_closed
    assert [one.sequence for one in job.history()][1:] == list(
        range(job.runtime.state.next_sequence)
    )


@pytest.mark.clause("K3")
def test_folding_the_log_gives_the_live_state() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.trigger()
    attempt.ack("source", 0)
    attempt.ack_checkpoint(1)
    attempt.lose()

    made = rebuild(job.log, job.chain, projection_of(job.chain))
    assert made.state == job.runtime.state


@pytest.mark.clause("K5")
def test_a_driver_restores_from_every_prefix_of_its_log() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.trigger()
    attempt.ack("source", 0)
    attempt.ack_checkpoint(1)
    attempt.lose()
    job.register(0)
    for end in range(job.log.high_watermark() + 1):
        again = HandDrivenJob(job.chain, log=prefix_of(job.log, end))
        again.register(0).complete()
        assert kinds(again.history())[-1] == "JOB_FINISHED", f"from the prefix of {end} records"


@pytest.mark.clause("K5")
def test_a_type_stands_before_its_first_use_in_the_same_turn_and_once() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    attempt.send("source", Up(n=1))
    attempt.send("source", Up(n=2))

    registered = job.history(Kind.TYPE_REGISTERED)
    assert [(one.payload_type, one.turn_remaining) for one in registered] == [("test.up@1", 1)]


@pytest.mark.clause("K4")
def test_a_group_holds_whole_turns_up_to_its_bytes_or_one_larger_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.is_held = True

    def note(length: int) -> None:
        inside(attempt, provider, lambda c: c.context.record(Noted(text="x" * length)))

    for length in (10, 10, 10, 5_000, 10):
        note(length)
    monkeypatch.setattr(waiting_turns, "GROUP_BYTES_MAX", 2_000)
    groups = []
    while group := job.runtime.turns.take_group():
        groups.append(group)
        job.runtime.acknowledged(job.appender.append(group))

    sizes = [sum(one.size_bytes for one in group) for group in groups]
    assert len(groups) == 3
    assert sizes[0] <= 2_000 < sizes[1]
    assert sizes[2] <= 2_000
    # A turn is the event and the fact; the first registers the two types before them.
    assert [len(group) for group in groups] == [8, 2, 2]


@pytest.mark.clause("K5")
def test_a_snapshot_is_a_turn_of_one_record() -> None:
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=3)
    )
    attempt = job.register(0)
    for n in range(5):
        attempt.send("source", Up(n=n))

    history = job.history()
    at = [n for n, one in enumerate(history) if one.kind is Kind.SNAPSHOT]
    assert len(at) > 1
    assert [history[n].turn_remaining for n in at] == [0] * len(at)
    assert [history[n - 1].turn_remaining for n in at] == [0] * len(at)


@pytest.mark.clause("K6")
def test_a_record_refused_by_the_broker_leaves_a_readable_log() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = job.register(0)
    job.log.faults.next_append(Refuse("the disk is full"))

    with pytest.raises(AppendRefusedError, match="the disk is full"):
        attempt.send("source", Up(n=1))
    assert job.history(Kind.EVENT_TO_COORDINATOR) == []
    job.crash()
    provider = NotingProvider()
    again = HandDrivenJob(chain_of(provider), log=job.log)
    again.register(0).send("source", Up(n=2))
    assert provider.said("event") == [("event", 0, 1, 2)]
