"""What a log says to somebody who has nothing but the log: a fold without the job's own code."""

from __future__ import annotations

from coordlog.errors import PayloadLostError, RecordError
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import SnapshotUnusableError, state_of
from coordlog.projections.tables.apply_errors import Applying
from coordlog.projections.tables.audit import AuditRecord
from coordlog.schemas.builtin_types import BUILTIN_PAYLOADS
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.record import Kind, Record

__all__ = ["PlainFold", "record_of"]


def record_of(one: AuditRecord) -> Record:
    """The record, which counts. Raises RecordError where it cannot be read."""
    if one.record is None:
        raise RecordError(one.offset, "", one.problem or "it cannot be read")
    return one.record


class PlainFold:
    """The state of a job, record by record, without those of coordinators' projections.

    Of a log whose beginning was pruned it begins with the `SNAPSHOT` there.
    """

    def __init__(self) -> None:
        self._projection = JobProjection(PayloadTypes(BUILTIN_PAYLOADS), {})
        self.state: JobState = self._projection.initial()
        self.start = -1
        """The offset of the first record; -1 before it."""
        self.is_begun = False
        """Whether a record has counted."""

    def apply(self, one: AuditRecord) -> Record | None:
        """The record, where it counts.

        Raises:
            RecordError: It counts, and cannot be read or applied; it names the record's offset.
        """
        if self.start < 0:
            self.start = one.offset
        if not one.counts:
            return None
        record = record_of(one)
        if not self.is_begun and record.kind is Kind.SNAPSHOT:
            self._begin(one.offset, record)
        self.is_begun = True
        with Applying(one.offset, record):
            self.state = self._projection.apply(self.state, record)
        return record

    def begin_with(self, state: JobState) -> None:
        """Begin with the state in a `SNAPSHOT` that the caller has opened, before that is applied."""
        self.state, self.is_begun = state, True

    def _begin(self, offset: int, record: Record) -> None:
        try:
            self.state = state_of(record)
        except (SnapshotUnusableError, PayloadLostError) as error:
            raise RecordError(offset, record.kind.value, str(error)) from error
