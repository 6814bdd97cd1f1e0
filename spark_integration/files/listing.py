"""Which files a source has: a listing in one fixed order, and opening what it names."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from coordlog.errors import SourceError

__all__ = ["InputFiles", "ListedFile"]

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file as a listing found it."""

    path: str
    """As its file system names it, without a protocol."""
    size_bytes: int
    """-1 where the file system does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """The files behind a path, a glob or an fsspec URL. Pickles; holds nothing open.

    Names that begin with `.` or `_`, and all that is below such folders, are not part of it, as
    Spark has it; a file that is named outright is.
    """

    url: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For fsspec. May hold secrets: it is not printed and not in the log."""

    def list(self, *, allow_none: bool = False) -> tuple[ListedFile, ...]:
        """All files, sorted by path.

        Args:
            allow_none: Whether there may be no file, or only empty ones.

        Raises:
            SourceError: There is none, all are empty, or the file system refuses.
        """
        file_system, path = self._file_system()
        try:
            found = sorted(self._walk(file_system, path), key=lambda one: one.path)
        except OSError as error:
            raise _unreadable(error.filename or path, error) from error
        if not found and not allow_none:
            raise SourceError(
                self.url,
                "there is no file to read (names that begin with `.` or `_` are not read)",
                "name a file, a folder with files, or a glob that matches some",
            )
        if not allow_none and all(one.size_bytes == 0 for one in found):
            raise SourceError(
                self.url,
                f"all files are empty: {len(found)} of 0 bytes",
                "name files that hold rows, or at least a header",
            )
        return tuple(found)

    def is_there(self) -> bool:
        """Whether the file, the folder, or what stands before a glob's wildcards still exists."""
        try:
            file_system, path = self._file_system()
            if isinstance(file_system, LocalFileSystem) and os.path.lexists(path):
                return os.path.exists(path)  # noqa: PTH110, plain paths as fsspec gives them
            return bool(file_system.exists(_fixed_part(path) if _MAGIC & set(path) else path))
        except (OSError, SourceError):
            return False

    def open(self, path: str, size_bytes: int) -> BinaryIO:
        """The file `path` of a listing, to be read from its start.

        Raises:
            SourceError: It cannot be opened, or has no longer `size_bytes` bytes (-1: not checked).
        """
        file_system, _ = self._file_system()
        try:
            if isinstance(file_system, LocalFileSystem):
                # A plain path, which the caller closes.
                opened: BinaryIO = cast("BinaryIO", open(path, "rb", buffering=0))  # noqa: PTH123, SIM115
                size = os.fstat(opened.fileno()).st_size
            else:
                opened = cast("BinaryIO", file_system.open(path, "rb"))
                size = file_system.info(path).get("size")
                size = -1 if size is None else int(size)
        except OSError as error:
            raise _unreadable(path, error) from error
        if size_bytes >= 0 and size != size_bytes:
            opened.close()
            raise SourceError(
                path,
                f"it has {size} bytes; it had {size_bytes} when the source was listed",
                "put changed content into a new file: rows of the old one are in use already",
            )
        return opened

    def _file_system(self) -> tuple[Any, str]:
        try:
            file_system, path = url_to_fs(self.url, **self.storage_options)
        except (ImportError, ValueError) as error:
            raise SourceError(
                self.url,
                f"its file system cannot be used: {error}",
                "see the part before `://`, and install the package that fsspec needs for it",
            ) from error
        return file_system, str(path)

    # `Any`: fsspec has no types.
    def _walk(self, file_system: Any, path: str) -> Iterator[ListedFile]:  # noqa: ANN401
        if isinstance(file_system, LocalFileSystem):
            if os.path.lexists(path) or not _MAGIC & set(path):
                return _local_below(path, frozenset())
            roots = [str(one) for one in file_system.glob(path)]
            return (
                one
                for root in roots
                if not _is_hidden(root, _fixed_part(path))
                for one in _local_below(root, frozenset())
            )
        return self._remote(file_system, path)

    @staticmethod
    def _remote(file_system: Any, path: str) -> Iterator[ListedFile]:  # noqa: ANN401, as above
        if file_system.isfile(path):
            size = file_system.info(path).get("size")
            yield ListedFile(path=path, size_bytes=-1 if size is None else int(size))
            return
        fixed = _fixed_part(path) if _MAGIC & set(path) else path
        roots = [str(one) for one in file_system.glob(path)] if fixed != path else [path]
        for root in roots:
            for name, info in file_system.find(root, detail=True).items():
                if not _is_hidden(str(name), fixed):
                    size = info.get("size")
                    yield ListedFile(path=str(name), size_bytes=-1 if size is None else int(size))


def _fixed_part(path: str) -> str:
    """The folders of a glob before the first that has a wildcard."""
    kept: list[str] = []
    for part in path.split("/"):
        if _MAGIC & set(part):
            break
        kept.append(part)
    return "/".join(kept)


def _is_hidden(path: str, below: str) -> bool:
    relative = path.removeprefix(below).strip("/")
    return any(part.startswith((".", "_")) for part in relative.split("/"))


def _local_below(path: str, above: frozenset[str]) -> Iterator[ListedFile]:
    """Files at or below `path`.

    `above` are the real folders that lead here: a link back to one is not followed.
    """
    if os.path.isfile(path):  # noqa: PTH113, plain paths as fsspec gives them
        yield ListedFile(path=path, size_bytes=os.path.getsize(path))  # noqa: PTH202
        return
    if not os.path.isdir(path):  # noqa: PTH112
        is_there = os.path.lexists(path)
        raise SourceError(
            path,
            "it is neither a file nor a folder" if is_there else "it does not exist",
            "mend or remove what is under this name" if is_there else "give a path that does",
        )
    real = os.path.realpath(path)
    if real in above:
        return
    for name in sorted(os.listdir(path)):  # noqa: PTH208
        if not name.startswith((".", "_")):
            yield from _local_below(posixpath.join(path, name), above | {real})


def _unreadable(path: str, error: OSError) -> SourceError:
    steps: dict[type[OSError], str] = {
        FileNotFoundError: "put it back, or give a path that exists",
        IsADirectoryError: "give its files, or the folder above it",
        PermissionError: "allow the user that runs the job and its tasks to read it",
    }
    next_step = steps.get(type(error), "see that the file system works and the file is whole")
    number = f"[errno {error.errno}] " if error.errno is not None else ""
    return SourceError(path, f"it cannot be read: {number}{error.strerror or error}", next_step)
