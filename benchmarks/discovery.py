"""Time and memory of listings of many files, in one process: `python -m benchmarks.discovery`.

The files are links to one file of one row, so that a million of them take no space but their names.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from coordlog.projections.splits.table import SplitTable, WithEnumerator
from coordlog.schemas.source_types import SplitsDiscovered
from coordlog.spark_integration.files.source.discovery import FileWatch
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.spark_integration.session import query_session

_IN_A_FOLDER = 1_000


def _make(folder: Path, count: int) -> None:
    one = folder.with_name("one.csv")
    one.write_text("i\n1\n")
    for number in range(count):
        if number % _IN_A_FOLDER == 0:
            if number % 30_000 == 0:  # a file system has at most so many links to a file
                one.unlink()
                one.write_text("i\n1\n")
            (folder / f"{number // _IN_A_FOLDER:05}").mkdir(parents=True)
        os.link(one, folder / f"{number // _IN_A_FOLDER:05}" / f"part-{number:07}.csv")


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def _shown(label: str, work: Callable[[], int]) -> None:
    before_mb, began_s = _resident_mb(), time.perf_counter()
    count = work()
    took_s = time.perf_counter() - began_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{label:44} {count:9,} files {took_s:7.1f} s, memory {before_mb:6.0f} MB before, "
        f"{_resident_mb():6.0f} after, {peak_mb:6.0f} highest so far",
        flush=True,
    )


def main() -> None:
    """Measure; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="where the files are made")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        _measure(root / "in", options.files)
    finally:
        shutil.rmtree(root)


def _measure(folder: Path, count: int) -> None:
    _make(folder, count)
    source = FileSource(folder, watch=Watch(), schema="i bigint")
    files = source._discovery.files  # noqa: SLF001, the part that is measured
    middle = f"{count // 2 // _IN_A_FOLDER:05}"
    behind = FileSource(folder, watch=Watch(start_after=middle))._discovery.files  # noqa: SLF001
    _shown("all names, one by one", lambda: sum(1 for _ in files.walk()))
    _shown("those behind the middle (start_after)", lambda: sum(1 for _ in behind.walk()))

    table = SplitTable()
    watch = FileWatch(
        source._discovery,  # noqa: SLF001
        interval_s=0.01,
        idle_timeout_s=None,
        wait=lambda _seconds: False,
    )

    def discover() -> int:
        nonlocal table
        while len(table) < count:
            found = watch.look(table.in_order())
            assert isinstance(found, SplitsDiscovered), "facts are of an age limit"
            table = table.extended(found.splits, lambda _: WithEnumerator())
        return len(table)

    _shown("discovered, with the log's state of them", discover)
    begun_s = time.perf_counter()
    watch.begin_look(table.in_order())
    watch.found_by_listing(table.in_order(), frozenset())
    print(f"one more listing, all known: {time.perf_counter() - begun_s:.1f} s")
    _spark_lists(folder, count)


def _spark_lists(folder: Path, count: int) -> None:
    """The listing of Spark's own file sources, which a stream repeats for each batch."""
    spark = query_session(2)
    try:
        jvm: Any = spark.sparkContext._gateway  # noqa: SLF001, the process that lists
        for label in ("Spark's own listing", "Spark's own listing, again"):
            began_s = time.perf_counter()
            spark.read.schema("i bigint").csv(str(folder), recursiveFileLookup=True)
            took_s = time.perf_counter() - began_s
            resident_mb = psutil.Process(jvm.proc.pid).memory_info().rss / 1e6
            print(
                f"{label:44} {count:9,} files {took_s:7.1f} s, memory of the JVM {resident_mb:.0f} MB"
            )
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
