"""A log as one file: written by `coordlog export`, and readable as a log.

An Avro container file with one row per stored record, void ones included, in offset order; the file's metadata name the
log, and have a CRC-32C of themselves. Each row has a CRC-32C of itself, of all rows before it and of the metadata, so
that a changed, missing or moved row is noticed, and so are the metadata of another file. The last row is no record: it
has the end offset, with the number of records as its value, so that a missing end is noticed too. The last record
need not have the offset right before it: a transaction's marker takes an offset, and is no record.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import crc32c
import fastavro

from coordlog.errors import OptionError, OutOfRangeError, SourceError, UsageError
from coordlog.log.avro_container import ContainerHeader, read_header, read_rows
from coordlog.log.interface import LogIdentity, LogWriter, StoredRecord
from coordlog.log.job_id import check_job_id
from coordlog.log.local.drafts import name_draft, remove_drafts, unnamed_draft_of
from coordlog.log.local.fsync import naming, open_plain, sync_path

__all__ = ["Export", "ExportedLog", "check_target", "write_file"]

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
"""Each of the five fields takes at least one byte."""
_META: Final = "coordlog."
_FORMAT: Final = "4"
_WITHOUT_METADATA_CRC: Final = "3"
"""Format whose rows' checksum begins with the first row, and whose metadata have none."""
_WITHOUT_END: Final = "2"
"""Format whose last record is right before the end offset."""
_WITHOUT_CRC: Final = "1"
"""Format without checksums, whose last record is right before the end offset."""
_FORMATS: Final = (_WITHOUT_CRC, _WITHOUT_END, _WITHOUT_METADATA_CRC, _FORMAT)
_WITH_END: Final = (_WITHOUT_METADATA_CRC, _FORMAT)
_END_KEY: Final = b"end"
_REDACTED: Final = "redacted"
_CRC: Final = "crc"
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


