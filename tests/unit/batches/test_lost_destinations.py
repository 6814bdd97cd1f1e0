"""Batches are refused if the destination of earlier ones, such as a folder without its mount, or their log is gone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import dataset
from pyiceberg.catalog import load_catalog

from coordlog.errors import SinkError
from coordlog.spark_integration.batches import service
from coordlog.spark_integration.batches.databases.database import DatabaseTable
from coordlog.spark_integration.batches.exactly_once import AnySink, Sinks
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.tables.delta import DeltaSink
from coordlog.spark_integration.files.tables.iceberg import IcebergSink
from fakes.batch_fakes import ArrowFrame
from jobs.batch_cases import BatchCase

KINDS = ["parquet", "delta", "iceberg", "sqlite"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    monkeypatch.setattr(service, "_END_CHECK_S", 0.02)  # how soon the end of a driver is seen


class Mount:
    """A folder that may be away, with a destination of one kind."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self._away = folder.with_name(f"{folder.name}-away")
        self.make()

    def make(self) -> None:
        """The folder, and what its user makes in it: a table of a database."""
        self.folder.mkdir()
        if self.kind == "sqlite":
            self._run("CREATE TABLE t (i BIGINT)")

    def leave(self) -> None:
        self.folder.rename(self._away)
        self.make()

    def return_(self) -> None:
        self.folder.rename(self.folder.with_name(f"{self.folder.name}-other"))
        self._away.rename(self.folder)

    def sink(self) -> AnySink:
        match self.kind:
            case "delta":
                return DeltaSink(self.folder / "t")
            case "iceberg":
                return IcebergSink("ns.t", catalog="local", properties=self._catalog)
            case "sqlite":
                return DatabaseTable.sqlite(self.folder / "shop.db", "t")
            case _:
                return ParquetSink(self.folder / "t")

    def rows(self) -> list[int]:
        match self.kind:
            case "delta":
                values = DeltaTable(self.folder / "t").to_pyarrow_table()["i"].to_pylist()
            case "iceberg":
                table = load_catalog("local", **self._catalog).load_table("ns.t")
                values = table.scan().to_arrow()["i"].to_pylist()
            case "sqlite":
                values = [row[0] for row in self._run("SELECT i FROM t")]
            case _:
                values = dataset.dataset(self.folder / "t").to_table()["i"].to_pylist()
        return sorted(values)

    @property
    def _catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            return connection.execute(statement).fetchall()


def give(case: BatchCase, batch_id: int, query_id: str = "q-1", rows: int = 1) -> None:
    """One batch, by a driver of its own; its rows have the batch's number."""
    driver = case.driver()
    try:
        table = pa.table({"i": pa.array([batch_id] * rows, pa.int64())})
        case.give(driver, batch_id, ArrowFrame([table], query_id=query_id, batch_id=batch_id))
    finally:
        driver.close()


