"""A receiver of OTLP over HTTP, for tests: decodes the requests that real exporters send."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

__all__ = ["Received", "otlp_receiver", "span_facts"]


class Received:
    """All that has arrived."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.traces: list[Span] = []
        self.metrics: dict[str, ExportMetricsServiceRequest] = {}
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        with self.lock:
            if path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        self.traces.extend(scope.spans)
            else:
                self.metrics["last"] = ExportMetricsServiceRequest.FromString(body)

    def metric_names(self) -> set[str]:
        with self.lock:
            return {
                metric.name
                for request in self.metrics.values()
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }


def span_facts(span: Span) -> tuple[object, ...]:
    """All that tells a span."""
    attributes = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
    return (
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        tuple(sorted(attributes.items())),
        span.status.message,
    )


@contextmanager
def otlp_receiver() -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.take(self.path, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002, the signature above
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
