"""Clusters flights by distance and time in the air: k-means in rounds over all subtasks, with a killed worker.

    python examples/kmeans.py [--rows N] [--keep FOLDER]

Each subtask holds its part of the flights. In each round it sends sums of its part; the coordinator computes the new
centres, until they stay the same. Then the same iteration runs in one process. Exit status 1 if centres or
clusters differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # this runs as a file; its parts are a package

from coordlog import Kind
from coordlog.coordinators import Iteration, RoundEnded, rounds_operator
from examples.demo_parts.flights_job import FlightsJob, flights_job

COLUMNS: Final = ("distance", "air_time")
CENTRES: Final = [[200, 40], [700, 110], [1_200, 170], [2_500, 330]]


class KMeans(Iteration):
    """k-means in whole numbers, so that sums do not depend on the order of rows."""

    def contribute(self, rows: Sequence[pa.RecordBatch], model: bytes) -> bytes:
        """For each cluster: the sums of the columns, and the number of flights."""
        centres, sums = centres_of(model), np.zeros((len(CENTRES), 3), dtype=np.int64)
        for batch in rows:
            points = points_of(batch)
            nearest = clusters_of(points, centres)
            for number in range(len(centres)):
                members = points[nearest == number]
                sums[number] += [*members.sum(axis=0), len(members)]
        return json.dumps(sums.tolist()).encode()

    def combine(self, model: bytes, contributions: Sequence[bytes]) -> tuple[bytes, bool]:
        """The means of all subtasks, rounded down; converged if they are the centres already."""
        sums = np.sum([json.loads(part) for part in contributions], axis=0)
        centres = sums[:, :2] // np.maximum(sums[:, 2:], 1)
        return json.dumps(centres.tolist()).encode(), bool((centres == centres_of(model)).all())

    def emit(self, rows: Sequence[pa.RecordBatch], model: bytes) -> Iterator[pa.RecordBatch]:
        """Each flight with its cluster."""
        for batch in rows:
            clusters = clusters_of(points_of(batch), centres_of(model))
            yield batch.append_column("cluster", pa.array(clusters))


def centres_of(model: bytes) -> NDArray[np.int64]:
    """Centres in a model, shape (clusters, 2); the first centres are given."""
    return np.array(json.loads(model) if model else CENTRES, dtype=np.int64)


def points_of(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """The columns of the flights, shape (rows, 2); 0 if one is missing."""
    columns = [batch.column(name).fill_null(0).to_numpy() for name in COLUMNS]
    return np.stack(columns, axis=1).astype(np.int64)


def clusters_of(points: NDArray[np.int64], centres: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the nearest centre of each point, shape (rows,)."""
    distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(distances.argmin(axis=1), dtype=np.int64)


def kill_worker(running: FlightsJob) -> None:
    """Kill a worker after the first round."""
    ended = RoundEnded.coordlog_type.key
    running.wait_for(lambda one: one.kind is Kind.FACT and one.payload_type == ended)
    running.kill_worker()


def main() -> int:
    """Run the example; returns the exit status."""
    clusters = rounds_operator(KMeans())
    with flights_job("kmeans", [clusters], __doc__, rows=60_000, is_batch=True) as ran:
        ran.run(kill_worker)
        flights = ran.spark.read.parquet(str(ran.output))
        rows = flights.select(*COLUMNS, "cluster").toPandas()
    batch = pa.RecordBatch.from_pandas(rows, preserve_index=False)
    kmeans, model, count, has_converged = KMeans(), b"", 0, False
    while not has_converged:
        model, has_converged = kmeans.combine(model, [kmeans.contribute([batch], model)])
        count += 1
    print(f"{count} rounds in one process: centres {json.loads(model)}")
    is_same = (clusters_of(points_of(batch), centres_of(model)) == rows["cluster"]).all()
    is_exact = len(rows) == ran.row_count and bool(is_same)
    print(f"EXACT: {len(rows):,} flights are in the same clusters" if is_exact else "WRONG")
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