@pytest.fixture
def make_mount(tmp_path: Path) -> Callable[[str], Mount]:
    return lambda kind: Mount(tmp_path / kind, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_refused_until_its_destination_is_back(
    make_mount: Callable[[str], Mount], kind: str
) -> None:
    mount = make_mount(kind)
    case = BatchCase(mount.sink)
    give(case, 0)
    mount.leave()
    for _ in range(2):
        with pytest.raises(SinkError, match=r"of job 'case' was removed.*mount it or put it back"):
            give(case, 1)
    mount.return_()
    give(case, 1)

    assert mount.rows() == [0, 1]


@pytest.mark.parametrize("kind", ["parquet", "delta", "sqlite"])
def test_a_batch_is_refused_though_its_sinks_have_changed(
    make_mount: Callable[[str], Mount], tmp_path: Path, kind: str
) -> None:
    mount, beside = make_mount(kind), Mount(tmp_path / "beside", kind)
    case = BatchCase(lambda: {"a": mount.sink()})
    give(case, 0)
    mount.leave()
    changed: list[Sinks] = [mount.sink(), {"a": mount.sink(), "beside": beside.sink()}]
    for sinks in changed:
        case.make_sink = partial(copy, sinks)
        with pytest.raises(SinkError, match="of job 'case' was removed"):
            give(case, 1)
    mount.return_()
    give(case, 1)

    assert (mount.rows(), beside.rows()) == ([0, 1], [1])


@pytest.mark.parametrize("kind", ["parquet", "sqlite"])
def test_a_batch_may_go_to_another_destination(
    make_mount: Callable[[str], Mount], tmp_path: Path, kind: str
) -> None:
    first = make_mount(kind)
    case = BatchCase(first.sink)
    give(case, 0)
    second = Mount(tmp_path / "second", kind)
    case.make_sink = second.sink
    give(case, 1)

    assert (first.rows(), second.rows()) == ([0], [1])


def test_a_table_whose_claims_were_deleted_takes_the_next_batch(
    make_mount: Callable[[str], Mount],
) -> None:
    """As an error message advises it: the markers of the batches show that the database is the same."""
    mount = make_mount("sqlite")
    case = BatchCase(mount.sink)
    give(case, 0)
    with closing(sqlite3.connect(mount.folder / "shop.db")) as connection, connection:
        connection.execute("DELETE FROM coordlog_claims")
    give(case, 1)

    assert mount.rows() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg", "sqlite"])
def test_a_query_that_begins_anew_after_a_loss_of_the_log_is_refused(
    make_mount: Callable[[str], Mount], kind: str
) -> None:
    """It would write the rows again; only the earlier query's marks show which rows the table has."""
    mount = make_mount(kind)
    give(BatchCase(mount.sink), 0)
    case = BatchCase(mount.sink)
    for _ in range(2):
        with pytest.raises(
            SinkError, match=r"quer.*would be written a second time; use.*instead_of="
        ):
            give(case, 0, "q-2")
    give(case, 0)
    give(case, 1)
    assert mount.rows() == [0, 1]

    for stale in ("q-0", "q-3"):
        with pytest.raises(SinkError, match="would be written a second time"):
            give(BatchCase(mount.sink, instead_of=stale), 0, "q-3")
    begun = BatchCase(mount.sink, instead_of="q-1")
    give(begun, 0, "q-3")
    give(begun, 1, "q-3")
    assert mount.rows() == [0, 0, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg", "sqlite"])
def test_a_query_without_rows_goes_on_after_a_loss_of_the_log(
    make_mount: Callable[[str], Mount], kind: str
) -> None:
    """A batch without rows leaves no mark in a table of files."""
    mount = make_mount(kind)
    give(BatchCase(mount.sink), 0, rows=0)
    give(BatchCase(mount.sink), 1)

    assert mount.rows() == [1]


@pytest.mark.slow
def test_a_query_after_another_goes_on_if_one_of_the_tables_has_rows(tmp_path: Path) -> None:
    full, empty = Mount(tmp_path / "full", "delta"), Mount(tmp_path / "empty", "delta")

    def sinks() -> Sinks:
        return {"bad": empty.sink(), "good": full.sink()}

    def to_each(number: int, instead_of: str, query_id: str, rows: int) -> None:
        case = BatchCase(sinks, instead_of=instead_of)
        driver = case.driver()
        cast("Any", driver)._function = lambda _frame, _number: {  # rows for one sink alone
            "good": ArrowFrame([pa.table({"i": [number]})], query_id=query_id),
            "bad": ArrowFrame([pa.table({"i": [number] * rows})], query_id=query_id),
        }
        try:
            case.give(driver, 0, ArrowFrame([pa.table({"i": [0]})], query_id=query_id))
        finally:
            driver.close()

    to_each(0, "", "q-1", 0)
    with pytest.raises(SinkError, match="would be written a second time"):
        to_each(1, "q-0", "q-2", 1)
    to_each(1, "q-1", "q-2", 1)

    assert (full.rows(), empty.rows()) == ([0, 1], [1])


def test_a_database_knows_a_jobs_queries_under_each_name_of_its_sinks(
    make_mount: Callable[[str], Mount],
) -> None:
    mount = make_mount("sqlite")
    case = BatchCase(lambda: {"a": mount.sink()})
    give(case, 0)
    case.instead_of = "q-1"
    give(case, 0, "q-2")
    with pytest.raises(SinkError, match="would be written a second time"):
        give(BatchCase(lambda: {"b": mount.sink()}), 0, "q-3")
    give(BatchCase(lambda: {"a": mount.sink()}), 1, "q-2")

    assert mount.rows() == [0, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_of_batches_may_be_renamed(make_mount: Callable[[str], Mount], kind: str) -> None:
    mount = make_mount(kind)
    case = BatchCase(lambda: {"a": mount.sink()})
    give(case, 0)
    case.make_sink = lambda: {"b": mount.sink()}
    give(case, 1)
    give(case, 2)

    assert mount.rows() == [0, 1, 2]


@pytest.mark.slow
def test_sinks_whose_names_have_blanks_may_change_places_and_names(tmp_path: Path) -> None:
    good, bad = Mount(tmp_path / "all good=1", "delta"), Mount(tmp_path / "all bad", "delta")
    case = BatchCase(lambda: {"good rows": good.sink(), "bad": bad.sink()})
    give(case, 0)
    renamings: list[Callable[[], Sinks]] = [
        lambda: {"good rows": bad.sink(), "bad": good.sink()},
        lambda: {"rows": bad.sink(), "a=b": good.sink()},
        lambda: {"c": good.sink(), "d": bad.sink()},
    ]
    for number, renamed in enumerate(renamings, start=1):
        case.make_sink = renamed
        give(case, number)

    assert (good.rows(), bad.rows()) == ([0, 1, 2, 3], [0, 1, 2, 3])


@pytest.mark.slow
def test_a_sink_whose_name_has_an_equals_sign_and_a_blank_is_found_again(tmp_path: Path) -> None:
    mount = Mount(tmp_path / "t", "delta")
    case = BatchCase(lambda: {"year=2024 rows": mount.sink()})
    for number in range(3):
        give(case, number)

    assert mount.rows() == [0, 1, 2]
