"""Changes the rules of a running job twice, kills a worker, and asks SQL which version judged which flight.

    python examples/rule_versions.py [--rows N] [--keep FOLDER]

Each flight that left New York is judged by the rules in force: the delay in minutes from which it is late. Two
new versions are published while flights are read. The output has the version that each flight was judged by; SQL
over the history finds the same versions, without a look at that column. Exit status 1 if they differ.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # this runs as a file; its parts are a package

from coordlog.coordinators import PublishVersion, Version, VersionOfRows, rules_operator
from coordlog.spark_integration import history
from examples.demo_parts.flights_job import FlightsJob, flights_job

PAUSE_S: Final = 0.1
"""Pause of each batch, so that there is time for two new versions and a kill."""


def judge(batch: pa.RecordBatch, version: Version, pause_s: float = 0.0) -> pa.RecordBatch:
    """Adds whether each flight is late, and the version of the rules that decided it."""
    time.sleep(pause_s)
    delays = pc.cast(batch.column("dep_delay"), pa.int64())
    late = pc.call_function("greater_equal", [delays, int(version.content)])
    judged = batch.append_column("late", late)
    return judged.append_column("version", pa.array([version.number] * batch.num_rows))


def change_rules(running: FlightsJob) -> None:
    """Publish two versions, and kill a worker in between."""
    running.wait_for_checkpoints(2)
    publish(running, "30")
    running.wait_for_checkpoints(1)
    running.kill_worker()
    publish(running, "60")


def publish(running: FlightsJob, minutes: str) -> None:
    """Publish a version of the rules; returns once it is in the log."""
    answer = running.job.request("rules", PublishVersion(content=minutes))
    print(f"late from {minutes} minutes on: {answer.response}")


VERSIONS_OF_FILES: Final = """
SELECT file.final AS file, spans.version
FROM (SELECT checkpoint_id, explode(publish.files) AS file FROM records)
JOIN (SELECT DISTINCT span.checkpoint_id, span.version FROM records) AS spans USING (checkpoint_id)
"""
"""The version that judged the rows of each output file: that of the checkpoint that has committed the file."""


def compare(ran: FlightsJob) -> bool:
    """Print the flights by version, by the history and by the output; returns whether both are the same."""
    spark = ran.spark
    records = history(
        spark,
        ran.job.job_id,
        bootstrap_servers=ran.servers,
        payloads={"span": VersionOfRows, "publish": "coordlog.publish_files@1"},
    )
    records.where("counts").createOrReplaceTempView("records")
    spark.sql(VERSIONS_OF_FILES).createOrReplaceTempView("versions_of_files")
    flights = spark.read.parquet(str(ran.output)).selectExpr("*", "_metadata.file_name AS file")
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
    rules = rules_operator(partial(judge, pause_s=PAUSE_S), initial="15")
    with flights_job("rule-versions", [rules], __doc__) as ran:
        ran.run(change_rules)
        is_exact = compare(ran)
    print("EXACT: the history has the version of each flight" if is_exact else "WRONG")
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
