"""Rejects of a job of topics: each record is published once, as a row or as a reject, whatever dies when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.history import History
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.progress import progress
from coordlog.projections.tables.splits import splits
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Record
from coordlog.spark_integration.row_transforms import row_transform
from data.kafka_topics import Topics, topics_at
from jobs.file_pipeline import KilledError
from jobs.rejecting_job import drive

PARTITIONS, RECORDS = 3, 80

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.tier("faults")]


@pytest.fixture(scope="module")
def topics(broker: EmbeddedBroker) -> Iterator[Topics]:
    with topics_at(broker.bootstrap_servers) as one:
        yield one


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    """A topic with bad records among the good ones."""
    name = topics.create(PARTITIONS)
    for partition in range(PARTITIONS):
        topics.fill(name, partition, [value_of(partition, n) for n in range(RECORDS)])
    return name


def value_of(partition: int, number: int) -> str:
    return f"bad {number}" if is_bad(number) else f'{{"a": {partition * RECORDS + number}}}'


def is_bad(number: int) -> bool:
    return number % 7 == 3


def is_refused(number: int) -> bool:
    """Whether the transform raises at a row."""
    return number % 11 == 5


def refusing(batch: pa.RecordBatch) -> pa.RecordBatch:
    for value in batch.column("value").to_pylist():
        if is_refused(value["a"] % RECORDS):
            raise ValueError("it is refused")
    return batch


def is_rejected(number: int) -> bool:
    return is_bad(number) or is_refused(number)


@dataclass
class Case:
    """A destination, a folder of rejects and one log; a driver after the other."""

    folder: Path
    topics: Topics
    topic: str
    is_batch: bool
    log: MemoryLog = field(default_factory=lambda: MemoryLog("job"))

    def drive(self, kill_after: int | None = None) -> JobStatus:
        """Run one driver to its end, or up to its kill after so many records."""
        source = self.topics.source(
            self.topic,
            decode="json",
            value_schema="a bigint",
            batch_rows=9,
            bad_rows=self.folder / "rejects",
        )
        return drive(
            source,
            row_transform(refusing),
            self.folder / "out",
            self.log,
            is_batch=self.is_batch,
            kill_after=kill_after,
        )

    def rows(self) -> list[int]:
        """Published rows, sorted."""
        out = self.folder / "out"
        if not list(out.glob("*.parquet")):
            return []
        return sorted(value["a"] for value in pq.read_table(out).column("value").to_pylist())

    def rejects(self) -> list[tuple[str, int, int, str]]:
        """Published rejects: topic, partition, offset and text, sorted."""
        folder = self.folder / "rejects"
        if not list(folder.glob("*.parquet")):
            return []
        table = pq.read_table(folder)
        assert table.column_names == ["topic", "partition", "offset", "reason", "row"]
        return sorted(tuple(row.values()) for row in table.drop_columns("reason").to_pylist())

    def expected_rejects(self) -> list[tuple[str, int, int, str]]:
        return [
            (self.topic, partition, number, value_of(partition, number))
            for partition in range(PARTITIONS)
            for number in range(RECORDS)
            if is_rejected(number)
        ]

    def check_partial(self) -> None:
        """No row and no reject is there twice, or wrong."""
        rows, rejects = self.rows(), self.rejects()
        assert len(set(rows)) == len(rows)
        assert len(set(rejects)) == len(rejects)
        assert set(rejects) <= set(self.expected_rejects())

    def check_whole(self) -> None:
        """Each record is published once, and the history has the numbers."""
        every = range(PARTITIONS * RECORDS)
        assert self.rows() == [number for number in every if not is_rejected(number % RECORDS)]
        assert self.rejects() == self.expected_rejects()
        bad = sum(map(is_rejected, range(RECORDS)))
        counted = {(one.rows, one.rejected) for one in splits(self.records())}
        assert counted == {(RECORDS - bad, bad)}
        assert progress(self.records()).rejected == PARTITIONS * bad

    def records(self) -> list[Record]:
        return [one.record() for turn in History(self.log).turns() for one in turn.entries]


@pytest.mark.clause("H1")
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_driver_that_dies_after_any_record_doubles_no_record_of_a_topic(
    tmp_path: Path,
    topics: Topics,
    topic: str,
    is_batch: bool,  # noqa: FBT001, a parameter
    seed: int,
    dose: int,
) -> None:
    whole = Case(tmp_path / "whole", topics, topic, is_batch)
    assert whole.drive() is JobStatus.FINISHED
    whole.check_whole()
    count = len(whole.records())
    chance = random.Random(seed)
    for place in chance.sample(range(1, count), min(count - 1, 4 * dose)):
        case = Case(tmp_path / str(place), topics, topic, is_batch)
        try:
            case.drive(kill_after=place)
        except KilledError:
            case.check_partial()
            # The next driver dies too, somewhere else.
            try:
                case.drive(kill_after=chance.randrange(1, count))
            except KilledError:
                case.check_partial()
                case.drive()
        case.check_whole()
