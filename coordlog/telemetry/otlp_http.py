"""Exporters of OpenTelemetry that send by OTLP over HTTP, as the variables `OTEL_…` configure them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from coordlog.errors import EnvironmentSetupError
from coordlog.projections.telemetry.spans import Span
from coordlog.telemetry.otel import DerivedIds, OtelReporter, SpanSender
from coordlog.telemetry.otlp import SERVICE, batches

__all__ = ["otlp_reporter", "send_spans"]

_MS: Final = 1_000


def otlp_reporter() -> OtelReporter:
    """Reporter with providers of its own."""
    resource = _resource()
    tracers = TracerProvider(resource=resource, id_generator=DerivedIds(), shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    meters = MeterProvider([reader], resource, shutdown_on_exit=False)

    def flush(timeout_s: float) -> None:
        limit_ms = round(timeout_s * _MS)
        tracers.force_flush(limit_ms // 2)
        meters.shutdown(limit_ms // 2)
        tracers.shutdown()

    return OtelReporter(meters, tracers, flush)


def send_spans(spans: Iterable[Span], endpoint: str) -> int:
    """Send spans to an endpoint for traces; returns their number.

    Raises:
        EnvironmentSetupError: The endpoint has not accepted a batch.
    """
    exporter, batch = OTLPSpanExporter(endpoint=endpoint), InMemorySpanExporter()
    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=_resource(), id_generator=DerivedIds(), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(batch))
    sender, count = SpanSender(provider), 0
    try:
        for group in batches(spans):
            for span in group:
                sender.send(span)
            if exporter.export(batch.get_finished_spans()) is not SpanExportResult.SUCCESS:
                raise EnvironmentSetupError(
                    f"the endpoint has not accepted the spans; {count} were sent before",
                    "check the URL, as in http://127.0.0.1:4318/v1/traces, and OTEL_EXPORTER_OTLP_HEADERS, and repeat "
                    "the command: it makes the same traces",
                )
            batch.clear()
            count += len(group)
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
        provider.shutdown()
    return count


def _resource() -> Resource:
    """Resource of the variables `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`; by default the service coordlog."""
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        return resource.merge(Resource({"service.name": SERVICE}))
    return resource
