"""A log as one file: what `coordlog export` writes, and a log that is read from it.

An Avro container file with one row per stored record, void ones included, in offset order; which log it was stands in
the file's metadata. Each row has a CRC-32C of itself and of all rows before it, so that a changed, missing or moved row
is noticed. The last row is no record: it stands at the end offset, with the number of records as its value, so that a
missing end is noticed too. The last record need not stand right before that offset: a transaction's marker has one, and
is no record.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

import crc32c
import fastavro

from coordlog.errors import OptionError, OutOfRangeError, SourceError, UsageError
from coordlog.log.avro_container import ContainerHeader, read_header, read_rows
from coordlog.log.interface import Log, LogIdentity, LogWriter, StoredRecord
from coordlog.log.job_id import check_job_id
from coordlog.log.local.fsync import open_plain, sync_path

__all__ = ["ExportedLog", "check_target", "write_exported"]

_FIELDS: Final[list[dict[str, object]]] = [
    {"name": "offset", "type": "long"},
    {"name": "key", "type": ["null", "bytes"]},
    {"name": "value", "type": ["null", "bytes"]},
    {"name": "header", "type": ["null", "bytes"]},
    {"name": "timestamp_ms", "type": "long"},
]
_FIELD_NAMES: Final = tuple(str(field["name"]) for field in _FIELDS)
_SCHEMA: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "coordlog.exported_record",
        "fields": [*_FIELDS, {"name": "crc", "type": "long"}],
    }
)
_SCHEMA_WITHOUT_CRC: Final = fastavro.parse_schema(
    {"type": "record", "name": "coordlog.exported_record", "fields": _FIELDS}
)
_ROW_BYTES_MIN: Final = 5
"""Each of the five fields takes at least one."""
_META: Final = "coordlog."
_FORMAT: Final = "3"
_WITHOUT_END: Final = "2"
"""Its last record stands right before its end offset."""
_WITHOUT_CRC: Final = "1"
"""So does that one's."""
_FORMATS: Final = (_WITHOUT_CRC, _WITHOUT_END, _FORMAT)
_END_KEY: Final = b"end"
_REDACTED: Final = "redacted"
_PLACE: Final = struct.Struct(">qq")
_LENGTH: Final = struct.Struct(">q")
_DAMAGE: Final = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    OptionError,
    zlib.error,
)
_PROGRESS_EVERY: Final = 10_000


class ExportedLog:
    """The log in a file, to be read. Any thread; each reading opens the file anew.

    Args:
        path: What `write_exported` wrote.

    Raises:
        SourceError: It is no such file.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        try:
            with open_plain(self._path) as file:
                self._about = _about(read_header(file))
            check_job_id(self._about["job_id"])
            self._start, self._end = (int(self._about[n]) for n in ("start_offset", "end_offset"))
            self.job_id = self._about["job_id"]
            self._identity = LogIdentity(
                cluster_id=self._about["cluster_id"],
                topic_id=self._about["topic_id"],
                name=self._about["name"],
            )
        except _DAMAGE as error:
            raise self._damaged(error) from error

    @property
    def is_redacted(self) -> bool:
        """Whether contents have been taken out of it: it is for looking at, and no job goes on from it."""
        return self._about.get(_REDACTED) == "true"

    @property
    def identity(self) -> LogIdentity:
        """Which log it was, under its name there."""
        return self._identity

    def start_offset(self) -> int:
        """As in the port."""
        return self._start

    def high_watermark(self) -> int:
        """As in the port: when it was written."""
        return self._end

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """As in the port.

        Raises:
            SourceError: A part of the file is damaged or missing.
        """
        del stall_s  # a file is read, or is not
        if not self._start <= from_offset <= to_offset <= self._end:
            wrong = from_offset if from_offset < self._start else to_offset
            raise OutOfRangeError(str(self._path), wrong, self._start, self._end)
        return self._read(from_offset, to_offset)

    def _read(self, from_offset: int, to_offset: int) -> Iterator[StoredRecord]:
        try:
            with open_plain(self._path) as file:
                for one in self._rows(file):
                    if one.offset >= to_offset:
                        return
                    if one.offset >= from_offset:
                        yield one
        except _DAMAGE as error:
            raise self._damaged(error) from error

    def _rows(self, file: BinaryIO) -> Iterator[StoredRecord]:
        header = read_header(file)
        format_ = _about(header)["format"]
        crc, reached, count, has_ended = 0, self._start, 0, False
        schema = _SCHEMA_WITHOUT_CRC if format_ == _WITHOUT_CRC else _SCHEMA
        for row in read_rows(file, header, schema, row_bytes_min=_ROW_BYTES_MIN):
            one = StoredRecord(*(row[name] for name in _FIELD_NAMES))  # type: ignore[arg-type]  # by schema
            crc = _crc(one, crc)
            if one.offset < reached or has_ended:
                raise ValueError(f"offset {one.offset} stands behind {reached - 1}")
            if format_ != _WITHOUT_CRC and row["crc"] != crc:
                raise ValueError(
                    f"the checksum up to offset {one.offset} is {crc:08x}, and it says "
                    f"{row['crc']:08x}"
                )
            if format_ == _FORMAT and one.offset == self._end:
                if one != _end_row(self._end, count):
                    raise ValueError(f"it has {count} records, and its end says {one.value!r}")
                has_ended = True
                continue
            reached = one.offset + 1
            count += 1
            yield one
        if format_ == _FORMAT and not has_ended:
            raise ValueError(f"it ends at offset {reached}, without its last row at {self._end}")
        if format_ != _FORMAT and reached != self._end:
            raise ValueError(f"it ends at offset {reached}, not at {self._end}")

    def _damaged(self, error: Exception) -> SourceError:
        if isinstance(error, FileNotFoundError):
            return SourceError(
                str(self._path),
                "there is no such file",
                "name one that `coordlog export JOB FILE` wrote, or a job: its id has no dot and no slash",
            )
        return SourceError(
            str(self._path),
            f"cannot be read as an exported history: {type(error).__name__}: {error}",
            "export it again with `coordlog export JOB FILE`",
        )

    def writer(self) -> LogWriter:
        """None: nothing is appended to a file.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{self._path} is an exported history, to which nothing is appended")

    def close(self) -> None:
        """As in the port; nothing is held."""


