"""One scripted job on simulated time: the drivers, tasks and log of the simulation; a test says what breaks.

The random schedules (`simulation.schedule`) draw job and faults from the seed, and look at every state. Here a
scenario has a chain of its own and scripted failures, and its coordinators and links check what reaches them.
"""

from __future__ import annotations

import random
import threading

from coordlog.api.chain import Chain
from coordlog.errors import CoordlogError
from coordlog.projections.job.state import JobState
from coordlog.restore.rebuild import Rebuild, projection_of
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.record import Kind, Record
from simulation.agenda import Agenda, Weather
from simulation.appends import Appends
from simulation.clients import Counter
from simulation.driver import SimulatedDriver
from simulation.log import Key, SimulatedLog
from simulation.talk import Book, Link, NotExactlyOnceError
from simulation.tasks import Task, Wire

__all__ = ["CLEAR", "World"]

CLEAR = Weather(
    wire_s=(0.0, 0.002),
    store_s=(0.0, 0.005),
    append_s=(0.0001, 0.0015),
    step_s=(0.001, 0.003),
    notice_s=(0.0, 0.001),
    interval_s=0.01,
    checkpoint_timeout_s=5.0,
    ack_timeout_s=10.0,
)
"""Nothing breaks by chance; a checkpoint or an ack takes its time."""
_LIMIT_S = 120.0
"""A run that takes longer is stuck."""


class World:
    """One run, from its first driver to the job's end. `run` does all of it."""

    def __init__(
        self,
        seed: int,
        *,
        weather: Weather,
        book: Book,
        parallelism: int = 1,
        log: SimulatedLog | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.weather, self.book, self.parallelism = weather, book, parallelism
        self.agenda = Agenda(self.chance)
        self.wire = Wire()
        self.log = SimulatedLog() if log is None else log
        self.append = Appends(self.agenda, weather, self.log, lambda: True).append
        self.chain: Chain
        self.driver: SimulatedDriver
        self.links: dict[tuple[int, int], dict[str, Link]] = {}
        """The links of each attempt, by subtask and attempt number."""
        self.opened: dict[str, Link] = {}
        """Those of the attempt whose links are being made."""
        self.is_batch, self.is_stormy = False, True
        self._driver_count = self._task_count = 0
        self._unfenced = 0
        """Killed drivers less those that have fenced another since."""

    def run(
        self, chain: Chain, *, losses: int = 0, crashes: int = 0, horizon_s: float = 1.0
    ) -> None:
        """Run the job to its end; so many connections break, and drivers die, within the horizon."""
        self.chain = chain
        self._start_driver()
        began_s = self.agenda.now_s
        for count, act in ((losses, self._lose), (crashes, self._crash)):
            for _ in range(count):
                self.agenda.later((0.0, horizon_s), act)
        while self.driver.how != "finished":
            if self.driver.is_over:
                self._follow()
            self.agenda.step()
            while self.book.outside:
                thread = threading.Thread(target=self.book.outside.pop(0))
                thread.start()
                thread.join()
            if self.book.faults:
                raise NotExactlyOnceError(*self.book.faults)
            assert self.agenda.now_s - began_s < _LIMIT_S, f"stuck: {self.driver.state}"
        assert self._folded() == self.state, "the fold of the log is the live state"

    @property
    def state(self) -> JobState:
        """The job's, as the newest driver has it."""
        assert self.driver.state is not None, "restored"
        return self.driver.state

    def history(self, *kinds: Kind) -> list[Record]:
        """The records of these kinds that count."""
        return [record for record in self.log.told if record.kind in kinds]

    def _folded(self) -> JobState:
        fold = Rebuild(projection_of(self.chain), self.chain.payload_types)
        for stored in self.log.stored:
            fold.feed(stored)
        return fold.state

    # --- what breaks --------------------------------------------------------------------------------------------------
    def _start_driver(self) -> None:
        self.driver = SimulatedDriver(self, self._driver_count, self.parallelism)
        self._driver_count += 1
        self.driver.start()

    def _follow(self) -> None:
        """A late `EPOCH_STARTED` of a killed driver fences its successor, at most; one more takes over from that."""
        assert (self.driver.how, self._unfenced > 0) == ("fenced", True), self.driver.how
        self._unfenced -= 1
        self._start_driver()

    def _crash(self) -> None:
        self.driver.end("killed")
        self._unfenced += 1
        self.book.parked.clear()
        self.book.outside.clear()
        self._start_driver()

    def _lose(self) -> None:
        working = [task for task in self.driver.cluster.live() if task.runner is not None]
        if working:
            self.driver.cluster.cut(self.chance.choice(working))

    # --- what drivers and tasks share ---------------------------------------------------------------------------------
    @property
    def payload_types(self) -> PayloadTypes:
        """See `ClientSurroundings`."""
        return self.chain.payload_types

    @property
    def is_work_held(self) -> bool:
        """See `DriverSurroundings`."""
        return bool(self.book.parked)

    def a_counter(self) -> Counter | None:
        """See `ClientSurroundings`: there are no clients."""
        return None

    def refused(self, driver: SimulatedDriver, error: CoordlogError, was: int) -> None:
        """See `DriverSurroundings`: every driver takes the job as it is."""
        raise error

    def next_task(self) -> int:
        """See `Surroundings`."""
        self._task_count += 1
        return self._task_count

    def has(self, key: Key) -> bool:
        """See `Surroundings`."""
        return self.log.has(key)

    def open(self, task: Task) -> None:
        """See `Surroundings`."""
        assert task.attempt_number is not None, "accepted"
        self.opened = self.links[task.subtask, task.attempt_number] = {}
