"""Rows that cannot be parsed or cast: which they are, what is kept of them, and that no other row changes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

from coordlog.api.chain import Chain
from coordlog.errors import OptionError, SourceError
from coordlog.limits import BAD_ROW_TEXT_BYTES
from coordlog.spark_integration.files.formats.bad_rows import are_rejects
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.reader import FileReader
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import decode_state
from coordlog.spark_integration.row_transforms import row_transform
from coordlog.spark_integration.transform import transform_spec
from fakes.chain_fakes import FakeContext, contents

TWO = "a bigint, b string"


class Read:
    """The output of a reader: good rows, and rejects, in order."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.rejects: list[dict[str, Any]] = []
        self.ended: list[tuple[int, int]] = []
        """Rows and rejected rows of each finished split."""

    def places(self) -> list[tuple[int | None, int | None, str]]:
        """Line, offset and text of the rejects."""
        return [(one["line"], one["offset"], one["row"]) for one in self.rejects]

    def reasons(self) -> list[str]:
        return [one["reason"] for one in self.rejects]


def read_until(reader: FileReader, read: Read, *, polls_max: int = 100_000) -> None:
    """Poll until the end of the input, or so many times."""
    for _ in range(polls_max):
        poll = reader.poll()
        if poll.batch is not None:
            (read.rejects if are_rejects(poll.batch) else read.rows).extend(poll.batch.to_pylist())
        if poll.finished is not None:
            read.ended.append((poll.finished.rows, poll.finished.rejected))
        if poll.status.value == "end":
            return


def opened(
    source: FileSource, state: bytes | None = None, *, listed_by: FileSource | None = None
) -> FileReader:
    reader = source.spec().create_reader()
    assert isinstance(reader, FileReader)
    reader.open(FakeContext(), state)
    if state is None:
        reader.add_splits(contents((listed_by or source).discover()))
    reader.notify_no_more_splits()
    return reader


def read_file(folder: Path, data: bytes, name: str = "a.csv", **options: Any) -> Read:  # noqa: ANN401, options of a source
    (folder / name).write_bytes(data)
    options.setdefault("bad_rows", folder / "rejects")
    source = FileSource(folder / name, **options)
    read = Read()
    read_until(opened(source), read)
    return read


def test_ragged_rows_and_values_of_other_types_are_rejected(tmp_path: Path) -> None:
    read = read_file(tmp_path, b"a,b\n1,x\n2\n3,y,z\nq,w\n\n5,v\n", schema=TWO)

    assert [row["a"] for row in read.rows] == [1, 5]
    assert read.places() == [(3, 8, "2"), (4, 10, "3,y,z"), (5, 16, "q,w")]
    assert read.reasons() == [
        "has 1 fields where 2 are expected",
        "has 3 fields where 2 are expected",
        "column 'a': the value 'q' is no int64",
    ]
    assert {one["file"] for one in read.rejects} == {str(tmp_path / "a.csv")}
    assert read.ended == [(2, 3)]


def test_columns_of_one_name_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"columns of one name: \['a'\]"):
        read_file(tmp_path, b"a,a,b\n1,1,x\n", schema=TWO)


def test_bytes_that_are_not_utf8_reject_their_row_alone(tmp_path: Path) -> None:
    read = read_file(tmp_path, b"a,b\n1,x\n2,\xff\xc3\xa9\n3,\xc3\xa9\n", schema=TWO)

    assert read.rows == [{"a": 1, "b": "x"}, {"a": 3, "b": "é"}]
    assert read.places() == [(3, 8, "2,\\xffé")]
    assert read.reasons() == ["column 'b': the text is not UTF-8"]


