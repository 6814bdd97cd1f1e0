"""Finds the partitions of a Kafka source's topics, and makes splits of those that are not known."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, cast

from coordlog.coordinators.enumerator import pages_of
from coordlog.errors import SourceError
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.kafka.cluster import (
    SPREAD_PAUSES_S,
    FoundTopic,
    Partition,
    Starting,
    named,
)
from coordlog.spark_integration.kafka.payloads import UNBOUNDED, KafkaListing, KafkaSplit

__all__ = ["AsksCluster", "Discovery", "recreated", "renamed", "split_of"]

_SPLIT = payload_type_of(KafkaSplit)

_PAUSES_S: Final = (*SPREAD_PAUSES_S, 2.0, 3.0, 3.0)
"""Pauses between listings in which a known partition is missing, before it is taken for gone: `KAFKA_METADATA_S`."""


class AsksCluster(Protocol):
    """The queries of a listing; `Cluster` implements them."""

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the brokers, for messages."""
        ...

    def topics(self, names: Sequence[str], pattern: str | None) -> dict[str, FoundTopic]:
        """See `Cluster`."""
        ...

    def pause(self, seconds: float) -> None:
        """See `Cluster`."""
        ...

    def beginnings(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """See `Cluster`."""
        ...

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """See `Cluster`."""
        ...

    def written(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """See `Cluster`."""
        ...

    def since(
        self, partitions: Sequence[Partition], moment: datetime
    ) -> dict[Partition, int | None]:
        """See `Cluster`."""
        ...


def split_of(partition: Partition, topic_id: str, start: int, end: int) -> Split:
    """The split that reads a partition from `start` to `end`, exclusive, or without an end."""
    until = "" if end == UNBOUNDED else str(end)
    split_id = f"{named(partition)}@{start}..{until}"
    return _split(
        KafkaSplit(
            split_id=split_id,
            topic=partition[0],
            topic_id=topic_id,
            partition=partition[1],
            start=start,
            end=end,
        )
    )


def renamed(split: Split, split_id: str) -> Split:
    """The same split under another id."""
    content = cast("KafkaSplit", _SPLIT.decode(split.content))
    return _split(dataclasses.replace(content, split_id=split_id))


def _split(content: KafkaSplit) -> Split:
    return Split(split_id=content.split_id, content=_SPLIT.encode(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Lists partitions of the cluster. Blocks; runs on a worker."""

    cluster: AsksCluster
    topics: tuple[str, ...]
    pattern: str | None
    starting: Starting
    is_bounded: bool
    """True: there is no later listing, so that a listing without a topic is a problem."""
    splits_end: bool = False
    """True: splits end at the present ends of their partitions, also if the source is not bounded."""

    def listing(
        self,
        known: Mapping[Partition, str],
        *,
        is_first: bool,
        read_up_to: Mapping[Partition, int] | None = None,
    ) -> KafkaListing:
        """The first page of `whole_listing`."""
        whole = self.whole_listing(known, is_first=is_first, read_up_to=read_up_to)
        pages = list(pages_of(whole.splits)) or [[]]
        return dataclasses.replace(whole, splits=pages[0], is_whole=len(pages) == 1)

    def whole_listing(
        self,
        known: Mapping[Partition, str],
        *,
        is_first: bool,
        read_up_to: Mapping[Partition, int] | None = None,
    ) -> KafkaListing:
        """New splits, in the order of topics and partitions; or the problem that prevents them.

        Args:
            known: The partitions that have splits, each with its topic's id.
            is_first: Whether `starting` holds; partitions of later listings are read from their
                beginning.
            read_up_to: Ends of the splits of an earlier opening of the job: later records become
                splits too.

        Raises:
            SourceError: The cluster does not answer.
        """
        topics, since = self._topics(known), dict(read_up_to or {})
        for partition in self._deleted_since(topics, since):
            del since[partition]
            known = {one: topic_id for one, topic_id in known.items() if one != partition}
        problem = self._problem(topics, known, since)
        if problem is not None:
            return problem
        new = [
            (name, partition)
            for name, topic in sorted(topics.items())
            for partition in topic.partitions
            if (name, partition) not in known
        ]
        beginnings, ends = self.cluster.beginnings(new), self.cluster.ends([*new, *sorted(since)])
        # A start may be above the end of what may be read, while a transaction before it is open.
        written = self._written(since, ends)
        lost = [partition for partition, end in sorted(written.items()) if end < since[partition]]
        if lost:
            return _problem(
                SourceError(
                    f"partition {named(lost[0])}",
                    f"it was read up to offset {since[lost[0]]}, and ends at {written[lost[0]]} now",
                    "check that this is the cluster of the job's first run; records were lost",
                )
            )
        try:
            starts = {
                **(self._starts(new, known, beginnings, ends) if is_first else beginnings),
                **since,
            }
        except SourceError as error:
            return _problem(error)
        new += [
            partition for partition, offset in sorted(since.items()) if ends[partition] > offset
        ]
        splits_end = self.is_bounded or self.splits_end
        splits = [
            split_of(
                partition,
                topics[partition[0]].topic_id,
                starts[partition],
                max(starts[partition], ends[partition]) if splits_end else UNBOUNDED,
            )
            for partition in new
        ]
        return KafkaListing(splits=splits, is_whole=True)

    def _topics(self, known: Mapping[Partition, str]) -> dict[str, FoundTopic]:
        """The topics. A broker whose metadata lag may lack known partitions and new topics, so it is asked again."""
        names = sorted({*self.topics, *(topic for topic, _ in known)})
        for tries, pause_s in enumerate(_PAUSES_S):
            topics = self.cluster.topics(names, self.pattern)
            has_known = all(
                topic in topics and number in topics[topic].partitions for topic, number in known
            )
            has_named = all(name in topics for name in self.topics)
            if has_known and (has_named or tries >= len(SPREAD_PAUSES_S)):
                return topics
            self.cluster.pause(pause_s)
        return self.cluster.topics(names, self.pattern)

    def _deleted_since(
        self, topics: Mapping[str, FoundTopic], read: Mapping[Partition, int]
    ) -> list[Partition]:
        """Partitions that were read to their ends, of topics that do not exist and that the source does not name."""
        return [
            partition
            for partition in sorted(read)
            if partition[0] not in topics and not self._has(partition[0])
        ]

    def _has(self, topic: str) -> bool:
        """Whether the source names the topic, or its pattern matches it."""
        return topic in self.topics or bool(re.fullmatch(self.pattern or "", topic))

    def _written(
        self, wanted: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> Mapping[Partition, int]:
        """Ends with the records of open transactions, of the partitions with an offset above their `ends`."""
        above = [
            partition for partition, offset in sorted(wanted.items()) if ends[partition] < offset
        ]
        return self.cluster.written(above) if above else {}

    def _problem(
        self,
        topics: Mapping[str, FoundTopic],
        known: Mapping[Partition, str],
        read: Collection[Partition],
    ) -> KafkaListing | None:
        at = f"at {self.cluster.bootstrap_servers}"
        for name in self.topics:
            if name not in topics and not any(topic == name for topic, _ in known):
                return _problem(
                    SourceError(
                        f"topic {name}",
                        f"there is no such topic {at}",
                        "check that its name and the broker's address are right, or create it",
                    )
                )
        if self.pattern is not None and self.is_bounded and not topics:
            return _problem(
                SourceError(
                    f"the topics that match {self.pattern!r}",
                    f"there are none {at}",
                    "check that the pattern, which matches whole names, and the address are right",
                )
            )
        for (topic, partition), topic_id in sorted(known.items()):
            if not self._has(topic):
                return _problem(
                    SourceError(
                        f"topic {topic}",
                        "the job's history has splits of it, and the source does not name it",
                        "name it again, or use another job id",
                    )
                )
            here = topics.get(topic)
            if here is None:
                if (topic, partition) in read:
                    return _problem(self._deleted(topic))
                return _problem(
                    SourceError(
                        f"topic {topic}",
                        f"it is not {at} any more, and partition {partition} was being read",
                        "bring it back from a copy, or use another job id for the present topics",
                    )
                )
            if topic_id and here.topic_id and here.topic_id != topic_id:
                return _problem(recreated(topic, topic_id, here.topic_id))
            if partition not in here.partitions:
                return _problem(
                    SourceError(
                        f"topic {topic}",
                        f"partition {partition} was being read, and {at} it has "
                        f"{len(here.partitions)} partitions",
                        "check that this is the cluster of the job's first run",
                    )
                )
        return None

    def _deleted(self, topic: str) -> SourceError:
        """Error of a topic that was read to its end and deleted, and that the source names or its pattern matches."""
        without_it = "do not name it any more in `topics`"
        if topic not in self.topics:
            other = f"(?!{re.escape(topic)}$)(?:{self.pattern})"
            without_it = f"use a `pattern` that does not match it, such as {other!r}"
        return SourceError(
            f"topic {topic}",
            f"it is not at {self.cluster.bootstrap_servers} any more; all that it had was read",
            f"{without_it}; or bring it back from a copy",
        )

    def _starts(
        self,
        new: Sequence[Partition],
        known: Collection[Partition],
        beginnings: Mapping[Partition, int],
        ends: Mapping[Partition, int],
    ) -> Mapping[Partition, int]:
        """First offset of each new partition; `known` holds the partitions of earlier pages."""
        starting = self.starting
        if starting == "earliest":
            return beginnings
        if starting == "latest":
            return ends
        if isinstance(starting, datetime):
            # The ends are asked for first: a record that comes between the two queries may not be older.
            written = self.cluster.written(new)
            since = self.cluster.since(new, starting)
            return {
                partition: written[partition] if offset is None else offset
                for partition, offset in since.items()
            }
        assert isinstance(starting, Mapping), "the options were checked when the source was made"
        missing = [partition for partition in new if partition not in starting]
        unknown = sorted(
            partition
            for partition in starting
            if partition not in beginnings and partition not in known
        )
        if missing or unknown:
            raise SourceError(
                f"partition {named((missing or unknown)[0])}",
                "it has no offset in `starting`" if missing else "`starting` has it, and no topic",
                "set an offset for each partition that there is, and for no other",
            )
        last = {**ends, **self._written({one: starting[one] for one in new}, ends)}
        for partition in new:
            if not beginnings[partition] <= starting[partition] <= last[partition]:
                raise SourceError(
                    f"partition {named(partition)}",
                    f"`starting` has offset {starting[partition]}; there are "
                    f"{beginnings[partition]} to {last[partition]}, exclusive",
                    "use one of these, or the last to read new records alone",
                )
        return starting


def recreated(topic: str, was: str, now: str) -> SourceError:
    """Error of a topic that was deleted and made again under its name."""
    return SourceError(
        f"topic {topic}",
        f"it has id {now}, and the topic that was read had {was}: it has been deleted and made "
        "again, or this is another cluster",
        "use another job id to read the present topic",
    )


def _problem(error: SourceError) -> KafkaListing:
    return KafkaListing(
        splits=[],
        is_whole=True,
        problem=error.problem,
        where=error.where,
        next_step=error.next_step,
    )
