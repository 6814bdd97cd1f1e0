"""A fold of a log without the job's own code."""

from __future__ import annotations

from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import state_before
from coordlog.projections.tables.audit import Applying, AuditRecord
from coordlog.schemas.builtin_types import BUILTIN_PAYLOADS
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.record import Record

__all__ = ["PlainFold"]


class PlainFold:
    """The state of a job, record by record, without states of coordinators' projections.

    If the beginning of the log was pruned, the fold begins with the `SNAPSHOT` there.
    """

    def __init__(self) -> None:
        self._projection = JobProjection(PayloadTypes(BUILTIN_PAYLOADS), {})
        self.state: JobState = self._projection.initial()
        self._is_begun = False
        self.start = -1
        """The offset of the first record; -1 before it."""

    def apply(self, entry: AuditRecord) -> Record | None:
        """Apply an entry; returns its record, or None if it does not count.

        Raises:
            RecordError: The record counts, and cannot be read or applied; has the record's offset.
        """
        if self.start < 0:
            self.start = entry.offset
        if not entry.counts:
            return None
        record = entry.known()
        if entry.beginning is not None and not self._is_begun:
            self.state = state_before(entry.beginning)
        with Applying(entry.offset, record):
            self.state = self._projection.apply(self.state, record)
        return record

    def begin_with(self, state: JobState) -> None:
        """Begin with the state of a `SNAPSHOT` that the caller has opened and applies next."""
        self.state, self._is_begun = state, True
