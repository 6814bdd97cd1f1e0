"""Deterministic simulation of a whole job: one seed, one schedule, bit for bit (docs/simulation.md).

The kernel, the runtime, the coordinators, the log's protocol, the restore and the attempts are the real ones. Time,
log, network, Spark and chance are simulated. After every event the invariants are looked at; at the end the outcome is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from coordlog.errors import CoordlogError, OptionError, RestoreError
from coordlog.log.interface import UnstoredRecord
from coordlog.projections.job.state import JobState, Phase
from coordlog.projections.splits.fold import Assigned, Finished, Skipped, SplitsState
from coordlog.projections.tables.splits import splits
from coordlog.restore.rebuild import Rebuild, projection_of
from coordlog.schemas.builtin_types import SkipSplit
from coordlog.schemas.record import Kind
from coordlog.schemas.validity import counted_turns
from simulation.agenda import Agenda, Weather
from simulation.appends import Appends
from simulation.clients import Client, Counter
from simulation.driver import SimulatedDriver
from simulation.job import (
    SOURCE,
    Book,
    Desk,
    JobSize,
    Published,
    chain_of,
    lanes_of,
)
from simulation.log import Key, SimulatedLog
from simulation.orders import TALK, TILL, Order, order_problems
from simulation.tasks import Task, Wire

__all__ = ["Outcome", "Simulation", "SimulationError", "simulate", "size_of", "weather_of"]

_STUCK_EVENTS = 20_000
_AFTERMATH_EVENTS = 40
_SHORT_EVENTS = 40
_SHORT_SIZE = JobSize(parallelism=1, splits=1, rows=1, down=1, up=1)
_WRONG = 0.15
"""Of the orders, so many are wrong."""
_DRIVERS_MAX = 3
"""At once."""


class SimulationError(AssertionError):
    """A schedule in which something is not as it must be."""

    def __init__(self, seed: int, event_count: int, fault: str, *, is_short: bool = False) -> None:
        super().__init__(seed, event_count, fault)
        self.seed, self.event_count, self.fault = seed, event_count, fault
        self.is_short = is_short

    def __str__(self) -> str:
        more = " --short" if self.is_short else ""
        return (
            f"seed {self.seed}, event {self.event_count}: {self.fault}\n"
            f"to repeat: make simulate ARGS='--seed {self.seed}{more}'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one schedule came to."""

    seed: int
    event_count: int
    digest: str
    """Of all that is stored, void records included, and of when each event was."""
    drivers: tuple[str, ...]
    """How each ended, in the order in which they began."""
    faults: tuple[str, ...]
    """What was broken, in order."""
    record_count: int
    void_count: int
    checkpoint: int
    """The last that completed."""
    from_snapshots: int
    """Drivers that were restored from a snapshot, and not from the log's start."""
    heard: tuple[str, ...]
    """What came of each request, client by client."""
    rescaled: int
    """Resets to a checkpoint of another parallelism."""
    skipped: int
    """Splits that were skipped."""


def size_of(seed: int) -> JobSize:
    """The size of the job of this seed."""
    chance = Random(f"size {seed}")
    is_talking = chance.random() < 0.8
    most = chance.choice((2, 4, 10))
    size = JobSize(
        parallelism=chance.choice((1, 1, 2, 2, 3)),
        is_batch=chance.random() < 0.25,
        splits=chance.randint(1, 3),
        rows=chance.randint(1, 3),
        down=chance.randint(1, most) if is_talking else 0,
        up=chance.randint(1, most) if is_talking else 0,
        orders=chance.choice((0, 0, 1, 2, 4)),
        skips=chance.choice((0, 0, 0, 1)),
        bad=chance.choice((0, 0, 0, 1)),
    )
    if chance.random() < 0.7:
        return size
    # So many that an answer has several: in batch, whose ends of splits are one message then, more often.
    is_batch = chance.random() < 0.6
    if is_batch and chance.random() < 0.7:
        size = replace(size, down=0, up=0)
    return replace(size, is_batch=is_batch, together=True, splits=chance.randint(8, 30))


