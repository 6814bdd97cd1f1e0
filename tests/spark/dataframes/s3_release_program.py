"""A stream over objects of S3 that are archived once their batch is committed: `s3_release_program.py FOLDER BUCKET`.

Its third batch fails in the first service; the second service runs it again. The environment names the server.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from coordlog import Watch
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration import FileSource, local_session
from coordlog.spark_integration.dataframes import coordinated

BATCHES, LIMIT_S = 4, 60


def main() -> None:
    """Read all that is there, in two services."""
    folder, bucket = Path(sys.argv[1]), sys.argv[2]
    checkpoint, failing = folder / "checkpoint", [2]

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [row[0] for row in frame.select("i").collect()]
        with (folder / "out.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([batch_id, rows]) + "\n")
        if batch_id in failing:
            failing.clear()
            raise RuntimeError("scripted")

    spark, log = local_session(2), MemoryLog("reads")
    watch = Watch(watch_interval_s=0.1, after_commit=f"archive:s3://{bucket}/done")
    for _ in range(2):
        source = FileSource(f"s3://{bucket}/in", schema="i bigint", format="csv", watch=watch)
        with coordinated(spark, "reads", source, log=log, splits_per_batch=2) as reads:
            query = (
                reads.read_stream()
                .writeStream.foreachBatch(write)
                .option("checkpointLocation", str(checkpoint))
                .start()
            )
            until = time.monotonic() + LIMIT_S
            try:
                while time.monotonic() < until:
                    if len(list((checkpoint / "commits").glob("[0-9]*"))) >= BATCHES:
                        break
                    if query.awaitTermination(1):
                        break
            except StreamingQueryException as error:
                if "scripted" not in str(error):
                    raise
            finally:
                query.stop()
            time.sleep(1)  # the archive of the last committed batch


main()
