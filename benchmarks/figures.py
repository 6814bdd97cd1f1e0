"""Draws the figures of `python -m benchmarks` as one picture: `python -m benchmarks.figures [results.json]`.

Each panel has one quantity over the number of subtasks or files: coordlog's median, its raw limit, and Flink's
(measured on the same kind of machine, where its events are not durable when they act).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from .results import RESULTS

__all__ = ["FIGURES", "draw"]

FIGURES: Final = Path(__file__).parents[1] / "docs" / "benchmarks.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """One quantity over a size."""

    title: str
    over: str
    rows: str
    """Name of its rows; `{}` stands for the size."""
    scale: str = "linear"
    raw: str | None = None
    """Label of the raw limit."""
    flink: Mapping[int, float] = field(default_factory=dict)


_PANELS: Final = (
    _Panel(
        title="checkpoint, trigger to complete, p50, ms",
        over="subtasks",
        rows="checkpoint, p50, {} subtask",
        scale="log",
        raw="an append and a loopback round trip",
        flink={1: 5.6, 4: 9.9, 16: 27, 64: 67, 256: 294},
    ),
    _Panel(
        title="event inside the cut, until acked, p50, ms",
        over="subtasks",
        rows="event inside the cut, p50, {} subtask",
        scale="log",
        raw="an append and a loopback round trip",
        flink={1: 3.0, 4: 5.6, 16: 14, 64: 44, 256: 161},
    ),
    _Panel(
        title="round trips a second, 1,024 outstanding",
        over="subtasks",
        rows="round trips, 1024 outstanding, {} subtask",
        flink={1: 5_800, 4: 5_700, 16: 6_300},
    ),
    _Panel(
        title="events up a second",
        over="subtasks",
        rows="events up, {} subtask",
        raw="plain appends of as many records",
        flink={1: 9_200, 4: 9_800, 16: 14_900},
    ),
    _Panel(
        title="small files a second, streaming",
        over="files",
        rows="{} small files, streaming",
        raw="Spark's own file source",
    ),
    _Panel(
        title="small files a second, batch",
        over="files",
        rows="{} small files, batch",
        raw="Spark's own file source",
    ),
)


def draw(results: Path, picture: Path) -> None:
    """Draw the rows of a file of results; the format follows from the picture's suffix, `.svg` or `.png`."""
    content = json.loads(results.read_text("utf-8"))
    mpl.rcParams.update({"svg.hashsalt": "coordlog", "svg.fonttype": "none", "font.size": 8})
    figure = Figure(figsize=(10, 8), layout="constrained")
    for axes, panel in zip(figure.subplots(3, 2).flat, _PANELS, strict=True):
        _draw_panel(axes, panel, content["rows"])
    machine = content["machine"]
    figure.suptitle(
        f"{content['taken_at'][:10]}, {machine['cores']} cores, load {machine['load'][0]:.1f}, "
        f"Python {machine['python']}: medians"
    )
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


def _draw_panel(axes: Axes, panel: _Panel, rows: Sequence[Mapping[str, Any]]) -> None:
    points = _points(panel.rows, rows)
    axes.plot(list(points), [median(row["ours"]) for row in points.values()], "o-")
    labels = ["coordlog"]
    if panel.raw is not None:
        raw = [median(row["raw"]) for row in points.values()]
        axes.plot(list(points), raw, "s:", color="gray")
        labels.append(panel.raw)
    if panel.flink:
        axes.plot(list(panel.flink), list(panel.flink.values()), "^--")
        labels.append("Flink 2.3")
    axes.set(title=panel.title, xlabel=panel.over, xscale="log", yscale=panel.scale)
    if panel.scale == "linear":
        axes.set_ylim(bottom=0)
    sizes = sorted({*points, *panel.flink})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(labels)


def _points(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The rows of a name by their size, ascending."""
    pattern = re.compile(re.escape(name).replace(r"\{\}", r"([\d,]+)") + "s?")
    matches = ((pattern.fullmatch(row["name"]), row) for row in rows)
    points = {int(match[1].replace(",", "")): row for match, row in matches if match}
    return dict(sorted(points.items()))


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path), default=RESULTS)
@click.option("--output", type=click.Path(path_type=Path), default=FIGURES, show_default=True)
def main(results: Path, output: Path) -> None:
    """Draw the figures of a run."""
    draw(results, output)
    click.echo(f"drawn to {output}")


if __name__ == "__main__":
    main()
