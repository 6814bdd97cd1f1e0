"""Splits that wait in a finished job: listed, neither read nor skipped (L6: no split waits)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.tables.attempts import AttemptFold
from coordlog.projections.tables.audit import AuditRecord, Stored, audit_records
from coordlog.projections.tables.payload_json import Fields
from coordlog.projections.tables.splits import SplitFold, SplitPlace
from coordlog.schemas.record import Kind, Record

__all__ = ["WaitingSplits", "waiting_in"]

_KEEPS_LISTED: Final = "coordlog.splits@2"
"""The projection of a source whose splits stay known."""
_FIRST: Final = "coordlog.splits@1"
_NAMED_MAX: Final = 10


class WaitingSplits:
    """Checks at each end of a job that no split waits. `apply` takes each record that counts, in log order.

    A pruned history has no fault: a listing may repeat splits, and the records of their reading may be gone.
    """

    def __init__(self) -> None:
        self._attempts, self._splits = AttemptFold(), SplitFold()
        self._sources: frozenset[str] = frozenset()
        self._is_whole: bool | None = None
        """Whether the history has its first record; None before the first call."""

    def apply(self, record: Record, fields: Fields | None) -> str | None:
        """The fault if `record` ends the job and splits wait; None otherwise.

        `fields` is the decoded payload of the record.
        """
        if self._is_whole is None:
            self._is_whole = record.kind is not Kind.SNAPSHOT
        if not self._is_whole:
            return None
        self._attempts.apply(record, fields)
        self._splits.apply(record, fields, self._attempts)
        if record.kind is Kind.EPOCH_STARTED:
            self._sources = _sources_in(LaunchInfo(record.attributes))
        if record.kind is not Kind.JOB_FINISHED:
            return None
        waiting = [
            row.split_id
            for row in self._splits.rows()
            if row.place is SplitPlace.WAITING and row.operator_id in self._sources
        ]
        if not waiting:
            return None
        more = f" and {len(waiting) - _NAMED_MAX} more" if len(waiting) > _NAMED_MAX else ""
        return (
            f"the job has finished, and {len(waiting)} of its splits were neither read nor skipped: "
            f"{', '.join(waiting[:_NAMED_MAX])}{more}"
        )


def waiting_in(stored: Iterable[Stored]) -> str:
    """The fault of the last end of a job if splits wait, else an empty text.

    Args:
        stored: All of the log, from its first record on.

    Raises:
        RecordError: A record that counts cannot be read.
    """
    fold, problem = WaitingSplits(), ""
    for entry in audit_records(stored):
        problem = _after(fold, entry, problem)
    return problem


def _after(fold: WaitingSplits, entry: AuditRecord, problem: str) -> str:
    if not entry.counts or entry.record is None:
        return problem
    fault = fold.apply(entry.record, entry.fields)
    return (fault or "") if entry.record.kind is Kind.JOB_FINISHED else problem


def _sources_in(launch: LaunchInfo) -> frozenset[str]:
    """Ids of the sources whose readers never cut a split anew: in the first version, file sources."""
    return frozenset(
        operator.operator_id
        for operator in launch.operators
        if operator.projection == _KEEPS_LISTED
        or (operator.projection == _FIRST and operator.has_format)
    )
