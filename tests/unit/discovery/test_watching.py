"""A watched source: what is found, when, and what is remembered of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.coordinators.watching import WatchingEnumerator
from coordlog.errors import OptionError, SourceError, SourceUnavailableError
from coordlog.limits import (
    LISTING_BACKOFF_S,
    LISTING_TIMEOUT_S,
    PAYLOAD_BYTES_MAX,
    WATCH_REPORT_S,
)
from coordlog.projections.splits.table import Finished, SplitTable
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import ListingFailed, Split, SplitsDiscovered
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.testing.driven_job import FakeAttempt, FakeClock, HandDrivenJob
from fakes.chain_fakes import read_all
from fakes.kernel_fakes import JumpyClock
from fakes.plain_watch import PlainWatch
from fakes.split_fakes import (
    NO_MORE,
    ask,
    chain_of,
    checkpoint,
    fail_globally,
    split,
    state_of,
    told,
)


# --- the enumerator -------------------------------------------------------------------------------
class Outside:
    """What a watch finds, at each look the next of `finds`; the last one again and again."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.is_over = False
        self.content = b""
        self.error: SourceError | None = None
        self.known: list[list[str]] = []
        self.closed = 0

    def look(self, known: Sequence[Split], skipped: frozenset[str]) -> SplitsDiscovered:
        if self.error is not None:
            raise self.error
        self.known.append([one.split_id for one in known])
        new = [name for name in self.names if name not in self.known[-1]]
        return SplitsDiscovered(
            splits=[split(name, self.content) for name in new], is_complete=self.is_over
        )

    def close(self) -> None:
        self.closed += 1


class Watched:
    """A job on it, whose looks are run one by one."""

    def __init__(self, *, parallelism: int = 1, clock: FakeClock | None = None) -> None:
        self.outside = Outside()
        self.chain = chain_of(
            SplitCoordinatorProvider(
                "source", enumerator=lambda context, _: WatchingEnumerator(context, self.outside)
            )
        )
        self.job = HandDrivenJob(self.chain, parallelism=parallelism, is_held=True, clock=clock)
        self.hold()

    def hold(self) -> None:
        self.job.is_work_held = True
        self.job.release()
        self.job.is_held = False

    def look(self) -> None:
        self.job.run(self.job.works.popleft())

    def crash(self) -> None:
        self.job.crash()
        self.job = HandDrivenJob(self.chain, log=self.job.log, is_held=True)
        self.hold()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_reader_waits_for_the_next_find_and_is_not_sent_away(watched: Watched) -> None:
    (attempt,) = watched.job.register_all()
    ask(attempt)
    watched.look()
    assert told(watched.job, attempt) == []

    watched.outside.names = ["a", "b"]
    watched.look()
    assert told(watched.job, attempt) == ["a"]
    ask(attempt)
    assert told(watched.job, attempt) == ["a", "b"]
    ask(attempt)
    watched.outside.is_over = True
    watched.look()
    assert told(watched.job, attempt) == ["a", "b", NO_MORE]
    assert not watched.job.works


@pytest.mark.clause("L3")
def test_after_a_crash_only_files_not_in_the_checkpoint_are_found_again(
    watched: Watched,
) -> None:
    (attempt,) = watched.job.register_all()
    watched.outside.names = ["a", "b"]
    watched.look()
    ask(attempt)
    checkpoint(watched.job, attempt)
    watched.outside.names = ["a", "b", "c"]
    watched.look()
    assert sorted(state_of(watched.job).splits) == ["a", "b", "c"]
    watched.crash()
    assert sorted(state_of(watched.job).splits) == ["a", "b"]

    watched.look()

    assert watched.outside.known[-1] == ["a", "b"]
    assert state_of(watched.job).unassigned() == ("b", "c")


