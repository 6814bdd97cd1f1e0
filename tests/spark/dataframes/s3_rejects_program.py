"""Queries whose bad rows go to S3: `s3_rejects_program.py FOLDER REJECTS`. The environment names the server.

A task fails once it has read its splits, a batch DataFrame is counted twice, and a stream reads all once more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from coordlog.log.memory import MemoryLog
from coordlog.spark_integration import FileSource, local_session
from coordlog.spark_integration.dataframes import coordinated


def main() -> None:
    """Read all that is there, several times."""
    folder, rejects = Path(sys.argv[1]), sys.argv[2]

    def failing_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = list(batches)
        try:
            (folder / "failed").mkdir()
        except FileExistsError:
            yield from read
        else:
            raise RuntimeError("scripted")

    spark, log = local_session(3), MemoryLog("reads")
    for _ in range(2):
        source = FileSource(folder / "in", schema="i bigint, s string", bad_rows=rejects)
        with coordinated(spark, "reads", source, log=log, partitions=3) as reads:
            rows = reads.read().mapInArrow(failing_once, "i long, s string").count()
            assert rows == reads.read().count()
            query = (
                reads.read_stream()
                .writeStream.format("noop")
                .option("checkpointLocation", str(folder / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(60)


main()
