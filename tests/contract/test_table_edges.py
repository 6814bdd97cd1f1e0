"""Values, columns and partitions at the edges of what tables take, and what other programs do to a table meanwhile."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import json
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Never

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import SetCurrentSchemaUpdate
from pyiceberg.types import LongType

from coordlog.errors import DestinationMisfitError, OutOfSpaceError, SinkError
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.tables.delta import DeltaSink
from data.table_places import DeltaPlace, IcebergPlace, Place
from data.table_steps import (
    SAVED,
    MakePlace,
    files_of,
    intent,
    new_place,
    opened,
    place,
    places_of,
    refusal,
    rows,
    staged,
    stepping,
)
from servers.postgres_server import postgres_server
from servers.rest_catalog import rest_catalog
from servers.s3_server import s3_server, s3_store

__all__ = ["new_place", "place", "rest_catalog", "s3_server", "s3_store"]

# --- values at the edges --------------------------------------------------------------------------
FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([FIRST, LAST], pa.timestamp("us", "UTC")).cast(pa.timestamp("us")),
        pa.array([FIRST, LAST], pa.timestamp("us", "UTC")),
        pa.array([-(2**62), 2**62], pa.timestamp("us")),
        pa.array([-(2**30), 2**30], pa.date32()),
    ],
    ids=["last-of-python", "last-with-zone", "beyond", "days-beyond"],
)
def test_rows_with_times_at_the_ends_of_the_calendar_are_committed(
    place: Place, times: pa.Array
) -> None:
    files = staged(place, pa.record_batch({"i": [1, 2], "t": times}))
    place.sink().settle(intent(files))

    found = place.table().sort_by("i")
    numbers = pa.int32() if pa.types.is_date(times.type) else pa.int64()
    assert found["t"].cast(numbers).to_pylist() == times.cast(numbers).to_pylist()
    assert place.numbers_of("i", 2) == [2]
    if times[1].cast(numbers).as_py() < 2**60 and not pa.types.is_date(times.type):
        assert place.numbers_of("t", times[1].as_py()) == [2]


def test_rows_are_found_by_a_column_with_the_path_of_a_nested_one(tmp_path: Path) -> None:
    """Iceberg refuses such names."""
    place = DeltaPlace(tmp_path / "t")
    batch = pa.record_batch({"i": [1, 2], "a.b": ["x", "y"], "a": [{"b": "q"}, {"b": "r"}]})
    place.sink().settle(intent(staged(place, batch)))

    assert place.numbers_of("a.b", "y") == [2]


@pytest.mark.parametrize(
    "text",
    ["\U00020bb7", "\U0010ffff" * 64, "x" * 70 + "\U0010ffff", "x" * 15 + "\ud7ff" * 50],
    ids=["second-plane", "last", "cut", "before-surrogates"],
)
@pytest.mark.parametrize("partition_by", [[], ["s"]], ids=["bounds", "partitions"])
def test_rows_are_found_by_texts_of_characters_beyond_16_bits(
    place: Place, partition_by: list[str], text: str
) -> None:
    """delta-rs reads another character where JSON has an escape of the second plane.

    pyiceberg raises the last character of a cut bound by one, to a surrogate too.
    """
    text = text[:40] if partition_by else text
    sink = place.sink(partition_by=partition_by)
    writer = opened(sink)
    list(writer.process(pa.record_batch({"i": [1, 2], "s": ["a", text]})))
    sink.settle(intent(files_of(writer.final_snapshot())))

    assert place.table().sort_by("i")["s"].to_pylist() == ["a", text]
    assert place.numbers_of("s", text) == [2]


def test_the_word_for_null_is_kept_as_the_value_of_a_partition(place: Place) -> None:
    words = ["__HIVE_DEFAULT_PARTITION__", None, "null"]
    sink = place.sink(partition_by=["w"])
    writer = opened(sink)
    list(writer.process(pa.record_batch({"i": [0, 1, 2], "w": words})))
    sink.settle(intent(files_of(writer.final_snapshot())))

    assert place.table().sort_by("i")["w"].to_pylist() == words
    assert place.numbers_of("w", words[0]) == [0]


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.float64(), pa.binary()],
    ids=str,
)
def test_a_table_of_partitions_without_one_text_is_refused(place: Place, kind: pa.DataType) -> None:
    place.make(pa.schema([("i", pa.int64()), ("v", kind)]), ["v"])

    error = refusal(place.sink)
    assert "it is partitioned by 'v', of " in error.problem
    assert "strings, integers, booleans, dates and decimals" in error.problem


def test_decimals_of_a_partition_are_read_back(place: Place) -> None:
    kind = pa.decimal128(18, 9)
    place.make(pa.schema([("i", pa.int64()), ("v", kind)]), ["v"])
    values = [Decimal("1E-9"), Decimal("0E-9"), Decimal("123456789.5")]
    files = staged(place, pa.record_batch({"i": [0, 1, 2], "v": pa.array(values, kind)}))
    assert any("/" in one.final and "v=0.000000001/" in one.final for one in files)
    place.sink().settle(intent(files))

    assert place.table().sort_by("i")["v"].to_pylist() == values


@pytest.mark.parametrize("mode", ["none", "counts", "truncate(1)"])
def test_partitions_have_their_values_if_the_table_keeps_no_statistics(
    tmp_path: Path, mode: str
) -> None:
    place = IcebergPlace(tmp_path / "t")
    place.make(pa.schema([("i", pa.int64()), ("w.x", pa.string())]), ["w.x"])
    with place.catalog.load_table("ns.t").transaction() as change:
        change.set_properties({"write.metadata.metrics.default": mode})
    files = staged(place, pa.record_batch({"i": [0, 1, 2], "w.x": ["xy", "xz", None]}))
    place.sink().settle(intent(files))

    tasks = place.catalog.load_table("ns.t").scan().plan_files()
    assert {one.file.partition[0] for one in tasks} == {"xy", "xz", None}


# --- what others do to the table -------------------------------------------------------------------
def test_a_column_dropped_during_a_settlement_stops_its_commit(place: Place) -> None:
    """Between the comparison of the columns and the commit."""
    place.make(pa.schema([("i", pa.int64()), ("s", pa.string())]))
    files = staged(place, pa.record_batch({"i": [1], "s": ["x"]}))
    passed: list[str] = []

    def at(name: str) -> None:
        if name in ("after manifests", "after footers") and not passed:
            passed.append(name)
            place.drop_column("s")

    error = refusal(lambda: place.sink().settle(intent(files), at=at))
    assert "column 's' was dropped" in error.problem
    assert place.rows() == Counter()


def test_an_existing_table_without_partitions_is_not_given_any(place: Place) -> None:
    place.make(pa.schema([("i", pa.int64()), ("s", pa.string())]))

    error = refusal(lambda: place.sink(partition_by=["s"]))
    assert "it is partitioned by nothing, the job by s" in error.problem


def test_a_table_that_was_made_meanwhile_keeps_its_partitions(place: Place) -> None:
    writer = opened(place.sink())
    place.make(pa.schema([("i", pa.int64()), ("s", pa.string())]), ["s"])
    error = refusal(lambda: list(writer.process(pa.record_batch({"i": [1], "s": ["x"]}))))
    assert "partitioned by s; the job's files are by nothing" in error.problem

    files = staged(place, pa.record_batch({"i": [1], "s": ["x"]}), attempt_number=1)
    place.sink().settle(intent(files))
    assert place.rows() == Counter([1])


def test_nothing_is_committed_to_another_table_of_the_name_at_any_place(
    new_place: MakePlace,
) -> None:
    for pause_at, name in enumerate(places_of(new_place())):
        place = new_place()
        if isinstance(place, DeltaPlace) and name.startswith(("before commit", "after footers")):
            continue  # a version of a Delta table does not show which table it is of
        files, sink = staged(place), place.sink()
        at = stepping(place.replace, at_place=pause_at)
        with contextlib.suppress(SinkError):
            sink.settle(intent(files), at=at)
        assert place.rows() == Counter(), pause_at
        assert "not the table that this job has" in refusal(place.sink).problem


def test_another_table_is_refused_if_the_folder_of_the_job_is_gone_too(place: Place) -> None:
    sink = place.sink()
    writer = opened(sink)
    list(writer.process(rows(1)))
    sink.settle(intent(files_of(writer.snapshot_state(1))))
    place.replace()
    for name in place.names():
        if "/.coordlog/" in name:
            place.remove_file(name)
    list(writer.process(rows(2)))
    later = intent(files_of(writer.snapshot_state(2)), number=1)

    assert "not the table that this job has" in refusal(lambda: sink.settle(later)).problem
    assert place.rows() == Counter()


def test_a_table_that_is_gone_at_any_place_is_an_error_with_a_next_step(
    new_place: MakePlace,
) -> None:
    for pause_at in range(len(places_of(new_place()))):
        place = new_place()
        files, sink = staged(place), place.sink()
        at = stepping(place.drop, at_place=pause_at)
        with contextlib.suppress(SinkError):
            sink.settle(intent(files), at=at)
        error = refusal(lambda: sink.settle(intent(files)))  # noqa: B023, called in this turn
        assert "it does not exist any more" in error.problem, pause_at


@pytest.mark.parametrize("make", [DeltaPlace, IcebergPlace])
def test_a_commit_that_the_disk_does_not_take_ends_at_its_first_try(
    tmp_path: Path, make: Callable[[Path], Place]
) -> None:
    place = make(tmp_path / "t")
    files, sink, tries = staged(place), place.sink(), Counter[str]()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def at(here: str) -> None:
        tries[here.partition(" ")[0]] += here.startswith("before commit")
        if here.startswith("before commit"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

    try:
        error = refusal(lambda: sink.settle(intent(files), at=at))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert tries["before"] == 1
    assert "[errno 27] File too large" in error.problem
    assert "raise the limit of the size of a file" in error.next_step
    place.sink().settle(intent(files))
    assert place.rows() == SAVED


def test_a_full_disk_is_seen_in_the_causes_that_delta_rs_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = DeltaPlace(tmp_path / "t")
    files, sink = staged(place), place.sink()

    def raises(number: int, reason: str) -> Never:
        between = "\n    \x1b[31m↳\x1b[0m "
        raise OSError(
            f"Generic LocalFileSystem error{between}Unable to copy{between}{reason} (os error {number})\n"
        )

    with monkeypatch.context() as patch:
        patch.setattr(
            DeltaTable, "create_write_transaction", lambda *_, **__: raises(28, "No space left")
        )
        with pytest.raises(OutOfSpaceError, match=r"No space left.*free some space there"):
            sink.settle(intent(files))
        patch.setattr(DeltaTable, "create_write_transaction", lambda *_, **__: raises(13, "Denied"))
        assert (
            "error: Unable to copy: Denied (os error 13)"
            in refusal(lambda: sink.settle(intent(files))).problem
        )


def test_a_catalog_in_sqlite_that_is_full_ends_the_commit_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, pauses = IcebergPlace(tmp_path / "t"), list[float]()
    files, sink = staged(place), place.sink(pause=pauses.append)

    def full(catalog: SqlCatalog, *_: object) -> Never:
        with catalog.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")  # no more than it has
            connection.exec_driver_sql("CREATE TABLE more AS SELECT zeroblob(1000000)")
        raise AssertionError("there is room")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", full)
        with pytest.raises(OutOfSpaceError, match=r"disk is full.*free some space there"):
            sink.settle(intent(files))
    assert pauses == []
    place.sink().settle(intent(files))

    assert place.rows() == SAVED


def test_a_catalog_in_postgresql_that_is_full_ends_the_commit_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpooled = functools.partial(sqlalchemy.create_engine, poolclass=sqlalchemy.NullPool)
    monkeypatch.setattr("pyiceberg.catalog.sql.create_engine", unpooled)
    with postgres_server() as server:
        folder = server.partition("host=")[2].partition(" ")[0]
        place, pauses = IcebergPlace(tmp_path / "t"), list[float]()
        place.properties["uri"] = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        files, sink = staged(place), place.sink(pause=pauses.append)
        with psycopg.connect(server, autocommit=True) as database:
            database.execute(
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
                "'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"
            )
            database.execute(
                "CREATE TRIGGER full_disk BEFORE UPDATE ON iceberg_tables EXECUTE FUNCTION full_disk()"
            )
            with pytest.raises(OutOfSpaceError, match=r"No space left.*free some space there"):
                sink.settle(intent(files))
            database.execute("DROP TRIGGER full_disk ON iceberg_tables")
        assert pauses == []
        place.sink().settle(intent(files))

        assert place.rows() == SAVED


def test_a_mark_that_is_no_number_is_an_error_with_its_name(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path / "t")
    files, sink = staged(place), place.sink()
    with place.catalog.load_table("ns.t").transaction() as change:
        change.set_properties({"coordlog.commits.ingest.sink": "x"})

    error = refusal(lambda: sink.settle(intent(files)))
    assert "its property coordlog.commits.ingest.sink is 'x'" in error.problem


NESTED = pa.struct(
    [
        pa.field("x", pa.int64(), nullable=False),
        pa.field("t", pa.struct([pa.field("y", pa.string(), nullable=False)]), nullable=False),
    ]
)


def test_a_null_is_written_for_a_struct_whose_parts_must_have_values(place: Place) -> None:
    place.make(pa.schema([("i", pa.int64()), ("s", NESTED), ("l", pa.list_(NESTED))]))
    valued = {"x": 7, "t": {"y": "q"}}
    plain = pa.struct([("x", pa.int64()), ("t", pa.struct([("y", pa.string())]))])
    batch = pa.record_batch(
        {
            "i": [0, 1, 2],
            "s": pa.array([None, valued, None], plain),
            "l": pa.array([[None, valued], [], []], pa.list_(plain)),
        }
    )
    place.sink().settle(intent(staged(place, batch)))

    assert place.table().sort_by("i").to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("lacks", [True, False], ids=["lacks", "nulls"])
def test_a_struct_with_parts_that_must_have_values_is_null_without_a_type(
    place: Place, *, lacks: bool
) -> None:
    outer = pa.struct([pa.field("s", NESTED)])
    place.make(pa.schema([("i", pa.int64()), ("s", NESTED), ("o", outer)]))
    columns = {"i": pa.array([0, 1])} | ({} if lacks else {"s": pa.nulls(2), "o": pa.nulls(2)})
    writer = opened(place.sink(widen=True))
    list(writer.process(pa.record_batch(columns)))
    place.sink().settle(intent(files_of(writer.final_snapshot())))

    assert place.table().sort_by("i").to_pylist() == [
        {"i": i, "s": None, "o": None} for i in (0, 1)
    ]


# --- Iceberg's own ----------------------------------------------------------------------------------
@pytest.mark.parametrize("is_list", [False, True], ids=["struct", "list"])
def test_a_required_part_that_came_meanwhile_stops_the_commit(
    tmp_path: Path, *, is_list: bool
) -> None:
    place = IcebergPlace(tmp_path / "t")
    kind = pa.struct([("x", pa.int64())])
    batch = pa.record_batch(
        {
            "i": [1],
            "s": pa.array(
                [[{"x": 1}]] if is_list else [{"x": 1}], pa.list_(kind) if is_list else kind
            ),
        }
    )
    files, sink = staged(place, batch), place.sink()
    with place.catalog.load_table("ns.t").update_schema(allow_incompatible_changes=True) as update:
        update.add_column(("s", "z"), LongType(), required=True)

    assert "column 'z' is required" in refusal(lambda: sink.settle(intent(files))).problem
    assert place.rows() == Counter()


@pytest.mark.parametrize("path", [("s",), ("s", "x"), ("l", "element", "x")], ids=".".join)
def test_a_dropped_column_is_put_back_as_its_refusal_says(
    tmp_path: Path, path: tuple[str, ...]
) -> None:
    """Not by adding it: it would be another column of the name."""
    place = IcebergPlace(tmp_path / "t")
    batch = pa.record_batch({"i": [1], "s": [{"x": 1, "y": 2}], "l": [[{"x": 3, "y": 4}]]})
    files, sink = staged(place, batch), place.sink()
    former = place.catalog.load_table("ns.t").metadata.current_schema_id
    with place.catalog.load_table("ns.t").update_schema() as update:
        update.delete_column(path)
    error = refusal(lambda: sink.settle(intent(files)))
    assert f"column '{path[-1]}' was dropped or replaced" in error.problem
    assert "make the former schema current, as docs/tables.md shows" in error.next_step
    change = SetCurrentSchemaUpdate.model_validate({"schema-id": former})
    place.catalog.commit_table(place.catalog.load_table("ns.t"), (), (change,))
    place.sink().settle(intent(files))

    assert place.table().to_pylist() == batch.to_pylist()


# --- Delta's own ------------------------------------------------------------------------------------
def delta_column(name: str, kind: object, **metadata: str) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def delta_table(
    root: Path, *columns: dict[str, object], features: Sequence[str] = (), version: int = 7
) -> DeltaPlace:
    """A table as another program makes it, which is asked for features of its writers."""
    fields = [delta_column("i", "long"), *columns]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": version}
    metadata = {
        "id": "a",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
    }
    if version == 7:
        protocol["writerFeatures"] = [*features]
    (root / "_delta_log").mkdir(parents=True)
    lines = [{"protocol": protocol}, {"metaData": metadata}]
    text = "\n".join(map(json.dumps, lines))
    (root / "_delta_log" / f"{0:020}.json").write_text(text, encoding="utf-8")
    return DeltaPlace(root)


@pytest.mark.parametrize(
    "feature", ["rowTracking", "clustering", "inCommitTimestamp", "identityColumns", "made-up"]
)
def test_a_delta_table_that_delta_rs_does_not_write_is_refused(
    tmp_path: Path, feature: str
) -> None:
    place = delta_table(tmp_path / "t", features=[feature])
    assert f"its writers must have {feature}, which delta-rs lacks" in refusal(place.sink).problem


@pytest.mark.parametrize("feature", ["appendOnly", "changeDataFeed", "checkConstraints"])
def test_a_delta_table_with_features_that_delta_rs_has_is_written(
    tmp_path: Path, feature: str
) -> None:
    place = delta_table(tmp_path / "t", features=[feature])
    place.sink().settle(intent(staged(place)))

    assert place.rows() == SAVED


def test_a_delta_table_of_version_6_is_refused(tmp_path: Path) -> None:
    place = delta_table(tmp_path / "t", features=[], version=6)
    assert "writer version 6" in refusal(place.sink).problem


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (lambda part: part, "s.x"),
        (lambda part: {"type": "array", "elementType": part, "containsNull": True}, "s.x"),
        (
            lambda part: {"type": "struct", "fields": [delta_column("t", part)]},
            "s.t.x",
        ),
    ],
    ids=["struct", "list", "struct-in-struct"],
)
def test_a_delta_table_with_a_condition_within_a_column_is_refused(
    tmp_path: Path, kind: Callable[[object], object], path: str
) -> None:
    part = delta_column("x", "long", **{"delta.invariants": "s.x > 0"})
    nested = kind({"type": "struct", "fields": [part]})
    place = delta_table(tmp_path / "t", delta_column("s", nested), version=2)

    assert f"obey delta.invariants of column {path!r}" in refusal(place.sink).problem


@pytest.mark.parametrize("is_list", [False, True], ids=["struct", "list"])
def test_a_field_that_came_meanwhile_is_null_in_waiting_files(
    tmp_path: Path, *, is_list: bool
) -> None:
    """As in the table's earlier files. Delta would not drop it again."""
    place = DeltaPlace(tmp_path / "t")
    fields: list[dict[str, object]] = [{"x": 1}, {"x": 2, "t": {"y": "q", "z": 3}}]
    earlier, later = [[one] for one in fields] if is_list else fields
    inner = pa.struct([("x", pa.int64()), ("t", pa.struct([("y", pa.string())]))])
    batch = pa.record_batch(
        {"i": [1], "s": pa.array([earlier], pa.list_(inner) if is_list else inner)}
    )
    files, sink = staged(place, batch), place.sink()
    write_deltalake(
        place.loaded(), pa.table({"i": [2], "s": [later]}), mode="append", schema_mode="merge"
    )
    sink.settle(intent(files))

    whole = place.table().sort_by("i")["s"].to_pylist()
    assert whole == [[{"x": 1, "t": None}] if is_list else {"x": 1, "t": None}, later]


