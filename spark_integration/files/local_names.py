"""Names of local files in records: their bytes as UTF-8, whatever the locale of the process is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from coordlog.errors import SourceError

if TYPE_CHECKING:
    from coordlog.spark_integration.files.listing import SeenFile

__all__ = ["UNNAMED", "check_locale", "check_name", "is_utf8"]

UNNAMED: Final = "name that is not UTF-8"
"""Mark of a file that cannot be read: it is listed so that an error names it."""


def check_locale(path: str) -> None:
    """Refuse a name that has other characters in this process than in one with UTF-8.

    Raises:
        SourceError: Another process would take the file for another one, and read it a second time.
    """
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and not path.isascii():
        raise SourceError(
            path.encode(errors="backslashreplace").decode(),
            f"the locale of this process has names of files in {encoding}: with another one the file would have "
            "another name, and be read a second time",
            "set PYTHONUTF8=1, or a locale with UTF-8",
        )


def is_utf8(path: str) -> bool:
    """Whether the name of a local file is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_name(seen: SeenFile) -> None:
    """Refuse a file whose name no record can hold: it is listed, under an escaped name, but not opened.

    Raises:
        SourceError: The name is not UTF-8.
    """
    if seen.mark == UNNAMED:
        raise SourceError(
            seen.path,
            "its name is not UTF-8, and is shown with escapes here: no record can hold it",
            "rename the file",
        ) from ValueError("a name that is not UTF-8")
