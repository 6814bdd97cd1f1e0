"""The whole job on simulated time, log, network and Spark: one seed, one schedule. `make simulate` runs more."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from coordlog.api.coordinator import CheckpointResult
from coordlog.kernel.outputs import AnswerRequest, Step
from coordlog.log import append_protocol as protocol
from coordlog.log.interface import UnstoredRecord
from coordlog.projections.job import checkpoints as checkpoint_records
from coordlog.projections.job import skips
from coordlog.projections.job.state import GatewayState
from coordlog.projections.splits import fold as splits
from coordlog.runtime.requests import Requests
from coordlog.runtime.runtime import Runtime
from coordlog.runtime.turns import Turn
from coordlog.testing import replay
from simulation import job as simulation_job
from simulation.__main__ import main
from simulation.agenda import Weather
from simulation.driver import SimulatedDriver
from simulation.job import Book, Desk, JobSize, chain_of
from simulation.schedule import Simulation, SimulationError, simulate, weather_of
from tiers import in_parts

WHOLE = 280
"""Schedules that run to the job's end: 380 events on average."""
SHORT = 4_800
"""Schedules of 40 events, cut off there."""
PARTS = 4


@pytest.mark.slow
@pytest.mark.clause("K2")
@pytest.mark.clause("K4")
@pytest.mark.clause("L3")
@pytest.mark.clause("J1")
@pytest.mark.clause("J2")
@pytest.mark.clause("E7")
@in_parts(PARTS)
def test_whole_schedules_keep_every_invariant_and_reach_the_exact_end(
    part: int, seed: int, dose: int
) -> None:
    broken: set[str] = set()
    heard: set[str] = set()
    from_snapshots = 0
    count = WHOLE * dose // PARTS
    for number in range(count):
        outcome = simulate(seed + part * count + number)
        broken.update(outcome.faults)
        heard.update(outcome.heard)
        from_snapshots += outcome.from_snapshots
    assert from_snapshots > count // 10, "each is compared with a fold from the start"
    assert {"kill", "pause", "rival", "cut", "task kill", "twin", "stage abort"} <= broken
    assert {"answered", "refused", "restarting", "lost"} <= heard


@pytest.mark.slow
@pytest.mark.clause("J2")
def test_schedules_have_requests_that_fail_or_come_at_the_end() -> None:
    """Fixed seeds, for in random ones they are too rare."""
    heard: set[str] = set()
    for seed in range(500_020, 500_023):
        heard.update(simulate(seed).heard)
    assert {"failed", "over"} <= heard


@pytest.mark.slow
def test_schedules_have_other_parallelisms_and_skipped_splits() -> None:
    weather = Weather(kills=0.015, rescales=0.8, faults_until=300, interval_s=0.006)
    size = JobSize(parallelism=2, splits=4, rows=3, down=3, up=3, skips=2, bad=1)
    outcomes = [simulate(seed, weather=weather, size=size) for seed in range(12)]
    assert any(outcome.rescaled for outcome in outcomes), "by fewer subtasks, and by more"
    assert sum(outcome.skipped for outcome in outcomes) > 12


@pytest.mark.slow
@in_parts(PARTS)
def test_short_schedules_keep_every_invariant(part: int, seed: int, dose: int) -> None:
    count = SHORT * dose // PARTS
    for number in range(count):
        simulate(seed + part * count + number, is_short=True)


@pytest.mark.slow
def test_a_schedule_is_the_same_bit_for_bit_each_time() -> None:
    for seed in range(6):
        assert simulate(seed) == simulate(seed)
        assert simulate(seed, is_short=True) == simulate(seed, is_short=True)


@pytest.mark.slow
@pytest.mark.clause("K7")
def test_histories_of_random_schedules_are_replayed_record_for_record(seed: int, dose: int) -> None:
    """But those with failures of coordinators by chance, which a replay has not."""
    replayed = 0
    for number in range(30 * dose):
        weather = replace(weather_of(seed + number), coordinator_fails=0.0)
        schedule = Simulation(seed + number, weather=weather)
        schedule.run()
        book, desk = Book(chance=Random(0), is_cut_late=weather.is_cut_late), Desk()
        chain = chain_of(schedule.size, book, lambda desk=desk: desk)  # type: ignore[misc]
        replayed += replay(schedule.log, chain).turn_count
    assert replayed > 500


