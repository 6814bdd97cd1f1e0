"""A split is read on as it was begun, whatever the options are when its job goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from coordlog.errors import OptionError, SourceError
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.reader import FileReader, merge_reader_states
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import decode_state
from fakes.chain_fakes import FakeContext, ReadOut, contents, read_on

SCHEMA = pa.schema([("x", pa.string()), ("y", pa.string())])
PLAIN = b"x,y\n" + b"".join(b"r%d,v\n" % n for n in range(6))


def source_of(path: Path, options: dict[str, Any]) -> FileSource:
    return FileSource(path, batch_rows=1, **options)


def opened(
    path: Path,
    options: dict[str, Any],
    state: bytes | None = None,
    *,
    listed_with: dict[str, Any] | None = None,
) -> FileReader:
    reader = source_of(path, options).spec().create_reader()
    assert isinstance(reader, FileReader)
    reader.open(FakeContext(), state)
    reader.start()
    if state is None:
        reader.add_splits(contents(source_of(path, listed_with or options).discover()))
    reader.notify_no_more_splits()
    return reader


def begun(path: Path, options: dict[str, Any]) -> tuple[list[Any], bytes]:
    """Two rows that a first reader gave, and its state."""
    reader, read = opened(path, options), ReadOut()
    read_on(reader, read, batches_max=2)
    state = reader.snapshot_state(1)
    reader.close()
    assert len(read.rows) == 2
    return read.rows, state


@pytest.mark.parametrize(
    ("content", "first", "then"),
    [
        (PLAIN, {}, {"csv": CsvOptions(column_names=["x", "y"])}),
        (PLAIN, {"csv": CsvOptions(column_names=["x", "y"])}, {}),
        (b'x,y\n1,"a\nb,c"\n2,v\n3,v\n4,v\n', {}, {"csv": CsvOptions(quote=None)}),
        (b'x,y\n1,"a\nb,c"\n2,v\n3,v\n4,v\n', {"csv": CsvOptions(quote=None)}, {}),
        (b'x,y\n1,"a\nb,c"\n2,v\n3,v\n4,v\n', {}, {"csv": CsvOptions(delimiter=";")}),
        (b'x,y\n1,"a\\"\nb"\n2,v\n3,v\n4,v\n', {"csv": CsvOptions(escape="\\")}, {}),
        (PLAIN.decode().encode("utf-16-le"), {"encoding": "utf-16-le"}, {"encoding": "latin-1"}),
    ],
    ids=["names", "header", "no quote", "quote", "delimiter", "escape", "encoding"],
)
def test_a_begun_csv_split_is_read_on_by_its_first_rules(
    tmp_path: Path, content: bytes, first: dict[str, Any], then: dict[str, Any]
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    whole, other = ReadOut(), ReadOut()
    read_on(opened(path, {"schema": SCHEMA, **first}), whole)
    given, state = begun(path, {"schema": SCHEMA, **first})

    reader = opened(path, {"schema": SCHEMA, **then}, merge_reader_states([state]))
    assert decode_state(reader.snapshot_state(2)) == decode_state(state), "before it is opened too"
    read_on(reader, other, batches_max=1)
    assert decode_state(reader.snapshot_state(2)).splits[0].read_as == (
        decode_state(state).splits[0].read_as
    )
    read_on(reader, other)
    assert given + other.rows == whole.rows


@pytest.mark.parametrize("name", ["jsonl", "text"])
def test_lines_that_were_begun_are_read_on_in_their_encoding(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a"
    path.write_bytes("".join(f'{{"i": "{n} é"}}\n' for n in range(5)).encode("latin-1"))
    first = {"format": name, "encoding": "latin-1"}
    given, state = begun(path, first)

    whole, other = ReadOut(), ReadOut()
    read_on(opened(path, first), whole)
    read_on(opened(path, {"format": name}, state), other)
    assert given + other.rows == whole.rows


def test_a_split_of_which_nothing_was_given_is_read_by_the_options_of_now(tmp_path: Path) -> None:
    """So a file that could not be read can be, with the option that the error names."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,y\n1,2\n3,'4,5'\n")
    mended = {"schema": SCHEMA, "csv": CsvOptions(quote="'")}
    reader = opened(path, {"schema": SCHEMA}, listed_with=mended)
    with pytest.raises(SourceError, match="see `delimiter=`, `quote=` and `escape=`"):
        reader.poll()

    read = ReadOut()
    read_on(opened(path, mended, reader.snapshot_state(1)), read)
    assert read.rows == [("1", "2"), ("3", "4,5")]


