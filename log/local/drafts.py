"""Files that are complete before they get their names, and the removal of what their killed writers have left."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from filelock import lock_descriptor

from coordlog.log.local.fsync import open_plain

__all__ = ["draft_of", "remove_drafts"]


@contextmanager
def draft_of(path: Path, *, mode: int = 0o666) -> Generator[tuple[Path, BinaryIO]]:
    """A new file beside `path`, locked as long as its writer lives; removed at the block's end, unless renamed.

    Args:
        path: Path of the later file.
        mode: Mode of the file from its beginning, less the umask.
    """
    while True:
        # No process number: containers repeat them.
        hidden = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
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
