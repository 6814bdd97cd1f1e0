"""New records of topics, as splits with an end: for queries, which read one range after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from coordlog.errors import SourceError, SourceUnavailableError
from coordlog.limits import WATCH_REPORT_S
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.spark_integration.kafka.cluster import Partition, named
from coordlog.spark_integration.kafka.discovery import Discovery, split_of
from coordlog.spark_integration.kafka.payloads import KafkaListing, KafkaSplit
from coordlog.spark_integration.kafka.state_bytes import LISTED

__all__ = ["RangeWatch", "lane_of", "weight_of"]

_SPLIT: Final = payload_type_of(KafkaSplit)
_BYTES_OF_RECORD: Final = 200
"""An estimate, which decides the number of splits that a task gets at once, and nothing else."""


class RangeWatch:
    """Finds the records of each partition after its known splits (`SplitWatch`).

    Args:
        discovery: Discovery of a bounded source, or with `splits_end`: splits end at the present ends
            of the partitions.
        split_offsets: Greatest number of offsets of a split; longer ranges are cut.
        interval_s: Seconds between two listings; None: one complete listing.
        has_listed: Whether the log has a whole listing of a service before; only until then `starting` holds.
        clock: Seconds, monotonic.
        wait: Waits for so many seconds, or until `close`; True at once after that.
    """

    def __init__(
        self,
        discovery: Discovery,
        *,
        split_offsets: int,
        interval_s: float | None,
        has_listed: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        assert discovery.is_bounded or discovery.splits_end, "its splits end"
        self._discovery, self._split_offsets = discovery, split_offsets
        self._interval_s, self._clock = interval_s, clock
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._has_listed, self._has_answered = has_listed, False
        self._noted = _Noted()

    def look(
        self, known: Sequence[Split], skipped: frozenset[str] = frozenset()
    ) -> SplitsDiscovered:
        """Splits after `known`; waits for new records, for a bounded time, if there is an interval.

        Raises:
            SourceError: A topic does not exist (any more), is another topic, or has lost records.
            SourceUnavailableError: The cluster does not answer, after it has answered before.
        """
        assert not skipped, "queries skip nothing"
        until_s = self._clock() + WATCH_REPORT_S
        while True:
            splits = self._look_once(known)
            self._has_answered = True
            if self._interval_s is None:
                return SplitsDiscovered(splits=splits, is_complete=True)
            # A first listing is reported at once: `starting` holds for another one until it is in the log.
            is_over = not self._has_listed or self._clock() >= until_s
            if splits or is_over or self._wait(self._interval_s):
                return SplitsDiscovered(splits=splits, is_complete=False)

    def note(self, _kept: bytes | None, _page: Payload) -> bytes:
        """Bytes that a coordinator keeps once a listing is in the log whole."""
        self._has_listed = True
        return LISTED

    def close(self) -> None:
        """Make a `look` that waits return. Any thread."""
        self._closed.set()

    def _look_once(self, known: Sequence[Split]) -> list[Split]:
        topic_ids, read_up_to = self._noted.upto(known)
        try:
            listing = self._discovery.whole_listing(
                topic_ids, is_first=not self._has_listed, read_up_to=read_up_to
            )
        except SourceError as error:
            if not self._has_answered:
                raise
            raise SourceUnavailableError(error.where, error.problem, error.next_step) from error
        _refuse(listing)
        return [cut for split in listing.splits for cut in _cut(split, self._split_offsets)]


class _Noted:
    """End of the known splits of each partition; splits of the last call are not decoded again."""

    def __init__(self) -> None:
        self._count, self._last_id = 0, ""
        self._topic_ids: dict[Partition, str] = {}
        self._read_up_to: dict[Partition, int] = {}

    def upto(self, known: Sequence[Split]) -> tuple[dict[Partition, str], dict[Partition, int]]:
        """Topic id and end by partition, for the caller to change."""
        is_longer = len(known) >= self._count > 0 and (
            known[self._count - 1].split_id == self._last_id
        )
        if not is_longer:  # splits were forgotten, or this is the first call
            self._count, self._topic_ids, self._read_up_to = 0, {}, {}
        for split in known[self._count :]:
            _note(split, self._topic_ids, self._read_up_to)
        self._count = len(known)
        self._last_id = known[-1].split_id if known else ""
        return dict(self._topic_ids), dict(self._read_up_to)


def _note(split: Split, topic_ids: dict[Partition, str], read_up_to: dict[Partition, int]) -> None:
    content = _content(split)
    partition = (content.topic, content.partition)
    topic_ids[partition] = content.topic_id
    read_up_to[partition] = max(content.end, read_up_to.get(partition, content.end))


def _refuse(listing: KafkaListing) -> None:
    if listing.problem:
        raise SourceError(listing.where, listing.problem, listing.next_step)


def _cut(split: Split, split_offsets: int) -> Iterator[Split]:
    content = _content(split)
    if content.end - content.start <= split_offsets:
        yield split
        return
    partition = (content.topic, content.partition)
    for start in range(content.start, content.end, split_offsets):
        end = min(start + split_offsets, content.end)
        yield split_of(partition, content.topic_id, start, end)


def lane_of(split: Split) -> str:
    """Sequence of a split, its partition: its splits are read in order."""
    content = _content(split)
    return named((content.topic, content.partition))


def weight_of(split: Split) -> int:
    """Weight of a split: its number of offsets."""
    content = _content(split)
    return (content.end - content.start) * _BYTES_OF_RECORD


def _content(split: Split) -> KafkaSplit:
    return cast("KafkaSplit", _SPLIT.decode(split.content))
