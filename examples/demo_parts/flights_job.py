"""A job that reads flights through an operator, for the examples of ready-made coordinators."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from coordlog import (
    CsvOptions,
    FileSource,
    Job,
    KafkaLog,
    Kind,
    OperatorSpec,
    ParquetSink,
    Record,
    ensure_shared_broker,
    local_session,
)
from coordlog.spark_integration import spark_jars
from examples.demo_parts.flights import cut, flights_csv
from examples.demo_parts.follow import Follower, nth_of_kind, open_log

__all__ = ["FlightsJob", "flights_job"]

ROOT: Final = Path(__file__).resolve().parents[2]
PARALLELISM: Final = 2
BATCH_ROWS: Final = 250
LIMIT_S: Final = 240.0


@dataclass(frozen=True, kw_only=True)
class FlightsJob:
    """A job, its log, its output and the session in which it runs."""

    spark: SparkSession
    job: Job
    servers: str
    output: Path
    row_count: int
    """Number of flights in the input."""
    follower: Follower

    def run(self, while_running: Callable[[FlightsJob], None] = lambda _job: None) -> None:
        """Run the job to its end; `while_running` is called once it has started."""
        self.job.start(self.spark)
        while_running(self)
        self.job.wait()

    def wait_for_checkpoints(self, count: int) -> None:
        """Wait until so many more checkpoints have completed. Raises NotSeenError if the job ends before."""
        self.wait_for(nth_of_kind(Kind.CHECKPOINT_COMPLETED, count))

    def wait_for(self, awaited: Callable[[Record], bool]) -> None:
        """Wait for a record of the history. Raises NotSeenError if the job ends before."""
        self.follower.wait_for(
            awaited, is_over=lambda: self.job.wait(0) is not None, limit_s=LIMIT_S
        )

    def kill_worker(self) -> None:
        """Kill the worker process of the newest attempt."""
        newest = [one for one in self.follower.records if one.kind is Kind.ATTEMPT_STARTED][-1]
        os.kill(int(newest.attributes["pid"]), signal.SIGKILL)
        print(f"KILLED the worker of attempt {newest.attempt_number} of subtask {newest.subtask}")


@contextmanager
def flights_job(
    name: str,
    operators: Sequence[OperatorSpec],
    description: str | None,
    *,
    rows: int = 20_000,
    file_rows: int = 2_000,
    is_batch: bool = False,
) -> Iterator[FlightsJob]:
    """The job of an example, with the options `--rows` and `--keep` of its command line; removed at the end.

    Args:
        name: Beginning of the job's id.
        operators: Operators between the source and the sink.
        description: Docstring of the example.
        rows: Number of flights to read if the command line names no other.
        file_rows: Number of flights in each input file.
        is_batch: Whether the job runs without checkpoints.
    """
    parser = argparse.ArgumentParser(description=(description or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=rows, help="flights to read")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there, remove nothing")
    options = parser.parse_args()
    folder = (options.keep or Path(tempfile.mkdtemp(prefix=f"coordlog-{name}-"))).resolve()
    servers = ensure_shared_broker(notify=print).bootstrap_servers
    job_id = f"{name}-{secrets.token_hex(3)}"
    header, *lines = flights_csv().splitlines(keepends=True)[: options.rows + 1]
    full, rest = divmod(len(lines), file_rows)
    cut(header + b"".join(lines), folder / "in", [file_rows] * full + [rest] * bool(rest))
    os.environ["PYTHONPATH"] = str(ROOT)  # the workers import the examples' modules
    spark = local_session(PARALLELISM, jars=spark_jars().split(","), log_file=folder / "spark.log")
    reading = open_log(job_id, servers)
    log = KafkaLog.for_job(job_id, servers)
    try:
        log.create()
        job = Job(
            job_id=job_id,
            log=log,
            operators=[
                FileSource(
                    folder / "in", csv=CsvOptions(null_values=("NA",)), batch_rows=BATCH_ROWS
                ),
                *operators,
                ParquetSink(folder / "out", widen=True),
            ],
            parallelism=PARALLELISM,
            checkpoint_interval_s=1,
            batch=is_batch,
        )
        yield FlightsJob(
            spark=spark,
            job=job,
            servers=servers,
            output=folder / "out",
            row_count=len(lines),
            follower=Follower(reading),
        )
    finally:
        spark.stop()
        log.close()
        if options.keep is None:
            reading.delete()
            shutil.rmtree(folder, ignore_errors=True)
        reading.close()
