"""Keeps two subtasks that read flights of different days within twelve hours of event time.

    python examples/watermarks.py [--rows N] [--keep FOLDER]

The files follow each other in time, and each subtask reads its own: without alignment one would be days ahead. Each
flight gets the moment at which it passed; by these the example checks the drift. Exit status 1 if it was larger, or a
flight is missing.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Final

import pyarrow as pa

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # this runs as a file; its parts are a package

from coordlog import Operator, OperatorContext, OperatorSpec
from coordlog.coordinators import watermark_operator
from examples.demo_parts.flights_job import flights_job

DRIFT: Final = timedelta(hours=12)
ROWS: Final = 12_000


class Stamp(Operator):
    """Adds the subtask of each row, and the moment at which it came, in nanoseconds since 1970."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Remember the subtask."""
        self._subtask = context.subtask

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with their stamps."""
        count = batch.num_rows
        stamped = batch.append_column("subtask", pa.array([self._subtask] * count, pa.int64()))
        now_ns = time.time_ns()
        moments = pa.array(range(now_ns, now_ns + count), pa.int64())
        yield stamped.append_column("passed_ns", moments)


def largest_drift(rows: list[tuple[int, int, datetime]]) -> timedelta:
    """The largest lead of a row before the watermark of another subtask at that moment.

    Args:
        rows: Moment, subtask and event time of each row.
    """
    watermarks: dict[int, list[tuple[int, datetime]]] = {}
    for moment, subtask, event_time in sorted(rows):
        reached = watermarks.setdefault(subtask, [])
        reached.append((moment, max(event_time, reached[-1][1]) if reached else event_time))
    drift = timedelta(0)
    for moment, subtask, event_time in rows:
        for other, reached in watermarks.items():
            following = bisect(reached, moment, key=itemgetter(0))  # its next row, which waits
            if other != subtask and following < len(reached):
                drift = max(drift, event_time - reached[following][1])
    return drift


def main() -> int:
    """Run the example; returns the exit status."""
    aligned = watermark_operator("time_hour", max_drift=DRIFT, idle_s=5.0)
    stamp = OperatorSpec(operator_id="stamp", create_operator=Stamp)
    with flights_job("watermarks", [aligned, stamp], __doc__, rows=ROWS, file_rows=3_000) as ran:
        ran.run()
        flights = ran.spark.read.parquet(str(ran.output))
        selected = flights.selectExpr("passed_ns", "subtask", "unix_micros(time_hour) AS time_us")
        rows = [
            (row.passed_ns, row.subtask, datetime.fromtimestamp(row.time_us / 1e6, UTC))
            for row in selected.collect()
        ]
    drift = largest_drift(rows)
    print(f"{len(rows):,} flights; the largest drift was {drift}, of {DRIFT} that are allowed")
    is_exact = len(rows) == ran.row_count and drift <= DRIFT
    print("EXACT: no flight was further ahead" if is_exact else "WRONG")
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
