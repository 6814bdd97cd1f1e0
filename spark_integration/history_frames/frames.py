"""A job's history as DataFrames: by Spark's own Kafka source and `from_avro`.

Uses neither the driver, which may have ended, nor coordlog's own client. Spark does all but two passes
over the log in its order, in Python: they find which records count, and decode payloads by their types.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, Spark's own name for it
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.functions import arrow_udf

from coordlog.errors import EnvironmentSetupError, OptionError, PayloadTypeError, RecordError
from coordlog.log.broker.jars import JarSet, resolve
from coordlog.log.kafka import Security, topic_of
from coordlog.projections.snapshot.codec import schemas_before
from coordlog.projections.tables.columns import TABLES
from coordlog.schemas.codec import ENVELOPE_FINGERPRINT, ENVELOPE_SCHEMA
from coordlog.schemas.header import HEADER_NAME
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.payload_address import ADDRESS_MARK, INLINE_MARK
from coordlog.schemas.record import Kind
from coordlog.schemas.untrusted_schema import foreign_avro
from coordlog.schemas.validity import beginning_of
from coordlog.spark_integration.history_frames.bulk_validity import REASONS
from coordlog.spark_integration.history_frames.folds import (
    STREAM_COLUMNS,
    STREAM_STATE,
    FirstRecord,
    packed,
    payload_texts,
    tell_codes,
    tell_stream,
    unpacked,
)
from coordlog.spark_integration.history_frames.views import UNREADABLE, tables_of, tables_schema
from coordlog.spark_integration.session import query_session

__all__ = [
    "CONSUMER_OPTIONS",
    "create_views",
    "history",
    "history_session",
    "history_stream",
    "spark_jars",
]

_log = logging.getLogger(__name__)

PayloadWanted = str | type[Payload]
"""A payload type: its key in the log, as in `rules.update@1`, or its class."""

_OURS: Final = f"X'{ENVELOPE_FINGERPRINT:016X}'"
_KEY_PARTS: Final = {
    "key_job": "IF(size(parts) = 3, parts[0], NULL)",
    "key_subtask": "IF(get(parts, 1) = 'epoch', NULL, try_cast(get(parts, 1) AS INT))",
    "key_attempt": "IF(get(parts, 1) = 'epoch', NULL, try_cast(get(parts, 2) AS INT))",
    "key_epoch": "IF(get(parts, 1) = 'epoch', try_cast(get(parts, 2) AS INT), NULL)",
}
# The first header of the name, as our own client takes it; no lambda, as Spark compiles no step that has one.
_HEADER: Final = (
    f"IF(get(headers, 0).key = '{HEADER_NAME}', get(headers, 0).value, "
    f"get(headers.value, CAST(array_position(headers.key, '{HEADER_NAME}') AS INT) - 1))"
)
_OWN_COLUMNS: Final = ("offset", "counts", "void", "key", *_KEY_PARTS, "log_timestamp")
_PAYLOAD: Final = ("record.kind", "record.payload_type", "record.payload")
_OFFSETS_PER_TRIGGER: Final = 10_000
"""Limit of a micro-batch. It is one Arrow value, below 2 GiB, in a worker's memory: enough for records of 50 KB."""
CONSUMER_OPTIONS: Final = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
    "kafka.fetch.max.wait.ms": "10",
}
"""Options of Spark's Kafka consumer, which queries the log's two ends after each poll, behind the fetch in
progress: with Kafka's defaults every 500 records, and with half a second of waiting at the log's end."""
_STATE_TASKS_MAX: Final = 16
_JARS_OF: Final = "4.1."
_BEGINNING: Final = ("startingoffsets", "startingtimestamp")
_SPLITTING: Final = ("minpartitions", "maxrecordsperpartition")


def spark_jars() -> str:
    """The value of `spark.jars` for a session that reads histories; missing jars are fetched, once.

    Raises:
        EnvironmentSetupError: They cannot be fetched.
    """
    return ",".join(str(path) for path in resolve(JarSet.SPARK))