@pytest.mark.parametrize("now", ["must have", "gone", "another type"])
def test_a_field_that_waiting_files_cannot_have_stops_the_commit(tmp_path: Path, now: str) -> None:
    place = DeltaPlace(tmp_path / "t")
    files, sink = staged(place, pa.record_batch({"i": [1], "s": [{"x": 1}]})), place.sink()
    kinds = {
        "must have": [("x", pa.int64()), pa.field("z", pa.int64(), nullable=False)],
        "gone": [("z", pa.int64())],
        "another type": [("x", pa.string())],
    }
    empty = pa.schema([("i", pa.int64()), ("s", pa.struct(kinds[now]))]).empty_table()
    write_deltalake(place.loaded(), empty, mode="overwrite", schema_mode="overwrite")

    assert "column 's' is struct<" in refusal(lambda: sink.settle(intent(files))).problem
    assert place.rows() == Counter()


def test_a_delta_log_that_is_cleaned_up_meanwhile_is_a_sink_error(tmp_path: Path) -> None:
    place = DeltaPlace(tmp_path / "t")
    place.sink().settle(intent(staged(place)))
    place.loaded().create_checkpoint()
    place.append(pa.table({"i": [2]}))
    look = place.sink()._files._look()
    place.append(pa.table({"i": [3]}))
    place.loaded().create_checkpoint()
    for name in sorted(one for one in place.names() if "/_delta_log/0" in one)[:-2]:
        place.remove_file(name)

    assert "its marks cannot be read" in refusal(lambda: look.settled("mark")).problem


