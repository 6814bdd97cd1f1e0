"""Topics as ranges that end: what a look finds, how it is cut, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coordlog.coordinators.enumerator import pages_of
from coordlog.coordinators.watching import SplitWatch
from coordlog.errors import SourceError, SourceUnavailableError
from coordlog.limits import WATCH_REPORT_S
from coordlog.log.kafka import Security
from coordlog.log.memory import MemoryLog
from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.spark_integration import KafkaSource
from coordlog.spark_integration.kafka import ranges
from coordlog.spark_integration.kafka.cluster import Cluster, Partition, Starting
from coordlog.spark_integration.kafka.discovery import Discovery
from coordlog.spark_integration.kafka.ranges import RangeWatch, lane_of, weight_of
from coordlog.spark_integration.kafka.state_bytes import has_listed
from fakes.kafka_fakes import FakeCluster
from jobs.reads_job import Outside, ReadsJob


class Looks:
    """A watch on a cluster that is changed by hand, and what its looks have found so far."""

    def __init__(self, *, interval_s: float | None = 1.0, starting: Starting = "earliest") -> None:
        self.cluster = FakeCluster()
        self.seconds = 0.0
        self.known: list[Split] = []
        self.interval_s = interval_s
        self.starting: Starting = starting
        self.kept: bytes | None = None
        self.discovers: dict[str, Any] = {"topics": ("t",), "pattern": None, "is_bounded": True}
        self.begin()

    def begin(self) -> None:
        """A new service."""
        self.watch = RangeWatch(
            Discovery(cluster=self.cluster, starting=self.starting, **self.discovers),
            split_offsets=10,
            interval_s=self.interval_s,
            has_listed=has_listed(self.kept),
            clock=lambda: self.seconds,
            wait=self.wait,
        )

    def wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return False

    def look(self) -> list[str]:
        found = self.watch.look(self.known)
        assert found.is_complete is (self.interval_s is None)
        self.known += found.splits
        self.kept = self.watch.note(self.kept, found)
        return [one.split_id for one in found.splits]


def serve(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every source read this cluster."""
    monkeypatch.setattr(Cluster, "topics", lambda _self, *asked: cluster.topics(*asked))
    monkeypatch.setattr(Cluster, "beginnings", lambda _self, asked: cluster.beginnings(asked))
    monkeypatch.setattr(Cluster, "ends", lambda _self, asked: cluster.ends(asked))


def test_each_query_finds_new_records_and_new_partitions_from_their_start() -> None:
    looks = Looks()
    looks.cluster.put("t", 4, 7)
    assert looks.look() == ["t/0@0..4", "t/1@0..7"]

    looks.cluster.ranges["t", 1] = (0, 9)
    looks.cluster.ranges["t", 2] = (0, 3)
    assert looks.look() == ["t/2@0..3", "t/1@7..9"]


def test_what_is_long_is_cut_and_goes_on_where_the_last_cut_ends() -> None:
    looks = Looks()
    looks.cluster.put("t", 25)
    assert looks.look() == ["t/0@0..10", "t/0@10..20", "t/0@20..25"]
    looks.known.pop()  # the driver ended before this page was in the log
    looks.begin()

    assert looks.look() == ["t/0@20..25"]
    assert {lane_of(one) for one in looks.known} == {"t/0"}
    assert [weight_of(one) for one in looks.known] == [2000, 2000, 1000]


def test_offsets_to_start_at_hold_for_more_partitions_than_a_page_has() -> None:
    """The second page of the listing knows the partitions of the first."""
    count = 5_000
    looks = Looks(starting={("t", number): 3 for number in range(count)})
    looks.cluster.put("t", *[4] * count)
    assert looks.look() == [f"t/{number}@3..4" for number in range(count)]
    assert len(list(pages_of(looks.known))) > 1


def test_an_offset_of_a_missing_partition_is_refused_on_each_page() -> None:
    count = 5_000
    looks = Looks(starting={("t", number): 3 for number in range(count + 1)})
    looks.cluster.put("t", *[4] * count)
    with pytest.raises(SourceError, match=f"t/{count}: `starting` has it, and no topic"):
        looks.look()


