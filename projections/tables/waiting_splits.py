"""Splits that wait in a finished job: its listing had them, and nothing has read or skipped them (clause L6)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

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
    """Tells at each end of a job which splits wait. `apply` takes each record that counts, in log order."""

    def __init__(self) -> None:
        self._attempts, self._splits = AttemptFold(), SplitFold()
        self._sources: frozenset[str] = frozenset()

    def apply(self, record: Record, fields: Fields | None) -> str | None:
        """What is wrong at the end of the job that `record` is; None for any other record, and a sound end.

        `fields` are the record's payload, decoded.
        """
        self._attempts.apply(record, fields)
        self._splits.apply(record, fields, self._attempts)
        if record.kind is Kind.EPOCH_STARTED:
            self._sources = _sources_in(record.attributes.get("operators", "[]"))
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
    """What the last end of a job has left waiting, in words; empty for none.

    Args:
        stored: All of the log, from its first record on.

    Raises:
        RecordError: A record that counts cannot be read.
    """
    fold, problem = WaitingSplits(), ""
    for one in audit_records(stored):
        problem = _after(fold, one, problem)
    return problem


def _after(fold: WaitingSplits, one: AuditRecord, problem: str) -> str:
    if not one.counts or one.record is None:
        return problem
    found = fold.apply(one.record, one.fields)
    return (found or "") if one.record.kind is Kind.JOB_FINISHED else problem


def _sources_in(operators: str) -> frozenset[str]:
    """The sources whose readers never cut a split anew: of the first version those of files."""
    return frozenset(
        one["id"]
        for one in json.loads(operators)
        if one.get("projection") == _KEEPS_LISTED
        or (one.get("projection") == _FIRST and "format" in one.get("options", {}))
    )
