"""Archive of the first records of a log, written before they are removed from it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from coordlog.errors import SourceError
from coordlog.log.file import ExportedLog, write_exported
from coordlog.log.interface import Log
from coordlog.log.local.drafts import remove_drafts

__all__ = ["archive_below", "archive_in"]


def archive_in(folder: Path, job_id: str, start: int, offset: int) -> Path:
    """Path in an existing folder for the records from `start` up to `offset`; drafts of killed writers are removed."""
    remove_drafts(folder, rf"{re.escape(job_id)}-\d+-\d+\.avro")  # each prune has a name of its own
    return folder / f"{job_id}-{start}-{offset}.avro"


def archive_below(log: Log, job_id: str, offset: int, path: Path) -> int:
    """Write the log's records below `offset` to a new file and read it back. Returns the number of records.

    A file that has exactly these records stays: an earlier call wrote it, and was cut off before their removal.

    Raises:
        FileExistsError: The file exists with other content.
        SourceError: The file cannot be read back.
        OutOfRangeError: Another process removed the first records meanwhile.
        LogUnavailableError: The log cannot be read.
    """
    if not path.exists():
        write_exported(log, job_id, path, to_offset=offset)
    elif not _is_archived(log, job_id, path, offset):
        raise FileExistsError(path)
    else:  # the earlier call may have been killed before it removed its draft
        remove_drafts(path.parent, re.escape(path.name))
    archived = ExportedLog(path)
    return sum(1 for _ in archived.read(archived.start_offset(), archived.high_watermark()))


def _is_archived(log: Log, job_id: str, path: Path, end: int) -> bool:
    """Whether the file holds exactly the log's records below `end`."""
    start, identity = log.start_offset(), log.identity
    try:
        archived = ExportedLog(path)
        source = archived.identity
        origin = (archived.job_id, source.cluster_id, source.topic_id, archived.is_redacted)
        if origin != (job_id, identity.cluster_id, identity.topic_id, False):
            return False
        if (archived.start_offset(), archived.high_watermark()) != (start, end):
            return False
        pairs = itertools.zip_longest(archived.read(start, end), log.read(start, end))
        return all(copied == original for copied, original in pairs)
    except SourceError:
        return False
