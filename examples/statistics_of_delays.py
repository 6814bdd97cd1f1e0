"""Marks flights that are later than nine of ten flights so far, of all subtasks, by t-digests of datasketches.

    python examples/statistics_of_delays.py [--rows N] [--keep FOLDER]

Each subtask adds its delays to a sketch; at each checkpoint the coordinator merges them, and the new 90th percentile
is in force on all subtasks from the next checkpoint on. It needs the extra `statistics`. Exit status 1 if the last
percentile is not that of all flights, or is wrong by more than 1 % of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import tdigest_double  # pyright: ignore[reportAttributeAccessIssue]

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # this runs as a file; its parts are a package

from coordlog.coordinators import (
    Sketch,
    Statistic,
    Version,
    VersionOfRows,
    VersionPublished,
    statistics_operator,
)
from coordlog.spark_integration import history
from examples.demo_parts.flights_job import FlightsJob, flights_job

RANK: Final = 0.9
RANK_ERROR_MAX: Final = 0.01
PAUSE_S: Final = 0.05


class Delays:
    """The sketch of a subtask's delays."""

    def __init__(self, content: bytes | None) -> None:
        self.digest = tdigest_double.deserialize(content) if content else tdigest_double()

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the delays of a batch."""
        self.digest.update(batch.column("dep_delay").drop_null().to_numpy().astype(np.float64))

    def to_bytes(self) -> bytes:
        """The digest."""
        return bytes(self.digest.serialize())


class LateOfAll(Statistic):
    """The 90th percentile of all delays. Merging t-digests has the same result each time."""

    def create(self, content: bytes | None) -> Sketch:
        """A t-digest."""
        return Delays(content)

    def merge(self, contents: Sequence[bytes]) -> bytes:
        """The t-digest of all."""
        merged = Delays(None)
        for content in contents:
            merged.digest.merge(Delays(content).digest)
        return merged.to_bytes()

    def describe(self, content: bytes) -> str:
        """The percentile in minutes, or nothing before the first delay."""
        digest = Delays(content).digest
        return "" if digest.is_empty() else f"{digest.get_quantile(RANK):.3f}"

    def apply(self, batch: pa.RecordBatch, version: Version) -> pa.RecordBatch:
        """Adds whether each flight is later than the percentile in force; null before there is one."""
        time.sleep(PAUSE_S)
        late = pa.nulls(batch.num_rows, pa.bool_())
        if version.content:
            late = pc.call_function("greater", [batch.column("dep_delay"), float(version.content)])
        return batch.append_column("is_late", late)


def show(ran: FlightsJob) -> float:
    """Print the percentile at each checkpoint; returns the last one."""
    records = history(
        ran.spark,
        ran.job.job_id,
        bootstrap_servers=ran.servers,
        payloads={"published": VersionPublished, "span": VersionOfRows},
    )
    records.where("counts").createOrReplaceTempView("records")
    found = ran.spark.sql("""
        SELECT published.version, published.content AS minutes, min(span.checkpoint_id) AS checkpoint
        FROM (SELECT published FROM records WHERE published IS NOT NULL)
        LEFT JOIN (SELECT span FROM records WHERE span IS NOT NULL)
        ON span.next_version = published.version GROUP BY ALL ORDER BY 1
    """)
    found.show(100)
    return float(found.collect()[-1].minutes)


def main() -> int:
    """Run the example; returns the exit status."""
    statistics = statistics_operator(LateOfAll())
    with flights_job("statistics", [statistics], __doc__) as ran:
        ran.run(lambda running: running.wait_for_checkpoints(2))
        last = show(ran)
        rows = ran.spark.read.parquet(str(ran.output)).select("dep_delay").toPandas()
    delays = rows["dep_delay"].dropna()
    below, up_to = (delays < last).mean(), (delays <= last).mean()
    print(
        f"{len(rows):,} flights; {below:.1%} to {up_to:.1%} of them left at most {last} minutes late"
    )
    is_near = below - RANK_ERROR_MAX <= RANK <= up_to + RANK_ERROR_MAX
    is_right = is_near and len(rows) == ran.row_count
    print("RIGHT: the last percentile is that of all flights, to 1 %" if is_right else "WRONG")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