@pytest.mark.slow
def test_seeds_differ() -> None:
    assert len({simulate(seed).digest for seed in range(6)}) == 6


@pytest.mark.slow
def test_without_faults_one_driver_does_the_job() -> None:
    for seed in range(6):
        outcome = simulate(seed, weather=Weather())
        assert outcome.drivers == ("finished",)
        assert (outcome.faults, outcome.void_count) == ((), 0)
        assert "failed" not in outcome.heard


def test_a_failure_names_its_seed_and_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Simulation, "append", _acknowledged_too_early)
    error = _found(8, size=None, weather=STORM)
    again = f"make simulate ARGS='--seed {error.seed}'"
    assert str(error).endswith(f"to repeat: {again}")
    assert main(["--seed", "1", "--short"]) == 1
    assert "--seed 1 --short" in capsys.readouterr().out


# --- controls: with a fault put in on purpose, so many seeds are enough to find it ---

STORM = Weather(
    kills=0.01,
    pauses=0.01,
    rivals=0.02,
    cuts=0.03,
    append_fails=0.1,
    append_unknown=0.2,
    append_unheard=0.1,
    append_split=0.3,
    faults_until=200,
)
SHOWERS = Weather(
    kills=0.008,
    task_kills=0.01,
    wire_slow=0.05,
    interval_s=0.006,
    faults_until=500,
    is_cut_late=0.5,
)
"""Checkpoints complete, and are restored from while numbers are on their way."""
LONG = JobSize(parallelism=2, splits=3, rows=3, down=15, up=15)
TALK = JobSize(parallelism=2, splits=2, rows=2, down=5, up=5)


def _found(
    seeds: int, *, size: JobSize | None = TALK, weather: Weather | None = STORM
) -> SimulationError:
    """What the first of so many seeds finds."""
    for seed in range(seeds):
        try:
            simulate(seed, size=size, weather=weather)
        except SimulationError as error:
            return error
    pytest.fail(f"{seeds} seeds have found nothing")


_append: Callable[..., None] = Simulation.append


def _acknowledged_too_early(
    self: Simulation, driver: SimulatedDriver, records: Sequence[UnstoredRecord]
) -> None:
    """What is in flight is released before the log has it."""
    if driver.runtime is None:
        _append(self, driver, records)
        return
    first = self.log.high_watermark()
    driver.later((0.0, 0.0), lambda: driver.stored(range(first, first + len(records))))

    def land(record: UnstoredRecord) -> None:
        self.log.store([record])

    for record in records:
        self.agenda.later((0.01, 0.01), partial(land, record))


@pytest.mark.clause("K1")
def test_a_release_before_the_acknowledgement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "append", _acknowledged_too_early)
    assert "does not count" in _found(1).fault


@pytest.mark.clause("K2")
def test_a_driver_that_takes_any_epoch_like_its_own_for_its_own_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without looking whose `EPOCH_STARTED` counts, two drivers hold one epoch."""
    monkeypatch.setattr(protocol, "_is_of", lambda _unstored, _stored: True)
    weather = replace(STORM, rivals=0.2, faults_until=60)
    assert _found(60, weather=weather).fault


@pytest.mark.clause("K2")
def test_a_driver_that_is_not_fenced_by_what_stands_in_between_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unchecked(state: protocol.DriverState, offsets: Sequence[int]) -> protocol.DriverState:
        if state.goal is protocol._Goal.APPEND and not state.counted_at:
            return protocol._group_next(state, tuple(offsets))
        return acknowledged(state, offsets)

    acknowledged = protocol.acknowledged
    monkeypatch.setattr(protocol, "acknowledged", unchecked)
    assert "does not count" in _found(20).fault


@pytest.mark.slow
@pytest.mark.clause("D3")
def test_a_restore_that_skips_redelivery_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_records, "channel_state", lambda _state, _pending: ())
    assert "the coordinator heard" in _found(40, size=LONG, weather=SHOWERS).fault


@pytest.mark.slow
@pytest.mark.clause("G1")
def test_a_gateway_that_is_never_closed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event sent after the cut overtakes the barrier: after a restore it is sent again."""

    def opened(state: GatewayState, **changes: object) -> GatewayState:
        return evolve(state, **{**changes, **({"closed_by": ()} if "closed_by" in changes else {})})

    evolve: Callable[..., GatewayState] = vars(checkpoint_records)["evolve"]
    monkeypatch.setattr(checkpoint_records, "evolve", opened)
    assert _found(40, size=LONG, weather=SHOWERS).fault


