"""A program that a test kills: a stream of files into Parquet, the plain way and with `exactly_once`.

`python batch_script.py FOLDER SERVERS PLACE`: reads FOLDER/in, file by file; writes FOLDER/plain, then FOLDER/once,
each with a checkpoint of its own. At the first PLACE it kills itself; at `-` nowhere.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from coordlog.spark_integration import KafkaLog, ParquetSink, exactly_once, local_session

Write = Callable[[DataFrame, int], None]


def main(folder: Path, servers: str, place: str) -> None:
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

    run("plain", plain)
    log = KafkaLog.for_job("stream", servers)
    log.create()
    sink = ParquetSink(folder / "once")
    with exactly_once(function, job_id="stream", log=log, sink=sink, at=at) as write:
        run("once", write)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
