"""Files of lines into Parquet, each line once: `python examples/exactly_once.py FOLDER [BOOTSTRAP_SERVERS]`.

Reads what lies in FOLDER/in, file by file, and goes on from FOLDER/checkpoint when it is called again, whatever became
of it before. Without BOOTSTRAP_SERVERS it uses the broker at 127.0.0.1:9092.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame

from coordlog import ParquetSink, local_session
from coordlog.spark_integration import exactly_once


def long_words(batch: DataFrame, _batch_id: int) -> DataFrame:
    """What is to be written; it writes nothing itself."""
    return batch.where("length(value) > 3")


def main(folder: Path, bootstrap_servers: str = "127.0.0.1:9092") -> None:
    """Run the stream over all that is there."""
    spark = local_session(2)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    sink = ParquetSink(folder / "out")
    with exactly_once(
        long_words, job="words", bootstrap_servers=bootstrap_servers, sink=sink
    ) as write:
        query = (
            lines.load(str(folder / "in"))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print(f"{spark.read.parquet(str(folder / 'out')).count():,} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
