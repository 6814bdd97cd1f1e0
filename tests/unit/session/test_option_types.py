"""Options of public constructors: wrong types and values are refused at once, all together, with the value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coordlog.errors import CoordlogError, OptionError, OptionsError
from coordlog.log.interface import LogIdentity
from coordlog.log.kafka import KafkaLog, Security
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from coordlog.spark_integration.batches.exactly_once import exactly_once
from coordlog.spark_integration.batches.writes import coordinated_writes
from coordlog.spark_integration.casts.given_schema import arrow_schema_of
from coordlog.spark_integration.dataframes.service import coordinated
from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.spark_integration.files.tables.delta import DeltaSink
from coordlog.spark_integration.job import Job
from coordlog.spark_integration.job_options import Callbacks, RestartPolicy, Start, Timeouts
from coordlog.spark_integration.kafka.source import KafkaSource
from coordlog.spark_integration.session import local_session
from coordlog.spark_integration.transform import pandas_transform


def file_source(**options: Any) -> object:  # noqa: ANN401, wrong ones
    return FileSource("in", **options)


def kafka_source(**options: Any) -> object:  # noqa: ANN401, as above
    given: dict[str, Any] = {"topics": "t", "bootstrap_servers": "h:1", **options}
    return KafkaSource(**given)


def sink(**options: Any) -> object:  # noqa: ANN401, as above
    return ParquetSink("out", **options)


def job(**options: Any) -> object:  # noqa: ANN401, as above
    given: dict[str, Any] = {
        "job_id": "job",
        "log": MemoryLog(),
        "source": FileSource("in"),
        **options,
    }
    return Job(**given)


def watch(**options: Any) -> object:  # noqa: ANN401, as above
    return Watch(**options)


def csv_options(**options: Any) -> object:  # noqa: ANN401, as above
    return CsvOptions(**options)


def start(**options: Any) -> object:  # noqa: ANN401, as above
    return Start(**options)


def timeouts(**options: Any) -> object:  # noqa: ANN401, as above
    return Timeouts(**options)


def restart_policy(**options: Any) -> object:  # noqa: ANN401, as above
    return RestartPolicy(**options)


def callbacks(**options: Any) -> object:  # noqa: ANN401, as above
    return Callbacks(**options)


def kafka_log(**options: Any) -> object:  # noqa: ANN401, as above
    given: dict[str, Any] = {"topic": "job.log", "bootstrap_servers": "h:1", **options}
    return KafkaLog(**given)


def job_log(**options: Any) -> object:  # noqa: ANN401, as above
    given: dict[str, Any] = {"job_id": "job", "bootstrap_servers": "h:1", **options}
    return KafkaLog.for_job(**given)


def endpoint(**options: Any) -> object:  # noqa: ANN401, as above
    return EndpointOptions(**options)


def reads(**options: Any) -> object:  # noqa: ANN401, as above
    values: dict[str, Any] = {
        "spark": None,
        "job_id": "job",
        "source": FileSource("in"),
        "log": MemoryLog(),
    }
    return coordinated(**{**values, **options})


def batches(**options: Any) -> object:  # noqa: ANN401, as above
    given: dict[str, Any] = {
        "job_id": "job",
        "sink": ParquetSink("out"),
        "log": MemoryLog(),
        **options,
    }
    return exactly_once(**given)


def writes(**options: Any) -> object:  # noqa: ANN401, as above
    values: dict[str, Any] = {
        "spark": None,
        "job_id": "job",
        "sink": ParquetSink("out"),
        "log": MemoryLog(),
    }
    return coordinated_writes(**{**values, **options})


def table(**options: Any) -> object:  # noqa: ANN401, as above
    given: dict[str, Any] = {"connect": print, "table": "t", "where": "here", **options}
    return DatabaseTable(given.pop("connect"), given.pop("table"), **given)


def sqlite(**options: Any) -> object:  # noqa: ANN401, as above
    return DatabaseTable.sqlite(**{"path": "x.db", "table": "t", **options})


def postgresql(**options: Any) -> object:  # noqa: ANN401, as above
    given: dict[str, Any] = {"conninfo": "host=h", "table": "t", **options}
    return DatabaseTable.postgresql(**given)


def session(**options: Any) -> object:  # noqa: ANN401, as above
    given: dict[str, Any] = {"slots": 1, **options}
    return local_session(**given)


SINKS = "a BatchSink or a ParquetSink or a DeltaSink or an IcebergSink"


@pytest.mark.parametrize(
    ("make", "option", "value", "expected"),
    [
        (file_source, "format", "xml", "'csv' or 'jsonl' or 'parquet' or 'text'"),
        (file_source, "batch_rows", "8192", "a whole number"),
        (file_source, "watch", True, "a Watch or None"),
        (csv_options, "null_values", "NA", "a sequence, each a text"),
        (csv_options, "column_names", [1], "a sequence, each a text or None"),
        (file_source, "storage_options", "key=1", "a mapping of a text to a text or None"),
        (watch, "watch_interval_s", True, "a number"),
        (csv_options, "delimiter", 9, "a text"),
        (kafka_source, "topics", 5, "a text or a sequence, each a text"),
        (kafka_source, "bounded", "false", "True or False"),
        (kafka_source, "security", {"protocol": "SSL"}, "a Security or None"),
        (kafka_source, "decode", "xml", "'utf8' or 'json' or None"),
        (sink, "partition_by", "a", "a sequence, each a text"),
        (sink, "roll_rows", 1.5, "a whole number or None"),
        (sink, "widen", 1, "True or False"),
        (job, "job_id", None, "a text"),
        (job, "parallelism", "4", "a whole number"),
        (job, "timeouts", {"log_timeout_s": 5}, "a Timeouts or None"),
        (job, "start", "rollback", "a Start or None"),
        (start, "allow_non_restored_state", "sink", "a sequence, each a text"),
        (start, "restore", "roll", "'rollback' or 'resume' or None"),
        (start, "again", 1, "True or False"),
        (timeouts, "stop_timeout_s", "60s", "a number"),
        (restart_policy, "restarts_max", 2.5, "a whole number"),
        (job, "batch", "no", "True or False"),
        (callbacks, "on_restored", "print", "a function or None"),
        (job, "checkpoint_interval_s", "10s", "a number"),
        (job, "log", "job.log", "a Log"),
        (job, "log", KafkaLog, "a Log"),
        (job, "source", FileSource, "a SourceSpec or a SourceLike or None"),
        (kafka_log, "topic", 5, "a text"),
        (kafka_log, "bootstrap_servers", ["h:1"], "a text"),
        (kafka_log, "security", {"protocol": "SSL"}, "a Security or None"),
        (kafka_log, "connect_timeout_s", "5", "a number"),
        (kafka_log, "replication", 3.0, "a whole number or None"),
        (job_log, "job_id", None, "a text"),
        (job_log, "topic_prefix", None, "a text"),
        (reads, "job_id", 7, "a text"),
        (reads, "source", "in", "a Readable"),
        (reads, "partitions", "4", "a whole number or None"),
        (reads, "log", {"topic": "reads.log"}, "a Log or None"),
        (reads, "abandoned", "stream", "a sequence, each a text"),
        (reads, "endpoint", "127.0.0.1", "an EndpointOptions or None"),
        (batches, "job_id", None, "a text"),
        (batches, "take_over", "no", "True or False"),
        (batches, "log", 9092, "a Log or None"),
        (batches, "log_timeout_s", "60", "a number"),
        (
            batches,
            "sink",
            "out",
            f"{SINKS} or a mapping of a text to {SINKS}",
        ),
        (table, "connect", "postgresql://h/d", "a function"),
        (table, "table", 5, "a text"),
        (table, "where", None, "a text"),
        (sqlite, "path", 5, "a text or a path"),
        (sqlite, "table", None, "a text"),
        (postgresql, "conninfo", 5, "a text"),
        (postgresql, "table", None, "a text"),
        (DeltaSink, "path", 5, "a text or a path"),
        (partial(pandas_transform, schema=None), "function", "f", "a function"),
        (partial(pandas_transform, lambda frame: frame), "schema", "a int", "a Schema or None"),
        (writes, "job_id", b"job", "a text"),
        (writes, "instead_of", None, "a text"),
        (writes, "log", "job.log", "a Log or None"),
        (session, "slots", "2", "a whole number"),
        (session, "log_file", 3, "a text or a path or None"),
        (session, "settings", ["a=b"], "a mapping of a text to a text or None"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_value(
    make: Callable[..., object], option: str, value: object, expected: str
) -> None:
    with pytest.raises(OptionError) as refused:
        make(**{option: value})
    assert str(refused.value) == f"{option} is {value!r}; it must be {expected}"


@pytest.mark.parametrize(
    ("make", "option", "value", "expected"),
    [
        (kafka_source, "starting", {}, "offsets by (topic, partition)"),
        (kafka_source, "starting", {("t", -1): 0}, "offsets by (topic, partition)"),
        (kafka_source, "starting", {("t", 0): 5, ("u", 0): 5}, "'u' is none"),
        (kafka_source, "discovery_interval_s", 5.0, "set with `bounded=False` only"),
        (sqlite, "path", ":memory:", "that of a file"),
        (sqlite, "path", "file:x.db?mode=ro", "that of a file"),
        (sqlite, "path", "", "that of a file"),
        (table, "table", "sales.", "with its schema before a dot or without"),
        (table, "table", ".orders", "with its schema before a dot or without"),
        (sink, "schema", pa.schema([("a", pa.struct([]))]), "of types that Parquet has"),
        (Security, "ssl_keyfile", "key.pem", "SSL or SASL_SSL if ssl_keyfile is set"),
        (Security, "ssl_check_hostname", "no", "SSL or SASL_SSL if ssl_check_hostname is set"),
        (Security, "sasl_username", "me", "SASL_PLAINTEXT or SASL_SSL if sasl_username is set"),
        (
            partial(Security, protocol="SSL"),
            "sasl_mechanism",
            "PLAIN",
            "SASL_PLAINTEXT or SASL_SSL if",
        ),
        (
            partial(Security, protocol="SSL"),
            "ssl_keyfile",
            "key.pem",
            "set together with ssl_keyfile",
        ),
    ],
)
def test_a_value_that_does_nothing_or_cannot_be_meant_is_refused(
    make: Callable[..., object], option: str, value: object, expected: str
) -> None:
    with pytest.raises(OptionError) as refused:
        make(**{option: value})
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("make", "option", "value"),
    [
        (table, "where", "postgresql://me:s3cret@db/shop"),
        (table, "where", "host=db password=s3cret"),
        (Security, "sasl_password", b"s3cret"),
    ],
)
def test_a_secret_is_refused_and_not_shown(
    make: Callable[..., object], option: str, value: object
) -> None:
    with pytest.raises(OptionError) as refused:
        make(**{option: value})
    assert refused.value.args[0] == option
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "options", "problems"),
    [
        (file_source, {"batch_rows": "1", "watch": False}, ["batch_rows is '1'", "watch is False"]),
        (
            file_source,
            {"batch_rows": 0, "encoding": "latin-99"},
            ["batch_rows is 0", "encoding is 'l"],
        ),
        (kafka_source, {"batch_rows": 0, "pattern": "("}, ["topics is", "batch_rows is 0"]),
        (
            kafka_log,
            {"replication": 0, "retention_ms": -2},
            ["replication is 0", "retention_ms is"],
        ),
        (endpoint, {"host": 5, "tls": "yes"}, ["endpoint_host is 5", "endpoint_tls is 'yes'"]),
        (endpoint, {"bind": "a b", "ports": "0"}, ["endpoint_bind is 'a b'", "endpoint_ports is"]),
        (reads, {"job_id": 1, "partitions": 2.5}, ["job_id is 1", "partitions is 2.5"]),
        (batches, {"job_id": 1, "take_over": 0}, ["job_id is 1", "take_over is 0"]),
        (sink, {"roll_rows": 0, "partition_by": ["."]}, ["roll_rows is 0", "partition_by is '.'"]),
        (
            job,
            {"job_id": "A", "parallelism": 0, "checkpoint_interval_s": 0, "payload_limit_bytes": 1},
            [
                "job_id is 'A'",
                "parallelism is 0",
                "checkpoint_interval_s is 0",
                "payload_limit_bytes is",
            ],
        ),
        (
            timeouts,
            {"stop_timeout_s": -1, "checkpoint_timeout_s": 0.05},
            ["checkpoint_timeout_s is 0.05", "stop_timeout_s is -1"],
        ),
        (
            restart_policy,
            {"restarts_max": -1, "restart_window_s": 0},
            ["restarts_max is -1", "restart_window_s is 0"],
        ),
    ],
)
def test_all_that_is_wrong_is_said_together(
    make: Callable[..., object], options: dict[str, object], problems: list[str]
) -> None:
    with pytest.raises(OptionsError) as refused:
        make(**options)
    assert len(refused.value.problems) == len(problems)
    for said, expected in zip(refused.value.problems, problems, strict=True):
        assert said.startswith(expected)


@pytest.mark.parametrize(
    ("make", "option", "value", "bounds"),
    [
        (reads, "log_timeout_s", float("nan"), "between 1 and 86,400"),
        (reads, "listing_timeout_s", float("inf"), "between 0 and 86,400"),
        (reads, "snapshot_every", 0, "between 1 and 10,000,000"),
        (batches, "log_timeout_s", -1, "between 1 and 86,400"),
        (writes, "log_timeout_s", 0, "between 1 and 86,400"),
        (timeouts, "log_timeout_s", float("nan"), "between 1 and 86,400 seconds"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_bounds(
    make: Callable[..., object], option: str, value: float, bounds: str
) -> None:
    with pytest.raises(OptionError) as refused:
        make(**{option: value})
    assert str(refused.value) == f"{option} is {value!r}; it must be {bounds}"


def test_a_log_is_held_to_its_type_without_asking_its_broker() -> None:
    class Unreachable(MemoryLog):
        @property
        def identity(self) -> LogIdentity:
            raise AssertionError("the broker was asked")

    assert job(log=Unreachable())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("parquet", {"csv": CsvOptions(delimiter=";")}),
        ("parquet", {"encoding": "latin-1"}),
        ("parquet", {"block_bytes": 100}),
        ("jsonl", {"csv": CsvOptions(quote=None)}),
        ("jsonl", {"csv": CsvOptions(escape="!")}),
        ("jsonl", {"csv": CsvOptions(column_names=["a"])}),
        ("jsonl", {"csv": CsvOptions(null_values=["NA"])}),
        ("text", {"csv": CsvOptions(no_newlines_in_fields=True)}),
        ("text", {"schema": "a int"}),
    ],
)
def test_an_option_that_does_nothing_for_the_format_is_refused(
    name: str, options: dict[str, object]
) -> None:
    (option,) = options

    with pytest.raises(OptionError, match=f"{option} is .* left out with format='{name}'"):
        file_source(format=name, **options)


def test_an_option_at_its_default_is_taken_for_every_format() -> None:
    for name in ("csv", "jsonl", "parquet", "text"):
        assert file_source(
            format=name, csv=CsvOptions(delimiter=",", quote='"'), encoding="utf-8", schema=None
        )


def test_what_is_right_is_taken(tmp_path: Path) -> None:
    file_source(csv=CsvOptions(null_values=("NA",)), storage_options={"anon": "true"})
    watch(watch_interval_s=1, idle_timeout_s=None)
    kafka_source(topics=["t", "u"], starting={("t", 0): 5})
    sink(partition_by=[], roll_seconds=1)
    kafka_log(connect_timeout_s=5, replication=None)
    job_log(topic_prefix="a.")
    endpoint(host="driver-7", ports="40000-40099", tls="on")
    reads(abandoned=("stream",), endpoint=EndpointOptions(), log_timeout_s=5)
    batches(sink={"a": ParquetSink("out")}, function=lambda frame, _batch_id: frame)
    writes(instead_of="older")
    kafka_source(bounded=False, discovery_interval_s=5, starting={("t", 0): 5})
    batches(sink={"a": DeltaSink(tmp_path)})
    hooks = Callbacks(on_restored=lambda _restored: None)
    job(operators=None, checkpoint_interval_s=1, callbacks=hooks, start=Start(again=True))
    FileSource(tmp_path)


# --- a schema, however it is given ------------------------------------------------------------------------------------
WANTED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("the name", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("by", pa.map_(pa.string(), pa.struct([("n", pa.int32()), ("d", pa.date32())]))),
    ]
)
DDL = (
    "id BIGINT, `the name` string NOT NULL COMMENT 'it''s', at timestamp, price decimal(12, 2),"
    " tags array<string>, by: map<string, struct<n: int, d: date>>"
).replace("it''s", "a name")


@pytest.mark.parametrize(
    "kind", [pa.map_(pa.string(), pa.int8()), pa.list_view(pa.int8()), pa.bool8()], ids=str
)
def test_types_that_json_has_not_are_refused_at_once(kind: pa.DataType) -> None:
    for make, option in (
        (partial(file_source, format="jsonl"), "schema"),
        (partial(kafka_source, decode="json"), "value_schema"),
    ):
        with pytest.raises(OptionError, match=f"{option} is .* of types that "):
            make(**{option: pa.schema([("a", kind)])})


def test_a_ddl_string_is_a_schema() -> None:
    assert arrow_schema_of("schema", DDL) == WANTED
    assert arrow_schema_of("schema", WANTED) is WANTED
    assert arrow_schema_of("schema", None) is None


def test_a_struct_type_is_a_schema() -> None:
    given = StructType(
        [
            StructField("id", LongType()),
            StructField("n", IntegerType(), nullable=False),
            StructField("s", StringType()),
            StructField("at", TimestampType()),
        ]
    )
    expected = arrow_schema_of("schema", "id bigint, n int NOT NULL, s string, at timestamp")
    assert arrow_schema_of("schema", given) == expected


@pytest.mark.parametrize("make", [partial(file_source, format="parquet"), sink], ids=["in", "out"])
def test_sources_and_sinks_take_each_form(make: Callable[..., object]) -> None:
    for schema in (DDL, WANTED, StructType([StructField("id", LongType())])):
        make(schema=schema)
    kafka_source(decode="json", value_schema="id bigint")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("", "it ends, and a name is expected"),
        ("id", "it ends, and a type is expected"),
        ("id bigint, …", "it cannot be read at '…'"),
        ("id number", "'number' is no type"),
        ("id bigint name string", "',' is expected, and 'name' is there"),
        ("id bigint, id string", "a column is listed twice in id, id"),
        ("a array<int", "it ends, and '>' is expected"),
        ("a decimal(99, 2)", "precision"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "nested more than 32 deep"),
        (["id"], "it must be a pyarrow schema, a StructType of Spark, or a DDL string"),
        (pa.schema([]), "at least one column"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "each named once"),
        ("a array<int>", "column 'a': CSV has no list<item: int32>; read it as a text"),
        (pa.schema([("a", pa.string_view())]), "CSV has no string_view"),
        (pa.schema([("a", pa.month_day_nano_interval())]), "CSV has no month_day_nano_interval"),
    ],
)
def test_what_is_no_schema_is_refused_at_once(schema: Any, why: str) -> None:  # noqa: ANN401, wrong ones
    with pytest.raises(CoordlogError) as refused:
        FileSource("in", schema=schema)
    assert why in str(refused.value)
    assert str(refused.value).startswith("schema is ")
