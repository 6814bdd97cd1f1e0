"""`format("coordlog")` for Spark: the registered class contains the services of its session.

Spark runs the methods in other processes: `schema` and `reader().partitions()` in a planner, a stream's
methods in one worker for each query, `read` in tasks. None of them is the process that owns the session,
in which the coordinator runs.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from coordlog.errors import OptionError, SourceError
from coordlog.schemas.reads import (
    CommitRead,
    PlanRead,
    QueryReads,
    ReadCommitted,
    ReadPlanned,
    ReadsSeen,
)
from coordlog.spark_integration.dataframes.query_end import PlanSeal
from coordlog.spark_integration.dataframes.read_options import with_read_options
from coordlog.spark_integration.dataframes.reading import ReadPartition, read_partition
from coordlog.spark_integration.dataframes.ticket import ServiceClient, Ticket
from coordlog.spark_integration.files.sink.writer import FileWriters
from coordlog.spark_integration.task.worker_archives import keep_archives

__all__ = ["FORMAT", "CoordlogDataSource", "with_tickets"]

FORMAT = "coordlog"

Offset = dict[str, Any]
"""Position of a stream in Spark's checkpoint: primitives only."""


class CoordlogDataSource(DataSource):
    """The format. A subclass with the session's services is registered."""

    tickets: ClassVar[Mapping[str, Ticket]] = {}
    """Tickets of the session's services, by job id."""
    writers: ClassVar[Mapping[str, FileWriters]] = {}
    """Writers of the session's sinks of batches, by `writers_name`; a table's may have a catalog's password."""
    seal: ClassVar[PlanSeal] = PlanSeal()
    """Seal of the plans made with this class."""

    @classmethod
    def name(cls) -> str:
        """Name for `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Schema of the rows, as settled by the service."""
        return _schema_of(self._ticket())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of a batch query."""
        return _BatchReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, Spark's name
        """Reader of a streaming query."""
        return _StreamReader(self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001, Spark's signature
        """See `frame_writer`."""
        from coordlog.spark_integration.batches.frame_writer import frame_writer  # noqa: PLC0415, planners of reads wait

        keep_archives()
        return frame_writer(self.options, schema, self.writers, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802, as above
        """See `stream_writer`."""
        from coordlog.spark_integration.batches.frame_writer import stream_writer  # noqa: PLC0415, as above

        keep_archives()
        return stream_writer(self.options, schema, self.writers, overwrite=overwrite)

    def _ticket(self) -> Ticket:
        keep_archives()  # here, because each of Spark's processes calls this first
        known = ", ".join(sorted(self.tickets)) or "none"
        job_id = self.options.get("job")
        if job_id is None and len(self.tickets) == 1:
            return with_read_options(next(iter(self.tickets.values())), self.options)
        if job_id is None or job_id not in self.tickets:
            requested = "no job" if job_id is None else f"job {job_id!r}"
            raise SourceError(
                f'format("{FORMAT}")',
                f"{requested} is requested, and the services of this session are: {known}",
                "start one in the process that owns the session, `with coordinated(spark, JOB, "
                'SOURCE, ...) as reads:`, and add `.option("job", JOB)`',
            )
        return with_read_options(self.tickets[job_id], self.options)

    def _checked(self, schema: StructType) -> Ticket:
        ticket = self._ticket()
        known = _schema_of(ticket)
        if schema != known:
            raise OptionError(
                "schema", schema.simpleString(), f"left out: the source's is {known.simpleString()}"
            )
        return ticket


def with_tickets(
    tickets: Mapping[str, Ticket], writers: Mapping[str, FileWriters], seal: PlanSeal
) -> type[CoordlogDataSource]:
    """The class to register: created at each call, so that Spark ships it by value, with tickets and writers."""

    class Registered(CoordlogDataSource):
        """The format of one session."""

    Registered.tickets, Registered.writers = dict(tickets), dict(writers)
    Registered.seal = seal
    return Registered


class _BatchReader(DataSourceReader):
    """Plans one read for each time that Spark plans a query."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def partitions(self) -> list[InputPartition]:
        request = PlanRead(
            read_id=secrets.token_hex(8),
            reader="",
            follows="",
            history="",
            start=0,
            end=-1,
            partitions=self._ticket.partitions,
        )
        return _planned(self._ticket, request)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._ticket, partition)


