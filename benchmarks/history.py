"""A history read through Spark, beside Spark's plain Kafka read and `from_avro`.

    python -m benchmarks.history [--records 1000000] [--quick]

Both give every record with its envelope's fields as columns, to a sink that drops them. Ours also
says which records count and splits the key, and has Kafka's consumer take larger steps; a line of
its own gives the plain read the same steps. Another has payloads decoded to JSON, which the plain
read leaves as bytes; so its limit is a plain read with the shortest function that decodes them, which
knows their schemas beforehand and checks nothing.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.functions import arrow_udf
from rich.console import Console

from coordlog.log.broker.embedded import embedded_broker
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.schemas.codec import ENVELOPE_SCHEMA
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import history, history_session
from coordlog.spark_integration.history_frames.frames import CONSUMER_OPTIONS

from .command import output_option
from .measured.made_history import Order, Report
from .measured.records import encoded_record, epoch_started
from .results import Row, show, write

RESULTS = Path(__file__).parent / "history.json"

_JOB: Final = "bench"
_GROUP: Final = 2_000
_SUBTASKS: Final = 16
_TIME_US: Final = 1_700_000_000_000_000


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="How long the history is.")
@click.option("--rounds", default=5, show_default=True, help="How often each is measured.")
@click.option("--quick", is_flag=True, help="100,000 records, three rounds: less exact.")
@output_option(RESULTS)
def main(*, records: int, rounds: int, quick: bool, output: Path) -> None:
    """Measure both in one session, in interleaved rounds, after one that warms up."""
    if quick:
        records, rounds = 100_000, 3
    with embedded_broker() as broker:
        servers = broker.bootstrap_servers
        log = KafkaLog.for_job(f"bench-{uuid.uuid4().hex[:8]}", servers, fsync=False)
        log.create()
        end = _fill(log, records)
        # A session as anybody's is: ours saves on the JVM's start, at the cost of its speed.
        settings = {"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}
        spark = history_session(app_name="benchmark", settings=settings)
        try:
            rows = _measure(spark, log, servers, end, rounds)
        finally:
            spark.stop()
            log.close()
    console = Console(width=100)
    show(rows, console, f"a history of {end:,} records beside a plain Kafka read")
    write(rows, output, quick=quick)
    console.print(f"written to {output}")


def _measure(spark: SparkSession, log: KafkaLog, servers: str, end: int, rounds: int) -> list[Row]:
    job_id = log.topic.removesuffix(".log")

    def raw(settings: Mapping[str, str] | None = None) -> DataFrame:
        source = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
        source = source.options(**(settings or {}))
        decoded = from_avro("value", ENVELOPE_SCHEMA).alias("record")
        records = source.option("subscribe", log.topic).load().select("offset", "key", decoded)
        return records.select("offset", "key", "record.*")

    def raw_json() -> DataFrame:
        create_udf: Any = arrow_udf  # the stub has no overload for it
        texts = create_udf(_bare_texts, "string")("payload_type", "payload")
        return raw(CONSUMER_OPTIONS).withColumn("payload_json", texts)

    def ours() -> DataFrame:
        return history(spark, job_id, bootstrap_servers=servers).drop("payload_json")

    def with_json() -> DataFrame:
        return history(spark, job_id, bootstrap_servers=servers)

    sides: dict[str, Callable[[], DataFrame]] = {
        "raw": raw,
        "tuned": lambda: raw(CONSUMER_OPTIONS),
        "ours": ours,
        "json": with_json,
        "raw json": raw_json,
    }
    assert ours().where("counts").count() == end, "all of it counts"
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            frame = side()
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if number:
                figures[name].append(end / (time.perf_counter() - began))
    return _rows(figures)


def _rows(figures: Mapping[str, Sequence[float]]) -> list[Row]:
    plain = "Spark's Kafka source and from_avro"
    tuned = f"{plain}, with the consumer's settings that `history` gives it"
    decoding = f"{tuned}, fastavro and json in an arrow_udf"
    return [
        Row(
            name=name,
            unit="records/s",
            ours=tuple(figures[ours]),
            raw=tuple(figures[raw]),
            raw_is=raw_is,
            better="higher",
            target=target,
        )
        for name, ours, raw, raw_is, target in (
            ("history: counts, key, envelope", "ours", "raw", plain, 0.8),
            ("beside a plain read with our settings", "ours", "tuned", tuned, None),
            ("the same with payload_json", "json", "raw", plain, 0.8),
            ("payload_json beside the least that decodes it", "json", "raw json", decoding, None),
        )
    ]


_SCHEMAS: Final = {
    declared.key: fastavro.parse_schema(json.loads(declared.schema_json))
    for declared in map(payload_type_of, (Report, Order))
}


def _bare_texts(types: pa.Array, payloads: pa.Array) -> pa.Array:
    """Payloads as JSON; those of registrations are JSON already."""
    texts: list[str | None] = []
    for payload_type, payload in zip(types.to_pylist(), payloads.to_pylist(), strict=True):
        if payload is None or payload.startswith(b"{"):
            texts.append(None if payload is None else payload.decode())
        else:
            value = fastavro.schemaless_reader(io.BytesIO(payload), _SCHEMAS[payload_type], None)
            texts.append(json.dumps(value))
    return pa.array(texts, pa.string())


def _fill(log: KafkaLog, count: int) -> int:
    """At least so many records: events up, answers and their acks, a turn each. Returns how many."""
    writer = log.writer()
    writer.append([epoch_started(0)], timeout_s=30.0)
    waiting = [_registration(Report, 0), _registration(Order, 1)]
    sequence = len(waiting)
    while sequence < count:
        number = sequence
        waiting += [
            _record(Kind.EVENT_TO_COORDINATOR, sequence, Report(number=number, text="x" * 80), 1),
            _record(Kind.EVENT_TO_SUBTASK, sequence + 1, Order(number=number, text="x" * 80), 0),
            _record(Kind.EVENT_ACKED, sequence + 2, None, 0),
        ]
        sequence += 3
        if len(waiting) > _GROUP:
            writer.append(waiting, timeout_s=60.0)
            waiting = []
    if waiting:
        writer.append(waiting, timeout_s=60.0)
    writer.close(timeout_s=5.0)
    return sequence + 1


def _registration(declared: type[Payload], sequence: int) -> UnstoredRecord:
    made = payload_type_of(declared)
    return encoded_record(
        Record(
            epoch=0,
            driver_id="benchmark",
            sequence=sequence,
            kind=Kind.TYPE_REGISTERED,
            timestamp_us=_TIME_US,
            job_id=_JOB,
            payload_type=made.key,
            payload=made.schema_json.encode(),
        )
    )


def _record(kind: Kind, sequence: int, value: Payload | None, remaining: int) -> UnstoredRecord:
    return encoded_record(
        Record(
            epoch=0,
            driver_id="benchmark",
            sequence=sequence,
            turn_remaining=remaining,
            kind=kind,
            timestamp_us=_TIME_US + sequence,
            job_id=_JOB,
            operator_id="source",
            subtask=sequence % _SUBTASKS,
            attempt_number=0,
            event_id=sequence,
            payload_type=None if value is None else payload_type_of(value).key,
            payload=None if value is None else payload_type_of(value).encode(value),
        )
    )


if __name__ == "__main__":
    main()
