"""Batches without Spark: a frame that is a list of rows, and a table in memory that takes them in two steps."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource

from coordlog.errors import SinkError
from coordlog.spark_integration.batches.payloads import BatchPart, PartOutcome
from coordlog.spark_integration.batches.sinks import At, Batch, nowhere

_TASKS = itertools.count(7)

__all__ = ["ArrowFrame", "FakeFrame", "FakeSpark", "MemoryTable", "Stop"]


class FakeSpark:
    """As much of a session as the driver of batches looks at; gives one batch of one query."""

    version = "4.1.1"
    _jsparkSession = None  # noqa: N815, Spark's name
    _jvm = None
    _jsc: object = mock.MagicMock(**{"sc.return_value.isStopped.return_value": False})
    _get_j_spark_session_class = broadcast = statusTracker = mock.MagicMock()  # noqa: N815, Spark's names

    def __init__(self, query_id: str, batch_id: int) -> None:
        self._properties = {
            "sql.streaming.queryId": query_id,
            "streaming.sql.batchId": str(batch_id),
        }

    @property
    def conf(self) -> dict[str, str]:
        return {"spark.master": "local[2]"}

    @property
    def sparkContext(self) -> FakeSpark:  # noqa: N802, Spark's name
        return self

    @property
    def dataSource(self) -> FakeSpark:  # noqa: N802, Spark's name
        return self

    def register(self, source: type[DataSource]) -> None:
        assert source.name() == "coordlog"

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802, Spark's name
        return self._properties.get(name)


class FakeFrame:
    """The rows of one batch."""

    mapInArrow: Any = None  # noqa: N815, what tells a frame
    write: Any = None
    """Spark's writer of the frame."""

    def __init__(self, rows: list[str], *, query_id: str = "q-1", batch_id: int = 0) -> None:
        self.rows = rows
        self.sparkSession: Any = FakeSpark(query_id, batch_id)


class ArrowFrame(FakeFrame):
    """Partitions of rows, whose tasks run here, one after the other."""

    def __init__(
        self, partitions: list[pa.Table], *, query_id: str = "q-1", batch_id: int = 0
    ) -> None:
        super().__init__([], query_id=query_id, batch_id=batch_id)
        self._partitions = partitions
        self.columns = partitions[0].column_names

    def toDF(self, *names: str) -> ArrowFrame:  # noqa: N802, Spark's name
        """The frame with other names; a partition may have further columns, which Spark's have not."""
        return ArrowFrame(
            [
                one.rename_columns([*names, *one.column_names[len(names) :]])
                for one in self._partitions
            ]
        )

    def mapInArrow(  # noqa: N802, Spark's name
        self, function: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]], _schema: str
    ) -> _Mapped:
        return _Mapped(function, self._partitions)


class _Mapped:
    def __init__(
        self,
        function: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        partitions: list[pa.Table],
    ) -> None:
        self._function, self._partitions = function, partitions

    def collect(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for number, one in enumerate(self._partitions):
            task = SimpleNamespace(
                partitionId=lambda number=number: number, taskAttemptId=lambda: next(_TASKS)
            )
            with mock.patch.object(TaskContext, "get", return_value=task):
                for made in self._function(iter(one.to_batches())):
                    rows += zip(*(column.to_pylist() for column in made.columns), strict=True)
        return rows


@dataclass
class MemoryTable:
    """A table that several drivers share: staged by name, visible once its marker is there.

    Without `is_staging` it has one step, as tables with a commit of their own: only the rows themselves can be
    written, and the marker makes that safe to do again.
    """

    is_staging: bool = True
    destination: str = "memory"
    rows: list[str] = field(default_factory=list)
    markers: set[str] = field(default_factory=set)
    staged: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""
    """Why it cannot settle; empty: it can."""
    tries: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of_driver(self) -> MemoryTable:
        """The same table, as another process sees it: what is held there of frames is not here."""
        return _Seen(self)

    def prepare(self, job_id: str, spark: object) -> None:
        """Always there."""

    def stage(self, frame: Any, batch: Batch) -> BatchPart:  # noqa: ANN401, a FakeFrame
        name = f"{batch.driver_id}/{batch.key}"
        self.staged[name] = list(frame.rows)
        return BatchPart(sink=batch.sink, rows=len(frame.rows), files=[], details={"staged": name})

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        self.tries += 1
        if self.problem:
            raise SinkError("memory", self.problem, "mend it")
        at("looked")
        with self.lock:
            staged = self.staged.get(part.details["staged"])
            if str(batch.key) not in self.markers:
                if staged is None:
                    return PartOutcome(sink=part.sink, is_done=False, rows=-1, details={})
                self.rows += staged
                self.markers.add(str(batch.key))
        at("moved")
        self.staged.pop(part.details["staged"], None)
        return PartOutcome(sink=part.sink, is_done=True, rows=part.rows, details={})

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        names = list(self.staged)
        if is_in_force():
            for name in names:
                self.staged.pop(name, None)


class _Seen(MemoryTable):
    def __init__(self, table: MemoryTable) -> None:
        super().__init__(rows=table.rows, markers=table.markers, lock=table.lock)
        self.staged = table.staged if table.is_staging else {}


class Stop:
    """An `at` that stands still at one place, once, until it is let go: a driver that is paused there, or killed."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.reached, self.gone_on = threading.Event(), threading.Event()
        self.seen: list[str] = []

    def __call__(self, place: str) -> None:
        self.seen.append(place)
        if place.startswith(self.place) and not self.reached.is_set():
            self.reached.set()
            assert self.gone_on.wait(240), "somebody lets it go"
