"""The log's protocol as a world: the real `coordlog.log.append_protocol` and `coordlog.schemas.validity`.

One partition and a few drivers, each started once, each with turns to append. Between any two
things that a driver does it may be paused for as long as we like, or killed. Records that are on
their way reach the log one at a time. At any time the outcome of an append may become unknown; what
has not arrived then may arrive at any later time, in part, in any order, or never.

Looked at in every state:

- *once*: nothing counts twice, and of each driver counts what it made, in order, without a hole;
- *whole*: of no turn a part counts;
- *kept*: what a driver has released counts, where it was told, and does so in every later state;
- *no self*: a driver ends as fenced only where another's epoch came into force;
- *go on*: a new driver can take over and append, and those that live come to their end.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

from coordlog.log import append_protocol as protocol
from coordlog.log.append_protocol import DriverState, Place
from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.schemas import validity as counting
from coordlog.schemas.header import Header, encode_header
from coordlog.schemas.validity import NOTHING_COUNTED, Counting, Verdict
from exhaustive.search import Move

__all__ = ["ProtocolWorld"]

_ENDED: Final = ("done", "fenced", "dead")


class Content(NamedTuple):
    """A record, small: who made it, and its place there. An `EPOCH_STARTED` has number -1."""

    driver: int
    number: int
    epoch: int
    sequence: int
    remaining: int

    def __str__(self) -> str:
        """For traces."""
        if self.number < 0:
            return f"E{self.epoch} of {self.driver}"
        return f"{self.driver}.{self.number} (epoch {self.epoch}, sequence {self.sequence})"


@cache
def code(content: Content) -> int:
    """A number that no other record has."""
    made = 0
    for part in content:
        made = made * 1000 + part + 1
    return made


@cache
def unstored(content: Content) -> UnstoredRecord:
    """As it is handed to a log."""
    header = Header(
        epoch=content.epoch,
        sequence=content.sequence,
        turn_remaining=content.remaining,
        is_epoch_started=content.number < 0,
        fingerprint=7,
    )
    return UnstoredRecord(
        key=b"k",
        value=repr(content).encode(),
        header=encode_header(header),
        timestamp_us=0,
    )


@cache
def stored(content: Content, offset: int) -> StoredRecord:
    """As a log gives it back."""
    one = unstored(content)
    return StoredRecord(offset, one.key, one.value, one.header, 0)


class Log(NamedTuple):
    """The partition, with what counts in it so far."""

    records: tuple[Content, ...] = ()
    verdicts: tuple[bool, ...] = ()
    """Whether each was void at its place."""
    counting: Counting = NOTHING_COUNTED
    in_force: int = -1
    """Whose epoch it is."""
    counted: tuple[Content, ...] = ()
    waiting: tuple[Content, ...] = ()
    """The part of a turn that waits for its end."""

    def with_record(self, content: Content) -> Log:
        """One more record has arrived."""
        after, verdict = counting.count(self.counting, stored(content, len(self.records)).header)
        counted, waiting, in_force = self.counted, self.waiting, self.in_force
        if verdict is Verdict.EPOCH:
            waiting, in_force = (), content.driver
        elif verdict is Verdict.FITS:
            waiting = (*waiting, content)
        elif verdict is Verdict.COMPLETES:
            counted, waiting = (*counted, *waiting, content), ()
        return Log(
            (*self.records, content),
            (*self.verdicts, verdict.is_void),
            after,
            in_force,
            counted,
            waiting,
        )


class Driver(NamedTuple):
    """One driver, as far as it has come."""

    phase: str = "new"
    state: DriverState | None = None
    group: tuple[Content, ...] = ()
    """What it appends now."""
    made: int = 0
    """How many of its records it has released, or is appending."""
    flight: tuple[Content, ...] = ()
    """Records sent and not answered for."""
    got: tuple[int, ...] = ()
    """The offset of each of them, -1 where it has not arrived."""
    released: tuple[tuple[Content, int], ...] = ()
    """What it has released, with the offsets it was told; forgotten once it was looked at."""
    fenced_by: int = -1
    """Whose epoch was in force when it ended as fenced."""


class State(NamedTuple):
    log: Log
    drivers: tuple[Driver, ...]
    ghosts: tuple[Content, ...]
    """On their way although their outcome was unknown, sorted."""
    unknowns: int
    kills: int


@dataclass(frozen=True, kw_only=True)
class ProtocolWorld:
    """Drivers with turns of these sizes; so many appends of unknown outcome, so many kills."""

    turns: tuple[tuple[int, ...], ...]
    unknowns: int = 0
    kills: int = 0
    group_max: int = 2
    """Turns in one append."""
    is_any_order: bool = False
    """Records of one append may arrive in any order, not only after its outcome was unknown."""
    looked_at: dict[Counting, str | None] = field(default_factory=dict, compare=False, repr=False)
    """Whether a new driver can go on from where a log stands."""

    @property
    def name(self) -> str:
        """Its size."""
        sizes = " and ".join("+".join(map(str, one)) or "none" for one in self.turns)
        order = ", any order" if self.is_any_order else ""
        return (
            f"{len(self.turns)} drivers, turns {sizes}, {self.unknowns} unknown, "
            f"{self.kills} kills{order}"
        )

    def start(self) -> State:
        """An empty log, nobody started."""
        return State(Log(), tuple(Driver() for _ in self.turns), (), self.unknowns, self.kills)

    # --- what may come next ---
    def moves(self, state: State) -> Iterator[Move[State]]:
        """Every step that anybody else can see the result of."""
        for n, ghost in enumerate(state.ghosts):
            if ghost not in state.ghosts[:n]:
                rest = state.ghosts[:n] + state.ghosts[n + 1 :]
                after = state._replace(log=state.log.with_record(ghost), ghosts=rest)
                yield Move(f"late: {ghost}", after, is_forced=False)
        for d, driver in enumerate(state.drivers):
            if driver.phase == "new":
                # Of drivers with equal turns the first starts first: who is who is all the same.
                if all(
                    state.drivers[e].phase != "new"
                    for e in range(d)
                    if self.turns[e] == self.turns[d]
                ):
                    yield self._started(state, d)
            elif driver.phase == "active":
                if state.kills:
                    yield self._killed(state, d, driver)
                if driver.flight:
                    yield from self._flight_moves(state, d, driver)
                else:
                    yield self._asked(state, d, driver)

    def _started(self, state: State, d: int) -> Move[State]:
        place = Place(end_offset=len(state.log.records), counting=state.log.counting)
        content = Content(d, -1, place.counting.epoch + 1, -1, 0)
        made = protocol.take_over_begun(place, unstored(content))
        active = self._settled(state.log, d, Driver(phase="active", group=(content,)), made)
        return _put(state, d, f"{d} reads to {place.end_offset} and sends {content}", active)

    def _killed(self, state: State, d: int, driver: Driver) -> Move[State]:
        killed = state._replace(ghosts=_ghosts(state, driver), kills=state.kills - 1)
        return _put(killed, d, f"{d} is killed", Driver(phase="dead"), is_forced=False)

    def _flight_moves(self, state: State, d: int, driver: Driver) -> Iterator[Move[State]]:
        assert driver.state is not None
        offset = len(state.log.records)
        for n, at in enumerate(driver.got):
            if at >= 0:
                continue
            got = (*driver.got[:n], offset, *driver.got[n + 1 :])
            arrived = state._replace(log=state.log.with_record(driver.flight[n]))
            label = f"{d}: {driver.flight[n]} arrives at {offset}"
            if -1 in got:
                yield _put(arrived, d, label, driver._replace(got=got))
            else:
                told = protocol.acknowledged(driver.state, got)
                after = self._settled(arrived.log, d, driver, told)
                yield _put(arrived, d, f"{label}, all acknowledged", after)
                if state.unknowns:
                    yield self._unknown(
                        arrived, d, driver._replace(got=got), f"{label}; outcome unknown"
                    )
            if not self.is_any_order:
                break
        if state.unknowns:
            yield self._unknown(state, d, driver, f"{d}: outcome unknown")

    def _unknown(self, state: State, d: int, driver: Driver, label: str) -> Move[State]:
        assert driver.state is not None
        ghosts = _ghosts(state, driver)
        after = state._replace(ghosts=ghosts, unknowns=state.unknowns - 1)
        told = protocol.outcome_unknown(driver.state)
        return _put(after, d, label, self._settled(state.log, d, driver, told), is_forced=False)

    def _asked(self, state: State, d: int, driver: Driver) -> Move[State]:
        assert driver.state is not None
        action = protocol.next_action(driver.state)
        assert isinstance(action, protocol.ReadHighWatermark), f"{d}: {action}"
        end = len(state.log.records)
        told = protocol.high_watermark(driver.state, end)
        label = f"{d} reads to the end, {end}"
        return _put(state, d, label, self._settled(state.log, d, driver, told))

    def _settled(self, log: Log, d: int, driver: Driver, after: DriverState) -> Driver:
        """Do all that is due until somebody else can see it, or has a say in it.

        What a driver reads below a known end never changes, what it releases counts for ever, and a
        record that it sends is on its way until it arrives: when these are done in between is all
        the same, and so they are done at once.
        """
        released = list(driver.released)
        while True:
            match protocol.next_action(after):
                case protocol.Append(records):
                    by_bytes = {unstored(one).value: one for one in driver.group}
                    flight = tuple(by_bytes[one.value] for one in records)
                    return driver._replace(
                        state=after,
                        flight=flight,
                        got=(-1,) * len(flight),
                        released=tuple(released),
                    )
                case protocol.ReadHighWatermark():
                    return driver._replace(state=after, flight=(), got=(), released=tuple(released))
                case protocol.Read(from_offset, to_offset):
                    for offset in range(from_offset, to_offset):
                        after = protocol.record_read(after, stored(log.records[offset], offset))
                    after = protocol.reading_ended(after)
                case protocol.Fenced():
                    by = log.in_force
                    return Driver(phase="fenced", released=tuple(released), fenced_by=by)
                case protocol.Rest():
                    if driver.group[0].number >= 0:
                        released += zip(driver.group, after.counted_at, strict=True)
                    group = self._next_group(d, driver.made, after)
                    if not group:
                        return Driver(phase="done", released=tuple(released))
                    driver = driver._replace(group=group, made=driver.made + len(group))
                    after = protocol.append_begun(after, [unstored(one) for one in group])
                case other:
                    raise AssertionError(f"{d}: {other}")

    def _next_group(self, d: int, made: int, after: DriverState) -> tuple[Content, ...]:
        turns_made = _ends_of(self.turns[d]).index(made)
        sizes = self.turns[d][turns_made : turns_made + self.group_max]
        remaining = [n for size in sizes for n in reversed(range(size))]
        first = after.place.counting.next_sequence
        return tuple(
            Content(d, made + n, after.epoch, first + n, one) for n, one in enumerate(remaining)
        )

    # --- what must hold ---
    def fault(self, state: State) -> str | None:
        """Which promise is broken."""
        log = state.log
        if len(set(_made(log.counted))) != len(log.counted):
            return f"once: of {_texts(log.counted)} one counts twice"
        last: dict[int, int] = {}
        for one in log.counted:
            if one.number != last.get(one.driver, -1) + 1:
                return f"once: {one} counts after {last.get(one.driver, -1)} of that driver"
            last[one.driver] = one.number
        for d, number in last.items():
            if number + 1 not in _ends_of(self.turns[d]):
                return f"whole: of a turn of {d} only what ends with record {number} counts"
        for d, driver in enumerate(state.drivers):
            for one, offset in driver.released:
                if log.records[offset] != one or one not in log.counted:
                    return f"kept: {d} has released {one} at {offset}; it does not count there"
                if log.counted.index(one) != one.sequence:
                    return f"kept: {d} has released {one}; it counts at another sequence"
            if driver.phase == "fenced" and driver.fenced_by == d:
                return f"no self: {d} was fenced by its own epoch"
        if log.counting not in self.looked_at:
            self.looked_at[log.counting] = _can_go_on(log.counting)
        return self.looked_at[log.counting]

    def is_end(self, state: State) -> bool:
        """Everybody is done, fenced or dead."""
        return all(one.phase in _ENDED for one in state.drivers)

    def key(self, state: State) -> Hashable:
        """Of the log only what somebody may still read, and what counts; offsets from there."""
        log = state.log
        places = [one.state.place.end_offset for one in state.drivers if one.state is not None]
        low = min([len(log.records), *places])
        # A void record is one like the other: whoever folds it comes to the same.
        suffix = [
            -1 if is_void else code(one)
            for one, is_void in zip(log.records[low:], log.verdicts[low:], strict=True)
        ]
        whole = (
            [code(one) for one in log.counted],
            [code(one) for one in log.waiting],
            tuple(log.counting),
            log.in_force,
            suffix,
            [_driver_key(one, low) for one in state.drivers],
            [code(one) for one in state.ghosts if not _is_dead(log.counting, one)],
            len(state.ghosts),
            state.unknowns,
            state.kills,
        )
        return hashlib.blake2b(marshal.dumps(whole, 2), digest_size=16).digest()


def _driver_key(driver: Driver, low: int) -> tuple[object, ...]:
    state = driver.state
    if state is None:
        return (driver.phase,)
    in_force = state.in_force
    return (
        state.epoch,
        state.place.end_offset - low,
        tuple(state.place.counting),
        None if in_force is None else in_force.value,
        state.goal.value,
        state.step.value,
        [code(one) for one in driver.group],
        len(state.counted_at),
        state.is_acknowledged,
        [code(one) for one in driver.flight],
        [one if one < 0 else one - low for one in driver.got],
        driver.made,
    )


def _put(
    state: State, d: int, label: str, driver: Driver, *, is_forced: bool = True
) -> Move[State]:
    # What was released is looked at in the state where it is, and no longer: a log only grows, so
    # that what counts at a place counts there for ever.
    drivers = [one._replace(released=()) if one.released else one for one in state.drivers]
    drivers[d] = driver
    return Move(label, state._replace(drivers=tuple(drivers)), is_forced)


def _ghosts(state: State, driver: Driver) -> tuple[Content, ...]:
    left = [one for one, at in zip(driver.flight, driver.got, strict=True) if at < 0]
    return tuple(sorted((*state.ghosts, *left)))


@cache
def _ends_of(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """How many records there are after no turn, one turn, and so on."""
    return tuple(sum(sizes[:n]) for n in range(len(sizes) + 1))


def _is_dead(where: Counting, ghost: Content) -> bool:
    """Whether it will be void whenever it arrives: neither epoch nor counted end ever goes back."""
    if ghost.number < 0:
        return ghost.epoch <= where.epoch
    return ghost.epoch < where.epoch or ghost.sequence < where.counted_end


def _made(contents: tuple[Content, ...]) -> list[tuple[int, int]]:
    return [(one.driver, one.number) for one in contents]


def _texts(contents: tuple[Content, ...]) -> str:
    return ", ".join(map(str, contents))


def _can_go_on(where: Counting) -> str | None:
    """Whether a driver that comes now takes over and appends, by the real code."""
    place = Place(end_offset=0, counting=where)
    started = Content(99, -1, where.epoch + 1, -1, 0)
    state = protocol.acknowledged(protocol.take_over_begun(place, unstored(started)), [0])
    if not isinstance(protocol.next_action(state), protocol.Rest):
        return "go on: a new driver cannot take over"
    record = Content(99, 0, state.epoch, state.place.counting.next_sequence, 0)
    state = protocol.append_begun(state, [unstored(record)])
    state = protocol.acknowledged(state, [1])
    if not isinstance(protocol.next_action(state), protocol.Rest):
        return "go on: a new driver cannot append"
    return None
