"""The picture of the benchmarks' figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.figures import draw

pytestmark = pytest.mark.slow

ROWS = [
    {"name": "checkpoint, p50, 1 subtask", "ours": [9.0, 1.0, 8.0], "raw": [4.0, 4.0, 4.0]},
    {"name": "checkpoint, p50, 64 subtasks", "ours": [80.0], "raw": [4.0]},
    {"name": "1,000 small files, streaming", "ours": [300.0], "raw": [50.0]},
    {"name": "10,000 small files, streaming", "ours": [310.0], "raw": [40.0]},
    {"name": "10,000 files beside 1,000, streaming", "ours": [310.0], "raw": [300.0]},
]


def test_figures_are_drawn_by_size_and_the_same_run_is_the_same_picture(tmp_path: Path) -> None:
    results, pictures = tmp_path / "results.json", [tmp_path / "a.svg", tmp_path / "b.svg"]
    machine = {"cores": 2, "load": [0.5, 0.5, 0.5], "python": "3.11.7"}
    content = {"taken_at": "2026-01-02T03:04:05", "machine": machine, "rows": ROWS}
    results.write_text(json.dumps(content), "utf-8")

    for picture in pictures:
        draw(results, picture)

    first, second = (picture.read_text("utf-8") for picture in pictures)
    assert first == second
    for text in ("2026-01-02, 2 cores, load 0.5", "checkpoint, trigger to", ">64<", ">10,000<"):
        assert text in first
