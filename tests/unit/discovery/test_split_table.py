"""A source's splits in pages: what is found by id or by order, and what several states share."""

from __future__ import annotations

import tracemalloc
import zlib
from dataclasses import replace

import pytest
from immutables import Map

from coordlog.limits import SNAPSHOT_STATE_BYTES_MAX
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import CompletedCheckpoint, Cut, JobState
from coordlog.projections.snapshot import splits_codec
from coordlog.projections.snapshot.codec import SnapshotCodec, SnapshotTooLargeError
from coordlog.projections.snapshot.splits_codec import SPLITS, SplitsCodec
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.splits.table import (
    PAGE_SPLITS,
    Assigned,
    Finished,
    SplitPage,
    SplitTable,
    WithEnumerator,
    unpacked_page,
)
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.source_types import Split

FREE = WithEnumerator()


def splits(count: int, prefix: str = "part") -> list[Split]:
    """With contents that do not compress to nothing."""
    return [
        Split(
            split_id=f"/data/{prefix}-{number:06d}",
            content=b"x" * 300 + zlib.crc32(b"%d" % number).to_bytes(4, "big") * 2,
        )
        for number in range(count)
    ]


def table_of(count: int) -> SplitTable:
    return SplitTable().extended(splits(count), lambda _: FREE)


@pytest.mark.parametrize("count", [0, 1, PAGE_SPLITS - 1, PAGE_SPLITS, PAGE_SPLITS + 1, 1_000])
def test_each_split_is_found_by_its_id_and_in_its_order(count: int) -> None:
    found, table = splits(count), table_of(count)

    assert list(table) == [one.split_id for one in found]
    assert list(table.in_order()) == found
    assert list(table.in_order()[1:-1]) == found[1:-1]
    for number, one in enumerate(found):
        known = table[one.split_id]
        assert (known.ordinal, known.split, known.place) == (number, one, FREE)
    assert "another" not in table
    assert len(table) == count


@pytest.mark.parametrize("count", [0, 3, PAGE_SPLITS, PAGE_SPLITS + 5, 700])
def test_a_table_that_is_shortened_is_that_of_the_first_ones(count: int) -> None:
    assert table_of(700).shortened(count) == table_of(count)
    again = table_of(700).shortened(count).extended(splits(700), lambda _: FREE)
    assert again == table_of(700)


def test_a_listing_that_comes_in_other_pieces_makes_the_same_table() -> None:
    made = SplitTable()
    for first in range(0, 900, 37):
        made = made.extended(splits(900)[first : first + 50], lambda _: FREE)
    assert made == table_of(900)


def test_pages_that_two_releases_of_zlib_have_packed_are_equal() -> None:
    page = table_of(PAGE_SPLITS).pages[0]
    other = zlib.compressobj(9, zdict=zlib.decompress(page.packed_names))
    contents = other.compress(page.unpacked_contents()) + other.flush()
    same = SplitPage(
        names=page.names,
        names_bytes=page.names_bytes,
        packed_names=page.packed_names,
        packed_contents=contents,
    )

    assert same.packed_contents != page.packed_contents
    assert same == page
    assert hash(same) == hash(page)
    assert same.splits() == page.splits()
    table = table_of(PAGE_SPLITS)
    twin = replace(table, pages=Map({0: same}))
    codec = SnapshotCodec(JobProjection(PayloadTypes(()), {"source": SPLITS}))
    hashes = {
        codec.state_hash(JobState(projections=Map({"source": SplitsState(splits=one)})))
        for one in (table, twin)
    }
    assert len(hashes) == 1


def test_a_split_that_moves_leaves_all_pages_but_its_own() -> None:
    table = table_of(1_000)
    moved = table.moved({"/data/part-000300": Assigned(subtask=1, sequence=7)})

    assert moved.place("/data/part-000300") == Assigned(subtask=1, sequence=7)
    assert table.place("/data/part-000300") == FREE
    assert all(moved.pages[number] is table.pages[number] for number in range(3))
    assert [moved.places[n] is table.places[n] for n in range(4)] == [True, False, True, True]
    assert list(moved.with_enumerator(302)) == [*range(300), 301]


def state_with(count: int, last_barrier: int) -> SplitsState:
    table = table_of(count)
    over = Finished(subtask=0, sequence=-1, last_barrier=-1, is_kept=False)
    late = Finished(subtask=0, sequence=5, last_barrier=last_barrier, is_kept=False)
    names = list(table)
    table = table.moved({name: late if n % 100 == 0 else over for n, name in enumerate(names)})
    return SplitsState(splits=table, fresh_from=count)


