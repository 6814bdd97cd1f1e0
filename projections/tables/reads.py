"""Every read of a source by queries: its range, the splits of each task, and the rows read."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from coordlog.projections.tables.payload_json import Fields
from coordlog.schemas.reads import is_position
from coordlog.schemas.record import Kind, Record

__all__ = [
    "Audited",
    "ReadRow",
    "ReadSplit",
    "ReadTask",
    "StreamRow",
    "TaskEnd",
    "reads",
    "reads_and_streams",
]

_PLANNED: Final = "coordlog.read_planned@"
_NEXT_SPLITS: Final = "coordlog.next_splits@"
_SPLITS_GIVEN: Final = "coordlog.splits_given@"
_FAILED: Final = "coordlog.read_failed@"
_COMMITTED: Final = "coordlog.read_committed@"
_READER_ABANDONED: Final = "coordlog.reader_given_up@"


class Audited(Protocol):
    """The part of an `AuditRecord` that this module reads."""

    @property
    def counts(self) -> bool:
        """Whether the record is part of the history."""
        ...

    @property
    def record(self) -> Record | None:
        """The record."""
        ...

    @property
    def fields(self) -> Fields | None:
        """The decoded payload."""
        ...


class TaskEnd(enum.Enum):
    """How a task ended, as recorded in the log."""

    READING = "reading"
    """No record of the end of its last split: the task runs, was ended by Spark, or needed no more."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """One of Spark's task attempts."""

    partition: int
    task_attempt_id: int
    epoch: int
    """Epoch of its requests: Spark's task attempt ids start anew with each application."""
    spark_attempt_number: int
    host: str
    pid: int
    started_us: int
    """Time of its first request; microseconds since 1970, UTC."""
    ended_us: int | None
    status: TaskEnd
    assigned: int
    """Number of splits assigned to the task."""
    finished: int
    rows: int
    rejected: int
    """Bad rows of its finished splits, which were left out."""
    reason: str | None
    """Reason of its failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSplit:
    """A split of a read."""

    partition: int
    split_id: str
    rows: int | None
    """Rows of the split, or None if no task has read it to its end."""
    rejected: int | None
    """Bad rows of the split, which were left out; None as for `rows`."""
    read_by: tuple[int, ...]
    """Task attempts that have read it to its end, in log order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRow:
    """One read: a batch DataFrame's, or a batch of a stream."""

    read_id: str
    reader: str
    """Name of the stream; empty for a batch DataFrame."""
    start: int
    end: int
    """End of the range in the order of discovery, exclusive."""
    partitions: int
    planned_us: int
    plans: int
    """How often it was planned: more than once if a query died."""
    is_committed: bool
    """Whether the batch of a stream is finished and will not be read again."""
    tasks: tuple[ReadTask, ...]
    """Tasks in the order of their first requests."""
    splits: tuple[ReadSplit, ...]
    """Splits in the order of their assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """A stream that may continue."""

    reader: str
    """Name in its newest position; each start of the stream has a new name."""
    committed: int
    """Position in the order of discovery; splits before it are not read again."""
    planned_us: int
    """Time of its newest batch's plan; microseconds since 1970, UTC."""


@dataclass(slots=True, kw_only=True)
class _Task:
    partition: int
    task_attempt_id: int
    epoch: int
    spark_attempt_number: int
    host: str
    pid: int
    started_us: int
    ended_us: int | None = None
    status: TaskEnd = TaskEnd.READING
    assigned: int = 0
    finished: set[str] = field(default_factory=set)
    """Ids of splits."""
    rows: int = 0
    rejected: int = 0
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class _Split:
    partition: int
    split_id: str
    rows: int | None = None
    rejected: int | None = None
    read_by: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Read:
    fields: Fields
    planned_us: int
    plans: int = 1
    is_committed: bool = False
    tasks: dict[tuple[int, int, int], _Task] = field(default_factory=dict)
    splits: dict[str, _Split] = field(default_factory=dict)


def reads(entries: Iterable[Audited]) -> tuple[ReadRow, ...]:
    """The reads of a job, in the order in which they were planned.

    Args:
        entries: All of the log, in log order.
    """
    return reads_and_streams(entries)[0]


def reads_and_streams(
    entries: Iterable[Audited],
) -> tuple[tuple[ReadRow, ...], tuple[StreamRow, ...]]:
    """The reads as in `reads`, and the streams that are not abandoned, by name."""
    fold = _Fold()
    for entry in entries:
        if entry.counts and entry.record is not None and entry.fields is not None:
            fold.apply(entry.record, entry.fields)
    rows = tuple(_row(read_id, read) for read_id, read in fold.reads.items())
    return rows, tuple(stream for _, stream in sorted(fold.streams.items()))


