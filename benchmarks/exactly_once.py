"""What `exactly_once` costs a batch: `python -m benchmarks.exactly_once [--quick]`.

The same batches are written the plain way, `df.write.mode("append").parquet(…)`, and by `exactly_once` into a
`ParquetSink`, in interleaved rounds; between the two the sink's files alone, with no log. The functions are called as
`foreachBatch` calls them, without a stream around them.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from coordlog.log.broker.embedded import embedded_broker
from coordlog.log.kafka import KafkaLog
from coordlog.spark_integration.batches.exactly_once import exactly_once
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.parquet import ParquetBatches
from coordlog.spark_integration.batches.sinks import Batch
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.session import local_session

from .results import Row, show, write

__all__ = ["measure_batches"]

PATH: Final = Path(__file__).parent / "exactly_once.json"
_PARTITIONS: Final = 2

Write = Callable[[DataFrame, int], None]


def measure_batches(
    spark: SparkSession, servers: str, folder: Path, *, rows: int, rounds: int
) -> list[Row]:
    """Batches of so many rows, written in each way in turn; seconds a batch. The first round is not counted."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    log = KafkaLog.for_job(name, servers)
    log.create()
    # Held in memory: what makes the rows is not what is measured.
    frame = spark.range(0, rows, 1, _PARTITIONS).selectExpr(
        "id", "id % 1000 AS customer", "concat('order ', id) AS what", "rand(7) AS amount"
    )
    frame.cache().count()
    files = ParquetBatches(ParquetSink(folder / "files"))
    files.prepare(name, spark)

    def plain(batch: DataFrame, _batch_id: int) -> None:
        batch.write.mode("append").parquet(str(folder / "plain"))

    def files_alone(batch: DataFrame, batch_id: int) -> None:
        key = BatchKey(query_id=name, batch_id=batch_id)
        given = Batch(job_id=name, driver_id="bench", key=key, sink="sink")
        files.settle(files.stage(batch, given), given)

    with exactly_once(job_id=name, log=log, sink=ParquetSink(folder / "once")) as once:
        ways: dict[str, Write] = {"plain": plain, "files": files_alone, "once": once}
        taken: dict[str, list[float]] = {way: [] for way in ways}
        context = spark.sparkContext
        context.setLocalProperty("sql.streaming.queryId", name)
        for batch_id in range(rounds + 1):
            context.setLocalProperty("streaming.sql.batchId", str(batch_id))
            for way, function in ways.items():
                began = time.perf_counter()
                function(frame, batch_id)
                taken[way].append(time.perf_counter() - began)
    log.delete()
    log.close()
    frame.unpersist()
    seconds = {way: tuple(one[1:]) for way, one in taken.items()}
    common = {"unit": "s a batch", "ours": seconds["once"], "better": "lower", "target": None}
    of = f"{rows:,} rows"
    return [
        Row(name=of, raw=seconds["plain"], raw_is="df.write.parquet", **common),  # type: ignore[arg-type]
        Row(name=f"{of}: what the log adds", raw=seconds["files"], raw_is="no log", **common),  # type: ignore[arg-type]
    ]


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds, smaller batches.")
def main(*, quick: bool) -> None:
    """Measure batches of several sizes."""
    logging.disable(logging.WARNING)
    sizes, rounds = ((1_000, 100_000), 5) if quick else ((1_000, 100_000, 1_000_000), 11)
    folder = Path(tempfile.mkdtemp(prefix="coordlog-bench-"))
    found: list[Row] = []
    try:
        with embedded_broker() as broker:
            spark = local_session(_PARTITIONS)
            for rows in sizes:
                place = folder / str(rows)
                found += measure_batches(
                    spark, broker.bootstrap_servers, place, rows=rows, rounds=rounds
                )
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(found, Console(width=100), "a batch by exactly_once beside the plain function")
    write(found, PATH, quick=quick)


if __name__ == "__main__":
    main()
