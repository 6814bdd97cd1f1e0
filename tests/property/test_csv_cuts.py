"""Wherever a CSV file is cut, its parts have together the rows of the whole, each once."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.formats.text import text_bytes
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import encode_schema, encode_split
from fakes.chain_fakes import contents, read_all

BOM = b"\xef\xbb\xbf"
FILES = {
    "LF": b"a,b\n1,x\n22,yy\n333,zzz\n",
    "CR LF": b"a,b\r\n1,x\r\n22,yy\r\n333,zzz\r\n",
    "CR": b"a,b\r1,x\r22,yy\r333,zzz\r",
    "mixed line ends": b"a,b\n1,x\r\n22,yy\r333,zzz\n\r4,w\r\r\n5,v",
    "no line end at the end": b"a,b\n1,x\n22,yy",
    "CR LF without the last one": b"a,b\r\n1,x\r\n22,yy",
    "an empty last line": b"a,b\n1,x\n\n",
    "empty lines everywhere": b"\n\r\n\na,b\n\n1,x\n\n\n22,yy\n\n",
    "characters of several bytes": "ä,ö\nß,→\n日本,語\n🚂,🛤\n".encode(),
    "a byte order mark": BOM + b"a,b\n1,x\n22,yy\n",
    "a byte order mark before an empty line": BOM + b"\r\na,b\n1,x\n",
    "quotes": b'a,b\n"1,1","x""x"\n"",""\n"3",z\n',
    "empty fields": b"a,b\n,\n,\n,x\n",
    "a header only": b"a,b\n",
    "a header only, without a line end": b"a,b",
    "one column": b"a\n1\n\n22\n\n333",
    "a line longer than the others": b"a,b\n1," + b"x" * 90 + b"\n2,y\n",
}
NAMELESS = {
    "LF": b"1,x\n22,yy\n333,zzz\n",
    "CR LF without the last one": b"1,x\r\n22,yy\r\n333,zzz",
    "a byte order mark": BOM + b"1,x\n22,yy\n",
    "empty lines first": b"\n\r\n1,x\n22,yy\n",
    "one line": b"1,x",
}


def twin_rows(data: bytes, *, encoding: str = "utf-8-sig") -> list[tuple[str, ...]]:
    """The rows as Python's own csv module has them, the header included."""
    text = io.StringIO(data.decode(encoding), newline="")
    return [tuple(row) for row in csv.reader(text) if row]


def part(path: Path, start: int, end: int, names: list[str]) -> bytes:
    return encode_split(
        FileSplit(
            split_id=f"{start}-{end}",
            path=str(path),
            size_bytes=path.stat().st_size,
            mark="",
            real_path="",
            parts=2,
            listed_by="",
            start=start,
            end=end,
            arrow_schema=encode_schema(strings(names)),
        )
    )


def strings(names: list[str]) -> pa.Schema:
    return pa.schema([pa.field(name, pa.string()) for name in names])


def source_of(
    path: Path, names: list[str], *, split_bytes: int, headless: bool, block_bytes: int = 4096
) -> FileSource:
    return FileSource(
        path,
        schema=strings(names),
        csv=CsvOptions(
            column_names=names if headless else None, null_values=(), no_newlines_in_fields=True
        ),
        split_bytes=split_bytes,
        block_bytes=block_bytes,
    )


def twin_line_start(data: bytes, cut: int) -> int:
    """Looks at every line of the whole, where `line_start` looks from the cut on only."""
    starts, at = [0], 0
    for line in re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)", data):
        at += len(line)
        starts.append(at)
    return min([start for start in starts if start >= cut], default=len(data))