class _Fold:
    def __init__(self) -> None:
        self.reads: dict[str, _Read] = {}
        self.streams: dict[str, StreamRow] = {}
        self._requesting: dict[int, _Task] = {}
        """Tasks by the sequence of their request that has no response yet."""

    def apply(self, record: Record, fields: Fields) -> None:
        name = record.payload_type or ""
        if record.kind is Kind.REQUEST and name.startswith(_NEXT_SPLITS):
            self._splits_requested(record, fields)
        elif record.kind is Kind.REQUEST and name.startswith(_FAILED):
            self._failed(record, fields)
        elif record.kind is Kind.RESPONSE and name.startswith(_PLANNED):
            self._planned(record, fields)
        elif record.kind is Kind.RESPONSE and name.startswith(_SPLITS_GIVEN):
            self._splits_given(record, fields)
        elif record.kind is Kind.RESPONSE and name.startswith(_COMMITTED):
            self._committed(record, fields)
        elif record.kind is Kind.FACT and name.startswith(_READER_ABANDONED):
            self.streams.pop(str(fields["reader"]), None)

    def _planned(self, record: Record, fields: Fields) -> None:
        start, end = _int(fields, "start"), _int(fields, "end")
        reader, follows = str(fields["reader"]), str(fields["follows"])
        if is_position(start=start, end=end, reader=reader, follows=follows):
            return
        self._stream_planned(record, fields)
        known = self.reads.get(str(fields["read_id"]))
        if known is not None:
            known.plans += 1
            return
        read = _Read(fields=fields, planned_us=record.timestamp_us)
        self.reads[str(fields["read_id"])] = read

    def _stream_planned(self, record: Record, fields: Fields) -> None:
        reader, follows = str(fields["reader"]), str(fields["follows"])
        if not reader:
            return
        if follows != reader:
            self.streams.pop(follows, None)
        known = self.streams.get(reader)
        committed = _int(fields, "start") if known is None else known.committed
        self.streams[reader] = StreamRow(
            reader=reader, committed=committed, planned_us=record.timestamp_us
        )

    def _splits_requested(self, record: Record, fields: Fields) -> None:
        read = self.reads.get(str(fields["read_id"]))
        if read is None or record.sequence is None:
            return
        partition, task_attempt_id = _int(fields, "partition"), _int(fields, "task_attempt_id")
        key = (record.epoch, partition, task_attempt_id)
        task = read.tasks.get(key)
        if task is None:
            task = read.tasks[key] = _Task(
                partition=partition,
                task_attempt_id=task_attempt_id,
                epoch=record.epoch,
                spark_attempt_number=_int(fields, "spark_attempt_number"),
                host=str(fields["host"]),
                pid=_int(fields, "pid"),
                started_us=record.timestamp_us,
            )
        for finished in _list(fields, "finished"):
            split_id = str(finished["split_id"])
            if split_id in task.finished:
                continue  # a repeated request repeats the splits that are finished
            task.finished.add(split_id)
            rejected = _int(finished, "rejected")
            task.rows += _int(finished, "rows")
            task.rejected += rejected
            split = read.splits.get(split_id)
            if split is not None:
                split.rows, split.rejected = _int(finished, "rows"), rejected
                split.read_by.append(task_attempt_id)
        self._requesting[record.sequence] = task

    def _splits_given(self, record: Record, fields: Fields) -> None:
        task = self._requesting.pop(-1 if record.cause is None else record.cause, None)
        read = self.reads.get(str(fields["read_id"]))
        if task is None or read is None:
            return
        splits = _list(fields, "splits")
        task.assigned = max(task.assigned, _int(fields, "position") + len(splits))
        # A request may precede the last rows.
        if not splits and len(task.finished) >= task.assigned:
            task.status, task.ended_us = TaskEnd.DONE, record.timestamp_us
        for split in splits:
            split_id = str(split["split_id"])
            if split_id not in read.splits:
                read.splits[split_id] = _Split(partition=task.partition, split_id=split_id)

    def _failed(self, record: Record, fields: Fields) -> None:
        read = self.reads.get(str(fields["read_id"]))
        key = (record.epoch, _int(fields, "partition"), _int(fields, "task_attempt_id"))
        task = None if read is None else read.tasks.get(key)
        if task is not None:
            task.status, task.ended_us = TaskEnd.FAILED, record.timestamp_us
            task.reason = str(fields["reason"])

    def _committed(self, record: Record, fields: Fields) -> None:
        reader = str(fields["reader"])
        stream = self.streams.get(reader)
        self.streams[reader] = StreamRow(
            reader=reader,
            committed=_int(fields, "end"),
            planned_us=record.timestamp_us if stream is None else stream.planned_us,
        )
        for read in self.reads.values():
            if read.fields["reader"] == fields["reader"]:
                is_over = _int(read.fields, "end") <= _int(fields, "end")
                read.is_committed = read.is_committed or is_over


def _row(read_id: str, read: _Read) -> ReadRow:
    return ReadRow(
        read_id=read_id,
        reader=str(read.fields["reader"]),
        start=_int(read.fields, "start"),
        end=_int(read.fields, "end"),
        partitions=_int(read.fields, "partitions"),
        planned_us=read.planned_us,
        plans=read.plans,
        is_committed=read.is_committed,
        tasks=tuple(
            ReadTask(
                partition=item.partition,
                task_attempt_id=item.task_attempt_id,
                epoch=item.epoch,
                spark_attempt_number=item.spark_attempt_number,
                host=item.host,
                pid=item.pid,
                started_us=item.started_us,
                ended_us=item.ended_us,
                status=item.status,
                assigned=item.assigned,
                finished=len(item.finished),
                rows=item.rows,
                rejected=item.rejected,
                reason=item.reason,
            )
            for item in read.tasks.values()
        ),
        splits=tuple(
            ReadSplit(
                partition=item.partition,
                split_id=item.split_id,
                rows=item.rows,
                rejected=item.rejected,
                read_by=tuple(item.read_by),
            )
            for item in read.splits.values()
        ),
    )


def _int(fields: Mapping[str, object], name: str) -> int:
    value = fields[name]
    assert isinstance(value, int), "guaranteed by its schema"
    return value


def _list(fields: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    return cast("list[Mapping[str, object]]", fields[name])
