"""A corpus of awkward files, made anew for each test: what other systems write, and what goes wrong in folders.

Each case has its files, the options of the source, and what is expected: rows, or a part of the error. Rows are
written by hand; `test_awkward_files.py` compares them with an independent reader too, where there is one.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from coordlog.spark_integration.files.formats.csv.options import CsvOptions

__all__ = ["CASES", "PACKINGS", "Case", "packed"]

Row = tuple[object, ...]
TEXT = pa.schema({"a": pa.string(), "b": pa.string()})
PACKINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
    ".lz4": lambda data: bytes(pa.compress(data, codec="lz4", asbytes=True)),
}
"""By the end of the name."""


def packed(data: bytes, end: str, folder: Path) -> bytes:
    """The bytes as a file of this end holds them."""
    if end not in (".zst", ".lz4"):
        return PACKINGS[end](data)
    path = folder / f"packed{end}"  # Arrow's streams have the frames that files need
    with pa.output_stream(str(path)) as out:
        out.write(data)
    content = path.read_bytes()
    path.unlink()
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Some files, and what is read of them."""

    name: str
    files: Mapping[str, bytes]
    rows: tuple[Row, ...] | None = None
    """Of all files, in the order of their names; None: the files are refused."""
    error: str = ""
    """A part of what is said then, as a regular expression."""
    or_refused: bool = False
    """Whether a refusal is as good: what must not be is another row."""
    options: Mapping[str, object] = field(default_factory=dict)
    twin: bool = True
    """Whether an independent reader takes the files too."""


def _csv(name: str, content: bytes, *rows: Row, **more: object) -> Case:
    options = {"schema": TEXT, "csv": CsvOptions(null_values=()), **more.pop("options", {})}  # type: ignore[dict-item]
    return Case(name=name, files={"a.csv": content}, rows=rows, options=options, **more)  # type: ignore[arg-type]


def _refused(name: str, error: str, files: Mapping[str, bytes], **options: object) -> Case:
    return Case(name=name, files=files, error=error, options=options, twin=False)


