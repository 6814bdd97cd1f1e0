"""A job on Spark seen from outside: metrics and health over HTTP, traces and lineage as they arrive."""

from __future__ import annotations

import json
import os
import secrets
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from coordlog.cli.main import main
from coordlog.history import History
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.projections.telemetry.lineage import LineageFold
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind
from coordlog.spark_integration import FileSource, Job, ParquetSink, Telemetry
from coordlog.spark_integration.transform import TransformFunction
from jobs.kafka_session import shared_session
from servers.brokers import broker
from servers.otlp_receiver import Received, otlp_receiver, span_facts

__all__ = ["broker"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.kafka]

FILES, ROWS = 6, 400
WAIT_S = 120.0


@pytest.fixture
def receiver() -> Iterator[Received]:
    with otlp_receiver() as received:
        yield received


def fails_once_and_takes_its_time(marker: Path, gate: Path) -> TransformFunction:
    """Fails the first batch of the job; each later one takes a quarter of a second, until the file `gate` is there."""
    marked, opened = str(marker), str(gate)

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            os.close(os.open(marked, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            if not os.path.exists(opened):  # noqa: PTH110, in a worker
                time.sleep(0.25)  # so that the job lasts; nothing waits for it
            return batch
        raise ValueError("the first batch fails")

    return transform


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def values_at(url: str) -> dict[str, float]:
    return {
        "/".join(
            [one.name, *(one.labels[k] for k in one.labels if k != "coordlog_job_id")]
        ): one.value
        for family in text_string_to_metric_families(fetched(f"{url}/metrics"))
        for one in family.samples
    }


@pytest.fixture
def log(broker: EmbeddedBroker) -> Iterator[KafkaLog]:
    log = KafkaLog.for_job(f"seen-{secrets.token_hex(4)}", broker.bootstrap_servers)
    log.create()
    yield log
    log.close()


def job_in(folder: Path, log: KafkaLog, gate: Path) -> Job:
    (folder / "in").mkdir()
    for number in range(FILES):
        rows = range(number * ROWS, (number + 1) * ROWS)
        text = "a\n" + "".join(f"{row}\n" for row in rows)
        (folder / "in" / f"{number}.csv").write_text(text, encoding="utf-8")
    return Job(
        job_id=log.identity.topic.removesuffix(".log"),
        log=log,
        source=FileSource(folder / "in", batch_rows=10),
        transform=fails_once_and_takes_its_time(folder / "failed", gate),
        sink=ParquetSink(folder / "out"),
        parallelism=2,
        checkpoint_interval_s=0.3,
        telemetry=Telemetry(metrics_port=0, otel="otlp", openlineage=True),
    )


def test_a_job_on_spark_is_seen_from_outside_as_its_topic_shows_it(
    log: KafkaLog, receiver: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: SparkSession = shared_session()
    lineage, gate = tmp_path / "lineage.json", tmp_path / "gate"
    (tmp_path / "openlineage.yml").write_text(
        f"transport:\n  type: file\n  log_file_path: {lineage}\n  append: true\n", encoding="utf-8"
    )
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(tmp_path / "openlineage.yml"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    job = job_in(tmp_path, log, gate)
    try:
        job.start(session)
        url = job.metrics_url
        assert url is not None
        until_s = time.monotonic() + WAIT_S
        while (values := values_at(url)).get("coordlog_checkpoints_total/completed", 0) < 2:
            assert time.monotonic() < until_s, values
            time.sleep(0.1)
        while values_at(url).get("coordlog_attempts_live") != 2:
            assert time.monotonic() < until_s
            time.sleep(0.1)
        health = json.loads(fetched(f"{url}/healthz"))
        values = values_at(url)
    finally:
        gate.touch()
    result = job.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.FINISHED

    assert (health["is_healthy"], health["state"]) == (True, "progressing")
    assert values["coordlog_healthy"] == 1
    assert values["coordlog_failovers_total/local"] == 1
    assert values["coordlog_subtasks"] == 2
    assert values["coordlog_append_duration_seconds_count"] > 0
    assert {"coordlog.records", "coordlog.checkpoint.age", "coordlog.append.duration"} <= (
        receiver.metric_names()
    )
    records = [entry.known() for entry in History(log).records() if entry.counts]
    fold = LineageFold()
    events = [event for record in records for event in fold.apply(record)]
    sent = [json.loads(line) for line in lineage.read_text("utf-8").splitlines()]
    assert [(one["eventType"], one["run"]["runId"]) for one in sent] == [
        (event.step.value, str(event.run_id)) for event in events
    ]
    assert sent[-1]["eventType"] == "COMPLETE"
    assert sent[-1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == FILES * ROWS
    live = sorted(map(span_facts, receiver.traces))
    receiver.traces.clear()
    runner, servers = CliRunner(), ["--bootstrap-servers", log.bootstrap_servers]
    exported = runner.invoke(
        main, ["export", job.job_id, f"{receiver.url}/v1/traces", "--otlp", *servers]
    )
    assert exported.exit_code == 0, exported.output
    assert sorted(map(span_facts, receiver.traces)) == live
    completed = sum(record.kind is Kind.CHECKPOINT_COMPLETED for record in records)
    roots = [one[3] for one in live if not one[2]]
    assert (roots.count("restore"), roots.count("failover")) == (1, 1)
    assert roots.count("checkpoint") >= completed
    judged = runner.invoke(main, ["health", job.job_id, *servers])
    assert (judged.exit_code, "is finished" in judged.output) == (0, True), judged.output
