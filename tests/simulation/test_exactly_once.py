"""Exactly once, both ways, in a loop: two coordinators of different speed, short checkpoints, failures anywhere.

Run number n of a test has the seed of the test plus n: what fails prints the command that makes that run the first.
A thousand runs: `make test ARGS="tests/simulation/test_exactly_once.py --dose=20"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from coordlog.kernel import checkpoints
from coordlog.kernel.inputs import Action, SendEvent
from coordlog.projections.job.state import JobState, PendingCheckpoint
from coordlog.runtime.runtime import Runtime
from coordlog.schemas.evolution import evolve
from coordlog.schemas.record import Kind
from simulation.number_splits import COUNTED, read_numbers
from simulation.scenarios import (
    Faulty,
    Talk,
    overlapping,
    storms,
    stream_operator,
    two_coordinators,
)
from simulation.talk import FailOnce, NotExactlyOnceError
from simulation.world import World
from tiers import in_parts

pytestmark = pytest.mark.slow

Loop = Callable[[int, Callable[[int], object]], None]


@pytest.fixture
def loop(seed: int, dose: int, request: pytest.FixtureRequest) -> Loop:
    """Makes so many runs, times the dose, a seed each; tells how to repeat the one that fails."""

    def run(count: int, one: Callable[[int], object]) -> None:
        for each in range(seed, seed + count * dose):
            try:
                one(each)
            except BaseException:
                command = f"make test-all ARGS='{request.node.nodeid} --seed={each}'"
                print(f"seed {each}; to repeat this run alone: {command}")
                raise

    return run


@pytest.mark.flink("IT1")
@pytest.mark.clause("A1")
@pytest.mark.clause("A5")
@pytest.mark.clause("B1")
@pytest.mark.clause("D3")
@pytest.mark.clause("F3")
@in_parts(2)
def test_two_coordinators_of_different_speed_are_exactly_once_both_ways(
    part: int, loop: Loop
) -> None:
    """Parked work wakes once the successor is up; what its handler then sends through the old gateway reaches nobody.

    After a global reset the handler is not called, and a thread of its own may never send.
    """
    loop(4, two_coordinators)


@pytest.mark.clause("A6")
def test_work_parked_over_a_global_reset_is_recorded_without_its_handler(
    loop: Loop,
) -> None:
    counts: list[int] = []

    def one(seed: int) -> None:
        talk = two_coordinators(seed)
        scripts = [one.script for one in talk.providers.values()]
        assert [isinstance(one, FailOnce) and one.has_failed for one in scripts] == [True, True]
        woken = [
            record
            for record in talk.world.history(Kind.FACT)
            if (record.payload_type or "").startswith("exactly.woken")
        ]
        closed = [one for one in woken if one.attributes.get("closed") == "true"]
        counts.append(len(closed))
        assert talk.world.book.refused == 2 * len(woken), (
            "from its worker, and from a thread of its own"
        )
        assert talk.world.book.strays == len(woken) - len(closed)

    loop(2, one)
    assert any(counts), "work of a coordinator that a reset had closed, in one run at the least"


@pytest.mark.clause("F4")
@pytest.mark.clause("F10")
def test_two_coordinators_with_overlapping_checkpoints_are_exactly_once(loop: Loop) -> None:
    loop(6, lambda seed: two_coordinators(seed, is_overlapping=True))


@pytest.mark.flink("ITs1")
@pytest.mark.clause("G1")
def test_a_recipient_behind_the_source_gets_each_event_once(loop: Loop) -> None:
    loop(4, lambda seed: stream_operator(seed, is_subtask_failing=False))


@pytest.mark.flink("ITs2")
@pytest.mark.clause("D5")
def test_a_recipient_behind_the_source_that_fails_gets_each_event_once(loop: Loop) -> None:
    loop(4, lambda seed: stream_operator(seed, is_subtask_failing=True))


@pytest.mark.flink("ITs3")
@pytest.mark.clause("C2")
def test_barriers_behind_many_messages_on_their_way_keep_their_place(loop: Loop) -> None:
    loop(3, lambda seed: stream_operator(seed, is_subtask_failing=False, wire_s=(0.0, 0.08)))


@pytest.mark.flink("ITs4")
@pytest.mark.clause("C2")
def test_barriers_behind_many_messages_keep_their_place_over_a_failure(loop: Loop) -> None:
    loop(3, lambda seed: stream_operator(seed, is_subtask_failing=True, wire_s=(0.0, 0.08)))


def _aborted_before_the_failure(talk: Talk) -> list[int]:
    records = talk.world.history(Kind.CHECKPOINT_ABORTED, Kind.GLOBAL_FAILURE)
    first = next(n for n, one in enumerate(records) if one.kind is Kind.GLOBAL_FAILURE)
    return [one.checkpoint_id or 0 for one in records[:first]]


@pytest.mark.flink("ITs-del")
@pytest.mark.clause("F10")
def test_two_checkpoints_at_once_and_a_failure_after_the_second_cut(loop: Loop) -> None:
    def one(seed: int) -> None:
        assert _aborted_before_the_failure(overlapping(seed)) == []

    loop(4, one)


def _which(*numbers: int) -> Callable[[int], bool]:
    return lambda count: count in numbers


ASSIGNMENTS = pytest.mark.parametrize("assignment", ["pull", "static"])
Assignment = Literal["pull", "static"]


def _unacked_in_time(world: World) -> int:
    """How many attempts have failed for want of an ack."""
    failed = world.history(Kind.ATTEMPT_FAILED)
    return sum((one.reason or "").startswith("no ack of event") for one in failed)


@pytest.mark.flink("OE1")
@pytest.mark.clause("C4")
@ASSIGNMENTS
def test_split_events_are_lost_and_every_number_is_read_once(
    assignment: Assignment, loop: Loop
) -> None:
    def one(seed: int) -> None:
        wire = Faulty(is_chosen=_which(2, 4, 6), counted=COUNTED, loses_event=True)
        world = read_numbers(seed, wire, ack_timeout_s=0.5, assignment=assignment)
        assert wire.hit > 0
        assert _unacked_in_time(world) == wire.hit

    loop(1, one)


@pytest.mark.flink("OE2")
@pytest.mark.clause("C4")
@ASSIGNMENTS
def test_lost_split_events_and_a_failing_chain_lose_no_number(
    assignment: Assignment, loop: Loop
) -> None:
    """Static: a reader that never saw its splits, and is told that no more come, completes; the job must fail then."""

    def one(seed: int) -> None:
        wire = Faulty(is_chosen=_which(1, 3), counted=COUNTED, loses_event=True)
        world = read_numbers(seed, wire, ack_timeout_s=0.5, is_failing=True, assignment=assignment)
        assert wire.hit > 0
        assert assignment == "static" or _unacked_in_time(world) == wire.hit == 2

    loop(1, one)


@pytest.mark.flink("OE3")
@pytest.mark.clause("C4")
@ASSIGNMENTS
def test_acks_of_split_events_are_lost_and_every_number_is_read_once(
    assignment: Assignment, loop: Loop
) -> None:
    def one(seed: int) -> None:
        wire = Faulty(is_chosen=_which(2, 4), counted=COUNTED, ack_s=None)
        read_numbers(seed, wire, ack_timeout_s=0.5, assignment=assignment)
        assert wire.hit > 0

    loop(1, one)


@pytest.mark.flink("OE4")
@pytest.mark.clause("F3")
@ASSIGNMENTS
def test_acks_of_split_events_come_late_and_nothing_fails(
    assignment: Assignment, loop: Loop
) -> None:
    def one(seed: int) -> None:
        wire = Faulty(is_chosen=_which(2, 4), counted=COUNTED, ack_s=0.5)
        world = read_numbers(seed, wire, ack_timeout_s=10.0, assignment=assignment)
        assert wire.hit > 0
        assert not world.history(Kind.ATTEMPT_FAILED, Kind.GLOBAL_FAILURE)

    loop(1, one)


@pytest.mark.clause("B8")
@pytest.mark.clause("K1")
@pytest.mark.clause("K4")
@in_parts(2)
def test_connections_drivers_appends_events_and_acks_fail_together(part: int, loop: Loop) -> None:
    """Drivers die and go on from the log; appends have unknown outcomes; events and acks are lost, acks are late."""
    loop(6, storms)


def test_one_seed_makes_one_log_to_the_byte(seed: int) -> None:
    first, second, other = storms(seed), storms(seed), storms(seed + 1)
    assert first.world.log.stored == second.world.log.stored
    assert len(first.world.log.stored) > 100
    assert first.world.log.stored[:100] != other.world.log.stored[:100]


# --- controls: with one rule taken out, the scenario fails ------------------------------------------------------------
def _is_noticed(seed: int, one: Callable[[int], object]) -> bool:
    """Whether one of twenty runs is not exactly-once. More than half of them are not, with any of these rules out."""
    return any(_is_wrong(each, one) for each in range(seed, seed + 20))


def _is_wrong(seed: int, one: Callable[[int], object]) -> bool:
    try:
        one(seed)
    except NotExactlyOnceError:
        return True
    return False


@pytest.mark.clause("B1")
def test_without_gateways_of_one_attempt_the_scenario_fails(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways that lead to whatever attempt their subtask has."""
    act = Runtime.act

    def to_the_newest(runtime: Runtime, action: Action) -> None:
        if isinstance(action, SendEvent):
            attempt = runtime.state.subtasks[action.subtask].attempt
            if attempt is not None:
                action = action._replace(attempt_number=attempt.attempt_number)
        act(runtime, action)

    monkeypatch.setattr(Runtime, "act", to_the_newest)
    assert _is_noticed(seed, two_coordinators)


@pytest.mark.clause("F3")
def test_without_the_wait_for_acks_the_scenario_fails(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With overlapping checkpoints, a barrier overtakes what an older checkpoint holds."""

    def is_cut(state: JobState, pending: PendingCheckpoint) -> bool:
        return len(pending.cuts) == len(state.operators)

    monkeypatch.setattr(checkpoints, "_is_cut", is_cut)
    assert _is_noticed(seed, lambda each: two_coordinators(each, is_overlapping=True))


@pytest.mark.clause("G1")
def test_without_closing_until_the_ack_the_scenario_fails(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_always(value: Any, **changes: Any) -> Any:  # noqa: ANN401, any of the state's parts
        if len(changes.get("closed_by", ())) > len(getattr(value, "closed_by", ())):
            del changes["closed_by"]
        return evolve(value, **changes)

    monkeypatch.setattr("coordlog.projections.job.checkpoints.evolve", open_always)
    assert _is_noticed(seed, two_coordinators)