def history_session(
    *,
    slots: int = 2,
    app_name: str = "coordlog history",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session that reads histories: the session of this process, or a new one.

    The jars of Kafka's source and of the Avro functions are those of Spark 4.1. They are fetched the
    first time, and later come from this user's cache, without a network. With another version of Spark,
    where they are untested, a warning is logged.

    Args:
        slots: Number of tasks that may run at once.
        app_name: Name of the Spark application.
        master: Another master than the local one; its executors get the jars from here.
        settings: Further Spark settings; they win.

    Raises:
        EnvironmentSetupError: The jars cannot be fetched; or the process has a session, or the JVM of
            one, that was made without them, and the message has the line to add there.
        OptionError: `slots` is out of range.
    """
    chosen = {"spark.sql.shuffle.partitions": "1"}
    if master is None:  # tasks are not retried, unlike a job's: a failure here would repeat
        master = f"local[{slots}]"
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    # An existing session is not changed: its settings belong to other code.
    spark = SparkSession.getActiveSession() or query_session(
        slots,
        app_name=app_name,
        master=master,
        jars=resolve(JarSet.SPARK),
        settings={**chosen, **(settings or {})},
    )
    if not spark.version.startswith(_JARS_OF):
        _log.warning("the jars are those of Spark %s*, and this is %s", _JARS_OF, spark.version)
    _Source(spark, "any", "127.0.0.1:1", "", None, None).load(is_stream=False)
    _decoded(spark, F.lit(b""), ENVELOPE_SCHEMA)
    return spark


def history(
    spark: SparkSession,
    job_id: str,
    *,
    bootstrap_servers: str,
    topic_prefix: str = "",
    security: Security | None = None,
    kafka_options: Mapping[str, str] | None = None,
    payloads: Mapping[str, PayloadWanted] | None = None,
) -> DataFrame:
    """Every record of a job's log, a row each; the topic is read when the DataFrame is used.

    Columns: `counts` is whether the record counts, and `void` the reason if it does not; `key_job`,
    `key_subtask`, `key_attempt` and `key_epoch` are the parts of `key`; `log_timestamp` is the topic's
    time. The envelope's fields follow, all NULL if the record is not coordlog's. `payload_json` is the
    payload, decoded by the schema that the log registers for its type; it is decoded only if the
    column is selected.

    Args:
        spark: A session with the jars of `spark_jars`, such as that of `history_session`.
        job_id: Id of the job.
        bootstrap_servers: Addresses of the log's broker, as Spark reaches it.
        topic_prefix: Prefix of the topic's name, as for `KafkaLog.for_job`.
        security: TLS and SASL, as for `KafkaLog`; `Security.load(os.environ)` reads the environment.
        kafka_options: Further options of Spark's Kafka source, such as `kafka.client.id`; they win.
        payloads: Further columns by name: a struct of the payload of that type. NULL in records of
            other types, in damaged ones, and if the payload is in the payload store. For a type
            of your own that is named by its key the log is read once, here, for its schema.

    Raises:
        EnvironmentSetupError: The session lacks the jars; the message has the line to add.
        OptionError: An option would split the log or pass over lost records, or the name of a column
            is taken.
        PayloadTypeError: The log has registered no such type.
    """
    source = _Source(spark, job_id, bootstrap_servers, topic_prefix, security, kafka_options)
    return _rows(source.load(is_stream=False), payloads or {})


def history_stream(
    spark: SparkSession,
    job_id: str,
    *,
    bootstrap_servers: str,
    topic_prefix: str = "",
    security: Security | None = None,
    kafka_options: Mapping[str, str] | None = None,
    payloads: Mapping[str, PayloadWanted] | None = None,
) -> DataFrame:
    """As `history`, as a stream that begins with the log's first record.

    A row is emitted once it is decided whether its record counts: the records of an unfinished turn
    wait for its end, and so do those behind them. So the rows are those of `history` without the last,
    unfinished ones.

    A stateful operator of the query, in one task, holds the state of counting, the registered schemas
    and the waiting records. Spark starts `spark.sql.shuffle.partitions` tasks for it, by default 200:
    one is enough.

    Args:
        spark: As in `history`.
        job_id: As in `history`.
        bootstrap_servers: As in `history`.
        topic_prefix: As in `history`.
        security: As in `history`.
        kafka_options: As in `history`. `maxOffsetsPerTrigger` is 10,000 by default.
        payloads: As in `history`.

    Raises:
        EnvironmentSetupError: As in `history`.
        OptionError: As in `history`; or another beginning than the log's first record.
        PayloadTypeError: As in `history`: the type must be registered when the stream is made.
    """
    source = _Source(spark, job_id, bootstrap_servers, topic_prefix, security, kafka_options)
    structs = _struct_columns(
        payloads or {}, lambda: _registered(_typed(told_in_batch(source.load(is_stream=False))))
    )
    _hint_at_tasks(spark)
    raw = source.load(is_stream=True).withColumn("record", _record(spark))
    rows = raw.select(
        "topic",
        *("offset", "key", "value", "header"),
        F.expr("unix_micros(log_timestamp)").alias("log_us"),
        *("record.epoch", "record.driver_id"),
        *_PAYLOAD,
    )
    decided = told_in_stream(rows).withColumn("log_timestamp", F.expr("timestamp_micros(log_us)"))
    return _typed(decided).select(*_OWN_COLUMNS, "record.*", "payload_json", *structs)


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
    """Create the temporary view `history`, and a view for each table of the history.

    These are `attempts`, `splits`, `thrown_away`, `checkpoints`, `events`, `commits`, `failures`
    and `epochs`: docs/history.md has their columns. They show the log as it is now: the topic
    is read here, and the session's executors keep the rows. Call again for newer rows, or if an
    executor has been lost.

    Args:
        spark: As in `history`.
        job_id: As in `history`.
        bootstrap_servers: As in `history`.
        topic_prefix: As in `history`.
        security: As in `history`.
        kafka_options: As in `history`.
        prefix: Prefix of each view's name, such as `ingest_`.

    Raises:
        EnvironmentSetupError: As in `history`.
        OptionError: As in `history`.
        RecordError: A record that counts cannot be read.
    """
    source = _Source(spark, job_id, bootstrap_servers, topic_prefix, security, kafka_options)
    raw = source.load(is_stream=False).localCheckpoint()  # read once: all views show the same end
    _rows(raw, {}).localCheckpoint().createOrReplaceTempView(f"{prefix}history")
    columns = raw.select("offset", "key", "value", "header")
    tables = columns.mapInArrow(tables_of, tables_schema()).localCheckpoint()
    for row in tables.where(F.col(UNREADABLE).isNotNull()).select(f"{UNREADABLE}.*").collect():
        raise RecordError(row.offset, row.kind, row.problem)
    for name in TABLES:
        view = tables.where(F.col(name).isNotNull()).select(f"{name}.*")
        view.createOrReplaceTempView(f"{prefix}{name}")


class _Source:
    """A job's topic, with the options of Spark's Kafka source."""

    def __init__(
        self,
        spark: SparkSession,
        job_id: str,
        bootstrap_servers: str,
        topic_prefix: str,
        security: Security | None,
        kafka_options: Mapping[str, str] | None,
    ) -> None:
        for name, value in (kafka_options or {}).items():
            if name.lower() in _SPLITTING:
                expected = "absent: a log is read as one partition"
                raise OptionError(f"kafka_options[{name!r}]", value, expected)
            if name.lower().startswith(_BEGINNING) and value != "earliest":
                expected = "absent: whether a record counts depends on all records before it"
                raise OptionError(f"kafka_options[{name!r}]", value, expected)
            # Spark's own error advises it, but behind a gap no sequence continues, and every record is void.
            if name.lower() == "failondataloss" and str(value).lower() != "true":
                expected = (
                    "absent: behind lost records none counts; if the stream's position is "
                    "below the log's beginning, start the query with a new checkpointLocation"
                )
                raise OptionError(f"kafka_options[{name!r}]", value, expected)
        self.spark = spark
        self._options: dict[str, str] = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "subscribe": topic_of(job_id, topic_prefix),
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            **CONSUMER_OPTIONS,
            **(security or Security()).spark_options(),
            **(kafka_options or {}),
        }

    def load(self, *, is_stream: bool) -> DataFrame:
        """The topic's records; if not a stream, on one partition in log order."""
        reader = self.spark.readStream if is_stream else self.spark.read
        options = dict(self._options)
        if is_stream and "maxoffsetspertrigger" not in map(str.lower, options):
            options["maxOffsetsPerTrigger"] = str(_OFFSETS_PER_TRIGGER)
        try:
            loaded = reader.format("kafka").options(**options).load()
            _ = loaded.schema
        except AnalysisException as error:
            if "kafka" not in str(error).lower() or "data source" not in str(error).lower():
                raise
            raise _jars_missing("no Kafka source") from error
        # One partition before anything else, so that the plan computes all columns of a record in one step.
        records = loaded if is_stream else loaded.coalesce(1)
        return records.select(
            *("topic", "offset", "key", "value"),
            F.expr(_HEADER).alias("header"),
            F.col("timestamp").alias("log_timestamp"),
        )


def _rows(raw: DataFrame, payloads: Mapping[str, PayloadWanted]) -> DataFrame:
    """The columns of `history`, over the records of a topic."""
    rows = _typed(told_in_batch(raw))
    structs = _struct_columns(payloads, lambda: _registered(rows))
    texts = _in_order(payload_texts, "string")
    # What is not needed is not sent to the Python process: the copies cost as much as the decoding.
    of_first = [F.when(F.col("first").isNotNull(), F.col(name)) for name in ("offset", "header")]
    is_registration = F.col("record.kind") == Kind.TYPE_REGISTERED.value
    text = texts(*of_first, "first", "counts", is_registration, *_PAYLOAD[1:])
    rows = rows.withColumn("payload_json", text)
    return rows.select(*_OWN_COLUMNS, "record.*", "payload_json", *structs)


def told_in_batch(raw: DataFrame) -> DataFrame:
    """The records of a topic, each with its validity code; `first` is the value of the first record.

    Args:
        raw: `offset`, `value`, `header` and more, on one partition in log order.
    """
    first = F.when(F.monotonically_increasing_id() == 0, F.col("value"))
    codes = _in_order(tell_codes, "tinyint")
    coded = raw.withColumn("first", first).withColumn("code", codes("offset", "header", "first"))
    # Always true. Spark moves no limit before a filter: a limit below the fold would cut off a turn.
    return coded.where("code >= 0")


def _in_order(
    fold: Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]], returns: str
) -> Callable[..., Column]:
    """The fold as a function of columns. Non-deterministic, so that Spark moves no filter before it."""
    create_udf: Any = arrow_udf  # the stub has no overload for the fold's annotations
    column: Callable[..., Column] = create_udf(fold, returns).asNondeterministic()
    return column


