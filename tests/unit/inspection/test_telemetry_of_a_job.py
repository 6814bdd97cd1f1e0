"""Metrics, traces and lineage of a driven job, by the real libraries, beside those of its stored log."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.serde import Serde
from openlineage.client.transport.file import FileConfig, FileTransport
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from coordlog.history import History
from coordlog.log.interface import Log, LogWriter, UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.verdict import Thresholds
from coordlog.projections.telemetry.lineage import LineageFold, RunEvent
from coordlog.projections.telemetry.metrics import METRICS, Instrument, Sample, prometheus_name
from coordlog.projections.telemetry.spans import Span, spans
from coordlog.schemas.record import Kind, Record
from coordlog.telemetry.lineage import LineageReporter, lineage_event
from coordlog.telemetry.observer import Observer
from coordlog.telemetry.otel import DerivedIds, OtelReporter
from coordlog.telemetry.prometheus import PrometheusReporter
from driven_history import ALL_ROWS, FILES, DrivenJob

pytestmark = pytest.mark.slow

JOB = "seen"


def counting(log: Log) -> list[Record]:
    return [entry.known() for entry in History(log).records() if entry.counts]


def facts(span: ReadableSpan) -> tuple[object, ...]:
    context = span.get_span_context()
    assert context is not None
    return (
        context.trace_id,
        context.span_id,
        None if span.parent is None else span.parent.span_id,
        span.name,
        span.start_time,
        span.end_time,
        dict(span.attributes or {}),
        span.status.description,
    )


def stored_facts(span: Span) -> tuple[object, ...]:
    return (
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.start_us * 1000,
        span.end_us * 1000,
        dict(span.attributes),
        span.error,
    )


OBSERVERS: list[Observer] = []


@pytest.fixture(autouse=True)
def end_observers() -> Iterator[None]:
    """Leaves no thread of an observer, also of a driver that was killed."""
    yield
    while OBSERVERS:
        OBSERVERS.pop().end()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("coordlog-")]
    assert left == []


class Seen:
    """An observer with every reporter, over exporters in memory and a file."""

    def __init__(self, folder: Path) -> None:
        self.spans = InMemorySpanExporter()
        tracers = TracerProvider(id_generator=DerivedIds())
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.prometheus = PrometheusReporter()
        self.lineage = folder / "lineage.json"
        transport = FileTransport(FileConfig(log_file_path=str(self.lineage), append=True))
        self.observer = Observer(
            [
                self.prometheus,
                OtelReporter(MeterProvider([self.reader]), tracers),
                LineageReporter(OpenLineageClient(transport=transport)),
            ]
        )
        OBSERVERS.append(self.observer)

    def prometheus_values(self) -> dict[str, float]:
        text, _ = self.prometheus.text("")
        return {
            "/".join(
                [one.name, *(one.labels[k] for k in one.labels if k != "coordlog_job_id")]
            ): one.value
            for family in text_string_to_metric_families(text.decode())
            for one in family.samples
        }

    def otel_values(self) -> dict[str, float]:
        data = self.reader.get_metrics_data()
        assert data is not None
        values: dict[str, float] = {}
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        labels = {
                            k: v
                            for k, v in (point.attributes or {}).items()
                            if k != "coordlog.job.id"
                        }
                        name = "/".join([metric.name, *map(str, labels.values())])
                        if isinstance(point, NumberDataPoint):
                            values[name] = point.value
                        else:
                            values[f"{name}#"] = point.count
        return values


def test_a_live_trace_is_the_trace_of_the_stored_log(tmp_path: Path) -> None:
    log, job, first, second = (
        MemoryLog(JOB),
        DrivenJob(tmp_path, JOB, is_batch=False),
        Seen(tmp_path),
        Seen(tmp_path),
    )

    job.drive(log, observer=first.observer, kill_attempt_at=6, kill_driver_at=13)
    job.drive(log, observer=second.observer, kill_attempt_at=3)

    stored = {one[:2]: one for one in map(stored_facts, spans(counting(log)))}
    live = {
        one[:2]: one
        for seen in (first, second)
        for one in map(facts, seen.spans.get_finished_spans())
    }
    assert {one[3] for one in live.values()} >= {"restore", "checkpoint", "commit", "failover"}
    assert live == {ids: stored[ids] for ids in live}
    # The killed driver has not seen its last turns; what they end is in the log alone.
    missing = [stored[ids] for ids in stored.keys() - live.keys()]
    assert {dict(one[6])["coordlog.epoch"] for one in missing} <= {0}  # type: ignore[call-overload]


def test_prometheus_has_the_counts_of_the_log(tmp_path: Path) -> None:
    log, job, seen = MemoryLog(JOB), DrivenJob(tmp_path, JOB, is_batch=False), Seen(tmp_path)

    job.drive(log, observer=seen.observer, kill_attempt_at=6)

    values = seen.prometheus_values()
    kinds = Counter(record.kind for record in counting(log))
    for kind, count in kinds.items():
        if kind is not Kind.EPOCH_STARTED:
            assert values[f"coordlog_records_total/{kind.value}"] == count
    assert values["coordlog_rows_published_total"] == len(ALL_ROWS)
    assert values["coordlog_splits_discovered_total"] == FILES
    assert values["coordlog_failovers_total/local"] == 1
    assert values["coordlog_checkpoints_total/completed"] == kinds[Kind.CHECKPOINT_COMPLETED]
    assert (
        values["coordlog_checkpoint_duration_seconds_count/completed"]
        == (kinds[Kind.CHECKPOINT_COMPLETED])
    )
    assert values["coordlog_append_duration_seconds_count"] > 0
    assert values["coordlog_commits_open"] == 0
    assert values["coordlog_phase/finished"] == 1


def test_opentelemetry_has_the_values_that_prometheus_has(tmp_path: Path) -> None:
    log, job, seen = MemoryLog(JOB), DrivenJob(tmp_path, JOB, is_batch=False), Seen(tmp_path)

    job.drive(log, observer=seen.observer, kill_attempt_at=6)
    # After the end the gauges are those of the last state; ages and the queue may move between two readings.
    prometheus, otel = seen.prometheus_values(), seen.otel_values()

    compared = 0
    for metric in METRICS:
        if metric.instrument is Instrument.GAUGE:
            continue
        suffix = "_count" if metric.instrument is Instrument.HISTOGRAM else ""
        mark = "#" if metric.instrument is Instrument.HISTOGRAM else ""
        for name, value in otel.items():
            base, _, labels = name.removesuffix("#").partition("/")
            if base == metric.name and name.endswith(mark):
                key = "/".join(filter(None, [prometheus_name(metric) + suffix, labels]))
                assert prometheus[key] == value, name
                compared += 1
    assert compared > 20


def lineage_of(log: Log) -> list[RunEvent]:
    fold = LineageFold()
    return [event for record in counting(log) for event in fold.apply(record)]


def lineage_facts(event: Mapping[str, Any]) -> list[object]:
    """What an event says, without what the client adds to every one."""
    names = ("eventTime", "eventType", "job", "inputs", "outputs")
    return [event["run"]["runId"], *(event[name] for name in names)]


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_live_lineage_is_that_of_the_stored_log(tmp_path: Path, *, is_batch: bool) -> None:
    log, job = MemoryLog(JOB), DrivenJob(tmp_path, JOB, is_batch=is_batch)

    job.drive(log, observer=Seen(tmp_path).observer, kill_driver_at=13)
    seen = Seen(tmp_path)
    job.drive(log, observer=seen.observer)

    stored = lineage_of(log)
    sent = [
        lineage_facts(json.loads(line)) for line in seen.lineage.read_text("utf-8").splitlines()
    ]
    facts = [lineage_facts(Serde.to_dict(lineage_event(event))) for event in stored]
    unseen = [fact for fact in facts if fact not in sent]
    assert sent == [fact for fact in facts if fact not in unseen]
    # The append that was under way when the driver was killed has reached the log, and nobody has seen it.
    assert [fact[0] for fact in unseen] in ([], [stored[0].run_id])
    assert [fact[2] for fact in unseen] in ([], ["RUNNING"])
    runs = {event.run_id for event in stored}
    assert len(runs) == 2
    completed = sum(record.kind is Kind.CHECKPOINT_COMPLETED for record in counting(log))
    steps = Counter(event.step.value for event in stored)
    assert steps == {
        "START": 2,
        "COMPLETE": 1,
        **({} if is_batch else {"RUNNING": completed}),
    }
    rows = {event.run_id: event.rows_published for event in stored}
    missing = len(ALL_ROWS) - sum(rows.values())
    assert missing == 0 or (not is_batch and missing > 0), "after the last event of the killed run"
    [dataset] = stored[0].outputs
    assert (dataset.namespace, dataset.name) == ("file", str(tmp_path / "out"))
    [source] = stored[0].inputs
    assert (source.namespace, source.name) == ("file", str(tmp_path / "in"))


class Hanging:
    """A reporter whose library hangs at its second report, or fails."""

    takes_spans = takes_events = True

    def __init__(self, failure: Exception | None = None) -> None:
        self.release, self.failure, self.calls = threading.Event(), failure, 0

    def begin(self, job_id: str, gauges: Callable[[], list[Sample]]) -> None:
        pass

    def report(
        self, samples: Sequence[Sample], spans: Sequence[Span], events: Sequence[RunEvent]
    ) -> None:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        if self.calls == 2:
            self.release.wait(60)

    def end(self, timeout_s: float) -> None:
        self.release.wait(60)


def test_a_library_that_hangs_does_not_delay_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordlog.telemetry.observer.TELEMETRY_CLOSE_S", 0.2)
    job, hanging = DrivenJob(tmp_path, JOB, is_batch=False), Hanging()

    try:
        job.drive(MemoryLog(JOB), observer=Observer([hanging]))
        calls = hanging.calls
    finally:
        hanging.release.set()

    assert job.rows() == ALL_ROWS
    assert calls == 2, "it hangs in the second, and none follows"


def test_a_library_that_fails_is_logged_once_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, failing = DrivenJob(tmp_path, JOB, is_batch=False), Hanging(ValueError("no"))
    failing.release.set()
    seen = Seen(tmp_path)
    observer = Observer([failing, seen.prometheus])

    job.drive(MemoryLog(JOB), observer=observer)

    assert failing.calls > 2
    assert seen.prometheus_values()["coordlog_rows_published_total"] == len(ALL_ROWS)
    assert [line.message for line in caplog.records if "Hanging" in line.message] == [
        "Hanging failed; further errors are not logged"
    ]


class HeldLog(MemoryLog):
    """A log in memory whose appends wait as long as `hold` is set, once the epoch has begun."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.hold, self.released = threading.Event(), threading.Event()

    def writer(self) -> LogWriter:
        return HeldWriter(super().writer(), self)


