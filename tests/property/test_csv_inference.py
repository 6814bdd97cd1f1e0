"""Types of CSV columns that one parse of the sample shows are those that Arrow and the texts show."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from coordlog.errors import SourceError
from coordlog.spark_integration.files.formats.csv import schema as csv_schema
from coordlog.spark_integration.files.source.source import FileSource

POOLS: Final[Sequence[Sequence[str]]] = (
    ("1", "2", "-3", "+4", " 5", "0"),
    ("1.5", "1e5", "nan", "inf", "-0.5", "0.25"),
    ("true", "True", "false", "0", "1", "TRUE", "tRuE"),
    ("2024-01-01", "0999-01-02"),
    ("2024-01-01 12:00:00", "2024-01-01T00:00:00Z"),
    ("2024-01-01 12:00:00.123",),
    ("12:30:00", "00:00:05"),
    ("007", "0x1F", "-01", " 08"),
    ("abc", "", '"a,b"', '"x\ny"'),
    ("9007199254740993", "12345678901234567890", "9007199254740992"),
    ("",),
    ("12345678901234567.89", "1e400", "1e-400"),
    ('"5"', '"1.5"', '""'),
    ("20240101", "-", "--1", "1_000", "\u0661", "\u00a05", "5\u00a0", "\t7", "7 "),
)


def column(chance: random.Random, rows: int) -> list[str]:
    """Cells of one pool, and from some row on of others too."""
    pools = chance.sample(POOLS, chance.choice([1, 1, 2, 3]))
    cut = chance.randint(0, rows)
    return [chance.choice(pools[0] if row < cut else chance.choice(pools)) for row in range(rows)]


def text_of(chance: random.Random, columns: int) -> str:
    rows = chance.randint(0, 12)
    cells = [column(chance, rows) for _ in range(columns)]
    header = ",".join(f"c{number}" for number in range(columns))
    return "".join(f"{line}\n" for line in [header, *map(",".join, zip(*cells, strict=True))])


def settled(folder: Path) -> pa.Schema | str:
    try:
        return FileSource(folder, format="csv").settle_schema()
    except SourceError as error:
        return str(error)


def test_the_quick_way_comes_to_the_same_types_as_the_long_way(
    tmp_path: Path, seed: int, dose: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    find: Callable[..., pa.Schema | None] = csv_schema._quick_schema
    schemas: list[pa.Schema | None] = []

    def noted(*args: object) -> pa.Schema | None:
        schemas.append(find(*args))
        return schemas[-1]

    for number in range(100 * dose):
        folder = tmp_path / str(number)
        folder.mkdir()
        columns = chance.randint(1, 3)
        for name in range(chance.choice([1, 1, 3])):
            (folder / str(name)).write_text(text_of(chance, columns))
        monkeypatch.setattr(csv_schema, "_FIRST_BYTES", chance.choice([8, 12, 20, 40, 100]))
        monkeypatch.setattr(csv_schema, "_quick_schema", noted)
        found = settled(folder)
        monkeypatch.setattr(csv_schema, "_quick_schema", lambda *_: None)
        assert found == settled(folder), number
    assert len(schemas) > sum(one is not None for one in schemas) > 10 * dose
