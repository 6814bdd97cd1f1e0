"""A program whose stream reads a coordinated folder: `dataframes_program.py FOLDER SERVERS JOB SECONDS_A_BATCH`.

Each batch appends a line to FOLDER/out.jsonl: its id, and the rows of each partition.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import spark_partition_id

from coordlog.spark_integration import FileSource, local_session
from coordlog.spark_integration.dataframes import coordinated


def main() -> None:
    """Read all that is there, and end."""
    folder, servers, job_id, seconds = Path(sys.argv[1]), *sys.argv[2:4], float(sys.argv[4])

    def slowly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(seconds)
            yield batch

    def write(frame: DataFrame, batch_id: int) -> None:
        slow = frame.withColumn("p", spark_partition_id()).mapInArrow(
            slowly, "i long, s string, p int"
        )
        rows: dict[int, list[int]] = {}
        for i, _, partition in slow.collect():
            rows.setdefault(partition, []).append(i)
        with (folder / "out.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([batch_id, rows]) + "\n")

    spark = local_session(2)
    source = FileSource(folder / "in")
    with coordinated(
        spark, job_id, source, bootstrap_servers=servers, splits_per_batch=10
    ) as reads:
        query = (
            reads.read_stream()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        while len(list((folder / "checkpoint" / "commits").glob("[0-9]*"))) < 4:
            if query.awaitTermination(1):
                break
        query.stop()


main()
