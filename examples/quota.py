"""Lets exactly 7,777 flights of all subtasks together pass, although a worker is killed meanwhile.

    python examples/quota.py [--rows N] [--keep FOLDER]

The subtasks get leases of permits from the coordinator, and give unused ones back. The flights that the killed worker
had passed since its checkpoint are thrown away; their permits return. Exit status 1 if the output has another number
of flights, or a flight twice.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import pyarrow as pa

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # this runs as a file; its parts are a package

from coordlog.coordinators import QuotaNow, ReadQuota, quota_operator
from examples.demo_parts.flights_job import FlightsJob, flights_job

LIMIT: Final = 7_777
PAUSE_S: Final = 0.25
"""Pause of each batch that passes, so that there is time for a kill."""


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, each of which has a permit: here a service could be called for each."""
    time.sleep(PAUSE_S)
    return batch


def kill_worker(running: FlightsJob) -> None:
    """Kill a worker between two checkpoints."""
    running.wait_for_checkpoints(2)
    quota = running.job.request("quota", ReadQuota()).response
    assert isinstance(quota, QuotaNow)
    print(f"{quota.handed_out:,} of {quota.limit:,} permits are handed out")
    running.kill_worker()


def main() -> int:
    """Run the example; returns the exit status."""
    quota = quota_operator(LIMIT, use=slowly, lease_rows=500)
    with flights_job("quota", [quota], __doc__) as ran:
        ran.run(kill_worker)
        flights = ran.spark.read.parquet(str(ran.output))
        count, distinct = flights.count(), flights.distinct().count()
    print(f"{count:,} flights, {distinct:,} different ones")
    is_exact = count == distinct == LIMIT
    print("EXACT: as many flights as the limit permits" if is_exact else "WRONG")
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