def told_in_stream(rows: DataFrame) -> DataFrame:
    """The decided records of a topic, with the columns of `STREAM_COLUMNS`.

    The state goes through `applyInPandasWithState`, which every supported Spark has;
    `transformWithState` needs a store and packages that not every session has.

    Args:
        rows: A stream of `topic` and the columns of `STREAM_INPUT`.
    """
    packs = rows.coalesce(1).mapInArrow(packed, "topic STRING, records BINARY")
    decided = packs.groupBy("topic").applyInPandasWithState(
        tell_stream, "records BINARY", STREAM_STATE, "append", "NoTimeout"
    )
    return decided.mapInArrow(unpacked, STREAM_COLUMNS)


def _typed(coded: DataFrame) -> DataFrame:
    """The rows with the columns of `history` added, `record` as a struct."""
    reasons = [F.lit(reason).cast("string") for reason in REASONS]
    rows = coded.withColumn("record", _record(coded.sparkSession))
    return rows.withColumns(
        {
            "counts": F.col("code") == 0,
            "void": F.get(F.array(*reasons), F.col("code").cast("int")),
            "key": F.col("key").cast("string"),
            "parts": F.split(F.col("key").cast("string"), "/"),
        }
    ).withColumns({name: F.expr(expression) for name, expression in _KEY_PARTS.items()})


