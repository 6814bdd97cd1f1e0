"""The decisions of the protocol, one at a time, where a whole log would be in the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordlog.log import append_protocol as protocol
from coordlog.log.append_protocol import DriverState, Place
from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.schemas.validity import NOTHING_COUNTED
from histories.log_records import epoch_started, plain, turns

EMPTY = Place(end_offset=0, counting=NOTHING_COUNTED)


def stored(record: UnstoredRecord, offset: int) -> StoredRecord:
    return StoredRecord(
        offset=offset,
        key=record.key,
        value=record.value,
        header_bytes=record.header,
        timestamp_ms=0,
    )


def active() -> DriverState:
    """Driver a, epoch 0, at offset 1."""
    state = protocol.take_over_begun(EMPTY, epoch_started(0, "a"))
    return protocol.acknowledged(state, [0])


def appending(sizes: Sequence[int]) -> DriverState:
    return protocol.append_begun(active(), turns(sizes, 0, 0))


def test_a_take_over_that_comes_next_rests() -> None:
    assert protocol.next_action(active()) == protocol.Rest()


def test_contiguous_offsets_need_no_reading() -> None:
    state = protocol.acknowledged(appending([2, 1]), [1, 2, 3])
    assert protocol.next_action(state) == protocol.Rest()
    assert state.counted_at == (1, 2, 3)


@pytest.mark.parametrize(
    "offsets", [(2, 3, 4), (1, 2, 4), (1, 3, 4), (2, 1, 3), (1, 3, 2), (3, 2, 1), (1, 1, 3)]
)
def test_every_offset_is_looked_at(offsets: tuple[int, ...]) -> None:
    state = protocol.acknowledged(appending([2, 1]), offsets)
    assert protocol.next_action(state) == protocol.Read(1, max(offsets) + 1)


@pytest.mark.parametrize("offsets", [(0, 1, 2), (1, 2, 0), (1, 0, 3)])
def test_one_offset_below_the_expected_one_means_lost_records(offsets: tuple[int, ...]) -> None:
    state = protocol.acknowledged(appending([2, 1]), offsets)
    assert protocol.next_action(state) == protocol.Lost(1, 0)


def test_offsets_as_expected_are_read_if_the_log_may_be_another() -> None:
    state = protocol.acknowledged(appending([2, 1]), [1, 2, 3], is_read_back=True)
    assert protocol.next_action(state) == protocol.Read(1, 4)
    for place, sent in enumerate(turns([2, 1], 0, 0), start=1):
        state = protocol.record_read(state, stored(sent, place))
    state = protocol.reading_ended(state)
    assert protocol.next_action(state) == protocol.Rest()
    assert state.counted_at == (1, 2, 3)


def test_an_acknowledged_group_that_the_fold_does_not_find_is_sent_again() -> None:
    state = protocol.acknowledged(appending([1, 1]), [2, 3])
    state = protocol.record_read(state, stored(plain("x", 9, 0), 1))
    state = protocol.reading_ended(state)  # at 2 and 3 there is nothing
    assert protocol.next_action(state) == protocol.Append(tuple(turns([1, 1], 0, 0)))


def test_a_group_of_which_a_part_counts_is_not_confirmed() -> None:
    first, second = turns([1, 1], 0, 0)
    state = protocol.acknowledged(appending([1, 1]), [2, 3])
    state = protocol.record_read(state, stored(first, 2))
    state = protocol.reading_ended(state)
    assert protocol.next_action(state) == protocol.Append((second,))
    assert state.counted_at == (2,)


def test_an_unknown_outcome_asks_and_reads_before_anything_is_sent() -> None:
    state = protocol.outcome_unknown(appending([1]))
    assert protocol.next_action(state) == protocol.ReadHighWatermark()
    state = protocol.high_watermark(state, 5)
    assert protocol.next_action(state) == protocol.Read(1, 5)
    state = protocol.reading_ended(state)
    assert protocol.next_action(state) == protocol.Append(tuple(turns([1], 0, 0)))


def test_another_epoch_with_our_number_fences_a_take_over() -> None:
    state = protocol.take_over_begun(EMPTY, epoch_started(0, "a"))
    state = protocol.acknowledged(state, [1])
    other = stored(epoch_started(0, "b"), 0)
    state = protocol.record_read(state, other)
    state = protocol.record_read(state, stored(epoch_started(0, "a"), 1))
    assert protocol.next_action(protocol.reading_ended(state)) == protocol.Fenced(other)
