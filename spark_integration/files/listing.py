"""Which files a source has: a listing in one fixed order, and opening what it names."""

from __future__ import annotations

import datetime as dt
import functools
import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, Protocol, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from coordlog.errors import SourceError, SourceUnavailableError

from .urls import missing_library

__all__ = ["InputFiles", "ListedFile", "SeenFile", "fixed_part", "has_wildcard"]

_MAGIC: Final = frozenset("*?[")
_MARKS: Final = (
    ("etag", "ETag"),
    ("etag", "etag"),
    ("checksum", "md5Hash"),
    ("checksum", "Content-MD5"),
    ("modified", "LastModified"),
    ("modified", "last_modified"),
    ("modified", "Last-Modified"),
    ("modified", "modified"),
    ("modified", "updated"),
    ("modified", "mtime"),
    ("modified", "created"),
)
"""By which entry of fsspec's `info` a change is seen, best first, with the word for it."""


class SeenFile(Protocol):
    """A file as it was when it was listed."""

    @property
    def path(self) -> str:
        """As its file system names it."""
        ...

    @property
    def size_bytes(self) -> int:
        """-1 where the file system does not say."""
        ...

    @property
    def mark(self) -> str:
        """What changes with its content (`etag …`, `modified …`); empty where nothing is known."""
        ...

    @property
    def real_path(self) -> str:
        """Local: where its links lead, relative to the source's folder; elsewhere empty."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file as a listing found it; a `SeenFile`."""

    path: str
    """As its file system names it, without a protocol."""
    size_bytes: int
    """-1 where the file system does not say."""
    mark: str = ""
    real_path: str = ""
    may_seek: bool = True
    """False: it can be read from its start only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """The files behind a path, a glob or an fsspec URL. Pickles; holds nothing open.

    Names that begin with `.` or `_`, and all that is below such folders, are not part of it, as
    Spark has it; a file that is named outright is.
    """

    url: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For fsspec. May hold secrets: it is not printed and not in the log."""
    compares_marks: bool = True
    """False: a change is seen by the size alone."""

    def list(self, *, allow_none: bool = False) -> tuple[ListedFile, ...]:
        """All files, sorted by path.

        Args:
            allow_none: No file, and none but empty ones, are no error.

        Raises:
            SourceError: There is none, all are empty, or a name leads out of the source.
            SourceUnavailableError: The file system refuses, or nothing is under the path.
        """
        file_system, path = self._file_system()
        try:
            found = sorted(self._walk(file_system, path), key=lambda one: one.path)
        except SourceError:
            raise
        except Exception as error:
            raise _unreadable(path, error) from error
        if not found and not allow_none:
            raise SourceError(
                self.url,
                "there is no file to read (names that begin with `.` or `_` are not read)",
                "name a file, a folder with files, or a glob that matches some",
            )
        if all(one.size_bytes == 0 for one in found) and not allow_none:
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
            return bool(file_system.exists(fixed_part(path) if has_wildcard(path) else path))
        except (OSError, SourceError):
            return False

    def open(self, seen: SeenFile, *, seeks: bool = False) -> BinaryIO:
        """The file that a listing named, to be read from its start.

        Args:
            seen: As it was listed.
            seeks: It is read here and there, where its file system can do so.

        Raises:
            SourceError: It cannot be opened, or has changed since it was listed.
        """
        file_system, root = self._file_system()
        try:
            if isinstance(file_system, LocalFileSystem):
                # A plain path, which the caller closes.
                opened = cast("BinaryIO", open(seen.path, "rb", buffering=0))  # noqa: PTH123, SIM115
                now = _of_status(os.fstat(opened.fileno()), seen.path, root)
            else:
                file_system.invalidate_cache()
                now = _of_info(seen.path, file_system.info(seen.path))
                streamed = {} if seeks or now.may_seek or now.size_bytes < 0 else {"block_size": 0}
                opened = cast("BinaryIO", file_system.open(seen.path, "rb", **streamed))
        except Exception as error:
            raise _gone(seen, error) from error
        try:
            self._compare(seen, now, "since the source was listed")
        except SourceError:
            opened.close()
            raise
        return opened

    def look(self, seen: SeenFile) -> ListedFile:
        """The same file as it is now.

        Raises:
            SourceError: It is gone.
        """
        file_system, root = self._file_system()
        try:
            if isinstance(file_system, LocalFileSystem):
                return _of_status(os.stat(seen.path), seen.path, root)  # noqa: PTH116, as fsspec gives it
            file_system.invalidate_cache()
            return _of_info(seen.path, file_system.info(seen.path))
        except Exception as error:
            raise _gone(seen, error) from error

    def check(self, seen: SeenFile) -> None:
        """See, after it has been read, that it is the file that was listed.

        Raises:
            SourceError: It is gone, or has changed.
        """
        self._compare(seen, self.look(seen), "while it was read")

    def difference(self, seen: SeenFile, now: SeenFile) -> str | None:
        """What has changed, in words; None where nothing has that can be seen."""
        if min(seen.size_bytes, now.size_bytes) >= 0 and seen.size_bytes != now.size_bytes:
            return (
                f"it has {now.size_bytes} bytes; it had {seen.size_bytes} when the source was "
                "listed"
            )
        if seen.real_path and now.real_path and seen.real_path != now.real_path:
            return (
                f"a link on its way leads to {now.real_path} now; when the source was listed it "
                f"was {seen.real_path}"
            )
        # A mark of another kind tells nothing: some file systems give fewer in a listing.
        kinds = seen.mark.partition(" ")[0], now.mark.partition(" ")[0]
        if self.compares_marks and kinds[0] == kinds[1] and seen.mark != now.mark:
            return f"its content may be another: {now.mark}; when the source was listed {seen.mark}"
        return None

    def _compare(self, seen: SeenFile, now: SeenFile, when: str) -> None:
        changed = self.difference(seen, now)
        if changed is not None:
            raise SourceError(
                seen.path,
                f"it has changed {when}: {changed}",
                "put the file back as it was and changed content into a new file: rows of the old "
                "one may be in use already",
            )

    def _file_system(self) -> tuple[Any, str]:
        if self.url.startswith("/") and ":" not in self.url and not self.storage_options:
            return _local_at(self.url)  # asked twice for each file: what fsspec does for URLs shows
        try:
            file_system, path = url_to_fs(self.url, **self.storage_options)
        except (ImportError, ValueError) as error:
            raise missing_library(self.url, error) from error
        return file_system, str(path)

    # `Any`: fsspec has no types.
    def _walk(self, file_system: Any, path: str) -> Iterator[ListedFile]:  # noqa: ANN401
        if isinstance(file_system, LocalFileSystem):
            if os.path.lexists(path) or not has_wildcard(path):
                return _local_below(path, path, frozenset())
            fixed = fixed_part(path)
            return (
                one
                for root in map(str, file_system.glob(path))
                if not _is_hidden(root, fixed)
                for one in _local_below(root, path, frozenset())
            )
        return self._remote(file_system, path)

    @staticmethod
    def _remote(file_system: Any, path: str) -> Iterator[ListedFile]:  # noqa: ANN401, as above
        file_system.invalidate_cache()
        if not path.endswith("/") and not has_wildcard(path) and file_system.isfile(path):
            yield _of_info(path, file_system.info(path))
            return
        fixed = fixed_part(path) if has_wildcard(path) else path
        roots = [str(one) for one in file_system.glob(path)] if fixed != path else [path]
        for root in roots:
            for name, info in file_system.find(root, detail=True).items():
                _refuse_outside(str(name), fixed)
                if str(name).endswith("/") or _is_hidden(str(name), fixed):
                    continue  # an object store's own sign of a folder; a hidden name
                # A web server's index says neither size nor time.
                told = info if info.get("size") is not None else file_system.info(name)
                yield _of_info(str(name), told)


