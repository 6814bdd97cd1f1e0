"""A job's log as one file: what `coordlog export` writes and `replay` reads.

An Avro container file with one row per stored record, void ones included, in offset order; which log
it was stands in the file's metadata.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import fastavro

from coordlog.errors import SourceError
from coordlog.log.port import Log, LogIdentity, StoredRecord

__all__ = ["History", "write_history"]

_SCHEMA: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "coordlog.exported_record",
        "fields": [
            {"name": "offset", "type": "long"},
            {"name": "key", "type": ["null", "bytes"]},
            {"name": "value", "type": ["null", "bytes"]},
            {"name": "header", "type": ["null", "bytes"]},
            {"name": "timestamp_ms", "type": "long"},
        ],
    }
)
_META: Final = "coordlog."
_FORMAT: Final = "1"


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
        try:
            with Path(path).open("rb") as file:
                return _read(file)
        except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
            raise SourceError(
                str(path),
                f"cannot be read as an exported history: {type(error).__name__}: {error}",
                "export it again with `coordlog export JOB FILE`",
            ) from error


def _read(file: BinaryIO) -> History:
    reader = fastavro.reader(file)
    about = {k.removeprefix(_META): v for k, v in reader.metadata.items() if k.startswith(_META)}
    if about.get("format") != _FORMAT:
        raise ValueError(f"its format is {about.get('format')}, this version reads {_FORMAT}")
    records = []
    for row in reader:
        assert isinstance(row, dict), "the schema is a record's"
        records.append(
            StoredRecord(
                row["offset"], row["key"], row["value"], row["header"], row["timestamp_ms"]
            )
        )
    start, end = int(about["start_offset"]), int(about["end_offset"])
    reached = records[-1].offset + 1 if records else start
    if reached != end:
        raise ValueError(f"it ends at offset {reached}, not at {end}")
    identity = LogIdentity(
        cluster_id=about["cluster_id"], topic_id=about["topic_id"], name=about["name"]
    )
    return History(identity=identity, records=tuple(records))


def write_history(
    log: Log,
    job_id: str,
    path: Path,
    *,
    is_overwriting: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write all of a log to `path`, which is there whole or not at all. Returns the number of records.

    Args:
        log: The job's.
        job_id: The job.
        path: Where to.
        is_overwriting: Replace a file that is there.
        on_progress: Called now and then with the offset reached and the end.

    Raises:
        FileExistsError: A file is there.
    """
    start, end = log.start_offset(), log.high_watermark()
    identity = log.identity
    about = {
        "format": _FORMAT,
        "job_id": job_id,
        "name": identity.name,
        "cluster_id": identity.cluster_id,
        "topic_id": identity.topic_id,
        "start_offset": str(start),
        "end_offset": str(end),
    }
    count = 0

    def rows() -> Iterator[dict[str, object]]:
        nonlocal count
        for one in log.read(start, end):
            count += 1
            if on_progress is not None and count % 10_000 == 0:
                on_progress(one.offset + 1, end)
            yield {
                "offset": one.offset,
                "key": one.key,
                "value": one.value,
                "header": one.header_bytes,
                "timestamp_ms": one.timestamp_ms,
            }

    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    metadata = {_META + name: value for name, value in about.items()}
    try:
        with hidden.open("xb") as file:
            fastavro.writer(file, _SCHEMA, rows(), codec="deflate", metadata=metadata)
            file.flush()
            os.fsync(file.fileno())
        if is_overwriting:
            hidden.replace(path)
        else:
            os.link(hidden, path)  # unlike a rename it never replaces
    finally:
        hidden.unlink(missing_ok=True)
    return count
