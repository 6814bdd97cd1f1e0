"""A real topic into which somebody else writes: all that reads it reads on, and its job goes on."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from kafka import KafkaProducer

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.interface import StoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.header import HEADER_NAME
from coordlog.schemas.record import Kind
from hostile.damage import damaged
from jobs.file_pipeline import ALL_ROWS, KilledError, Pipeline, at, kill_driver

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.tier("faults")]

STRANGERS = 300


def run(broker: EmbeddedBroker, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--bootstrap-servers", broker.bootstrap_servers])


def written(broker: EmbeddedBroker, topic: str, chance: random.Random, true: StoredRecord) -> None:
    """Records of a plain producer: noise, damaged ones of ours, and ours again; none of them counts."""
    header = true.header_bytes or b""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
    try:
        for _ in range(STRANGERS):
            noise, key = chance.randbytes(chance.randint(0, 200)), chance.choice((b"", b"k"))
            value = chance.choice(
                (None, b"", noise, true.value, damaged(chance, true.value or b""))
            )
            headers = chance.choice(
                (
                    [],
                    [(HEADER_NAME, noise)],
                    [(HEADER_NAME, header)],
                    [(HEADER_NAME, header)] * 3,
                    [("x" * 1000, noise)] * 20,
                )
            )
            producer.send(topic, value=value, key=key, headers=headers, partition=0)
        producer.flush()
    finally:
        producer.close()


def test_a_topic_full_of_strangers_records_is_read_and_its_job_goes_on(
    broker: EmbeddedBroker, tmp_path: Path, seed: int
) -> None:
    chance, pipeline = random.Random(seed), Pipeline(tmp_path, is_batch=False, transform=_same)
    pipeline.job_id = "among-strangers"
    with contextlib.closing(
        KafkaLog.for_job(pipeline.job_id, broker.bootstrap_servers, fsync=False)
    ) as log:
        log.create()
        pipeline.on_broker = log
        for kind, count in ((Kind.SPLIT_FINISHED, 3), (Kind.COMMIT_OUTCOME, 2)):
            with pytest.raises(KilledError):
                pipeline.drive(at(kind, count, kill_driver))
            stored = list(log.read(0, log.high_watermark()))
            written(broker, log.topic, chance, chance.choice(stored))
            _all_is_read(broker, pipeline.job_id, log)
        assert pipeline.drive().status is JobStatus.FINISHED
        assert pipeline.committed() == ALL_ROWS
        _all_is_read(broker, pipeline.job_id, log)
        log.delete()


def _all_is_read(broker: EmbeddedBroker, job: str, log: KafkaLog) -> None:
    history = run(broker, "history", job, "--json")
    assert history.exit_code == Exit.DONE, history.output
    assert len(history.stdout.splitlines()) == log.high_watermark()
    for command in ("verify", "attempts", "splits", "checkpoints", "epochs", "state"):
        shown = run(broker, command, job)
        assert shown.exit_code == Exit.DONE, shown.output


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