class HeldWriter:
    def __init__(self, writer: LogWriter, log: HeldLog) -> None:
        self._writer, self._log = writer, log

    def append(self, records: Sequence[UnstoredRecord], *, timeout_s: float) -> Sequence[int]:
        if self._log.hold.is_set() and self._log.high_watermark() > 0:
            assert self._log.released.wait(60)
        return self._writer.append(records, timeout_s=timeout_s)

    def close(self, *, timeout_s: float) -> None:
        self._writer.close(timeout_s=timeout_s)


def test_a_log_that_does_not_answer_makes_a_running_job_unhealthy(tmp_path: Path) -> None:
    log, job = HeldLog(JOB), DrivenJob(tmp_path, JOB, is_batch=False)
    observer = Observer([], Thresholds(append_slow_s=0.05, append_stuck_s=0.1))
    driving = threading.Thread(target=lambda: job.drive(log, observer=observer), daemon=True)
    log.hold.set()

    driving.start()
    until_s = time.monotonic() + 60
    while observer.health().is_healthy and time.monotonic() < until_s:
        time.sleep(0.01)
    health = observer.health()
    gauges = {sample.metric.name: sample.value for sample in observer.gauges()}
    log.hold.clear()
    log.released.set()
    driving.join(60)

    assert (health.state, health.reason) == (
        "stuck",
        "the log has not acknowledged an append",
    )
    assert gauges["coordlog.healthy"] == 0
    assert gauges["coordlog.append.pending"] > 0.1
    assert gauges["coordlog.turns.unreleased"] >= 1
    assert (observer.health().state, observer.health().is_healthy) == ("finished", True)