def test_a_find_larger_than_a_record_comes_in_pages_each_good_by_itself(watched: Watched) -> None:
    (attempt,) = watched.job.register_all()
    watched.outside.content = bytes(100_000)
    watched.outside.names = [f"{number}" for number in range(5)]
    watched.outside.is_over = True
    ask(attempt)
    watched.look()
    assert told(watched.job, attempt) == ["0"]
    assert not state_of(watched.job).is_discovery_complete
    while watched.job.works:
        watched.look()

    key = payload_type_of(SplitsDiscovered).key
    pages = [one for one in watched.job.history(Kind.FACT) if one.payload_type == key]
    assert len(pages) == 5
    assert all(len(one.payload or b"") <= PAYLOAD_BYTES_MAX for one in pages)
    assert state_of(watched.job).is_discovery_complete
    assert state_of(watched.job).unassigned() == ("1", "2", "3", "4")


@pytest.mark.may_fail("it has changed")
def test_a_look_that_would_fail_again_fails_the_job_for_good_with_its_text(
    watched: Watched,
) -> None:
    watched.outside.error = SourceError("/data/a", "it has changed", "put it back")
    watched.look()

    (failed,) = watched.job.history(Kind.JOB_FAILED)
    assert "/data/a: it has changed; put it back" in str(failed.reason)
    assert watched.job.history(Kind.RESET_TO_CHECKPOINT) == []


def test_while_a_look_fails_and_is_tried_again_readers_go_on(watched: Watched) -> None:
    (attempt,) = watched.job.register_all()
    watched.outside.names = ["a", "b"]
    watched.look()
    ask(attempt)
    watched.outside.error = SourceUnavailableError("s3://b", "503", "wait")
    watched.look()
    ask(attempt)
    assert told(watched.job, attempt) == ["a", "b"]
    assert not watched.job.works, "not again at once"

    watched.job.advance(LISTING_BACKOFF_S)
    watched.look()
    watched.outside.error, watched.outside.names = None, ["a", "b", "c"]
    watched.job.advance(2 * LISTING_BACKOFF_S)
    watched.look()
    ask(attempt)

    assert told(watched.job, attempt) == ["a", "b", "c"]
    failures = [
        one
        for one in watched.job.history(Kind.FACT)
        if one.payload_type == payload_type_of(ListingFailed).key
    ]
    assert len(failures) == 2
    assert watched.job.history(Kind.ATTEMPT_FAILED, Kind.GLOBAL_FAILURE) == []


@pytest.mark.may_fail("s3://b: 503")
def test_listings_that_fail_for_too_long_fail_the_job_with_count_and_time(
    watched: Watched,
) -> None:
    watched.outside.error = SourceUnavailableError("s3://b", "503", "wait")
    began_s = watched.job.clock.seconds
    while not watched.job.history(Kind.JOB_FAILED):
        if watched.job.works:
            watched.look()
        due_s = watched.job.runtime.next_timer_s()
        if due_s is not None:
            watched.job.advance(due_s - watched.job.clock.seconds)
        assert watched.job.clock.seconds - began_s <= LISTING_TIMEOUT_S + 1

    (failed,) = watched.job.history(Kind.JOB_FAILED)
    assert failed.timestamp_us / 1e6 - began_s == pytest.approx(LISTING_TIMEOUT_S, abs=0.01)
    assert re.search(r"s3://b: 503; wait \(\d+ tries within 300 s failed\)", str(failed.reason))
    # 1, 2, 4, 8, 16, then every 30 s: few records for many minutes.
    assert "(15 tries" in str(failed.reason)


@pytest.mark.parametrize("ahead_s", [24 * 3600, -24 * 3600])
@pytest.mark.may_fail("s3://b: 503")
def test_a_clock_that_jumps_changes_no_limit_of_a_listing(ahead_s: float) -> None:
    clock = JumpyClock()
    watched = Watched(clock=clock)
    began_s = clock.seconds
    watched.outside.error = SourceUnavailableError("s3://b", "503", "wait")
    watched.look()
    clock.ahead_s = ahead_s
    while not watched.job.history(Kind.JOB_FAILED):
        assert clock.seconds - began_s <= LISTING_TIMEOUT_S + 1
        watched.job.advance(LISTING_BACKOFF_S)
        if watched.job.works:
            watched.look()

    assert clock.seconds - began_s >= LISTING_TIMEOUT_S


