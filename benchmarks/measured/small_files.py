"""Many small files of CSV, as they are left by programs that write one for each event or minute."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["ROWS_PER_FILE", "SMALL_FILE_SCHEMA", "make_small_files"]

ROWS_PER_FILE: Final = 5
SMALL_FILE_SCHEMA: Final = "file BIGINT, row BIGINT, text STRING"
"""Schema of the files, as Spark takes it."""


def make_small_files(folder: Path, count: int) -> None:
    """Write so many files, a thousand to a folder."""
    for number in range(count):
        below = folder / f"{number // 1000:04d}"
        below.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"{number},{row},some text\n" for row in range(ROWS_PER_FILE))
        (below / f"{number:07d}.csv").write_text("file,row,text\n" + rows)
