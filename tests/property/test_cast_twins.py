"""A column that is proved exact as a whole is the same as one whose values are judged one by one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from coordlog.errors import SourceError
from coordlog.spark_integration.casts.exact_cast import InexactError, exact_cast, exact_from_text
from coordlog.spark_integration.files.formats.csv import schema as csv_schema
from coordlog.spark_integration.files.formats.json import values as json_values
from coordlog.spark_integration.files.formats.json.values import parse_json
from coordlog.spark_integration.files.source.source import FileSource
from data.exact_judge import REFUSED, cells_of, judge, judge_text

INTEGERS: Final = ("9007199254740994", "-9007199254740992", "4611686018427387904", "16777216", "0")
OTHERS: Final = (
    "9007199254740993",
    "16777217",
    "-0",
    "1.5",
    "1e3",
    "1e17",
    "1e300",
    "20000000000000000000",
)
FLOATS: Final = (1.5, 0.0, -0.0, 65504.0, math.nan, math.inf, -math.inf)
ROUNDED: Final = (0.1, 70000.1, 1e300, 5e-324)


def pick(chance: random.Random) -> str:
    return chance.choice(INTEGERS if chance.random() < 0.9 else OTHERS)


def json_line(chance: random.Random) -> str:
    listed = ", ".join(pick(chance) for _ in range(chance.randint(0, 3)))
    inner = chance.choice(["null", "{}", f'{{"y": {pick(chance)}, "n": 7}}'])
    return f'{{"x": {pick(chance)}, "l": [{listed}], "s": {inner}, "t": "123456789012345678"}}'


def outcome(do: Callable[[], list[object]]) -> list[object] | str:
    try:
        return do()
    except ValueError as error:
        return str(error)


def test_json_floats_read_as_integers_are_judged_as_by_their_texts(
    seed: int, dose: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    proved = 0
    for _ in range(200 * dose):
        kind = chance.choice([pa.float64(), pa.float32()])
        inner = pa.struct([("y", kind), ("n", pa.int64())])
        schema = pa.schema(
            {"x": kind, "l": pa.list_(pa.float64()), "s": inner, "t": pa.string()},
        )
        text = "\n".join(json_line(chance) for _ in range(chance.randint(1, 4)))

        def rows(text: str = text, schema: pa.Schema = schema) -> list[object]:
            return [repr(row) for row in parse_json(text, schema).to_pylist()]

        quick = outcome(rows)
        with monkeypatch.context() as slow:
            slow.setattr(json_values, "_are_exact_integers", lambda *_: False)
            assert quick == outcome(rows), text
        proved += json_values._are_exact_integers(text, schema)
    assert 200 * dose > proved > 10 * dose


def test_texts_of_floats_are_judged_as_each_of_them(seed: int, dose: int) -> None:
    chance = random.Random(seed)
    for _ in range(200 * dose):
        texts = [pick(chance) for _ in range(chance.randint(1, 6))]
        for kind in (pa.float64(), pa.float32()):
            cells = [judge_text(text, kind) for text in texts]
            if REFUSED in cells:
                with pytest.raises(InexactError):
                    exact_from_text(pa.array(texts), kind)
            else:
                assert cells_of(exact_from_text(pa.array(texts), kind)) == cells, texts


def test_floats_in_fewer_bits_are_judged_as_each_of_them(seed: int, dose: int) -> None:
    chance = random.Random(seed)
    for _ in range(200 * dose):
        rounds = chance.random() < 0.5
        cells = [chance.choice(FLOATS) for _ in range(chance.randint(1, 20))]
        if rounds:
            cells[chance.randrange(len(cells))] = chance.choice(ROUNDED)
        is_valid = np.array([chance.random() < 0.7 for _ in cells])
        bits = np.packbits(is_valid, bitorder="little").tobytes()
        # Of nulls the bits of their values are there too.
        buffers = [pa.py_buffer(bits), pa.py_buffer(np.array(cells).tobytes())]
        values = pa.Array.from_buffers(pa.float64(), len(cells), buffers)
        values = values.slice(chance.randint(0, len(cells)))
        for kind in (pa.float32(), pa.float16()):
            judged = [
                judge(cell, pa.float64(), kind) for cell in values.to_pylist() if cell is not None
            ]
            if REFUSED in judged:
                with pytest.raises(InexactError):
                    exact_cast(values, kind)
            else:
                assert repr(exact_cast(values, kind).to_pylist()) == repr(values.to_pylist())


def test_a_csv_sample_fits_a_given_schema_as_its_texts_do(
    tmp_path: Path, seed: int, dose: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    path = tmp_path / "a.csv"
    kinds = (pa.float64(), pa.float32(), pa.float16(), pa.decimal128(38, 10), pa.decimal128(17, 1))
    refused = 0
    for _ in range(100 * dose):
        schema = pa.schema([("x", chance.choice(kinds)), ("y", pa.string())])
        texts = [pick(chance) for _ in range(chance.randint(1, 4))]
        path.write_text("x,y\n" + "".join(f"{text},a\n" for text in texts))
        source = FileSource(path, format="csv", schema=schema)

        def settled(source: FileSource = source) -> list[object]:
            try:
                return [source.settle_schema()]
            except SourceError as error:
                return [str(error)]

        quick = settled()
        with monkeypatch.context() as slow:
            slow.setattr(csv_schema, "_is_compatible", lambda *_: False)
            assert quick == settled(), texts
        refused += quick != [schema]
    assert 100 * dose > refused > 10 * dose