@pytest.mark.slow
def test_a_million_splits_and_three_checkpoints_are_far_below_the_limit() -> None:
    """Seen at 20,000: what a split costs does not grow with their number."""
    count = 20_000
    newest = state_with(count, 0)
    cuts = []
    for number in range(3):
        moved = newest.splits.moved({f"/data/part-{number:06d}": FREE})
        cuts.append(SplitsState(splits=moved, last_cut=number))
    completed = {
        number: CompletedCheckpoint(
            checkpoint_id=number,
            sequence=number,
            parallelism=1,
            cuts=Map({"source": Cut(sequence=1, state=None, projection=cut)}),
            states=Map(),
            finished=Map(),
            in_flight=(),
        )
        for number, cut in enumerate(cuts)
    }
    state = JobState(projections=Map({"source": newest}), completed=Map(completed))
    codec = SnapshotCodec(JobProjection(PayloadTypes(()), {"source": SPLITS}))
    made = codec.encode(state)

    assert made.state_bytes / count * 1_000_000 < SNAPSHOT_STATE_BYTES_MAX / 2
    found = codec.decode(made).state
    assert found == state
    shared = found.completed[0].cuts["source"].projection.splits
    assert shared.pages[7] is found.projections["source"].splits.pages[7]
    assert shared.places[7] is found.projections["source"].splits.places[7]


def test_a_page_that_is_no_page_is_refused() -> None:
    page = table_of(PAGE_SPLITS).pages[0]
    for names, limit, why in (
        (page.packed_names[:-9], 10**6, "does not end"),
        (page.packed_names, 100, "does not end"),
        (page.packed_names + b"x", 10**6, "does not end"),
        (b"no", 10**6, "is damaged"),
        (zlib.compress(b"\x02\x02a\x00"), 10**6, "has 256 splits, and this one 1"),
    ):
        with pytest.raises(ValueError, match=why):
            unpacked_page(names, page.packed_contents, limit)


def test_ids_that_fill_the_remaining_space_exactly_are_read_and_no_more() -> None:
    page = table_of(PAGE_SPLITS).pages[0]
    bomb = zlib.compress(bytes(50_000_000))

    read = unpacked_page(page.packed_names, page.packed_contents, page.names_bytes)
    assert (read, read.names_bytes) == (page, page.names_bytes)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="does not end within 0 bytes"):
            unpacked_page(bomb, page.packed_contents, 0)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_more_ids_than_are_read_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    held = state_with(2 * PAGE_SPLITS, 0)
    two = sum(held.splits.pages[number].names_bytes for number in range(2))
    state = JobState(projections=Map({"source": held}))
    codec = SnapshotCodec(JobProjection(PayloadTypes(()), {"source": SPLITS}))

    monkeypatch.setattr(splits_codec, "SNAPSHOT_NAMES_BYTES_MAX", two)
    assert codec.decode(codec.encode(state)).state == state

    monkeypatch.setattr(splits_codec, "SNAPSHOT_NAMES_BYTES_MAX", two - 1)
    with pytest.raises(SnapshotTooLargeError, match=f"{two} bytes, and {two - 1} are read"):
        codec.encode(state)
    assert codec.state_hash(state), "nobody reads that again"


def test_a_state_that_names_what_is_not_there_is_refused() -> None:
    def encoded(count: int) -> tuple[bytes, bytes]:
        writer = SplitsCodec().writer()
        own = writer.own(SplitsState(splits=table_of(count), fresh_from=count))
        return own, writer.shared()

    (large, _), (_, small) = encoded(2 * PAGE_SPLITS), encoded(3)
    with pytest.raises(ValueError, match="it refers to part 0 of 0"):
        SplitsCodec().reader(small).state(large)
    (few, _), (_, many) = encoded(3), encoded(PAGE_SPLITS)
    with pytest.raises(ValueError, match=r"are inconsistent|its first fresh split is"):
        SplitsCodec().reader(many).state(few)


@pytest.mark.timeout(20)
def test_gaps_of_a_snapshot_cost_no_time() -> None:
    """A snapshot may be another's: a few bytes in it may count any number of forgotten pages."""
    forgotten = 2**40
    table = SplitTable(page_count=forgotten).extended(splits(3), lambda _: FREE)
    writer = SplitsCodec().writer()
    first_free = writer.own(SplitsState(splits=table))
    none_free = writer.own(SplitsState(splits=table, fresh_from=table.end))
    reader = SplitsCodec().reader(writer.shared())
    names = tuple(split.split_id for split in splits(3))

    state = reader.state(first_free)
    assert (state.waiting_count, state.unassigned(), len(state.passed_over)) == (3, names, 0)
    behind = reader.state(none_free)
    assert (behind.waiting_count, behind.unassigned()) == (3, names)
    assert sorted(behind.passed_over) == [table.ordinal(name) for name in names]
