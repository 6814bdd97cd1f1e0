"""Lines for the display about failures of a running job, one for each distinct cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from coordlog.cli.console import reason_text
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.schemas.record import Kind, Record

__all__ = ["FailureLines"]

_CAUSES_MAX: Final = 20
"""Maximum number of distinct causes that are shown; the history has all of them."""

_SPLIT_CHARS: Final = 300
_NUMBERS: Final = re.compile(r"\d+")
_ENDS: Final = frozenset({Kind.RESET_TO_CHECKPOINT, Kind.JOB_FAILED, Kind.JOB_FINISHED})
"""Kinds whose turn explains the failures in it: those of attempts that end with the whole job."""


class FailureLines:
    """Lines about failures. The caller passes each turn's records to `see` once they count; one thread.

    Args:
        command: Command that lists all failures of the job.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._seen: set[tuple[str, str]] = set()

    def see(self, records: Sequence[Record]) -> list[str]:
        """Lines about causes that were not shown before.

        Causes that differ only in numbers (attempts, stage runs, times) are one cause, if the split is the same.
        """
        kinds = {record.kind for record in records}
        lines: list[str] = []
        for record in records:
            is_attempt = record.kind is Kind.ATTEMPT_FAILED and not kinds & _ENDS
            is_global = record.kind is Kind.GLOBAL_FAILURE and Kind.JOB_FAILED not in kinds
            if (is_attempt or is_global) and "with_another" not in record.attributes:
                lines += self._failed(record)
        return lines

    def _failed(self, record: Record) -> list[str]:
        reason = record.reason or "no cause is recorded"
        split = record.attributes.get("split_id", "")
        key = (split, _NUMBERS.sub("#", reason.partition("\n")[0]))
        if key in self._seen or len(self._seen) > _CAUSES_MAX:
            return []
        self._seen.add(key)
        if len(self._seen) > _CAUSES_MAX:
            return [f"failed again, by further causes; all of them: {self._command}"]
        if record.kind is Kind.GLOBAL_FAILURE:
            failure = "the whole job failed, and goes back to its last checkpoint"
        else:
            place = f" at split {on_one_line(split, _SPLIT_CHARS)}" if split else ""
            attempt = f"attempt {record.attempt_number} of subtask {record.subtask}"
            failure = f"{attempt} failed{place}, and is replaced"
        return [f"{failure}: {reason_text(reason)} (all failures: {self._command})"]
