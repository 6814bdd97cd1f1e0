"""One figure beside its raw limit, as a line of a table and of a file."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

__all__ = ["RESULTS", "Row", "show", "write"]

RESULTS: Final = Path(__file__).parent / "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured: one value for each round, ours and the limit's in the same order."""

    name: str
    unit: str
    ours: tuple[float, ...]
    raw: tuple[float, ...]
    raw_is: str
    """What the limit does."""
    better: Literal["higher", "lower"]
    target: float | None
    """The ratio that is wanted at least (or, where lower is better, at most)."""

    @property
    def ratio(self) -> float:
        """The median over the rounds of ours to raw: both of a round met the same machine."""
        return median(ours / raw for ours, raw in zip(self.ours, self.raw, strict=True))

    @property
    def meets_target(self) -> bool | None:
        """None where there is no target."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.better == "higher" else self.ratio <= self.target


def show(
    rows: Sequence[Row], console: Console, title: str = "the log beside its raw limit"
) -> None:
    """Print the table."""
    table = Table(title=f"{title}: medians of interleaved rounds")
    table.add_column("what")
    for column in ("coordlog", "raw", "unit", "ratio", "target"):
        table.add_column(column, justify="right")
    for row in rows:
        sign = {"higher": "≥", "lower": "≤"}[row.better]
        mark = {True: " ✓", False: " ✗", None: ""}[row.meets_target]
        table.add_row(
            row.name,
            _number(median(row.ours)),
            _number(median(row.raw)),
            row.unit,
            f"{row.ratio:.2f}",
            "" if row.target is None else f"{sign} {row.target}{mark}",
        )
    console.print(table)


def _number(value: float) -> str:
    whole_from = 100
    return f"{value:,.0f}" if value >= whole_from else f"{value:.2f}"


def write(rows: Sequence[Row], path: Path, *, quick: bool) -> None:
    """Write the figures with the machine and the versions that they belong to."""
    content = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "python": sys.version.split()[0],
            "kafka-python": version("kafka-python"),
        },
        "rows": [
            asdict(row) | {"ratio": row.ratio, "meets_target": row.meets_target} for row in rows
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
