"""A program that a test kills: a stream of files, with `exactly_once`, and the plain way.

`python batch_script.py FOLDER SERVERS PLACE KIND`: reads FOLDER/in, file by file; writes FOLDER/once, with a checkpoint
of its own, of Parquet files or as a table: KIND is `parquet`, `delta` or `iceberg`. For `parquet` also FOLDER/plain.
At the first PLACE it kills itself; at `-` nowhere.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from coordlog.spark_integration import (
    DeltaSink,
    IcebergSink,
    KafkaLog,
    ParquetSink,
    exactly_once,
    local_session,
)

Write = Callable[[DataFrame, int], None]
AnySink = ParquetSink | DeltaSink | IcebergSink


def catalog_of(folder: Path) -> dict[str, str]:
    """Properties of a catalog in a file."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/once",
    }


def sink_of(folder: Path, kind: str) -> AnySink:
    match kind:
        case "delta":
            return DeltaSink(folder / "once")
        case "iceberg":
            return IcebergSink("ns.once", catalog="local", properties=catalog_of(folder))
        case _:
            return ParquetSink(folder / "once")


def main(folder: Path, servers: str, place: str, kind: str) -> None:
    spark = local_session(2)

    def at(here: str) -> None:
        if here.startswith(place):
            os.kill(os.getpid(), signal.SIGKILL)

    def plain(batch: DataFrame, _batch_id: int) -> None:
        batch.repartition(2).write.mode("append").parquet(str(folder / "plain"))
        at("written")

    def function(batch: DataFrame, _batch_id: int) -> DataFrame:
        return batch.repartition(2)

    def run(name: str, write: Write) -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        query = (
            lines.load(str(folder / "in"))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    if kind == "parquet":
        run("plain", plain)
    log = KafkaLog.for_job(f"stream-{kind}", servers)
    log.create()
    sink = sink_of(folder, kind)
    with exactly_once(function, job_id=f"stream-{kind}", log=log, sink=sink, at=at) as write:
        run("once", write)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
