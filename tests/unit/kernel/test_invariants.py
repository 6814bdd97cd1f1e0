"""What breaks a promise of a job's state is told, by itself and in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from immutables import Map

from coordlog.projections.job.invariants import faults_of
from coordlog.projections.job.state import JobState, Phase
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import FakeSink, NotingProvider, chain_of, inside, send_down

Change = Callable[[JobState], JobState]


@pytest.fixture(scope="module")
def sound() -> JobState:
    """Checkpoint 1 is being committed; 2 waits for event 0 and holds events 1 and 2; subtask 0 is done, 1 live."""
    provider = NotingProvider(sink=FakeSink())
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    first.complete()
    job.trigger()
    job.is_work_held = True
    second.ack_checkpoint(1, committables=[("source", b"a")])
    inside(second, provider, send_down(provider, 1, 1))
    job.trigger()
    inside(second, provider, send_down(provider, 1, 2, 3))
    return job.runtime.state


def subtask(number: int, **changes: Any) -> Change:  # noqa: ANN401, of fields
    def change(state: JobState) -> JobState:
        changed = replace(state.subtasks[number], **changes)
        return replace(state, subtasks=state.subtasks.set(number, changed))

    return change


def attempt(**changes: Any) -> Change:  # noqa: ANN401, of fields
    def change(state: JobState) -> JobState:
        live = state.subtasks[1].attempt
        assert live is not None
        return subtask(1, attempt=replace(live, **changes))(state)

    return change


def gateway(**changes: Any) -> Change:  # noqa: ANN401, of fields
    def change(state: JobState) -> JobState:
        changed = replace(state.gateways["source", 1], **changes)
        return replace(state, gateways=state.gateways.set(("source", 1), changed))

    return change


def pending(**changes: Any) -> Change:  # noqa: ANN401, of fields
    def change(state: JobState) -> JobState:
        changed = replace(state.pending[2], **changes)
        return replace(state, pending=state.pending.set(2, changed))

    return change


def whole(**changes: Any) -> Change:  # noqa: ANN401, of fields
    return lambda state: replace(state, **changes)


def all_of(*changes: Change) -> Change:
    def change(state: JobState) -> JobState:
        for one in changes:
            state = one(state)
        return state

    return change


def with_intent(at: int, **changes: Any) -> Change:  # noqa: ANN401, of fields
    def change(state: JobState) -> JobState:
        (intent,) = state.intents.values()
        return replace(state, intents=Map({intent.sequence + at: replace(intent, **changes)}))

    return change


def also_finished(state: JobState) -> JobState:
    return subtask(1, completion=state.subtasks[0].completion)(state)


def to_come(more: int) -> Change:
    return lambda state: attempt(started_sequence=state.next_sequence + more)(state)


def held_by(first: tuple[int, ...], second: tuple[int, ...]) -> Change:
    """Who holds the two held events."""

    def change(state: JobState) -> JobState:
        held = state.gateways["source", 1].held
        holders = zip(held, (first, second), strict=True)
        return gateway(held=tuple(replace(one, held_by=each) for one, each in holders))(state)

    return change


def without_unacked(event_id: int) -> Change:
    return lambda state: gateway(unacked=state.gateways["source", 1].unacked.delete(event_id))(
        state
    )


def with_unacked(event_id: int) -> Change:
    def change(state: JobState) -> JobState:
        unacked = state.gateways["source", 1].unacked
        return gateway(unacked=unacked.set(event_id, unacked[0]))(state)

    return change


def completed(**changes: Any) -> Change:  # noqa: ANN401, of fields
    def change(state: JobState) -> JobState:
        changed = replace(state.completed[1], **changes)
        return replace(state, completed=state.completed.set(1, changed))

    return change


def last_intents(**by_operator: int) -> Change:
    return whole(last_intents=Map({(name, ""): n for name, n in by_operator.items()}))


def intent_to_come(more: int) -> Change:
    def change(state: JobState) -> JobState:
        (intent,) = state.intents.values()
        at = state.next_sequence + more
        return replace(state, intents=Map({at: replace(intent, sequence=at)}))

    return change


GATEWAY = "the gateway of 'source' to 1/0"
UNSOUND: Final[dict[str, tuple[Change, tuple[str, ...]]]] = {
    "a live attempt of a finished subtask": (
        all_of(also_finished, whole(finished_count=2)),
        ("attempt 1/0 is live, and its subtask has finished",),
    ),
    "an attempt number that is to be used next": (
        subtask(1, next_attempt_number=0),
        ("attempt 1/0 is live, and the next number is 0",),
    ),
    "an attempt number that is still to be used": (
        all_of(attempt(attempt_number=2), gateway(attempt_number=2), pending(attempts=Map({1: 2}))),
        ("attempt 1/2 is live, and the next number is 1",),
    ),
    "an attempt of a later epoch": (
        attempt(epoch=1),
        ("attempt 1/0 is of epoch 1, and 0 is in force",),
    ),
    "too many live": (
        whole(live_count=2),
        ("1 attempts live and 1 subtasks finished, but 2 and 1 are counted",),
    ),
    "too few live": (
        whole(live_count=0),
        ("1 attempts live and 1 subtasks finished, but 0 and 1 are counted",),
    ),
    "too many finished": (
        whole(finished_count=2),
        ("1 attempts live and 1 subtasks finished, but 1 and 2 are counted",),
    ),
    "much left of a job that has finished": (
        whole(phase=Phase.FINISHED),
        (
            "the job has finished, and 1 attempts live",
            "checkpoint 2 is pending, and the job has finished",
            "the job has finished, and 1 intents have no outcome",
        ),
    ),
    "a gateway to an attempt that is over": (
        gateway(attempt_number=1),
        ("the gateway of 'source' to 1/1 leads to an attempt that is over",),
    ),
    "a gateway that a checkpoint closes which is over": (
        gateway(closed_by=(1, 2)),
        (f"{GATEWAY} is closed by [1], which are not pending",),
    ),
    "a held event that nothing holds": (
        held_by((), (2,)),
        (f"{GATEWAY} holds event 1, and nothing holds that",),
    ),
    "a held event in an open gateway": (
        gateway(closed_by=()),
        (f"{GATEWAY} holds event 1 for (2,)", f"{GATEWAY} holds event 2 for (2,)"),
    ),
    "a held event that has been acked": (
        without_unacked(1),
        (f"{GATEWAY} holds event 1, which counts as acked",),
    ),
    "event ids that will be used again": (
        whole(next_event_id=1),
        (f"{GATEWAY} has event 1 un-acked, and 1 is the next",),
    ),
    "an event id that is still to be used": (
        with_unacked(9),
        (f"{GATEWAY} has event 9 un-acked, and 3 is the next",),
    ),
    "a pending checkpoint that is the next": (
        whole(next_checkpoint_id=2),
        ("checkpoint 2 is pending, after 1 has completed and with 2 as the next",),
    ),
    "a pending checkpoint that is to come": (
        whole(next_checkpoint_id=1),
        ("checkpoint 2 is pending, after 1 has completed and with 1 as the next",),
    ),
    "a pending checkpoint below the last": (
        whole(last_checkpoint=5),
        (
            "checkpoint 2 is pending, after 5 has completed and with 3 as the next",
            "checkpoint 5 is the last completed one, and is not retained",
        ),
    ),
    "a pending checkpoint that has completed": (
        whole(last_checkpoint=2),
        (
            "checkpoint 2 is pending, after 2 has completed and with 3 as the next",
            "checkpoint 2 is the last completed one, and is not retained",
        ),
    ),
    "a checkpoint that waits for events that are acked": (
        pending(waiting=Map({0: None, 8: None, 9: None})),
        ("checkpoint 2 waits for event 8, which is not un-acked",),
    ),
    "acks that are not waited for": (
        pending(acks=Map({0: (), 7: ()})),
        ("checkpoint 2 has an ack of subtask 0, which it does not wait for",),
    ),
    "a checkpoint that waits for an attempt that is over": (
        pending(attempts=Map({1: 5})),
        ("checkpoint 2 waits for attempt 1/5, which is over",),
    ),
    "a last checkpoint that is forgotten": (
        whole(completed=Map()),
        ("checkpoint 1 is the last completed one, and is not retained",),
    ),
    "a savepoint whose checkpoint is gone": (
        whole(savepoints=Map({"here": 1, "there": 7})),
        ("checkpoint 7 is savepoint 'there', and is not retained",),
    ),
    "a checkpoint without one subtask's part": (
        completed(states=Map()),
        ("checkpoint 1 holds the subtasks [0] of 2",),
    ),
    "a checkpoint with a part too many": (
        completed(parallelism=1),
        ("checkpoint 1 holds the subtasks [0, 1] of 1",),
    ),
    "an intent of a checkpoint after the last": (
        with_intent(0, checkpoint_id=2),
        ("an intent of checkpoint 2, and 1 is the last",),
    ),
    "an intent of a checkpoint after the last of its operator": (
        last_intents(alpha=9, source=0, zeta=9),
        ("an intent of checkpoint 1, and 0 is the last",),
    ),
    "an intent of an operator that has had none": (
        last_intents(),
        ("an intent of checkpoint 1, and -1 is the last",),
    ),
}
"""Each changes the sound state; what is told of it, and nothing else."""

SOUND: Final[dict[str, Change]] = {
    "as it is": whole(),
    "an attempt that is the newest record": to_come(-1),
    "an attempt of an epoch before": whole(epoch=1),
    "an event behind one that is held": held_by((2,), ()),
    "an attempt that is over and has acked": all_of(
        pending(attempts=Map({1: 5}), acks=Map({1: ()})),
    ),
    "an attempt that is over, in a job that fails": all_of(
        pending(attempts=Map({1: 5})), whole(phase=Phase.FAILING)
    ),
    "no checkpoint yet": whole(completed=Map(), last_checkpoint=-1),
    "an intent that is the newest record": intent_to_come(-1),
    "an intent of an older checkpoint than the last": last_intents(source=5),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_what_is_unsound_is_told_and_nothing_else(sound: JobState, name: str) -> None:
    change, told = UNSOUND[name]
    assert faults_of(change(sound)) == told


@pytest.mark.parametrize("name", SOUND)
def test_of_a_sound_state_nothing_is_told(sound: JobState, name: str) -> None:
    assert faults_of(SOUND[name](sound)) == ()


@pytest.mark.parametrize("more", [0, 3])
def test_what_is_said_to_stand_behind_the_end_of_the_log_is_told(
    sound: JobState, more: int
) -> None:
    at = sound.next_sequence + more

    assert faults_of(to_come(more)(sound)) == (
        f"attempt 1/0 began at sequence {at}, which is to come",
    )
    assert faults_of(intent_to_come(more)(sound)) == (
        f"an intent is stored at sequence {at} and names {at}",
    )


@pytest.mark.parametrize("away", [-1, 1])
def test_an_intent_that_is_kept_at_another_place_than_its_own_is_told(
    sound: JobState, away: int
) -> None:
    (intent,) = sound.intents.values()

    assert faults_of(with_intent(away)(sound)) == (
        f"an intent is stored at sequence {intent.sequence + away} and names {intent.sequence}",
    )