def test_a_quote_that_is_never_closed_costs_one_line(tmp_path: Path) -> None:
    read = read_file(tmp_path, b'a,b\n1,"x\ny"\n2,"open\n3,z\n4,w', schema=TWO)

    assert read.rows == [{"a": 1, "b": "x\ny"}, {"a": 3, "b": "z"}, {"a": 4, "b": "w"}]
    assert read.places() == [(4, 12, '2,"open')]
    assert read.reasons() == ["a quote is opened in this line and not closed"]


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    long = b"2," + b"y" * (3 * BAD_ROW_TEXT_BYTES) + b"\r\n"
    read = read_file(tmp_path, b"a,b\r\n1,x\r\n" + long + b"3,z\r\n", schema=TWO, block_bytes=1000)

    assert [row["a"] for row in read.rows] == [1, 3]
    assert read.places()[0][:2] == (3, 10)
    assert read.reasons() == ["the line is longer than 2,000 bytes"]
    assert len(read.rejects[0]["row"]) == 2000


def test_the_values_of_exact_casts_decide_as_they_do_without_rejects(tmp_path: Path) -> None:
    data = b"a,f,d,t\n1,1.5,1.25,2024-01-01 00:00:00\n2,9007199254740993,1.25,2024-01-01 00:00:00\n"
    data += b"3,1e400,1.25,2024-01-01 00:00:00\n4,2.5,70000,2024-01-01 00:00:00\n5,,,\n"
    data += b"6,1.5,1.25,2024-01-01 00:00:00Z\n99999999999999999999,1,1,2024-01-01 00:00:00\n"
    schema = "a bigint, f double, d decimal(5,2), t timestamp_ntz"
    read = read_file(tmp_path, data, schema=schema)

    assert [row["a"] for row in read.rows] == [1, 5]
    assert [reason.partition(":")[0] for reason in read.reasons()] == [
        "column 'f'",
        "column 'f'",
        "column 'd'",
        "column 't'",
        "column 'a'",
    ]


def test_json_lines_that_are_no_objects_of_the_schema_are_rejected(tmp_path: Path) -> None:
    lines = [
        b'{"a":1,"b":"x"}',
        b"[]",
        b"null",
        b'{"a":"q"}',
        b'{"a":1,"a":2}',
        b'{"a":3,"b":"\xff"}',
        b"",
        b'{"a":2}{"a":3}',
        b'{"a":1.5}',
        b'{"a":9}',
        b'{"a":1',
    ]
    read = read_file(tmp_path, b"\n".join(lines), "a.jsonl", format="jsonl", schema=TWO)

    assert [row["a"] for row in read.rows] == [1, 9]
    assert [place[0] for place in read.places()] == [2, 3, 4, 5, 6, 8, 9, 11]
    assert read.rejects[0]["row"] == "[]"
    for reason, word in zip(
        read.reasons(),
        ["object", "object", "string", "twice|more", "UTF-8", "Extra", "", "JSON"],
        strict=True,
    ):
        assert any(part in reason for part in word.split("|")), reason


def test_a_json_line_longer_than_a_block_is_rejected(tmp_path: Path) -> None:
    data = b'{"a":1}\n{"b":"' + b"y" * 5000 + b'"}\n{"a":3}\n'
    read = read_file(tmp_path, data, "a.jsonl", format="jsonl", schema=TWO, block_bytes=500)

    assert [row["a"] for row in read.rows] == [1, 3]
    assert read.reasons() == ["the line is longer than 500 bytes"]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_schema_is_inferred_from_the_good_rows_of_the_sample(tmp_path: Path, kind: str) -> None:
    if kind == "csv":
        data = b"a,b\n1,x\n2\n3,\xff\n4,y,z\n5,v\n"
    else:
        data = b'{"a":1,"b":"x"}\nnull\n{"a":2,"a":3}\n{"a":\xff}\n{"a":5,"b":"v"}\n'
    read = read_file(tmp_path, data, f"a.{kind}", format=kind)

    assert read.rows == [{"a": 1, "b": "x"}, {"a": 5, "b": "v"}]
    assert len(read.rejects) == 3


def test_rows_of_a_packed_file_have_the_offsets_of_its_text(tmp_path: Path) -> None:
    read = read_file(tmp_path, gzip.compress(b"a,b\n1,x\nq,y\n"), "a.csv.gz", schema=TWO)

    assert read.places() == [(3, 8, "q,y")]


