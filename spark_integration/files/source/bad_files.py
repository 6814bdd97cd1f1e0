"""The files of a listing that are at fault, as far as one run can find them, and their text in messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordlog.errors import SourceError
from coordlog.limits import BAD_FILES_NAMED_MAX, BAD_FILES_TRIED_MAX
from coordlog.spark_integration.files.faults import is_fault_of_file
from coordlog.spark_integration.files.listing import InputFiles, ListedFile

__all__ = ["bad_files", "named_files", "of_all"]


def bad_files(
    files: InputFiles,
    listed: Sequence[ListedFile],
    error: SourceError,
    settle: Callable[[ListedFile], object],
) -> dict[str, SourceError]:
    """The files that cannot be read alone, by path, each with its reason; `error` named the first.

    Empty if no file is at fault: the files are incompatible, or the file system does not answer.

    Args:
        files: Files of the source.
        listed: The listing, in order; a bounded number of its files is tried.
        error: The error that ended the listing.
        settle: Raises SourceError for a file that cannot be read.
    """
    if error.__cause__ is None or not is_fault_of_file(error, files):
        return {}
    bad = {file.path: error for file in listed if file.path == error.where}
    if not bad:
        return {}
    for file in listed[:BAD_FILES_TRIED_MAX]:
        if file.path in bad:
            continue
        try:
            settle(file)
        except SourceError as other:
            if other.__cause__ is not None and is_fault_of_file(other, files):
                bad[file.path] = other
    return {path: bad[path] for path in sorted(bad)}


def of_all(bad: dict[str, SourceError], error: SourceError) -> SourceError:
    """One error that names the bad files; `error` itself if it is the only one."""
    if len(bad) <= 1:
        return error
    others = [path for path in bad if path != error.where]
    return type(error)(
        error.where,
        f"{error.problem} ({len(bad)} files cannot be read: this one and {named_files(others)})",
        f'{error.next_step}; or leave files out: `exclude=`, or `on_error="skip"`',
    )


def named_files(paths: Sequence[str]) -> str:
    """Number of files, and the first names."""
    shown = ", ".join(paths[:BAD_FILES_NAMED_MAX])
    more = len(paths) - BAD_FILES_NAMED_MAX
    count = f"{len(paths)} file" if len(paths) == 1 else f"{len(paths)} files"
    return f"{count} ({shown}{f' and {more} more' if more > 0 else ''})"
