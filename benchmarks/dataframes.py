"""`format("coordlog")` beside Spark's own file source, in one session: `python -m benchmarks.dataframes [--quick]`.

Both read the same CSV files with the same schema, and one query sums over all columns. Rounds
alternate, after one of each that does not count. A ratio is Spark's seconds by ours.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from coordlog.log.broker.embedded import embedded_broker
from coordlog.spark_integration import FileSource, query_session
from coordlog.spark_integration.dataframes import coordinated

from .command import output_option
from .ingest import SCHEMA, Dataset, make
from .results import Row, show, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULTS = Path(__file__).parent / "dataframes.json"
SLOTS = 2


def datasets(scale: float) -> list[Dataset]:
    """Many equal files, and a few large ones among many small ones."""
    skewed = [max(20, int(1_200_000 * scale / (1 + index) ** 1.3)) for index in range(120)]
    return [
        Dataset(name="365 equal files", rows=(int(5_000 * scale),) * 365, target=1.5),
        # What Spark takes for any Python source, a third of a second and more, is a smaller part here.
        Dataset(name="1460 equal files", rows=(int(5_000 * scale),) * 1_460, target=1.5),
        Dataset(name="120 skewed files", rows=tuple(skewed), target=1.0),
    ]


def query(frame: DataFrame) -> tuple[object, ...]:
    """One row that needs every column of every row."""
    (row,) = frame.selectExpr(
        "count(*)",
        "sum(id)",
        "sum(length(code))",
        "round(sum(delay), 0)",
        "sum(distance)",
        "sum(length(origin))",
        "sum(length(remark))",
    ).collect()
    return tuple(row)


def timed(run: Callable[[], tuple[object, ...]], expected: list[tuple[object, ...]]) -> float:
    """Seconds; what it comes to is what the others came to."""
    began = time.perf_counter()
    expected.append(run())
    seconds = time.perf_counter() - began
    assert expected[0][:2] == expected[-1][:2], expected
    return seconds


def measure(spark: SparkSession, servers: str, dataset: Dataset, folder: Path, rounds: int) -> Row:
    """One dataset."""
    source = folder / dataset.name.replace(" ", "-")
    size = make(dataset, source)
    ours: list[float] = []
    theirs: list[float] = []
    results: list[tuple[object, ...]] = []

    def by_spark() -> tuple[object, ...]:
        reader = spark.read.format("csv").option("header", "true").schema(SCHEMA)
        return query(reader.load(str(source)))

    job_id = f"bench-{dataset.name.replace(' ', '-')}-{time.time_ns()}"
    with coordinated(
        spark, job_id, FileSource(source), bootstrap_servers=servers, partitions=SLOTS
    ) as reads:
        for number in range(rounds + 1):
            mine = timed(lambda: query(reads.read()), results)
            other = timed(by_spark, results)
            if number:
                ours.append(size / 1e6 / mine)
                theirs.append(size / 1e6 / other)
    shutil.rmtree(source)
    return Row(
        name=f"{dataset.name}, {size / 1e6:,.0f} MB",
        unit="MB/s",
        ours=tuple(ours),
        raw=tuple(theirs),
        raw_is="spark.read.format('csv')",
        better="higher",
        target=dataset.target,
    )


@click.command()
@click.option("--quick", is_flag=True, help="A fifth of the rows, fewer rounds: two minutes.")
@output_option(RESULTS)
def main(*, quick: bool, output: Path) -> None:
    """Measure queries over coordinated files against Spark's own source, in interleaved rounds."""
    console = Console(width=100)
    spark = query_session(SLOTS)
    folder = Path(tempfile.mkdtemp())
    try:
        with embedded_broker() as broker:
            rows = [
                measure(spark, broker.bootstrap_servers, one, folder, rounds=3 if quick else 7)
                for one in datasets(0.2 if quick else 1.0)
            ]
    finally:
        shutil.rmtree(folder)
    show(rows, console, "queries over coordinated files beside Spark's own source")
    write(rows, output, quick=quick)
    console.print(f"written to {output}")


if __name__ == "__main__":
    main()
