"""`coordlog` beside Spark's own file stream, same data, same cores: `python -m benchmarks.ingest [--quick]`.

Each side is a process of its own, with a Spark session as its users have it. Rounds alternate, the first of
each (cold: process, session and a first run together) apart from the others. A ratio is Spark's seconds by ours.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from pyarrow import csv
from pyarrow import dataset as datasets_of
from rich.console import Console

from coordlog.log.broker.embedded import embedded_broker

from .results import Row, show, write

RESULTS = Path(__file__).parent / "ingest.json"
SCHEMA = "id BIGINT, code STRING, delay DOUBLE, distance BIGINT, origin STRING, remark STRING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A folder of CSV files: rows of each."""

    name: str
    rows: tuple[int, ...]
    target: float


def datasets(scale: float) -> list[Dataset]:
    """Many equal files, a few large ones among many small ones, one large one (500 MB at scale 1)."""
    skewed = [max(20, int(1_200_000 * scale / (1 + index) ** 1.3)) for index in range(120)]
    return [
        Dataset(name="365 equal files", rows=(int(5_000 * scale),) * 365, target=1.5),
        Dataset(name="120 skewed files", rows=tuple(skewed), target=1.0),
        Dataset(name="one file", rows=(int(10_600_000 * scale),), target=0.9),
    ]


def make(dataset: Dataset, folder: Path) -> int:
    """Write the files; how many bytes."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(7)
    for number, count in enumerate(dataset.rows):
        table = pa.table(
            {
                "id": np.arange(count) + number * 10_000_000,
                "code": chance.integers(0, 99_999, count).astype(str),
                "delay": chance.normal(10, 30, count).round(3),
                "distance": chance.integers(50, 5_000, count),
                "origin": chance.choice(np.array(["EWR", "JFK", "LGA", "SEA"]), count),
                "remark": chance.choice(
                    np.array(["on time", "late aircraft", "weather: snow"]), count
                ),
            }
        )
        csv.write_csv(table, folder / f"part-{number:04d}.csv")
    return sum(one.stat().st_size for one in folder.iterdir())


class Side:
    """A process that ingests what it is told to."""

    def __init__(self, *command: str) -> None:
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.measured.ingest_sides", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer("ready")

    def _answer(self, word: str) -> float:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word + " "):
                return float(line.split()[1])
        raise RuntimeError(f"the side ended with {self._process.wait()} before it said {word!r}")

    def run(self, source: Path, work: Path, **more: str) -> float:
        """Seconds for one ingestion. `more` are further parts of the order, or other values for its own."""
        order = {
            "source": str(source),
            "destination": str(work / "out"),
            "work": str(work),
            "schema": SCHEMA,
        } | more
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer("done")

    def since_start(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self._began

    def end(self) -> None:
        """Its input ends, and so does it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _checked(work: Path, rows: int) -> None:
    found = datasets_of.dataset(work / "out", format="parquet").count_rows()
    if found != rows:
        raise RuntimeError(f"{work} holds {found} rows and {rows} were read")
    shutil.rmtree(work)


def measure(dataset: Dataset, source: Path, scratch: Path, servers: str, rounds: int) -> list[Row]:
    """One cold round and so many warm ones, in turn."""
    cold: dict[str, float] = {}
    warm: dict[str, list[float]] = {"spark": [], "coordlog": []}
    sides: dict[str, Side] = {}
    try:
        for name, command in (("spark", ("spark",)), ("coordlog", ("coordlog", servers))):
            side = sides[name] = Side(*command)
            side.run(source, scratch / f"{name}-cold")
            cold[name] = side.since_start()
            _checked(scratch / f"{name}-cold", sum(dataset.rows))
        for number in range(rounds):
            for name, side in sides.items():
                work = scratch / f"{name}-{number}"
                warm[name].append(side.run(source, work))
                _checked(work, sum(dataset.rows))
    finally:
        for side in sides.values():
            side.end()
    total = sum(dataset.rows)
    return [
        Row(
            name=f"{dataset.name}, {kind}",
            unit="rows/s",
            ours=tuple(total / one for one in ours),
            raw=tuple(total / one for one in raw),
            raw_is="readStream csv to parquet, availableNow, with a checkpoint",
            better="higher",
            target=dataset.target if kind == "warm" else None,
        )
        for kind, ours, raw in (
            ("warm", warm["coordlog"], warm["spark"]),
            ("cold", (cold["coordlog"],), (cold["spark"],)),
        )
    ]


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of the data, one warm round.")
@click.option("--rounds", default=3, show_default=True, help="Warm rounds.")
@click.option("--only", help="Only datasets whose name holds this.")
def main(*, quick: bool, rounds: int, only: str | None) -> None:
    """Measure ingestion beside Spark's own."""
    console = Console(width=100)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, embedded_broker() as broker:
        for dataset in datasets(0.1 if quick else 1.0):
            if only is not None and only not in dataset.name:
                continue
            source = Path(folder) / "source"
            size = make(dataset, source)
            console.print(f"{dataset.name}: {sum(dataset.rows):,} rows, {size / 1e6:,.0f} MB")
            rows += measure(
                dataset, source, Path(folder), broker.bootstrap_servers, 1 if quick else rounds
            )
            shutil.rmtree(source)
    show(rows, console, "ingestion beside Spark's own file stream")
    write(rows, RESULTS, quick=quick)
    console.print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
