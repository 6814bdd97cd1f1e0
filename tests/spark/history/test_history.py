"""A history read by Spark's own Kafka source, and the same tables in SQL and in Python."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from coordlog.errors import RecordError
from coordlog.log.broker.embedded import embedded_broker
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.projections.tables.audit import Audit, audit, audit_records
from coordlog.schemas.builtin_types import SplitFinished
from coordlog.schemas.header import decode_header
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import AddSplits
from coordlog.spark_integration.history_frames.frames import create_views, history, history_stream
from driven_history import RECORDED_JOB, recorded_history
from histories.hand_history import HandHistory, batch_history, skipping_history, streaming_history
from jobs.kafka_session import spark_with_kafka

from .history_docs import PAGE, printed, queries

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kafka_source,
    pytest.mark.slow,
]

ALERT = Path(__file__).parents[3] / "examples" / "alert.py"
EXAMPLE = Path(__file__).parents[3] / "examples" / "history.py"

__all__ = ["spark_with_kafka"]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with embedded_broker() as broker:
        yield broker.bootstrap_servers


def store(servers: str, job_id: str, records: Sequence[UnstoredRecord]) -> KafkaLog:
    """The records as a topic; what has no header of ours goes there as another program would."""
    log = KafkaLog.for_job(job_id, servers)
    log.create()
    append(servers, log, records)
    return log


def append(servers: str, log: KafkaLog, records: Sequence[UnstoredRecord]) -> None:
    """The records, in the way that each of them comes."""
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


def records_of(case: str, job_id: str) -> Sequence[UnstoredRecord]:
    """A history by hand, or one that the real driver has written."""
    if case == "streaming":
        return streaming_history(job_id).records
    if case == "skipping":
        return skipping_history(job_id).records
    if case == "recorded":
        return recorded_history()
    return batch_history(job_id).records


@pytest.fixture(scope="module", params=["streaming", "batch", "skipping", "recorded"])
def case(
    request: pytest.FixtureRequest,
    servers: str,
    spark_with_kafka: SparkSession,
) -> Iterator[tuple[SparkSession, KafkaLog, Audit]]:
    """The views of a history, its log, and the tables that Python makes of it."""
    job_id = f"{request.param}-{os.getpid()}"
    log = store(servers, job_id, records_of(request.param, job_id))
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
                assert in_sql["status"] == expected.value
            elif name == "resets":
                assert tuple(in_sql["resets"]) == expected
            else:
                assert in_sql[name] == expected, name


def test_what_was_thrown_away_in_sql_is_that_of_the_projection(case: Case) -> None:
    spark, _, found = case
    rows = spark.sql(
        "SELECT operator_id, split_id, subtask, attempt_number, checkpoint_id, sequence, is_whole, "
        "was_finished, reason, reread_subtask, reread_attempt_number FROM thrown_away "
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
    rows = spark.sql(
        "SELECT operator_id, split_id, place, unix_micros(discovered_at), assignment_count, "
        "transform(assignments, a -> a.sequence), finished_subtask, finished_attempt_number, rows, "
        "checkpoint_id, unix_micros(committed_at), skipped_because, thrown_away_count, "
        "thrown_away_whole_count, thrown_away.reason FROM splits ORDER BY operator_id, split_id"
    ).collect()

    assert [tuple(row) for row in rows] == [
        (
            *(one.operator_id, one.split_id, one.place.value, one.discovered_us),
            *(len(one.assignments), [given.sequence for given in one.assignments]),
            *(one.finished_by or (None, None)),
            *(one.rows, one.checkpoint_id, one.committed_us, one.skipped_because),
            len(one.thrown_away),
            sum(thrown.is_whole for thrown in one.thrown_away),
            [thrown.reason for thrown in one.thrown_away],
        )
        for one in found.splits
    ]


def test_the_checkpoints_in_sql_are_those_of_the_projection(case: Case) -> None:
    spark, _, found = case
    rows = spark.sql(
        "SELECT checkpoint_id, epoch, status, unix_micros(triggered_at), unix_micros(cut_at), "
        "duration_ms, ack_count, state_bytes, reason, missing_coordinators, missing_subtasks, "
        "transform(acks, s -> struct(s.subtask, s.attempt_number, unix_micros(s.acked_at), "
        "s.snapshot_bytes)) FROM checkpoints ORDER BY checkpoint_id"
    ).collect()

    assert [tuple(row) for row in rows] == [
        (
            *(one.checkpoint_id, one.epoch, one.status.value, one.triggered_us, one.cut_us),
            *(one.milliseconds, one.acks, one.state_bytes, one.reason),
            *(list(one.missing_coordinators), list(one.missing_subtasks)),
            [
                (ack.subtask, ack.attempt_number, ack.acked_us, ack.snapshot_bytes)
                for ack in one.acked
            ],
        )
        for one in found.checkpoints
    ]


ROWS = "CAST(get_json_object(payload_json, '$.rows') AS BIGINT)"
TOTALS = {
    "attempts": (
        (
            "count(*), sum(events_up), sum(events_down), sum(events_acked), sum(checkpoints_acked), "
            "sum(splits_finished), sum(rows), sum(splits_assigned)"
        ),
        (
            "count_if(kind = 'ATTEMPT_STARTED'), count_if(kind = 'EVENT_TO_COORDINATOR'), "
            "count_if(kind = 'EVENT_TO_SUBTASK'), count_if(kind = 'EVENT_ACKED'), "
            "count_if(kind = 'CHECKPOINT_ACKED'), count_if(kind = 'SPLIT_FINISHED'), "
            f"coalesce(sum(IF(kind = 'SPLIT_FINISHED', {ROWS}, 0)), 0), "
            "sum(IF(payload_type LIKE 'coordlog.add_splits@%' AND kind = 'EVENT_TO_SUBTASK', "
            "json_array_length(get_json_object(payload_json, '$.splits')), 0))"
        ),
    ),
    "checkpoints": (
        (
            "count(*), coalesce(sum(ack_count), 0), count_if(ended_at IS NOT NULL), "
            "coalesce(sum(state_bytes), 0)"
        ),
        (
            "count_if(kind = 'CHECKPOINT_TRIGGERED'), count_if(kind = 'CHECKPOINT_ACKED'), "
            "count_if(kind IN ('CHECKPOINT_COMPLETED', 'CHECKPOINT_ABORTED')), coalesce(sum(IF("
            "kind IN ('COORDINATOR_CHECKPOINTED', 'CHECKPOINT_ACKED'), length(payload), 0)), 0)"
        ),
    ),
    "events": (
        (
            "count_if(direction = 'down'), count_if(status = 'acked'), count_if(direction = 'up'), "
            "coalesce(round(sum(latency_ms) * 1000), 0)"
        ),
        (
            "count_if(kind = 'EVENT_TO_SUBTASK'), count_if(kind = 'EVENT_ACKED'), "
            "count_if(kind IN ('EVENT_TO_COORDINATOR', 'EVENT_REDELIVERED')), "
            "sum(IF(kind = 'EVENT_ACKED', unix_micros(timestamp) - "
            "sent[event_id], 0))"
        ),
    ),
    "commits": (
        "count(*), count_if(status = 'settled'), coalesce(sum(intent_bytes), 0)",
        (
            "count_if(kind = 'COMMIT_INTENT'), "
            "count_if(kind = 'COMMIT_OUTCOME' AND attributes['settled'] = 'true'), "
            "coalesce(sum(IF(kind = 'COMMIT_INTENT', length(payload), 0)), 0)"
        ),
    ),
    "failures": (
        "count_if(scope = 'attempt'), count_if(scope = 'global'), count_if(scope = 'job')",
        (
            "count_if(kind = 'ATTEMPT_FAILED'), count_if(kind = 'GLOBAL_FAILURE'), "
            "count_if(kind = 'JOB_FAILED')"
        ),
    ),
    "epochs": (
        "count(*), sum(record_count), sum(attempts_started), sum(checkpoints_completed)",
        (
            "count_if(kind = 'EPOCH_STARTED'), count(*), count_if(kind = 'ATTEMPT_STARTED'), "
            "count_if(kind = 'CHECKPOINT_COMPLETED')"
        ),
    ),
    "splits": (
        "sum(assignment_count), count_if(discovered_at IS NOT NULL), coalesce(sum(thrown_away_count), 0)",
        (
            "sum(IF(payload_type LIKE 'coordlog.add_splits@%' AND kind = 'EVENT_TO_SUBTASK', "
            "json_array_length(get_json_object(payload_json, '$.splits')), 0)), "
            "sum(IF(payload_type LIKE 'coordlog.splits_discovered@%' AND kind = 'FACT', "
            "json_array_length(get_json_object(payload_json, '$.splits')), 0)), "
            "(SELECT count(*) FROM thrown_away)"
        ),
    ),
}
"""Of each view: its totals, and the same of the records that count, in SQL that knows of no fold."""


def test_every_views_totals_are_those_of_plain_sql_over_the_records(case: Case) -> None:
    spark, _, _ = case
    counted = "(SELECT * FROM history WHERE counts)"
    sent = (
        "(SELECT map_from_entries(collect_list(struct(event_id, unix_micros(timestamp)))) "
        f"FROM {counted} WHERE kind = 'EVENT_TO_SUBTASK')"
    )
    of_views = ", ".join(
        f"(SELECT struct({aggregates}) FROM {view}) AS {view}"
        for view, (aggregates, _) in TOTALS.items()
    )
    of_records = ", ".join(
        f"struct({aggregates}) AS {view}" for view, (_, aggregates) in TOTALS.items()
    )
    (in_views,) = spark.sql(f"SELECT {of_views}").collect()
    source = f"{counted} CROSS JOIN (SELECT {sent} AS sent)"
    (in_records,) = spark.sql(f"SELECT {of_records} FROM {source}").collect()
    for view in TOTALS:
        assert tuple(in_views[view]) == tuple(in_records[view]), view


def test_failures_commits_and_epochs_in_sql_are_those_of_the_projection(case: Case) -> None:
    spark, _, found = case
    failures = spark.sql(
        "SELECT sequence, scope, subtask, attempt_number, reason, reset_to, is_with_job, restart_ms "
        "FROM failures ORDER BY sequence"
    )
    assert [tuple(row) for row in failures.collect()] == [
        (
            *(one.sequence, one.scope.value, one.subtask, one.attempt_number, one.reason),
            *(one.reset_to, one.is_with_job, one.milliseconds),
        )
        for one in found.failures
    ]
    commits = spark.sql(
        "SELECT sequence, checkpoint_id, epoch, settled_epoch, status, failed_tries, duration_ms "
        "FROM commits ORDER BY sequence"
    )
    assert [tuple(row) for row in commits.collect()] == [
        (
            *(one.sequence, one.checkpoint_id, one.epoch, one.settled_epoch, one.status.value),
            *(one.failed_tries, one.milliseconds),
        )
        for one in found.commits
    ]
    epochs = spark.sql(
        "SELECT epoch, driver_id, parallelism, status, restored_by, restored_from, record_count "
        "FROM epochs ORDER BY epoch"
    )
    assert [tuple(row) for row in epochs.collect()] == [
        (
            *(one.epoch, one.driver_id, one.parallelism, one.end.value, one.restored_by),
            *(one.restored_from, one.record_count),
        )
        for one in found.epochs
    ]


@pytest.mark.parametrize("name", ["streaming", "recorded"])
def test_a_stream_in_several_batches_and_after_a_restart_equals_the_batch(
    name: str, servers: str, spark_with_kafka: SparkSession, tmp_path: Path
) -> None:
    job_id = f"streamed-{name}-{os.getpid()}"
    records = records_of(name, job_id)
    cut = next(n for n in range(len(records) // 2, len(records)) if _is_inside_a_turn(records, n))
    log = store(servers, job_id, records[:cut])
    spark = spark_with_kafka.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", "1")

    def run() -> None:
        stream = history_stream(
            spark,
            job_id,
            bootstrap_servers=servers,
            kafka_options={"maxOffsetsPerTrigger": str(len(records) // 4 + 1)},
            payloads={"finished": SplitFinished, "added": payload_type_of(AddSplits).key},
        )
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(150)
        assert len(query.recentProgress) >= 2

    run()
    offset = "SELECT count(*), max(offset) FROM parquet.`{}`".format(tmp_path / "rows")
    count, last = spark.sql(offset).collect()[0]
    assert count == last + 1 < cut, "what is undecided waits"
    append(servers, log, records[cut:])
    run()

    rows = spark.read.parquet(str(tmp_path / "rows"))
    whole = history(
        spark,
        job_id,
        bootstrap_servers=servers,
        payloads={"finished": SplitFinished, "added": payload_type_of(AddSplits).key},
    )
    assert rows.columns == whole.columns
    assert rows.orderBy("offset").collect() == whole.orderBy("offset").collect()
    assert rows.where("finished.rows > 0").count() == rows.where("kind = 'SPLIT_FINISHED'").count()
    assert rows.where("added.splits[0].split_id IS NOT NULL").count() > 0
    log.close()


def _is_inside_a_turn(records: Sequence[UnstoredRecord], place: int) -> bool:
    header = decode_header(records[place - 1].header or None)
    return header is not None and header.turn_remaining > 0


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


def test_a_counting_record_that_cannot_be_read_ends_the_tables_by_name(
    servers: str, spark_with_kafka: SparkSession
) -> None:
    job_id = f"damaged-{os.getpid()}"
    written = batch_history(job_id)
    good = written.records[3]
    written.records[3] = UnstoredRecord(
        key=good.key, value=b"\x01", header=good.header, timestamp_us=good.timestamp_us
    )
    store(servers, job_id, written.records).close()

    with pytest.raises(RecordError, match="record at offset 3: its value is damaged"):
        create_views(spark_with_kafka, job_id, bootstrap_servers=servers, prefix="damaged_")
    rows = history(spark_with_kafka, job_id, bootstrap_servers=servers)
    assert rows.where("kind IS NULL").select("offset").collect() == [(3,)]


def test_a_session_without_the_jars_is_told_the_line_to_add() -> None:
    program = (
        "from coordlog.errors import EnvironmentSetupError\n"
        "from coordlog.spark_integration import history, history_session, history_stream, local_session\n"
        "spark = local_session(1)\n"
        "for read in (history, history_stream):\n"
        "    try:\n"
        "        read(spark, 'a-job', bootstrap_servers='127.0.0.1:1')\n"
        "    except EnvironmentSetupError as error:\n"
        "        print(error)\n"
        "try:\n"
        "    history_session()\n"
        "except EnvironmentSetupError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200
    )

    assert done.stdout.count("this Spark session has no Kafka source on its class path") == 3
    assert done.stdout.count('.config("spark.jars", spark_jars())') == 3


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


@pytest.mark.tier("test")
def test_the_pages_queries_print_what_the_page_says(
    servers: str, spark_with_kafka: SparkSession
) -> None:
    store(servers, RECORDED_JOB, recorded_history()).close()
    create_views(spark_with_kafka, RECORDED_JOB, bootstrap_servers=servers)

    found = queries(PAGE.read_text(encoding="utf-8"))
    assert len(found) == 10
    for language, text, output in found:
        assert printed(spark_with_kafka, servers, language, text) == output, text


@pytest.mark.kill
def test_the_alert_example_tells_what_is_wrong_with_a_job_while_it_runs(servers: str) -> None:
    job_id = f"watched-{os.getpid()}"
    written = HandHistory(job_id)
    written.epoch()
    written.turn(written.started((0, 0), -1, 0), written.started((1, 0), -1, 1))
    written.turn(written.failed((1, 0), "long ago"), written.reset_subtask(1, -1))
    log = KafkaLog.for_job(job_id, servers)
    process = subprocess.Popen(
        [sys.executable, str(ALERT), job_id, servers, "--checkpoint-seconds", "1.5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    deadline = threading.Timer(200, process.kill)
    deadline.start()
    try:
        assert process.stdout is not None
        waits = f"waiting for job {job_id}: it has no log at {servers} yet\n"
        assert process.stdout.readline() == waits, "it may be started before its job"
        store(servers, job_id, written.records).close()
        assert process.stdout.readline() == f"watching {job_id}\n"
        for record in (
            written.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 1),
            written.failed((0, 0), "killed\nat line 3"),
        ):
            written.now_us = time.time_ns() // 1000
            before = len(written.records)
            written.turn(record)
            append(servers, log, written.records[before:])
        told = {process.stdout.readline() for _ in range(2)}
        late = next(one for one in told if "checkpoint" in one)
        assert late.startswith(f"ALERT {job_id}: checkpoint 1 runs since ")
        assert told - {late} == {f"ALERT {job_id}: attempt 0 of subtask 0 failed: killed\n"}
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()
        log.close()
