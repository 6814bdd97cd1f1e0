"""A job's log in memory, and which log it was: what `replay` runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log, LogIdentity, StoredRecord

__all__ = ["History"]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All records of a log, and which log it was."""

    identity: LogIdentity
    records: Sequence[StoredRecord]

    @classmethod
    def of(cls, log: Log) -> History:
        """What stands in a log now."""
        records = tuple(log.read(log.start_offset(), log.high_watermark()))
        return cls(identity=log.identity, records=records)

    @classmethod
    def read(cls, path: Path | str) -> History:
        """What `coordlog export` wrote.

        Raises:
            SourceError: It is no such file, or a part of it is missing.
        """
        return cls.of(ExportedLog(path))
