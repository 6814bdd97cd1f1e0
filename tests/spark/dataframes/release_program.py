"""A stream over files that are archived once they are read: `release_program.py FOLDER SERVERS JOB STEP PLACE`.

The files are in PLACE/in, a folder or an S3 URL, and their archive is PLACE/done. Each batch appends a line to
FOLDER/out.jsonl: its id, and its rows. At STEP of the second batch the process kills itself, with its JVM; after `none`
it ends once the files of all batches but the last are in the archive.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from coordlog import Watch
from coordlog.coordinators.query_source import ReadsCoordinator
from coordlog.spark_integration import FileSource, local_session
from coordlog.spark_integration.dataframes import coordinated
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.source.disposal import dispose
from coordlog.spark_integration.files.source.release import FileRelease

STEP = sys.argv[4]
BATCHES, PER_BATCH = 4, 3


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def dying(method: Callable[..., Any], *, is_after: bool) -> Callable[..., Any]:
    """The method, which kills the process before its first call, or after it."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        if not is_after:
            die()
        method(*arguments, **named)
        die()

    return call


def arm() -> None:
    """Make the process die at the step."""
    match STEP:
        case "commit called":
            ReadsCoordinator._commit = dying(ReadsCoordinator._commit, is_after=False)  # type: ignore[method-assign]
        case "intent recorded":
            FileRelease.settle = dying(FileRelease.settle, is_after=False)  # type: ignore[method-assign]
        case "one moved":
            FileRelease.__init__.__defaults__ = (dying(dispose, is_after=True),)
        case "all moved":
            FileRelease.settle = dying(FileRelease.settle, is_after=True)  # type: ignore[method-assign]
        case _:
            assert STEP in ("planned", "written", "none"), STEP


def main() -> None:
    """Read all that is there, and end."""
    arm()
    folder, servers, job_id, place = Path(sys.argv[1]), *sys.argv[2:4], sys.argv[5]

    def write(frame: DataFrame, batch_id: int) -> None:
        if batch_id == 1 and STEP == "planned":
            die()
        rows = [row[0] for row in frame.select("i").collect()]
        with (folder / "out.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([batch_id, rows]) + "\n")
        if batch_id == 1 and STEP == "written":
            die()

    spark = local_session(2)
    watch = Watch(watch_interval_s=0.1, after_commit=f"archive:{place}/done")
    waiting = InputFiles(url=f"{place}/in")
    source = FileSource(waiting.url, schema="i bigint, s string", watch=watch)
    with coordinated(
        spark, job_id, source, bootstrap_servers=servers, splits_per_batch=PER_BATCH
    ) as reads:
        query = (
            reads.read_stream()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        while len(waiting.list()) > PER_BATCH or not is_last_committed(folder):
            if query.awaitTermination(1):
                break
        query.stop()


def is_last_committed(folder: Path) -> bool:
    """Whether Spark has committed the last batch of rows."""
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*"))) >= BATCHES


main()
