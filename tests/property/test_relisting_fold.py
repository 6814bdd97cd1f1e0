"""The fold of a listed source on random histories: no split is forgotten, each is in one place, a snapshot equals it.

Listings change from one to the next, splits are withdrawn, skipped, assigned and read, attempts fail, checkpoints
complete, read splits are forgotten and found again, and the job goes back to a checkpoint, also of another branch, or
to its start. A table by hand says which splits are known and wait.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from coordlog.projections.snapshot.splits_codec import LISTED_SPLITS, SplitsCodec
from coordlog.projections.splits.fold import (
    Assigned,
    Finished,
    Skipped,
    SplitsState,
    WithEnumerator,
)
from coordlog.projections.splits.table import PAGE_SPLITS
from coordlog.schemas.builtin_types import SplitFinished, SplitSkipped
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record
from coordlog.schemas.source_types import (
    AddSplits,
    KnownSplitsForgotten,
    ListingStarted,
    Split,
    SplitsDiscovered,
    SplitsWithdrawn,
)


class Source:
    """A source's fold, driven by hand, and what must be known of it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.state: SplitsState = LISTED_SPLITS.initial
        self.sequence = 0
        self.event_count = 0
        self.checkpoints: dict[int, SplitsState] = {}
        self.parents: dict[int, int] = {}
        self.last = NO_CHECKPOINT
        self.next_checkpoint = 1
        self.barrier = NO_CHECKPOINT
        self.known: dict[str, int] = {}
        """Known splits, each with the sequence of its discovery."""
        self.known_at: dict[int, dict[str, int]] = {NO_CHECKPOINT: {}}
        self.forgotten: set[tuple[str, int]] = set()
        """Forgotten splits, each with the sequence of its discovery."""
        self.skips: set[str] = set()

    def apply(self, kind: Kind, value: Payload | None = None, **said: int) -> None:
        self.sequence += 1
        record = Record(
            epoch=0,
            driver_id="d",
            sequence=self.sequence,
            kind=kind,
            timestamp_us=0,
            job_id="j",
            operator_id="source",
            **said,  # type: ignore[arg-type]  # the numbers of a record
        )
        self.state = LISTED_SPLITS.apply(self.state, record, value)

    def at(self, *kinds: type) -> list[str]:
        return [name for name in self.state.splits if isinstance(self._place(name), kinds)]

    def _place(self, name: str) -> object:
        return self.state.splits.place(name)

    # --- what happens ---
    def list_again(self) -> None:
        """Some of the source's files, a few changed; those that wait and are missing are withdrawn, now and then."""
        self.apply(Kind.FACT, ListingStarted())
        world = [f"s{n:03}" for n in range(self.chance.choice((3, 12, PAGE_SPLITS + 20)))]
        listed = [one for one in world if self.chance.random() < 0.9]
        missing = [one for one in self.at(WithEnumerator) if one not in listed]
        if missing:
            gone = self.chance.sample(missing, self.chance.randrange(len(missing) + 1))
            self.apply(Kind.FACT, SplitsWithdrawn(split_ids=gone, why="left out"))
            for one in gone:
                del self.known[one]
        self.discover(listed)

    def discover(self, names: Iterable[str]) -> None:
        splits = [Split(split_id=one, content=bytes([self.chance.randrange(3)])) for one in names]
        waiting = set(self.at(WithEnumerator))
        self.apply(Kind.FACT, SplitsDiscovered(splits=splits, is_complete=False))
        for one in splits:
            if one.split_id in waiting:
                assert self.state.splits[one.split_id].split == one, "read as it was found last"
            self.known.setdefault(one.split_id, self.sequence)

    def assign(self) -> None:
        free = self.state.unassigned()
        some = self.chance.sample(free, min(len(free), self.chance.choice((1, 1, 3, 40))))
        if some:
            self.assign_these(some)

    def assign_these(self, names: Iterable[str]) -> None:
        value = AddSplits(splits=[self.state.splits[name].split for name in names])
        self.apply(Kind.EVENT_TO_SUBTASK, value, subtask=0, attempt_number=0)

    def read(self) -> None:
        held = self.at(Assigned)
        if held:
            name = self.chance.choice(held)
            value = SplitFinished(split_id=name, rows=1, bytes_read=1, committables=[])
            self.apply(
                Kind.SPLIT_FINISHED,
                value,
                subtask=0,
                attempt_number=0,
                last_barrier=self.barrier,
            )

    def skip(self) -> None:
        """What was read to its end cannot be skipped."""
        names = self.at(WithEnumerator, Assigned, Skipped)
        if names:
            name = self.chance.choice(names)
            self.skips.add(name)
            self.apply(Kind.FACT, SplitSkipped(split_id=name))

    def checkpoint(self) -> None:
        number, self.next_checkpoint = self.next_checkpoint, self.next_checkpoint + 1
        self.apply(Kind.COORDINATOR_CHECKPOINTED, checkpoint_id=number)
        self.checkpoints[number], self.known_at[number] = self.state, dict(self.known)
        self.barrier = number
        if self.chance.random() < 0.7:
            self.apply(Kind.CHECKPOINT_COMPLETED, checkpoint_id=number)
            self.parents[number], self.last = self.last, number
        else:
            self.apply(Kind.CHECKPOINT_ABORTED, checkpoint_id=number)
            del self.checkpoints[number]

    def forget(self) -> None:
        """Finished splits of the last checkpoint, as if their files were too old, or archived."""
        places = ((name, self._place(name)) for name in self.at(Finished))
        safe = [
            name for name, place in places if isinstance(place, Finished) and place.sequence < 0
        ]
        gone = self.chance.sample(safe, self.chance.randrange(len(safe) + 1))
        if gone:
            self.apply(Kind.FACT, KnownSplitsForgotten(split_ids=gone, why="too old"))
            self.forgotten |= {(name, self.known.pop(name)) for name in gone}

    def fail(self) -> None:
        self.apply(Kind.SUBTASK_RESET, subtask=0, checkpoint_id=self.last)
        self.barrier = self.last

    def way(self) -> set[int]:
        """The last checkpoint and its ancestors."""
        way, number = {NO_CHECKPOINT}, self.last
        while number != NO_CHECKPOINT:
            way.add(number)
            number = self.parents[number]
        return way

    def go_back(self) -> None:
        choices = [NO_CHECKPOINT, *self.checkpoints]
        number = self.chance.choice([self.last, self.chance.choice(choices)])
        is_on_the_way = number in self.way()
        self.last = self.barrier = number
        initial = LISTED_SPLITS.initial
        restored = self.checkpoints.get(self.last, initial)
        after = LISTED_SPLITS.after_reset if is_on_the_way else LISTED_SPLITS.after_branch
        assert after is not None
        before, self.state = self.state, after(self.state, restored)
        assert set(before.splits) <= set(self.state.splits), "what was found stays known"
        # What was withdrawn since is known again, as the checkpoint knows it: the next listing says.
        then = {
            name: found
            for name, found in self.known_at[self.last].items()
            if not is_on_the_way
            or (name, found) not in self.forgotten
            or not isinstance(restored.splits.place(name), (Assigned, Finished))
        }
        fresh = {name: found for name, found in self.known.items() if name not in then}
        assert set(fresh) <= set(self.at(WithEnumerator, Skipped)), "found after the checkpoint"
        self.known = then | fresh
        self.forgotten.difference_update(self.known.items())
        self.apply(Kind.RESET_TO_CHECKPOINT, checkpoint_id=self.last)
        for name in sorted(self.skips):
            self.apply(Kind.FACT, SplitSkipped(split_id=name))
        kept = {self.last, *sorted(self.checkpoints)[-3:]}
        self.checkpoints = {n: one for n, one in self.checkpoints.items() if n in kept}
        self.list_again()

    # --- what must hold ---
    def check(self) -> None:
        state = self.state
        assert set(state.splits) == set(self.known)
        free = [name for name in state.splits if isinstance(self._place(name), WithEnumerator)]
        assert list(state.unassigned()) == free
        assert state.waiting_count == len(free)
        assert not self.skips & set(free), "a split that is skipped never waits"
        over = (*self.at(Finished), *self.at(Skipped), *self.at(Assigned), *free)
        assert len(over) == len(state.splits)
        for name in state.splits:
            assert state.splits.name_at(state.splits.ordinal(name)) == name
        codec = SplitsCodec()
        writer = codec.writer()
        states = [state, *self.checkpoints.values()]
        own = [writer.own(one) for one in states]
        reader = codec.reader(writer.shared())
        assert [reader.state(one) for one in own] == states


