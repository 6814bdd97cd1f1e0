"""Durable local files: on disk when a call returns, and never replaced."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sqlite3
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from coordlog.causes import NO_SPACE, chain_of_causes
from coordlog.errors import OutOfSpaceError, SinkError
from coordlog.log.local.fsync import sync_path

__all__ = [
    "checksum_of",
    "file_size",
    "new_checksum",
    "refusal",
    "refuse_no_space",
    "sink_errors",
    "write_once",
]

_CHUNK_BYTES: Final = 1024 * 1024
_DRAFT_TRIES: Final = 5
_NEXT_STEPS: Final = {
    errno.ENOSPC: "free some space there, then run the same command again",
    errno.EDQUOT: "free some of the quota there, then run the same command again",
    errno.EFBIG: "raise the limit of the size of a file, then run the same command again",
    errno.EACCES: "allow the user that runs the job and its tasks to write there",
    errno.EPERM: "allow the user that runs the job and its tasks to write there",
    errno.EROFS: "use a destination on a file system that can be written",
    errno.EEXIST: "see whether a file has the name of a folder, or a link's target is not mounted",
    errno.ENOTDIR: "use a path of which every part but the last is a folder",
}
_OF_RUST: Final = re.compile(r"\(os error (\d+)\)")
"""How libraries in Rust name an error of the operating system."""
_DISK_FULL: Final = "53100"
"""Code of PostgreSQL."""


def refusal(where: str, doing: str, error: OSError) -> SinkError:
    """`error` as a sentence with the path, errno and the next step."""
    number = f"[errno {error.errno}] " if error.errno is not None else ""
    problem = f"{doing}: {number}{error.strerror or error}"
    step = _NEXT_STEPS.get(error.errno or 0, "check that its file system works, then run it again")
    kind = OutOfSpaceError if error.errno in NO_SPACE else SinkError
    return kind(where, problem, step)


def _sqlstate_of(error: BaseException) -> object:
    """Code of an error of PostgreSQL, by psycopg or psycopg2."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def refuse_no_space(where: str, doing: str, error: BaseException) -> None:
    """Return, unless a full disk, a quota or the limit of a file's size is the cause of `error`, also of a library's.

    Raises:
        OutOfSpaceError: It is: the next try would be the same.
    """
    for cause in chain_of_causes(error):
        if isinstance(cause, OSError):
            in_text = _OF_RUST.search(str(cause))
            number = cause.errno or (int(in_text[1]) if in_text else 0)
            if number in NO_SPACE:
                raise refusal(where, doing, OSError(number, os.strerror(number))) from error
        # An error of SQLite, as of a catalog there, has a code of its own, and names the database in its text.
        if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise refusal(where, doing, OSError(errno.ENOSPC, str(cause))) from error
        if _sqlstate_of(cause) == _DISK_FULL:
            text = " ".join(str(cause).split())
            raise refusal(where, doing, OSError(errno.ENOSPC, text)) from error


@contextmanager
def sink_errors(where: Path, doing: str) -> Generator[None]:
    """Raise errors of the operating system as SinkError."""
    try:
        yield
    except OSError as error:
        raise refusal(str(where), doing, error) from error


def write_once(path: Path, content: bytes) -> bool:
    """Write `path` with this content, whole and on disk, unless it exists; whether this call did it."""
    for tries_left in reversed(range(_DRAFT_TRIES)):
        try:
            return _write_once(path, content)
        except FileNotFoundError:
            # A sweep has removed the draft as that of a dead driver.
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _write_once(path: Path, content: bytes) -> bool:
    draft = path.with_name(f"{path.name}.{uuid4().hex}.draft")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        sync_path(path.parent)
        return True
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def file_size(path: Path) -> int | None:
    """The size of the regular file `path`; None if it does not exist.

    Raises:
        SinkError: Something else than a regular file has it: a link could lead out of the
            destination.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise SinkError(
            str(path), "it is not a regular file", "remove it: nothing of this package made it"
        )
    return status.st_size


def new_checksum() -> hashlib.blake2b:
    """An empty checksum, of the kind that committables hold."""
    return hashlib.blake2b(digest_size=32)


def checksum_of(path: Path) -> str:
    """The checksum of a file's content. Never holds more than a piece of it."""
    checksum = new_checksum()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK_BYTES):
            checksum.update(piece)
    return checksum.hexdigest()