ASKED = replace(TALK, orders=4)
ROWS = JobSize(parallelism=2, splits=4, rows=80, down=2, up=2)
RESCALED = replace(SHOWERS, kills=0.012, rescales=1.0)


@pytest.mark.clause("J1")
@pytest.mark.clause("K1")
def test_an_answer_before_its_record_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: Runtime, turn: Turn) -> None:
        early = [one for one in turn.effects if isinstance(one, AnswerRequest)]
        turn.effects = [one for one in turn.effects if one not in early]
        close(self, turn)
        for one in early:
            self._do(one, self.state)

    close: Callable[..., None] = Runtime._close_turn
    monkeypatch.setattr(Runtime, "_close_turn", closed)
    assert "does not count yet" in _found(3, size=ASKED).fault


@pytest.mark.clause("J1")
def test_a_driver_that_ends_without_a_word_to_who_has_asked_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Requests, "end", lambda _self: None)
    assert "left open" in _found(20, size=ASKED, weather=replace(STORM, rivals=0.05)).fault


@pytest.mark.clause("J1")
def test_a_request_without_an_answer_where_its_handler_raises_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unanswered(self: Runtime, _call: object, _what: str, _now_us: int) -> Step:
        return Step(state=self.state, records=())

    monkeypatch.setattr(Runtime, "_answer_failed", unanswered)
    weather = replace(STORM, coordinator_fails=0.3)
    fault = _found(10, size=ASKED, weather=weather).fault
    assert "has forgotten a request" in fault or "have no answer in their turn" in fault


@pytest.mark.slow
@pytest.mark.clause("J2")
def test_a_skip_that_a_reset_undoes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skips, "skip_again", lambda _state, _reset: ())
    size = JobSize(parallelism=2, splits=6, rows=4, down=2, up=2, skips=6)
    assert "which are skipped" in _found(40, size=size, weather=SHOWERS).fault


@pytest.mark.slow
@pytest.mark.clause("E7")
def test_states_of_subtasks_that_there_are_no_more_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own(was: int, _now: int, subtask: int) -> tuple[int, ...]:
        return (subtask,) if subtask < was else ()

    monkeypatch.setattr(checkpoint_records, "restoring_subtasks", own)
    assert _found(40, size=LONG, weather=RESCALED).fault


@pytest.mark.slow
@pytest.mark.clause("E7")
def test_a_split_of_a_subtask_that_there_is_no_more_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stays with the old subtask's number, and the one that reads it does not have it."""

    def rescaled(state: splits.SplitsState, parallelism: int) -> splits.SplitsState:
        return replace(rescale(state, parallelism), splits=state.splits)

    rescale: Callable[..., splits.SplitsState] = vars(splits)["_rescaled"]
    monkeypatch.setattr(splits, "_rescaled", rescaled)
    fault = _found(40, size=ROWS, weather=replace(RESCALED, kills=0.006)).fault
    assert "is with the reader of" in fault


@pytest.mark.slow
def test_a_coordinator_that_counts_wrong_after_a_failover_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation_job.Talker, "subtask_reset", lambda *_: None)
    assert _found(20).fault


@pytest.mark.slow
def test_a_coordinator_that_sends_between_its_state_and_its_cut_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut(self: simulation_job.Talker, result: CheckpointResult) -> None:
        sent = [max(0, one - 1) for one in self.sent]
        result.complete(json.dumps([sent, self.heard]).encode())

    monkeypatch.setattr(simulation_job.Talker, "_cut", cut)
    assert _found(40, size=LONG, weather=SHOWERS).fault


@pytest.mark.slow
def test_a_sink_that_publishes_under_another_name_each_time_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def settle(
        self: simulation_job.OutsideSink, intent: simulation_job.Published
    ) -> simulation_job.Published:
        book = self._book
        for rows in intent.rows:
            book.published[str(len(book.published))] = rows
        if book.chance.random() < 0.5:
            raise simulation_job.ScriptedError("after")
        return intent

    monkeypatch.setattr(simulation_job.OutsideSink, "settle", settle)
    assert "were published" in _found(5).fault
