"""New objects for old ones, several operators, a subtask's own faults: the scenarios RC, DH and TE of the contract."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import get_args

import pytest

from coordlog.api.coordinator import EventFuture
from coordlog.errors import AttemptNotRunningError
from coordlog.messages import DeliverEvent, Fenced, SendEvent, UpMessage
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.task.attempt import AttemptRunner
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import Down, Noting, NotingProvider, Up, chain_of, inside, kinds, send_down


def failed_over(job: HandDrivenJob) -> None:
    """A global failover."""
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.stage_ends()
    job.advance(10)
    assert job.runtime.state.phase is Phase.RUNNING


# A new object for each reset


@pytest.mark.flink("RC1")
def test_the_context_tells_operator_job_and_parallelism() -> None:
    provider = NotingProvider("prices")
    job = HandDrivenJob(chain_of(NotingProvider(), provider), parallelism=3, job_id="nightly")
    (attempt, *_) = job.register_all()
    seen: list[tuple[str, str, int]] = []
    inside(
        attempt,
        provider,
        lambda c: seen.append(
            (c.context.operator_id, c.context.job_id, c.context.current_parallelism())
        ),
    )

    assert seen == [("prices", "nightly", 3)]


def told_by_object(provider: NotingProvider) -> list[list[tuple[object, ...]]]:
    """What each coordinator object was told, by the order of their making; `close` left out."""
    heard: list[list[tuple[object, ...]]] = []

    def note(name: str) -> Callable[..., None]:
        def act(coordinator: Noting, *said: object) -> None:
            heard[provider.made.index(coordinator)].append((name, *said))

        return act

    for name in ("start", "event", "ready", "failed", "reset", "complete", "aborted", "restore"):
        provider.on[name] = note(name)
    provider.on["create"] = lambda _: heard.append([])
    provider.on["cut"] = note("cut")
    return heard


@pytest.mark.flink("RC5")
@pytest.mark.clause("A2")
@pytest.mark.may_fail("no reason")
def test_a_close_that_does_not_return_holds_up_nothing() -> None:
    """Adapted: a limit after which the job would fail is not needed where nobody waits."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    job.is_work_held = True
    failed_over(job)
    assert provider.said("close") == []
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1)
    attempt.complete()

    assert job.runtime.state.phase is Phase.FINISHED
    assert job.history(Kind.GLOBAL_FAILURE)[0].reason == "no reason"
    assert len(job.history(Kind.GLOBAL_FAILURE)) == 1


@pytest.mark.flink("RC6")
@pytest.mark.clause("A1")
@pytest.mark.may_fail("no reason")
def test_what_comes_while_the_old_object_closes_reaches_the_new_one_only() -> None:
    provider = NotingProvider()
    heard = told_by_object(provider)
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, _ = job.register_all()
    first.send("source", Up(n=1))
    job.is_work_held = True
    failed_over(job)
    before = list(heard[0])
    first, second = job.register_all()
    first.send("source", Up(n=2))
    job.trigger()
    first.ack_checkpoint(1)
    second.ack_checkpoint(1)
    second.lose()

    assert heard[0] == before
    assert heard[1] == [
        ("restore", -1, None),
        ("start",),
        ("ready", 0, 1),
        ("ready", 1, 1),
        ("event", 0, 1, 2),
        ("cut", 1),
        ("complete", 1),
        ("failed", 1, 1),
        ("reset", 1, 1),
    ]
    assert provider.said("close") == []
    job.is_work_held = False
    job.pump()
    assert provider.said("close") == [("close",)]


@pytest.mark.flink("RC7")
@pytest.mark.clause("A1")
@pytest.mark.may_fail("no reason")
def test_over_many_resets_each_coordinator_hears_only_of_its_own_time(seed: int) -> None:
    chance = random.Random(seed)
    provider = NotingProvider()
    heard = told_by_object(provider)
    job = HandDrivenJob(chain_of(provider))
    job.is_work_held = True
    expected: list[list[int]] = [[]]
    number = 0
    for _ in range(200):
        attempt = job.register(0)
        for _ in range(chance.randrange(4)):
            number += 1
            attempt.send("source", Up(n=number))
            expected[-1].append(number)
        job.run(lambda: job.runtime.fail_job("source", "no reason"))
        number += 1
        attempt.send("source", Up(n=number))  # too late for one object, too early for the next
        job.stage_ends()
        job.advance(3600)
        expected.append([])
    events = [[said[3] for said in one if said[0] == "event"] for one in heard]

    assert events == expected
    assert len(provider.made) == 201
    job.is_work_held = False
    job.pump()
    assert provider.said("close") == [("close",)] * 200


