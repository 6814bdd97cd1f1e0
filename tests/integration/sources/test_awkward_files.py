"""The corpus of `awkward_files`: each file's rows, or the message; and two readers that share no code with ours."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _pytest.mark import ParameterSet

from coordlog.errors import SourceError
from coordlog.spark_integration.files.source.source import FileSource
from data.awkward_files import CASES, PACKINGS, TEXT, Case, Row, packed
from fakes.chain_fakes import FakeContext, ReadOut, contents, read_all, read_on

duckdb = pytest.importorskip("duckdb", reason="`make setup` installs duckdb")


def params(cases: Iterable[Case]) -> list[ParameterSet]:
    return [pytest.param(case, id=case.name) for case in cases]


TWINS = [one for one in CASES if one.twin and one.rows is not None and not one.or_refused]


def made(case: Case, folder: Path, end: str = "") -> FileSource:
    for name, content in case.files.items():
        (folder / f"{name}{end}").write_bytes(packed(content, end, folder))
    return FileSource(folder, **case.options)  # type: ignore[arg-type]


def rows_of(source: FileSource) -> list[Row]:
    return read_all(source.spec().create_reader(), contents(source.discover())).rows


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Ids as text, times as moments: an exact type of either kind is as good."""

    def one(value: object) -> object:
        if isinstance(value, dt.datetime):
            assert value.tzinfo is not None, "a time with an offset has become one without"
            return value.astimezone(dt.UTC).isoformat()
        if isinstance(value, float):
            return repr(value)
        try:
            moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else None
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(dt.UTC).isoformat()
        return str(value)

    return [tuple(map(one, row)) for row in rows]


@pytest.mark.parametrize("case", params(CASES))
def test_awkward_files_have_their_rows_or_are_named(case: Case, tmp_path: Path) -> None:
    source = made(case, tmp_path)
    if case.rows is None:
        with pytest.raises(SourceError, match=case.error) as caught:
            rows_of(source)
        assert caught.value.next_step
        return
    if not case.or_refused:
        assert rows_of(source) == list(case.rows)
        return
    try:
        found = rows_of(source)
    except SourceError:
        return
    assert comparable(found) == comparable(case.rows)


@pytest.mark.parametrize("end", [one for one in PACKINGS if one])
@pytest.mark.parametrize(
    "case", params(one for one in CASES if one.name[:2] in ("CR", "LF", "a ", "UT", "ne"))
)
def test_packed_they_are_the_same(case: Case, end: str, tmp_path: Path) -> None:
    if any(name.endswith((".gz", ".zip")) for name in case.files):
        return
    source = made(case, tmp_path, end)
    if case.rows is None:
        with pytest.raises(SourceError, match=case.error):
            rows_of(source)
    else:
        assert rows_of(source) == list(case.rows)


@pytest.mark.parametrize("case", params(TWINS))
def test_an_independent_reader_has_the_same_rows(case: Case, tmp_path: Path) -> None:
    source = made(case, tmp_path)
    ((_, content),) = case.files.items()
    if case.options.get("format") == "jsonl":
        objects = [json.loads(line) for line in content.decode().split("\n") if line.strip()]
        names = list(objects[0])
        twin: list[Row] = [tuple(one.get(name) for name in names) for one in objects]
        ours: list[Row] = [tuple(map(_without_nulls, row)) for row in rows_of(source)]
        theirs: list[Row] = [tuple(map(_without_nulls, row)) for row in twin]
    else:
        text = io.StringIO(content.decode("utf-8-sig"), newline="")
        lines = [row for row in csv.reader(text) if row]
        ours, theirs = rows_of(source), [tuple(row) for row in lines[1:]]
    assert ours == theirs


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "case", params(one for one in TWINS if one.options.get("schema") == TEXT and one.rows)
)
def test_duckdb_reads_the_same_text(case: Case, tmp_path: Path) -> None:
    source = made(case, tmp_path)
    path = str(tmp_path / "a.csv")
    found = duckdb.sql(
        "select coalesce(a, '') as a, coalesce(b, '') as b from read_csv(?, header=true, "
        "auto_detect=false, delim=',', quote='\"', escape='\"', all_varchar=true, "
        "columns={'a': 'VARCHAR', 'b': 'VARCHAR'}, strict_mode=false)",
        params=[path],
    ).fetchall()

    assert rows_of(source) == [tuple(row) for row in found]