def test_rows_in_another_encoding_have_a_line_and_no_offset(tmp_path: Path) -> None:
    data = "a,b\n1,ä\nq,ö\n".encode("utf-16")
    read = read_file(tmp_path, data, schema=TWO, encoding="utf-16")

    assert read.rows == [{"a": 1, "b": "ä"}]
    assert read.places() == [(3, None, "q,ö")]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    read = read_file(tmp_path, b"\xef\xbb\xbfa,b\nq,x\n1,y\n", schema=TWO)

    assert read.rows == [{"a": 1, "b": "y"}]
    assert read.places() == [(2, 7, "q,x")]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_parts_of_a_file_have_offsets_and_the_first_has_lines(tmp_path: Path, kind: str) -> None:
    good, bad = (b"%d,x\n", b"q%d,x\n") if kind == "csv" else (b'{"a":%d}\n', b'{"a":"q%d"}\n')
    head = b"a,b\n" if kind == "csv" else b""
    lines = [(bad if number % 7 == 3 else good) % number for number in range(300)]
    data = head + b"".join(lines)
    options: dict[str, Any] = {"split_bytes": 500, "schema": TWO, "format": kind}
    if kind == "csv":
        options["csv"] = CsvOptions(no_newlines_in_fields=True)
    read = read_file(tmp_path, data, f"a.{kind}", **options)

    assert len(read.ended) > 3
    assert sorted(row["a"] for row in read.rows) == [n for n in range(300) if n % 7 != 3]
    assert len(read.rejects) == sum(n % 7 == 3 for n in range(300))
    for one in read.rejects:
        text = one["row"].encode()
        assert data[one["offset"] :].startswith(text + b"\n")
        expected = data.count(b"\n", 0, one["offset"]) + 1
        assert one["line"] == (expected if one["offset"] < 500 else None) or one["offset"] > 490


def test_offsets_are_right_if_a_part_begins_with_an_empty_line(tmp_path: Path) -> None:
    """The header ends with CR: with the LF of the empty line it would be CR LF."""
    data = b"a,b\r1,x\n\n2,y\nq,z\n"
    options = CsvOptions(no_newlines_in_fields=True)
    read = read_file(tmp_path, data, schema=TWO, csv=options, split_bytes=8)

    assert [row["a"] for row in read.rows] == [1, 2]
    assert [(one["offset"], one["row"]) for one in read.rejects] == [(data.index(b"q"), "q,z")]


def awkward_rows(chance: random.Random, count: int) -> tuple[bytes, list[tuple[int, str]], int]:
    """A CSV file with good and bad rows, the good ones as Python reads them, and the number of the others."""
    text, good, bad = io.StringIO(), [], 0
    writer = csv.writer(text, lineterminator=chance.choice(["\n", "\r\n"]))
    writer.writerow(["a", "b"])
    for number in range(count):
        value = "".join(chance.choices('xy,"\n é', k=chance.randrange(8)))
        kind = chance.randrange(12)
        if kind == 0:
            writer.writerow([number])
            bad += 1
        elif kind == 1:
            writer.writerow([number, value, 3])
            bad += 1
        elif kind == 2:
            writer.writerow(["no number", value])
            bad += 1
        else:
            writer.writerow([number, value])
            good.append((number, value))
    return text.getvalue().encode(), good, bad


