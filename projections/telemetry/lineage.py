"""Events of a job's runs for a catalog of lineage, folded from the records that count.

A run is the work of one driver, an epoch. It begins, reports its progress at most once for each completed checkpoint,
and ends with the job or with its driver. Row counts are those of the run.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.payload_json import Fields, PayloadReader
from coordlog.schemas.record import Kind, Record

__all__ = ["Dataset", "LineageFold", "RunEvent", "RunStep", "dataset_of", "run_id_of"]

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>[^/]*)/?(?P<path>.*)")
_FILE: Final = "file"


class RunStep(enum.Enum):
    """Step of a run; names as in OpenLineage."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    ABORT = "ABORT"
    """Its driver was stopped; the job may continue with another run."""
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Input or output of a job, named by the conventions of OpenLineage."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One event of a run."""

    step: RunStep
    time_us: int
    """Microseconds since 1970, UTC."""
    job_id: str
    epoch: int
    is_batch: bool
    run_id: uuid.UUID
    inputs: tuple[Dataset, ...]
    outputs: tuple[Dataset, ...]
    rows_read: int
    """Rows of the splits that this run has read to their end; again if work was lost."""
    rows_published: int
    """Rows that became visible in this run."""
    files_published: int
    bytes_published: int
    checkpoint_id: int | None = None
    """Completed checkpoint of a `RUNNING`."""
    reason: str | None = None


class LineageFold:
    """Folds records into events of runs; `apply` takes each record that counts, in log order."""

    def __init__(self) -> None:
        self._reader = PayloadReader()
        self._last: RunEvent | None = None
        self._is_over = False

    def begin(self, state: JobState) -> list[RunEvent]:
        """Begin with the state of a driver that has taken over; returns the start of its run."""
        self._reader.begin(state.schemas)
        return self._start(state.timestamp_us, state.job_id, state.epoch, state.launch)

    def apply(self, record: Record) -> list[RunEvent]:
        """Apply a record; returns the event that it causes, if any."""
        self._reader.learn(record)
        if record.kind is Kind.EPOCH_STARTED:
            info = LaunchInfo(record.attributes)
            if info.is_command:
                self._last = None
                return []
            return self._start(record.timestamp_us, record.job_id, record.epoch, record.attributes)
        if self._last is None or self._is_over:
            return []
        match record.kind:
            case Kind.SPLIT_FINISHED:
                self._add(read=_number(self._fields(record), "rows"))
            case Kind.COMMIT_OUTCOME if record.attributes.get("settled") == "true":
                self._published(self._fields(record))
            case Kind.CHECKPOINT_COMPLETED:
                return [self._event(RunStep.RUNNING, record, checkpoint_id=record.checkpoint_id)]
            case Kind.JOB_FINISHED:
                return self._end(RunStep.COMPLETE, record)
            case Kind.JOB_FAILED:
                return self._end(RunStep.FAIL, record)
            case Kind.FACT if is_driver_stopped(record):
                return self._end(RunStep.ABORT, record)
            case _:
                pass
        return []

    def _start(
        self, time_us: int, job_id: str, epoch: int, launch: Mapping[str, str]
    ) -> list[RunEvent]:
        operators = LaunchInfo(launch).operators
        self._is_over = False
        self._last = RunEvent(
            step=RunStep.START,
            time_us=time_us,
            job_id=job_id,
            epoch=epoch,
            is_batch=launch.get("mode") == "batch",
            run_id=run_id_of(job_id, epoch),
            inputs=tuple(
                dataset_of(place)
                for link in operators
                for place in link.inputs or (link.location,)
                if place
            ),
            outputs=tuple(dataset_of(link.destination) for link in operators if link.destination),
            rows_read=0,
            rows_published=0,
            files_published=0,
            bytes_published=0,
        )
        return [self._last]

    def _fields(self, record: Record) -> Fields:
        return self._reader.peek(record) or {}

    def _add(self, *, read: int) -> None:
        assert self._last is not None, "the run has begun"
        self._last = replace(self._last, rows_read=self._last.rows_read + read)

    def _published(self, fields: Fields) -> None:
        last = self._last
        assert last is not None, "the run has begun"
        self._last = replace(
            last,
            rows_published=last.rows_published + _number(fields, "rows"),
            files_published=last.files_published + _number(fields, "file_count"),
            bytes_published=last.bytes_published + _number(fields, "size_bytes"),
        )

    def _event(
        self, step: RunStep, record: Record, *, checkpoint_id: int | None = None
    ) -> RunEvent:
        assert self._last is not None, "the run has begun"
        return replace(
            self._last,
            step=step,
            time_us=record.timestamp_us,
            checkpoint_id=checkpoint_id,
            reason=record.reason if step is RunStep.FAIL else None,
        )

    def _end(self, step: RunStep, record: Record) -> list[RunEvent]:
        self._is_over = True
        return [self._event(step, record)]


def run_id_of(job_id: str, epoch: int) -> uuid.UUID:
    """Id of the run of an epoch: the same for each reader of the log."""
    digest = blake2b(f"{job_id}\0{epoch}".encode(), digest_size=16).digest()
    return uuid.UUID(bytes=digest, version=5)


def dataset_of(place: str) -> Dataset:
    """Dataset of a path or URL.

    The namespace is `file`, or scheme and host of a URL; the name is the rest: a path, a bucket's key, a table.
    """
    url = _URL.fullmatch(place)
    if url is None:
        return Dataset(namespace=_FILE, name=place)
    path = url["path"] or "/"
    if url["scheme"] == _FILE:
        return Dataset(namespace=_FILE, name=f"/{path.lstrip('/')}")
    return Dataset(namespace=f"{url['scheme']}://{url['host']}", name=path)


def _number(fields: Fields, name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
