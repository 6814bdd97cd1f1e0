"""Traces of a stored log as a file in OTLP's JSON; no library is needed.

The file has a request in each line: the format of the Collector's file exporter and of its `otlpjsonfile` receiver.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import BinaryIO, Final

from coordlog.projections.telemetry.spans import AttributeValue, Span

__all__ = ["SERVICE", "batches", "otlp_lines", "write_spans"]

SERVICE: Final = "coordlog"
_SPANS_PER_LINE: Final = 512
_SPAN_KIND_INTERNAL: Final = 1
_STATUS_ERROR: Final = 2
_NS: Final = 1_000


def write_spans(spans: Iterable[Span], file: BinaryIO) -> int:
    """Write spans to a file; returns their number."""
    count = 0
    for line, line_count in otlp_lines(spans):
        file.write(line)
        count += line_count
    return count


def otlp_lines(spans: Iterable[Span]) -> Iterator[tuple[bytes, int]]:
    """Lines of OTLP's JSON, each with its line end, and the number of spans in each."""
    scope = {"name": SERVICE, "version": metadata.version("coordlog")}
    resource = {"attributes": _attributes({"service.name": SERVICE})}
    for batch in batches(spans):
        scoped = [{"scope": scope, "spans": [_span(span) for span in batch]}]
        request = {"resourceSpans": [{"resource": resource, "scopeSpans": scoped}]}
        text = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
        yield f"{text}\n".encode(), len(batch)


def batches(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """The spans in groups of a limited size."""
    spans = iter(spans)
    while batch := list(itertools.islice(spans, _SPANS_PER_LINE)):
        yield batch


def _span(span: Span) -> dict[str, object]:
    encoded: dict[str, object] = {
        "traceId": f"{span.trace_id:032x}",
        "spanId": f"{span.span_id:016x}",
        "name": span.name,
        "kind": _SPAN_KIND_INTERNAL,
        "startTimeUnixNano": str(span.start_us * _NS),
        "endTimeUnixNano": str(span.end_us * _NS),
        "attributes": _attributes(span.attributes),
        "status": {} if span.error is None else {"code": _STATUS_ERROR, "message": span.error},
    }
    if span.parent_id is not None:
        encoded["parentSpanId"] = f"{span.parent_id:016x}"
    return encoded


def _attributes(attributes: Mapping[str, AttributeValue]) -> list[dict[str, object]]:
    return [
        {
            "key": key,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in attributes.items()
    ]
