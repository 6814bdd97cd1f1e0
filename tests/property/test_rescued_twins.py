"""Fields that a schema lacks are those that Python's own csv and json modules find, in every block and part."""

from __future__ import annotations

import csv
import io
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import FakeContext, ReadOut, contents, read_on

KNOWN = ("a", "b")
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
NAMES = st.one_of(
    WORDS, st.sampled_from(["c", "_rescued", "A", 'q"', "N", "a.b", "back\\", "{", "é"])
)
NUMBERS = st.from_regex(
    r"-?(?:0|[1-9][0-9]{0,24})(?:\.[0-9]{1,24})?(?:[eE][+-]?[0-9]{1,2})?", fullmatch=True
)


class Number(str):
    """The text of a number, which no float has been made of."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and str(self) == str(other)

    __hash__ = str.__hash__


def parsed(text: str) -> Any:  # noqa: ANN401, JSON
    return json.loads(text, parse_float=Number, parse_int=Number)


@st.composite
def json_values(draw: st.DrawFn, depth: int = 2) -> str:
    """The text of a value: spaces, escapes and digits as a writer may have them."""
    kind = draw(st.integers(0, 6 if depth else 4))
    space = draw(st.sampled_from(["", " ", "\t"]))
    if kind == 0:
        return draw(st.sampled_from(["null", "true", "false"]))
    if kind <= 2:
        return draw(NUMBERS)
    if kind <= 4:
        return json.dumps(draw(WORDS), ensure_ascii=draw(st.booleans()))
    inner = draw(st.lists(json_values(depth=depth - 1), max_size=3))
    if kind == 5:
        return "[" + space + f",{space}".join(inner) + "]"
    return "{" + ",".join(f'"k{n}"{space}:{value}' for n, value in enumerate(inner)) + space + "}"


@st.composite
def objects(draw: st.DrawFn) -> str:
    """A line: columns of the schema, and other fields between them."""
    members = {name: draw(json_values()) for name in draw(st.lists(NAMES, max_size=3, unique=True))}
    for name in KNOWN:
        members.pop(name, None)
    if draw(st.booleans()):
        members["a"] = str(draw(st.integers(-9, 10**15)))
    if draw(st.booleans()):
        members["b"] = json.dumps(draw(WORDS))
    space = draw(st.sampled_from(["", " ", "\t"]))
    order = draw(st.permutations(sorted(members)))
    parts = (f"{json.dumps(name)}{space}:{space}{members[name]}" for name in order)
    return "{" + space + f"{space},".join(parts) + "}" + space


def read(path: Path, chance: random.Random, **options: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401, options of a source
    """All rows, by readers that are ended anywhere and go on with other options of reading."""
    rows: list[tuple[Any, ...]] = []
    source = FileSource(
        path, schema=SCHEMA, rescued="_rescued", split_bytes=chance.choice([50, 10**6]), **options
    )
    for split in contents(source.discover()):
        state, is_over = None, False
        while not is_over:
            again = FileSource(
                path,
                schema=SCHEMA,
                rescued=chance.choice(["_rescued", "_rescued", None]),
                batch_rows=chance.choice([1, 3, 100]),
                **options,
            )
            reader, out = again.spec().create_reader(), ReadOut()
            reader.open(FakeContext(), state)
            if state is None:
                reader.add_splits([split])
            reader.notify_no_more_splits()
            read_on(reader, out, batches_max=chance.choice([1, 2, 100]))
            rows += out.rows
            state, is_over = reader.snapshot_state(1), out.at_end
            reader.close()
    return rows


def common_options(chance: random.Random) -> dict[str, Any]:
    return {
        "bad_rows": chance.choice(["fail", "skip"]),
        "block_bytes": chance.choice([2000, 5000, 10**6]),
    }


@settings(max_examples=120, deadline=None)
@given(lines=st.lists(objects(), min_size=1, max_size=12), number=st.integers(0, 10**6))
def test_rescued_fields_of_json_are_those_that_python_finds(lines: list[str], number: int) -> None:
    chance = random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_text(chance.choice(["\n", "\r\n", "\n\n"]).join(lines) + "\n", newline="")
        rows = read(path, chance, format="jsonl", **common_options(chance))

    assert len(rows) == len(lines)
    for line, (a, b, rescued) in zip(lines, rows, strict=True):
        expected = parsed(line)
        assert (a, b) == (
            None if "a" not in expected else int(expected.pop("a")),
            expected.pop("b", None),
        )
        assert (None if rescued is None else parsed(rescued)) == (expected or None)


@settings(max_examples=120, deadline=None)
@given(
    names=st.lists(WORDS, max_size=3, unique=True),
    texts=st.lists(st.lists(WORDS, min_size=5, max_size=5), min_size=1, max_size=12),
    number=st.integers(0, 10**6),
)
def test_rescued_columns_of_csv_are_those_that_python_finds(
    names: list[str], texts: list[list[str]], number: int
) -> None:
    chance = random.Random(number)
    header = [name for name in names if name not in KNOWN and name]
    for name in KNOWN:  # in this order, anywhere between the others
        before = header.index("a") + 1 if name == "b" else 0
        header.insert(chance.randrange(before, len(header) + 1), name)
    places = [header.index(name) for name in KNOWN]
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=chance.choice(["\n", "\r\n"]), quoting=csv.QUOTE_ALL)
    writer.writerow(header)
    for row, values in enumerate(texts):
        values[places[0]] = str(row)
        writer.writerow(values[: len(header)])
    nulls = chance.choice([("",), ("0", "N"), ()])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text(file.getvalue(), newline="")
        options = {"csv": CsvOptions(null_values=nulls), **common_options(chance)}
        rows = read(path, chance, format="csv", **options)

    found = list(csv.DictReader(io.StringIO(file.getvalue(), newline="")))
    assert len(rows) == len(found)
    for python, (a, b, rescued) in zip(found, rows, strict=True):
        expected = {name: None if text in nulls else text for name, text in python.items()}
        assert expected.pop("a") == (None if a is None else str(a))
        assert expected.pop("b") == b
        assert (None if rescued is None else json.loads(rescued)) == (expected or None)
