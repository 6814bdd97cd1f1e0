"""Queries as their user submits them: `spark-submit --py-files coordlog.zip cluster_frames.py '{"job_id": …}'`.

A stream reads a coordinated folder and commits its batches once; then a batch query copies all of it. It imports
nothing of the tests: they are not there where it runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from coordlog.spark_integration import FileSource, KafkaLog, ParquetSink, exactly_once
from coordlog.spark_integration.batches.exactly_once import sinks_of
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.dataframes import coordinated

GIVEN: Final[dict[str, Any]] = json.loads(sys.argv[1])


def slowly(
    batches: Iterable[pa.RecordBatch], seconds_per_row: float = GIVEN["seconds_per_row"]
) -> Iterator[pa.RecordBatch]:
    """Take a while for each row."""
    for batch in batches:
        time.sleep(batch.num_rows * seconds_per_row)
        yield batch


def log_of(part: str) -> KafkaLog:
    """The log of one of the program's jobs."""
    log = KafkaLog.for_job(f"{GIVEN['job_id']}-{part}", GIVEN["servers"])
    log.create()
    return log


def main() -> None:
    """Read all that is there, twice, and end."""
    spark = SparkSession.builder.appName("cluster queries").getOrCreate()
    print(f"application {spark.sparkContext.applicationId}", flush=True)
    job_id, folder = GIVEN["job_id"], Path(GIVEN["folder"])
    reads = coordinated(
        spark,
        job_id,
        FileSource(GIVEN["source"]),
        bootstrap_servers=GIVEN["servers"],
        splits_per_batch=GIVEN["splits_per_batch"],
    )
    once = exactly_once(
        job_id=f"{job_id}-sink", log=log_of("sink"), sink=ParquetSink(folder / "out")
    )
    with reads, once as write:
        rows = reads.read_stream().mapInArrow(slowly, reads.read().schema)
        query = (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        commits = folder / "checkpoint" / "commits"
        while len(list(commits.glob("[0-9]*"))) < GIVEN["batches"]:
            query.awaitTermination(1)
        query.stop()
        sinks = sinks_of(ParquetSink(folder / "copy"))
        with BatchService(job_id=f"{job_id}-copy", log=log_of("copy"), sinks=sinks) as service:
            service.start(spark)
            copy = reads.read().write.format("coordlog").mode("append")
            copy.options(**service.options(), write_id="the-only-one").save()
    print("the queries have ended", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
