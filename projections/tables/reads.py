"""Every read of a source by queries: what it covers, which task was given which split, and what it has read."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from coordlog.projections.tables.payload_json import Fields
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
_ASKED: Final = "coordlog.next_splits@"
_GIVEN: Final = "coordlog.splits_given@"
_FAILED: Final = "coordlog.read_failed@"
_COMMITTED: Final = "coordlog.read_committed@"
_GIVEN_UP: Final = "coordlog.reader_given_up@"


class Audited(Protocol):
    """An `AuditRecord`, as far as it is looked at."""

    @property
    def counts(self) -> bool:
        """Whether it is part of the history."""
        ...

    @property
    def record(self) -> Record | None:
        """The record."""
        ...

    @property
    def fields(self) -> Fields | None:
        """Its payload."""
        ...


class TaskEnd(enum.Enum):
    """What the log knows of a task's end."""

    READING = "reading"
    """It has not said that it has read its last split: it runs, was ended by Spark, or needed no more."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """One of Spark's task attempts."""

    partition: int
    task_attempt_id: int
    epoch: int
    """The epoch in which it asked: Spark counts anew with each application."""
    spark_attempt_number: int
    host: str
    pid: int
    started_us: int
    """When it first asked; microseconds since 1970, UTC."""
    ended_us: int | None
    status: TaskEnd
    given: int
    """Splits that it was given."""
    finished: int
    rows: int
    reason: str | None
    """Why it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSplit:
    """A split of a read."""

    partition: int
    split_id: str
    rows: int | None
    """None: no task has read it to its end."""
    read_by: tuple[int, ...]
    """The task attempts that have, in that order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRow:
    """One read: a batch DataFrame's, or a batch of a stream."""

    read_id: str
    reader: str
    """The stream's name; empty for a batch DataFrame."""
    start: int
    end: int
    """In the order of discovery, exclusive."""
    partitions: int
    planned_us: int
    plans: int
    """How often it was planned: more than once where a query died."""
    is_committed: bool
    """Of a stream: its batch is over, and will not be read again."""
    tasks: tuple[ReadTask, ...]
    """In the order in which they first asked."""
    splits: tuple[ReadSplit, ...]
    """In the order in which they were given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """A stream that may go on."""

    reader: str
    """The name in its newest position; it has another one after each start."""
    committed: int
    """It reads nothing again that was found before this, in the order of discovery."""
    planned_us: int
    """When its newest batch was planned, microseconds since 1970, UTC."""


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
    given: int = 0
    finished: set[str] = field(default_factory=set)
    """Ids of splits."""
    rows: int = 0
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class _Split:
    partition: int
    split_id: str
    rows: int | None = None
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
    """The same, and the streams that have not been given up, by their names."""
    fold = _Fold()
    for one in entries:
        if one.counts and one.record is not None and one.fields is not None:
            fold.apply(one.record, one.fields)
    rows = tuple(_row(read_id, read) for read_id, read in fold.reads.items())
    return rows, tuple(one for _, one in sorted(fold.streams.items()))


class _Fold:
    def __init__(self) -> None:
        self.reads: dict[str, _Read] = {}
        self.streams: dict[str, StreamRow] = {}
        self._asking: dict[int, _Task] = {}
        """By the sequence of a request that waits for its answer."""

    def apply(self, record: Record, fields: Fields) -> None:
        name = record.payload_type or ""
        if record.kind is Kind.REQUEST and name.startswith(_ASKED):
            self._asked(record, fields)
        elif record.kind is Kind.REQUEST and name.startswith(_FAILED):
            self._failed(record, fields)
        elif record.kind is Kind.RESPONSE and name.startswith(_PLANNED):
            self._planned(record, fields)
        elif record.kind is Kind.RESPONSE and name.startswith(_GIVEN):
            self._given(record, fields)
        elif record.kind is Kind.RESPONSE and name.startswith(_COMMITTED):
            self._committed(record, fields)
        elif record.kind is Kind.FACT and name.startswith(_GIVEN_UP):
            self.streams.pop(str(fields["reader"]), None)

    def _planned(self, record: Record, fields: Fields) -> None:
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

    def _asked(self, record: Record, fields: Fields) -> None:
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
        for one in _list(fields, "finished"):
            split_id = str(one["split_id"])
            if split_id in task.finished:
                continue  # a question that was asked again says it again
            task.finished.add(split_id)
            task.rows += _int(one, "rows")
            split = read.splits.get(split_id)
            if split is not None:
                split.rows = _int(one, "rows")
                split.read_by.append(task_attempt_id)
        self._asking[record.sequence] = task

    def _given(self, record: Record, fields: Fields) -> None:
        task = self._asking.pop(-1 if record.cause is None else record.cause, None)
        read = self.reads.get(str(fields["read_id"]))
        if task is None or read is None:
            return
        splits = _list(fields, "splits")
        task.given = max(task.given, _int(fields, "position") + len(splits))
        if not splits and len(task.finished) >= task.given:  # it asks before it has read all
            task.status, task.ended_us = TaskEnd.DONE, record.timestamp_us
        for one in splits:
            split_id = str(one["split_id"])
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
                partition=one.partition,
                task_attempt_id=one.task_attempt_id,
                epoch=one.epoch,
                spark_attempt_number=one.spark_attempt_number,
                host=one.host,
                pid=one.pid,
                started_us=one.started_us,
                ended_us=one.ended_us,
                status=one.status,
                given=one.given,
                finished=len(one.finished),
                rows=one.rows,
                reason=one.reason,
            )
            for one in read.tasks.values()
        ),
        splits=tuple(
            ReadSplit(
                partition=one.partition,
                split_id=one.split_id,
                rows=one.rows,
                read_by=tuple(one.read_by),
            )
            for one in read.splits.values()
        ),
    )


def _int(fields: Mapping[str, object], name: str) -> int:
    value = fields[name]
    assert isinstance(value, int), "its schema says so"
    return value


def _list(fields: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    return cast("list[Mapping[str, object]]", fields[name])
