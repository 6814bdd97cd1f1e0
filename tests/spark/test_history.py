"""A history read by Spark's own Kafka source, and the same tables in SQL and in Python."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coordlog.log.embedded import embedded_broker
from coordlog.log.kafka import KafkaLog
from coordlog.log.port import UnstoredRecord
from coordlog.projections.audit import Audit, audit, audit_records
from coordlog.spark_integration.history import create_views, history
from driven_history import driven_log
from hand_history import HandHistory, batch_history, skipping_history, streaming_history

from .kafka_session import spark_with_kafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kafka_source,
    pytest.mark.slow,
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "history.py"

__all__ = ["spark_with_kafka"]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with embedded_broker() as broker:
        yield broker.bootstrap_servers


def store(servers: str, job_id: str, records: Sequence[UnstoredRecord]) -> KafkaLog:
    """The records as a topic; what has no header of ours goes there as another program would."""
    log = KafkaLog.for_job(job_id, servers)
    log.create()
    writer = log.writer()
    for is_ours, group in itertools.groupby(records, lambda one: bool(one.header)):
        if is_ours:
            writer.append(list(group), timeout_s=10.0)
            continue
        producer = KafkaProducer(bootstrap_servers=servers)
        for one in group:
            producer.send(log.topic, value=one.value, key=one.key).get(timeout=10)
        producer.close()
    writer.close(timeout_s=2.0)
    return log


def records_of(case: str, job_id: str, folder: Path) -> Sequence[UnstoredRecord]:
    """A history by hand, or one that the real driver has written."""
    if case == "streaming":
        return streaming_history(job_id).records
    if case == "skipping":
        return skipping_history(job_id).records
    if case == "batch":
        return batch_history(job_id).records
    return [
        UnstoredRecord(
            key=one.key or b"",
            value=one.value or b"",
            header=one.header_bytes or b"",
            timestamp_us=one.timestamp_ms * 1000,
        )
        for one in driven_log(folder, job_id, is_batch=case == "driven-batch").records
    ]


@pytest.fixture(
    scope="module", params=["streaming", "batch", "skipping", "driven-streaming", "driven-batch"]
)
def case(
    request: pytest.FixtureRequest,
    servers: str,
    spark_with_kafka: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[SparkSession, KafkaLog, Audit]]:
    """The views of a history, its log, and the tables that Python makes of it."""
    job_id = f"{request.param}-{os.getpid()}"
    log = store(servers, job_id, records_of(request.param, job_id, tmp_path_factory.mktemp("job")))
    create_views(spark_with_kafka, job_id, bootstrap_servers=servers)
    found = audit(log.read(log.start_offset(), log.high_watermark()))
    yield spark_with_kafka, log, found
    log.close()


Case = tuple[SparkSession, KafkaLog, Audit]


def test_every_record_counts_or_not_as_the_python_fold_says(case: Case) -> None:
    spark, log, _ = case
    rows = spark.sql("SELECT offset, void, kind, subtask, attributes FROM history ORDER BY offset")

    in_python = [
        (
            one.offset,
            one.why_not,
            None if one.record is None else one.record.kind.value,
            None if one.record is None else one.record.subtask,
            None if one.record is None else dict(one.record.attributes),
        )
        for one in audit_records(log.read(log.start_offset(), log.high_watermark()))
    ]

    assert [tuple(row) for row in rows.collect()] == in_python


def test_the_attempts_in_sql_are_those_of_the_projection(case: Case) -> None:
    spark, _, found = case
    rows = spark.sql(
        "SELECT *, unix_micros(started_at) AS started_us, unix_micros(ended_at) AS ended_us "
        "FROM attempts ORDER BY subtask, attempt_number"
    ).collect()

    assert len(rows) == len(found.attempts)
    for row, one in zip(rows, found.attempts, strict=True):
        in_sql = row.asDict()
        for name in one.__dataclass_fields__:
            expected = getattr(one, name)
            if name == "end":
                assert in_sql["ended"] == expected.value
            elif name == "resets":
                assert tuple(in_sql["resets"]) == expected
            else:
                assert in_sql[name] == expected, name


def test_what_was_thrown_away_in_sql_is_that_of_the_projection(case: Case) -> None:
    spark, _, found = case
    rows = spark.sql(
        "SELECT operator_id, split_id, subtask, attempt_number, checkpoint_id, sequence, is_whole, "
        "was_finished, reason, reread_subtask, reread_attempt FROM thrown_away "
        "ORDER BY operator_id, split_id, sequence"
    ).collect()

    assert [tuple(row) for row in rows] == [
        (
            *(one.operator_id, one.split_id, one.subtask, one.attempt_number, one.checkpoint_id),
            *(one.sequence, one.is_whole, one.was_finished, one.reason),
            *(one.reread_by or (None, None)),
        )
        for split in found.splits
        for one in split.thrown_away
    ]
    assert rows


def test_the_splits_in_sql_are_those_of_the_projection(case: Case) -> None:
    spark, _, found = case
    rows = spark.sql("SELECT * FROM splits ORDER BY operator_id, split_id").collect()

    assert [tuple(row) for row in rows] == [
        (
            *(one.operator_id, one.split_id, len(one.assignments)),
            *(one.finished_by or (None, None)),
            *(one.rows, one.skipped_because),
            len(one.thrown_away),
            sum(thrown.is_whole for thrown in one.thrown_away),
        )
        for one in found.splits
        if one.assignments or one.skipped_because is not None
    ]


def test_the_key_is_split_into_its_parts(case: Case) -> None:
    spark, _, _ = case
    wrong = spark.sql(
        "SELECT * FROM history WHERE counts AND NOT ("
        "(key_epoch = epoch AND key_subtask IS NULL AND key_attempt IS NULL) OR "
        "(key_subtask = subtask AND key_attempt = attempt_number AND key_epoch IS NULL))"
    )

    assert wrong.collect() == []


def test_views_made_again_show_what_has_come_since(
    servers: str, spark_with_kafka: SparkSession
) -> None:
    job_id = f"growing-{os.getpid()}"
    written = HandHistory(job_id)
    written.epoch()
    written.turn(written.started((0, 0), -1, 0))
    log = store(servers, job_id, written.records)
    create_views(spark_with_kafka, job_id, bootstrap_servers=servers, prefix="growing_")
    count = "SELECT count(*) FROM growing_attempts"
    assert spark_with_kafka.sql(count).collect()[0][0] == 1

    written.turn(written.started((1, 0), -1, 1))
    writer = log.writer()
    writer.append(written.records[-1:], timeout_s=10.0)
    writer.close(timeout_s=2.0)

    assert spark_with_kafka.sql(count).collect()[0][0] == 1
    create_views(spark_with_kafka, job_id, bootstrap_servers=servers, prefix="growing_")
    assert spark_with_kafka.sql(count).collect()[0][0] == 2
    log.close()


def test_a_log_without_records_is_a_history_without_rows(
    servers: str, spark_with_kafka: SparkSession
) -> None:
    job_id = f"empty-{os.getpid()}"
    store(servers, job_id, []).close()

    assert history(spark_with_kafka, job_id, bootstrap_servers=servers).collect() == []


def test_a_record_that_counts_and_cannot_be_read_ends_the_tables_and_is_named(
    servers: str, spark_with_kafka: SparkSession
) -> None:
    job_id = f"damaged-{os.getpid()}"
    written = batch_history(job_id)
    good = written.records[3]
    written.records[3] = UnstoredRecord(
        key=good.key, value=b"\x01", header=good.header, timestamp_us=good.timestamp_us
    )
    store(servers, job_id, written.records).close()

    with pytest.raises(PySparkException, match="the record at offset 3 counts and cannot be read"):
        create_views(spark_with_kafka, job_id, bootstrap_servers=servers, prefix="damaged_")
    rows = history(spark_with_kafka, job_id, bootstrap_servers=servers)
    assert rows.where("kind IS NULL").select("offset").collect() == [(3,)]


def test_a_session_without_the_jars_is_told_the_line_to_add() -> None:
    program = (
        "from coordlog.errors import EnvironmentSetupError\n"
        "from coordlog.spark_integration.history import history\n"
        "from coordlog.spark_integration.session import local_session\n"
        "try:\n"
        "    history(local_session(1), 'a-job', bootstrap_servers='127.0.0.1:1')\n"
        "except EnvironmentSetupError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200
    )

    assert "this Spark session has no Kafka source on its class path" in done.stdout
    assert '.config("spark.jars", spark_jars())' in done.stdout


def test_the_example_lists_the_attempts_without_our_package(
    servers: str, spark_with_kafka: SparkSession
) -> None:
    job_id = f"example-{os.getpid()}"
    log = store(servers, job_id, batch_history(job_id).records)
    found = audit(log.read(log.start_offset(), log.high_watermark()))
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), log.topic.removesuffix(".log"), servers],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )

    assert done.returncode == 0, done.stderr
    for one in found.attempts:
        assert any(
            line.replace("|", " ").split()[:2] == [str(one.subtask), str(one.attempt_number)]
            for line in done.stdout.splitlines()
        ), done.stdout
