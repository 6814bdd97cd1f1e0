"""`Job` on a real Spark session: rows exact over kills, stops and failures; nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from io import BytesIO
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from coordlog.errors import EnvironmentSetupError, JobFailedError
from coordlog.limits import RESTARTS_MAX
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.interface import Log
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import MemoryLog
from coordlog.restore.rebuild import Restored
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import FileSource, Job, ParquetSink
from coordlog.spark_integration.job_options import Callbacks, RestartPolicy
from coordlog.spark_integration.transform import TransformFunction
from jobs.kafka_session import shared_session
from jobs.left_threads import left_threads

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS, SUBTASKS = 20, 40, 3
ALL_ROWS = list(range(FILES * ROWS))
WAIT_S = 120.0


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        rows = range(number * ROWS, (number + 1) * ROWS)
        text = "a,b\n" + "".join(f"{row},x{row}\n" for row in rows)
        (tmp_path / "in" / f"{number:03}.csv").write_text(text)
    yield tmp_path
    assert left_threads() == []


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02)  # so that a kill falls in the middle; nothing waits for it
    return batch


def slowly_until(go_on: Path) -> TransformFunction:
    """Its second half waits for `go_on`, so that the job cannot end before."""

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[0].as_py() >= FILES * ROWS // 2:
            deadline = time.monotonic() + WAIT_S
            while not go_on.exists():
                assert time.monotonic() < deadline, "nobody says to go on"
                time.sleep(0.02)
            time.sleep(0.5)  # long enough for the stop and its checkpoint to come before the end
        return slowly(batch)

    return work


def raises(_batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ZeroDivisionError("no rows today")


def job_on(
    folder: Path,
    log: Log,
    *,
    batch: bool = False,
    transform: TransformFunction = slowly,
    parallelism: int = SUBTASKS,
    restarts_max: int = RESTARTS_MAX,
    on_released: Callable[[Sequence[Record]], None] | None = None,
    on_restored: Callable[[Restored], None] | None = None,
) -> Job:
    return Job(
        job_id="job",
        log=log,
        source=FileSource(folder / "in", batch_rows=10),
        transform=transform,
        sink=ParquetSink(folder / "out"),
        parallelism=parallelism,
        checkpoint_interval_s=0.2,
        batch=batch,
        restart_policy=RestartPolicy(restarts_max=restarts_max),
        callbacks=Callbacks(on_released=on_released, on_restored=on_restored),
    )


def committed(folder: Path) -> list[int]:
    return sorted(pq.read_table(folder / "out").column("a").to_pylist())


@pytest.mark.kill
@pytest.mark.parametrize("batch", [False, True], ids=["streaming", "batch"])
def test_a_worker_that_is_killed_loses_and_doubles_no_row(
    session: SparkSession, folder: Path, *, batch: bool
) -> None:
    pids: dict[int, int] = {}
    finished: list[Record] = []
    failed: list[Record] = []
    go_on = folder / "go on"

    def kill_once(records: Sequence[Record]) -> None:
        for record in records:
            if record.kind is Kind.ATTEMPT_STARTED and record.subtask is not None:
                pids[record.subtask] = int(record.attributes["pid"])
            if record.kind is Kind.ATTEMPT_FAILED:
                failed.append(record)
            if record.kind is Kind.SPLIT_FINISHED:
                finished.append(record)
        if len(finished) >= 6 and 1 in pids and not go_on.exists():
            os.kill(pids[1], signal.SIGKILL)
            go_on.touch()  # no subtask could finish before

    job = job_on(
        folder,
        MemoryLog("job"),
        batch=batch,
        transform=slowly_until(go_on),
        on_released=kill_once,
    )
    result = job.run(session)

    assert result.status is JobStatus.FINISHED
    assert [record.subtask for record in failed] == [1]
    assert committed(folder) == ALL_ROWS
    assert session.read.parquet(str(folder / "out")).count() == len(ALL_ROWS)


def test_more_subtasks_than_slots_are_refused_by_both_numbers(
    session: SparkSession, folder: Path
) -> None:
    log = MemoryLog("job")

    with pytest.raises(EnvironmentSetupError, match=r"99 subtasks.*has 8, of which"):
        job_on(folder, log, parallelism=99).run(session)

    assert log.high_watermark() == 0


@pytest.mark.clause("M3")
def test_a_transform_that_raises_fails_the_job_by_operator_and_cause(
    session: SparkSession, folder: Path
) -> None:
    job = job_on(folder, MemoryLog("job"), transform=raises, restarts_max=1)

    with pytest.raises(JobFailedError, match=r"'transform'.*ZeroDivisionError: no rows today"):
        job.run(session)

    assert session.sparkContext.statusTracker().getActiveJobsIds() == []


@pytest.mark.tier("test")
def test_a_job_that_was_stopped_goes_on_from_its_last_checkpoint(
    session: SparkSession, folder: Path
) -> None:
    log, restored = MemoryLog("job"), list[Restored]()
    is_under_way = threading.Event()

    def look(records: Sequence[Record]) -> None:
        if any(record.kind is Kind.SPLIT_FINISHED for record in records):
            is_under_way.set()

    go_on = folder / "go on"
    first = job_on(folder, log, transform=slowly_until(go_on), on_released=look)
    first.start(session)
    assert is_under_way.wait(WAIT_S)
    go_on.touch()  # `stop` waits for a checkpoint, which none acks who waits
    first.stop(with_checkpoint=True)
    stopped = first.wait(WAIT_S)
    assert stopped is not None
    at_stop = committed(folder)
    result = job_on(folder, log, on_restored=restored.append).run(session)

    assert stopped.status is JobStatus.STOPPED
    assert 0 < len(at_stop) < len(ALL_ROWS)
    assert restored[0].mode == "rollback"
    assert restored[0].checkpoint_id == stopped.last_checkpoint
    assert result.status is JobStatus.FINISHED
    assert committed(folder) == ALL_ROWS


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as one:
        yield one


@pytest.mark.kafka
def test_an_independent_reader_finds_an_attempts_records_under_its_key(
    session: SparkSession, folder: Path, own_broker: EmbeddedBroker
) -> None:
    """Plain kafka-python and fastavro, with the checked-in schema and nothing else of ours."""
    job_id = f"job-{uuid.uuid4().hex[:8]}"
    log = KafkaLog.for_job(job_id, own_broker.bootstrap_servers)
    log.create()
    Job(
        job_id=job_id,
        log=log,
        source=FileSource(folder / "in"),
        sink=ParquetSink(folder / "out"),
        parallelism=2,
        checkpoint_interval_s=0.3,
    ).run(session)
    log.close()
    text = (resources.files("coordlog.schemas") / "avro" / "record-v1.avsc").read_text()
    schema = fastavro.parse_schema(json.loads(text))

    consumer = KafkaConsumer(bootstrap_servers=own_broker.bootstrap_servers)
    partition = TopicPartition(f"{job_id}.log", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    end = consumer.end_offsets([partition])[partition]
    attempts, of_the_driver = 0, 0
    while (consumer.position(partition) or 0) < end:
        for stored in consumer.poll(timeout_ms=1000).get(partition, ()):
            value = fastavro.schemaless_reader(BytesIO(stored.value), schema, None)
            assert isinstance(value, dict)
            key = f"{job_id}/epoch/{value['epoch']}"
            if value["subtask"] is not None and value["attempt_number"] is not None:
                key = f"{job_id}/{value['subtask']}/{value['attempt_number']}"
                attempts += 1
            else:
                of_the_driver += 1
            assert stored.key.decode() == key
    consumer.close()

    assert attempts > 10
    assert of_the_driver > 5