@functools.lru_cache(maxsize=16)
def _local_at(url: str) -> tuple[LocalFileSystem, str]:
    """What `url_to_fs` gives for an absolute path."""
    file_system, path = url_to_fs(url)
    return file_system, str(path)


def _of_info(path: str, info: Mapping[str, Any]) -> ListedFile:
    """From what fsspec tells of a file."""
    size = info.get("size")
    mark = ""
    for word, key in _MARKS:
        if info.get(key) not in (None, ""):
            mark = f"{word} {_shown(info[key])}"
            break
    return ListedFile(
        path=path,
        size_bytes=-1 if size is None else int(size),
        mark=mark,
        # A web server that does not say so has no ranges.
        may_seek=size is not None
        and (info.get("partial") is True or not path.startswith(("http://", "https://"))),
    )


def _shown(value: object) -> str:
    if isinstance(value, (int, float)):
        value = dt.datetime.fromtimestamp(value, dt.UTC)
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    return str(value)


def _of_status(status: os.stat_result, path: str, root: str) -> ListedFile:
    """From what the operating system tells of a local file."""
    seconds, rest = divmod(status.st_mtime_ns, 1_000_000_000)
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    base = os.path.realpath(fixed_part(root) if has_wildcard(root) else root)
    real = os.path.realpath(path)
    return ListedFile(
        path=path,
        size_bytes=status.st_size,
        mark=f"modified {moment}.{rest:09}Z",
        real_path=os.path.relpath(real, base),
    )


