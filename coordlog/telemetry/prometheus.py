"""Metrics as Prometheus' text, by `prometheus_client`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from coordlog.projections.telemetry.lineage import RunEvent
from coordlog.projections.telemetry.metrics import (
    BUCKETS_S,
    JOB_LABEL,
    METRICS,
    Instrument,
    Metric,
    Sample,
    prometheus_label,
    prometheus_name,
)
from coordlog.projections.telemetry.spans import Span

__all__ = ["PrometheusReporter"]

_TOTAL: Final = "_total"


class PrometheusReporter:
    """Counters and histograms in a registry of their own, and gauges computed at each request."""

    takes_spans = takes_events = False

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._metrics: dict[str, Counter | Histogram] = {
            metric.name: self._made(metric)
            for metric in METRICS
            if metric.instrument is not Instrument.GAUGE
        }
        self._job_id = ""
        self._children: dict[tuple[str, tuple[str, ...]], Counter | Histogram] = {}

    def begin(self, job_id: str, gauges: Callable[[], list[Sample]]) -> None:
        """See `Reporter`."""
        self._job_id = job_id
        for metric in METRICS:
            if metric.instrument is not Instrument.GAUGE and not metric.labels:
                self._metrics[metric.name].labels(job_id)  # at 0 from the beginning
        self._registry.register(_Gauges(job_id, gauges))

    def report(
        self, samples: Sequence[Sample], spans: Sequence[Span], events: Sequence[RunEvent]
    ) -> None:
        """See `Reporter`."""
        for metric, value, labels in samples:
            child = self._children.get((metric.name, labels))
            if child is None:
                child = self._metrics[metric.name].labels(self._job_id, *labels)
                self._children[metric.name, labels] = child
            if isinstance(child, Counter):
                child.inc(value)
            else:
                child.observe(value)

    def end(self, timeout_s: float) -> None:
        """See `Reporter`: nothing is left to be sent."""

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that the client accepts, and its content type. Any thread."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def _made(self, metric: Metric) -> Counter | Histogram:
        name, labels = prometheus_name(metric), _labels(metric)
        if metric.instrument is Instrument.COUNTER:
            return Counter(name.removesuffix(_TOTAL), metric.text, labels, registry=self._registry)
        return Histogram(name, metric.text, labels, buckets=BUCKETS_S, registry=self._registry)


class _Gauges(Collector):
    """Collector of the gauges of a job."""

    def __init__(self, job_id: str, gauges: Callable[[], list[Sample]]) -> None:
        self._job_id, self._gauges = job_id, gauges

    def describe(self) -> Iterator[Family]:
        """The gauges without values, for the check of doubled names."""
        for metric in METRICS:
            if metric.instrument is Instrument.GAUGE:
                yield GaugeMetricFamily(prometheus_name(metric), metric.text)

    def collect(self) -> Iterator[Family]:
        """The gauges now."""
        families: dict[str, GaugeMetricFamily] = {}
        for metric, value, labels in self._gauges():
            name = prometheus_name(metric)
            if name not in families:
                families[name] = GaugeMetricFamily(name, metric.text, labels=_labels(metric))
            families[name].add_metric([self._job_id, *labels], value)
        yield from families.values()


def _labels(metric: Metric) -> list[str]:
    return [prometheus_label(label) for label in (JOB_LABEL, *metric.labels)]
