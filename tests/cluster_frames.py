"""Queries as their user submits them: `spark-submit --py-files coordlog.zip cluster_frames.py '{"job_id": …}'`.

A stream reads a coordinated folder and commits its batches once, to files, a database and a Delta table; then a
batch query copies all of it. It imports nothing of the tests: they are not there where it runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from coordlog.spark_integration import (
    DatabaseTable,
    DeltaTable,
    FileSource,
    ParquetSink,
    coordinated,
    coordinated_writes,
    exactly_once,
)

GIVEN: Final[dict[str, Any]] = json.loads(sys.argv[1])


def slowly(
    batches: Iterable[pa.RecordBatch], seconds_per_row: float = GIVEN["seconds_per_row"]
) -> Iterator[pa.RecordBatch]:
    """Take a while for each row."""
    for batch in batches:
        time.sleep(batch.num_rows * seconds_per_row)
        yield batch


def to_each(frame: DataFrame, _batch_id: int) -> dict[str, DataFrame]:
    """The same rows for each sink; the first is slow, so that something can die in the middle."""
    return {"files": frame.mapInArrow(slowly, frame.schema), "table": frame, "delta": frame}


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
        to_each,
        job=f"{job_id}-sink",
        bootstrap_servers=GIVEN["servers"],
        sink={
            "files": ParquetSink(folder / "out"),
            "table": DatabaseTable.postgresql(GIVEN["database"], "cluster_rows"),
            "delta": DeltaTable(str(folder / "delta")),
        },
    )
    with reads, once as write:
        query = (
            reads.read_stream()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        commits = folder / "checkpoint" / "commits"
        while len(list(commits.glob("[0-9]*"))) < GIVEN["batches"]:
            query.awaitTermination(1)
        query.stop()
        copy = ParquetSink(folder / "copy")
        with coordinated_writes(
            spark, f"{job_id}-copy", copy, bootstrap_servers=GIVEN["servers"]
        ) as writes:
            writes.write(reads.read(), write_id="the-only-one")
    delta = spark.read.format("delta").load(str(folder / "delta"))
    (folder / "delta.json").write_text(json.dumps([row.id for row in delta.collect()]), "utf-8")
    print("the queries have ended", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
