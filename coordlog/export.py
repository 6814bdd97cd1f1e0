"""Files of a log's records: the export of a history, and the archive of the records that a prune removes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from coordlog.errors import SourceError
from coordlog.history import History
from coordlog.log.file import Export, ExportedLog, write_file
from coordlog.log.interface import Log, StoredRecord
from coordlog.log.local.drafts import remove_drafts

__all__ = ["archive_below", "archive_in", "write_exported"]


def write_exported(
    log: Log,
    job_id: str,
    path: Path,
    *,
    to_offset: int | None = None,
    is_overwriting: bool = False,
    redact: Callable[[StoredRecord], StoredRecord] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Write a history to `path`; the file is complete and verified, or does not exist. Returns the number of records.

    Args:
        log: The job's log.
        job_id: The job.
        path: The file to write.
        to_offset: End of the export, exclusive; by default the high watermark.
        is_overwriting: Replace an existing file.
        redact: Returns the record to write in each record's place; such a file is marked as redacted, and does not
            have the name of the log.
        on_progress: Called with each offset.

    Raises:
        OptionError, FileExistsError, SourceError: As `write_file`.
        PrunedMeanwhileError: The log was pruned during the export.
        LogUnavailableError: The log cannot be read.
    """
    history = History(log, on_progress)
    end, identity = history.end if to_offset is None else to_offset, log.identity
    records = history.stored(end=end)
    export = Export(
        job_id=job_id,
        identity=identity if redact is None else replace(identity, name=f"{job_id}.log"),
        start_offset=history.start,
        end_offset=end,
        is_redacted=redact is not None or (isinstance(log, ExportedLog) and log.is_redacted),
    )
    return write_file(
        records if redact is None else map(redact, records),
        export,
        path,
        is_overwriting=is_overwriting,
    )


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
        PrunedMeanwhileError: Another process removed the first records meanwhile.
        LogUnavailableError: The log cannot be read.
    """
    if not path.exists():
        write_exported(log, job_id, path, to_offset=offset)
    elif not _is_archived(log, job_id, path, offset):
        raise FileExistsError(path)
    else:  # the earlier call may have been killed before it removed its draft
        remove_drafts(path.parent, re.escape(path.name))
    return sum(1 for _ in History(ExportedLog(path)).stored())


def _is_archived(log: Log, job_id: str, path: Path, end: int) -> bool:
    """Whether the file holds exactly the log's records below `end`."""
    history, identity = History(log), log.identity
    try:
        archived = ExportedLog(path)
        source = archived.identity
        origin = (archived.job_id, source.cluster_id, source.topic_id, archived.is_redacted)
        if origin != (job_id, identity.cluster_id, identity.topic_id, False):
            return False
        copy = History(archived)
        if (copy.start, copy.end) != (history.start, end):
            return False
        pairs = itertools.zip_longest(copy.stored(), history.stored(end=end))
        return all(copied == original for copied, original in pairs)
    except SourceError:
        return False
