"""Metrics and traces through the API of OpenTelemetry; its SDK gives ids to spans."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TracerProvider,
    set_span_in_context,
)

from coordlog.limits import TRACES_REMEMBERED
from coordlog.projections.telemetry.lineage import RunEvent
from coordlog.projections.telemetry.metrics import (
    BUCKETS_S,
    JOB_LABEL,
    METRICS,
    Instrument,
    Metric,
    Sample,
)
from coordlog.projections.telemetry.spans import Span

__all__ = ["DerivedIds", "OtelReporter", "SpanSender"]

_log = logging.getLogger(__name__)

SCOPE: Final = "coordlog"
_NS: Final = 1_000


class DerivedIds(RandomIdGenerator):
    """Generator of ids for a `TracerProvider`: spans of coordlog get their derived ids, all others random ones."""

    _next = threading.local()

    @classmethod
    def set_next(cls, span: Span) -> None:
        """Set the ids of the next span of this thread."""
        cls._next.ids = (span.trace_id, span.span_id)

    @classmethod
    def clear(cls) -> None:
        """Clear these ids."""
        cls._next.ids = None

    def generate_trace_id(self) -> int:
        """See `IdGenerator`."""
        ids: tuple[int, int] | None = getattr(self._next, "ids", None)
        return super().generate_trace_id() if ids is None else ids[0]

    def generate_span_id(self) -> int:
        """See `IdGenerator`."""
        ids: tuple[int, int] | None = getattr(self._next, "ids", None)
        return super().generate_span_id() if ids is None else ids[1]

    def is_trace_id_random(self) -> bool:
        """Whether the bits of trace ids are spread evenly: those of a digest are too."""
        return True


class SpanSender:
    """Sends ended spans through a tracer, each root before the other spans of its trace. One thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(SCOPE)
        self._roots: OrderedDict[int, SpanContext] = OrderedDict()
        self._has_warned = False

    def send(self, span: Span) -> None:
        """Start the span and end it, at the times that it has."""
        context = Context()
        root = self._roots.get(span.trace_id)
        if span.parent_id is not None:
            parent = root or SpanContext(span.trace_id, span.parent_id, is_remote=False)
            context = set_span_in_context(NonRecordingSpan(parent), context)
        DerivedIds.set_next(span)
        try:
            started = self._tracer.start_span(
                span.name,
                context=context,
                attributes=dict(span.attributes),
                start_time=span.start_us * _NS,
            )
        finally:
            DerivedIds.clear()
        if span.error is not None:
            started.set_status(Status(StatusCode.ERROR, span.error))
        started.end(end_time=span.end_us * _NS)
        if span.parent_id is None:
            self._remember(span, started.get_span_context())

    def _remember(self, span: Span, context: SpanContext) -> None:
        self._roots[span.trace_id] = context
        if len(self._roots) > TRACES_REMEMBERED:
            self._roots.popitem(last=False)
        if context.is_valid and context.trace_id != span.trace_id and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "traces have other ids than those that `coordlog export --otlp` derives: make the "
                "TracerProvider with id_generator=coordlog.spark_integration.DerivedIds()"
            )


class OtelReporter:
    """Counters, histograms and spans as they arise; gauges whenever the provider collects them.

    Args:
        meters: Provider of the meter; None: the global one.
        tracers: Provider of the tracer; None: the global one.
        flush: Called at the end with a time limit in seconds: sends what the providers hold.
    """

    takes_spans, takes_events = True, False

    def __init__(
        self,
        meters: MeterProvider | None = None,
        tracers: TracerProvider | None = None,
        flush: Callable[[float], None] | None = None,
    ) -> None:
        self._meter = (meters or metrics.get_meter_provider()).get_meter(SCOPE)
        self._sender = SpanSender(tracers or trace.get_tracer_provider())
        self._flush = flush
        self._job_id = ""
        self._gauges: Callable[[], list[Sample]] = list
        self._instruments: dict[str, Counter | Histogram] = {}

    def begin(self, job_id: str, gauges: Callable[[], list[Sample]]) -> None:
        """See `Reporter`."""
        self._job_id, self._gauges = job_id, gauges
        for metric in METRICS:
            match metric.instrument:
                case Instrument.COUNTER:
                    self._instruments[metric.name] = self._meter.create_counter(
                        metric.name, metric.unit, metric.text
                    )
                case Instrument.HISTOGRAM:
                    self._instruments[metric.name] = self._meter.create_histogram(
                        metric.name,
                        metric.unit,
                        metric.text,
                        explicit_bucket_boundaries_advisory=BUCKETS_S,
                    )
                case Instrument.GAUGE:
                    self._meter.create_observable_gauge(
                        metric.name, [self._observing(metric)], metric.unit, metric.text
                    )

    def report(
        self, samples: Sequence[Sample], spans: Sequence[Span], events: Sequence[RunEvent]
    ) -> None:
        """See `Reporter`."""
        for sample in samples:
            instrument = self._instruments[sample.metric.name]
            if isinstance(instrument, Counter):
                instrument.add(sample.value, self._attributes(sample))
            else:
                instrument.record(sample.value, self._attributes(sample))
        for span in spans:
            self._sender.send(span)

    def end(self, timeout_s: float) -> None:
        """See `Reporter`."""
        if self._flush is not None:
            self._flush(timeout_s)
        self._gauges = list  # the user's own provider is not ended

    def _attributes(self, sample: Sample) -> dict[str, str]:
        named = zip(sample.metric.labels, sample.labels, strict=True)
        return {JOB_LABEL: self._job_id, **dict(named)}

    def _observing(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            samples = [sample for sample in self._gauges() if sample.metric is metric]
            return [Observation(sample.value, self._attributes(sample)) for sample in samples]

        return observe