@pytest.mark.parametrize("scan_bytes", [1, 2, 3, 7, 10_000])
def test_a_line_belongs_to_the_part_that_holds_its_first_byte(
    scan_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_bytes, "_SCAN_BYTES", scan_bytes)
    for data in (*FILES.values(), *NAMELESS.values(), b"\r\r\n\n\r"):
        for cut in range(len(data) + 1):
            found = text_bytes.line_start(io.BytesIO(data), cut, len(data))
            assert found == twin_line_start(data, cut), (data, cut)


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_byte_has_the_rows_of_the_whole(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(FILES[name])
    header, *expected = twin_rows(FILES[name])
    source = source_of(path, list(header), split_bytes=10_000, headless=False)
    create_reader = source.spec().create_reader
    size = path.stat().st_size

    assert read_all(create_reader(), contents(source.discover())).rows == expected
    for cut in range(1, size):
        parts = [part(path, 0, cut, list(header)), part(path, cut, size, list(header))]
        out = read_all(create_reader(), parts)
        assert out.rows == expected, f"cut at byte {cut}"
        assert sum(one.rows for one in out.finished) == len(expected)


@pytest.mark.parametrize("name", NAMELESS)
def test_a_file_without_a_header_cut_at_any_byte_has_the_rows_of_the_whole(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(NAMELESS[name])
    expected = twin_rows(NAMELESS[name])
    create_reader = source_of(path, ["a", "b"], split_bytes=1, headless=True).spec().create_reader
    size = path.stat().st_size

    for cut in range(1, size):
        parts = [part(path, 0, cut, ["a", "b"]), part(path, cut, size, ["a", "b"])]
        assert read_all(create_reader(), parts).rows == expected, f"cut at byte {cut}"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_every_byte_at_once_has_the_rows_of_the_whole(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(FILES[name])
    header, *expected = twin_rows(FILES[name])
    source = source_of(path, list(header), split_bytes=1, headless=False)
    found = source.discover()

    assert len(found.splits) == path.stat().st_size
    assert read_all(source.spec().create_reader(), contents(found)).rows == expected


FIELD = st.text(st.sampled_from('ab1 ,"äß→日🚂\u2028\x85'), max_size=5)
LINE_END = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def csv_files(draw: st.DrawFn) -> bytes:
    """Files of which no field holds LF or CR, with empty lines between, ended or not."""
    width = draw(st.integers(1, 3))
    rows = draw(st.lists(st.lists(FIELD, min_size=width, max_size=width), max_size=8))
    text = ""
    for row in [[f"c{i}" for i in range(width)], *rows]:
        line = io.StringIO()
        if draw(st.booleans()):
            csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="").writerow(row)
        else:
            csv.writer(line, lineterminator="").writerow(row)
        text += line.getvalue() + draw(LINE_END) * draw(st.integers(1, 2))
    if draw(st.booleans()):
        text = text.rstrip("\r\n")
    return (BOM if draw(st.booleans()) else b"") + text.encode()


@pytest.mark.slow
@settings(max_examples=150)
@given(data=csv_files(), split_bytes=st.integers(1, 300), block_bytes=st.sampled_from([128, 4096]))
def test_any_file_cut_into_parts_of_any_size_has_its_rows(
    data: bytes, split_bytes: int, block_bytes: int
) -> None:
    header, *expected = twin_rows(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_bytes(data)
        source = source_of(
            path,
            list(header),
            split_bytes=split_bytes,
            headless=False,
            block_bytes=block_bytes,
        )

        out = read_all(source.spec().create_reader(), contents(source.discover()))

    assert out.rows == expected


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "koi8-r"])
def test_a_file_of_one_byte_characters_is_cut_as_well(encoding: str, tmp_path: Path) -> None:
    text = "a,b\n1,®\n22,°\n" if encoding == "latin-1" else "a,b\r\n1,°\r\n22,÷\r\n"
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode(encoding))
    source = FileSource(
        path,
        schema=strings(["a", "b"]),
        encoding=encoding,
        csv=CsvOptions(no_newlines_in_fields=True),
        split_bytes=1,
    )
    found = source.discover()

    assert len(found.splits) == path.stat().st_size
    _, *expected = twin_rows(path.read_bytes(), encoding=encoding)
    assert read_all(source.spec().create_reader(), contents(found)).rows == expected