def test_a_constraint_that_a_delta_table_got_meanwhile_stops_the_commit(tmp_path: Path) -> None:
    place = DeltaPlace(tmp_path / "t")
    files, sink = staged(place), place.sink()
    place.loaded().alter.add_constraint({"small": "i < 5"})
    error = refusal(lambda: sink.settle(intent(files)))

    assert "delta.constraints.small" in error.problem
    assert place.rows() == Counter()


@pytest.mark.parametrize("name", ["a%20b", "%25", "a%C3%BC", "a\\b"])
def test_a_path_that_delta_rs_reads_as_another_is_refused(tmp_path: Path, name: str) -> None:
    DeltaSink(tmp_path / "100%").prepare("job")
    with pytest.raises(SinkError, match="delta-rs looks for the log of the table elsewhere"):
        DeltaSink(tmp_path / name / "t")


def test_columns_that_delta_does_not_take_make_no_table(tmp_path: Path) -> None:
    place = DeltaPlace(tmp_path / "t")
    one = pa.array([b"0123456789abcdef"], pa.binary(16)).cast(pa.uuid())
    for batch in (
        pa.record_batch({"i": [1], "u": one}),
        pa.record_batch({"i": [1], "I": [2]}),
        pa.record_batch({"t": pa.array([1], pa.time64("us"))}),
    ):
        with pytest.raises(
            DestinationMisfitError, match="Delta does not take these columns"
        ) as caught:
            list(opened(place.sink()).process(batch))
        assert "<unknown>" not in caught.value.problem
    place.sink().settle(intent(staged(place, rows(1))))

    clock = pa.record_batch({"t": pa.array([1], pa.time64("us"))})
    with pytest.raises(DestinationMisfitError, match="Delta does not add it"):
        list(opened(place.sink(widen=True), attempt_number=1).process(clock))