ACTIONS = {
    "list_again": 2,
    "assign": 6,
    "read": 6,
    "skip": 1,
    "checkpoint": 3,
    "forget": 2,
    "fail": 1,
    "go_back": 1,
}


def run(seed: int, steps: int) -> Source:
    chance = random.Random(seed)
    source = Source(chance)
    done: list[str] = []
    try:
        source.list_again()
        for _ in range(steps):
            name = chance.choices(list(ACTIONS), list(ACTIONS.values()))[0]
            done.append(name)
            getattr(source, name)()
            source.check()
    except BaseException:
        print(f"seed {seed}: {' '.join(done)}")
        raise
    return source


@pytest.mark.slow
@pytest.mark.clause("L6")
@pytest.mark.clause("L3")
@pytest.mark.clause("K3")
def test_no_split_is_forgotten_on_any_history_of_listings_and_resets(seed: int, dose: int) -> None:
    chance = random.Random(seed)
    for _ in range(4 * dose):
        run(chance.randrange(2**32), steps=chance.choice((15, 40, 80)))


@pytest.mark.clause("L6")
def test_a_forgotten_split_is_new_also_if_others_before_it_were_withdrawn() -> None:
    """Its name stands further in front then, but it is no split of the checkpoint to which the job goes back."""
    source = Source(random.Random(0))
    source.discover(["1", "2", "a"])
    source.assign_these(["a"])
    source.read()
    while source.last == NO_CHECKPOINT:
        source.checkpoint()
    source.apply(Kind.FACT, SplitsWithdrawn(split_ids=["1", "2"], why="left out"))
    source.apply(Kind.FACT, KnownSplitsForgotten(split_ids=["a"], why="too old"))
    source.discover(["a"])

    assert LISTED_SPLITS.after_reset is not None
    restored = LISTED_SPLITS.after_reset(source.state, source.checkpoints[source.last])
    assert restored.unassigned() == ("1", "2", "a")
