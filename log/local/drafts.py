"""Files that are complete before they get their names, and the removal of what their killed writers have left."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from filelock import lock_descriptor

from coordlog.log.local.fsync import open_plain

__all__ = ["draft_of", "name_draft", "remove_drafts", "unnamed_draft_of"]

_OPEN_FILES: Final = Path("/proc/self/fd")
"""Links to the open files of this process, by descriptor; on Linux."""


@contextmanager
def unnamed_draft_of(path: Path) -> Generator[tuple[Path, BinaryIO]]:
    """A new file in the folder of `path`, without a name until `name_draft`: a killed writer leaves no file.

    If the file system or the machine has no such files, it is as `draft_of`.
    """
    descriptor = _unnamed(path.parent)
    if descriptor is None:
        with draft_of(path) as named:
            yield named
        return
    with os.fdopen(descriptor, "r+b") as file:
        with suppress(OSError):
            lock_descriptor(descriptor, blocking=False)  # for its hidden name in `name_draft`
        yield _OPEN_FILES / str(descriptor), file


def name_draft(draft: Path, path: Path, *, is_replacing: bool) -> None:
    """Give a complete draft its name.

    Raises:
        FileExistsError: A file has the name, and is not to be replaced.
    """
    if not is_replacing:
        _link(draft, path)  # unlike a rename it never replaces
        return
    hidden = draft
    if draft.parent != path.parent:
        hidden = _hidden(path)
        _link(draft, hidden)
    hidden.replace(path)


def _unnamed(folder: Path) -> int | None:
    """Descriptor of a new file without a name that can get one; None if there is none here."""
    flag: int | None = getattr(os, "O_TMPFILE", None)
    if flag is None or not _OPEN_FILES.is_dir():
        return None
    try:
        return os.open(folder, flag | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:
        # The file system has none; or another fault, which the file with a name has too.
        return None


def _link(draft: Path, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # With `dst_dir_fd` the call follows the link in `_OPEN_FILES`; without it, it does not.
        os.link(draft, path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex}.tmp")  # containers repeat process numbers


@contextmanager
def draft_of(path: Path, *, mode: int = 0o666) -> Generator[tuple[Path, BinaryIO]]:
    """A new file beside `path`, locked as long as its writer lives; removed at the block's end, unless renamed.

    Args:
        path: Path of the later file.
        mode: Mode of the file from its beginning, less the umask.
    """
    while True:
        hidden = _hidden(path)
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            is_locked = True
            # A file system without locks raises: there no other process removes the draft either.
            with suppress(OSError):
                is_locked = lock_descriptor(file.fileno(), blocking=False)
            # Between its creation and its lock another process may have removed it as a dead process's.
            if is_locked and hidden.exists():
                try:
                    yield hidden, file
                finally:
                    hidden.unlink(missing_ok=True)
                return


def remove_drafts(folder: Path, names: str) -> None:
    """Remove drafts whose writers were killed, as far as possible.

    Args:
        folder: Folder of the files.
        names: Names of the files, as a regular expression.
    """
    draft_name = re.compile(rf"\.(?:{names})\.[0-9a-f]{{32}}\.tmp")
    for draft in folder.iterdir():
        if draft_name.fullmatch(draft.name) is None:
            continue
        with suppress(OSError), open_plain(draft) as file:
            if lock_descriptor(file.fileno(), blocking=False):
                draft.unlink()
