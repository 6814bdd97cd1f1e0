"""The place of the bad rows of a source that queries read, as the service and its tasks use it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import pyarrow as pa

from coordlog.log.interface import LogIdentity
from coordlog.schemas.source_types import Split

__all__ = ["QueryRejects", "RejectsPlace", "RejectsWriter", "TaskName"]


class RejectsWriter(Protocol):
    """Writes the bad rows of the splits of one task, one split after the other."""

    def add(self, rejects: pa.RecordBatch) -> None:
        """Take bad rows of the present split."""
        ...

    def publish(self, split: Split) -> None:
        """Publish those of the split, which was read to its end; the same split again has no further effect."""
        ...

    def discard(self) -> None:
        """Drop those of a split that was not read to its end."""
        ...


class TaskName(Protocol):
    """The part of a task's identity that no other task of its application has."""

    @property
    def task_attempt_id(self) -> int:
        """Spark's id of the task attempt."""
        ...

    @property
    def attempt_number(self) -> int:
        """Number of the try."""
        ...


class RejectsPlace(Protocol):
    """Place of the bad rows, as tasks use it. Pickles."""

    def writer(self, task: TaskName) -> RejectsWriter:
        """A writer for one task."""
        ...


class QueryRejects(Protocol):
    """Place of the bad rows of a source that queries read, in the process of the service."""

    @property
    def destination(self) -> str:
        """Path or URL, without credentials."""
        ...

    def prepare(self, job_id: str) -> None:
        """Make the place ready, before the service's driver starts. Raises CoordlogError."""
        ...

    def claim(
        self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]], service_id: str
    ) -> RejectsPlace:
        """The place for tasks, once the driver's epoch is in force. Raises CoordlogError if it is another log's."""
        ...
