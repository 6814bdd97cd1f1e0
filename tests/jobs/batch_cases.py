"""Drivers of batches that stand still in the middle of one, and others that take over from them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pyspark import InheritableThread

from coordlog.errors import CoordlogError
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration.batches.exactly_once import ExactlyOnce, Sinks, sinks_of
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.batches.sinks import At, nowhere
from fakes.batch_fakes import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BatchCase", "StreamCase"]

WAIT_S = 120.0

Frame = Any
"""A DataFrame, or what stands for one."""


class BatchCase:
    """One job's batches; each driver has a sink object of its own, as in a process of its own."""

    def __init__(
        self, make_sink: Callable[[], Sinks], job_id: str = "case", instead_of: str = ""
    ) -> None:
        self.make_sink, self.log = make_sink, MemoryLog()
        self.job_id, self.instead_of = job_id, instead_of

    def driver(self, at: At = nowhere) -> ExactlyOnce:
        def to_each(frame: Frame, _batch_id: int) -> Mapping[str, Frame]:
            """Every sink gets all rows."""
            return dict.fromkeys(sinks_of(self.make_sink()), frame)

        return ExactlyOnce(
            to_each,
            service=lambda: BatchService(
                job_id=self.job_id,
                log=self.log,
                sinks=sinks_of(self.make_sink()),
                instead_of=self.instead_of,
                take_over=True,
                retry_backoff_s=0.001,
                at=at,
            ),
            at=at,
        )

    def give(self, driver: ExactlyOnce, batch_id: int, frame: Frame) -> None:
        """Call a driver with a batch."""
        driver(frame, batch_id)

    def dies_at(self, place: str, batch_id: int, frame: Frame, look: Callable[[], None]) -> None:
        """A driver stands still at this place of a batch; another one writes it; the first goes on.

        `look` is called when the second has written it, and when the first has done what it does late.
        """
        stop = Stop(place)
        first, second, came = self.driver(stop), self.driver(), list[str]()

        def work() -> None:
            try:
                self.give(first, batch_id, frame)
            except CoordlogError as error:
                came.append(type(error).__name__)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            assert stop.reached.wait(WAIT_S), f"it comes by {place}: {stop.seen}, {came}"
            self.give(second, batch_id, frame)
            look()
            stop.gone_on.set()
            thread.join(WAIT_S)
            look()
        finally:
            stop.gone_on.set()
            second.close()
            first.close()
        assert came == ["FencedError"], came


class StreamCase(BatchCase):
    """The same, given as a query of a Spark session gives them."""

    def __init__(
        self, spark: SparkSession, make_sink: Callable[[], Sinks], job_id: str = "case"
    ) -> None:
        super().__init__(make_sink, job_id)
        self.spark, self.query_id = spark, str(uuid.uuid4())

    def give(self, driver: ExactlyOnce, batch_id: int, frame: Frame) -> None:
        """Call a driver on a thread that has the properties of a query's."""
        error: list[BaseException] = []

        def work() -> None:
            context = self.spark.sparkContext
            context.setLocalProperty("sql.streaming.queryId", self.query_id)
            context.setLocalProperty("streaming.sql.batchId", str(batch_id))
            try:
                driver(frame, batch_id)
            except BaseException as raised:  # noqa: BLE001, raised again where it is waited for
                error.append(raised)

        thread = cast("threading.Thread", InheritableThread(target=work, daemon=True))
        thread.start()
        thread.join(WAIT_S)
        assert not thread.is_alive(), "within its time"
        if error:
            raise error[0]
