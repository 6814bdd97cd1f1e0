"""Lines for the display about failures of a running job, one for each distinct cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from coordlog.cli.console import reason_text
from coordlog.projections.tables.failures import survived_failures
from coordlog.schemas.record import Record

__all__ = ["FailureLines"]

_CAUSES_MAX: Final = 20
"""Maximum number of distinct causes that are shown; the history has all of them."""

_NUMBERS: Final = re.compile(r"\d+")


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
        return [
            line
            for record, failure, cause in survived_failures(records)
            for line in self._failed(record, failure, cause)
        ]

    def _failed(self, record: Record, failure: str, cause: str) -> list[str]:
        split = record.attributes.get("split_id", "")
        key = (split, _NUMBERS.sub("#", cause))
        if key in self._seen or len(self._seen) > _CAUSES_MAX:
            return []
        self._seen.add(key)
        if len(self._seen) > _CAUSES_MAX:
            return [f"failed again, by further causes; all of them: {self._command}"]
        return [f"{failure}: {reason_text(cause)} (all failures: {self._command})"]
