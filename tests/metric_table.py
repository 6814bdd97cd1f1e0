"""The table of docs/metrics.md, from the metrics themselves.

`.venv/bin/python tests/metric_table.py --write` renews it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from coordlog.projections.telemetry.metrics import (
    METRICS,
    Instrument,
    prometheus_label,
    prometheus_name,
)

__all__ = ["DOCS", "renewed"]

DOCS: Final = Path(__file__).parents[1] / "docs" / "metrics.md"
_BEGIN: Final = "<!-- the table below is written by tests/metric_table.py -->\n"
_END: Final = "<!-- the table ends here -->\n"


def renewed(text: str) -> str:
    """The page with its table as it should be."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{_table()}\n\n{_END}{after}"


def _table() -> str:
    lines = ["| metric | kind | in Prometheus | labels | what |", "| --- | --- | --- | --- | --- |"]
    for metric in METRICS:
        kind = f"{metric.instrument.value}, {metric.unit}"
        name = prometheus_name(metric)
        if metric.instrument is Instrument.HISTOGRAM:
            name += "_bucket`, `_sum`, `_count"
        labels = ", ".join(f"`{prometheus_label(label)}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {kind} | `{name}` | {labels} | {metric.text} |")
    return "\n".join(lines)


if __name__ == "__main__":
    page = renewed(DOCS.read_text("utf-8"))
    if "--write" in sys.argv[1:]:
        DOCS.write_text(page, "utf-8")
    else:
        print(page)
