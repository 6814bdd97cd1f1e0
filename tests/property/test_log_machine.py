"""Drivers on one log against a list: what counts is what the drivers in force were told (clauses K2, K4, K5).

The appender, the protocol and the counting fold are the real ones, on a log in memory that loses
acknowledgements, keeps records on their way, and lets them land late, alone and in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordlog.errors import FencedError, LogUnavailableError
from coordlog.log.append_protocol import Place
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import Fail, Fault, Meanwhile, MemoryLog, Slow, Unknown
from coordlog.schemas.header import decode_header
from coordlog.schemas.validity import NOTHING_COUNTED, Counting, count
from histories.log_records import (
    Driver,
    FakeClock,
    counted,
    epoch_started,
    place_of,
    start_driver,
    turns,
)

PARTS = st.sets(st.integers(0, 4), max_size=4)
SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=3)
FAULTS: st.SearchStrategy[list[Fault | None]] = st.lists(
    st.one_of(
        st.none(),
        st.just(Fail()),
        st.just(Unknown(None)),
        PARTS.map(lambda parts: Unknown(tuple(sorted(parts)))),
        st.sampled_from([Slow(1.0), Slow(1e6)]),
    ),
    max_size=3,
)
"""Of a driver's next tries: each that is not acknowledged is followed by another."""


@dataclass
class Model:
    """The log as its readers must see it."""

    counts: list[str] = field(default_factory=list)
    """The contents of what counts: the place in the list is the sequence."""
    begun: list[str] = field(default_factory=list)
    """Of a turn that is not whole yet."""
    epoch: int = -1
    told: dict[str, int] = field(default_factory=dict)
    """What drivers were told counts, by content: the offset."""

    def lands(self, record: UnstoredRecord) -> None:
        """A record that nobody waits for is stored."""
        header = decode_header(record.header)
        if header is None:
            return
        if header.is_epoch_started:
            if header.epoch == self.epoch + 1:
                self.takes_over()
        elif header.epoch == self.epoch and header.sequence == len(self.counts + self.begun):
            self.begun.append(record.value.decode())
            if header.turn_remaining == 0:
                self.counts += self.begun
                self.begun = []

    def takes_over(self) -> None:
        """A new epoch is in force."""
        self.epoch += 1
        self.begun = []