def _about(header: ContainerHeader) -> dict[str, str]:
    """What the file's metadata say of it."""
    found = header.metadata
    about = {k.removeprefix(_META): v for k, v in found.items() if k.startswith(_META)}
    if about.get("format") not in _FORMATS:
        raise ValueError(
            f"its format is {about.get('format')}, this version reads {', '.join(_FORMATS)}"
        )
    expected = (*_FIELD_NAMES, *(() if about["format"] == _WITHOUT_CRC else ("crc",)))
    if header.field_names != expected:
        raise ValueError(
            f"its rows have the fields {', '.join(header.field_names)[:200]}; an exported history has "
            f"{', '.join(expected)}"
        )
    return about


def _crc(one: StoredRecord, before: int) -> int:
    crc: int = crc32c.crc32c(_PLACE.pack(one.offset, one.timestamp_ms), before)
    for part in (one.key, one.value, one.header_bytes):
        crc = crc32c.crc32c(_LENGTH.pack(-1 if part is None else len(part)), crc)
        crc = crc32c.crc32c(part or b"", crc)
    return crc


def _end_row(end: int, count: int) -> StoredRecord:
    """What stands behind the records, at the end offset."""
    return StoredRecord(end, _END_KEY, b"%d" % count, None, 0)


def _as_row(one: StoredRecord, crc: int) -> dict[str, object]:
    return {
        "offset": one.offset,
        "key": one.key,
        "value": one.value,
        "header": one.header_bytes,
        "timestamp_ms": one.timestamp_ms,
        "crc": crc,
    }


def check_target(path: Path, option: str) -> None:
    """Refuse a path at which no file can be put, or at which one would replace a device or a pipe.

    Raises:
        OptionError: It is one; `option` names it.
    """
    if not path.parent.is_dir():
        raise OptionError(option, str(path), f"in a folder that is there: {path.parent} is none")
    if path.exists() and not path.is_file():
        raise OptionError(option, str(path), "a plain file: no device, pipe or folder is replaced")


def write_exported(
    log: Log,
    job_id: str,
    path: Path,
    *,
    to_offset: int | None = None,
    is_overwriting: bool = False,
    redact: Callable[[StoredRecord], StoredRecord] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a log to `path`, which is there whole, and read back, or not at all. Returns the number of records.

    Args:
        log: The job's.
        job_id: The job.
        path: Where to.
        to_offset: Only what stands below; by default all of it.
        is_overwriting: Replace a file that is there.
        redact: What is written in each record's place; such a file is not compressed, and says what it is.
        on_progress: Called now and then with the offset reached and the end.

    Raises:
        OptionError: As `check_target`.
        FileExistsError: A file is there.
        SourceError: What was written cannot be read back.
    """
    check_target(path, "FILE")
    start = log.start_offset()
    end = log.high_watermark() if to_offset is None else to_offset
    identity = log.identity
    about = {
        "format": _FORMAT,
        "job_id": job_id,
        "name": identity.name if redact is None else f"{job_id}.log",
        "cluster_id": identity.cluster_id,
        "topic_id": identity.topic_id,
        "start_offset": str(start),
        "end_offset": str(end),
    }
    is_redacted = redact is not None or (isinstance(log, ExportedLog) and log.is_redacted)
    if is_redacted:
        about[_REDACTED] = "true"
    count = 0

    def rows() -> Iterator[dict[str, object]]:
        nonlocal count
        crc = 0
        for stored in log.read(start, end):
            one = stored if redact is None else redact(stored)
            crc = _crc(one, crc)
            count += 1
            if on_progress is not None and count % _PROGRESS_EVERY == 0:
                on_progress(one.offset + 1, end)
            yield _as_row(one, crc)
        last = _end_row(end, count)
        yield _as_row(last, _crc(last, crc))

    metadata = {_META + name: value for name, value in about.items()}
    codec = "null" if is_redacted else "deflate"
    _put(
        path,
        lambda file: fastavro.writer(file, _SCHEMA, rows(), codec=codec, metadata=metadata),
        lambda hidden: _read_back(hidden, path),
        is_overwriting=is_overwriting,
    )
    return count


def _read_back(hidden: Path, path: Path) -> None:
    """Read what is to be `path`: all of it, as its last row has the number of records."""
    try:
        written = ExportedLog(hidden)
        for _ in written.read(written.start_offset(), written.high_watermark()):
            pass
    except SourceError as error:
        raise SourceError(str(path), f"what was written {error.problem}", "try again") from error


def _put(
    path: Path,
    write: Callable[[BinaryIO], None],
    check: Callable[[Path], None],
    *,
    is_overwriting: bool,
) -> None:
    """Write a file, on disk whole and checked before it has its name."""
    hidden = path.with_name(
        f".{path.name}.{uuid4().hex}.tmp"
    )  # no process number: containers repeat them
    try:
        with hidden.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        check(hidden)
        if is_overwriting:
            hidden.replace(path)
        else:
            os.link(hidden, path)  # unlike a rename it never replaces
        sync_path(path.parent)
    finally:
        hidden.unlink(missing_ok=True)