@pytest.mark.flink("RC8")
@pytest.mark.clause("H2")
@pytest.mark.may_fail("no reason")
def test_an_abort_is_told_to_the_object_in_office() -> None:
    provider = NotingProvider(is_cut_at_once=False)
    heard = told_by_object(provider)
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(checkpoint_timeout_s=5))
    job.register(0)
    job.trigger()
    failed_over(job)
    job.register(0)
    job.trigger()
    job.advance(6)

    aborts = [[said for said in one if said[0] == "aborted"] for one in heard]
    assert aborts == [[], [("aborted", 2)]], "1 was asked of an object that is closed"


# Several operators


@pytest.mark.flink("DH1")
@pytest.mark.clause("A1")
def test_coordinators_of_a_chain_start_together_with_their_own_events() -> None:
    """Adapted: a chain's operators are fixed, so that none joins later."""
    providers = NotingProvider("source"), NotingProvider("map"), NotingProvider("sink")
    job = HandDrivenJob(chain_of(*providers))
    assert [one.calls for one in providers] == [[("create",), ("start",)]] * 3
    attempt = job.register(0)
    attempt.send("map", Up(n=5))
    inside(attempt, providers[2], send_down(providers[2], 0, 6))

    assert [one.said("event") for one in providers] == [
        [],
        [("event", 0, 0, 5)],
        [("event", 0, 0, 0)],
    ]
    (delivered,) = attempt.got(DeliverEvent)
    assert delivered.operator_id == "sink"


# The subtask's side


@pytest.mark.flink("TE1")
@pytest.mark.clause("M3")
@pytest.mark.clause("C3")
def test_a_subtask_whose_handler_raises_fails_and_acks_no_event() -> None:
    """Were the ack to mean queued, an event that no handler took would count as processed."""
    source, sink = NotingProvider("source"), NotingProvider("sink")
    job = HandDrivenJob(chain_of(source, sink), parallelism=2)
    first, second = job.register_all()
    futures: list[EventFuture] = []
    inside(second, sink, lambda c: futures.append(c.gateways[0].send_event(Down(n=1))))

    def say(message: UpMessage) -> None:
        job.run(lambda: job.runtime.arrived(first.connection_id, message))

    runner = AttemptRunner(
        job.chain,
        first.accepted,
        job_id="job",
        subtask=0,
        outbox=say,
        why_over=lambda: None,
    )
    runner.open()
    with pytest.raises(NotImplementedError, match="handles no events"):
        runner.handle(first.got(DeliverEvent)[0])

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.subtask == 0
    said = str(failed.reason)
    assert said.startswith("handle_event of operator 'sink' raised ")
    assert "IdleOperator handles no events" in said
    assert job.history(Kind.EVENT_ACKED) == []
    with pytest.raises(AttemptNotRunningError):
        futures[0].result()
    assert second.got(Fenced) == []


@pytest.mark.flink("TE3")
@pytest.mark.clause("D2")
def test_a_message_to_an_uncoordinated_operator_fails_its_sender_alone() -> None:
    """Adapted: attempts send events, no requests, so that there is nothing else to be refused."""
    assert [one.__name__ for one in get_args(UpMessage)] == [
        "Register",
        "SendEvent",
        "AckEvent",
        "AckCheckpoint",
        "FinishSplit",
        "SkipSplit",
        "Complete",
        "Fail",
        "Marker",
    ]
    source = NotingProvider("source")
    job = HandDrivenJob(chain_of(source), parallelism=2)
    first, second = job.register_all()
    message = SendEvent(
        operator_id="map", event_id=0, last_barrier=-1, payload_type="test.up@1", payload=b"\x02"
    )
    job.run(lambda: job.runtime.arrived(first.connection_id, message))

    assert kinds(job.history())[-2:] == ["ATTEMPT_FAILED", "SUBTASK_RESET"]
    assert "operator 'map'" in str(job.history(Kind.ATTEMPT_FAILED)[0].reason)
    assert (len(first.got(Fenced)), second.got(Fenced)) == (1, [])
    assert source.said("failed") == [("failed", 0, 0)]