def test_each_row_of_a_file_is_good_or_rejected_and_none_is_lost(tmp_path: Path, seed: int) -> None:
    """Whatever the size of the blocks, and with a restore after each poll."""
    chance = random.Random(seed)
    for number in range(12):
        data, good, bad = awkward_rows(chance, 120)
        path = tmp_path / f"{number}.csv"
        path.write_bytes(data)
        source = FileSource(
            path,
            schema=TWO,
            bad_rows=tmp_path / "rejects",
            batch_rows=chance.choice([1, 7, 1000]),
            block_bytes=chance.choice([40, 97, 500, 100_000]),
        )
        whole, pieces = Read(), Read()
        read_until(opened(source), whole)
        state, polls_max = None, 0
        while not pieces.ended:  # a restored reader polls to where it was, and some times more
            reader, polls_max = opened(source, state), polls_max + chance.randrange(1, 30)
            read_until(reader, pieces, polls_max=polls_max)
            state = reader.snapshot_state(1)
            reader.close()

        expected = [{"a": a, "b": b or None} for a, b in good]
        assert whole.rows == expected
        assert len(whole.rejects) == bad
        assert (pieces.rows, pieces.rejects) == (whole.rows, whole.rejects)
        assert whole.ended == pieces.ended == [(len(good), bad)]


def test_rows_of_a_file_without_bad_ones_are_those_of_a_source_that_fails(
    tmp_path: Path, seed: int
) -> None:
    """Quotes, escapes and line ends anywhere: what the one reader takes for a row, the other does too."""
    chance = random.Random(seed)
    names = CsvOptions(column_names=["a"])
    compared = 0
    for number in range(300):
        escape = chance.choice([None, "\\"])
        form = CsvOptions(
            column_names=names.column_names, escape=escape, delimiter=";", null_values=("NULL",)
        )
        data = "".join(chance.choices('xy"\\\n\r', (8, 8, 8, 1, 8, 8), k=40)).encode() + b"\n"
        path = tmp_path / f"{number}.csv"
        path.write_bytes(data)
        options: dict[str, Any] = {"schema": "a string", "csv": form}
        strict, sifted = Read(), Read()
        with closing(opened(FileSource(path, **options))) as reader:
            try:
                read_until(reader, strict)
            except SourceError:
                continue
        read_until(opened(FileSource(path, bad_rows="skip", **options)), sifted)
        if sifted.ended != [(len(strict.rows), 0)]:
            # Arrow takes the end of the file for the end of a quote within its last line.
            assert sifted.ended[0][1], data
            continue
        compared += 1
        assert sifted.rows == strict.rows, data
    assert compared > 100


def test_skipped_rows_are_counted_and_not_emitted(tmp_path: Path) -> None:
    read = read_file(tmp_path, b"a,b\n1,x\n2\nq,w\n5,v\n", schema=TWO, bad_rows="skip")

    assert [row["a"] for row in read.rows] == [1, 5]
    assert read.rejects == []
    assert read.ended == [(2, 2)]


def test_a_source_that_fails_names_the_first_bad_row_as_before(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"row 3 .a header is row 1. has 1 fields where 2 are"):
        read_file(tmp_path, b"a,b\n1,x\n2\n", schema=TWO, bad_rows="fail", split_bytes=1 << 40)


def test_a_job_goes_on_with_rejects_from_the_place_where_it_failed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(
        b"a,b\n" + b"".join(b"%d,x\n" % n for n in range(50)) + b"q,x\n7,y\n"
    )
    options: dict[str, Any] = {"schema": TWO, "batch_rows": 10, "block_bytes": 100}
    with_rejects = FileSource(tmp_path / "a.csv", **options, bad_rows=tmp_path / "rejects")
    reader = opened(FileSource(tmp_path / "a.csv", **options), listed_by=with_rejects)
    read = Read()
    with pytest.raises(SourceError, match="'q' is no int64"):
        read_until(reader, read)
    state = reader.snapshot_state(1)
    reader.close()
    again = opened(with_rejects, state)
    read_until(again, read)

    assert [row["a"] for row in read.rows] == [*range(50), 7]
    assert read.places() == [(52, 4 + 10 * 4 + 40 * 5, "q,x")]


