"""Sinks of batches: the port `BatchSink`, and the sink that settles the coordinator's intents by them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from coordlog.errors import SinkError
from coordlog.log.interface import LogIdentity
from coordlog.restore.destination_claim import LossChecking
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.payloads import (
    BatchIntent,
    BatchOutcome,
    BatchPart,
    PartOutcome,
)
from coordlog.spark_integration.driver.stage import name_lost_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "At",
    "Batch",
    "BatchSink",
    "PartsSink",
    "have_query",
    "map_numbered",
    "nowhere",
    "refuse_older",
]

At = Callable[[str], None]
"""Called with the name of each place at which a crash would leave unfinished work."""


def nowhere(place: str) -> None:
    """Do nothing at any place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that is being written, by one driver."""

    job_id: str
    driver_id: str
    """Random id of one driver's life, in each staged name (M5: drivers share no names)."""
    key: BatchKey
    sink: str
    """Name of the sink in the job."""
    is_first: bool = False
    """While it is staged: whether it is the first of its query, the log has no batch of any query, and no sink has one
    of `instead_of`."""
    number: int = 0
    """Number of the batch's intent, as in `BatchIntent`; 0 while it is staged, as of the following."""
    place: int = 0
    """Place of the batch's intent, as in `BatchIntent`."""
    epoch: int = 0
    """Epoch of the driver that recorded the intent."""


@runtime_checkable
class BatchSink(Protocol):
    """Destination in which a batch becomes visible, in two steps. Users may implement it, too.

    Order of the calls: `prepare` first in each driver; for each batch `stage`, on the thread of the batch; once the
    intent is in the log `settle`, on a worker. After a crash the next driver calls `settle` for each intent without an
    outcome, before any batch; `stage` ran in another process then. `settle` may run twice at once, in two drivers:
    the slower call must change nothing that a reader can see.
    """

    @property
    def destination(self) -> str:
        """Name of the destination for the log: without credentials."""
        ...

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """Check that the destination can be written to and belongs to no other job. Raises SinkError."""
        ...

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """Write the batch durably and invisibly; returns the values that `settle` needs. Raises SinkError."""
        ...

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """Check which steps of the part are done, and do the missing ones.

        The outcome has `is_done=False` if the staged rows are lost or the table refuses them, with the reason as
        `refused` in the details. The batch is then staged again when Spark replays it; nothing of this part is visible,
        nor will be later.

        Raises:
            SinkError: The part cannot be settled; the call is repeated, a few times.
        """
        ...

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """Remove the staged data of earlier drivers, which have no open intent.

        First list the data to remove, then call `is_in_force`, and only if it returns True remove the listed data:
        another driver may have taken over, and its staged data must not be removed.
        """
        ...


@runtime_checkable
class _Claiming(Protocol):
    """A sink that can check which log writes to it."""

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """Record this log as the writer, or raise SinkError if another log is."""
        ...


@runtime_checkable
class _OfNames(Protocol):
    """A sink whose destination keeps what is written under one name of the sink apart from that under another."""

    def refuse_lost_names(self, job_id: str, names: Collection[str]) -> None:
        """Raise SinkError if the destination has no trace of one of these names, all of which have committed."""
        ...


@runtime_checkable
class _OfQueries(Protocol):
    """A sink whose destination keeps the queries of a job."""

    def has_query(self, job_id: str, query_id: str, /) -> bool:
        """Whether it has a batch of this query. Raises SinkError."""
        ...


@runtime_checkable
class _OfWrites(Protocol):
    """A sink whose destination has the number of its newest batch writes."""

    def refuse_writes_above(self, job_id: str, number: int) -> None:
        """Raise SinkError if the destination has a batch write of the job with a higher number."""
        ...


def have_query(sinks: Collection[BatchSink], job_id: str, query_id: str) -> bool:
    """Whether any destination has a batch of this query: not each one has had rows of it.

    Raises:
        SinkError: A destination cannot be read.
    """
    return bool(query_id) and any(
        isinstance(sink, _OfQueries) and sink.has_query(job_id, query_id) for sink in sinks
    )


def _names_at(destination: str, sinks: Mapping[str, str], committed: Collection[str]) -> set[str]:
    """Names of the sinks that have committed to a destination, by the destinations of whole starts.

    A name may have blanks. It begins the text, or follows another destination: one of those of `sinks`, by name, which
    are known, or else one that ends at the last blank.
    """
    names: set[str] = set()
    for earlier in committed:
        for text in f"{earlier} ".split(f"={destination} ")[:-1]:
            name = text
            for other in sinks.values():
                name = name.rpartition(f"={other} ")[2]
            follows_other = "=" in name and name not in sinks
            names.add(name.rpartition(" ")[2] if follows_other else name)
    return names