def test_a_fault_in_a_split_begun_with_other_rules_excludes_options(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,y\n" + b"1,2\n" * 50 + b"3,'4,5'\n")
    plain = {"schema": SCHEMA, "block_bytes": 64}
    mended = {**plain, "csv": CsvOptions(quote="'")}
    first, read = opened(path, plain, listed_with=mended), ReadOut()
    read_on(first, read, batches_max=2)

    reader = opened(path, mended, first.snapshot_state(1))
    with pytest.raises(
        SourceError, match=r"rows of .* had been read with .*the present options"
    ) as e:
        read_on(reader, ReadOut())
    assert "see `delimiter=`" not in e.value.next_step
    assert "`coordlog skip`" in e.value.next_step


def rows_of(path: Path, options: dict[str, Any]) -> list[Any]:
    """All rows of a file."""
    reader, read = opened(path, options), ReadOut()
    try:
        read_on(reader, read)
    finally:
        reader.close()
    return read.rows


@pytest.mark.parametrize(
    "text",
    [
        'id,name\n1,"6\\""\n2,"7\\""\n3,x\n',
        'id,name\n1,"say \\"hi\\" now"\n2,x\n',
        'name,id\n"6\\"",1\n"7\\"",2\n',
    ],
)
def test_quotes_after_backslashes_are_refused_without_an_escape(tmp_path: Path, text: str) -> None:
    """As Spark writes them: Arrow would make one row of two, or leave out a quote."""
    file = tmp_path / "a.csv"
    file.write_text(text)

    problem = r"line 2: a quoted value has text behind .* set `escape='\\\\'`"
    with pytest.raises(SourceError, match=problem):
        rows_of(file, {})
    assert len(rows_of(file, {"csv": CsvOptions(escape="\\")})) == text.count("\n") - 1
    assert len(rows_of(file, {"bad_rows": "skip"})) <= 1


def test_backslashes_that_escape_nothing_are_read_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('id,name\n1,"C:\\dir\\"\n2,"a ""\\"", b"\n3,5\\" x\n"4","5"" \\x"\n')

    names = [row[1] for row in rows_of(file, {})]
    assert names == ["C:\\dir\\", 'a "\\", b', '5\\" x', '5" \\x']


@pytest.mark.parametrize(
    "text",
    [
        "id,name\n1,x\n2,C:\\new\n",
        'id,name\n1,x\n2,"C:\\temp \\"y\\""\n',
        "id,name\n1,x\n2,\\N\n",
        "id,name\n1,x\n2,\\\\host\n",
        'id,name\n1,x\n2,"a"\\b\n',
        "name\nx\nend\\\nxy\n",
        'name\r\n"x\r\n"\r\na\\b\r\n',
    ],
)
def test_escapes_elsewhere_than_in_quotes_are_refused(tmp_path: Path, text: str) -> None:
    """Arrow would take them off, and a line end behind one would join two rows; Spark has no escape there."""
    file = tmp_path / "a.csv"
    file.write_bytes(text.encode())
    options = {"csv": CsvOptions(escape="\\")}

    with pytest.raises(
        SourceError, match=r"line [34]: the escape .* elsewhere than in a quoted value"
    ):
        rows_of(file, options)
    assert all("x" in row[-1] for row in rows_of(file, {**options, "bad_rows": "skip"}))
    file.write_bytes(text.encode() + b"\n")
    with pytest.raises(SourceError, match=r"line [34]: the escape"):
        rows_of(file, {**options, "block_bytes": len(text) - 3})


def test_escapes_whose_meaning_is_plain_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('id,name\n1,"a\\"b, \\\\"\n2,"c""\n\\\\\\""\n3,d"e\n')
    wanted = [(1, 'a"b, \\'), (2, 'c"\n\\"'), (3, 'd"e')]
    for bad_rows in ("fail", "skip"):
        options = {"csv": CsvOptions(escape="\\"), "bad_rows": bad_rows}
        assert rows_of(file, options) == wanted


def test_escapes_before_letters_are_refused_without_quotes(tmp_path: Path) -> None:
    """A tab, a line end or a null of some programs, of which Arrow would make the letter."""
    file = tmp_path / "a.csv"
    csv = CsvOptions(escape="\\", quote=None)
    file.write_text('name,id\na\\,b\\\\t\\"c,1\n')
    assert rows_of(file, {"csv": csv}) == [('a,b\\t"c', 1)]
    for text in ("\\N", "a\\tb", "a\\\\\\nb"):
        file.write_text(f"name,id\nx,1\n{text},2\n")
        with pytest.raises(SourceError, match=r"line 3: the escape .* before a letter or a digit"):
            rows_of(file, {"csv": csv})
        assert rows_of(file, {"csv": csv, "bad_rows": "skip"}) == [("x", 1)]


def test_an_escape_that_is_the_quote_itself_is_refused() -> None:
    with pytest.raises(OptionError, match="doubled quotes need no `escape`"):
        CsvOptions(escape='"')
