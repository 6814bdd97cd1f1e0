"""Batches into tables on Spark: the driver killed at every step, and `format("coordlog")`."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration import coordinated_writes
from servers.brokers import broker

from .batch_script import catalog_of, sink_of
from .test_exactly_once import LIMIT_S, make_input, run_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PLACES = ("staged", "before part", "before commit", "after commit", "after part")
"""Where the driver dies, once each: before the intent, after it, and around the commit of the table."""


def values_in(folder: Path, kind: str) -> Counter[str]:
    """Values of the table's rows, by the format's own library."""
    if kind == "delta":
        if not DeltaTable.is_deltatable(str(folder / "once")):
            return Counter()
        rows = DeltaTable(folder / "once").to_pyarrow_table()
    else:
        table = load_catalog("local", **catalog_of(folder)).load_table("ns.once")
        if not table.schema().fields:
            return Counter()
        rows = table.scan().to_arrow()
    return Counter(rows["value"].to_pylist())


@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.any_spark
@pytest.mark.clause("H3")
@pytest.mark.clause("K2")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_is_in_a_table_once_though_its_driver_is_killed_anywhere(
    tmp_path: Path, broker: EmbeddedBroker, kind: str
) -> None:
    lines, servers = make_input(tmp_path, len(PLACES) + 1), broker.bootstrap_servers
    for place in PLACES:
        assert run_script(tmp_path, servers, place, kind) == -signal.SIGKILL
        assert values_in(tmp_path, kind) <= lines, "no row is there twice at any time"
    assert run_script(tmp_path, servers, "-", kind) == 0

    assert values_in(tmp_path, kind) == lines


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_is_written_once_by_the_format(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    lines, log = make_input(tmp_path, 2), MemoryLog()
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    with coordinated_writes(spark, "tables", sink_of(tmp_path, kind), log=log) as writes:
        assert str(tmp_path) not in repr(writes.options()), "a catalog's properties may be secret"
        for _ in range(2):
            frame = spark.range(20).selectExpr("cast(id as string) as value")
            writes.write(frame.repartition(2), write_id="2026-01-02")
        for _ in range(2):
            query = (
                writes.write_stream(stream.load(str(tmp_path / "in")))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            try:
                assert query.awaitTermination(LIMIT_S)
            finally:
                query.stop()
            for name in ("1", ".1.crc"):  # Spark forgets that it has done the last batch
                (tmp_path / "checkpoint" / "commits" / name).unlink()

    assert values_in(tmp_path, kind) == lines + Counter(str(n) for n in range(20))
