"""A value of each type, in each other type: every source and sink gives the same value, or an error.

The expected cells are those of `exact_judge`, which knows Python's numbers and times and none of the product's code.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.errors import SinkError, SourceError
from coordlog.limits import CSV_BLOCK_BYTES
from coordlog.spark_integration.batches.databases.connections import Connect
from coordlog.spark_integration.batches.databases.database import _InsertTask
from coordlog.spark_integration.casts.exact_cast import InexactError, exact_cast
from coordlog.spark_integration.files.formats.compatibility import MisfitError, fitted
from coordlog.spark_integration.files.formats.csv import schema as csv_schema
from coordlog.spark_integration.files.source.source import FileSource, Format
from coordlog.spark_integration.kafka.rows import RowFormat
from data.exact_judge import (
    CELLS,
    JSON_TOKENS,
    REFUSED,
    TEXTS,
    array_of,
    cells_of,
    judge,
    judge_text,
    judge_token,
    plain,
)
from fakes.chain_fakes import contents, read_all
from fakes.kafka_fakes import FakeRecord

PAIRS: Final = [(source, target) for source in CELLS for target in CELLS]
SAME_KIND_PAIRS: Final = [
    (source, target)
    for source, target in PAIRS
    if any(judge(cell, source, target) != REFUSED for cell in CELLS[source])
]
TEXT_TARGETS: Final = [
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(5, 2),
    pa.decimal128(38, 0),
    pa.decimal128(38, 10),
    pa.string(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("us"),
    pa.timestamp("s", "UTC"),
    pa.timestamp("us", "Europe/Berlin"),
]


def verdicts(source: pa.DataType, target: pa.DataType) -> tuple[list[object], list[object]]:
    """The cells that fit, and those that do not."""
    cells = CELLS[source]
    good = [cell for cell in cells if judge(cell, source, target) != REFUSED]
    return good, [cell for cell in cells if judge(cell, source, target) == REFUSED]


def expected(cells: Sequence[object], source: pa.DataType, target: pa.DataType) -> list[object]:
    return [plain(judge(cell, source, target)) for cell in cells]


def test_a_column_of_any_type_is_the_same_in_any_other_or_refused() -> None:
    for source, target in PAIRS:
        good, bad = verdicts(source, target)
        if good:
            cast = exact_cast(array_of([*good, None], source), target)
            assert cast.type == target
            cast.validate(full=True)
            assert cells_of(cast) == [*expected(good, source, target), None], (source, target)
        for cell in bad:
            with pytest.raises(InexactError):
                pytest.fail(f"{cell} {source}: {exact_cast(array_of([cell], source), target)}")


def test_so_are_values_in_structs_lists_and_maps() -> None:
    for source, target in SAME_KIND_PAIRS:
        if pa.types.is_null(source) or pa.types.is_null(target):
            continue
        good, bad = verdicts(source, target)
        for nest in (_in_struct, _in_list, _in_map):
            values, wanted = (
                nest([*good], source),
                nest(expected_cells(good, source, target), target),
            )
            assert exact_cast(values, wanted.type).equals(wanted) or _has_nan(good)
            for cell in bad:
                with pytest.raises(InexactError):
                    exact_cast(nest([*good, cell], source), wanted.type)


def expected_cells(
    cells: Sequence[object], source: pa.DataType, target: pa.DataType
) -> list[object]:
    return [judge(cell, source, target) for cell in cells]


def _has_nan(cells: Sequence[object]) -> bool:
    return any(plain(cell) == "nan" for cell in cells)


def _in_struct(cells: Sequence[object], kind: pa.DataType) -> pa.Array:
    return pa.StructArray.from_arrays(
        [array_of(cells, kind)],
        fields=[pa.field("x", kind)],
    )


def _in_list(cells: Sequence[object], kind: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(cells)], pa.int32()), array_of(cells, kind))


def _in_map(cells: Sequence[object], kind: pa.DataType) -> pa.Array:
    keys = pa.array([str(n) for n in range(len(cells))])
    return pa.MapArray.from_arrays(
        pa.array([0, len(cells)], pa.int32()), keys, array_of(cells, kind)
    )


def test_the_sink_writes_the_same_value_or_refuses_the_batch() -> None:
    for source, target in PAIRS:
        good, bad = verdicts(source, target)
        schema = pa.schema([("x", target)])
        if good:
            batch = pa.record_batch({"x": array_of(good, source)})
            column = fitted(batch, schema, fills_missing=False).column(0)
            assert cells_of(column) == expected(good, source, target)
        for cell in bad:
            with pytest.raises(MisfitError, match="column 'x' is"):
                fitted(
                    pa.record_batch({"x": array_of([cell], source)}), schema, fills_missing=False
                )


# --- files ----------------------------------------------------------------------------------------------
def rows_of(
    path: Path, name: Format, target: pa.DataType, *, block_bytes: int = CSV_BLOCK_BYTES
) -> list[object]:
    schema = pa.schema([("x", target)])
    source = FileSource(path, format=name, schema=schema, block_bytes=block_bytes)
    out = read_all(source.spec().create_reader(), contents(source.discover()))
    return [cell for batch in out.batches for cell in cells_of(batch.column(0))]


def test_a_parquet_column_is_read_as_the_same_value_or_not(
    tmp_path: Path, seed: int, dose: int
) -> None:
    chance, path = random.Random(seed), tmp_path / "a.parquet"
    pairs = [
        pair
        for of, count in ((SAME_KIND_PAIRS, 80 * dose), (PAIRS, 40 * dose))
        for pair in chance.sample(of, min(count, len(of)))
    ]
    for source, target in pairs:
        good, bad = verdicts(source, target)
        pq.write_table(pa.table({"x": array_of([*good, *bad], source)}), path)
        if pq.read_schema(path).field(0).type != source:
            continue  # a type that Parquet has not
        if good:
            pq.write_table(pa.table({"x": array_of(good, source)}), path)
            assert rows_of(path, "parquet", target) == expected(good, source, target)
        for cell in bad[:2]:
            pq.write_table(pa.table({"x": array_of([cell], source)}), path)
            with pytest.raises(SourceError, match="column 'x'"):
                pytest.fail(f"{cell} {source} {target}: {rows_of(path, 'parquet', target)}")


@pytest.mark.parametrize("target", TEXT_TARGETS, ids=str)
def test_a_text_of_csv_is_read_as_its_own_value_or_not(
    tmp_path: Path, target: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    good = [text for text in TEXTS if judge_text(text, target) != REFUSED]
    path.write_text("x\n" + "".join(f"{text}\n" for text in good))
    assert rows_of(path, "csv", target) == [judge_text(text, target) for text in good]

    for text in TEXTS:
        if text not in good:
            path.write_text(f"x\n{text}\n")
            with pytest.raises(SourceError, match="row 2"):
                pytest.fail(f"{text}: {rows_of(path, 'csv', target)}")
            # Beyond the sample the reader itself refuses it.
            path.write_text("x\n" + "\n".join([*good[:1] * 99, text, *good[:1]]) + "\n")
            with monkeypatch.context() as small:
                small.setattr(csv_schema, "CSV_SAMPLE_BYTES", 1)
                with pytest.raises(SourceError, match="row 101"):
                    pytest.fail(f"{text}: {rows_of(path, 'csv', target, block_bytes=70)}")


@pytest.mark.parametrize("target", TEXT_TARGETS, ids=str)
def test_a_value_of_json_is_read_as_itself_or_not(tmp_path: Path, target: pa.DataType) -> None:
    path = tmp_path / "a.jsonl"
    good = [token for token in JSON_TOKENS if judge_token(token, target) != REFUSED]
    path.write_text("".join(f'{{"x": {token}}}\n' for token in good))
    assert rows_of(path, "jsonl", target) == [judge_token(token, target) for token in good]

    for token in JSON_TOKENS:
        if token not in good:
            path.write_text(f'{{"x": {token}}}\n')
            with pytest.raises(SourceError, match="line 1"):
                pytest.fail(f"{token}: {rows_of(path, 'jsonl', target)}")


@pytest.mark.parametrize("target", TEXT_TARGETS, ids=str)
def test_a_record_of_json_is_read_as_itself_or_not(target: pa.DataType) -> None:
    for is_list in (False, True):
        shape = '{"x": [%s]}' if is_list else '{"x": %s}'
        kind = pa.list_(target) if is_list else target
        rows = RowFormat(decode="json", value_schema=pa.schema([("x", kind)]))
        good = [token for token in JSON_TOKENS if judge_token(token, target) != REFUSED]
        values = [None, *(shape % token for token in good)]
        column = rows.rows(("t", 0), [record(one) for one in values]).column("value")
        inner = column.field(0).slice(1)
        cells = cells_of(inner.flatten() if is_list else inner)
        assert cells == [judge_token(token, target) for token in good]
        assert column.null_count == 1
        for token in set(JSON_TOKENS) - set(good):
            with pytest.raises(SourceError, match="offset 0: its value"):
                rows.rows(("t", 0), [record(shape % token)])


def record(value: str | None) -> FakeRecord:
    return FakeRecord(offset=0, value=None if value is None else value.encode())


# --- a database -----------------------------------------------------------------------------------------
def opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")
    return connection


def stored(path: Path, column: str, cells: Sequence[object], kind: pa.DataType) -> list[object]:
    """What a column of SQLite gives back after a task has inserted the cells."""
    with closing(opened(path)) as connection:
        connection.execute("DROP TABLE IF EXISTS s")
        connection.execute(f'CREATE TABLE s (coordlog_task INT, "x" {column})')
        connection.commit()
        connect = cast("Connect", partial(opened, path))
        task = _InsertTask(connect=connect, where="s", limit_s=60, table='"s"', columns=("x",))
        task._insert(1, pa.record_batch({"x": array_of(cells, kind)}), iter(()))
        return [row[0] for row in connection.execute("SELECT x FROM s ORDER BY rowid")]


@pytest.mark.parametrize("column", ["INT", "NUM", "REAL", "TEXT", ""])
def test_a_column_of_sqlite_gives_back_the_same_value_or_takes_none(
    tmp_path: Path, column: str
) -> None:
    path, taken, refusals = tmp_path / "s.db", 0, []
    for kind, cells in CELLS.items():
        if pa.types.is_temporal(kind) or kind == pa.null():
            continue
        for cell in cells:
            try:
                (back,) = stored(path, column, [cell], kind)
            except SinkError as error:
                refusals.append((kind, error.problem))
                continue
            taken += 1
            if isinstance(cell, Decimal):
                assert Decimal(str(back)) == cell, (kind, cell)
            else:
                assert back == cell, (kind, cell)
                assert isinstance(back, str) == isinstance(cell, str)
    assert taken > 10
    for kind, problem in refusals:
        assert f"column 'x' is {kind} and in the table {column or 'BLOB'}" in problem


def test_times_are_kept_as_texts_and_those_with_a_zone_in_utc(tmp_path: Path) -> None:
    kinds = (pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin"), pa.date32())
    texts = ["2024-07-01T12:00:00", "2024-07-01T12:00:00+00:00", "2024-07-01"]
    counts = [1_719_835_200_000_000, 1_719_835_200_000_000, 19_905]
    for kind, text, count in zip(kinds, texts, counts, strict=True):
        assert stored(tmp_path / "s.db", "NUM", [count], kind) == [text]
