"""A job's history as DataFrames: by Spark's own Kafka source and `from_avro`.

Nothing here asks the driver, which may be gone, or our own client. Only which records count is not
Spark's work: it is one pass over the headers in log order, in Python, on one partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, Spark's own name for it
from pyspark.sql.avro.functions import from_avro

from coordlog.errors import EnvironmentSetupError
from coordlog.log.jars import JarSet, resolve
from coordlog.log.kafka import Security, topic_of
from coordlog.projections.audit import UNFINISHED, counting_at
from coordlog.schemas.codec import ENVELOPE_FINGERPRINT, ENVELOPE_SCHEMA
from coordlog.schemas.counting import Counting, Verdict, judge
from coordlog.schemas.header import HEADER_NAME, Header, decode_header

from .history_sql import STORED, view_queries

__all__ = ["create_views", "history", "spark_jars"]

_RAW_SCHEMA: Final = (
    "offset BIGINT, key BINARY, value BINARY, header BINARY, log_timestamp TIMESTAMP, void STRING"
)
_OURS: Final = f"{ENVELOPE_FINGERPRINT:016X}"
_KEY_PARTS: Final = {
    "key_subtask": "IF(get(parts, 1) = 'epoch', NULL, try_cast(get(parts, 1) AS INT))",
    "key_attempt": "IF(get(parts, 1) = 'epoch', NULL, try_cast(get(parts, 2) AS INT))",
    "key_epoch": "IF(get(parts, 1) = 'epoch', try_cast(get(parts, 2) AS INT), NULL)",
}


def spark_jars() -> str:
    """The value of `spark.jars` for a session that reads histories; fetched where missing, once.

    Raises:
        EnvironmentSetupError: They cannot be fetched.
    """
    return ",".join(str(path) for path in resolve(JarSet.SPARK))


def history(
    spark: SparkSession,
    job_id: str,
    *,
    bootstrap_servers: str,
    topic_prefix: str = "",
    security: Security | None = None,
    kafka_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Every record of a job's log, a row each; the topic is read when the DataFrame is used.

    `void` says why a record does not count and `counts` whether it does; `key_subtask`,
    `key_attempt` and `key_epoch` are the parts of `key`; `log_timestamp` is the topic's time; the
    other columns are the envelope's fields, all NULL where a record is none of ours.

    Args:
        spark: A session with the jars of `spark_jars`.
        job_id: Whose log.
        bootstrap_servers: Of its broker, as Spark reaches it.
        topic_prefix: What the topic's name begins with, as for `KafkaLog.for_job`.
        security: TLS and SASL, as for `KafkaLog`; `Security.load(os.environ)` has the environment's.
        kafka_options: Further options of Spark's Kafka source, as in `kafka.client.id`; they win.

    Raises:
        EnvironmentSetupError: The session lacks the jars; the message has the line to add.
    """
    options = {**(security or Security()).spark_options(), **(kafka_options or {})}
    topic = _topic(spark, topic_of(job_id, topic_prefix), bootstrap_servers, options)
    ours = F.expr(f"hex(substring(header, 3, 8)) = '{_OURS}'")
    # A damaged record is a row of NULLs, not the end of the query.
    permissive = {"mode": "PERMISSIVE"}
    try:
        decoded = from_avro(F.when(ours, F.col("value")), ENVELOPE_SCHEMA, permissive)
        rows = topic.withColumn("record", decoded)
        _ = rows.schema
    except (AnalysisException, TypeError) as error:
        # TypeError: what PySpark's wrapper of a class that the JVM does not have is called with.
        if isinstance(error, AnalysisException) and "AVRO" not in str(error):
            raise
        raise _jars_missing("no Avro functions") from error
    rows = rows.withColumn("parts", F.split(F.col("key").cast("string"), "/"))
    return rows.select(
        "offset",
        F.col("void").isNull().alias("counts"),
        "void",
        F.col("key").cast("string").alias("key"),
        *(F.expr(expression).alias(name) for name, expression in _KEY_PARTS.items()),
        "log_timestamp",
        "record.*",
    )


