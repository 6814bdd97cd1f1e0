"""A driver's appends and its take-over, on a log whose faults are scripted. No time passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from coordlog.errors import (
    AppendRefusedError,
    ClosedError,
    FencedError,
    LogUnavailableError,
    OffsetGapError,
    OutOfRangeError,
)
from coordlog.log.appender import take_over
from coordlog.log.interface import LogWriter, StoredRecord, UnstoredRecord
from coordlog.log.memory import Fail, Meanwhile, MemoryLog, Refuse, Slow, Unknown
from coordlog.schemas.validity import NOTHING_COUNTED
from histories.log_records import (
    FakeClock,
    counted,
    epoch_started,
    place_of,
    plain,
    start_driver,
    turns,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock) -> MemoryLog:
    return MemoryLog(sleep=clock.sleep)


# --- looking ---


@pytest.mark.clause("K2")
def test_a_driver_that_appends_nothing_finds_that_it_is_fenced_by_looking(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    assert driver.appender.append(turns([1], 0, 0)) == (1,)
    driver.appender.check_epoch()
    start_driver(log, "b")

    with pytest.raises(FencedError, match="epoch 1"):
        driver.appender.check_epoch()
    with pytest.raises(ClosedError):
        driver.appender.check_epoch()


def test_a_look_reads_over_what_does_not_count_and_appends_nothing(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.store(plain("late", 9, 0))
    driver.appender.check_epoch()
    assert driver.appender.end_offset == log.high_watermark() == 2
    assert driver.appender.append(turns([1], 0, 0)) == (2,)


def test_a_look_at_a_log_that_does_not_answer_changes_nothing(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.store(plain("late", 9, 0))
    log.faults.is_gone = True
    driver.appender.check_epoch()
    log.faults.is_gone = False
    assert driver.appender.append(turns([1], 0, 0)) == (2,)


# --- appending ---


def test_an_append_returns_the_offset_of_each_record_and_they_count(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    assert driver.appender.append(turns([2, 1], 0, 0)) == (1, 2, 3)
    assert driver.appender.append(turns([1], 0, 3)) == (4,)
    assert counted(log) == ["E0", "a0", "a1", "a2", "a3"]
    assert driver.appender.counting.next_sequence == 4
    assert driver.appender.end_offset == 5


def test_a_foreign_record_before_an_append_is_read_over(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.store(plain("late", 9, 0))
    assert driver.appender.append(turns([2], 0, 0)) == (2, 3)
    assert counted(log) == ["E0", "a0", "a1"]


def test_a_foreign_record_among_ours_is_read_over(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Meanwhile(lambda: log.store(plain("late", 9, 0)), before=1))
    assert driver.appender.append(turns([2], 0, 0)) == (1, 3)
    assert counted(log) == ["E0", "a0", "a1"]


def test_a_lost_acknowledgement_is_sent_again_and_counts_once(
    log: MemoryLog, clock: FakeClock
) -> None:
    driver = start_driver(log, "a", patience=clock.patience())
    log.faults.next_append(Unknown(stored=None))
    assert driver.appender.append(turns([2], 0, 0)) == (1, 2)  # where they count, not the copy
    assert counted(log) == ["E0", "a0", "a1"]
    assert [record.value for record in log.records[3:]] == [
        b"a1"
    ]  # one copy, for its acknowledgement
    assert driver.appender.append(turns([1], 0, 2)) == (4,)


@pytest.mark.fault("X14")
def test_what_has_been_read_is_not_released_before_an_acknowledgement(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Unknown(stored=None), Fail(), Fail())
    assert driver.appender.append(turns([1], 0, 0)) == (1,)
    assert len(log.records) == 3  # the epoch, the record, and the copy that was acknowledged


@pytest.mark.fault("X9")
def test_nothing_stored_is_sent_again(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Fail(), Fail())
    assert driver.appender.append(turns([2], 0, 0)) == (1, 2)
    assert counted(log) == ["E0", "a0", "a1"]


@pytest.mark.clause("K4")
def test_late_copies_are_void(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Unknown())
    assert driver.appender.append(turns([2], 0, 0)) == (1, 2)
    log.arrive()
    assert driver.appender.append(turns([1], 0, 2)) == (5,)
    assert counted(log) == ["E0", "a0", "a1", "a2"]


def test_copies_that_arrive_before_the_second_try_count_in_its_place(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Unknown(), Meanwhile(log.arrive))
    assert driver.appender.append(turns([2], 0, 0)) == (1, 2)
    assert [record.value for record in log.records[1:]] == [b"a0", b"a1", b"a0", b"a1"]


def test_of_a_partial_arrival_only_the_rest_is_sent_again(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Unknown(stored=(0, 1)))
    assert driver.appender.append(turns([3], 0, 0)) == (1, 2, 3)
    log.arrive()
    assert [record.value for record in log.records[1:]] == [b"a0", b"a1", b"a2", b"a2"]
    assert counted(log) == ["E0", "a0", "a1", "a2"]


def test_a_partial_arrival_with_a_hole_counts_up_to_the_hole(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Unknown(stored=(0, 2)))
    assert driver.appender.append(turns([1, 1, 1], 0, 0)) == (1, 3, 4)
    assert [record.value for record in log.records[1:]] == [b"a0", b"a2", b"a1", b"a2"]
    assert counted(log) == ["E0", "a0", "a1", "a2"]


def test_copies_may_arrive_in_any_order(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Unknown(), Meanwhile(lambda: log.arrive(1, 0, 2), before=1))
    # Stored: a0 | a1 a0 a2 | a1 a2. The second of them is the first that fits after a0.
    assert driver.appender.append(turns([1, 1, 1], 0, 0)) == (1, 2, 4)
    assert counted(log) == ["E0", "a0", "a1", "a2"]


def test_a_slow_append_within_the_bound_is_waited_for(log: MemoryLog, clock: FakeClock) -> None:
    driver = start_driver(log, "a", patience=clock.patience())
    log.faults.next_append(Slow(9.0))
    assert driver.appender.append(turns([1], 0, 0)) == (1,)
    assert clock.now == 1009.0


def test_an_append_slower_than_its_bound_has_an_unknown_outcome(
    log: MemoryLog, clock: FakeClock
) -> None:
    driver = start_driver(log, "a", patience=clock.patience())
    log.faults.next_append(Slow(11.0))
    assert driver.appender.append(turns([1], 0, 0)) == (1,)
    assert [one.record.value for one in log.on_the_way] == [b"a0"]
    assert clock.now > 1010.0


# --- fenced ---


@pytest.mark.clause("K2")
def test_a_newer_epoch_before_an_append_fences_and_is_named(log: MemoryLog) -> None:
    old = start_driver(log, "a")
    new = start_driver(log, "b")
    with pytest.raises(FencedError) as caught:
        old.appender.append(turns([1], 0, 0))
    assert (caught.value.epoch, caught.value.epoch_in_force) == (0, 1)
    assert caught.value.driver_in_force == "b"
    assert counted(log) == ["E0", "E1"]
    assert new.appender.append(turns([1], 1, 0, "b")) == (3,)
    assert counted(log) == ["E0", "E1", "b0"]


def test_a_newer_epoch_within_a_group_fences_though_a_part_of_it_counts(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Meanwhile(lambda: log.store(epoch_started(1, "b")), before=1))
    with pytest.raises(FencedError):
        driver.appender.append(turns([1, 1], 0, 0))
    assert counted(log) == ["E0", "a0", "E1"]


def test_a_newer_epoch_right_behind_an_append_is_found_by_the_next(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    assert driver.appender.append(turns([1], 0, 0)) == (1,)
    log.store(epoch_started(1, "b"))
    with pytest.raises(FencedError):
        driver.appender.append(turns([1], 0, 1))


def test_after_an_unknown_outcome_a_fenced_driver_sends_nothing_more(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.store(epoch_started(1, "b"))
    log.faults.next_append(Fail())
    with pytest.raises(FencedError):
        driver.appender.append(turns([1], 0, 0))
    assert len(log.records) == 2


def test_a_fenced_driver_appends_never_again(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.store(epoch_started(1, "b"))
    with pytest.raises(FencedError):
        driver.appender.append(turns([1], 0, 0))
    with pytest.raises(ClosedError, match="epoch 0"):
        driver.appender.append(turns([1], 0, 0))


def test_a_driver_of_another_version_is_named_by_its_offset(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    foreign = epoch_started(1, "b")
    log.store(type(foreign)(key=b"", value=b"?", header=foreign.header, timestamp_us=0))
    with pytest.raises(FencedError, match=r"of another version, at offset 1"):
        driver.appender.append(turns([1], 0, 0))


@pytest.mark.parametrize("epoch", [0, 2, 9])
def test_void_take_overs_fence_nobody(log: MemoryLog, epoch: int) -> None:
    driver = start_driver(log, "a")
    log.store(epoch_started(epoch, "b"))
    assert driver.appender.append(turns([1], 0, 0)) == (2,)
    assert counted(log) == ["E0", "a0"]


@pytest.mark.clause("K4")
def test_a_driver_is_not_fenced_by_its_own_copies(log: MemoryLog) -> None:
    log.faults.next_append(Unknown(), Unknown(stored=None))
    driver = start_driver(log, "a")
    log.arrive()
    assert driver.appender.append(turns([1], 0, 0)) == (3,)
    assert counted(log) == ["E0", "a0"]


# --- lost records ---


@pytest.mark.fault("X4")
def test_an_offset_below_the_expected_one_is_a_lost_record(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    driver.appender.append(turns([1, 1], 0, 0))
    log.lose_from(1)
    with pytest.raises(OffsetGapError) as caught:
        driver.appender.append(turns([1], 0, 2))
    assert (caught.value.expected_offset, caught.value.offset) == (3, 1)


def test_one_offset_below_the_expected_one_is_enough(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    driver.appender.append(turns([1, 1], 0, 0))
    log.lose_from(2)
    with pytest.raises(OffsetGapError) as caught:  # 2 and 3 where 3 was the lowest possible
        driver.appender.append(turns([1, 1], 0, 2))
    assert (caught.value.expected_offset, caught.value.offset) == (3, 2)


@pytest.mark.fault("X4")
def test_a_high_watermark_below_the_expected_one_is_a_lost_record(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    driver.appender.append(turns([1, 1], 0, 0))
    log.lose_from(1)
    log.faults.next_append(Fail())
    with pytest.raises(OffsetGapError) as caught:
        driver.appender.append(turns([1], 0, 2))
    assert (caught.value.expected_offset, caught.value.offset) == (3, 1)


@pytest.mark.fault("X14")
def test_records_lost_between_acknowledgement_and_reading_are_noticed(log: MemoryLog) -> None:
    class Forgetful(MemoryLog):
        """Loses its tail just before it is read."""

        def read(
            self, from_offset: int, to_offset: int, *, stall_s: float | None = None
        ) -> Iterator[StoredRecord]:
            self.lose_from(2)
            return super().read(from_offset, to_offset, stall_s=stall_s)

    forgetful = Forgetful()
    driver = start_driver(forgetful, "a", place=place_of(MemoryLog()))
    forgetful.store(plain("late", 9, 0))
    with pytest.raises(OffsetGapError) as caught:
        driver.appender.append(turns([1], 0, 0))
    assert (caught.value.expected_offset, caught.value.offset) == (3, 2)


@pytest.mark.fault("X7")
def test_another_topic_of_the_same_name_is_a_log_that_has_lost_records(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.recreate()
    with pytest.raises(OffsetGapError):
        driver.appender.append(turns([1], 0, 0))


@pytest.mark.fault("X2")
def test_a_gap_that_retention_has_removed_is_out_of_range(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.store(plain("late", 9, 0), plain("late", 9, 0))
    log.remove_below(2)
    with pytest.raises(OutOfRangeError):
        driver.appender.append(turns([1], 0, 0))


# --- waiting, and giving up ---


@pytest.mark.fault("X8")
def test_an_append_gives_up_at_the_log_timeout(log: MemoryLog, clock: FakeClock) -> None:
    driver = start_driver(log, "a", patience=clock.patience(log_timeout_s=60))
    log.faults.is_gone = True
    with pytest.raises(LogUnavailableError) as caught:
        driver.appender.append(turns([1], 0, 0))
    assert caught.value.doing == "appending"
    assert caught.value.waited_s == pytest.approx(60)
    assert caught.value.last_error == "scripted"
    with pytest.raises(ClosedError):
        driver.appender.append(turns([1], 0, 0))


def test_the_hour_of_a_suspended_process_is_not_counted_as_the_logs(clock: FakeClock) -> None:
    log = MemoryLog(sleep=lambda seconds: clock.sleep(seconds + 3600))
    driver = start_driver(log, "a", patience=clock.patience(log_timeout_s=15))
    log.faults.next_append(Slow(20))

    assert driver.appender.append(turns([1], 0, 0)) == (1,)

    queried = log.high_watermark

    def suspended() -> int:
        log.high_watermark = queried  # type: ignore[method-assign]
        clock.now += 3600
        raise LogUnavailableError("job.log", "asking for its offsets", 3600.0)

    log.faults.next_append(Unknown())
    log.high_watermark = suspended  # type: ignore[method-assign]
    assert driver.appender.append(turns([1], 0, 1))

    start_driver(log, "b")
    log.faults.next_append(Slow(20))
    with pytest.raises(FencedError, match="epoch 1"):
        driver.appender.append(turns([1], 0, 2))


def test_the_pauses_double_up_to_two_seconds_and_are_announced(
    log: MemoryLog, clock: FakeClock
) -> None:
    driver = start_driver(log, "a", patience=clock.patience(log_timeout_s=10))
    log.faults.is_gone = True
    with pytest.raises(LogUnavailableError):
        driver.appender.append(turns([1], 0, 0))
    assert clock.slept[:7] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert max(clock.slept) == 2.0
    assert sum(clock.slept) == pytest.approx(10)
    assert [waited for waited, _ in clock.waits][:3] == pytest.approx([0.0, 0.05, 0.15])
    assert all("scripted" in error for _, error in clock.waits)


def test_a_log_that_returns_is_used_again(log: MemoryLog, clock: FakeClock) -> None:
    class Returning(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            log.faults.is_gone = self.now < 1030

    returning = Returning()
    driver = start_driver(log, "a", patience=returning.patience())
    log.faults.is_gone = True
    assert driver.appender.append(turns([1], 0, 0)) == (1,)
    assert 1030 <= returning.now < 1032


def test_a_reading_that_finds_no_answer_is_tried_again(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Unknown(stored=None))
    log.faults.next_reads(3)
    assert driver.appender.append(turns([2], 0, 0)) == (1, 2)


def test_a_reading_that_stops_half_way_goes_on_where_it_stopped(clock: FakeClock) -> None:
    class Stalling(MemoryLog):
        """Gives two records, and then nothing, once."""

        has_stalled = False

        def read(
            self, from_offset: int, to_offset: int, *, stall_s: float | None = None
        ) -> Iterator[StoredRecord]:
            for number, record in enumerate(super().read(from_offset, to_offset, stall_s=stall_s)):
                if number == 2 and not self.has_stalled:
                    self.has_stalled = True
                    raise LogUnavailableError("stalling", "reading", 30.0)
                yield record

    log = Stalling()
    log.store(*(plain("x", 9, 0) for _ in range(5)))
    driver = start_driver(log, "a", patience=clock.patience(), place=place_of(MemoryLog()))
    assert log.has_stalled
    assert [record.offset for record in driver.read] == [0, 1, 2, 3, 4, 5]


def test_a_writer_that_failed_is_thrown_away_at_once(log: MemoryLog) -> None:
    closed: list[float] = []

    class Watched(MemoryLog):
        """Tells when its writers are closed."""

        def writer(self) -> LogWriter:
            writer = super().writer()

            class Telling:
                append = writer.append

                def close(self, *, timeout_s: float) -> None:
                    closed.append(timeout_s)
                    writer.close(timeout_s=timeout_s)

            return Telling()

    watched = Watched()
    waits: list[int] = []
    patience = replace(
        FakeClock().patience(), on_waiting=lambda _waited, _error: waits.append(len(closed))
    )
    driver = start_driver(watched, "a", patience=patience)
    watched.faults.next_append(Fail(), Fail())
    watched.faults.next_reads(1)
    driver.appender.append(turns([1], 0, 0))
    assert waits == [1, 2]
    driver.appender.close()
    assert len(closed) == 3


def test_an_append_that_never_counts_ends_too(log: MemoryLog, clock: FakeClock) -> None:
    driver = start_driver(log, "a", patience=clock.patience(log_timeout_s=5))
    log.faults.next_append(*[Unknown()] * 100)
    with pytest.raises(LogUnavailableError):
        driver.appender.append(turns([1], 0, 0))
    assert clock.now <= 1006


@pytest.mark.clause("K6")
def test_a_refused_record_ends_the_appender_and_says_why(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    log.faults.next_append(Refuse("too large"))
    with pytest.raises(AppendRefusedError, match="too large"):
        driver.appender.append(turns([1], 0, 0))
    with pytest.raises(ClosedError):
        driver.appender.append(turns([1], 0, 0))


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([plain("x", 1, 0)], id="another epoch"),
        pytest.param([plain("x", 0, 1)], id="a sequence too high"),
        pytest.param([plain("x", 0, 0), plain("y", 0, 2)], id="a hole"),
        pytest.param([plain("x", 0, 0, 1)], id="half a turn"),
        pytest.param([epoch_started(0, "a")], id="an epoch"),
        pytest.param([], id="nothing"),
    ],
)
def test_records_that_could_never_count_are_a_programmers_error(
    log: MemoryLog, records: list[UnstoredRecord]
) -> None:
    driver = start_driver(log, "a")
    with pytest.raises(AssertionError):
        driver.appender.append(records)
    assert counted(log) == ["E0"]


def test_a_closed_appender_appends_no_more(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    driver.appender.close()
    driver.appender.close()
    with pytest.raises(ClosedError):
        driver.appender.append(turns([1], 0, 0))


# --- taking over ---


def test_the_first_driver_of_an_empty_log_has_epoch_0(log: MemoryLog) -> None:
    driver = start_driver(log, "a")
    assert driver.appender.epoch == 0
    assert [record.offset for record in driver.read] == []  # it comes next: nothing was read


def test_a_take_over_goes_on_where_the_last_whole_turn_ended(log: MemoryLog) -> None:
    start_driver(log, "a").appender.append(turns([2], 0, 0))
    log.store(*turns([3], 0, 2)[:2])  # a turn that a crash cut off
    driver = start_driver(log, "b")
    assert driver.appender.epoch == 1
    assert driver.appender.append(turns([1], 1, 2, "b")) == (6,)
    assert counted(log) == ["E0", "a0", "a1", "E1", "b2"]


def test_what_stands_before_the_take_over_is_read_with_it(log: MemoryLog) -> None:
    old = start_driver(log, "a")
    place = place_of(log)
    old.appender.append(turns([1], 0, 0))
    driver = start_driver(log, "b", place=place)
    assert [record.offset for record in driver.read] == [1, 2]
    assert driver.appender.counting.next_sequence == 1


def test_of_two_drivers_with_one_epoch_the_first_in_the_log_holds_it(log: MemoryLog) -> None:
    place = place_of(log)
    first = start_driver(log, "a", place=place)
    with pytest.raises(FencedError) as caught:
        start_driver(log, "b", place=place)
    assert (caught.value.epoch, caught.value.epoch_in_force) == (0, 0)
    assert caught.value.driver_in_force == "a"
    assert first.appender.append(turns([1], 0, 0)) == (2,)
    assert counted(log) == ["E0", "a0"]


def test_a_driver_whose_epoch_was_taken_from_it_at_once_is_fenced(log: MemoryLog) -> None:
    log.faults.next_append(Unknown(stored=None))
    taker = MemoryLog.seen_by(log, "b")

    class Slow(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            start_driver(taker, "b")

    with pytest.raises(FencedError) as caught:
        start_driver(log.seen_by(""), "a", patience=Slow().patience())
    assert (caught.value.epoch_in_force, caught.value.driver_in_force) == (1, "b")


@pytest.mark.parametrize("outcome", [Fail(), Unknown(), Unknown(stored=None)])
def test_a_take_over_of_unknown_outcome_is_sent_again(
    log: MemoryLog, outcome: Fail | Unknown
) -> None:
    log.faults.next_append(outcome, outcome)
    driver = start_driver(log, "a")
    log.arrive()
    end = len(log.records)
    assert driver.appender.append(turns([1], 0, 0)) == (end,)
    assert counted(log) == ["E0", "a0"]


def test_a_take_over_that_an_older_drivers_turns_precede_folds_them(log: MemoryLog) -> None:
    old = start_driver(log, "a")
    place = place_of(log)
    view = log.seen_by("b")
    log.faults.next_append(Fail(), of="b")
    old.appender.append(turns([2], 0, 0))
    driver = start_driver(view, "b", place=place)  # reads a0 and a1, then appends right behind them
    assert [record.offset for record in driver.read] == [1, 2]
    assert driver.appender.append(turns([1], 1, 2, "b")) == (4,)
    assert counted(log) == ["E0", "a0", "a1", "E1", "b2"]


def test_each_record_before_a_take_over_is_handed_over_once(log: MemoryLog) -> None:
    log.store(plain("x", 9, 0), plain("y", 9, 0))
    log.faults.next_append(Unknown(stored=None), Unknown(stored=None))
    log.faults.next_reads(2, of="")
    read: list[StoredRecord] = []
    place = place_of(MemoryLog())
    driver = start_driver(log.seen_by("a"), "a", place=place)
    assert [record.offset for record in driver.read] == [0, 1, 2]
    assert read == []


def test_what_the_fold_of_the_caller_raises_ends_the_take_over(log: MemoryLog) -> None:
    log.store(plain("x", 9, 0))

    def refuse(record: StoredRecord) -> None:
        raise ValueError(record.offset)

    with pytest.raises(ValueError, match="0"):
        take_over(
            log,
            job_id="ingest",
            place=place_of(MemoryLog()),
            make_epoch_started=lambda epoch: epoch_started(epoch, "a"),
            reading=refuse,
            patience=FakeClock().patience(),
        )


def test_a_take_over_gives_up_at_the_log_timeout(log: MemoryLog, clock: FakeClock) -> None:
    place = place_of(log)
    log.faults.is_gone = True
    with pytest.raises(LogUnavailableError) as caught:
        start_driver(log, "a", patience=clock.patience(log_timeout_s=30), place=place)
    assert caught.value.doing == "taking over"
    assert clock.now == pytest.approx(1030)


def test_a_take_over_notices_a_log_that_has_lost_records(log: MemoryLog) -> None:
    start_driver(log, "a").appender.append(turns([1, 1], 0, 0))
    place = place_of(log)
    log.lose_from(1)
    with pytest.raises(OffsetGapError) as caught:
        start_driver(log, "b", place=place)
    assert (caught.value.expected_offset, caught.value.offset) == (3, 1)


def test_a_place_that_says_nothing_counted_wants_epoch_0() -> None:
    assert place_of(MemoryLog()).counting == NOTHING_COUNTED
