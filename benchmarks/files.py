"""Many small files beside Spark's own file source, same data, same cores: `python -m benchmarks.files [--quick]`.

Each side is a process of its own with a warm Spark session, and rounds alternate. A figure is files per second from the
call to the end of the job, with the listing and the commits. In streaming Spark reads all files in one micro-batch
(`availableNow`); in batch it writes what it reads.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import click
from pyarrow import dataset as datasets_of
from rich.console import Console

from coordlog.log.kafka import KafkaLog

from .command import broker, broker_option, output_option
from .ingest import Side
from .measured.small_files import ROWS_PER_FILE, SMALL_FILE_SCHEMA, make_small_files
from .results import Row, show, write

__all__ = ["FILES_FULL", "FILES_QUICK", "FilesSize", "measure_files"]

RESULTS: Final = Path(__file__).parent / "files.json"
_MODES: Final = ("streaming", "batch")
_FLAT: Final = 0.8
_RECORDS: Final = 1.5
_WARM_UP_FILES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSize:
    """What is measured: numbers of files, ascending, and rounds of each."""

    counts: tuple[int, ...]
    rounds: int


FILES_FULL: Final = FilesSize(counts=(1_000, 10_000), rounds=3)
FILES_QUICK: Final = FilesSize(counts=(1_000,), rounds=1)
_SHORT: Final = FilesSize(counts=(60,), rounds=1)
_LARGE: Final = FilesSize(counts=(1_000, 10_000, 100_000), rounds=1)


def measure_files(bootstrap_servers: str, size: FilesSize) -> list[Row]:
    """Files per second of both sides, records per file, and whether many files are as fast as few."""
    sides: dict[str, Side] = {}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        try:
            sides["spark"] = Side("spark")
            sides["coordlog"] = Side("coordlog", bootstrap_servers)
            _warm_up(sides, scratch)
            for count in size.counts:
                source = scratch / f"source-{count}"
                make_small_files(source, count)
                for mode in _MODES:
                    rows += _rows(sides, source, scratch, bootstrap_servers, mode, count, size)
                shutil.rmtree(source)
        finally:
            for side in sides.values():
                side.end()
    return rows + list(_flat(rows, size.counts))


def _warm_up(sides: dict[str, Side], scratch: Path) -> None:
    source = scratch / "source"
    make_small_files(source, _WARM_UP_FILES)
    for name, side in sides.items():
        for mode in _MODES:
            _ingest(side, source, scratch / name, mode, _WARM_UP_FILES, f"warm-{uuid.uuid4().hex}")


def _rows(
    sides: dict[str, Side],
    source: Path,
    scratch: Path,
    bootstrap_servers: str,
    mode: str,
    count: int,
    size: FilesSize,
) -> Iterator[Row]:
    rates: dict[str, list[float]] = {name: [] for name in sides}
    records: list[float] = []
    for _ in range(size.rounds):
        job_id = f"files-{uuid.uuid4().hex[:12]}"
        for name, side in sides.items():
            seconds = _ingest(side, source, scratch / name, mode, count, job_id)
            rates[name].append(count / seconds)
        log = KafkaLog.for_job(job_id, bootstrap_servers)
        records.append(log.high_watermark() / count)
        log.close()
    yield Row(
        name=_name(count, mode),
        unit="files/s",
        ours=tuple(rates["coordlog"]),
        raw=tuple(rates["spark"]),
        raw_is=(
            "readStream csv to parquet, availableNow, with a checkpoint"
            if mode == "streaming"
            else "read csv, write parquet"
        ),
        better="higher",
        target=None,
    )
    yield Row(
        name=f"{_name(count, mode)}: records",
        unit="records/file",
        ours=tuple(records),
        raw=(1.0,) * size.rounds,
        raw_is="the end of each split",
        better="lower",
        target=_RECORDS if count >= FILES_QUICK.counts[0] else None,
    )


def _name(count: int, mode: str) -> str:
    return f"{count:,} small files, {mode}"


def _ingest(side: Side, source: Path, work: Path, mode: str, count: int, job_id: str) -> float:
    """Seconds of one ingestion, of which every row is counted."""
    seconds = side.run(source, work, mode=mode, schema=SMALL_FILE_SCHEMA, job_id=job_id)
    found = datasets_of.dataset(work / "out", format="parquet").count_rows()
    if found != count * ROWS_PER_FILE:
        raise RuntimeError(f"{work} has {found} rows of {count} files of {ROWS_PER_FILE}")
    shutil.rmtree(work)
    return seconds


def _flat(rows: Sequence[Row], counts: Sequence[int]) -> Iterator[Row]:
    """The rate of the most files beside that of the fewest."""
    by_name = {row.name: row for row in rows}
    for mode in _MODES if len(counts) > 1 else ():
        few, many = (by_name[_name(count, mode)].ours for count in (counts[0], counts[-1]))
        yield Row(
            name=f"{counts[-1]:,} files beside {counts[0]:,}, {mode}",
            unit="files/s",
            ours=(median(many),),
            raw=(median(few),),
            raw_is="the same with fewer files",
            better="higher",
            target=_FLAT,
        )


@click.command()
@click.option("--quick", is_flag=True, help="1,000 files, one round: a minute.")
@click.option("--short", is_flag=True, help="60 files: whether it runs, not how fast.")
@click.option("--counts", help="Numbers of files, as 1000,10000,100000, which is the default.")
@click.option("--rounds", type=int, help="Rounds of each number of files.")
@broker_option
@output_option(RESULTS)
def main(
    *,
    quick: bool,
    short: bool,
    counts: str | None,
    rounds: int | None,
    bootstrap_servers: str | None,
    output: Path,
) -> None:
    """Measure the ingestion of many small files beside Spark's own."""
    size = _SHORT if short else FILES_QUICK if quick else _LARGE
    if counts is not None:
        size = FilesSize(counts=tuple(sorted(map(int, counts.split(",")))), rounds=size.rounds)
    if rounds is not None:
        size = FilesSize(counts=size.counts, rounds=rounds)
    console = Console(width=100)
    with broker(bootstrap_servers) as servers:
        rows = measure_files(servers, size)
    show(rows, console, "many small files beside Spark's own file source")
    write(rows, output, quick=quick or short)
    console.print(f"written to {output}")


if __name__ == "__main__":
    main()