def test_a_look_decodes_no_split_that_an_earlier_one_knew(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    note = ranges._note  # pyright: ignore[reportPrivateUsage]

    def counted(split: Split, *maps: Any) -> None:  # noqa: ANN401, as `_note` takes them
        noted.append(split.split_id)
        note(split, *maps)

    looks = Looks()
    looks.cluster.put("t", 100, 50)
    looks.look()
    looks.look()
    monkeypatch.setattr(ranges, "_note", counted)
    assert looks.look() == []
    assert noted == []
    looks.cluster.ranges["t", 1] = (0, 55)
    assert looks.look() == ["t/1@50..55"]
    assert looks.look() == []
    assert noted == ["t/1@50..55"]
    # Streams have read the first ones, which are forgotten.
    del looks.known[:3]
    noted.clear()
    looks.cluster.ranges["t", 0] = (0, 101)
    assert looks.look() == ["t/0@100..101"]
    *before, _ = [one.split_id for one in looks.known]
    assert noted == before, "what is left is looked through anew"


@pytest.mark.parametrize(("microseconds", "expected_ms"), [(0, 0), (1, 1), (500, 1), (1000, 1)])
def test_a_moment_to_start_at_leaves_out_each_record_that_is_older(
    monkeypatch: pytest.MonkeyPatch, microseconds: int, expected_ms: int
) -> None:
    """A record has whole milliseconds: one of the millisecond that the moment is in may be older."""
    asked: list[object] = []

    def offsets(_self: Cluster, _partitions: object, spec: object, **_: str) -> dict[object, int]:
        asked.append(spec)
        return {}

    monkeypatch.setattr(Cluster, "_offsets", offsets)
    cluster = Cluster(bootstrap_servers="b:1", security=Security(), isolation="read_committed")
    moment = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    cluster.since([("t", 0)], moment)
    assert asked == [1_704_067_200_000 + expected_ms]


def test_a_record_during_the_search_for_a_moment_is_not_passed_over() -> None:
    """It came after the query that found no record of the moment or later."""

    class Growing(FakeCluster):
        def since(
            self, partitions: Sequence[Partition], moment: datetime
        ) -> dict[Partition, int | None]:
            found = super().since(partitions, moment)
            self.ranges = {("t", 0): (0, 6), ("t", 1): (0, 1)}
            return found

    looks = Looks(starting=datetime(2024, 1, 1, tzinfo=UTC))
    looks.cluster = Growing()
    looks.cluster.put("t", 5, 0)
    looks.begin()
    assert looks.look() == ["t/0@5..5", "t/1@0..0"]
    assert looks.look() == ["t/0@5..6", "t/1@0..1"]


def test_starting_holds_for_the_first_look_of_a_history_alone() -> None:
    looks = Looks(starting="latest")
    looks.cluster.put("t", 5)
    assert looks.look() == ["t/0@5..5"]
    looks.cluster.ranges["t", 0] = (0, 6)
    looks.cluster.ranges["t", 1] = (0, 2)
    looks.begin()

    assert looks.look() == ["t/1@0..2", "t/0@5..6"]


def test_start_offsets_hold_if_the_first_listing_is_cut_between_pages() -> None:
    looks = Looks(starting={("t", 0): 0, ("t", 1): 99_995})
    looks.cluster.put("t", 100_000, 100_000)
    first, *others = pages_of(looks.watch.look([]).splits)
    assert others, "the driver ends before these are in the log"
    looks.known = first
    looks.begin()
    looks.look()

    ids = {one.split_id for one in looks.known if lane_of(one) == "t/1"}
    assert ids == {"t/1@99995..100000"}


def test_a_look_waits_for_something_to_come_but_not_for_ever() -> None:
    looks = Looks()
    looks.cluster.put("t", 1)
    looks.look()

    assert looks.look() == []
    assert looks.seconds >= WATCH_REPORT_S


def test_with_an_end_there_is_one_look() -> None:
    looks = Looks(interval_s=None)
    looks.cluster.put("t", 12)

    assert looks.look() == ["t/0@0..10", "t/0@10..12"]
    assert looks.seconds == 0


def test_a_silent_cluster_may_return_and_one_never_reached_is_an_error() -> None:
    looks = Looks()
    looks.cluster.is_silent = True
    with pytest.raises(SourceError, match="no answer") as first:
        looks.look()
    assert not isinstance(first.value, SourceUnavailableError)

    looks.cluster.is_silent = False
    looks.cluster.put("t", 1)
    looks.look()
    looks.cluster.is_silent = True
    with pytest.raises(SourceUnavailableError):
        looks.look()


def test_a_topic_that_was_made_again_is_refused() -> None:
    looks = Looks()
    looks.cluster.put("t", 3)
    looks.look()
    looks.cluster.put("t", 3, topic_id="id-2")

    with pytest.raises(SourceError, match=r"deleted and made again"):
        looks.look()


def test_a_pattern_without_matches_waits_for_topics_if_unbounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    serve(cluster, monkeypatch)

    def watch(*, bounded: bool) -> SplitWatch:
        source = KafkaSource(pattern="t.*", bootstrap_servers="here:9092", bounded=bounded)
        split_watch = source.coordinated().open_watch(None).watch
        split_watch.close()  # waits for nothing
        return split_watch

    with pytest.raises(SourceError, match="there are none"):
        watch(bounded=True).look([], frozenset())
    unbounded = watch(bounded=False)
    assert unbounded.look([], frozenset()) == SplitsDiscovered(splits=[], is_complete=False)
    cluster.put("t1", 3)
    found = unbounded.look([], frozenset())
    assert isinstance(found, SplitsDiscovered)
    assert [one.split_id for one in found.splits] == ["t1/0@0..3"], "it ends"


def pattern_reads(
    cluster: FakeCluster, log: MemoryLog | None, monkeypatch: pytest.MonkeyPatch
) -> ReadsJob:
    """A service that reads the new records of all topics."""
    serve(cluster, monkeypatch)
    source = KafkaSource(
        pattern=".*", bootstrap_servers="here:9092", starting="latest", bounded=False
    )
    return ReadsJob(Outside(is_complete=False), log=log, source=source.coordinated())


def test_a_topic_after_a_first_listing_without_any_is_read_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    log = MemoryLog()
    pattern_reads(cluster, log, monkeypatch).find()
    cluster.put("t", 3)

    later = pattern_reads(cluster, log, monkeypatch)
    later.find()

    assert list(later.state.numbers) == ["t/0@0..3"]


def test_the_first_listing_is_reported_at_once_although_it_has_no_topic() -> None:
    looks = Looks(starting="latest")
    looks.discovers = {"topics": (), "pattern": ".*", "is_bounded": False, "splits_end": True}
    looks.begin()
    assert looks.look() == []
    assert looks.seconds == 0


def test_starting_holds_for_each_page_of_a_first_listing_that_is_cut_off() -> None:
    count = 5_000
    looks = Looks(starting={("t", number): 3 for number in range(count)})
    looks.cluster.put("t", *[4] * count)
    first, *others = pages_of(looks.watch.look([]).splits)
    assert others, "the driver ends before these are in the log"
    looks.known = first
    looks.begin()
    looks.look()

    assert {one.split_id for one in looks.known} == {f"t/{n}@3..4" for n in range(count)}


def test_a_listing_ends_although_partitions_of_two_pages_grow_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 5_000
    looks = Looks()
    looks.cluster.put("t", *[1] * count)
    looks.look()
    ends, asked = looks.cluster.ends, 0

    def growing(partitions: Sequence[Partition]) -> dict[Partition, int]:
        nonlocal asked
        asked += 1
        assert asked <= 2, "it begins again and again"
        looks.cluster.ranges = {one: (0, end + 1) for one, (_, end) in looks.cluster.ranges.items()}
        return ends(partitions)

    monkeypatch.setattr(looks.cluster, "ends", growing)
    assert looks.look() == [f"t/{n}@1..2" for n in sorted(range(count))]


def test_the_source_makes_it() -> None:
    source = KafkaSource(["t"], bootstrap_servers="here:9092", bounded=False).coordinated()

    assert source.is_unbounded
    assert isinstance(source.open_watch(None).watch, RangeWatch)
    assert source.schema_of(Split(split_id="", content=b"")).names[:2] == ["key", "value"]