class LogMachine(RuleBasedStateMachine):
    """Drivers come and go; some are paused, and act when others have taken over."""

    @initialize()
    def begin(self) -> None:
        self.log, self.model = MemoryLog(), Model()
        self.drivers: dict[str, Driver] = {}
        self.looked: Place = place_of(self.log)
        self.made = 0
        self.reader: tuple[int, Counting] = (0, NOTHING_COUNTED)

    # Taking over.

    def _name(self) -> str:
        self.made += 1
        return f"d{self.made}-"

    @rule()
    def look(self) -> None:
        """A driver reads the log, and is then paused before it takes over."""
        self.looked = place_of(self.log)

    @rule(faults=FAULTS, has_paused=st.booleans())
    def take_over(self, faults: list[Fault | None], *, has_paused: bool) -> None:
        """A driver takes over; one that was paused since it looked may be too late for it."""
        name, place = self._name(), self.looked if has_paused else place_of(self.log)
        self.log.faults.next_append(*faults, of=name)
        is_first = place.counting.epoch == self.model.epoch
        self._forgetting(name, lambda: self._taken_over(name, place, is_first=is_first))
        if is_first:
            self.model.takes_over()

    def _taken_over(self, name: str, place: Place, *, is_first: bool) -> None:
        log = self.log.seen_by(name)
        patience = FakeClock().patience(log_timeout_s=1e9)
        if not is_first:
            with pytest.raises(FencedError):
                start_driver(log, name, patience=patience, place=place)
            return
        driver = start_driver(log, name, patience=patience, place=place)
        assert driver.appender.epoch == self.model.epoch + 1
        self.drivers[name] = driver

    def _forgetting(self, name: str, act: Callable[[], None]) -> None:
        """Do this; the script of `name` that it has not used up is over."""
        try:
            act()
        finally:
            while self.log.faults.append_of(name) is not None:
                pass

    # Appending.

    @rule(sizes=SIZES, faults=FAULTS)
    def append(self, sizes: list[int], faults: list[Fault | None]) -> None:
        """The driver in force appends; where there is none, another takes over first."""
        if self.in_force() is None:
            self.take_over([], has_paused=False)
        name = self.in_force()
        assert name is not None
        group = self._group(name, sizes)
        self.log.faults.next_append(*faults, of=name)
        self._forgetting(name, lambda: self._counts(name, group))

    @rule(sizes=SIZES, others=st.lists(SIZES, max_size=2), faults=FAULTS)
    def append_twice(
        self, sizes: list[int], others: list[list[int]], faults: list[Fault | None]
    ) -> None:
        """One group after another."""
        for one in (sizes, *others):
            self.append(one, faults)

    @precondition(lambda self: self.stale())
    @rule(data=st.data(), sizes=SIZES, faults=FAULTS)
    def append_late(
        self, data: st.DataObject, sizes: list[int], faults: list[Fault | None]
    ) -> None:
        """A driver that was paused appends, and is fenced, whatever goes wrong on the way."""
        name = data.draw(st.sampled_from(self.stale()))
        group = self._group(name, sizes)
        self.log.faults.next_append(*faults, of=name)
        self._forgetting(name, lambda: self._fenced(name, group))

    def _group(self, name: str, sizes: list[int]) -> list[UnstoredRecord]:
        appender = self.drivers[name].appender
        return turns(sizes, appender.epoch, appender.counting.next_sequence, name)

    def _counts(self, name: str, group: list[UnstoredRecord]) -> None:
        offsets = self.drivers[name].appender.append(group)
        contents = [one.value.decode() for one in group]
        assert not self.model.begun
        self.model.counts += contents
        self.model.told.update(zip(contents, offsets, strict=True))

    def _fenced(self, name: str, group: list[UnstoredRecord]) -> None:
        with pytest.raises(FencedError) as raised:
            self.drivers.pop(name).appender.append(group)
        assert raised.value.epoch_in_force == self.model.epoch

    @precondition(lambda self: self.in_force() is not None)
    @rule(sizes=SIZES, before=st.integers(0, 9))
    def append_while_another_takes_over(self, sizes: list[int], before: int) -> None:
        """Of a group, what has landed before the take-over counts as far as its turns are whole."""
        name = self.in_force()
        assert name is not None
        group = self._group(name, sizes)
        before = min(before, len(group))

        def take_over() -> None:
            for one in group[:before]:
                self.model.lands(one)
            self.take_over([], has_paused=False)

        self.log.faults.next_append(Meanwhile(take_over, before), of=name)
        driver = self.drivers.pop(name)
        if before == len(group):
            # All of it stood in the log before the other took over: so it may be released.
            driver.appender.append(group)
        else:
            with pytest.raises(FencedError):
                driver.appender.append(group)

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), sizes=SIZES, parts=PARTS, is_taking_over=st.booleans())
    def die(
        self, data: st.DataObject, sizes: list[int], parts: set[int], *, is_taking_over: bool
    ) -> None:
        """A driver dies with records sent: some are stored, the others land now, later, or never."""
        if is_taking_over:
            self._sent_and_dead([epoch_started(self.model.epoch + 1, self._name())], parts)
            return
        name = data.draw(st.sampled_from(sorted(self.drivers)))
        group = self._group(name, sizes)
        del self.drivers[name]
        self._sent_and_dead(group, parts)

    def _sent_and_dead(self, group: list[UnstoredRecord], parts: Iterable[int]) -> None:
        stored = tuple(sorted(n for n in parts if n < len(group)))
        self.log.faults.next_append(Unknown(stored), of="dead")
        with pytest.raises(LogUnavailableError):
            self.log.seen_by("dead").writer().append(group, timeout_s=1.0)
        for n in stored:
            self.model.lands(group[n])

    # The log.

    @precondition(lambda self: self.log.on_the_way)
    @rule(data=st.data(), is_all=st.booleans())
    def land(self, data: st.DataObject, *, is_all: bool) -> None:
        """Something that was given up for lost is stored after all, and more from elsewhere."""
        self.babble()
        if is_all:
            self.land_all()
            return
        one = data.draw(st.sampled_from(self.log.on_the_way))
        self.log.arrive(one.number)
        self.model.lands(one.record)

    def land_all(self) -> None:
        """All that is on its way is stored, in the order in which it was sent."""
        sent = self.log.on_the_way
        self.log.arrive()
        for one in sent:
            self.model.lands(one.record)

    def babble(self) -> None:
        """Another program writes to the topic, and one takes an epoch that is not the next."""
        self.log.store(UnstoredRecord(key=b"", value=b"?", header=b"", timestamp_us=0))
        self.log.store(epoch_started(self.model.epoch + 2, self._name()))

    @rule(pieces=st.integers(1, 5))
    def read_on(self, pieces: int) -> None:
        """A reader that has read before goes on from there, some records further."""
        offset, counting = self.reader
        end = min(offset + pieces, self.log.high_watermark())
        for one in self.log.read(offset, end):
            counting, _ = count(counting, one.header)
        self.reader = (end, counting)

    # What must be so.

    def in_force(self) -> str | None:
        """The live driver whose epoch is in force."""
        newest = [n for n, d in self.drivers.items() if d.appender.epoch == self.model.epoch]
        return newest[0] if newest else None

    def stale(self) -> list[str]:
        """The live drivers whose epoch is over."""
        return sorted(n for n, d in self.drivers.items() if d.appender.epoch < self.model.epoch)

    @invariant()
    def what_counts_is_the_list(self) -> None:
        found = counted(self.log)
        assert [one for one in found if not one.startswith("E")] == self.model.counts
        epochs = [one for one in found if one.startswith("E")]
        assert epochs == [f"E{n}" for n in range(self.model.epoch + 1)]

    @invariant()
    def what_a_driver_was_told_counts_where_it_was_told(self) -> None:
        records = self.log.records
        for content, offset in self.model.told.items():
            assert records[offset].value == content.encode()
        assert set(self.model.told) <= set(self.model.counts)

    def teardown(self) -> None:
        """A reader in pieces is where one is that reads all; and somebody can go on."""
        if not hasattr(self, "log"):
            return
        self.read_on(self.log.high_watermark())
        counting = place_of(self.log).counting
        assert self.reader[1] == counting
        assert counting.counted_end == len(self.model.counts)
        assert counting.next_sequence == len(self.model.counts + self.model.begun)
        self.take_over([], has_paused=False)
        name = self.in_force()
        assert name is not None
        self._counts(name, self._group(name, [2]))
        self.land_all()
        self.what_counts_is_the_list()
        self.what_a_driver_was_told_counts_where_it_was_told()


@pytest.mark.slow
@pytest.mark.clause("K1")
@pytest.mark.clause("K2")
@pytest.mark.clause("K4")
@pytest.mark.clause("K5")
def test_what_counts_is_what_drivers_in_force_were_told_and_nothing_else(dose: int) -> None:
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=50 * dose,
            stateful_step_count=50,
            suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
        ),
    )
