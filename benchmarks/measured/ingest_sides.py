"""One side of the ingestion benchmark, in its own process: `python -m benchmarks.measured.ingest_sides SIDE`.

It starts its Spark session, prints `ready` and the seconds that took, and then does what each line of its input says,
as JSON: `source`, `destination` and `work` (folders), `schema` (Spark's DDL), and for some `mode` (`batch`, or else
streaming) and `job_id`. It answers each with the seconds taken.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOTS = 2

Order = dict[str, str]


def spark_side() -> Callable[[Order], None]:
    """Spark's own file stream with a checkpoint, all that is there, once."""
    from pyspark.sql import SparkSession  # noqa: PLC0415, only this side, and in this process

    spark: Any = SparkSession.builder
    spark = (
        spark.master(f"local[{SLOTS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )

    def run(order: Order) -> None:
        is_batch = order.get("mode") == "batch"
        rows = (
            (spark.read if is_batch else spark.readStream)
            .format("csv")
            .option("header", "true")
            .option("recursiveFileLookup", "true")
            .schema(order["schema"])
            .load(order["source"])
        )
        if is_batch:
            rows.write.parquet(order["destination"])
            return
        query = (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", str(Path(order["work"]) / "checkpoint"))
            .trigger(availableNow=True)
            .start(order["destination"])
        )
        query.awaitTermination()

    return run


def coordlog_side(bootstrap_servers: str) -> Callable[[Order], None]:
    """A job in streaming, with its checkpoints."""
    from coordlog.spark_integration import (  # noqa: PLC0415, as above
        FileSource,
        Job,
        KafkaLog,
        ParquetSink,
        local_session,
    )

    spark = local_session(SLOTS)

    def run(order: Order) -> None:
        job_id = order.get("job_id") or f"bench-{uuid.uuid4().hex[:12]}"
        is_batch = order.get("mode") == "batch"
        log = KafkaLog.for_job(job_id, bootstrap_servers)
        log.create()
        job = Job(
            job_id=job_id,
            log=log,
            source=FileSource(order["source"], format="csv"),
            sink=ParquetSink(order["destination"]),
            parallelism=SLOTS,
            batch=is_batch,
            checkpoint_interval_s=10,
        )
        job.run(spark)
        log.close()

    return run


def main() -> None:
    """Serve orders until the input ends."""
    began = time.perf_counter()
    side = sys.argv[1]
    run = spark_side() if side == "spark" else coordlog_side(sys.argv[2])
    print(f"ready {time.perf_counter() - began:.3f}", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        run(json.loads(line))
        print(f"done {time.perf_counter() - began:.3f}", flush=True)


if __name__ == "__main__":
    main()