class _StreamReader(DataSourceStreamReader):
    """Reports the end of the known splits; a position is a place in the coordination log.

    The reader's random name is part of its positions: a batch that is planned again has the same name,
    and so the same splits.
    """

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._reader = secrets.token_hex(4)
        self._after = -1
        self._client: ServiceClient | None = None

    def initialOffset(self) -> Offset:  # noqa: N802, Spark's name
        """Position before all known splits."""
        seen = self._query()
        if seen.first > 0:
            raise SourceError(
                f"job {self._ticket.job_id}",
                f"the first {seen.first} splits of its history have been read by other streams, and "
                "are forgotten",
                "read the source under a new job id, or continue from the other stream's checkpoint",
            )
        self._after = 0
        return self._offset(seen.history, -1, 0)

    def latestOffset(self) -> Offset:  # noqa: N802, Spark's name
        """Position at which the next batch ends if it begins now."""
        seen = self._query()
        if seen.problem:
            raise SourceError(
                f"job {self._ticket.job_id}",
                seen.problem,
                "fix that, then start the service and the query again",
            )
        return self._offset(seen.history, seen.sequence, seen.end)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Partitions of a batch: the same for the same positions, in any process and at any repetition."""
        self._check(start)
        self._check(end)
        self._reader, self._after = str(end["reader"]), int(end["splits"])
        request = PlanRead(
            read_id=f"{self._reader}:{start['splits']}-{end['splits']}",
            reader=self._reader,
            follows=str(start["reader"]),
            history=str(end["history"]),
            start=int(start["splits"]),
            end=int(end["splits"]),
            partitions=self._ticket.partitions,
        )
        return _planned(self._ticket, request, self._connected())

    def commit(self, end: Offset) -> None:
        """Record that Spark does not need the splits before `end` again."""
        request = CommitRead(
            reader=str(end["reader"]), history=str(end["history"]), end=int(end["splits"])
        )
        self._connected().ask(request, ReadCommitted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._ticket, partition)

    def stop(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> ServiceClient:
        # Not before: this object is pickled too, for the tasks.
        if self._client is None:
            self._client = ServiceClient(self._ticket)
        return self._client

    def _query(self) -> ReadsSeen:
        request = QueryReads(after=self._after, splits_max=self._ticket.splits_max)
        return self._connected().ask(request, ReadsSeen)

    def _offset(self, history: str, sequence: int, splits: int) -> Offset:
        return {
            "job": self._ticket.job_id,
            "history": history,
            "sequence": sequence,
            "splits": splits,
            "reader": self._reader,
        }

    def _check(self, offset: Offset) -> None:
        if set(offset) != {"job", "history", "sequence", "splits", "reader"}:
            raise SourceError(
                "the query's checkpoint",
                f"its position is {json.dumps(offset)}, which is not of this format",
                "use a checkpoint of its own for the query",
            )
        if offset["job"] != self._ticket.job_id:
            raise SourceError(
                "the query's checkpoint",
                f"it is of job {offset['job']}, and the query reads job {self._ticket.job_id}",
                "use the job that the query started with, or a checkpoint of its own",
            )


def _planned(
    ticket: Ticket, request: PlanRead, client: ServiceClient | None = None
) -> list[InputPartition]:
    if client is None:
        with ServiceClient(ticket) as own:
            return _planned(ticket, request, own)
    read = client.ask(request, ReadPlanned)
    return [
        ReadPartition(read.read_id, number, read.partitions) for number in range(read.partitions)
    ]


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's own schema in Arrow, with times in UTC: the default of Spark 4.1, an argument in 4.3."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")  # type: ignore[call-arg]
    return to_arrow_schema(schema)


def _rows(ticket: Ticket, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if partition is None:  # Spark's value for a read without partitions
        return iter(())
    assert isinstance(partition, ReadPartition), "made by `partitions`"
    return read_partition(ticket, partition, _arrow_schema(_schema_of(ticket)))


def _schema_of(ticket: Ticket) -> StructType:
    return StructType.fromJson(json.loads(ticket.schema_json))