_RATES: tuple[tuple[str, float], ...] = (
    ("kills", 0.02),
    ("pauses", 0.02),
    ("rivals", 0.02),
    ("cuts", 0.03),
    ("task_kills", 0.03),
    ("twins", 0.02),
    ("stage_aborts", 0.01),
    ("rescales", 1.5),
    ("restores", 0.5),
    ("clock_jumps", 0.02),
    ("append_slow", 0.1),
    ("append_fails", 0.15),
    ("append_unknown", 0.2),
    ("append_unheard", 0.15),
    ("append_split", 0.3),
    ("sink_fails", 0.3),
    ("coordinator_fails", 0.04),
    ("wire_slow", 0.05),
)


def weather_of(seed: int) -> Weather:
    """The weather of this seed: some of the faults, each at a rate of its own."""
    chance = Random(f"weather {seed}")
    rates = {name: most * chance.random() for name, most in _RATES if chance.random() < 0.5}
    weather = replace(
        Weather(),
        **rates,  # type: ignore[arg-type]
        faults_until=chance.choice((60, 120, 250)),
        is_overlapping=chance.random() < 0.3,
        interval_s=chance.choice((0.006, 0.012, 0.025)),
        checkpoint_timeout_s=chance.choice((0.03, 0.25)),
        ack_timeout_s=chance.choice((0.1, 0.4)),
        snapshot_every=chance.choice((None, None, 1, 5, 20, 60)),
    )
    if weather.rescales and chance.random() < 0.5:
        # Drivers that die behind a checkpoint, which the next one's subtasks are restored from.
        weather = replace(weather, kills=0.015, faults_until=300, interval_s=0.006)
    if chance.random() < 0.25:
        weather = replace(weather, remembered_bytes_max=chance.choice((300, 1_000, 3_000)))
    if chance.randrange(3) < 2:
        return weather
    # No ack arrives within 0.03 s then, and no checkpoint would complete.
    return replace(weather, gathers_s=0.02, checkpoint_timeout_s=0.25)


def _short_size_of(seed: int) -> JobSize:
    return replace(_SHORT_SIZE, orders=1) if seed % 3 == 0 else _SHORT_SIZE


