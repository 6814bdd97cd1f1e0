"""Fields that a schema lacks, kept in a column of their own: which they are, and that nothing else changes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from coordlog.errors import OptionError, SourceError
from coordlog.spark_integration.files.formats.bad_rows import are_rejects
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.reader import FileReader
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import FakeContext, ReadOut, contents, read_all, read_on

TWO = "a bigint, b string"
BOTH = pytest.mark.parametrize("bad_rows", ["fail", "skip"])


def rows_of(path: Path, data: bytes, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401, options of a source
    path.write_bytes(data)
    options.setdefault("schema", TWO)
    options.setdefault("rescued", "_rescued")
    source = FileSource(path, format=path.suffix[1:], **options)  # type: ignore[arg-type]
    read = read_all(source.spec().create_reader(), contents(source.discover()))
    for batch in read.batches:
        assert batch.schema.field(-1).metadata is None
    return [row for batch in read.batches if not are_rejects(batch) for row in batch.to_pylist()]


def rescued_of(path: Path, data: bytes, **options: Any) -> list[str | None]:  # noqa: ANN401, as above
    return [row["_rescued"] for row in rows_of(path, data, **options)]


@BOTH
def test_fields_of_json_beyond_the_schema_are_kept_as_texts(tmp_path: Path, bad_rows: str) -> None:
    data = b"""
{"a":1,"b":"x"}
{"a":2, "c" : 1.10, "b":"y", "d": [1, {"e": "}"}] }

