"""The store of a destination's files: the port, with one implementation for each kind of store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, Self

from coordlog.spark_integration.files.payloads import StagedFile

__all__ = ["At", "FileStore", "StagedOutput", "nowhere"]

At = Callable[[str], None]
"""Called at each place of a publication at which a crash would leave files; tests crash there."""


def nowhere(place: str) -> None:
    """Does nothing."""


class StagedOutput(Protocol):
    """A file that is being written under its hidden name. For one thread."""

    def write(self, piece: memoryview) -> None:
        """Write these bytes. The caller may change them once this returns."""
        ...

    def finish(self) -> None:
        """Close the file. Returns once content and name are durable."""
        ...

    def discard(self) -> None:
        """Remove the file, if possible; after an error too. Raises nothing."""
        ...


class FileStore(Protocol):
    """A root with names below it, relative to it. Pickles; clients are made anew afterwards.

    Every method may run on any thread, twice at once, in two drivers. Every one raises SinkError,
    with the store's own number or code; OutOfSpaceError if no space is left.
    """

    @property
    def where(self) -> str:
        """The root, for messages: an absolute path, or a URL without credentials."""
        ...

    def in_area(self, area: str) -> Self:
        """The same root with another folder for hidden names: of a table, whose names that readers see are not ours."""
        ...

    def check_root(self) -> None:
        """Check that the root can be used, or made. Makes nothing."""
        ...

    def make_root(self) -> None:
        """Make the root, if the store has folders. After `check_root`."""
        ...

    def make_ready(self) -> None:
        """Check that the store publishes without replacing: publishes a probe twice."""
        ...

    def names(self) -> Sequence[str]:
        """The names in the root that readers would see, sorted; the first thousand."""
        ...

    def read(self, relative: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        ...

    def read_above(self, relative: str) -> tuple[str, bytes] | None:
        """The nearest place above the root that has such a file below it, and the file's content.

        None too if this user may not read there.
        """
        ...

    def write_once(self, relative: str, content: bytes) -> bool:
        """Write this content, whole and durable, unless the file exists; whether this call did it."""
        ...

    def free_bytes(self) -> int | None:
        """Bytes that can still be written; None if there is no known limit."""
        ...

    def check_final(self, relative: str) -> None:
        """Raise SinkError if a file could not get this name later."""
        ...

    def make_staging(self, driver_id: str) -> None:
        """Make the folder of a driver's staged names; once for each attempt, before `stage`."""
        ...

    def stage(self, relative: str) -> StagedOutput:
        """Begin a file under a staged name that no other file has."""
        ...

    def publish(self, files: Sequence[StagedFile], *, at: At = nowhere) -> None:
        """Give these files the final names that they lack; then remove the staged names.

        When it returns the final names are durable, and another call for the same files, in any
        driver, changes nothing that readers see (clauses H3, K2: settling may repeat).
        """
        ...

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Delete the files that this attempt has staged, but `keep`."""
        ...

    def sweep(self, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
        """Delete all staged files but `keep`, and drafts and probes of processes that have died.

        Lists first, then calls `is_in_force`: if it returns False nothing is deleted, else the
        listed files alone.
        """
        ...