def has_wildcard(path: str) -> bool:
    """Whether it is a glob, unless something of just that name exists."""
    return bool(_MAGIC & set(path))


def fixed_part(path: str) -> str:
    """The folders of a glob before the first that has a wildcard."""
    kept: list[str] = []
    for part in path.split("/"):
        if has_wildcard(part):
            break
        kept.append(part)
    return "/".join(kept)


def _is_hidden(path: str, below: str) -> bool:
    relative = path.removeprefix(below).strip("/")
    return any(part.startswith((".", "_")) for part in relative.split("/"))


def _refuse_outside(name: str, below: str) -> None:
    """A listing's name must be below what was listed, and stay there when it is normalised."""
    root = below.rstrip("/")
    is_below = name.rstrip("/") == root or name.startswith(f"{root}/") or not root
    relative = name.removeprefix(below).strip("/")
    if is_below and not {"..", "."} & set(relative.split("/")) and "\0" not in name:
        return
    raise SourceError(
        name,
        f"a listing of {below} has this name, which leads out of it",
        "rename it, or name the files that are to be read",
    )


def _local_below(path: str, root: str, above: frozenset[str]) -> Iterator[ListedFile]:
    """Files at or below `path`.

    `above` are the real folders that lead here: a link back to one is not followed.
    """
    try:
        if os.path.isfile(path):  # noqa: PTH113, plain paths as fsspec gives them
            yield _of_status(os.stat(path), path, root)  # noqa: PTH116
            return
        if not os.path.isdir(path):  # noqa: PTH112
            raise _not_to_be_listed(path)
        real = os.path.realpath(path)
        names = [] if real in above else sorted(os.listdir(path))  # noqa: PTH208
    except (FileNotFoundError, SourceUnavailableError):
        if path == root:
            raise
        return  # moved away since the folder above was listed: a file that is done, say
    for name in names:
        if not name.startswith((".", "_")):
            yield from _local_below(posixpath.join(path, name), root, above | {real})


def _not_to_be_listed(path: str) -> SourceError:
    if os.path.lexists(path):
        problem = "it is neither a file nor a folder"
        return SourceError(path, problem, "mend or remove what is under this name")
    return SourceUnavailableError(path, "it does not exist", "give a path that does")


def _gone(seen: SeenFile, error: Exception) -> SourceError:
    """What is said where a file that was listed cannot be opened."""
    if not isinstance(error, FileNotFoundError):
        return _unreadable(seen.path, error)
    size = "" if seen.size_bytes < 0 else f" with {seen.size_bytes} bytes"
    return SourceError(
        seen.path,
        f"it has vanished: it was there{size} when the source was listed",
        "put it back as it was; its rows are part of what the job has to read",
    )


def _unreadable(path: str, error: Exception) -> SourceError:
    if not isinstance(error, OSError):
        return SourceUnavailableError(
            path,
            f"it cannot be read: {type(error).__name__}: {error}",
            "see that the file system answers and lets the job and its tasks read",
        )
    steps: dict[type[OSError], str] = {
        FileNotFoundError: "put it back, or give a path that exists",
        IsADirectoryError: "give its files, or the folder above it",
        PermissionError: "allow the user that runs the job and its tasks to read it",
    }
    next_step = steps.get(type(error), "see that the file system works and the file is whole")
    number = f"[errno {error.errno}] " if error.errno is not None else ""
    where = error.filename if isinstance(error.filename, str) else path
    problem = f"it cannot be read: {number}{error.strerror or error}"
    return SourceUnavailableError(where, problem, next_step)
