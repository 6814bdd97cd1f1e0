"""A table that files are added to: the port, with one implementation for each format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.store.store import At

__all__ = [
    "MARKS",
    "OpenedTable",
    "Table",
    "TableCommit",
    "TableConflictError",
    "TableLook",
    "UnclearError",
    "has_reached",
]

MARKS: Final = "coordlog.commits."
"""Beginning of the names of all marks; the job follows, a dot, and the operator."""


class TableConflictError(Exception):
    """Another commit came first, and this one was not made."""


class UnclearError(Exception):
    """A commit has failed in a way that does not show whether it was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTable:
    """A table as it is now."""

    identity: str | None
    """Id that no other table has, also no later one of the same name; None as long as it does not exist."""
    files_root: str
    """Folder or URL of its files."""
    has_own_folders: bool
    """Whether each job makes a folder of its own there; else only hidden files have a folder for each job."""
    columns: pa.Schema | None
    """Schema of the files of the table's current columns; None as long as it has no columns."""
    partition_by: tuple[str, ...]
    """Columns by whose values it is partitioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """Files that one commit adds, or none, with the mark by which it is known."""

    mark: str
    """Name of the mark: of the job, the operator and the part of a checkpoint."""
    number: int
    """Value of the mark, which only grows."""
    root: str
    """Folder or URL of the files."""
    files: Sequence[StagedFile]
    properties: Mapping[str, str]
    """Description of the commit, for people."""


class TableLook(Protocol):
    """The state of a table at one moment."""

    @property
    def identity(self) -> str | None:
        """See `OpenedTable`."""
        ...

    def settled(self, mark: str) -> int | None:
        """Value of a mark; None if the table has none of this name."""
        ...

    def jobs(self) -> frozenset[str]:
        """Ids of the jobs with a mark in it."""
        ...

    def commit(self, commit: TableCommit, *, at: At) -> None:
        """Add the files and set the mark in one commit of the table, if nothing was committed since the look. One try.

        Raises:
            TableConflictError: Something was; this commit was not made.
            UnclearError: It may have been made, or may be yet: only if nothing else is committed before.
            SinkError: It was not made, and cannot be: the table does not take the files.
        """
        ...


def has_reached(look: TableLook, mark: str, number: int) -> bool:
    """Whether a table has this value of a mark, or a later one."""
    settled = look.settled(mark)
    return settled is not None and settled >= number


class Table(Protocol):
    """One table, by its name or place. Pickles; clients are made anew afterwards. Any thread.

    Every method raises SinkError with the format's own message.
    """

    @property
    def where(self) -> str:
        """The table, as a URL without credentials."""
        ...

    @property
    def keeps_partition_columns(self) -> bool:
        """Whether its data files hold the columns that it is partitioned by."""
        ...

    def exists(self) -> bool:
        """Whether it exists."""
        ...

    def open(self, columns: pa.Schema | None, partition_by: tuple[str, ...]) -> OpenedTable:
        """The table, which is made with these columns if it does not exist.

        If they are None it is made without columns, or with the first rows.
        """
        ...

    def settle(self, columns: pa.Schema, partition_by: tuple[str, ...]) -> OpenedTable:
        """The table; if it has no columns, it gets these in one commit. In a task, with the first rows."""
        ...

    def widened_columns(self, columns: pa.Schema) -> pa.Schema:
        """Schema of the files, after columns that the table lacks were added, and narrower ones widened. In a task.

        Raises:
            MisfitError: The format does not widen a column so.
        """
        ...

    def look(self) -> TableLook:
        """The newest state."""
        ...
