"""Payloads of several megabytes through a `Job` with real tasks and a real broker, and a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coordlog.log.broker.embedded import embedded_broker
from coordlog.log.kafka import KafkaLog
from coordlog.log.payload_store import PayloadStore
from coordlog.runtime.driver import JobStatus
from coordlog.spark_integration import Job
from fakes.payload_chain import MODEL, Heard, digest, links
from jobs.kafka_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

WAIT_S = 120.0


def job_on(log: KafkaLog, heard: Heard) -> Job:
    return Job(
        job_id=log.topic.removesuffix(".log"),
        log=log,
        operators=links(heard),
        parallelism=1,
        checkpoint_interval_s=0.2,
    )


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


@pytest.fixture
def log() -> Iterator[KafkaLog]:
    with embedded_broker() as broker:
        log = KafkaLog.for_job("payloads", broker.bootstrap_servers, fsync=False)
        with closing(log):
            log.create()
            yield log


def test_megabytes_both_ways_survive_a_checkpoint_and_a_restart(
    session: SparkSession, log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    first = Heard()
    job = job_on(log, first)
    job.start(session)
    try:
        assert first.completed.wait(WAIT_S), "a checkpoint with the model in it"
    finally:
        job.stop(with_checkpoint=True)
    result = job.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED
    (report,) = first.reports
    assert (report.restored, report.got, report.bulk) == ("", digest(MODEL), MODEL[::-1])
    stored = list(log.read(0, log.high_watermark()))
    assert max(len(one.value or b"") for one in stored) < 10_000
    kept = PayloadStore(str(tmp_path / "payloads"), job.job_id).listed()
    assert len(kept) == 4, (
        "the event each way, the state, the coordinator's; again each is the same"
    )

    second = Heard()
    again = job_on(log, second)
    again.start(session)
    try:
        assert second.completed.wait(WAIT_S)
    finally:
        again.stop(with_checkpoint=False)
    again.wait(WAIT_S)
    assert second.restored == [MODEL + b"of the coordinator"]
    assert [one.restored for one in second.reports] == [digest(MODEL)]