{"c":12345678901234567890.5e-3,"\\u0061":3}
{"a":4,"c":null,"d":"\\u00e9\\"\xc3\xa9, {"}
{}
"""
    assert rows_of(tmp_path / "a.jsonl", data, bad_rows=bad_rows) == [
        {"a": 1, "b": "x", "_rescued": None},
        {"a": 2, "b": "y", "_rescued": '{"c":1.10,"d":[1, {"e": "}"}]}'},
        {"a": 3, "b": None, "_rescued": '{"c":12345678901234567890.5e-3}'},
        {"a": 4, "b": None, "_rescued": '{"c":null,"d":"\\u00e9\\"é, {"}'},
        {"a": None, "b": None, "_rescued": None},
    ]


@BOTH
def test_columns_of_csv_beyond_the_schema_are_kept_as_texts(tmp_path: Path, bad_rows: str) -> None:
    data = b'c,a,"d ""x""",b\n1.10,1,007,x\n,2,"q""\n\xc3\xa9,",y\n'

    assert rows_of(tmp_path / "a.csv", data, bad_rows=bad_rows) == [
        {"a": 1, "b": "x", "_rescued": '{"c":"1.10","d \\"x\\"":"007"}'},
        {"a": 2, "b": "y", "_rescued": '{"c":null,"d \\"x\\"":"q\\"\\né,"}'},
    ]


@BOTH
def test_rows_of_a_csv_file_without_more_columns_have_null(tmp_path: Path, bad_rows: str) -> None:
    assert rescued_of(tmp_path / "a.csv", b"a,b\n1,x\n", bad_rows=bad_rows) == [None]


@BOTH
@pytest.mark.parametrize("header", ["b,a", "a", "c,b,a", "a,c", "a,b,c,c", "a,a,b"])
def test_csv_columns_in_another_order_or_missing_stay_refused(
    tmp_path: Path, header: str, bad_rows: str
) -> None:
    path = tmp_path / "a.csv"
    row = ",".join("1" for _ in header.split(","))
    with pytest.raises(SourceError, match=r"schema is not|columns of one name"):
        rows_of(path, f"{header}\n{row}\n".encode(), bad_rows=bad_rows)

    options: dict[str, Any] = {"schema": TWO, "rescued": "r", "bad_rows": bad_rows}
    path.write_bytes(b"a,b\n1,2\n")
    splits = contents(FileSource(path, **options, changed_by="size").discover())
    path.write_bytes(f"{header}\n{row}\n".encode()[:8].ljust(8, b"\n"))
    with pytest.raises(SourceError):
        read_all(FileSource(path, **options).spec().create_reader(), splits)


@BOTH
def test_doubtful_numbers_and_decimals_stay_exact_beside_other_columns(
    tmp_path: Path, bad_rows: str
) -> None:
    """Arrow's own values of these columns are in doubt, so the file is opened again for their texts."""
    data = b"x,f,y,d\n1,9007199254740992,2,1.50\n3,0.1,4,2.25\n"
    rows = rows_of(tmp_path / "a.csv", data, schema="f double, d decimal(38,2)", bad_rows=bad_rows)

    assert [(row["f"], str(row["d"]), row["_rescued"]) for row in rows] == [
        (9007199254740992.0, "1.50", '{"x":"1","y":"2"}'),
        (0.1, "2.25", '{"x":"3","y":"4"}'),
    ]
    with pytest.raises(SourceError, match=r"'f'.*9007199254740993"):
        rows_of(tmp_path / "a.csv", data.replace(b"992,", b"993,"), schema="f double, d string")


@BOTH
@pytest.mark.parametrize("row", ["x,q,y", "x,1,\xff"])
def test_errors_of_files_with_more_columns_name_the_column(
    tmp_path: Path, row: str, bad_rows: str
) -> None:
    """At the reading too, whose file the listing has not sampled."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"c,a,b\nx,1,y\n")
    options: dict[str, Any] = {"schema": TWO, "rescued": "r", "changed_by": "size"}
    splits = contents(FileSource(path, **options).discover())
    path.write_bytes(b"c,a,b\n" + row.encode("latin-1")[:6] + b"\n" * (7 - len(row)))
    if bad_rows == "skip":
        source = FileSource(path, **options, bad_rows=tmp_path / "rejects")
        (batch,) = read_all(source.spec().create_reader(), splits).batches
        (reason,) = batch.column("reason").to_pylist()
    else:
        with pytest.raises(SourceError) as raised:
            read_all(FileSource(path, **options).spec().create_reader(), splits)
        reason = str(raised.value)
    assert ("column 'a'" if "q" in row else "column 'b'") in reason


def test_files_of_one_source_may_have_other_columns_each(tmp_path: Path) -> None:
    for name, text in {"1": "a,b\n1,x\n", "2": "a,c,b\n2,y,x\n", "3": "d,a,b\nz,3,x\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    source = FileSource(tmp_path, schema=TWO, rescued="more")
    read = read_all(source.spec().create_reader(), contents(source.discover()))

    assert sorted(read.rows) == [(1, "x", None), (2, "x", '{"c":"y"}'), (3, "x", '{"d":"z"}')]


def test_parts_of_a_file_have_the_columns_of_its_header(tmp_path: Path) -> None:
    data = b"a,c,b\n" + b"".join(b"%d,%d,x\n" % (n, n * n) for n in range(200))
    rescued = rescued_of(
        tmp_path / "a.csv", data, csv=CsvOptions(no_newlines_in_fields=True), split_bytes=100
    )

    assert rescued == [json.dumps({"c": str(n * n)}, separators=(",", ":")) for n in range(200)]


def test_a_field_of_the_name_of_the_column_is_kept_in_it(tmp_path: Path) -> None:
    assert rescued_of(tmp_path / "a.jsonl", b'{"a":1,"_rescued":2}\n') == ['{"_rescued":2}']
    assert rescued_of(tmp_path / "a.csv", b"a,b,_rescued\n1,x,2\n") == ['{"_rescued":"2"}']


def test_fields_within_a_column_of_the_schema_are_ignored_as_before(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path / "a.jsonl",
        b'{"a":{"x":1,"y":2}}\n{"a":{"x":3},"b":4}\n',
        schema="a struct<x:int>",
    )

    assert [(row["a"]["x"], row["_rescued"]) for row in rows] == [(1, None), (3, '{"b":4}')]


@BOTH
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a":2,"c":1,"c":2}', "'c' more than once"),
        (b'{"a":2,"c":NaN}', "'c'.*NaN"),
        (b'{"a":2,"c":["N",{"d":-Inf}]}', "'c'.*NaN"),
        (b'{"a":"q","c":1}', "string"),
    ],
)
def test_a_field_that_is_no_json_or_twice_is_a_bad_row(
    tmp_path: Path, line: bytes, words: str, bad_rows: str
) -> None:
    data = b'{"a":1,"c":"NaN, Inf"}\n' + line + b'\n{"a":3,"c":true}\n'
    if bad_rows == "skip":
        rows = rows_of(tmp_path / "a.jsonl", data, bad_rows=tmp_path / "rejects")
        assert [(row["a"], row["_rescued"]) for row in rows] == [
            (1, '{"c":"NaN, Inf"}'),
            (3, '{"c":true}'),
        ]
        return
    with pytest.raises(SourceError, match=f"line 2.*{words}"):
        rows_of(tmp_path / "a.jsonl", data)


def test_not_a_number_in_a_column_of_the_schema_does_not_depend_on_others(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "a.jsonl", b'{"a":-Inf}\n{"a":Inf,"c":1}\n', schema="a double")

    assert [(row["a"], row["_rescued"]) for row in rows] == [
        (float("-inf"), None),
        (float("inf"), '{"c":1}'),
    ]


@pytest.mark.parametrize("names", [["a\\b", "c"], ["a\\b"], ['"', ""], ["c|d", "c."]])
def test_names_of_columns_are_compared_as_they_are_meant(tmp_path: Path, names: list[str]) -> None:
    """A field that is written like a column may have another name: an escape is one character."""
    fields = {"a\\b": 1, "a\b": 2, "": 3, '"': 4, "c": 5, "c|d": 6, "cx": 7}
    schema = pa.schema([(name, pa.int64()) for name in names])
    (row,) = rows_of(tmp_path / "a.jsonl", json.dumps(fields).encode() + b"\n", schema=schema)
    further = {name: value for name, value in fields.items() if name not in names}

    assert json.loads(row.pop("_rescued")) == further
    assert row == {name: fields.get(name) for name in names}


def test_deep_and_long_values_are_kept(tmp_path: Path) -> None:
    deep, long = b"[" * 900 + b"]" * 900, b"9" * 6000
    data = b'{"c":' + deep + b',"d":' + long + b',"a":1}\n'

    assert rescued_of(tmp_path / "a.jsonl", data) == [
        '{"c":' + deep.decode() + ',"d":' + long.decode() + "}"
    ]


def test_rejects_have_the_text_and_good_rows_their_fields(tmp_path: Path) -> None:
    data = b"a,c,b\n1,x,y\n2,x\nq,x,y\n3,\xff,y\n4,z,y\n"
    (tmp_path / "a.csv").write_bytes(data)
    source = FileSource(
        tmp_path / "a.csv", schema=TWO, rescued="_rescued", bad_rows=tmp_path / "rejects"
    )
    read = read_all(source.spec().create_reader(), contents(source.discover()))
    good = [row for batch in read.batches if not are_rejects(batch) for row in batch.to_pylist()]
    bad = [row for batch in read.batches if are_rejects(batch) for row in batch.to_pylist()]

    assert [(row["a"], row["_rescued"]) for row in good] == [(1, '{"c":"x"}'), (4, '{"c":"z"}')]
    assert [(row["line"], row["row"]) for row in bad] == [
        (3, "2,x"),
        (4, "q,x,y"),
        (5, "3,\\xff,y"),
    ]
    assert bad[1]["reason"] == "column 'a': the value 'q' is no int64"
    assert bad[2]["reason"] == "column 'c': the text is not UTF-8"


def test_the_settled_schema_has_the_column_last(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,c,b\n1,2,3\n")
    settled = FileSource(tmp_path, schema=TWO, rescued="more").settle_schema()

    assert settled.equals(
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("more", pa.string())]),
        check_metadata=True,
    )
    coordinated = FileSource(tmp_path, schema=TWO, rescued="more").coordinated()
    assert coordinated.settle_schema(None).equals(settled, check_metadata=True)
    (split,) = FileSource(tmp_path, schema=TWO, rescued="more").discover().splits
    assert coordinated.schema_of(split).equals(settled, check_metadata=True)
    (tmp_path / "a.csv").write_bytes(b"a,b,more,c\n1,2,3,4\n")
    given = FileSource(tmp_path, schema=settled, rescued="rest")
    read = read_all(given.spec().create_reader(), contents(given.discover()))
    assert read.rows == [(1, "2", "3", '{"c":"4"}')]


def opened(source: FileSource, splits: list[bytes], state: bytes | None) -> FileReader:
    reader = source.spec().create_reader()
    assert isinstance(reader, FileReader)
    reader.open(FakeContext(), state)
    if state is None:
        reader.add_splits(splits)
    reader.notify_no_more_splits()
    return reader


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("had", [True, False])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_listed_split_keeps_its_column_whatever_the_option_is_now(
    tmp_path: Path, kind: Literal["csv", "jsonl"], *, had: bool, begun: bool
) -> None:
    """The schema is settled at the listing: with the column or without it."""
    path = tmp_path / f"a.{kind}"
    numbers = range(6)
    if kind == "csv":
        header, row = ("a,c\n", "%d,v\n") if had else ("a\n", "%d\n")
    else:
        header, row = "", '{"a": %d, "c": "v"}\n'
    path.write_text(header + "".join(row % number for number in numbers))
    with_it: dict[str, Any] = {"format": kind, "schema": "a int", "batch_rows": 1}
    with_it["rescued"] = "_rescued"
    without: dict[str, Any] = {**with_it, "rescued": None}
    first, then = (with_it, without) if had else (without, with_it)
    splits, state, read = contents(FileSource(path, **first).discover()), None, ReadOut()
    if begun:
        reader = opened(FileSource(path, **first), splits, None)
        read_on(reader, read, batches_max=2)
        state = reader.snapshot_state(1)
        reader.close()
    with closing(opened(FileSource(path, **then), splits, state)) as again:
        read_on(again, read)

    kept = '{"c":"v"}'
    assert read.rows == [(number, kept) if had else (number,) for number in numbers]


def test_a_split_with_the_column_needs_no_schema_to_go_on(tmp_path: Path) -> None:
    """Without `schema=` JSON fields beyond the settled ones are an error, but not those that are kept."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1,"c":2}\n{"a":3,"c":4}\n')
    splits = contents(FileSource(path, format="jsonl", schema="a int", rescued="r").discover())
    read = read_all(FileSource(path, format="jsonl").spec().create_reader(), splits)

    assert read.rows == [(1, '{"c":2}'), (3, '{"c":4}')]
    path.write_bytes(b'{"a":1,"c":2}\n{"a":"q","c":4}\n')
    with pytest.raises(SourceError, match=r"line 2.*string"):
        read_all(FileSource(path, format="jsonl").spec().create_reader(), splits)


@pytest.mark.parametrize("had", [True, False])
def test_new_files_of_a_job_must_have_the_settled_column(tmp_path: Path, *, had: bool) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    with_it = FileSource(tmp_path, schema="a int", rescued="more")
    without = FileSource(tmp_path, schema="a int" if had else "a int, more string")
    first, then = (with_it, without) if had else (without, with_it)
    if not had:
        (tmp_path / "a.csv").write_text("a,more\n1,x\n")
    known = first.discover().splits
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text())

    with pytest.raises(SourceError, match=r"'more'.*rescued"):
        then.discover_again(known)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rescued": "more"}, "rescued is 'more'; it must be .*schema="),
        ({"schema": "a int, more string", "rescued": "more"}, "that `schema` does not have"),
        ({"schema": "a int", "rescued": ""}, "a name"),
        ({"schema": "a int", "rescued": "r", "csv": CsvOptions(column_names=["a"])}, "header"),
        ({"schema": "a int", "rescued": "r", "format": "parquet"}, "csv and jsonl"),
        ({"rescued": "r", "format": "text"}, "csv and jsonl"),
    ],
)
def test_the_option_is_refused_if_it_can_have_no_effect(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        FileSource(tmp_path, **options)


@pytest.mark.parametrize("text", ["back\\slash", "tab\there", "\x01"])
def test_texts_of_csv_with_escapes_are_whole_json(tmp_path: Path, text: str) -> None:
    (rescued,) = rescued_of(tmp_path / "a.csv", f"a,b,c\n1,x,{text}\n".encode())

    assert json.loads(rescued or "") == {"c": text}
