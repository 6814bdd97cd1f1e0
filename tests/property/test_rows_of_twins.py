"""CSV and JSON lines of chance, in blocks of a few bytes: the rows of Python's own readers, or a refusal."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from coordlog.errors import SourceError
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import contents, read_all

_WORDS: Final = (
    "", "a", "ä🚂", "007", "7", "-0", "1.5", "1e3", "nan", "inf", "9007199254740993", "0x1F", "true", "False",
    "2020-01-01", "2020-01-01 12:00:00", "2020-01-01T12:00:00Z", "12:30", "x,y", 'say "hi"', "a\nb", "a\r\nb",
    "\r\n", " 1 ", "null", "NA", "\\", "'", "\u2028", "1_0", "+5", "12345678901234567890",
)  # fmt: skip
_VALUES: Final[tuple[object, ...]] = (
    None, True, False, 0, -1, 7, 2**53, 2**53 + 1, 2**63 - 1, 2**70, 0.5, 1e300, -2.5, "", "a", "ä🚂", "007",
    "2020-01-01", "2020-01-01T12:00:00Z", "12:30", "a\nb", "\u2028", "\x00", '"', "\\", [], [None, None], [1, 2],
    ["x"], [[]], [[None]], {}, {"x": 1}, {"x": None}, {"y": ["z"]}, [{"x": 1}, None, {}],
)  # fmt: skip


def rows(path: Path, **options: object) -> list[tuple[object, ...]]:
    source = FileSource(path, **options)  # type: ignore[arg-type]
    return read_all(source.spec().create_reader(), contents(source.discover())).rows


@pytest.mark.parametrize("seed", range(8))
def test_texts_of_csv_are_those_of_python(seed: int, tmp_path: Path) -> None:
    """All columns as texts: quotes, line ends in them and at the ends of blocks."""
    chance, path = random.Random(seed), tmp_path / "a.csv"
    names = ["a", "b", "c"]
    schema = pa.schema([(name, pa.string()) for name in names])
    for _ in range(25):
        table = [[chance.choice(_WORDS) for _ in names] for _ in range(chance.randrange(1, 9))]
        text = io.StringIO(newline="")
        writer = csv.writer(
            text,
            lineterminator=chance.choice(("\n", "\r\n")),
            quoting=chance.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
        )
        writer.writerows([names, *table])
        path.write_bytes(text.getvalue().encode())

        block_bytes = chance.choice((120, 130, 141, 1 << 20))
        assert rows(
            path, schema=schema, csv=CsvOptions(null_values=()), block_bytes=block_bytes
        ) == [tuple(row) for row in table]


@pytest.mark.parametrize("seed", range(8))
def test_inferred_values_of_csv_are_those_that_are_written(seed: int, tmp_path: Path) -> None:
    """Whole numbers, fractions and texts: each inferred value is the one that the text has, to the last digit."""
    chance, path = random.Random(seed), tmp_path / "a.csv"
    for _ in range(25):
        some = chance.sample(_WORDS, chance.randrange(1, 4))
        words = [chance.choice(some) for _ in range(chance.randrange(1, 7))]
        text = io.StringIO(newline="")
        csv.writer(text).writerows([["a", "b"], *([word, "x"] for word in words)])
        path.write_bytes(text.getvalue().encode())

        found = [row[0] for row in rows(path)]

        assert len(found) == len(words)
        for value, word in zip(found, words, strict=True):
            if isinstance(value, str) or value is None:
                assert (value or "") == word
            elif isinstance(value, int) and not isinstance(value, bool):
                assert str(value) == word.strip() or word == "-0"
            elif isinstance(value, float) and word not in ("nan", "inf"):
                assert value == float(word)
                assert "." in word or "e" in word or value == Decimal(word)


@pytest.mark.parametrize("seed", range(8))
def test_objects_of_json_are_those_of_python(seed: int, tmp_path: Path) -> None:
    chance, path = random.Random(seed), tmp_path / "a.json"
    for _ in range(40):
        some = chance.sample(_VALUES, chance.randrange(1, 4))
        objects = [
            {name: chance.choice(some) for name in chance.sample("abc", chance.randrange(1, 4))}
            for _ in range(chance.randrange(1, 7))
        ]
        lines = [json.dumps(one, ensure_ascii=chance.random() < 0.5) for one in objects]
        end = chance.choice(("\n", "\r\n", "\n\n"))
        path.write_bytes(end.join(lines).encode())
        source = FileSource(path, format="jsonl", block_bytes=chance.choice((90, 1 << 20)))
        try:
            names = source.settle_schema().names
            found = read_all(source.spec().create_reader(), contents(source.discover())).rows
        except SourceError:
            continue  # of several kinds, or an empty object
        expected = [tuple(one.get(name) for name in names) for one in objects]
        assert [[_plain(value) for value in row] for row in found] == [
            [_plain(value) for value in row] for row in expected
        ]


def _plain(value: object) -> object:
    """Without nulls in objects, and with numbers and times as their texts."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float, Decimal)):
        return Decimal(value)
    text = value.isoformat() if isinstance(value, (dt.date, dt.time)) else str(value)
    return text.removesuffix("T00:00:00").replace("+00:00", "Z")
