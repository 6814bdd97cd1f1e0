"""Types that are inferred hold every value; a settled schema casts nothing; zones are never guessed."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.errors import OptionError, SourceError
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.casts.exact_cast import InexactError, exact_cast
from coordlog.spark_integration.files.formats.compatibility import MisfitError, fitted, widened
from coordlog.spark_integration.files.formats.csv import schema as csv_schema
from coordlog.spark_integration.files.source.source import FileSource, Format
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.spark_integration.kafka.source import KafkaSource
from fakes.chain_fakes import contents, read_all
from fakes.plain_watch import PlainWatch

NOON = dt.datetime.fromisoformat("2024-07-01T12:00:00")


def refusal(do: Callable[[], object]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        do()
    assert caught.value.next_step
    return caught.value


def read(source: FileSource) -> list[tuple[object, ...]]:
    return read_all(source.spec().create_reader(), contents(source.discover())).rows


def inferred(folder: Path, name: Format, *files: str) -> tuple[list[object], pa.DataType]:
    """The values of the column `x` of all files, and its type."""
    for number, text in enumerate(files):
        (folder / f"{number}").write_text(text)
    source = FileSource(folder, format=name)
    return [row[0] for row in read(source)], source.settle_schema().field("x").type


# --- a settled schema -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"x": pa.array(["007"])}, id="a text for a number"),
        pytest.param({"x": pa.array([2], pa.int32())}, id="a narrower number"),
        pytest.param({"x": pa.array([2]), "more": pa.array([1])}, id="a new column"),
    ],
)
def test_a_later_parquet_file_of_another_schema_is_refused(
    tmp_path: Path, later: dict[str, pa.Array]
) -> None:
    pq.write_table(pa.table({"x": pa.array([1], pa.int64())}), tmp_path / "1.parquet")
    source = FileSource(tmp_path, format="parquet")
    known = source.discover().splits
    pq.write_table(pa.table(later), tmp_path / "2.parquet")

    assert "2.parquet" in refusal(lambda: source.discover_again(known)).where


def test_a_watch_leaves_that_to_the_reader_which_names_the_columns(tmp_path: Path) -> None:
    berlin = pa.timestamp("us", "Europe/Berlin")
    pq.write_table(pa.table({"t": pa.array([NOON], pa.timestamp("us"))}), tmp_path / "1.parquet")
    source = FileSource(tmp_path, format="parquet", watch=Watch())
    known: tuple[Split, ...] = tuple(FileSource(tmp_path, format="parquet").discover().splits)
    zoned = pa.array([NOON.replace(tzinfo=ZoneInfo("Europe/Berlin"))], berlin)
    pq.write_table(pa.table({"t": zoned, "n": pa.array([1])}), tmp_path / "2.parquet")
    watch = PlainWatch(
        source._discovery, interval_s=0.01, idle_timeout_s=None, wait=lambda _s: False
    )

    found = watch.look(known).splits
    error = refusal(lambda: read_all(source.spec().create_reader(), [one.content for one in found]))
    assert "'n' (int64), which the source has not" in error.problem
    assert "'t' is timestamp[us, tz=Europe/Berlin] and not timestamp[us]" in error.problem
    assert "schema=" in error.next_step


def test_a_given_schema_picks_columns_and_names_the_row_that_does_not_fit(tmp_path: Path) -> None:
    values = [1, 2, 2**53, 2**53 + 1]
    pq.write_table(pa.table({"x": values, "y": values}), tmp_path / "a.parquet", row_group_size=2)
    schema = pa.schema({"x": pa.float64()})
    source = FileSource(tmp_path, format="parquet", schema=schema, split_bytes=1)

    error = refusal(lambda: read(source))
    assert "row 4, column 'x' is of type int64, not double" in error.problem
    assert "9007199254740993" in error.problem


# --- inference ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("files", "values", "kind"),
    [
        (["x\n12345678901234567890\n12345678901234567891\n"], None, pa.string()),
        (["x\n9007199254740993\n1.5\n"], None, pa.string()),
        (["x\n9007199254740993\n", "x\n1.5\n"], None, pa.string()),
        (["x\n1.5\n", "x\n9007199254740993\n"], None, pa.string()),
        (["x\n12345678901234567.89\n"], [12345678901234567.89], pa.float64()),
        (["x\n9007199254740993.5\n9007199254740993\n"], None, pa.string()),
        (["x\n01.5\n"], None, pa.string()),
        (["x\n01234\n"], None, pa.string()),
        (["x\n9007199254740993\n", "x\n1\n"], [9007199254740993, 1], pa.int64()),
        (["x\n9007199254740992\n", "x\n1.5\n"], [9007199254740992.0, 1.5], pa.float64()),
        (["x\n0\n10\n"], [0, 10], pa.int64()),
    ],
)
def test_a_csv_column_is_of_a_type_that_holds_each_number(
    tmp_path: Path, files: list[str], values: list[object] | None, kind: pa.DataType
) -> None:
    texts = [text for one in files for text in one.split()[1:]]
    assert inferred(tmp_path, "csv", *files) == (texts if values is None else values, kind)


@pytest.mark.parametrize(
    ("texts", "values", "kind"),
    [
        (["12345678901234567890"], [Decimal(12345678901234567890)], pa.decimal128(38, 0)),
        (["9007199254740993"], [9007199254740993], pa.int64()),
        (
            ['"2024-07-01T12:00:00+02:00"', '"2024-07-01T12:00:00Z"'],
            [NOON.replace(hour=10, tzinfo=ZoneInfo("UTC")), NOON.replace(tzinfo=ZoneInfo("UTC"))],
            pa.timestamp("s", "UTC"),
        ),
        (['"2024-07-01T12:00:00"'], [NOON], pa.timestamp("s")),
        (
            ['"2024-07-01T12:00:00"', '"2024-07-01T12:00:00Z"'],
            ["2024-07-01T12:00:00", "2024-07-01T12:00:00Z"],
            pa.string(),
        ),
    ],
)
def test_a_json_field_is_of_a_type_that_holds_each_value(
    tmp_path: Path, texts: list[str], values: list[object], kind: pa.DataType
) -> None:
    lines = [f'{{"x": {text}}}\n' for text in texts]

    assert inferred(tmp_path, "jsonl", "".join(lines)) == (values, kind)
    (tmp_path / "many").mkdir()
    assert inferred(tmp_path / "many", "jsonl", *lines) == (values, kind)


def test_json_numbers_that_no_type_holds_are_refused_by_name(tmp_path: Path) -> None:
    lines = ['{"s": {"x": 9007199254740993}}\n', '{"s": {"x": 1.5}}\n']
    (tmp_path / "a").write_text("".join(lines))
    error = refusal(FileSource(tmp_path, format="jsonl").discover)
    assert "line 2: field 's.x': its numbers, 9007199254740993 the first" in error.problem

    for number, text in enumerate(lines):
        (tmp_path / f"{'ab'[number]}").write_text(text)
    error = refusal(FileSource(tmp_path, format="jsonl").discover)
    assert "'s' is struct<x: double> and not struct<x: int64>" in error.problem
    assert "schema=" in error.next_step


def test_a_settled_moment_takes_no_wall_clock_of_a_later_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"t": "2024-07-01T12:00:00Z"}\n')
    source = FileSource(tmp_path, format="jsonl")
    known = source.discover().splits
    (tmp_path / "b").write_text('{"t": "2024-07-01T12:00:00"}\n')

    error = refusal(lambda: source.discover_again(known))
    assert "line 1: field 't': the value '2024-07-01T12:00:00'" in error.problem


# --- the rule -------------------------------------------------------------------------------------------
def test_the_error_has_place_row_value_and_both_types() -> None:
    values = pa.array([{"n": [1]}, {"n": [1, 300]}])
    with pytest.raises(InexactError) as caught:
        exact_cast(values, pa.struct([("n", pa.list_(pa.int8()))]))

    error = caught.value
    assert (error.path, error.row, error.value) == (".n[]", 1, {"n": [1, 300]})
    assert (error.source, error.target) == ("int64", "int8")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_null_is_no_value_of_a_field_that_must_have_one() -> None:
    values = pa.array([{"n": 1}, None, {"n": None}])
    must = pa.struct([pa.field("n", pa.int64(), nullable=False)])

    assert exact_cast(values.slice(0, 2), must).to_pylist() == [{"n": 1}, None]
    with pytest.raises(InexactError, match="'n' is null, and must not be"):
        exact_cast(values, must)


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.large_binary(),
        pa.binary(3),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.time64("us"),
        pa.decimal128(9, 2),
        pa.list_(pa.int64()),
        pa.map_(pa.string(), pa.int64()),
        pa.struct([pa.field("y", pa.string(), nullable=False)]),
    ],
    ids=str,
)
def test_nulls_of_a_struct_are_written_if_its_parts_have_none(kind: pa.DataType) -> None:
    nulls = pa.array([None, None, None], pa.struct([("x", kind)])).slice(1)
    cast = exact_cast(nulls, pa.struct([pa.field("x", kind, nullable=False)]))
    output = pa.BufferOutputStream()
    pq.write_table(pa.table({"s": cast}), output)

    assert pq.read_table(pa.BufferReader(output.getvalue()))["s"].to_pylist() == [None, None]


def test_a_slice_is_cast_as_its_own_rows() -> None:
    values = pa.array([[300], [1], None, [2, 3]]).slice(1)

    assert exact_cast(values, pa.list_(pa.int8())).to_pylist() == [[1], None, [2, 3]]


def test_a_wall_clock_and_a_moment_have_no_wider_type() -> None:
    naive = pa.record_batch({"t": pa.array([NOON], pa.timestamp("us"))})
    zoned = pa.schema({"t": pa.timestamp("us", "Europe/Berlin")})
    with pytest.raises(MisfitError, match="one has a zone, the other has none"):
        fitted(naive, zoned, fills_missing=True)
    with pytest.raises(MisfitError, match="no type holds both"):
        widened(zoned, naive.schema)


@pytest.mark.parametrize(
    "of_kind",
    [
        lambda kind: kind,
        pa.list_,
        pa.large_list,
        lambda kind: pa.list_(kind, 2),
        lambda kind: pa.map_(pa.string(), kind),
        lambda kind: pa.struct({"a": pa.int64(), "t": kind}),
        lambda kind: pa.list_(pa.struct({"t": pa.list_(kind)})),
    ],
    ids=["plain", "list", "large list", "fixed list", "map", "struct", "nested"],
)
def test_a_moment_keeps_the_zone_of_the_files_beside_a_new_column(
    of_kind: Callable[[pa.DataType], pa.DataType],
) -> None:
    """Spark gives all times the zone of its session, and tables have UTC alone."""
    files = pa.schema({"t": of_kind(pa.timestamp("us", "UTC"))})
    batch = pa.schema({"t": of_kind(pa.timestamp("us", "Europe/Berlin")), "new": pa.int64()})

    assert widened(files, batch) == files.append(pa.field("new", pa.int64()))


def test_a_dictionary_and_its_values_have_the_type_of_the_values() -> None:
    plain = pa.schema({"s": pa.large_string()})
    categories = pa.schema({"s": pa.dictionary(pa.int8(), pa.string())})

    assert widened(plain, categories) == widened(categories, plain) == plain


def test_a_schema_of_values_that_json_has_not_is_refused_where_it_enters() -> None:
    schema = pa.schema({"m": pa.map_(pa.string(), pa.int64())})
    with pytest.raises(OptionError, match="JSON has no map"):
        KafkaSource("t", bootstrap_servers="b:1", decode="json", value_schema=schema)


@pytest.mark.parametrize(
    "line",
    [
        '{"x": 9007199254740993}',
        '{"x":\t9007199254740993 }',
        r'{"\u0078": 9007199254740993}',
        '{"x": -9007199254740993}',
        '{"x": 1, "l": [0.5, {"y": 9007199254740993}]}',
        '{"x": 1, "l": [9007199254740993]}',
        '{"i": 9007199254740993, "s": "9007199254740993", "x": 9007199254740993}',
    ],
)
def test_a_rounded_number_is_found_however_it_is_written(tmp_path: Path, line: str) -> None:
    (tmp_path / "a").write_text('{"x": 0.1, "i": 9007199254740993}\n' + line + "\n")
    fields = {"x": pa.float64(), "i": pa.int64(), "s": pa.string()}
    if "[" in line:
        y = pa.struct([("y", pa.float64())])
        fields["l"] = pa.list_(y if "y" in line else pa.float64())
        (tmp_path / "a").write_text(line.replace("0.5, ", "") + "\n")

    error = refusal(lambda: read(FileSource(tmp_path, format="jsonl", schema=pa.schema(fields))))
    assert "would be rounded" in error.problem


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first block is tried when a file is listed; the reader has the others."""
    monkeypatch.setattr(csv_schema, "CSV_SAMPLE_BYTES", 1)