def _record(spark: SparkSession) -> Column:
    """The envelope, decoded from `value` and `header`."""
    ours = F.expr(f"substring(header, 3, 8) = {_OURS}")
    # A damaged record is a row of NULLs, not the end of the query.
    return _decoded(spark, F.when(ours, F.col("value")), ENVELOPE_SCHEMA)


def _decoded(spark: SparkSession, value: Column, schema_json: str) -> Column:
    try:
        column = from_avro(value, schema_json, {"mode": "PERMISSIVE"})
        _ = spark.range(0).select(from_avro(F.lit(b""), schema_json)).schema
    except (AnalysisException, TypeError) as error:
        # PySpark raises TypeError on a call of a class that the JVM lacks.
        if isinstance(error, AnalysisException) and "AVRO" not in str(error):
            raise
        raise _jars_missing("no Avro functions") from error
    return column


def _struct_columns(
    wanted: Mapping[str, PayloadWanted], registered: Callable[[], Mapping[str, str]]
) -> list[Column]:
    """The columns of `payloads`."""
    has_keys = any(isinstance(payload_type, str) for payload_type in wanted.values())
    schemas = registered() if has_keys else {}
    columns: list[Column] = []
    for name, payload_type in wanted.items():
        if name in (*_OWN_COLUMNS, "payload_json") or f'"name": "{name}"' in ENVELOPE_SCHEMA:
            raise OptionError(
                f"payloads[{name!r}]", payload_type, "under a name that no column has"
            )
        if isinstance(payload_type, str):
            if payload_type not in schemas:
                registered_keys = ", ".join(sorted(schemas)) or "none"
                raise PayloadTypeError(
                    payload_type,
                    f"the log has registered no such type so far; it has {registered_keys}",
                )
            key, schema_json = payload_type, _checked(payload_type, schemas[payload_type])
        else:
            declared = payload_type_of(payload_type)
            key, schema_json = declared.key, declared.schema_json
        columns.append(_struct(key, schema_json).alias(name))
    return columns


