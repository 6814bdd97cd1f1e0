"""Two drivers of one job over one log: who acts, who ends, and what the late one does (clause K2)."""

from __future__ import annotations

import random

import pytest

from coordlog.errors import FencedError
from coordlog.log.memory import Unknown
from coordlog.projections.job.state import Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import FakeSink, NotingProvider, Up, chain_of, delivered, inside, send_down

pytestmark = pytest.mark.clause("K2")


def epochs(job: HandDrivenJob) -> list[int]:
    """The epochs of the records that count, in log order."""
    return [one.epoch for one in job.history()]


def taken_over(job: HandDrivenJob, provider: NotingProvider) -> HandDrivenJob:
    """Another driver, of its own process, while the first is paused."""
    return HandDrivenJob(chain_of(provider), log=job.log, clock=job.clock)


def committed(job: HandDrivenJob, name: str) -> None:
    """Let a new attempt run, and a checkpoint commit what it hands over."""
    attempt = job.register(0)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    attempt.ack_checkpoint(checkpoint_id, committables=[("source", name.encode())])
    job.advance(3600)


@pytest.mark.fault("X1")
def test_the_driver_whose_epoch_is_not_in_force_ends_and_says_which_one_is() -> None:
    first_provider, second_provider = NotingProvider(), NotingProvider()
    first = HandDrivenJob(chain_of(first_provider))
    attempt = first.register(0)
    second = taken_over(first, second_provider)

    with pytest.raises(FencedError) as raised:
        attempt.send("source", Up(n=1))

    error = raised.value
    assert (error.epoch, error.epoch_in_force, error.driver_in_force) == (0, 1, "driver-1")
    assert "in force is epoch 1 of driver driver-1" in str(error)
    again = second.register(0)
    again.send("source", Up(n=2))
    assert second_provider.said("event") == [("event", 0, 1, 2)]
    again.complete()
    assert second.runtime.state.phase is Phase.FINISHED


def test_no_record_of_the_loser_counts_behind_the_newer_epochs_first() -> None:
    provider = NotingProvider()
    first = HandDrivenJob(chain_of(provider))
    attempt = first.register(0)
    first.is_held = True
    inside(attempt, provider, send_down(provider, 0, 1))
    attempt.send("source", Up(n=1))
    second = taken_over(first, NotingProvider())
    with pytest.raises(FencedError):
        first.release()

    assert epochs(second) == sorted(epochs(second))
    assert second.history(Kind.EVENT_TO_COORDINATOR, Kind.EVENT_TO_SUBTASK) == []
    assert delivered(first, attempt) == [], "and nothing of it left"
    stored = [one for one in first.log.records if one.header is not None]
    (began,) = [one.offset for one in stored if one.header is not None and one.header.epoch == 1][
        :1
    ]
    late = [one.offset for one in stored if one.header is not None and one.header.epoch == 0]
    assert late[-1] > began, "it was appended all the same, and is void"


def test_a_dead_drivers_unconfirmed_append_counts_before_the_newer_epoch() -> None:
    provider = NotingProvider()
    first = HandDrivenJob(chain_of(provider))
    attempt = first.register(0)
    first.is_held = True
    attempt.send("source", Up(n=1))
    first.log.writer().append(
        first.runtime.turns.take_group(), timeout_s=1
    )  # acknowledged, not heard of
    second = taken_over(first, NotingProvider())

    (event,) = second.history(Kind.EVENT_TO_COORDINATOR)
    assert event.epoch == 0
    assert provider.said("event") == [("event", 0, 0, 1)]
    (ended,) = second.history(Kind.ATTEMPT_FAILED)
    assert (ended.epoch, ended.reason) == (1, "its driver is gone")


def test_a_commit_that_a_paused_driver_makes_late_is_seen_once() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    first = HandDrivenJob(chain_of(provider))
    attempt = first.register(0)
    first.is_work_held = True
    first.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    assert (sink.settled, len(first.works)) == ([], 1), "released, and then the driver is paused"
    second = taken_over(first, NotingProvider(sink=sink))
    assert sink.settled == [("a",)]
    first.is_work_held = False
    with pytest.raises(FencedError):
        first.pump()

    assert (sink.settled, sink.tries) == ([("a",)], 2)
    (outcome,) = second.history(Kind.COMMIT_OUTCOME)
    assert outcome.epoch == 1