def test_a_failure_after_a_look_that_was_whole_is_a_first_one(watched: Watched) -> None:
    for _ in range(3):
        watched.outside.error = SourceUnavailableError("s3://b", "503", "wait")
        watched.look()
        watched.outside.error = None
        watched.job.advance(LISTING_BACKOFF_S)
        watched.look()
        watched.job.advance(LISTING_TIMEOUT_S / 2)

    assert watched.job.history(Kind.JOB_FAILED) == []


@pytest.mark.may_fail("scripted")
def test_the_watch_of_a_coordinator_that_is_replaced_is_closed(watched: Watched) -> None:
    watched.job.register_all()
    watched.job.is_work_held = False
    watched.outside.is_over = True
    fail_globally(watched.job)

    assert watched.outside.closed == 1


def test_a_watch_that_has_ended_looks_no_more_after_a_restore(watched: Watched) -> None:
    (attempt,) = watched.job.register_all()
    watched.outside.names, watched.outside.is_over = ["a"], True
    watched.look()
    checkpoint(watched.job, attempt)
    looks = len(watched.outside.known)
    watched.crash()

    assert not watched.job.works
    assert len(watched.outside.known) == looks
    again: list[FakeAttempt] = watched.job.register_all()
    for _ in range(2):
        ask(again[0])
    assert told(watched.job, again[0]) == ["a", NO_MORE]


def test_a_job_that_watches_no_more_lists_once_beside_what_is_known() -> None:
    watched = Watched()
    (attempt,) = watched.job.register_all()
    watched.outside.names = ["a"]
    watched.look()
    ask(attempt)
    checkpoint(watched.job, attempt)
    watched.job.crash()
    known: list[str] = []

    def more(
        splits: Sequence[Split],
        kept: bytes | None,
        skipped: frozenset[str],
        unread: frozenset[str],
    ) -> SplitsDiscovered:
        known.extend(one.split_id for one in splits)
        return SplitsDiscovered(splits=[split("b")], is_complete=True)

    provider = SplitCoordinatorProvider(
        "source", discover=lambda: pytest.fail("all anew"), discover_again=more
    )
    job = HandDrivenJob(chain_of(provider), log=watched.job.log)

    assert known == ["a"]
    assert state_of(job).is_discovery_complete
    assert state_of(job).unassigned() == ("b",)


