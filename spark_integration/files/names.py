"""The names of a destination's files: staged and final, relative, normalised, inside their root."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import Final

from coordlog.errors import DestinationMisfitError, OptionError, SinkError

__all__ = [
    "HIDDEN",
    "NO_VALUE",
    "STAGED_NAME",
    "STAGING",
    "StagedName",
    "check_final_name",
    "check_staged_name",
    "checked_driver_id",
    "escaped",
    "partition_folder",
    "placed",
]

HIDDEN: Final = ".coordlog"
"""Folder that is not for readers; Spark and others leave out names that begin with a dot."""

STAGING: Final = f"{HIDDEN}/staging"

STAGED_NAME: Final = re.compile(r"(\d+)-(\d+)-(\d+)\.parquet")
"""Subtask, attempt number, count."""

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Null, and as in Spark the empty string, in the name of a partition's folder."""

_EMPTY: Final = "%empty"
"""The empty string, if it is not null: no other value has this text, since a percent sign is escaped."""

# As in org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils; a test compares each
# character. NUL is added: no file system takes it.
_ESCAPED: Final = frozenset([*map(chr, range(0x20)), *"\"#%'*/:=?\\\x7f{[]^"])
_DRIVER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FINAL_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SEGMENT_BYTES_MAX: Final = 255
"""Longest name that file systems take."""

_FOLDER_BYTES_MAX: Final = 900
"""Longest folder path of a partition: S3 takes keys of 1,024 bytes, and an intent names many files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedName:
    """The names of one file of one attempt; no other file of the job ever gets them.

    By clause M5 (drivers never share names) two drivers of a job do not collide either.

    An attempt number is used once in the life of a job, however often the job is opened, so that a
    final name is free when its file is made.
    """

    job_id: str
    driver_id: str
    subtask: int
    attempt_number: int
    count: int
    """Number of the file among those of this attempt, 0 first."""
    folder: str = ""
    """Folder of the partition, relative to the destination; empty for the destination itself."""
    label: str = "part"
    """Prefix of the final name: letters, digits, hyphens."""

    @property
    def staged(self) -> str:
        """Name before publication, relative to the destination."""
        return (
            f"{STAGING}/{checked_driver_id(self.driver_id)}/"
            f"{self.subtask}-{self.attempt_number}-{self.count}.parquet"
        )

    @property
    def final(self) -> str:
        """Name after publication, relative to the destination.

        Differs between two drivers that used the same attempt number.
        """
        driver = blake2b(f"{self.job_id}/{self.driver_id}".encode(), digest_size=4).hexdigest()
        numbers = f"{self.subtask:05}-{self.attempt_number:03}-{self.count:05}"
        name = f"{self.label}-{numbers}-{driver}.parquet"
        return f"{self.folder}/{name}" if self.folder else name


def placed(relative: str, area: str) -> str:
    """`relative`, with `area` for the hidden folder: a table has one for each job."""
    return (
        f"{area}{relative.removeprefix(HIDDEN)}"
        if f"{relative}/".startswith(f"{HIDDEN}/")
        else relative
    )


def checked_driver_id(driver_id: str) -> str:
    """`driver_id`, if it may be a folder's name.

    Raises:
        OptionError: It may not.
    """
    if not _DRIVER_ID.fullmatch(driver_id):
        raise OptionError(
            "driver_id", driver_id, "letters, digits, dots, hyphens and underscores, a letter first"
        )
    return driver_id


def check_staged_name(where: str, relative: str) -> None:
    """Raise SinkError if `relative` is no staged name of this sink."""
    folder, _, name = relative.rpartition("/")
    area, _, driver_id = folder.rpartition("/")
    if area != STAGING or not _DRIVER_ID.fullmatch(driver_id) or not STAGED_NAME.fullmatch(name):
        raise _no_name_of_ours(where, relative)


def check_final_name(where: str, relative: str) -> None:
    """Raise SinkError if `relative` is no name in the destination that readers would see."""
    *folders, name = relative.split("/")
    if not _FINAL_FILE.fullmatch(name) or not all(_is_partition(folder) for folder in folders):
        raise _no_name_of_ours(where, relative)


def escaped(text: str) -> str:
    """`text` as a part of a folder's name, as Spark writes and reads it."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def partition_folder(
    where: str,
    columns: tuple[str, ...],
    values: tuple[object, ...],
    *,
    distinguishes_empty: bool = False,
) -> str:
    """The folder of a partition, as in Hive: `a=1/b=x`.

    Args:
        where: The destination, for errors.
        columns: Names of the partition columns.
        values: Their values.
        distinguishes_empty: Whether the empty string has another folder than null: readers take values from the files.

    Raises:
        DestinationMisfitError: A name would be longer than file systems take.
    """
    segments: list[str] = []
    for column, value in zip(columns, values, strict=True):
        text = _EMPTY if distinguishes_empty and value == "" else _text(value)
        segment = f"{escaped(column)}={text}"
        size = len(segment.encode("utf-8", "surrogatepass"))
        if size > _SEGMENT_BYTES_MAX:
            raise DestinationMisfitError(
                where,
                f"a value of partition column {column!r} makes a folder's name of {size} bytes; "
                f"file systems take {_SEGMENT_BYTES_MAX}: {segment[:40]!r}…",
                "shorten it in the transform, or partition by another column",
            )
        segments.append(segment)
    folder = "/".join(segments)
    size = len(folder.encode("utf-8", "surrogatepass"))
    if size > _FOLDER_BYTES_MAX:
        raise DestinationMisfitError(
            where,
            f"the values of {len(columns)} partition columns make a folder's name of {size} bytes; "
            f"the limit is {_FOLDER_BYTES_MAX}",
            "shorten them in the transform, or write fewer columns",
        )
    return folder


def _text(value: object) -> str:
    if value is None or value == "":
        return NO_VALUE
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    text = escaped(str(value))
    return text if text != NO_VALUE else f"%5F{text[1:]}"  # a word that is not null


def _is_partition(segment: str) -> bool:
    column, equals, value = segment.partition("=")
    return (
        bool(column and equals and value)
        and not segment.startswith(".")
        and not _ESCAPED & set(column.replace("%", "") + value.replace("%", ""))
        and len(segment.encode("utf-8", "surrogatepass")) <= _SEGMENT_BYTES_MAX
    )


def _no_name_of_ours(where: str, relative: str) -> SinkError:
    return SinkError(
        where,
        f"{relative!r} is no name that a file of this sink may have",
        "see which version wrote this; nothing was touched",
    )