def create_views(
    spark: SparkSession,
    job_id: str,
    *,
    bootstrap_servers: str,
    topic_prefix: str = "",
    security: Security | None = None,
    kafka_options: Mapping[str, str] | None = None,
    prefix: str = "",
) -> None:
    """Make the temporary views `history`, `attempts`, `splits`, `thrown_away`, and what they use.

    They show the log as it stands now: the topic is read once, here, and the rows are kept by the
    session's executors. Call again for a newer picture, or where an executor has been lost.

    Args:
        spark: As in `history`.
        job_id: As in `history`.
        bootstrap_servers: As in `history`.
        topic_prefix: As in `history`.
        security: As in `history`.
        kafka_options: As in `history`.
        prefix: Before each view's name, as in `ingest_`.

    Raises:
        EnvironmentSetupError: As in `history`.
    """
    rows = history(
        spark,
        job_id,
        bootstrap_servers=bootstrap_servers,
        topic_prefix=topic_prefix,
        security=security,
        kafka_options=kafka_options,
    )
    rows.localCheckpoint().createOrReplaceTempView(f"{prefix}history")
    for name, query in view_queries(prefix):
        view = spark.sql(query)
        if name in STORED:
            # Not `cache`: a cached view keeps the plan of all that is below it, and Spark takes
            # minutes to plan ten of them that use each other.
            view = view.localCheckpoint()
        view.createOrReplaceTempView(f"{prefix}{name}")


def _topic(
    spark: SparkSession, topic: str, bootstrap_servers: str, kafka_options: Mapping[str, str]
) -> DataFrame:
    """The topic's records, `void` told, on one partition in log order."""
    reader = (
        spark.read.format("kafka")
        .options(**kafka_options)
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
    )
    try:
        loaded = reader.load()
        _ = loaded.schema
    except AnalysisException as error:
        if "kafka" not in str(error).lower() or "data source" not in str(error).lower():
            raise
        raise _jars_missing("no Kafka source") from error
    # The first header of the name, as our own client takes it.
    header = F.expr(f"get(filter(headers, h -> h.key = '{HEADER_NAME}'), 0).value")
    raw = loaded.select(
        "offset", "key", "value", header.alias("header"), F.col("timestamp").alias("log_timestamp")
    )
    return raw.coalesce(1).sortWithinPartitions("offset").mapInArrow(tell_void, _RAW_SCHEMA)


def _jars_missing(what: str) -> EnvironmentSetupError:
    return EnvironmentSetupError(
        f"this Spark session has {what} on its class path",
        "add this line where the session is built, before anything in the process has used Spark:\n"
        '    .config("spark.jars", spark_jars())'
        "  # from coordlog.spark_integration.history import spark_jars\n"
        'or start it by `spark-submit --jars "$(coordlog jars)"`',
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record as the fold needs it; key and time are nothing to it."""

    offset: int
    header_bytes: bytes | None
    value: bytes | None = None
    key: bytes | None = None
    timestamp_ms: int = 0

    @property
    def header(self) -> Header | None:
        return decode_header(self.header_bytes)


def tell_void(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """The batches with a column `void`, NULL where the record counts; the function of `mapInArrow`.

    Args:
        batches: `offset: int64`, `header: binary`, `value: binary` and more, all of the log, in
            log order.
    """
    waiting: deque[pa.RecordBatch] = deque()
    told: deque[str | None] = deque()
    for verdict in _verdicts(_entries(batches, waiting)):
        told.append(_why_not(verdict))
        while waiting and len(told) >= waiting[0].num_rows:
            yield _with_void(waiting.popleft(), told)
    while waiting:  # empty ones
        yield _with_void(waiting.popleft(), told)


def _entries(batches: Iterable[pa.RecordBatch], waiting: deque[pa.RecordBatch]) -> Iterator[_Entry]:
    """Each record of each batch; a batch is put into `waiting` before its records are given."""
    is_first = True
    for batch in batches:
        waiting.append(batch)
        offsets, headers = batch.column("offset").to_pylist(), batch.column("header").to_pylist()
        for index, (offset, header) in enumerate(zip(offsets, headers, strict=True)):
            # The value matters only where the log begins: a SNAPSHOT tells where counting does.
            value = batch.column("value")[index].as_py() if is_first else None
            is_first = False
            yield _Entry(offset, header, value)


def _verdicts(entries: Iterator[_Entry]) -> Iterator[Verdict]:
    first = next(entries, None)
    if first is None:
        return
    state: Counting = counting_at(first)
    for judged in judge(_from(first, entries), state):
        yield judged.verdict


def _from(first: _Entry, rest: Iterator[_Entry]) -> Iterator[_Entry]:
    yield first
    yield from rest


def _why_not(verdict: Verdict) -> str | None:
    if verdict in (Verdict.EPOCH, Verdict.COMPLETES):
        return None
    return UNFINISHED if verdict is Verdict.FITS else verdict.value


def _with_void(batch: pa.RecordBatch, told: deque[str | None]) -> pa.RecordBatch:
    column = pa.array([told.popleft() for _ in range(batch.num_rows)], pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, column], names=[*batch.schema.names, "void"])