CSV: tuple[Case, ...] = (
    _csv("a delimiter in quotes", b'a,b\n"x,y",z\n', ("x,y", "z")),
    _csv("a quote in quotes", b'a,b\n"say ""hi""",z\n', ('say "hi"', "z")),
    _csv("LF in quotes", b'a,b\n"x\ny",z\n', ("x\ny", "z")),
    _csv("CR LF in quotes", b'a,b\r\n"x\r\ny",z\r\n', ("x\r\ny", "z")),
    _csv("CR in quotes", b'a,b\r\n"x\ry",z\r\n', ("x\ry", "z")),
    _csv("line ends alone in quotes", b'a,b\r\n"\r\n\r\n",z\r\n', ("\r\n\r\n", "z")),
    _csv("CR as line end", b"a,b\r1,2\r3,4\r", ("1", "2"), ("3", "4"), twin=False),
    _csv("no line end at the end", b"a,b\n1,2", ("1", "2")),
    _csv("empty lines", b"a,b\n\n1,2\n\n\n3,4\n\n", ("1", "2"), ("3", "4")),
    _csv("blanks around fields", b"a,b\n 1 , 2\n", (" 1 ", " 2")),
    _csv("empty fields", b'a,b\n,\n"",x\n', ("", ""), ("", "x")),
    _csv("UTF-8 with its mark", b"\xef\xbb\xbfa,b\n\xc3\xa4,2\n", ("ä", "2")),
    _csv("characters of four bytes", "a,b\n🚂,日本\n".encode(), ("🚂", "日本")),
    _csv("a header only", b"a,b\n"),
    _csv("a header without a line end", b"a,b"),
    _csv(
        "UTF-16 with its mark",
        "a,b\nä,2\n".encode("utf-16"),
        ("ä", "2"),
        options={"encoding": "utf-16"},
        twin=False,
    ),
    _csv(
        "UTF-16 without a mark",
        "a,b\r\nä,2\r\n".encode("utf-16-le"),
        ("ä", "2"),
        options={"encoding": "utf-16-le"},
        twin=False,
    ),
    _csv("Latin-1", b"a,b\n\xe4,2\n", ("ä", "2"), options={"encoding": "latin-1"}, twin=False),
    _refused(
        "UTF-16 that is not told", "byte order mark of utf-16", {"a.csv": "a\n1\n".encode("utf-16")}
    ),
    _refused("Latin-1 that is not told", r"(not UTF-8|not utf-8)", {"a.csv": b"a\n\xe4\n"}),
    _refused("a row too short", r"has 1 fields.*2 are expected", {"a.csv": b"a,b\n1,2\n3\n"}),
    _refused("a row too long", r"has 3 fields.*2 are expected", {"a.csv": b"a,b\n1,2\n3,4,5\n"}),
    _refused("a quote that is never closed", r"a\.csv", {"a.csv": b'a,b\n"1,2\n3,4\n'}),
    _refused("a column twice", r"columns of one name: \['a'\]", {"a.csv": b"a,a\n1,2\n"}),
    _refused("two headers", "its schema is not that", {"a.csv": b"a\n1\n", "b.csv": b"b\n1\n"}),
    _refused(
        "a packed file that is cut off",
        "cannot be read on",
        {"a.csv.gz": gzip.compress(b"a\n1\n")[:-8]},
    ),
    _refused("an archive", r"\.zip files are not read", {"a.zip": b"PK\x03\x04"}),
)
IDS = (12345678901234567890, 12345678901234567891)
EXACT: tuple[Case, ...] = (
    Case(
        name="ids of 20 digits in CSV",
        files={"a.csv": f"a\n{IDS[0]}\n{IDS[1]}\n".encode()},
        rows=tuple((one,) for one in IDS),
        or_refused=True,
    ),
    Case(
        name="ids of 20 digits in JSON lines",
        files={"a.json": f'{{"a": {IDS[0]}}}\n{{"a": {IDS[1]}}}\n'.encode()},
        rows=tuple((one,) for one in IDS),
        or_refused=True,
        options={"format": "jsonl"},
    ),
    Case(
        name="times with offsets in CSV",
        files={"a.csv": b"a\n2026-01-31T12:00:00+02:00\n"},
        rows=(("2026-01-31T10:00:00+00:00",),),
        or_refused=True,
    ),
    Case(
        name="times with offsets in JSON lines",
        files={"a.json": b'{"a": "2026-01-31T12:00:00+02:00"}\n'},
        rows=(("2026-01-31T10:00:00+00:00",),),
        or_refused=True,
        options={"format": "jsonl"},
    ),
)
NOT_NULL: tuple[Case, ...] = (
    _refused(
        "no value in a column that has no nulls",
        "row 3 .*, column 'a': the value null is no int64 not null",
        {"a.csv": b"a,b\n1,2\n,3\n"},
        schema="a bigint not null, b bigint",
    ),
    _refused(
        "no field in a column that has no nulls",
        r"line 2: field 'a': .* is no int64 not null",
        {"a.json": b'{"a": 1}\n{"b": 1}\n'},
        format="jsonl",
        schema="a bigint not null, b bigint",
    ),
    Case(
        name="values in a column that has no nulls",
        files={"a.csv": b"a,b\n1,2\n3,\n"},
        rows=((1, 2), (3, None)),
        options={"schema": "a bigint not null, b bigint"},
        twin=False,
    ),
    Case(
        name="bytes that are no text",
        files={"a.csv": b"a\n\xff\n"},
        rows=((b"\xff",),),
        options={"schema": "a binary"},
        twin=False,
    ),
)
JSON: tuple[Case, ...] = (
    Case(
        name="nested JSON",
        files={"a.json": b'{"a": {"b": [1, 2], "c": null}, "d": [{"e": "x"}]}\n{"a": {"b": []}}\n'},
        rows=(({"b": [1, 2], "c": None}, [{"e": "x"}]), ({"b": [], "c": None}, None)),
        options={"format": "jsonl"},
    ),
    Case(
        name="JSON with line ends, quotes and characters in strings",
        files={"a.json": b'{"a": "x\\r\\ny", "b": "\\"\\u00e4\\ud83d\\ude82"}\r\n\r\n{"a": ""}'},
        rows=(("x\r\ny", '"ä🚂'), ("", None)),
        options={"format": "jsonl"},
    ),
    Case(
        name="JSON with the mark of UTF-8",
        files={"a.json": b'\xef\xbb\xbf{"a": 1}\n'},
        rows=((1,),),
        options={"format": "jsonl"},
        twin=False,
    ),
    Case(
        name="text with line ends of two kinds",
        files={"a.txt": b"x\r\ny\n\nz"},
        rows=(("x",), ("y",), ("",), ("z",)),
        options={"format": "text"},
        twin=False,
    ),
    Case(
        name="JSON with lists of nulls alone",
        files={"a.json": b'{"a": {"b": [null, null]}, "c": [[null], null]}\n{"a": {"b": []}}\n'},
        rows=(({"b": [None, None]}, [[None], None]), ({"b": []}, None)),
        options={"format": "jsonl"},
    ),
    # Each of these has ended the process that read it.
    _refused(
        "a null first", "line 1 is no JSON object", {"a": b'null\n{"a": 1}\n'}, format="jsonl"
    ),
    _refused(
        "nulls where columns are given",
        "line 2 is no JSON object",
        {"a": b"\nnull\nnull\n"},
        format="jsonl",
        schema="a bigint",
    ),
    _refused(
        "JSON nested very deep",
        "nested more than 100 deep",
        {"a": b'{"a": ' + b"[" * 30_000 + b"]" * 30_000 + b"}\n"},
        format="jsonl",
    ),
    _refused(
        "a large number beside what is nested very deep",
        "nested too deep",
        {"a": b'{"a": 9007199254740993, "b": ' + b"[" * 30_000 + b"]" * 30_000 + b"}\n"},
        format="jsonl",
        schema="a double",
    ),
    # This one was a row of nulls.
    _refused(
        "a null later", "line 2 is no JSON object", {"a": b'{"a": 1}\nnull\n'}, format="jsonl"
    ),
    _refused("JSON in a list", "no JSON object", {"a": b'[{"a": 1}]\n'}, format="jsonl"),
    _refused(
        "JSON with CR as line end", "make LF of it", {"a": b'{"a": 1}\r{"a": 2}\r'}, format="jsonl"
    ),
    _refused("JSON that is cut off", "is cut off", {"a": b'{"a": 1}\n{"a": '}, format="jsonl"),
    _refused(
        "two objects on a line",
        r"no JSON|one JSON object",
        {"a": b'{"a": 1}{"a": 2}\n'},
        format="jsonl",
    ),
)
NAMES: tuple[Case, ...] = tuple(
    Case(name=f"a name with {what}", files={name: b"a\n1\n"}, rows=((1,),), twin=False)
    for what, name in (
        ("blanks", "a b .csv"),
        ("a hash", "a#bytes=0-2.csv"),
        ("a per cent sign", "a%20b.csv"),
        ("wildcards", "a[1]*?.csv"),
        ("quotes", "a'\"b.csv"),
        ("a line end", "a\nb.csv"),
        ("a colon", "a::b.csv"),
        ("letters of another script", "日本.csv"),
    )
)
CASES: tuple[Case, ...] = (*CSV, *EXACT, *NOT_NULL, *JSON, *NAMES)
