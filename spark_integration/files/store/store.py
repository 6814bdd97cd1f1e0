"""Where a destination's files are kept: the port, with one implementation for each kind of store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from coordlog.spark_integration.files.payloads import StagedFile

__all__ = ["At", "FileStore", "StagedOutput", "nowhere"]

At = Callable[[str], None]
"""Told each place of a publication where a crash would leave something to be found."""


def nowhere(place: str) -> None:
    """Tells nobody."""


class StagedOutput(Protocol):
    """One file that is being written under its hidden name. Not for two threads."""

    def write(self, piece: memoryview) -> None:
        """Take these bytes. They are the caller's again when this returns."""
        ...

    def finish(self) -> None:
        """Return once content and name will stay, whatever happens."""
        ...

    def discard(self) -> None:
        """Leave nothing behind, as far as that can be done; after an error too. Raises nothing."""
        ...


class FileStore(Protocol):
    """A root with names below it, relative to it. Pickles; holds nothing that is not made anew.

    Every method may run on any thread, twice at once, in two drivers. Every one raises SinkError,
    with the store's own number or code; OutOfSpaceError where there is no space left.
    """

    @property
    def where(self) -> str:
        """The root, for people: an absolute path, or a URL without credentials."""
        ...

    def check_root(self) -> None:
        """See that it can be used, or made. Makes nothing."""
        ...

    def make_root(self) -> None:
        """Make what can be made of it. After `check_root`."""
        ...

    def make_ready(self) -> None:
        """See that it can publish without replacing, by publishing a probe twice."""
        ...

    def names(self) -> Sequence[str]:
        """What stands in the root that readers would see, sorted; the first thousand."""
        ...

    def read(self, relative: str) -> bytes | None:
        """The content of a small file; None where there is none."""
        ...

    def read_above(self, relative: str) -> tuple[str, bytes] | None:
        """The file of this name below the nearest place above the root that has one, and that place.

        None too where this user may not look there.
        """
        ...

    def write_once(self, relative: str, content: bytes) -> bool:
        """Give it this content, whole and to stay, unless it exists; whether this call did it."""
        ...

    def free_bytes(self) -> int | None:
        """What can still be written; None where nobody knows."""
        ...

    def check_final(self, relative: str) -> None:
        """Raise SinkError where a file could not get this name later."""
        ...

    def make_staging(self, driver_id: str) -> None:
        """Make what a driver's staged names need; once for each attempt, before `stage`."""
        ...

    def stage(self, relative: str) -> StagedOutput:
        """Begin a file under a staged name, which nothing else has."""
        ...

    def publish(self, files: Sequence[StagedFile], *, at: At = nowhere) -> None:
        """Give these files the final names that they do not have yet; then take the staged ones away.

        When it returns the final names stay, and whatever another call for the same files still
        does, in whichever driver, changes nothing that is seen (clauses H3, K2).
        """
        ...

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Delete what this attempt has staged, but `keep`."""
        ...

    def sweep(self, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
        """Delete all that is staged, but `keep`, and drafts and probes that somebody died over.

        Lists first, then asks `is_in_force`; where that is False nothing is deleted, and else only
        what has been listed.
        """
        ...
