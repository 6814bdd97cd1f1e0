"""Each format of a file source, packed in each way, and what is said of files that are not right."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.errors import OptionError, SourceError
from coordlog.spark_integration.files.faults import is_fault_of_file
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.source import FileSource, Format
from coordlog.spark_integration.files.source.split_bytes import (
    decode_split,
    decode_state,
)
from fakes.chain_fakes import ReadOut, contents, read_all

ROWS = [(1, "x"), (2, "zwei, zwölf"), (3, "")]
LINES = ["one", "", "drei é", "  four  "]
PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "none": ("", bytes),
    "gzip": (".gz", gzip.compress),
    "bz2": (".bz2", bz2.compress),
    "zstd": (".zst", lambda data: pa.compress(data, "zstd", asbytes=True)),
    "xz": (".xz", lzma.compress),
    "lz4": (".lz4", lambda data: pa.compress(data, "lz4", asbytes=True)),
}


def content_of(name: Format) -> bytes:
    if name == "csv":
        return b'i,s\n1,x\n2,"zwei, zw\xc3\xb6lf"\n3,""\n'
    if name == "jsonl":
        return "".join(json.dumps({"i": i, "s": s}) + "\n" for i, s in ROWS).encode()
    return "".join(f"{line}\n" for line in LINES).encode()


def expected_of(name: Format) -> list[tuple[object, ...]]:
    if name == "csv":  # the empty field is null unless another word is
        return [(1, "x"), (2, "zwei, zwölf"), (3, None)]
    return [*ROWS] if name == "jsonl" else [(line,) for line in LINES]


def read(source: FileSource) -> ReadOut:
    return read_all(source.spec().create_reader(), contents(source.discover()))


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def refusal(do: Callable[[], object]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        do()
    assert caught.value.next_step
    return caught.value


# --- formats and compression ----------------------------------------------------------------------
@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("name", ["csv", "jsonl", "text"])
def test_a_format_is_read_packed_in_any_way_by_its_name_or_as_told(
    name: Format, packing: str, tmp_path: Path
) -> None:
    end, pack = PACKERS[packing]
    named = write(tmp_path / f"a.{name}{end}", pack(content_of(name)))
    told = write(tmp_path / "told", pack(content_of(name)))

    assert read(FileSource(named, format=name)).rows == expected_of(name)
    out = read(FileSource(told, format=name, compression=packing))  # type: ignore[arg-type]
    assert out.rows == expected_of(name)


def lines_of(tmp_path: Path, packing: str, *parts: bytes) -> list[object]:
    path = write(tmp_path / f"a{PACKERS[packing][0]}", b"".join(parts))
    return [row[0] for row in read(FileSource(path, format="text")).rows]


@pytest.mark.parametrize("packing", [one for one in PACKERS if one != "none"])
def test_members_of_a_packed_file_are_read_one_after_the_other(
    packing: str, tmp_path: Path
) -> None:
    pack = PACKERS[packing][1]
    one, two, none = pack(b"a\nb\n"), pack(b"c\n"), pack(b"")

    for parts in ((one, two), (one, none, two), (none, one, two), (one, two, none)):
        assert lines_of(tmp_path, packing, *parts) == ["a", "b", "c"]


@pytest.mark.parametrize("packing", [one for one in PACKERS if one != "none"])
def test_a_member_that_is_damaged_cut_or_none_at_all_is_an_error(
    packing: str, tmp_path: Path
) -> None:
    """What follows a whole member may be half of the file."""
    pack = PACKERS[packing][1]
    noise = "".join(f"{n} {random.Random(n).random()}\n" for n in range(1000)).encode()
    one, two = pack(noise), pack(noise)
    middle = len(two) // 2
    damaged = [
        bytes([two[0] ^ 1]) + two[1:],
        two[:3],
        two[:middle],
        two[:-5],
        b"garbage garbage",
    ]
    if packing in ("gzip", "bz2", "xz"):  # Arrow packs the others without a checksum
        damaged.append(two[:middle] + bytes([two[middle] ^ 0xFF]) + two[middle + 1 :])
    if packing == "xz":
        damaged += [two[:8] + bytes([two[8] ^ 0xFF]) + two[9:], b"\0" * 3, b"\0" * 7 + two]

    for rest in damaged:
        with pytest.raises(SourceError, match="cannot be read on after") as caught:
            lines_of(tmp_path, packing, one, rest)
        assert is_fault_of_file(caught.value, FileSource(tmp_path)._discovery.files)


def test_what_pads_the_streams_of_an_xz_file_is_passed_over(tmp_path: Path) -> None:
    one, two = lzma.compress(b"a\n"), lzma.compress(b"b\n")

    assert lines_of(tmp_path, "xz", one, b"\0" * 4, two, b"\0" * 200_000) == ["a", "b"]
    old = lzma.compress(b"a\n", format=lzma.FORMAT_ALONE)
    assert lines_of(tmp_path, "xz", old) == ["a"]


@pytest.mark.parametrize("name", ["csv", "jsonl", "text"])
@pytest.mark.parametrize("packing", [one for one in PACKERS if one != "none"])
def test_a_truncated_compressed_file_is_an_error_with_its_name(
    name: Format, packing: str, tmp_path: Path
) -> None:
    end, pack = PACKERS[packing]
    chance = random.Random(1)  # what does not pack well, so that the cut is in the middle
    noise = [chance.randbytes(40).hex() for _ in range(500)]
    head = {"csv": "s\n", "jsonl": "", "text": ""}[name]
    lines = [f'{{"s": "{one}"}}' if name == "jsonl" else one for one in noise]
    whole = pack((head + "\n".join(lines) + "\n").encode())
    path = write(tmp_path / f"a{end}", whole[: len(whole) // 2])

    error = refusal(lambda: read(FileSource(path, format=name)))

    assert error.where == str(path)
    assert "cannot be read on after" in error.problem
    assert "unpacked bytes" in error.problem


def test_one_that_is_no_compression_is_refused_and_parquet_has_its_own(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="compression is 'rar'"):
        FileSource(tmp_path, compression="rar")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="Parquet packs its columns"):
        FileSource(tmp_path, format="parquet", compression="gzip")
    path = write(tmp_path / "a.parquet.gz", b"x")
    assert "packed as a whole" in refusal(FileSource(path, format="parquet").discover).problem


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["jsonl", "text"])
def test_lines_cut_anywhere_are_the_lines_of_the_whole(
    name: Format, ends: str, tmp_path: Path
) -> None:
    lines = ['{"a": "a\\rb"}', '{"a": "é"}', "", '{"a": "日本"}', '{"a": "' + "x" * 30 + '"}']
    for last in ("", ends):
        path = write(tmp_path / "a", ends.join(lines) + last)
        whole = read(FileSource(path, format=name)).rows
        assert len(whole) == (4 if name == "jsonl" else 5)
        for step in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            source = FileSource(path, format=name, split_bytes=step, block_bytes=64)
            out = read(source)
            assert out.rows == whole, f"split at each {step} bytes"
            assert sum(one.rows for one in out.finished) == len(whole)


def test_a_carriage_return_within_a_line_of_text_ends_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "10%\r20%\r100%\nnext\r\n")

    for step in range(1, 20):
        rows = read(FileSource(path, format="text", split_bytes=step)).rows
        assert rows == [("10%\r20%\r100%",), ("next",)]


def test_lines_of_another_encoding_are_read_as_told(tmp_path: Path) -> None:
    for encoding in ("latin-1", "utf-16", "utf-8-sig"):
        path = write(tmp_path / encoding, '{"a": "é"}\n'.encode(encoding))
        assert read(FileSource(path, format="jsonl", encoding=encoding)).rows == [("é",)]
        text = FileSource(path, format="text", encoding=encoding, split_bytes=3)
        assert read(text).rows == [('{"a": "é"}',)]
    error = refusal(lambda: read(FileSource(tmp_path / "latin-1", format="text")))
    assert error.problem == "line 1 is not utf-8: invalid continuation byte (0xe9)"


def test_a_line_longer_than_a_block_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "x\n" * 3 + "y" * 200 + "\n")

    error = refusal(lambda: read(FileSource(path, format="text", block_bytes=100)))
    assert error.problem == "line 4 is longer than a block of 100 bytes"
    assert "`block_bytes=`" in error.next_step


# --- JSON lines -----------------------------------------------------------------------------------
def test_fields_and_types_of_json_lines_are_those_of_all_sampled_files(tmp_path: Path) -> None:
    write(tmp_path / "a", '{"i": 1, "n": null, "l": [], "o": {"x": 1}, "t": "2013-01-01"}\n')
    write(tmp_path / "b", '{"i": 1.5, "l": [1], "o": {"y": "z"}, "t": "soon", "e": true}\n')

    source = FileSource(tmp_path, format="jsonl")

    assert source.settle_schema() == pa.schema(
        {
            "i": pa.float64(),
            "n": pa.string(),
            "l": pa.list_(pa.int64()),
            "o": pa.struct({"x": pa.int64(), "y": pa.string()}),
            "t": pa.string(),
            "e": pa.bool_(),
        }
    )
    assert read(source).rows == [
        (1.0, None, [], {"x": 1, "y": None}, "2013-01-01", None),
        (1.5, None, [1], {"x": None, "y": "z"}, "soon", True),
    ]


def test_a_given_schema_picks_the_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a", '{"i": 1, "s": "x"}\n{"s": "y", "more": 1}\n')
    schema = pa.schema({"s": pa.string(), "i": pa.int32()})

    out = read(FileSource(path, format="jsonl", schema=schema))
    assert out.rows == [("x", 1), ("y", None)]
    assert out.batches[0].schema == schema


def test_a_json_file_that_was_cut_in_its_last_line_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"i": 1}\n{"i": 2}\n{"i": 3, "na')

    error = refusal(FileSource(path, format="jsonl").discover)
    assert error.where == str(path)
    assert error.problem == (
        "its last line, line 3, is cut off: it has no line end and is no whole object: "
        '\'{"i": 3, "na\''
    )
    assert "rename" in error.next_step


def test_objects_on_one_line_without_an_end_are_not_called_cut_off(tmp_path: Path) -> None:
    """As Firehose writes them: the file is whole."""
    path = write(tmp_path / "a.jsonl", '{"i": 1}{"i": 2}')

    error = refusal(FileSource(path, format="jsonl").discover)
    assert error.problem.startswith("line 1 is no JSON: a line must be one JSON object: ")
    assert "one object each" in error.next_step


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"i": }', "is no JSON: Invalid value."),
        ("[1]", "is no JSON object"),
        ('{"i": 1}{"i": 2}', "a line must be one JSON object"),
        ('{"i": "x"}', "Column(/i) changed from number to string"),
        ('{"i": 1.5}', "couldn't parse:1.5"),
        ('{"i": 1, "new": 2}', "it has the fields ['new'], which the source has not; those are"),
        ('{"o": {"deep": 2}}', "unexpected field"),
    ],
)
def test_a_line_of_json_that_does_not_fit_is_named_wherever_it_is(
    line: str, problem: str, tmp_path: Path
) -> None:
    good = '{"i": 1, "o": {"x": 1}}\n'
    path = write(tmp_path / "a", good * 41)
    source = FileSource(tmp_path, format="jsonl", block_bytes=64)
    splits = contents(source.discover())
    write(path, f"{good * 41}{line}\n{good}")
    source = FileSource(tmp_path, format="jsonl", block_bytes=64)  # a new run reads what is there

    error = refusal(lambda: read_all(source.spec().create_reader(), splits))

    assert error.where == str(path)
    assert error.problem.startswith("line 42")
    assert problem in error.problem


def test_json_files_of_incompatible_types_are_refused_with_the_difference(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a", '{"i": 1, "s": "x"}\n')
    write(tmp_path / "b", '{"i": "one", "s": "x"}\n')

    error = refusal(FileSource(tmp_path, format="jsonl").discover)
    assert error.where == str(tmp_path / "b")
    assert error.problem == (
        f"its schema is not that of the source ({tmp_path / 'a'}): 'i' is string and not int64"
    )


def test_json_without_a_field_is_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "a", "{}\n\n")
    hollow = write(tmp_path / "b", '{"o": {}}\n')

    assert "no object with a field" in refusal(FileSource(empty, format="jsonl").discover).problem
    error = refusal(FileSource(hollow, format="jsonl").discover)
    assert error.problem.startswith("field 'o' is an empty object")


# --- CSV and Parquet that are not right -----------------------------------------------------------
def test_a_csv_row_with_too_many_fields_is_named_with_both_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2\n3,4,5\n")

    error = refusal(lambda: read(FileSource(path)))
    assert error.where == str(path)
    assert error.problem == ("row 3 (a header is row 1) has 3 fields where 2 are expected: '3,4,5'")


def test_a_parquet_file_that_was_cut_is_named_with_its_size(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": list(range(1000))}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    path = write(tmp_path / "b.parquet", data[: len(data) // 2])

    error = refusal(FileSource(tmp_path, format="parquet").discover)
    assert error.where == str(path)
    assert f"it cannot be read as Parquet ({len(data) // 2} bytes): " in error.problem
    assert "rename" in error.next_step


def test_files_that_may_differ_are_read_with_a_schema_each(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"i": pa.array([2], pa.int64()), "j": ["x"]}), tmp_path / "b.parquet")

    out = read(FileSource(tmp_path, format="parquet", schemas="each"))
    assert [str(batch.schema.field("i").type) for batch in out.batches] == ["int32", "int64"]
    assert out.batches[1].schema.names == ["i", "j"]


def test_a_difference_of_schemas_names_every_column_of_it(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [1], "c": ["x"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [1], "b": [1.5], "d": ["x"]}), tmp_path / "2.parquet")

    error = refusal(FileSource(tmp_path, format="parquet").discover)
    assert error.problem.partition("): ")[2] == (
        "it has 'd' (string), which the source has not; it has no 'c' (string), which the source "
        "has; 'b' is double and not int64"
    )


# --- URLs -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["csv", "jsonl", "text"])
def test_a_format_is_read_from_a_url_in_splits(name: Format) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe(f"/formats/{name}/a.x", content_of(name))
    memory.pipe(f"/formats/{name}/b.x.gz", gzip.compress(content_of(name)))
    source = FileSource(
        f"memory://formats/{name}",
        format=name,
        split_bytes=9,
        csv=CsvOptions(no_newlines_in_fields=name == "csv"),
    )

    splits = source.discover().splits
    assert len(splits) > 2
    assert read(source).rows == expected_of(name) * 2


def test_parquet_is_read_from_a_url() -> None:
    with fsspec.open("memory://formats/parquet/a.parquet", "wb") as file:
        pq.write_table(pa.table({"i": list(range(50))}), file, row_group_size=10)

    source = FileSource("memory://formats/parquet", format="parquet", split_bytes=200)
    assert len(source.discover().splits) > 1
    assert read(source).rows == [(i,) for i in range(50)]


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAX:hunter2@bucket/in",
        "https://hunter2@host/in/a.csv",
        "ftp://someone:hunter2@host/in",
        "simplecache::https://u:hunter2@host/in",
        "https://host/a.csv?X-Amz-Signature=hunter2&x=1",
        "https://host/a.csv?sig=hunter2",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        FileSource(url)

    assert "without credentials" in str(caught.value)
    assert "environment" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize(
    "url", ["abfs://container@account.example/in", "sftp://user@host/in", "https://h/a@b.csv"]
)
def test_a_name_alone_is_no_credential(url: str) -> None:
    FileSource(url)


def test_a_scheme_whose_package_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)

    error = refusal(FileSource("gs://bucket/in").discover)
    assert error.where == "gs://bucket/in"
    assert "gs:// need a package that is not installed" in error.problem
    assert "pip install 'gcsfs'" in error.next_step


@pytest.mark.parametrize("name", ["/listed/in/../secret.csv", "/listed/in/a/../../../x.csv"])
def test_a_listed_name_that_leads_out_of_the_source_is_refused_by_name(name: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe("/listed/in/a.csv", b"i\n1\n")
    memory.pipe(name, b"i\n1\n")

    error = refusal(FileSource("memory://listed/in").discover)
    memory.store.clear()

    assert error.where == name
    assert "leads out of it" in error.problem


# --- versions -------------------------------------------------------------------------------------
def test_a_split_and_a_state_of_another_version_are_refused_by_number() -> None:
    with pytest.raises(ValueError, match=r"file_split of version 9; this coordlog reads 1"):
        decode_split(b"\x09rest")
    with pytest.raises(ValueError, match="file_reader_state of version None"):
        decode_state(b"")