@pytest.mark.usefixtures("small_sample")
def test_a_large_number_of_a_later_block_is_checked_by_its_text(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.csv", pa.schema({"x": pa.float64(), "y": pa.float64()})
    lines = [f"{number}.5,{number}\n" for number in range(50)]
    source = FileSource(path, format="csv", schema=schema, block_bytes=64)
    path.write_text("x,y\n" + "".join(lines) + "1e300,7\n" + "".join(lines) + "2.5,1e20\n")
    plain = [(number + 0.5, float(number)) for number in range(50)]

    assert read(source) == [*plain, (1e300, 7.0), *plain, (2.5, 1e20)]
    path.write_text("x,y\n" + "".join(lines) + "0.5,9007199254740993\n")
    error = refusal(lambda: read(FileSource(path, format="csv", schema=schema, block_bytes=64)))
    assert "row 52" in error.problem
    assert "9007199254740993 would be rounded" in error.problem


@pytest.mark.usefixtures("small_sample")
@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("70000", pa.decimal128(5, 2), None),
        ("0.100000", pa.decimal128(5, 2), Decimal("0.10")),
        ("1" * 38, pa.decimal128(38, 2), None),
        ("1" * 38, pa.decimal128(38, 0), Decimal("1" * 38)),
        ("16777217", pa.float32(), None),
        ("16777216.7", pa.float32(), 16777216.0),
        ("70000", pa.float16(), None),
        ("007", pa.int64(), 7),
    ],
)
def test_a_text_of_a_given_type_is_its_value_or_refused_with_its_row(
    tmp_path: Path, text: str, kind: pa.DataType, value: object
) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 40 + f"{text}\n2\n")
    source = FileSource(tmp_path, format="csv", schema=pa.schema({"x": kind}), block_bytes=60)

    if value is None:
        assert "row 42" in refusal(lambda: read(source)).problem
    else:
        assert [row[0] for row in read(source)] == [1] * 40 + [value, 2]


def test_numbers_of_phones_keep_their_plus(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("phone,x,y\n+491701234567,1,+1.5\n,2,2\n+4915112345678,3,3\n")

    schema = FileSource(tmp_path / "a.csv").settle_schema()

    assert schema.types == [pa.string(), pa.int64(), pa.float64()]