class ExportedLog:
    """The log in a file, to be read. Any thread; each reading opens the file again.

    Args:
        path: File that `write_file` wrote.

    Raises:
        SourceError: The file is no exported history.
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
        """Whether contents have been removed: such a file is for inspection, and no job continues from it."""
        return self._about.get(_REDACTED) == "true"

    @property
    def identity(self) -> LogIdentity:
        """Identity of the exported log, with its name there."""
        return self._identity

    def start_offset(self) -> int:
        """As in the port."""
        return self._start

    def high_watermark(self) -> int:
        """As in the port: at the time of the export."""
        return self._end

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """As in the port.

        Raises:
            SourceError: A part of the file is damaged or missing.
        """
        del stall_s  # a file does not stall
        if not self._start <= from_offset <= to_offset <= self._end:
            wrong = from_offset if from_offset < self._start else to_offset
            raise OutOfRangeError(str(self._path), wrong, self._start, self._end)
        return self._read(from_offset, to_offset)

    def _read(self, from_offset: int, to_offset: int) -> Iterator[StoredRecord]:
        try:
            with open_plain(self._path) as file:
                for record in self._rows(file):
                    if record.offset >= to_offset:
                        return
                    if record.offset >= from_offset:
                        yield record
        except _DAMAGE as error:
            raise self._damaged(error) from error

    def _rows(self, file: BinaryIO) -> Iterator[StoredRecord]:
        header = read_header(file)
        about = _about(header)
        format_ = about["format"]
        crc = int(about[_CRC], 16) if format_ == _FORMAT else 0
        reached, count, has_ended = self._start, 0, False
        schema = _SCHEMA_WITHOUT_CRC if format_ == _WITHOUT_CRC else _SCHEMA
        for row in read_rows(file, header, schema, row_bytes_min=_ROW_BYTES_MIN):
            record = StoredRecord(*(row[name] for name in _FIELD_NAMES))  # type: ignore[arg-type]  # by schema
            crc = _crc(record, crc)
            if record.offset < reached or has_ended:
                raise ValueError(f"offset {record.offset} follows {reached - 1}")
            if format_ != _WITHOUT_CRC and row["crc"] != crc:
                raise ValueError(
                    f"the checksum up to offset {record.offset} is {crc:08x}, and it says "
                    f"{row['crc']:08x}"
                )
            if format_ in _WITH_END and record.offset == self._end:
                if record != _end_row(self._end, count):
                    raise ValueError(f"it has {count} records, and its end says {record.value!r}")
                has_ended = True
                continue
            reached = record.offset + 1
            count += 1
            yield record
        if format_ in _WITH_END and not has_ended:
            raise ValueError(f"it ends at offset {reached}, without its last row at {self._end}")
        if format_ not in _WITH_END and reached != self._end:
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
    """The file's own metadata, checked.

    Raises:
        ValueError: Format, checksum or fields of the rows are not those of an exported history.
    """
    metadata = header.metadata
    about = {k.removeprefix(_META): v for k, v in metadata.items() if k.startswith(_META)}
    if about.get("format") not in _FORMATS:
        raise ValueError(
            f"its format is {about.get('format')}, this version reads {', '.join(_FORMATS)}"
        )
    if about["format"] == _FORMAT:
        crc, stated = f"{_about_crc(about):08x}", about.get(_CRC)
        if stated != crc:
            raise ValueError(f"the checksum of its metadata is {crc}, and it says {stated}")
    expected = (*_FIELD_NAMES, *(() if about["format"] == _WITHOUT_CRC else ("crc",)))
    if header.field_names != expected:
        raise ValueError(
            f"its rows have the fields {', '.join(header.field_names)[:200]}; an exported history has "
            f"{', '.join(expected)}"
        )
    return about


def _about_crc(about: Mapping[str, str]) -> int:
    """Checksum of all metadata but the checksum itself."""
    crc = 0
    for name, value in sorted(about.items()):
        for part in () if name == _CRC else (name.encode(), value.encode()):
            crc = crc32c.crc32c(part, crc32c.crc32c(_LENGTH.pack(len(part)), crc))
    return crc


def _crc(record: StoredRecord, before: int) -> int:
    crc: int = crc32c.crc32c(_PLACE.pack(record.offset, record.timestamp_ms), before)
    for part in (record.key, record.value, record.header_bytes):
        crc = crc32c.crc32c(_LENGTH.pack(-1 if part is None else len(part)), crc)
        crc = crc32c.crc32c(part or b"", crc)
    return crc


def _end_row(end: int, count: int) -> StoredRecord:
    """The row behind the records, at the end offset."""
    return StoredRecord(end, _END_KEY, b"%d" % count, None, 0)


def _as_row(record: StoredRecord, crc: int) -> dict[str, object]:
    return {
        "offset": record.offset,
        "key": record.key,
        "value": record.value,
        "header": record.header_bytes,
        "timestamp_ms": record.timestamp_ms,
        "crc": crc,
    }


def check_target(path: Path, option: str) -> None:
    """Refuse a path at which no file can be written, or at which a file would replace a device or a pipe.

    Raises:
        OptionError: The path is refused; `option` names it.
    """
    if not path.parent.is_dir():
        raise OptionError(option, str(path), f"in a folder that is there: {path.parent} is none")
    if path.exists() and not path.is_file():
        raise OptionError(option, str(path), "a plain file: no device, pipe or folder is replaced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Origin and extent of the records in a file."""

    job_id: str
    identity: LogIdentity
    """Identity of the exported log."""
    start_offset: int
    end_offset: int
    """End of the export, exclusive."""
    is_redacted: bool
    """Whether contents have been removed. Such a file is not compressed."""

    def metadata(self) -> dict[str, str]:
        """Metadata of the file, without their checksum."""
        about = {
            "format": _FORMAT,
            "job_id": self.job_id,
            "name": self.identity.name,
            "cluster_id": self.identity.cluster_id,
            "topic_id": self.identity.topic_id,
            "start_offset": str(self.start_offset),
            "end_offset": str(self.end_offset),
        }
        return about | {_REDACTED: "true"} if self.is_redacted else about


def write_file(
    records: Iterable[StoredRecord], export: Export, path: Path, *, is_overwriting: bool = False
) -> int:
    """Write records to `path`; the file is complete and verified, or does not exist. Returns the number of records.

    Args:
        records: All records of the export, in offset order.
        export: Origin and extent of the records.
        path: The file to write.
        is_overwriting: Replace an existing file.

    Raises:
        OptionError: As `check_target`.
        FileExistsError: The file exists.
        SourceError: The written file cannot be read back.
    """
    check_target(path, "FILE")
    about = export.metadata()
    count, about_crc = 0, _about_crc(about)
    about[_CRC] = f"{about_crc:08x}"

    def rows() -> Iterator[dict[str, object]]:
        nonlocal count
        crc = about_crc
        for record in records:
            crc = _crc(record, crc)
            count += 1
            yield _as_row(record, crc)
        last = _end_row(export.end_offset, count)
        yield _as_row(last, _crc(last, crc))

    metadata = {_META + name: value for name, value in about.items()}
    codec = "null" if export.is_redacted else "deflate"
    _put(
        path,
        lambda file: fastavro.writer(file, _SCHEMA, rows(), codec=codec, metadata=metadata),
        lambda hidden: _read_back(hidden, path),
        is_overwriting=is_overwriting,
    )
    return count


def _read_back(hidden: Path, path: Path) -> None:
    """Read all of the draft of `path`: its last row has the number of records."""
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
    """Write a file; it is complete on disk and checked before it gets its name."""
    remove_drafts(path.parent, re.escape(path.name))
    with naming(path), unnamed_draft_of(path) as (draft, file):
        write(file)
        file.flush()
        os.fsync(file.fileno())
        check(draft)
        name_draft(draft, path, is_replacing=is_overwriting)
        sync_path(path.parent)
