"""A job as its user submits it: `spark-submit --py-files coordlog.zip cluster_job.py '{"job_id": …}'`.

It imports nothing of the tests: they are not there where it runs.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

import coordlog
from coordlog.spark_integration import (
    EndpointOptions,
    FileSource,
    Job,
    KafkaLog,
    KafkaSource,
    ParquetSink,
)

GIVEN: Final[dict[str, Any]] = json.loads(sys.argv[1])


def slowly(
    batch: pa.RecordBatch,
    seconds_per_row: float = GIVEN.get("seconds_per_row", 0.0),
    slow_row: int = GIVEN.get("slow_row", -1),
    marker: str = GIVEN.get("marker", ""),
) -> pa.RecordBatch:
    """Take a while for each row; the first time that one of them comes, a very long while."""
    time.sleep(batch.num_rows * seconds_per_row)
    if marker and slow_row in batch.column("id").to_pylist() and not Path(marker).exists():
        Path(marker).touch()
        time.sleep(GIVEN.get("slow_s", 3600))
    return batch


def main() -> None:
    """Run it to its end."""
    if GIVEN.get("log_level"):
        logging.basicConfig(level=GIVEN["log_level"], stream=sys.stdout)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # hundreds of lines a second, not ours
    print(f"coordlog is at {coordlog.__file__}", flush=True)
    spark = SparkSession.builder.appName("cluster job").getOrCreate()
    print(f"application {spark.sparkContext.applicationId}", flush=True)
    log = KafkaLog.for_job(GIVEN["job_id"], GIVEN["servers"])
    log.create()
    source: KafkaSource | FileSource = (
        KafkaSource(GIVEN["topic"], bootstrap_servers=GIVEN["servers"], batch_rows=50)
        if "topic" in GIVEN
        else FileSource(GIVEN["source"], batch_rows=50)
    )
    result = Job(
        job_id=GIVEN["job_id"],
        log=log,
        source=source,
        transform=slowly,
        sink=ParquetSink(GIVEN["destination"]),
        parallelism=GIVEN["parallelism"],
        checkpoint_interval_s=0.5,
        endpoint=EndpointOptions(**GIVEN.get("endpoint", {})),
    ).run(spark)
    print(f"the job has ended: {result.status.value}", flush=True)
    spark.stop()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        # What it prints goes through the JVM, which may have gone.
        if "error_file" in GIVEN:
            Path(GIVEN["error_file"]).write_text(f"{type(error).__name__}: {error}", "utf-8")
        raise
