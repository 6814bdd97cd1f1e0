"""A cluster and a consumer that do as they are told: for the edges of a Kafka source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from coordlog.errors import SourceError
from coordlog.spark_integration.kafka.cluster import FoundTopic, Partition
from coordlog.spark_integration.kafka.consumer import Position
from coordlog.spark_integration.kafka.rows import Received


@dataclass(kw_only=True)
class FakeCluster:
    """Topics with an id, and for each partition where it begins and ends."""

    ids: dict[str, str] = field(default_factory=dict)
    ranges: dict[Partition, tuple[int, int]] = field(default_factory=dict)
    is_silent: bool = False
    lagging: int = 0
    """Answers that come from a broker that does not know the topics yet."""
    pauses: list[float] = field(default_factory=list)
    bootstrap_servers: str = "fake:9092"

    def put(self, topic: str, *ends: int, topic_id: str = "id-1") -> None:
        self.ids[topic] = topic_id
        for number, end in enumerate(ends):
            self.ranges.setdefault((topic, number), (0, end))

    def topics(self, names: Sequence[str], pattern: str | None) -> dict[str, FoundTopic]:
        if self.is_silent:
            raise SourceError("Kafka at fake:9092", "no answer for 10.0 s", "see to it")
        if self.lagging:
            self.lagging -= 1
            return {}
        return {
            name: FoundTopic(
                name=name,
                topic_id=topic_id,
                partitions=tuple(sorted(p for topic, p in self.ranges if topic == name)),
                is_internal=False,
            )
            for name, topic_id in self.ids.items()
            if name in names or pattern is not None
        }

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def beginnings(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {one: self.ranges[one][0] for one in partitions}

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {one: self.ranges[one][1] for one in partitions}

    def written(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return self.ends(partitions)

    def since(
        self, partitions: Sequence[Partition], moment: datetime
    ) -> dict[Partition, int | None]:
        return dict.fromkeys(partitions)


@dataclass(frozen=True, kw_only=True)
class FakeRecord:
    offset: int
    leader_epoch: int = -1
    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def records(*offsets: int) -> list[Received]:
    return [FakeRecord(offset=one) for one in offsets]


@dataclass(kw_only=True)
class FakeConsumer:
    """Gives what was put into `coming`, a poll at a time; its position is that of the last given, or as set."""

    coming: list[Mapping[Partition, Sequence[Received]] | Exception] = field(default_factory=list)
    positions: dict[Partition, int] = field(default_factory=dict)
    ids: dict[str, str | None] = field(default_factory=dict)
    assigned: list[dict[Partition, int]] = field(default_factory=list)
    answered_at: float = 0.0
    is_closed: bool = False
    opened: int = 0

    def __call__(self, positions: Mapping[Partition, Position], records_max: int) -> FakeConsumer:
        self.opened += 1
        self.is_closed = False
        self.positions = {}
        self._now(positions)
        return self

    def assign(self, positions: Mapping[Partition, Position]) -> None:
        self._now(positions)

    def _now(self, positions: Mapping[Partition, Position]) -> None:
        self.assigned.append({one: position.offset for one, position in positions.items()})
        self.positions = {
            one: self.positions.get(one, position.offset) for one, position in positions.items()
        }

    def poll(self, records_max: int) -> Mapping[Partition, Sequence[Received]]:
        assert not self.is_closed
        given = self.coming.pop(0) if self.coming else {}
        if isinstance(given, Exception):
            raise given
        for one, found in given.items():
            self.positions[one] = found[-1].offset + 1
        return given

    def position(self, partition: Partition) -> Position:
        return Position(self.positions[partition])

    def topic_id(self, topic: str) -> str | None:
        return self.ids.get(topic, "id-1")

    def close(self) -> None:
        self.is_closed = True