def _checked(key: str, schema_json: str) -> str:
    try:
        return foreign_avro(schema_json).schema_json
    except ValueError as error:
        raise PayloadTypeError(key, f"the log registers no schema for it: {error}") from error


def _struct(key: str, schema_json: str) -> Column:
    marked = F.expr(f"startswith(record.payload, X'{INLINE_MARK.hex()}')")
    inline = F.when(marked, F.expr(f"substring(record.payload, {len(INLINE_MARK) + 1})")).otherwise(
        F.when(
            ~F.expr(f"startswith(record.payload, X'{ADDRESS_MARK.hex()}')"), F.col("record.payload")
        )
    )
    is_of_type = (F.col("record.payload_type") == key) & (
        F.col("record.kind") != Kind.TYPE_REGISTERED.value
    )
    return from_avro(F.when(is_of_type, inline), schema_json, {"mode": "PERMISSIVE"})


def _registered(rows: DataFrame) -> Mapping[str, str]:
    """The schemas of all types that the log has registered, by key; reads the log."""
    registrations = (
        rows.where("(counts AND record.kind = 'TYPE_REGISTERED') OR (first IS NOT NULL)")
        .select("offset", "header", "first", *_PAYLOAD)
        .orderBy("offset")
        .collect()
    )
    schemas: dict[str, str] = {}
    for row in registrations:
        if row.first is not None and row.offset > 0:
            first = FirstRecord(row.offset, bytes(row.first), bytes(row.header))
            schemas.update(schemas_before(beginning_of(first)))
        elif row.payload_type is not None and row.payload is not None:
            schemas[row.payload_type] = bytes(row.payload).decode(errors="replace")
    return schemas


def _hint_at_tasks(spark: SparkSession) -> None:
    tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or "200")
    if tasks > _STATE_TASKS_MAX:
        _log.warning(
            "a stream of a history needs one task for its state, and Spark starts %d for each "
            'micro-batch: set spark.conf.set("spark.sql.shuffle.partitions", "1") before it starts',
            tasks,
        )


def _jars_missing(lack: str) -> EnvironmentSetupError:
    return EnvironmentSetupError(
        f"this Spark session has {lack} on its class path",
        "add this line where the session is built, before anything in the process has used Spark:\n"
        '    .config("spark.jars", spark_jars())'
        "  # from coordlog.spark_integration import spark_jars\n"
        'or start it by `spark-submit --jars "$(coordlog jars)"`',
    )
