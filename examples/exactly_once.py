"""Files of lines into Parquet, each line once: `python examples/exactly_once.py FOLDER [BOOTSTRAP_SERVERS]`.

Reads the files in FOLDER/in, one by one. Called again, also after a crash, it continues from FOLDER/checkpoint.
Without BOOTSTRAP_SERVERS it uses the broker at 127.0.0.1:9092.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame

from coordlog import ParquetSink
from coordlog.spark_integration import exactly_once, query_session


def long_words(batch: DataFrame, _batch_id: int) -> DataFrame:
    """The rows to write; it writes nothing itself."""
    return batch.where("length(value) > 3")


def main(folder: Path, bootstrap_servers: str = "127.0.0.1:9092") -> None:
    """Run the stream over all existing files."""
    spark = query_session(2)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    sink = ParquetSink(folder / "out")
    with exactly_once(
        long_words, job_id="words", bootstrap_servers=bootstrap_servers, sink=sink
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
