"""Topics of a test's own: made, filled, and read by a source's reader until its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from coordlog.api.operator import FinishedSplit, PollStatus, SourceReader
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.kafka.payloads import KafkaListing
from coordlog.spark_integration.kafka.source import KafkaSource
from fakes.chain_fakes import FakeContext

WAIT_S = 60.0

_numbers = count()


@dataclass(kw_only=True)
class Topics:
    """A broker's topics."""

    servers: str
    admin: Any
    made: list[str] = field(default_factory=list)

    def create(self, partitions: int = 1, *, name: str | None = None, **configs: str) -> str:
        name = name or f"topic-{time.time_ns()}-{next(_numbers)}"
        settings = {one.replace("_", "."): value for one, value in configs.items()}
        # Some records are of 1970: the retention of brokers that live for five minutes removes those.
        settings = {"retention.ms": "-1", **settings}
        self.admin.create_topics(
            {
                name: {
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": settings,
                }
            }
        )
        self.made.append(name)
        return name

    def fill(self, topic: str, partition: int, values: Sequence[str | None], **more: Any) -> None:  # noqa: ANN401
        # A new one each time: an older one does not know of partitions that were added since.
        producer = KafkaProducer(bootstrap_servers=self.servers)
        try:
            futures = [
                producer.send(
                    topic,
                    value=None if one is None else one.encode(),
                    partition=partition,
                    **more,
                )
                for one in values
            ]
            for one in futures:
                one.get(timeout=WAIT_S)
        finally:
            producer.close(timeout=5)

    def delete(self, topic: str) -> None:
        """Remove it and wait until it is gone."""
        self.admin.delete_topics([topic])
        end = time.monotonic() + WAIT_S
        while topic in self.admin.list_topics():
            assert time.monotonic() < end
            time.sleep(0.05)

    def source(self, *topics: str, **options: Any) -> KafkaSource:  # noqa: ANN401, as they come
        return KafkaSource(topics, bootstrap_servers=self.servers, **options)


@contextmanager
def topics_at(servers: str) -> Iterator[Topics]:
    """Closed at the end."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        yield Topics(servers=servers, admin=admin)
    finally:
        admin.close()


def listed(source: KafkaSource, *, is_first: bool = True) -> KafkaListing:
    return source._discovery.listing({}, is_first=is_first)


def contents(splits: Sequence[Split]) -> list[bytes]:
    return [one.content for one in splits]


@dataclass(kw_only=True)
class ReadOut:
    """What a reader has given."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    finished: list[FinishedSplit] = field(default_factory=list)
    is_at_end: bool = False

    @property
    def places(self) -> list[tuple[int, int]]:
        """Partition and offset of each row, sorted."""
        return sorted(
            place
            for batch in self.batches
            for place in zip(
                batch.column("partition").to_pylist(),
                batch.column("offset").to_pylist(),
                strict=True,
            )
        )

    @property
    def values(self) -> list[object]:
        return [one for batch in self.batches for one in batch.column("value").to_pylist()]


def read(
    reader: SourceReader, out: ReadOut, *, rows: int | None = None, limit_s: float = WAIT_S
) -> ReadOut:
    """Poll until the end, or until so many rows are there in all; fails where that takes too long."""
    until = time.monotonic() + limit_s
    while rows is None or len(out.values) < rows:
        assert time.monotonic() < until, f"only {len(out.values)} rows"
        polled = reader.poll()
        if polled.status is PollStatus.BATCH and polled.batch is not None:
            out.batches.append(polled.batch)
        elif polled.status is PollStatus.SPLIT_FINISHED and polled.finished is not None:
            out.finished.append(polled.finished)
        elif polled.status is PollStatus.END:
            out.is_at_end = True
            return out
        else:
            time.sleep(polled.retry_s)
    return out


def opened(source: KafkaSource, splits: Sequence[Split] = (), **context: Any) -> SourceReader:  # noqa: ANN401, as they come
    """A reader of its own, with these splits."""
    reader = source.spec().create_reader()
    reader.open(FakeContext(**context), None)
    reader.start()
    reader.add_splits(contents(splits))
    return reader