# --- places -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", ["file:", "file://", ""])
def test_an_iceberg_table_has_its_files_below_its_location(tmp_path: Path, scheme: str) -> None:
    """Spark writes `file:/`, pyiceberg `file:///`."""
    place = IcebergPlace(tmp_path / "t")
    place.catalog.create_namespace("ns")
    location = f"{scheme}{tmp_path}/a b%20"
    place.catalog.create_table("ns.t", pa.schema([("i", pa.int64())]), location=location)
    place.sink().settle(intent(staged(place)))

    assert place.rows() == SAVED
    assert len(list((tmp_path / "a b%20" / "data" / "coordlog-ingest.sink").glob("*.parquet"))) == 2


def test_an_iceberg_table_of_version_3_is_refused(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path / "t")
    files, sink = staged(place), place.sink()
    written = Path(place.catalog.load_table("ns.t").metadata_location.removeprefix("file://"))
    document = {**json.loads(written.read_text()), "format-version": 3, "next-row-id": 0}
    written.write_text(json.dumps(document))

    for refused in (place.sink, lambda: sink.settle(intent(files))):
        assert refusal(refused).problem == (
            "its format has version 3, which pyiceberg does not write"
        )


def test_a_catalog_that_another_job_makes_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library looks, then makes them, and raises the database's error if they are there by then."""
    place, other = IcebergPlace(tmp_path / "t"), itertools.count()
    make, make_namespace = SqlCatalog.create_tables, SqlCatalog.create_namespace_if_not_exists

    def create_tables(catalog: SqlCatalog) -> None:
        make(catalog)
        if not next(other):
            raise OSError("table iceberg_tables already exists")

    def create_namespace(catalog: SqlCatalog, name: str) -> None:
        make_namespace(catalog, name)
        raise OSError("UNIQUE constraint failed")

    monkeypatch.setattr(SqlCatalog, "create_tables", create_tables)
    monkeypatch.setattr(SqlCatalog, "create_namespace_if_not_exists", create_namespace)
    place.sink().settle(intent(staged(place)))

    assert place.rows() == SAVED


