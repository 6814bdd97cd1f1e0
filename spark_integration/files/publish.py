"""Settling an intent: staged files get their final names, once, however often (clause H3)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from coordlog.errors import SinkError

from .destination import Destination
from .durable import checksum_of, file_size, sink_errors, sync_folder
from .payloads import FilesPublished, PublishFiles, StagedFile

__all__ = ["publish"]


def publish(
    destination: Destination,
    intent: PublishFiles,
    *,
    at: Callable[[str], None] = lambda _place: None,
) -> FilesPublished:
    """Give the files of `intent` the final names that they do not have yet; the outcome.

    First all links, then the folder on disk, then the staged names go: a crash, even of the
    machine, leaves at least one of a file's two names. `at` is told each place where a crash would
    leave something to be found; tests crash there.

    Raises:
        SinkError: A file has neither name, or its final name has other content.
    """
    names = [
        (destination.staged_path(one.staged), destination.final_path(one.final), one)
        for one in intent.files
    ]
    with sink_errors(destination.root, "files cannot be published"):
        for staged, final, one in names:
            at(f"before link {one.final}")
            _link(staged, final, one)
            at(f"after link {one.final}")
        if names:
            sync_folder(destination.root)
        at("after fsync")
        for staged, _, one in names:
            staged.unlink(missing_ok=True)
            at(f"after unlink {one.staged}")
    return FilesPublished(
        checkpoint_id=intent.checkpoint_id,
        file_count=len(names),
        rows=sum(one.rows for one in intent.files),
        size_bytes=sum(one.size_bytes for one in intent.files),
    )


def _link(staged: Path, final: Path, one: StagedFile) -> None:
    """Give the file its final name, where it has not got it.

    Another settler may be at any place of the same: 1. it links between our look and our link,
    which then fails; 2. it unlinks between our look and our link, which then fails too. Both times
    the final name is there to be looked at.
    """
    if file_size(final) is None:
        size = file_size(staged)
        if size is not None and size != one.size_bytes:
            raise SinkError(
                str(staged),
                f"it has {size} bytes; {one.size_bytes} were handed over: it is damaged",
                "restore it from a copy",
            )
        try:
            os.link(staged, final, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            pass
        else:
            return
    _check_final(staged, final, one)


def _check_final(staged: Path, final: Path, one: StagedFile) -> None:
    size = file_size(final)
    if size is None:
        raise SinkError(
            str(final),
            f"neither it nor what was staged for it ({staged}) exists",
            "restore either from a copy; or, where tasks ran on other machines, use a destination "
            "that the driver and all executors share",
        )
    checksum = checksum_of(final)
    if (size, checksum) != (one.size_bytes, one.checksum):
        raise SinkError(
            str(final),
            f"it has other content: {size} bytes with checksum {checksum}, where "
            f"{one.size_bytes} bytes with checksum {one.checksum} are to be published",
            "move it away, then run the same command again",
        )
