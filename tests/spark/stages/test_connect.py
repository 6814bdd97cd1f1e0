"""A real session of Spark Connect: jobs run in it, and coordinators beside the session are refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

WAIT_S: Final = 240.0

SETTINGS: Final = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "SPARK_TESTING": "1",  # the server takes a free port; else it is always 15002
}

PROGRAM: Final = """
import os, sys
from pathlib import Path
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from coordlog.errors import EnvironmentSetupError
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration import FileSource, Job, ParquetSink, coordinated, coordinated_writes

folder = Path(sys.argv[1])
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.remote("local[1]").getOrCreate()
services = {
    "coordinated": lambda log: coordinated(spark, "reads", FileSource(folder / "in"), log=log),
    "writes": lambda log: coordinated_writes(spark, "writes", ParquetSink(folder / "out"), log=log),
}
for name, service in services.items():
    log = MemoryLog(name)
    try:
        with service(log):
            print(name, "works")
    except EnvironmentSetupError as error:
        print(name, error, log.high_watermark())
source, sink = FileSource(folder / "in"), ParquetSink(folder / "out")
Job(job_id="job", log=MemoryLog("job"), source=source, sink=sink, batch=True).run(spark)
print("written", pq.read_table(folder / "out").num_rows)
spark.stop()
"""


def test_connect_runs_jobs_and_refuses_services_before_recording(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the client of Spark Connect needs grpcio: make setup")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("i\n1\n2\n", encoding="utf-8")

    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **SETTINGS},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert program.returncode == 0, program.stdout + program.stderr[-4_000:]
    printed = {
        line.partition(" ")[0]: line.partition(" ")[2] for line in program.stdout.splitlines()
    }
    for name in ("coordinated", "writes"):
        assert "with Spark Connect that is the server" in printed[name]
        assert printed[name].endswith(" 0"), "nothing was recorded"
    assert printed["written"] == "2"
