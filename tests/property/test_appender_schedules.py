"""Two or three drivers on one log, paused, killed and lied to at random, one instruction at a time.

The code under test is `protocol`, driven as `appender` drives it, with a place for chance between
any two steps: there another driver goes on, a record that was given up for lost arrives, or a
driver is killed. What must hold is checked after every step. A failure prints its seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from coordlog.history import History
from coordlog.log import append_protocol as protocol
from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.log.memory import MemoryLog
from histories.log_records import epoch_started, place_of, turns

RUNS = 400
STEPS_MAX = 2_000


@dataclass
class World:
    """One log, and what its drivers have been told counts."""

    chance: random.Random
    log: MemoryLog = field(default_factory=MemoryLog)
    on_the_way: list[UnstoredRecord] = field(default_factory=list)
    trouble: int = 0
    """How many more times an outcome may be unknown."""
    confirmed: list[tuple[str, int, int]] = field(default_factory=list)
    """Content, sequence and offset of what a driver may have released."""
    made: dict[str, list[str]] = field(default_factory=dict)

    def check(self) -> None:
        """Everything that must hold at any time."""
        counts: list[tuple[str, int, int]] = []
        for turn in History(self.log).turns():
            entries = [(one, one.header) for one in turn.entries]
            for record, header in entries:
                assert header is not None
                assert record.value is not None
                if not header.is_epoch_started:
                    counts.append((record.value.decode(), header.sequence, record.offset))
            assert entries[-1][1] is not None
            assert entries[-1][1].turn_remaining == 0, "a part of a turn counts"
        contents = [content for content, _, _ in counts]
        assert len(set(contents)) == len(contents), "a record counts twice"
        assert [sequence for _, sequence, _ in counts] == list(range(len(counts)))
        for name, made in self.made.items():
            of_it = [content for content in contents if content.startswith(name)]
            assert of_it == made[: len(of_it)], f"of {name} not what it made, in order"
        missing = set(self.confirmed) - set(counts)
        assert not missing, f"confirmed, and does not count: {sorted(missing)}"


def driver(world: World, name: str, sizes: list[int]) -> Iterator[None]:
    """One driver's life; each `yield` is a place where it may be paused or killed."""
    chance = world.chance
    place = place_of(world.log)
    yield
    state = protocol.take_over_begun(place, epoch_started(place.counting.epoch + 1, name))
    world.made[name] = []
    left = list(sizes)
    while True:
        action = protocol.next_action(state)
        match action:
            case protocol.Append(records):
                offsets: list[int] | None = []
                # Records arrive one by one, and any may not: it is then on its way, and so may be
                # all after it.
                for record in records:
                    if world.trouble and chance.random() < 0.15:
                        world.trouble -= 1
                        offsets = None
                    if offsets is None and chance.random() < 0.7:
                        world.on_the_way.append(record)
                        continue
                    world.log.store(record)
                    if offsets is not None:
                        offsets.append(world.log.high_watermark() - 1)
                    yield
                if world.trouble and chance.random() < 0.1:
                    world.trouble -= 1
                    offsets = None  # all arrived, and the acknowledgement is lost
                state = (
                    protocol.outcome_unknown(state)
                    if offsets is None
                    else protocol.acknowledged(state, offsets)
                )
            case protocol.ReadHighWatermark():
                state = protocol.high_watermark(state, world.log.high_watermark())
            case protocol.Read(from_offset, to_offset):
                for stored in world.log.read(from_offset, to_offset):
                    state = protocol.record_read(state, stored)
                    yield
                state = protocol.reading_ended(state)
            case protocol.Rest():
                for record, offset in zip(state.group, state.counted_at, strict=False):
                    world.confirmed.append(_confirmed(record, offset))
                if not left:
                    return
                sizes_now, left = left[:2], left[2:]
                first = state.place.counting.next_sequence
                group = turns(sizes_now, state.epoch, first, name)
                world.made[name] += [record.value.decode() for record in group]
                state = protocol.append_begun(state, group)
            case protocol.Fenced(in_force):
                assert not _is_of(in_force, name, world), f"{name} was fenced by itself"
                return
            case protocol.Lost():
                pytest.fail("nothing was lost")
        yield


def _confirmed(record: UnstoredRecord, offset: int) -> tuple[str, int, int]:
    header = StoredRecord(
        offset=offset, key=b"", value=b"", header_bytes=record.header, timestamp_ms=0
    ).header
    assert header is not None
    return record.value.decode(), header.sequence, offset


def _is_of(in_force: StoredRecord, name: str, world: World) -> bool:
    assert in_force.header is not None
    ours = epoch_started(in_force.header.epoch, name)
    # In force now: a driver may be told of an epoch that another has replaced since.
    return in_force.value == ours.value


def run(seed: int) -> None:
    """One world, to its end."""
    chance = random.Random(seed)
    world = World(chance, trouble=chance.randrange(5))
    names = "abc"[: chance.choice((2, 2, 3))]
    waiting = {
        name: driver(world, name, [chance.randrange(1, 4) for _ in range(chance.randrange(4))])
        for name in names
    }
    for _ in range(STEPS_MAX):
        if world.on_the_way and chance.random() < 0.1:
            number = chance.randrange(len(world.on_the_way))
            world.log.store(world.on_the_way.pop(number))
        elif not waiting:
            break
        else:
            name = chance.choice(sorted(waiting))
            if chance.random() < 0.005:
                del waiting[name]  # killed
            elif next(waiting[name], "ended") == "ended":
                del waiting[name]
        world.check()
    assert not waiting, "it does not come to an end"
    for record in world.on_the_way:
        world.log.store(record)
    world.check()
    successor = driver(world, "z", [1])
    for _ in successor:
        world.check()
    assert any(content.startswith("z") for content, _, _ in world.confirmed), "nobody can go on"
    assert not [one for one in world.confirmed if one[0].startswith("z")][1:]


@pytest.mark.slow
def test_random_schedules_of_drivers_keep_what_they_promise(seed: int, dose: int) -> None:
    for number in range(seed, seed + RUNS * dose):
        try:
            run(number)
        except BaseException:
            print(f"in run {number}: run({number}) repeats it alone")
            raise
