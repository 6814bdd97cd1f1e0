"""Lists the execution attempts of a job with Spark alone: its Kafka source and its `from_avro`.

    python examples/history.py JOB BOOTSTRAP_SERVERS

It uses only two things of coordlog: the schema of records, which is a file, and the jars, which may also come
from elsewhere: `coordlog jars` prints the value of `spark.jars`.
It does not leave out records that do not count (a stale driver's, doubled ones):
`coordlog.spark_integration.history` does that.
"""

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro

job, servers = sys.argv[1:]
command = Path(sys.executable).with_name("coordlog")  # of the same environment
jars = subprocess.check_output([command, "jars"], text=True).strip()
schema = (Path(__file__).parents[1] / "schemas/avro/record-v1.avsc").read_text(encoding="utf-8")
spark = SparkSession.builder.master("local[2]").config("spark.jars", jars).getOrCreate()

# Ten lines of plain Spark.
topic = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
records = topic.option("subscribe", f"{job}.log").load()
decoded = from_avro("value", schema, {"mode": "PERMISSIVE"}).alias("r")
records.select("offset", decoded).select("offset", "r.*").createOrReplaceTempView("history")
spark.sql("""
  SELECT subtask, attempt_number AS attempt, min(timestamp) AS began, max(timestamp) AS last_seen,
         max_by(kind, offset) AS last_kind, max(reason) AS reason
  FROM history WHERE attempt_number IS NOT NULL
  GROUP BY subtask, attempt_number ORDER BY subtask, attempt_number
""").show(1000, truncate=False)