def test_a_paused_drivers_commit_ahead_of_the_newer_epoch_is_seen_once() -> None:
    sink = FakeSink()
    first = HandDrivenJob(chain_of(NotingProvider(sink=sink)))
    attempt = first.register(0)
    first.is_work_held = True
    first.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    first.works.popleft()()
    assert sink.settled == [("a",)], "done, its outcome not in the log"
    second = taken_over(first, NotingProvider(sink=sink))
    with pytest.raises(FencedError):
        first.pump()

    assert (sink.settled, sink.tries) == ([("a",)], 2)
    assert [one.epoch for one in second.history(Kind.COMMIT_OUTCOME)] == [1]
    assert second.stage.submitted == [1]


def test_a_paused_drivers_late_event_reaches_its_own_attempt_only() -> None:
    first_provider, second_provider = NotingProvider(), NotingProvider()
    first = HandDrivenJob(chain_of(first_provider))
    old = first.register(0)
    first.is_held = True
    inside(old, first_provider, send_down(first_provider, 0, 1))
    offsets = first.appender.append(first.runtime.turns.take_group())
    # It counts, and then the driver is paused.
    second = taken_over(first, second_provider)
    new = second.register(0)
    first.runtime.acknowledged(offsets)
    assert (delivered(first, old), delivered(second, new)) == ([1], [])
    before = second.runtime.state
    first.is_held = False
    with pytest.raises(FencedError):
        old.ack("source", 0)

    assert second.runtime.state is before
    assert new.accepted.attempt_number == 1
    assert second.history(Kind.EVENT_ACKED) == []


@pytest.mark.clause("K4")
def test_void_records_of_the_loser_do_not_fence_the_driver_in_force() -> None:
    first = HandDrivenJob(chain_of(NotingProvider()))
    attempt = first.register(0)
    provider = NotingProvider()
    second = taken_over(first, provider)
    new = second.register(0)
    with pytest.raises(FencedError):
        attempt.send("source", Up(n=1))
    second.log.faults.next_append(Unknown(stored=None))
    new.send("source", Up(n=2))

    assert provider.said("event") == [("event", 0, 1, 2)]
    assert not new.is_closed


def test_of_drivers_that_take_over_in_turn_each_acts_until_the_next_one(seed: int) -> None:
    chance = random.Random(seed)
    sink = FakeSink()
    jobs = [HandDrivenJob(chain_of(NotingProvider(sink=sink)))]
    expected: list[str] = []
    for number in range(40):
        if chance.random() < 0.3:
            jobs.append(taken_over(jobs[-1], NotingProvider(sink=sink)))
            jobs[-1].advance(3600)  # else drivers that end often would end the job
        job = chance.choice(jobs)
        if job.is_crashed:
            continue
        if job is jobs[-1]:
            committed(job, str(number))
            expected.append(str(number))
            continue
        with pytest.raises(FencedError) as raised:
            committed(job, "lost")
        assert raised.value.epoch_in_force == len(jobs) - 1
        job.crash()

    assert sink.settled == [(one,) for one in expected]
    assert epochs(jobs[-1]) == sorted(epochs(jobs[-1]))


@pytest.mark.parametrize("is_late_to_append", [True, False], ids=["append", "look"])
def test_a_driver_paused_over_a_prune_ends_and_names_the_epoch_in_force(
    *, is_late_to_append: bool
) -> None:
    """What it would read on from has been removed: by a newer driver's snapshot, and by nobody else."""
    first = HandDrivenJob(chain_of(NotingProvider()))
    attempt = first.register(0)
    for number in (1, 2):
        second = HandDrivenJob(
            chain_of(NotingProvider()),
            log=first.log,
            clock=first.clock,
            options=RuntimeOptions(snapshot_every=5 if number == 1 else None),
        )
        late = second.register(0)
        for n in range(10):
            late.send("source", Up(n=n))
    stored = first.log.read(0, first.log.high_watermark())
    snapshots = [one.offset for one in stored if one.record().kind is Kind.SNAPSHOT]
    first.log.delete_below(snapshots[-1])

    def act() -> None:
        if is_late_to_append:
            attempt.send("source", Up(n=1))
        else:
            first.appender.check_epoch()

    with pytest.raises(FencedError) as raised:
        act()

    error = raised.value
    assert (error.epoch, error.epoch_in_force, error.driver_in_force) == (0, 2, "driver-2")