def test_a_begun_split_keeps_the_length_from_which_rows_are_bad(tmp_path: Path) -> None:
    data = b"a,b\n1,x\n2," + b"y" * 300 + b"\n" + b"".join(b"%d,x\n" % n for n in range(3, 40))
    (tmp_path / "a.csv").write_bytes(data)
    options: dict[str, Any] = {"schema": TWO, "batch_rows": 1, "bad_rows": "skip"}
    reader, read = opened(FileSource(tmp_path / "a.csv", **options, block_bytes=100)), Read()
    read_until(reader, read, polls_max=5)
    state = reader.snapshot_state(1)
    reader.close()
    assert decode_state(state).splits[0].rejected == 1
    again = opened(FileSource(tmp_path / "a.csv", **options, block_bytes=1000), state)
    read_until(again, read)

    assert [row["a"] for row in read.rows] == [1, *range(3, 40)]
    assert read.ended == [(38, 1)]


def continued(path: Path, begun: dict[str, Any], later: dict[str, Any], polls: int) -> Read:
    """The output of a reader that was begun with one set of options, and continued with another."""
    listed_by = FileSource(path, **later)
    reader, read = opened(FileSource(path, batch_rows=1, **begun), listed_by=listed_by), Read()
    read_until(reader, read, polls_max=polls)
    state = reader.snapshot_state(1)
    reader.close()
    again = opened(FileSource(path, batch_rows=1, **later), state)
    with closing(again):
        read_until(again, read)
    return read


@pytest.mark.parametrize("polls", range(3, 30, 5))
@pytest.mark.parametrize("begun_as", ["skip", "fail"])
def test_a_begun_split_keeps_the_values_by_which_its_rows_are_bad(
    tmp_path: Path, begun_as: str, polls: int
) -> None:
    """With others a row that was left out would count as one that was read, or the other way round."""
    words = ["1", "NA", "2", "NA", "3", "4", "NA", "5", "6"]
    path = tmp_path / "a.csv"
    path.write_text("a\n" + "".join(f"{word}\n" for word in words))
    plain, of_nulls = {"csv": CsvOptions()}, {"csv": CsvOptions(null_values=("NA",))}
    begun, later = (plain, of_nulls) if begun_as == "skip" else (of_nulls, plain)
    both: dict[str, Any] = {"schema": "a int", "block_bytes": 5}

    read = continued(
        path, {**both, **begun, "bad_rows": begun_as}, {**both, **later, "bad_rows": "skip"}, polls
    )

    nulls = [] if begun_as == "skip" else [None] * 3
    assert [row["a"] for row in read.rows if row["a"]] == [1, 2, 3, 4, 5, 6]
    assert [row["a"] for row in read.rows if row["a"] is None] == nulls
    assert read.ended == [(6 + len(nulls), 3 - len(nulls))]


