"""Jobs on one session: several at once, and what a transform may do to its worker."""

from __future__ import annotations

import os
import re
import resource
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from coordlog.errors import EnvironmentSetupError, JobFailedError
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.interface import Log
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import FileSource, Job, ParquetSink
from coordlog.spark_integration.job_options import Callbacks, RestartPolicy, Timeouts
from coordlog.spark_integration.transform import TransformFunction
from jobs.kafka_session import shared_session
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS = 6, 40
ALL_ROWS = list(range(FILES * ROWS))
WAIT_S = 120.0


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        rows = range(number * ROWS, (number + 1) * ROWS)
        text = "a\n" + "".join(f"{row}\n" for row in rows)
        (tmp_path / "in" / f"{number}.csv").write_text(text, encoding="utf-8")
    return tmp_path


def job_on(
    folder: Path,
    log: Log,
    transform: TransformFunction,
    *,
    job_id: str = "job",
    parallelism: int = 2,
    batch: bool = False,
    call_timeout_s: float = 60.0,
    on_released: Callable[[Sequence[Record]], None] | None = None,
) -> Job:
    return Job(
        job_id=job_id,
        log=log,
        source=FileSource(folder / "in", batch_rows=10),
        transform=transform,
        sink=ParquetSink(folder / f"out-{job_id}"),
        parallelism=parallelism,
        batch=batch,
        checkpoint_interval_s=0.3,
        restart_policy=RestartPolicy(restarts_max=1),
        timeouts=Timeouts(call_timeout_s=call_timeout_s),
        callbacks=Callbacks(on_released=on_released),
    )


# Made inside a function each: so they travel whole, and no worker has to find this module.
def gated(gate: Path) -> TransformFunction:
    """Works once the file `gate` is there."""
    path, limit_s = str(gate), WAIT_S

    def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        end_s = time.monotonic() + limit_s
        while not os.path.exists(path) and time.monotonic() < end_s:  # noqa: PTH110, in a worker
            time.sleep(0.02)
        return batch

    return waits


@pytest.fixture
def logs(broker: EmbeddedBroker) -> Iterator[dict[str, KafkaLog]]:
    """Three logs on one broker, by job id."""
    found = {}
    for name in ("first", "second", "third"):
        job_id = f"{name}-{secrets.token_hex(4)}"
        found[job_id] = KafkaLog.for_job(job_id, broker.bootstrap_servers)
        found[job_id].create()
    yield found
    for log in found.values():
        log.close()


@pytest.mark.kafka
def test_two_jobs_share_session_and_broker_and_a_third_is_refused(
    session: SparkSession,
    folder: Path,
    logs: dict[str, KafkaLog],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordlog.spark_integration.driver.stage.SLOTS_TIMEOUT_S", 2.0)
    first, second, third_id = logs
    gate = folder / "gate"
    working: dict[str, set[int]] = {first: set(), second: set()}
    both = threading.Event()

    def look(name: str) -> Callable[[Sequence[Record]], None]:
        def see(records: Sequence[Record]) -> None:
            for one in records:
                if one.kind is Kind.ATTEMPT_STARTED and one.subtask is not None:
                    working[name].add(one.subtask)
            if all(len(seen) == 3 for seen in working.values()):
                both.set()

        return see

    jobs = {
        name: job_on(
            folder, logs[name], gated(gate), job_id=name, parallelism=3, on_released=look(name)
        )
        for name in working
    }
    try:
        for job in jobs.values():
            job.start(session)
        assert both.wait(WAIT_S)
        third = job_on(folder, logs[third_id], gated(gate), job_id=third_id, parallelism=3)
        with pytest.raises(EnvironmentSetupError, match=r"3 subtasks.*has 8, of which 6 are taken"):
            third.start(session)
        assert logs[third_id].high_watermark() == 0
    finally:
        gate.touch()
        results = [job.wait(WAIT_S) for job in jobs.values()]

    assert [one and one.status for one in results] == [JobStatus.FINISHED] * 2
    for name in jobs:
        written = pq.read_table(folder / f"out-{name}").column("a").to_pylist()
        assert sorted(written) == ALL_ROWS


@pytest.mark.kafka
def test_jobs_started_one_behind_the_other_do_not_take_the_same_slots(
    session: SparkSession,
    folder: Path,
    logs: dict[str, KafkaLog],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark knows a job's tasks seconds after its start: the second one was let in, and got no slots for good."""
    monkeypatch.setattr("coordlog.spark_integration.driver.stage.SLOTS_TIMEOUT_S", 2.0)
    first, second, _ = logs
    gate = folder / "gate"

    def job(name: str) -> Job:
        return job_on(folder, logs[name], gated(gate), job_id=name, parallelism=5)

    running = job(first)
    running.start(session)
    try:
        with pytest.raises(EnvironmentSetupError, match=r"5 subtasks.*has 8, of which 5 are taken"):
            job(second).start(session)
        assert logs[second].high_watermark() == 0
    finally:
        gate.touch()
        result = running.wait(WAIT_S)

    assert result is not None
    assert result.status is JobStatus.FINISHED
    assert job(second).run(session).status is JobStatus.FINISHED


def endless() -> TransformFunction:
    def never(batch: pa.RecordBatch) -> pa.RecordBatch:
        while batch.num_rows:
            time.sleep(0.05)
        return batch

    return never


@pytest.mark.kill
@pytest.mark.parametrize("batch", [False, True], ids=["streaming", "batch"])
def test_a_hanging_transform_is_named_with_its_seconds_and_stack(
    session: SparkSession, folder: Path, *, batch: bool
) -> None:
    job = job_on(folder, MemoryLog("job"), endless(), batch=batch, call_timeout_s=1.0)

    with pytest.raises(JobFailedError, match=r"'transform'.*has not returned for \d+ s") as caught:
        job.run(session)

    assert "call_timeout_s" in str(caught.value)
    assert "in never" in caught.value.reasons[0], "the stack says where it is"
    assert session.sparkContext.statusTracker().getActiveJobsIds() == []


def limited() -> TransformFunction:
    """Wants more than a limit as Spark's `spark.executor.pyspark.memory` sets it."""

    def eats_all_memory(batch: pa.RecordBatch) -> pa.RecordBatch:
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, before[1]))
        try:
            return bytearray(8 << 30) and batch
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    return eats_all_memory


def test_an_allocation_that_is_refused_is_named_with_split_and_number(
    session: SparkSession, folder: Path
) -> None:
    with pytest.raises(JobFailedError, match=r"MemoryError \(no memory is left") as why:
        job_on(folder, MemoryLog("job"), limited()).run(session)

    assert re.search(r"which read split '.*\.csv': process of operator 'transform'", str(why.value))
    assert re.search(r"has used up to \d{2,} MiB", str(why.value))
    assert "fewer rows at once with `batch_rows`" in str(why.value)


def hungry() -> TransformFunction:
    def eats_all_memory(batch: pa.RecordBatch) -> pa.RecordBatch:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory has run out
        return batch

    return eats_all_memory


@pytest.mark.kill
def test_a_worker_killed_by_the_kernel_is_named_with_its_signal(
    session: SparkSession, folder: Path
) -> None:
    with pytest.raises(JobFailedError, match=r"killed by signal 9.*dmesg"):
        job_on(folder, MemoryLog("job"), hungry()).run(session)