class Simulation:
    """One schedule. `run` once.

    Args:
        seed: Decides everything that the others do not.
        size: Of the job; None: the seed's.
        weather: None: the seed's.
        is_short: The smallest job, with faults from the first event to the last, cut off after so few events that
            most have no end: what is looked at then is the log as it stands.
    """

    def __init__(
        self,
        seed: int,
        *,
        size: JobSize | None = None,
        weather: Weather | None = None,
        is_short: bool = False,
    ) -> None:
        self.seed, self.is_short = seed, is_short
        self.size = size or (_short_size_of(seed) if is_short else size_of(seed))
        self.weather = weather or weather_of(seed)
        self._events_max = _SHORT_EVENTS if is_short else _STUCK_EVENTS
        self.chance = Random(seed)
        self.agenda = Agenda(self.chance)
        self.log = SimulatedLog()
        self.book = Book(
            chance=self.chance,
            sink_fails=self.weather.sink_fails,
            coordinator_fails=self.weather.coordinator_fails,
            is_cut_late=self.weather.is_cut_late,
            is_intended=self._is_intended,
        )
        self.wire, self.is_work_held = Wire(), False
        self._appends = Appends(self.agenda, self.weather, self.log, lambda: self.is_stormy)
        self._desk = Desk()
        self._desks: dict[int, Desk] = {}
        """By number of the task: the desks of attempts."""
        self.chain = chain_of(self.size, self.book, lambda: self._desk)
        self.payload_types, self.is_batch = self.chain.payload_types, self.size.is_batch
        self.parallelism = self.size.parallelism
        """Of the next driver."""
        self.drivers: list[SimulatedDriver] = []
        self.broken: list[str] = []
        self._task_count = 0
        self._is_starting = False
        self._looked_at: dict[int, JobState] = {}
        self._digest = hashlib.sha256()
        self._faults: list[tuple[str, float, Callable[[], None]]] = [
            (name, rate, act)
            for name, rate, act in (
                ("kill", self.weather.kills, self._kill_driver),
                ("pause", self.weather.pauses, self._pause_driver),
                ("rival", self.weather.rivals, self._start_rival),
                ("cut", self.weather.cuts, self._cut_connection),
                ("task kill", self.weather.task_kills, self._kill_task),
                ("twin", self.weather.twins, self._start_twin),
                ("stage abort", self.weather.stage_aborts, self._abort_stage),
                ("clock jump", self.weather.clock_jumps, self._jump_clock),
            )
            if rate > 0
        ]
        self._fault_rate = sum(rate for _, rate, _ in self._faults)
        taker = TALK if self.size.talks else TILL
        wishes: list[Order | SkipSplit] = [
            Order(number=number, is_wrong=self.agenda.happens(_WRONG))
            for number in range(self.size.orders)
        ]
        wishes += [SkipSplit(split_id=str(n), why="by chance") for n in range(self.size.skips)]
        self.clients = [Client(self, wish, taker) for wish in wishes]

    # --- the run ------------------------------------------------------------------------------------------------------
    def run(self) -> Outcome:
        """Run it to its end.

        Raises:
            SimulationError: Something is not as it must be.
        """
        try:
            self._run()
        except SimulationError:
            raise
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            raise SimulationError(
                self.seed, self.agenda.event_count, fault, is_short=self.is_short
            ) from error
        for stored in self.log.stored:
            self._digest.update(stored.header_bytes or b"")
            self._digest.update(stored.value or b"")
        self._digest.update(f"{self.agenda.event_count} {self.agenda.now_s!r}".encode())
        state = self._validate()
        return Outcome(
            seed=self.seed,
            event_count=self.agenda.event_count,
            digest=self._digest.hexdigest(),
            drivers=tuple(one.how for one in self.drivers),
            faults=tuple(self.broken),
            record_count=len(self.log.stored),
            void_count=self.log.void_count,
            checkpoint=state.last_checkpoint,
            from_snapshots=sum(one.started_at is not None for one in self.drivers),
            heard=tuple(one for client in self.clients for one in client.heard),
            rescaled=sum(
                one.kind is Kind.RESET_TO_CHECKPOINT and "parallelism_was" in one.attributes
                for one in self.log.counted
            ),
            skipped=len(state.skipped_splits),
        )

    def _run(self) -> None:
        self._start_driver()
        left, calm_from = _AFTERMATH_EVENTS, self.weather.faults_until
        while left and not self.agenda.is_empty:
            self.agenda.step()
            if self.agenda.event_count < calm_from:
                self._break()
            self._look()
            if self.log.is_finished:
                left -= 1
            elif not self._is_starting and self.drivers[-1].is_over and not self._alive():
                self._is_starting = True
                self.agenda.later(self.weather.begin_s, self._start_driver)
            if self.is_short and self.agenda.event_count >= self._events_max:
                return
            if self.agenda.event_count > self._events_max:
                states = [one.state for one in self.drivers if not one.is_over]
                self._fail(f"the job does not come to its end: {states}")

    def _fail(self, fault: str) -> None:
        raise SimulationError(self.seed, self.agenda.event_count, fault, is_short=self.is_short)

    def _start_driver(self) -> None:
        self._is_starting = False
        weather, chance, restore = self.weather, self.chance, None
        if self.agenda.happens(weather.rescales):
            self.parallelism = chance.choice((1, 2, 3))
        if self.is_stormy and self.agenda.happens(weather.restores):
            restore = chance.choice(("rollback", "resume"))
        driver = SimulatedDriver(self, len(self.drivers), self.parallelism, restore)
        self.drivers.append(driver)
        driver.start()

    def refused(self, driver: SimulatedDriver, error: CoordlogError, was: int) -> None:
        """See `DriverSurroundings`. The next one takes the job as it is."""
        is_allowed = isinstance(error, OptionError) and driver.restore == "resume"
        if isinstance(error, RestoreError):
            is_allowed = error.what == "parallelism" and driver.parallelism != was
        self.book.look(is_allowed, f"{driver.driver_id} was refused: {error}")
        self.parallelism = was

    def a_counter(self) -> Counter | None:
        """See `ClientSurroundings`."""
        alive = self._alive()
        return self.chance.choice(alive).counter if alive else None

    def next_task(self) -> int:
        """See `Surroundings`."""
        self._task_count += 1
        return self._task_count

    def open(self, task: Task) -> None:
        """See `Surroundings`."""
        self._desk = self._desks[task.number] = Desk()

    def has(self, key: Key) -> bool:
        """See `Surroundings`."""
        return self.log.has(key)

    def _is_intended(self, intent: Published) -> bool:
        return self.chain.payload_types.of(intent).encode(intent) in self.log.intents

    @property
    def is_stormy(self) -> bool:
        """See `Surroundings`."""
        return self.agenda.event_count < self.weather.faults_until

    # --- what breaks --------------------------------------------------------------------------------------------------
    def _break(self) -> None:
        if self._fault_rate == 0 or self.chance.random() >= self._fault_rate:
            return
        weights = [rate for _, rate, _ in self._faults]
        ((name, _, act),) = self.chance.choices(self._faults, weights)
        self.broken.append(name)
        act()

    def _alive(self) -> list[SimulatedDriver]:
        return [one for one in self.drivers if not one.is_over]

    def _kill_driver(self) -> None:
        if alive := self._alive():
            self.chance.choice(alive).end("killed")

    def _pause_driver(self) -> None:
        if alive := self._alive():
            self.chance.choice(alive).pause(self.weather.pause_s)

    def _start_rival(self) -> None:
        if len(self._alive()) < _DRIVERS_MAX and not self.log.is_finished:
            self._start_driver()

    def _cut_connection(self) -> None:
        tasks = [(one.cluster, task) for one in self._alive() for task in one.cluster.live()]
        if tasks:
            cluster, task = self.chance.choice(tasks)
            cluster.cut(task)

    def _kill_task(self) -> None:
        tasks = [(one.cluster, task) for one in self._alive() for task in one.cluster.live()]
        if tasks:
            cluster, task = self.chance.choice(tasks)
            cluster.kill(task)

    def _start_twin(self) -> None:
        clusters = [one.cluster for one in self._alive() if one.cluster.stage_run is not None]
        if clusters:
            cluster = self.chance.choice(clusters)
            cluster.begin(cluster.stage_run, self.chance.randrange(cluster.parallelism))

    def _abort_stage(self) -> None:
        clusters = [one.cluster for one in self._alive() if one.cluster.stage_run is not None]
        if clusters:
            cluster = self.chance.choice(clusters)
            assert cluster.stage_run is not None, "just looked at"
            cluster.end_stage(cluster.stage_run, "the stage was aborted by chance")

    def _jump_clock(self) -> None:
        if alive := self._alive():
            self.chance.choice(alive).clock_off_s += self.agenda.draw((-100.0, 100.0))

    def append(self, driver: SimulatedDriver, records: Sequence[UnstoredRecord]) -> None:
        """See `DriverSurroundings`."""
        self._appends.append(driver, records)

    # --- what must be so, after every event ---------------------------------------------------------------------------
    def _look(self) -> None:
        if self.book.faults:
            self._fail("; ".join(self.book.faults))
        for number, driver in enumerate(self.drivers):
            state = None if driver.is_over else driver.state
            if state is None or self._looked_at.get(number) is state:
                continue
            self._looked_at[number] = state
            if problem := gateway_problem(state) or split_problem(state, driver, self._desks):
                self._fail(f"{driver.driver_id}: {problem}")

    # --- at the end ---------------------------------------------------------------------------------------------------
    def _validate(self) -> JobState:
        fold = Rebuild(projection_of(self.chain), self.chain.payload_types)
        for stored in self.log.stored:
            fold.feed(stored)
        state = fold.state
        self._validate_counted()
        for problem in order_problems(self.log.counted, self.payload_types):
            self._fail(problem)
        if self.is_short and not self.log.is_finished:
            return state
        if state.phase is not Phase.FINISHED:
            self._fail(f"the job is {state.phase.value} at the end")
        for driver in self.drivers:
            runtime = driver.runtime
            is_last = driver.driver_id == state.driver_id and driver.how == "finished"
            # A turn behind the job's end may never have been appended.
            is_whole = runtime is not None and not runtime.turns
            if is_last and is_whole and driver.state != state:
                self._fail(f"the fold of the log is not the live state of {driver.driver_id}")
        if state.pending or state.intents or any(state.granted.values()) or state.live_count:
            self._fail(f"something is left: {state.pending} {state.intents} {state.granted}")
        self._validate_rows(state)
        if self.size.talks:
            self._validate_talk(state)
        return state

    def _validate_rows(self, state: JobState) -> None:
        """Each row is published once; of a split that was skipped the first ones, as many as the audit says."""
        rows = sorted(int(n) for one in self.book.published.values() for n in one.split())
        of_each = self.size.rows
        expected: list[int] = []
        audited: dict[str, int | None] = {}
        if state.skipped_splits:
            audited = {one.split_id: one.rows for one in splits(self.log.told)}
        for split in range(self.size.splits):
            skipped = state.skipped_splits.get((SOURCE, str(split)))
            if skipped is None and split >= self.size.splits - self.size.bad:
                self._fail(f"split {split} cannot be read, and is not skipped")
            count = of_each if skipped is None else audited[str(split)]
            if count is None:
                count = sum(n // of_each == split for n in rows)
            expected += range(split * of_each, split * of_each + count)
        if rows != expected:
            self._fail(f"the rows {rows} were published, not {expected}, each once")

    def _validate_counted(self) -> None:
        """What the book-keeper has let count, record by record, is what a reader of the whole log sees."""
        headers = [one.header for turn in counted_turns(self.log.stored) for one in turn.entries]
        counted = [one for one in headers if one is not None]
        epochs = [one.epoch for one in counted]
        if epochs != sorted(epochs):
            self._fail("a record of a loser counts")
        places = [(one.epoch, one.sequence) for one in counted if not one.is_epoch_started]
        if places != [(one.epoch, one.sequence) for one in self.log.counted]:
            self._fail("what counts has changed afterwards")

    def _validate_talk(self, state: JobState) -> None:
        lanes: list[tuple[int, list[int]]] = []
        for subtask, one in sorted(state.subtasks.items()):
            completion = one.completion
            if completion is None:
                self._fail(f"subtask {subtask} has not completed")
                continue
            for part in completion.states:
                if part.operator_id == TALK and part.state is not None:
                    lanes += lanes_of(part.state).items()
        whole = [self.size.down, self.size.up]
        if sorted(lanes) != [(lane, whole) for lane in range(self.size.parallelism)]:
            self._fail(f"the talking links ended with the lanes {sorted(lanes)}")


def gateway_problem(state: JobState) -> str | None:
    """A gateway is held by pending checkpoints only, and an event only by those that hold its gateway."""
    for key, gateway in sorted(state.gateways.items()):
        if any(one not in state.pending for one in gateway.closed_by):
            return f"gateway {key} is closed by {gateway.closed_by}, pending are {sorted(state.pending)}"
        for held in gateway.held:
            if not held.held_by or any(one not in gateway.closed_by for one in held.held_by):
                return f"gateway {key}, closed by {gateway.closed_by}, holds an event for {held.held_by}"
        subtask = state.subtasks[key[1]]
        if subtask.attempt is None or subtask.attempt.attempt_number != gateway.attempt_number:
            return f"gateway {key} leads to attempt {gateway.attempt_number}, which is not live"
    return None


def split_problem(
    state: JobState, driver: SimulatedDriver, desks: Mapping[int, Desk]
) -> str | None:
    """A split is with one live reader at most, and with that of the subtask that it is assigned to."""
    splits: SplitsState = state.projections[SOURCE]
    held: dict[int, int] = {}
    for task in driver.cluster.live():
        desk, number = desks.get(task.number), task.attempt_number
        reader = None if desk is None else desk.reader
        if reader is None or number is None or state.attempt(task.subtask, number) is None:
            continue
        for split, _ in reader.holds:
            other = held.setdefault(split, task.subtask)
            if other != task.subtask:
                return f"split {split} is with the readers of {other} and {task.subtask}"
            place = splits.splits[str(split)].place
            if isinstance(place, Skipped) and state.phase is Phase.FAILING:
                continue  # the attempt is not heard any more, and ends with the reset
            if not isinstance(place, Assigned | Finished) or place.subtask != task.subtask:
                return f"split {split} is with the reader of {task.subtask}, and {place}"
    return None


def simulate(
    seed: int,
    *,
    size: JobSize | None = None,
    weather: Weather | None = None,
    is_short: bool = False,
) -> Outcome:
    """One schedule, from its first driver to the job's end and a little beyond; see `Simulation`.

    Raises:
        SimulationError: Something is not as it must be; it names the seed, and the command that repeats it.
    """
    return Simulation(seed, size=size, weather=weather, is_short=is_short).run()