# --- the files ------------------------------------------------------------------------------------
class Clock:
    """Time that passes where something waits; `at` has what happens after so many waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits = 0
        self.at: dict[int, Callable[[], object]] = {}
        self.is_closed = False

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        self.waits += 1
        self.at.get(self.waits, lambda: None)()
        return self.is_closed


def watch_of(
    folder: Path, clock: Clock, *, idle_timeout_s: float | None = None, **options: object
) -> PlainWatch:
    source = FileSource(folder, watch=Watch(), **options)  # type: ignore[arg-type]
    return PlainWatch(
        source._discovery,
        interval_s=1.0,
        idle_timeout_s=idle_timeout_s,
        clock=lambda: clock.now_s,
        wait=clock.wait,
    )


def test_a_look_ends_in_time_where_listings_are_far_apart(tmp_path: Path) -> None:
    clock = Clock()
    source = FileSource(tmp_path, watch=Watch())
    watch = PlainWatch(
        source._discovery,
        interval_s=3600.0,
        idle_timeout_s=None,
        clock=lambda: clock.now_s,
        wait=clock.wait,
    )
    write(tmp_path / "a.csv", "n\n1\n")
    found: list[SplitsDiscovered] = []
    while not (found and found[-1].splits):
        before_s = clock.now_s
        found.append(watch.look([]))
        assert clock.now_s - before_s <= WATCH_REPORT_S
    assert 3600 <= clock.now_s <= 3600 + WATCH_REPORT_S


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def names(found: SplitsDiscovered) -> list[str]:
    return [Path(one.split_id).name for one in found.splits]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def test_a_file_is_taken_when_two_listings_have_found_it_the_same(folder: Path) -> None:
    clock = Clock()
    watch = watch_of(folder, clock)
    write(folder / "a.csv", "i\n1")
    write(folder / "b.csv", "i\n1\n")
    clock.at = {
        1: lambda: write(folder / "a.csv", "i\n1\n2"),
        2: lambda: write(folder / "a.csv", "i\n1\n2\n"),
    }

    first = watch.look([])
    assert (names(first), clock.waits) == (["b.csv"], 1)
    second = watch.look(first.splits)
    assert (names(second), clock.waits) == (["a.csv"], 3)
    create_reader = FileSource(folder, watch=Watch()).spec().create_reader
    assert read_all(create_reader(), [one.content for one in second.splits]).rows == [(1,), (2,)]


@pytest.mark.fault("X11")
def test_nothing_is_found_twice_by_a_watch_that_begins_anew(folder: Path) -> None:
    for name in "ab":
        write(folder / f"{name}.csv", "i\n1\n")
    known = watch_of(folder, Clock()).look([]).splits
    write(folder / "c.csv", "i\n1\n")

    assert names(watch_of(folder, Clock()).look(known)) == ["c.csv"]


def test_what_a_driver_did_not_live_to_say_of_a_file_is_found(folder: Path) -> None:
    write(folder / "a.csv", "i\n1\n2\n3\n")
    options: dict[str, Any] = {"split_bytes": 3, "csv": CsvOptions(no_newlines_in_fields=True)}
    found = watch_of(folder, Clock(), **options).look([]).splits
    assert len(found) == 3

    again = watch_of(folder, Clock(), **options).look(found[:1])
    assert [one.split_id for one in again.splits] == [one.split_id for one in found]
    with pytest.raises(SourceError, match="cut otherwise than now"):
        watch_of(folder, Clock(), split_bytes=4, csv=CsvOptions(no_newlines_in_fields=True)).look(
            found[:1]
        )


def test_a_known_file_that_grew_is_named(folder: Path) -> None:
    for name in "ab":
        write(folder / f"{name}.csv", "i\n1\n")
    known = watch_of(folder, Clock()).look([]).splits
    for name in "ab":
        write(folder / f"{name}.csv", "i\n1\n2\n")

    with pytest.raises(SourceError) as caught:
        watch_of(folder, Clock()).look(known)
    assert caught.value.where == str(folder / "a.csv")
    assert caught.value.problem == (
        "it has changed since it was listed: it has 6 bytes; it had 4 when the source was listed "
        "(1 more files have changed too)"
    )
    with pytest.raises(SourceError, match="it has changed since it was listed"):
        FileSource(folder).discover_again(known)


def test_a_known_file_that_is_gone_again_is_nobodys_matter(folder: Path) -> None:
    write(folder / "a.csv", "i\n1\n")
    known = watch_of(folder, Clock()).look([]).splits
    (folder / "a.csv").unlink()
    write(folder / "b.csv", "i\n2\n")

    assert names(watch_of(folder, Clock()).look(known)) == ["b.csv"]


def test_an_empty_folder_is_watched_and_an_empty_file_waits_for_rows(
    folder: Path,
) -> None:
    clock = Clock()
    write(folder / "a.csv", "")
    clock.at = {3: lambda: write(folder / "a.csv", "i\n1\n")}

    assert names(watch_of(folder, clock).look([])) == ["a.csv"]
    assert clock.waits == 4


def test_all_files_have_the_schema_of_the_first_find(folder: Path) -> None:
    write(folder / "a.csv", "i\n1\n")
    known = watch_of(folder, Clock()).look([]).splits
    write(folder / "b.csv", "i\n2.5\n")
    write(folder / "c.csv", "j\n2\n")
    source = FileSource(folder, watch=Watch())

    found = watch_of(folder, Clock()).look(known).splits
    problems = []
    for one in found:
        with pytest.raises(SourceError) as caught:
            read_all(source.spec().create_reader(), [one.content])
        problems.append((Path(caught.value.where).name, caught.value.problem))
    assert problems == [
        ("b.csv", "row 2 (a header is row 1), column 'i': the value '2.5' is no int64"),
        ("c.csv", "its columns are ['j'], those of the source are ['i']"),
    ]


def test_a_parquet_file_that_is_not_whole_is_named_when_it_is_read(folder: Path) -> None:
    pq.write_table(pa.table({"i": [1]}), folder / "a.parquet")
    known = watch_of(folder, Clock(), format="parquet").look([]).splits
    (folder / "b.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-9])

    (found,) = watch_of(folder, Clock(), format="parquet").look(known).splits
    with pytest.raises(SourceError, match=r"b\.parquet: it cannot be read as Parquet"):
        read_all(
            FileSource(folder, format="parquet", watch=Watch()).spec().create_reader(),
            [found.content],
        )


def test_a_look_that_finds_nothing_says_so_after_its_time(folder: Path) -> None:
    clock = Clock()
    found = watch_of(folder, clock).look([])

    assert (found.splits, found.is_complete) == ([], False)
    assert clock.now_s == WATCH_REPORT_S


def test_a_watch_that_is_closed_returns(folder: Path) -> None:
    clock = Clock()
    clock.is_closed = True

    assert not watch_of(folder, clock).look([]).is_complete
    assert clock.waits == 1
    real = PlainWatch(
        FileSource(folder, watch=Watch())._discovery, interval_s=3600.0, idle_timeout_s=None
    )
    real.close()
    assert not real.look([]).is_complete


def test_a_file_that_is_taken_away_behind_its_listing_ends_no_watch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    write(folder / "a.csv", "i\n1\n")
    brief = write(folder / "brief.csv", "i\n2\n")
    real = InputFiles.walk

    def walked(files: InputFiles) -> Iterator[ListedFile]:
        found = list(real(files))
        if clock.waits:
            brief.unlink(missing_ok=True)  # behind the second listing, before it is opened
        return iter(found)

    monkeypatch.setattr(InputFiles, "walk", walked)
    assert names(watch_of(folder, clock).look([])) == ["a.csv"]


def test_a_watch_ends_when_for_so_long_no_file_was_new(folder: Path) -> None:
    clock = Clock()
    watch = watch_of(folder, clock, idle_timeout_s=10.0)
    clock.at = {7: lambda: write(folder / "a.csv", "i\n1\n")}

    first = watch.look([])
    assert (names(first), first.is_complete, clock.now_s) == (["a.csv"], False, 8.0)
    last = watch.look(first.splits)
    assert (names(last), last.is_complete, clock.now_s) == ([], True, 18.0)


def test_a_file_that_comes_during_a_long_listing_is_found_before_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = Clock(), InputFiles.walk

    def walked(files: InputFiles) -> Iterator[ListedFile]:
        yield from real(files)
        if clock.waits == 3 and not (folder / "a.csv").exists():  # behind all names
            write(folder / "a.csv", "i\n1\n")
            clock.now_s += 20.0

    monkeypatch.setattr(InputFiles, "walk", walked)
    watch = watch_of(folder, clock, idle_timeout_s=10.0)
    found = watch.look([])
    while not (found.splits or found.is_complete):
        found = watch.look([])
    assert (names(found), found.is_complete) == (["a.csv"], False)


def test_a_watch_does_not_end_while_a_name_waits_for_its_former_file(folder: Path) -> None:
    clock = Clock()
    write(folder / "a.csv", "i\n1\n")
    watch = watch_of(folder, clock, idle_timeout_s=5.0)
    watch.tolerates = lambda _path: True
    over = Finished(subtask=0, sequence=-1, last_barrier=-1, is_kept=False)
    table = SplitTable().extended(watch.look([]).splits, lambda _: over)
    (folder / "a.csv").unlink()
    write(folder / "a.csv", "i\n2\n2\n")

    waits = watch.look(table.in_order())
    assert (names(waits), waits.is_complete) == ([], False)
    released = table.forgetting(list(table))
    again = watch.look(released.in_order())
    if not again.splits:  # the next listing finds it the same
        again = watch.look(released.in_order())
    assert (names(again), again.is_complete) == (["a.csv"], False)


def test_a_look_ends_at_a_name_whose_former_file_is_being_released(
    folder: Path,
) -> None:
    clock = Clock()
    write(folder / "a.csv", "i\n1\n")
    watch = watch_of(folder, clock)
    watch.tolerates = lambda _path: True
    over = Finished(subtask=0, sequence=-1, last_barrier=-1, is_kept=False)
    table = SplitTable().extended(watch.look([]).splits, lambda _: over)
    write(folder / "a.csv", "i\n2\n2\n")

    begun_s = clock.now_s
    assert names(watch.look(table.in_order())) == []
    assert clock.now_s - begun_s <= 1.0, "one interval"


def test_a_change_that_looks_between_listings_do_not_see_is_an_error(
    folder: Path,
) -> None:
    """With notifications, most looks compare only the files that these name."""
    write(folder / "a.csv", "i\n1\n")
    watch = watch_of(folder, Clock())
    watch.tolerates = lambda _path: False  # its release was given up
    known = watch.look([]).splits
    write(folder / "a.csv", "i\n2\n2\n")
    watch.begin_look(known)
    watch.found_by_listing(known, frozenset())
    assert watch.left_for_later == {str(folder / "a.csv")}
    for _ in range(2):
        watch.begin_look(known)
        watch.found_of([], known, frozenset())
    watch.begin_look(known)
    with pytest.raises(SourceError, match="it has changed since it was listed"):
        watch.found_by_listing(known, frozenset())


def test_options_of_a_watch_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="at least 5, an interval"):
        FileSource(tmp_path, watch=Watch(idle_timeout_s=1.0))
    with pytest.raises(OptionError, match=r"between 0\.01 and"):
        FileSource(tmp_path, watch=Watch(watch_interval_s=0))
    with pytest.raises(OptionError, match="'pull' with `watch`"):
        FileSource(tmp_path, watch=Watch(), assignment="static")


def test_a_file_that_is_moved_away_while_its_folder_is_listed_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "b.csv", "i\n1\n")
    seen = os.listdir
    monkeypatch.setattr(
        "coordlog.spark_integration.files.listing.os.listdir", lambda path: ["a.csv", *seen(path)]
    )

    assert names(watch_of(folder, Clock()).look([])) == ["b.csv"]


def test_a_wholly_missing_source_may_return_and_a_broken_link_may_not(
    folder: Path,
) -> None:
    write(folder / "a.csv", "i\n1\n")
    (folder / "b.csv").symlink_to(folder / "nothing")
    with pytest.raises(SourceError, match=r"b\.csv: it is neither") as link:
        watch_of(folder, Clock()).look([])
    away = folder.rename(folder.with_name("away"))
    with pytest.raises(SourceUnavailableError, match="it does not exist"):
        watch_of(folder, Clock()).look([])

    assert not link.value.retriable
    (away / "b.csv").unlink()
    away.rename(folder)
    assert names(watch_of(folder, Clock()).look([])) == ["a.csv"]


@pytest.mark.clause("J2")
def test_a_file_that_is_skipped_may_change_and_is_not_found_again(folder: Path) -> None:
    write(folder / "a.csv", "i\n1\n")
    known = watch_of(folder, Clock()).look([]).splits
    skipped = frozenset(one.split_id for one in known)
    write(folder / "a.csv", "i\n1\n2\n")
    write(folder / "b.csv", "i\n3\n")

    assert names(watch_of(folder, Clock()).look(known, skipped)) == ["b.csv"]
    with pytest.raises(SourceError, match=r"a\.csv: it has changed"):
        watch_of(folder, Clock()).look(known, frozenset({"another"}))
