"""Adds a column to a table while two subtasks write: they flush, the table is altered once, they go on.

    python examples/schema_change.py [--rows N] [--keep FOLDER]

The files in the output folder are the table's data, and a SQLite catalogue has its columns. A worker is killed
after the change. Exit status 1 if the table was altered more than once, a file has another schema than its checkpoint
has, or a flight is missing.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # this runs as a file; its parts are a package

from coordlog.coordinators import (
    PublishVersion,
    SchemaApplied,
    Version,
    VersionOfRows,
    schema_change_operator,
)
from coordlog.spark_integration import history
from examples.demo_parts.flights_job import FlightsJob, flights_job

BEFORE: Final = "year,month,day,carrier,flight"
AFTER: Final = f"{BEFORE},dep_delay"
PAUSE_S: Final = 0.1


def convert(batch: pa.RecordBatch, version: Version) -> pa.RecordBatch:
    """The columns of a version."""
    time.sleep(PAUSE_S)
    return batch.select(version.content.split(","))


def alter_table(catalogue: Path, version: Version) -> None:
    """Add the columns that the table does not have; done already, it changes nothing."""
    with sqlite3.connect(catalogue) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS columns (name TEXT PRIMARY KEY)")
        for name in version.content.split(","):
            connection.execute("INSERT OR IGNORE INTO columns VALUES (?)", (name,))
    print(f"the table has the schema of version {version.number}")


def change(running: FlightsJob) -> None:
    """Publish the new schema, and kill a worker once it is in force."""
    running.wait_for_checkpoints(2)
    running.job.request("schema", PublishVersion(content=AFTER))
    running.wait_for_checkpoints(2)
    running.kill_worker()


def problems(ran: FlightsJob) -> list[str]:
    """Differences between the history and the output."""
    records = history(
        ran.spark,
        ran.job.job_id,
        bootstrap_servers=ran.servers,
        payloads={
            "span": VersionOfRows,
            "applied": SchemaApplied,
            "publish": "coordlog.publish_files@1",
        },
    ).where("counts")
    applied = [row.version for row in records.selectExpr("applied.version").dropna().collect()]
    spans: dict[int, int] = dict(
        records.selectExpr("span.checkpoint_id", "span.version").dropna().collect()
    )
    wrong = [] if sorted(applied) == [1, 2] else [f"applied: {applied}"]
    counts = {1: 0, 2: 0}
    files = records.selectExpr("checkpoint_id", "explode(publish.files) AS file")
    for row in files.selectExpr("checkpoint_id", "file.final", "file.rows").collect():
        names = ",".join(pq.read_schema(ran.output / row.final).names)
        version = spans[row.checkpoint_id]
        counts[version] += row.rows
        if names != {1: BEFORE, 2: AFTER}[version]:
            wrong.append(f"{row.final} has {names}")
    print(f"{counts[1]:,} flights of version 1, {counts[2]:,} of version 2")
    if sum(counts.values()) != ran.row_count or not all(counts.values()):
        wrong.append(f"of {ran.row_count:,} flights")
    return wrong


def main() -> int:
    """Run the example; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        catalogue = Path(folder, "catalogue.sqlite")
        schema = schema_change_operator(convert, partial(alter_table, catalogue), initial=BEFORE)
        with flights_job("schema-change", [schema], __doc__) as ran:
            ran.run(change)
            wrong = problems(ran)
        with sqlite3.connect(catalogue) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM columns")}
    if names != set(AFTER.split(",")):
        wrong.append(f"the table has {sorted(names)}")
    print(f"WRONG: {wrong}" if wrong else "EXACT: each file has the schema of its checkpoint")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
