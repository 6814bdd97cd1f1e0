"""The tables of a history have the same columns in Spark's views, in `--json` and in the docs."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from coordlog.cli.main import main
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.columns import TABLES, Columns, ColumnType, ListOf
from coordlog.spark_integration.history_frames.views import tables_of
from driven_history import RECORDED_JOB, recorded_history
from histories.hand_history import batch_history, streaming_history
from histories.one_log import OneLog

COMMANDS = ("attempts", "splits", "checkpoints", "events", "commits", "failures", "epochs")
DOCS = Path(__file__).parents[3] / "docs" / "history.md"
JSON_TYPES: dict[pa.DataType, type] = {
    pa.int32(): int,
    pa.int64(): int,
    pa.string(): str,
    pa.bool_(): bool,
    pa.float64(): float,
    pa.timestamp("us", tz="UTC"): str,
}


@pytest.fixture(scope="module", params=["recorded", "streaming", "batch"])
def log(request: pytest.FixtureRequest) -> MemoryLog:
    histories: dict[str, Callable[[], Sequence[UnstoredRecord]]] = {
        "recorded": recorded_history,
        "streaming": lambda: streaming_history(RECORDED_JOB).records,
        "batch": lambda: batch_history(RECORDED_JOB).records,
    }
    made = MemoryLog(f"{RECORDED_JOB}.log")
    made.store(*histories[request.param]())
    return made


def views_of(log: MemoryLog) -> pa.Table:
    records = {
        "offset": [record.offset for record in log.records],
        "key": [record.key for record in log.records],
        "value": [record.value for record in log.records],
        "header": [record.header_bytes for record in log.records],
    }
    return pa.Table.from_batches(list(tables_of([pa.RecordBatch.from_pydict(records)])))


def json_rows(log: MemoryLog, command: str) -> list[dict[str, Any]]:
    logs = OneLog(log, RECORDED_JOB)
    result = CliRunner().invoke(main, (command, RECORDED_JOB, "--json"), obj=lambda _servers: logs)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def as_json(kind: pa.DataType, value: Any) -> object:  # noqa: ANN401, of any type
    """A value of a view as JSON has it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: as_json(field.type, value[field.name]) for field in kind}
    if pa.types.is_list(kind):
        return [as_json(kind.value_type, item) for item in value]
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value


def check_json_types(kind: pa.DataType, value: Any) -> None:  # noqa: ANN401, of any type
    if value is None:
        return
    if pa.types.is_struct(kind):
        assert list(value) == [field.name for field in kind]
        for field in kind:
            check_json_types(field.type, value[field.name])
    elif pa.types.is_list(kind):
        assert isinstance(value, list)
        for item in value:
            check_json_types(kind.value_type, item)
    else:
        assert type(value) is JSON_TYPES[kind], (kind, value)


@pytest.mark.parametrize("command", COMMANDS)
def test_json_has_the_names_types_and_values_of_the_view(log: MemoryLog, command: str) -> None:
    column = views_of(log).column(command)
    in_sql = [row for row in column.to_pylist() if row is not None]
    rows = json_rows(log, command)

    for row in rows:
        check_json_types(column.type, row)
    assert rows == [as_json(column.type, row) for row in in_sql]


def test_thrown_away_work_of_a_split_is_the_view_of_that_name(log: MemoryLog) -> None:
    thrown = [row for row in views_of(log).column("thrown_away").to_pylist() if row is not None]

    splits = json_rows(log, "splits")

    assert thrown == [
        {"operator_id": split["operator_id"], "split_id": split["split_id"], **lost}
        for split in splits
        for lost in split["thrown_away"]
    ]
    for split in splits:
        assert split["thrown_away_count"] == len(split["thrown_away"])
        assert split["thrown_away_whole_count"] == sum(
            lost["is_whole"] for lost in split["thrown_away"]
        )


def named_columns(columns: Columns, prefix: str = "") -> Iterator[tuple[str, ColumnType | ListOf]]:
    for name, kind in columns.items():
        yield f"{prefix}{name}", kind
        if isinstance(kind, ListOf) and not isinstance(kind.item, ColumnType):
            yield from named_columns(kind.item, f"{prefix}{name}.")


def test_a_name_has_one_type_and_ends_in_its_unit() -> None:
    types: dict[str, ColumnType | ListOf] = {}
    for columns in TABLES.values():
        for path, kind in named_columns(columns):
            name = path.rpartition(".")[2]
            if not isinstance(kind, ListOf):
                assert (kind is ColumnType.TIME) == name.endswith("_at"), path
                assert (kind is ColumnType.MILLISECONDS) == name.endswith("_ms"), path
            assert types.setdefault(name, kind) == kind, path


def sections() -> dict[str, str]:
    parts = re.split(r"^###? (.*)$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("table", list(TABLES))
def test_docs_name_each_column_of_a_table_and_no_other(table: str) -> None:
    section = sections()[table]
    words = set(re.findall(r"\w+", section))
    names = {path.rpartition(".")[2] for path, _ in named_columns(TABLES[table])}

    assert names - words == set()
    (listed,) = re.findall(r"^Its other columns: (.*)$", section, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", listed)) - names == set()
