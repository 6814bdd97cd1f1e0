"""The two jobs of docs/from-readstream.md, as they stand there, write the same rows."""

from __future__ import annotations

import datetime as dt
import re
import secrets
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from coordlog.log.broker.embedded import EmbeddedBroker
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [pytest.mark.any_spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.spark]

PAGE = Path(__file__).parents[3] / "docs" / "from-readstream.md"
DELAYS = ["", "NA", "-3", "15", "16", "200"]
FILES = 3


def run(block: str, places: dict[str, str]) -> None:
    """A block of the page, with its places replaced; each must be in it."""
    for name, place in places.items():
        assert f'"{name}"' in block
        block = block.replace(f'"{name}"', repr(place))
    exec(compile(block, PAGE.name, "exec"), {"__name__": "page"})


def rows_of(folder: Path) -> list[dict[str, object]]:
    table = ds.dataset(folder, format="parquet", ignore_prefixes=[".", "_"]).to_table()
    return sorted(table.to_pylist(), key=lambda one: (one["carrier"], one["dep_delay"]))


def test_both_jobs_of_the_page_write_the_same_rows(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with_spark, with_coordlog = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    source = tmp_path / "in"
    source.mkdir()
    for number in range(FILES):
        lines = [f"2013-01-0{number + 1},C{number},{delay}\n" for delay in DELAYS]
        text = "day,carrier,dep_delay\n" + "".join(lines)
        (source / f"{number}.csv").write_text(text, encoding="utf-8")

    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    run(
        with_spark,
        {"in/": str(source), "late/": str(theirs), "checkpoints/": str(tmp_path / "checkpoints")},
    )
    run(
        with_coordlog,
        {
            "in/": str(source),
            "late/": str(ours),
            "late-flights": f"late-{secrets.token_hex(4)}",
            "127.0.0.1:9092": broker.bootstrap_servers,
        },
    )

    assert rows_of(ours) == [
        {"day": dt.date(2013, 1, number + 1), "carrier": f"C{number}", "dep_delay": delay}
        for number in range(FILES)
        for delay in (16, 200)
    ]
    assert rows_of(theirs) == rows_of(ours)
    assert spark.read.parquet(str(theirs)).count() == spark.read.parquet(str(ours)).count()
