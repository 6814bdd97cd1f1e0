"""One process at a time commits to a table in a folder of this machine.

Delta, and a catalog of folders of Iceberg, commit by a rename that must not replace. Hadoop's rename on a local disk
replaces: of two processes that commit at once, each finds the name free, and the rows of the first would be lost.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from coordlog.errors import SinkError
from coordlog.limits import TABLE_LOCK_S, TABLE_LOCK_SLOW_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["commit_lock"]

_FILE: Final = "_coordlog/commit.lock"
"""In the table's folder; empty, or with the id of the last process that has committed."""
_POLL_S: Final = 0.02

_log = logging.getLogger(__name__)

_threads: Final[defaultdict[tuple[int, int], threading.Lock]] = defaultdict(threading.Lock)
"""Locks between threads of this process, by device and inode: the lock of a file belongs to the whole JVM, which would
lose it if it opened and closed the file a second time, by whatever path."""


@contextmanager
def commit_lock(spark: SparkSession, location: str, where: str) -> Generator[None]:
    """Hold the lock of a table's commits for the block; does nothing if the table is not on a local disk.

    The JVM holds it, because the JVM commits, and may outlive a killed Python process by a moment.

    Args:
        spark: The session that commits.
        location: Folder or URL of the table.
        where: Name of the table in messages.

    Raises:
        SinkError: Another process has not released it within `TABLE_LOCK_S`.
        Py4JError, OSError: The JVM does not answer, or the file cannot be made.
    """
    session: Any = spark  # no other way to Hadoop's names of file systems
    jvm = session._jvm  # noqa: SLF001
    conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    hadoop = jvm.org.apache.hadoop.fs
    uri = hadoop.Path(location).toUri()
    # Not by opening the file system: a table may be in one that only its format can open.
    if (uri.getScheme() or hadoop.FileSystem.getDefaultUri(conf).getScheme()) != "file":
        yield
        return
    file = Path(str(uri.getPath())) / _FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    status = file.stat()
    thread = _threads[status.st_dev, status.st_ino]
    until = time.monotonic() + TABLE_LOCK_S
    if not thread.acquire(timeout=TABLE_LOCK_S):
        raise _busy(where, file)
    try:
        opened = jvm.java.io.RandomAccessFile(str(file), "rw")
        try:
            slow: float | None = time.monotonic() + TABLE_LOCK_SLOW_S
            while opened.getChannel().tryLock() is None:
                now = time.monotonic()
                if now > until:
                    raise _busy(where, file)
                if slow is not None and now > slow:
                    slow = None
                    _log.warning(
                        "%s: a batch waits for %s, which holds %s", where, _holder(file), file
                    )
                time.sleep(_POLL_S)
            opened.setLength(0)
            opened.writeBytes(str(os.getpid()))
            yield
        finally:
            with suppress(Py4JError, OSError):  # a JVM that has ended holds no lock
                opened.close()
    finally:
        thread.release()


def _busy(where: str, file: Path) -> SinkError:
    return SinkError(
        where,
        f"{_holder(file)} has committed there for {TABLE_LOCK_S:g} s, and holds {file}",
        "wait for it, or end it, then start the query again",
    )


def _holder(file: Path) -> str:
    """The process that holds a lock, as it has written into its file."""
    with suppress(OSError):
        if number := file.read_text("utf-8"):
            return f"process {number}"
    return "another process"
