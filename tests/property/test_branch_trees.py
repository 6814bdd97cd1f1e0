"""Random trees of branches: a job goes back and on, here and there, keeps checkpoints and dies at any of its commits.

What stands at each destination is counted by hand: no row twice, and none missing of the branch that the job is on. A
model of the tree that knows nothing of the state says which starts must be refused, and which must not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from coordlog.api.chain import Chain
from coordlog.errors import RestoreError
from coordlog.limits import SAVEPOINTS_MAX
from coordlog.offline.epoch import append_fact, read_records
from coordlog.projections.inspection.verify import verify
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import ReleaseSavepoint, SavepointTaken, TakeSavepoint
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import FakeSink, NotingProvider, chain_of, prefix_of

pytestmark = [pytest.mark.clause("E5"), pytest.mark.clause("E6"), pytest.mark.clause("H1")]

PLACES = ("a", "b", "c")


@dataclass
class Made:
    """A checkpoint that has completed."""

    parent: int
    first_row: int
    end_row: int
    place: str
    is_committed: bool


@dataclass
class World:
    """One job and its places; `made` and `last` are the model."""

    seed: int
    chance: random.Random = field(init=False)
    sinks: dict[str, FakeSink] = field(default_factory=lambda: {one: FakeSink() for one in PLACES})
    made: dict[int, Made] = field(default_factory=dict)
    last: int = -1
    place: str = "a"
    job: HandDrivenJob = field(init=False)
    attempt: FakeAttempt = field(init=False)
    is_open: bool = False
    """Whether the last driver died with an intent that has no outcome."""
    refused: int = 0
    went_back: int = 0
    set_aside: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.every = self.chance.choice((None, 4, 9))
        self.job = HandDrivenJob(self.chain("a"), options=RuntimeOptions(snapshot_every=self.every))
        self.attempt = self.job.register(0)

    def chain(self, place: str) -> Chain:
        provider = NotingProvider(sink=self.sinks[place])
        provider.destination = place
        return chain_of(provider)

    # --- the model ----------------------------------------------------------------------------------------------------
    def way_to(self, number: int) -> list[int]:
        way = []
        while number != -1:
            way.append(number)
            number = self.made[number].parent
        return way

    def is_right(self, place: str, number: int) -> bool:
        """Whether going on from there, at that place, doubles nothing and loses nothing."""
        way = set(self.way_to(number))
        there = {n for n, one in self.made.items() if one.is_committed and one.place == place}
        owed = {self.made[n].place for n in way if not self.made[n].is_committed}
        if self.is_open:
            owed.add(self.place)
        return there <= way and owed <= {place}

    def settle(self) -> None:
        """A driver that runs has committed all that its branch owes."""
        self.is_open = False
        for number in self.way_to(self.last):
            self.made[number].is_committed = True

    # --- what is done -------------------------------------------------------------------------------------------------
    def checkpoint(self, dies_behind: Kind | None = None) -> None:
        """One more, and its commit; or death with the turn that has this record as the last."""
        first = self.made[self.last].end_row if self.last != -1 else 0
        end = first + self.chance.randint(1, 3)
        number = self.job.trigger()
        assert number is not None
        rows = [("source", b"%d.%d" % (number, row)) for row in range(first, end)]
        before = list(self.sinks[self.place].settled)
        self.attempt.ack_checkpoint(number, states={"source": b"%d" % end}, committables=rows)
        is_intended = dies_behind is not Kind.CHECKPOINT_COMPLETED
        self.made[number] = Made(self.last, first, end, self.place, is_intended)
        self.last = number
        if dies_behind is not None:
            self.is_open = is_intended
            if not is_intended or self.chance.random() < 0.5:
                self.sinks[self.place].settled[:] = before
            self.die_behind(dies_behind, number)

    def die_behind(self, kind: Kind, number: int) -> None:
        self.job.crash()
        log, end = self.job.log, 0
        for one in log.read(0, log.high_watermark()):
            record = one.record()
            if record.kind is kind and record.checkpoint_id == number:
                end = one.offset + 1 + record.turn_remaining
        self.job.log = prefix_of(log, end)

    def keep(self) -> None:
        """By the driver, or by command where it is dead."""
        log = self.job.log
        if not self.job.is_crashed:
            state = self.job.runtime.state
            if state.completed and len(state.savepoints) < SAVEPOINTS_MAX:
                number = self.chance.choice(sorted(state.completed))
                self.job.ask("", TakeSavepoint(name=f"n{number}", checkpoint=number)).answer()
            return
        made = read_records(log)
        fact = SavepointTaken(name=f"n{self.last}", checkpoint=self.last)
        append_fact(log, made, fact, command="checkpoint", check=lambda _state: None, why="a test")

    def let_go(self) -> None:
        names = sorted(self.job.runtime.state.savepoints)
        if names and not self.job.is_crashed:
            self.job.ask("", ReleaseSavepoint(name=self.chance.choice(names))).answer()

    def start(self) -> None:
        """The next driver, anywhere, from anywhere."""
        if not self.job.is_crashed:
            self.job.crash()
        state = read_records(self.job.log).state
        place = self.chance.choice((self.place, *PLACES))
        number = self.chance.choice((None, *sorted(state.completed)))
        is_right = self.is_right(place, self.last if number is None else number)
        log, end = self.job.log, self.job.log.high_watermark()
        try:
            job = HandDrivenJob(
                self.chain(place),
                log=log,
                from_checkpoint=number,
                options=RuntimeOptions(snapshot_every=self.every),
            )
        except RestoreError:
            assert not is_right, f"refused at {place} from {number}"
            assert log.high_watermark() == end
            self.refused += 1
            self.start()
            return
        assert is_right, f"taken at {place} from {number}"
        self.went_back += number not in (None, self.last)
        self.set_aside += number is not None and any(
            n in state.set_aside for n in self.way_to(number)
        )
        self.job, self.place = job, place
        self.last = self.last if number is None else number
        self.settle()
        self.attempt = job.register(0)
        states = [one.state for one in self.attempt.accepted.states]
        assert states == ([b"%d" % self.made[self.last].end_row] if self.last != -1 else [])

    def check(self) -> None:
        for place, sink in self.sinks.items():
            names = [name for settled in sink.settled for name in settled]
            rows = sorted(int(name.partition(".")[2]) for name in names)
            assert len(set(names)) == len(names), f"a name twice at {place}"
            assert all(a < b for a, b in pairwise(rows)), f"a row twice at {place}: {rows}"
        there = {name for s in self.sinks.values() for settled in s.settled for name in settled}
        for number in self.way_to(self.last):
            one = self.made[number]
            if one.is_committed and not self.is_open:
                own = {f"{number}.{row}" for row in range(one.first_row, one.end_row)}
                assert own <= there, f"rows of checkpoint {number} are missing"


def lived(seed: int, steps: int) -> World:
    world = World(seed)
    for _ in range(steps):
        match world.chance.randrange(9):
            case 0 | 1 | 2:
                world.checkpoint()
            case 3:
                world.checkpoint(Kind.CHECKPOINT_COMPLETED)
            case 4:
                world.checkpoint(Kind.COMMIT_INTENT)
            case 5:
                world.keep()
            case 6:
                world.let_go()
            case _:
                world.start()
        world.check()
        if world.job.is_crashed:
            if world.chance.random() < 0.9:
                world.keep()
            world.start()
            world.check()
    return world


@pytest.mark.slow
def test_each_row_is_committed_once_whatever_the_branches() -> None:
    refused = went_back = kept = 0
    for seed in range(16):
        world = lived(seed, 25)
        refused, went_back = refused + world.refused, went_back + world.went_back
        kept += world.set_aside
        log = world.job.log
        found = verify(list(log.read(0, log.high_watermark()))).faults
        # Each death leaves a prefix, which is another log.
        assert [one for one in found if "it was written to the log of" not in one.what] == []
    assert refused > 50, "some starts are refused"
    assert went_back > 20, "and some go back"
    assert kept > 3, "to what had been set aside"