def refuse_older(where: str, key: BatchKey, newest: int | None) -> None:
    """Refuse to stage a batch below the newest one of its query in a table, which would take it for written.

    The log does not have the batches between, so that it is an older copy. If the checkpoint is one too, Spark has
    planned the batch anew, with the rows that came since.

    Raises:
        SinkError: It is below.
    """
    if newest is not None and newest > key.batch_id:
        raise SinkError(
            where,
            f"the table has batch {newest} of query {key.query_id}, and the log has no batch from {key.batch_id} on: "
            "log and checkpoint are older copies, and other rows may have this number now; to skip them would lose "
            "rows, to write them would double some",
            "put the newest checkpoint back; else begin a query with a new checkpoint after the rows of batch "
            f"{newest}, with instead_of={key.query_id!r}",
        )


def map_numbered(
    frame: DataFrame,
    task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """As `mapInArrow`, but column names may have any characters: the task receives the columns numbered, in order.

    PySpark looks up each column by its name, and reads a dot, a backtick or a star in it as syntax.
    """
    return frame.toDF(*(f"column{n}" for n in range(len(frame.columns)))).mapInArrow(task, schema)


class PartsSink:
    """Settles a batch's intent: each part by its sink, in their order."""

    def __init__(self, job_id: str, sinks: Mapping[str, BatchSink], at: At) -> None:
        self._job_id, self._sinks, self._at = job_id, sinks, at
        self.driver_id = ""
        """Id of the driver; set before the first `settle`."""
        self.spark: SparkSession | None = None
        """Session of the driver; set before the first `settle`."""
        self.refusals: dict[str, str] = {}
        """Reason, by sink, why it has not taken its part of its newest batch."""

    @property
    def destination(self) -> str:
        """Names and destinations of the sinks, for the log."""
        return " ".join(f"{name}={sink.destination}" for name, sink in sorted(self._sinks.items()))

    def refuse_lost_parts(self, job_id: str, committed: Collection[str]) -> None:
        """Refuse a destination without a trace of the job, which has committed there. Called before `claim`.

        Args:
            job_id: Id of the job.
            committed: `destination` of each start that has committed; the sinks may have had other names.

        Raises:
            SinkError: The destination was removed, or its file system is not mounted.
        """
        destinations = {name: sink.destination for name, sink in self._sinks.items()}
        for name in sorted(self._sinks):
            sink = self._sinks[name]
            names = _names_at(sink.destination, destinations, committed)
            if isinstance(sink, _OfNames):
                sink.refuse_lost_names(job_id, names)
            elif names and isinstance(sink, LossChecking):
                sink.refuse_lost_output(job_id)

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """Claim each sink that supports claims for this log. Called before anything is appended."""
        for _, sink in sorted(self._sinks.items()):
            if isinstance(sink, _Claiming):
                sink.claim(job_id, log, former)

    def refuse_writes_above(self, job_id: str, number: int) -> None:
        """Refuse a destination with a batch write of the job that has a higher number than the log's newest intent.

        Raises:
            SinkError: A destination has one.
        """
        for _, sink in sorted(self._sinks.items()):
            if isinstance(sink, _OfWrites):
                sink.refuse_writes_above(job_id, number)

    def settle(self, intent: Payload) -> BatchOutcome:
        """See `coordlog.api.coordinator.Sink`."""
        assert isinstance(intent, BatchIntent), "intents are made by the coordinator"
        key = BatchKey(query_id=intent.query_id, batch_id=intent.batch_id, is_write=intent.is_write)
        parts: list[PartOutcome] = []
        for part in intent.parts:
            sink = self._sinks.get(part.sink)
            if sink is None:
                raise SinkError(
                    f"sink {part.sink!r}",
                    f"{key} has a part for it, and the job has no such sink any more",
                    "start the job with this sink until the part is settled",
                )
            batch = Batch(
                job_id=self._job_id,
                driver_id=self.driver_id,
                key=key,
                sink=part.sink,
                number=intent.number,
                place=intent.place,
                epoch=intent.epoch,
            )
            self._at(f"before part {part.sink}")
            assert self.spark is not None, "started"
            with name_lost_session(self.spark):
                outcome = sink.settle(part, batch, at=self._at)
            parts.append(outcome)
            self.refusals.pop(part.sink, None)
            if not outcome.is_done:
                self.refusals[part.sink] = outcome.details.get("refused", "the rows are lost")
            self._at(f"after part {part.sink}")
        return BatchOutcome(
            query_id=intent.query_id,
            batch_id=intent.batch_id,
            is_write=intent.is_write,
            parts=parts,
        )
