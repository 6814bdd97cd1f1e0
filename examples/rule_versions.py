"""Changes the rules of a running job twice, kills a worker, and asks SQL which version judged which flight.

    python examples/rule_versions.py [--rows N] [--keep FOLDER]

Each flight that left New York is judged by the rules in force: the delay in minutes from which it is late. Two
new versions are published while flights are read. The output has the version that each flight was judged by; SQL
over the history finds the same versions, without a look at that column. Exit status 1 if they differ.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this runs as a file; its parts are a package

from coordlog import (
    CsvOptions,
    FileSource,
    Job,
    KafkaLog,
    Kind,
    ParquetSink,
    ensure_shared_broker,
    local_session,
)
from coordlog.coordinators import PublishVersion, Version, VersionOfRows, rules_operator
from coordlog.spark_integration import history, spark_jars
from examples.demo_parts.flights import cut, flights_csv
from examples.demo_parts.follow import Follower, nth_of_kind, open_log

PARALLELISM: Final = 2
BATCH_ROWS: Final = 250
PAUSE_S: Final = 0.05
"""Pause of each batch, so that there is time for two new versions and a kill."""
LIMIT_S: Final = 120.0


def judge(batch: pa.RecordBatch, version: Version, pause_s: float = 0.0) -> pa.RecordBatch:
    """Adds whether each flight is late, and the version of the rules that decided it."""
    time.sleep(pause_s)
    delays = pc.cast(batch.column("dep_delay"), pa.int64())
    late = pc.greater_equal(delays, int(version.content))
    judged = batch.append_column("late", late)
    return judged.append_column("version", pa.array([version.number] * batch.num_rows))


def run_job(spark: SparkSession, job: Job, follower: Follower) -> None:
    """Run the job; publish two versions, and kill a worker in between."""
    job.start(spark)
    waiting = {"is_over": lambda: job.wait(0) is not None, "limit_s": LIMIT_S}
    follower.wait_for(nth_of_kind(Kind.CHECKPOINT_COMPLETED, 2), **waiting)
    publish(job, "30")
    follower.wait_for(nth_of_kind(Kind.CHECKPOINT_COMPLETED, 2), **waiting)
    newest = [record for record in follower.records if record.kind is Kind.ATTEMPT_STARTED][-1]
    os.kill(int(newest.attributes["pid"]), signal.SIGKILL)
    print(f"KILLED the worker of subtask {newest.subtask}")
    publish(job, "60")
    job.wait()


def publish(job: Job, minutes: str) -> None:
    """Publish a version of the rules; returns once it is in the log."""
    answer = job.request("rules", PublishVersion(content=minutes))
    print(f"published: late from {minutes} minutes on: {answer.response}")


VERSIONS_OF_FILES: Final = """
SELECT files.final AS file, spans.version
FROM (SELECT checkpoint_id, explode(publish.files) AS files FROM records WHERE publish IS NOT NULL)
JOIN (SELECT DISTINCT span.checkpoint_id, span.version FROM records WHERE span IS NOT NULL) AS spans
USING (checkpoint_id)
"""
"""The version that judged the rows of each output file: that of the checkpoint that has committed the file."""


def compare(spark: SparkSession, job_id: str, servers: str, output: Path) -> bool:
    """Print the flights by version, by the history and by the output; returns whether both are the same."""
    payloads = {"span": VersionOfRows, "publish": "coordlog.publish_files@1"}
    records = history(spark, job_id, bootstrap_servers=servers, payloads=payloads)
    records.where("counts").createOrReplaceTempView("records")
    spark.sql(VERSIONS_OF_FILES).createOrReplaceTempView("versions_of_files")
    flights = spark.read.parquet(str(output)).selectExpr("*", "_metadata.file_name AS file")
    flights.createOrReplaceTempView("flights")
    found = spark.sql("""
        SELECT v.version AS by_history, f.version AS by_row, count(*) AS flights,
               count_if(late) AS late
        FROM flights AS f LEFT JOIN versions_of_files AS v USING (file) GROUP BY ALL ORDER BY ALL
    """)
    found.show()
    rows = found.collect()
    return len(rows) > 1 and all(row.by_history == row.by_row for row in rows)


def main() -> int:
    """Run the example; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=60_000, help="flights to read")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there, remove nothing")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="coordlog-rule-versions-"))
    servers = ensure_shared_broker(notify=print).bootstrap_servers
    job_id = f"rule-versions-{secrets.token_hex(3)}"
    header, *lines = flights_csv().splitlines(keepends=True)[: options.rows + 1]
    cut(header + b"".join(lines), folder / "in", sizes=sizes_of(len(lines)))
    os.environ["PYTHONPATH"] = str(ROOT)  # the workers import this module's parts
    spark = local_session(PARALLELISM, jars=spark_jars().split(","), log_file=folder / "spark.log")
    log = open_log(job_id, servers)
    job = Job(
        job_id=job_id,
        log=KafkaLog.for_job(job_id, servers),
        operators=[
            FileSource(folder / "in", csv=CsvOptions(null_values=("NA",)), batch_rows=BATCH_ROWS),
            rules_operator(partial(judge, pause_s=PAUSE_S), initial="15"),
            ParquetSink(folder / "out"),
        ],
        parallelism=PARALLELISM,
        checkpoint_interval_s=1,
    )
    try:
        job.log.create()
        run_job(spark, job, Follower(log))
        is_exact = compare(spark, job_id, servers, folder / "out")
    finally:
        spark.stop()
        if options.keep is None:
            log.delete()
            shutil.rmtree(folder, ignore_errors=True)
        log.close()
    print("EXACT: the history has the version of each flight" if is_exact else "WRONG")
    return 0 if is_exact else 1


def sizes_of(row_count: int, file_rows: int = 2_000) -> list[int]:
    """Numbers of rows of the input files."""
    full, rest = divmod(row_count, file_rows)
    return [file_rows] * full + [rest] * bool(rest)


if __name__ == "__main__":
    sys.exit(main())