def test_a_commit_that_was_made_and_then_refused_keeps_its_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway sends it twice; meanwhile another program has appended, and expired its snapshot."""
    place, tries = IcebergPlace(tmp_path / "t"), itertools.count()
    files, sink, commit_table = staged(place), place.sink(), SqlCatalog.commit_table

    def sent_twice(catalog: SqlCatalog, *arguments: Any) -> Any:  # noqa: ANN401, of the library
        if next(tries):
            return commit_table(catalog, *arguments)
        commit_table(catalog, *arguments)
        place.append(pa.table({"i": [99]}))
        place.expire()
        return commit_table(catalog, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", sent_twice)
    sink.settle(intent(files))

    assert place.rows() == SAVED + Counter([99])
    assert place.intents() == []


def test_a_table_in_the_destination_of_files_is_refused(tmp_path: Path) -> None:
    ParquetSink(tmp_path / "t").prepare("other")

    error = refusal(DeltaPlace(tmp_path / "t").sink)
    assert "it is inside the destination of job 'other'" in error.problem


CLOCK = pa.timestamp("us")


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), CLOCK),
        pa.map_(CLOCK, pa.string()),
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(CLOCK)))])),
    ],
    ids=["values", "keys", "nested"],
)
def test_times_without_a_zone_in_a_map_leave_no_table_that_nobody_opens(
    tmp_path: Path, kind: pa.DataType
) -> None:
    """The library does not find them, and makes a table without the feature that readers look for."""
    batch = pa.record_batch({"i": [1], "m": pa.array([None], kind)})
    error = refusal(lambda: staged(DeltaPlace(tmp_path / "new"), batch))
    assert "column 'm' has times without a zone in a map" in error.problem
    assert "a time with a zone" in error.next_step
    assert not (tmp_path / "new" / "_delta_log").exists()

    place = DeltaPlace(tmp_path / "t")
    place.make(pa.schema([("i", pa.int64())]))
    place.append(pa.table({"i": [7]}))
    writer = opened(place.sink(widen=True))
    assert "column 'm' has times without" in refusal(lambda: list(writer.process(batch))).problem
    assert place.rows() == Counter([7])


def test_times_without_a_zone_in_a_map_are_written_beside_others(tmp_path: Path) -> None:
    """The library finds the others, or the table has the feature."""
    kind, clock = pa.map_(pa.string(), CLOCK), FIRST.replace(tzinfo=None)
    times = pa.record_batch({"i": [1], "t": pa.array([clock], CLOCK)})
    both = times.append_column("m", pa.array([[("k", clock)]], kind))
    for number, batches in enumerate(((both,), (times, both))):
        place = DeltaPlace(tmp_path / f"t-{number}")
        writer = opened(place.sink(widen=True))
        for batch in batches:
            list(writer.process(batch))
        files = files_of(writer.final_snapshot())
        place.sink().settle(intent(files))

        assert place.table()["m"].to_pylist()[-1] == [("k", clock)]