def test_a_begun_split_with_rejects_fails_at_the_first_whatever_is_null(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a\n1\nNA\n2\n3\n4\n")
    both: dict[str, Any] = {"schema": "a int", "block_bytes": 5}
    of_nulls = {**both, "csv": CsvOptions(null_values=("NA",))}

    with pytest.raises(SourceError, match="'NA' is no int32"):
        continued(path, {**both, "bad_rows": "skip"}, of_nulls, 4)


def test_a_begun_split_takes_new_values_for_null_if_it_has_left_out_no_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n2\n3\nNA\n4\n")
    both: dict[str, Any] = {"schema": "a int", "block_bytes": 5}
    of_nulls = {**both, "csv": CsvOptions(null_values=("NA",))}

    read = continued(path, both, of_nulls, 2)

    assert [row["a"] for row in read.rows] == [1, 2, 3, None, 4]


@pytest.mark.parametrize("polls", range(3, 12, 2))
def test_a_begun_split_keeps_its_rule_for_fields_beyond_the_schema(
    tmp_path: Path, polls: int
) -> None:
    path = tmp_path / "a.jsonl"
    lines = [f'{{"a": {number}}}\n' for number in range(9)]
    path.write_text("".join(lines[:3]) + '{"a": 99, "b": 1}\n' + "".join(lines[3:]))
    inferring: dict[str, Any] = {"format": "jsonl", "block_bytes": 24, "bad_rows": "skip"}
    listed = FileSource(path, schema="a bigint", **inferring)
    first = FileSource(path, **inferring, batch_rows=1)
    reader, read = opened(first, listed_by=listed), Read()
    read_until(reader, read, polls_max=polls)
    state = reader.snapshot_state(1)
    reader.close()
    with closing(opened(FileSource(path, schema="a bigint", **inferring), state)) as again:
        read_until(again, read)

    assert [row["a"] for row in read.rows] == list(range(9))
    assert read.ended == [(9, 1)]


def changing_options(chance: random.Random, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "format": kind,
        "schema": "a int, b string",
        "bad_rows": chance.choice(["fail", "skip", "skip"]),
        "block_bytes": chance.choice([60, 97, 500, 100_000]),
        "batch_rows": chance.choice([1, 3, 100]),
    }
    if kind == "csv":
        nulls = chance.choice([("",), ("NA",), ("", "NA", "x")])
        options["csv"] = CsvOptions(null_values=nulls, quote=chance.choice(['"', "'", None]))
    elif chance.random() < 0.5:
        del options["schema"]
    return options


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_no_row_is_read_twice_or_passed_over_whatever_options_change(
    tmp_path: Path, kind: str, seed: int, dose: int
) -> None:
    """Runs of one job with options of chance, each ended somewhere: an error may end them, and nothing else."""
    chance, finished = random.Random(seed), 0
    for number in range(60 * dose):
        path, count = tmp_path / f"{number}.{kind}", chance.randrange(1, 25)
        with path.open("w", newline="") as file:
            file.write("a,b\n" if kind == "csv" else "")
            for row in range(count):
                value = chance.choice(["x", "NA", "", '"p,q"', "'r'", "s" * 80, "t,u"])
                key = chance.choice([str(row), str(row), "NA", ""]) if kind == "csv" else row
                new = chance.choice(["", "", ', "c": 1'])
                line = f"{key},{value}" if kind == "csv" else f'{{"a": {key}, "b": "{row}"{new}}}'
                file.write(f"{line}\n")
        state, read, is_over = None, Read(), False
        listed_by = FileSource(path, format=kind, schema="a int, b string", bad_rows="skip")  # type: ignore[arg-type]
        while not is_over:
            source = FileSource(path, **changing_options(chance, kind))
            reader, before = opened(source, state, listed_by=listed_by), len(read.ended)
            try:
                read_until(reader, read, polls_max=chance.choice([1, 2, 5, 100_000]))
            except SourceError:
                is_over = True
            state = reader.snapshot_state(1)
            reader.close()
            is_over = is_over or len(read.ended) > before
        keys = [row["a"] for row in read.rows if row["a"] is not None]
        assert keys == sorted(set(keys)), path.read_bytes()
        for rows, rejected in read.ended:
            finished += 1
            assert (rows, rows + rejected) == (len(read.rows), count), path.read_bytes()
    assert finished > 10 * dose


@pytest.mark.parametrize("kind", ["parquet", "text"])
def test_formats_without_bad_rows_need_a_row_transform_for_the_option(
    tmp_path: Path, kind: Literal["parquet", "text"]
) -> None:
    source = FileSource(tmp_path, format=kind, bad_rows="skip")
    for transform in ([], [transform_spec(lambda batch: batch)]):
        with pytest.raises(OptionError, match=r"bad_rows .*row_transform"):
            Chain(source=source.spec(), operators=transform)
    with pytest.raises(OptionError, match=r"bad_rows .*queries"):
        source.coordinated()
    declared = transform_spec(row_transform(lambda batch: batch))
    assert Chain(source=source.spec(), operators=[declared]).source.row_rejects is None


def test_deep_json_is_rejected_and_ends_no_process(tmp_path: Path) -> None:
    deep = b'{"c":' * 3000 + b"1" + b"}" * 3000
    data = b'{"a":1}\n' + deep + b"\n" + json.dumps({"a": 2}).encode() + b"\n"
    read = read_file(tmp_path, data, "a.jsonl", format="jsonl", schema=TWO)

    assert [row["a"] for row in read.rows][-1] == 2
    assert len(read.rows) + len(read.rejects) == 3