# Parquet

PARQUET_SQL = (
    "select * from (values (1, 'ä', 1.5::double, date '2026-01-31', [1, 2], {'x': 1}), "
    "(2, null, null, null, null, null)) t(i, s, d, day, l, o)"
)


def test_parquet_files_of_duckdb_have_the_rows_that_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    duckdb.sql(f"copy ({PARQUET_SQL}) to '{path}' (format parquet)")
    twin = duckdb.sql("select * from read_parquet(?)", params=[str(path)]).fetchall()

    assert rows_of(FileSource(path, format="parquet")) == [tuple(row) for row in twin]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_parquet_files_of_arrow_have_the_rows_that_duckdb_reads(
    tmp_path: Path, compression: str, version: str
) -> None:
    table = pa.table(
        {
            "i": [1, None, 3],
            "s": ["x", "", None],
            "l": [[1], [], None],
            "o": [{"x": 1}, None, {"x": 2}],
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression=compression, version=version, row_group_size=2)
    twin = duckdb.sql("select * from read_parquet(?)", params=[str(path)]).fetchall()

    assert rows_of(FileSource(path, format="parquet", split_bytes=1)) == [
        tuple(one) for one in twin
    ]


def test_parquet_files_of_two_schemas_are_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"i": [1], "new": ["x"]}), tmp_path / "b.parquet")

    with pytest.raises(SourceError, match=r"b\.parquet: its schema is not that of the source"):
        FileSource(tmp_path, format="parquet").discover()

    assert len(rows_of(FileSource(tmp_path, format="parquet", schemas="each", batch_rows=9))) == 2


# Folders


def test_a_link_within_a_source_adds_nothing_and_none_back_is_followed(
    tmp_path: Path,
) -> None:
    (tmp_path / "in" / "day").mkdir(parents=True)
    (tmp_path / "in" / "day" / "a.csv").write_bytes(b"a\n1\n")
    (tmp_path / "in" / "b.csv").symlink_to("day/a.csv")
    (tmp_path / "in" / "day" / "back").symlink_to(tmp_path / "in")

    found = FileSource(tmp_path / "in").discover().splits

    assert [str(Path(one.split_id).relative_to(tmp_path)) for one in found] == ["in/day/a.csv"]
    assert rows_of(FileSource(tmp_path / "in")) == [(1,)]


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to(tmp_path / "gone")

    with pytest.raises(SourceError, match=r"a\.csv: it is neither a file nor a folder"):
        FileSource(tmp_path).discover()


@pytest.mark.parametrize("end", [b"4,4\n", b""])
def test_a_file_that_is_replaced_or_grows_while_it_is_read_is_named(
    tmp_path: Path, end: bytes
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n" + b"1,1\n" * 9)
    status = path.stat()
    source = FileSource(path, batch_rows=2, block_bytes=16)
    reader = source.spec().create_reader()
    reader.open(FakeContext(), None)
    reader.add_splits(contents(source.discover()))
    reader.notify_no_more_splits()
    read_on(reader, ReadOut(), batches_max=1)

    if end:
        with path.open("ab") as file:
            file.write(end)
    else:
        other = tmp_path / "b"
        other.write_bytes(b"a,b\n" + b"2,2\n" * 9)
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.rename(path)

    with pytest.raises(SourceError, match="it has changed while it was read"):
        read_on(reader, ReadOut())
    reader.close()
