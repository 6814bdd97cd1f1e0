"""Records of topics whose values cannot be decoded: which they are, and what is kept of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from coordlog.api.operator import PollStatus
from coordlog.errors import OptionError, OptionsError, SourceError
from coordlog.limits import BAD_ROW_TEXT_BYTES, SIFTED_ROWS
from coordlog.spark_integration.files.formats.bad_rows import are_rejects
from coordlog.spark_integration.kafka.bad_records import rejects_of_records
from coordlog.spark_integration.kafka.cluster import Cluster
from coordlog.spark_integration.kafka.discovery import split_of
from coordlog.spark_integration.kafka.reader import KafkaReader, KafkaReaderOptions, NothingFrom
from coordlog.spark_integration.kafka.rows import Received, RowFormat
from coordlog.spark_integration.kafka.source import KafkaSource
from coordlog.spark_integration.kafka.state_bytes import decode_state
from fakes.chain_fakes import FakeContext
from fakes.kafka_fakes import FakeConsumer, FakeRecord

Treatment = Literal["fail", "skip", "emit"]
SCHEMA = pa.schema([("a", pa.int64())])
OPTIONS = KafkaReaderOptions(
    cluster=Cluster(bootstrap_servers="127.0.0.1:9", timeout_s=0.1),
    rows=RowFormat(decode="json", value_schema=SCHEMA),
    batch_rows=10_000,
    bad_rows="emit",
)


def never(_partition: object, _position: int) -> int | None:
    raise AssertionError("the partition has more records")


NEVER: NothingFrom = never


class Read:
    """Polls of a reader on a fake consumer, up to the end of its split."""

    def __init__(self, values: Sequence[bytes | None], options: KafkaReaderOptions) -> None:
        self.rows: list[tuple[int, Any]] = []
        """Offset and value."""
        self.rejects: list[dict[str, Any]] = []
        self.ended: list[tuple[int, int]] = []
        self.sizes: list[int] = []
        records: list[Received] = [FakeRecord(offset=n, value=v) for n, v in enumerate(values)]
        self.consumer = FakeConsumer(coming=[{("t", 0): records}])
        self.reader = KafkaReader(options, open_consumer=self.consumer, nothing_from=NEVER)
        self.reader.open(FakeContext(), None)
        self.reader.add_splits([split_of(("t", 0), "id-1", 0, len(values)).content])
        self.reader.notify_no_more_splits()

    def poll(self) -> PollStatus:
        poll = self.reader.poll()
        for batch in (poll.rejects, poll.batch):
            if batch is None:
                continue
            if are_rejects(batch):
                self.rejects += batch.to_pylist()
                continue
            self.sizes.append(batch.num_rows)
            columns = (batch.column(name).to_pylist() for name in ("offset", "value"))
            self.rows += list(zip(*columns, strict=True))
        if poll.finished is not None:
            self.ended.append((poll.finished.rows, poll.finished.rejected))
        return poll.status

    def to_the_end(self) -> Read:
        while self.poll() is not PollStatus.END:
            pass
        return self


def test_values_that_are_not_of_the_schema_are_rejected_with_their_offset() -> None:
    values = [b'{"a":1}', b'{"a":"x"}', b"[1]", None, b'{"a":1', b"\xff{}", b'{"a":2}']
    read = Read(values, OPTIONS).to_the_end()

    assert read.rows == [(0, {"a": 1}), (3, None), (6, {"a": 2})]
    assert [
        (one["topic"], one["partition"], one["offset"], one["row"]) for one in read.rejects
    ] == [
        ("t", 0, 1, '{"a":"x"}'),
        ("t", 0, 2, "[1]"),
        ("t", 0, 4, '{"a":1'),
        ("t", 0, 5, "\\xff{}"),
    ]
    assert read.rejects[0]["reason"] == (
        "the value cannot be read as json: Column(/a) changed from number to string"
    )
    assert read.rejects[1]["reason"] == (
        "the value cannot be read as json: a JSON object is needed, and this is list"
    )
    assert read.ended == [(3, 4)]


def test_text_that_is_not_utf8_is_rejected_and_a_long_one_is_cut() -> None:
    options = replace(OPTIONS, rows=RowFormat(decode="utf8"))
    long = b"y" * BAD_ROW_TEXT_BYTES + b"\xff"
    read = Read([b"x", b"\xc3\x28", long], options).to_the_end()

    assert read.rows == [(0, "x")]
    assert [one["row"] for one in read.rejects] == ["\\xc3(", "y" * BAD_ROW_TEXT_BYTES]


@pytest.mark.parametrize("bad", [set[int](), {0}, {999}, {3, 4, 700}, set(range(1000))])
def test_each_record_is_a_row_or_a_reject_whatever_records_are_bad(bad: set[int]) -> None:
    values = [b"x" if n in bad else json.dumps({"a": n}).encode() for n in range(1000)]
    read = Read(values, OPTIONS).to_the_end()

    assert [offset for offset, _ in read.rows] == sorted(set(range(1000)) - bad)
    assert [one["offset"] for one in read.rejects] == sorted(bad)
    assert read.ended == [(1000 - len(bad), len(bad))]
    if bad:
        assert max(read.sizes) <= SIFTED_ROWS, "a barrier waits for few records"
    else:
        assert read.sizes == [1000]


def test_a_restored_reader_has_the_number_of_the_records_left_out() -> None:
    values = [b"x" if n % 2 else b'{"a":1}' for n in range(2 * SIFTED_ROWS)]
    first = Read(values, OPTIONS)
    while not first.rows:
        first.poll()
    state = first.reader.snapshot_state(1)

    assert (decode_state(state).splits[0].position, first.reader._fetched != []) == (
        SIFTED_ROWS,
        True,
    )
    second = Read((), OPTIONS)
    second.consumer.coming = [
        {("t", 0): [FakeRecord(offset=n, value=values[n]) for n in range(SIFTED_ROWS, len(values))]}
    ]
    second.reader = KafkaReader(OPTIONS, open_consumer=second.consumer, nothing_from=NEVER)
    second.reader.open(FakeContext(), state)
    second.reader.notify_no_more_splits()
    second.to_the_end()

    assert second.ended == [(SIFTED_ROWS, SIFTED_ROWS)]
    offsets = [one["offset"] for one in (*first.rejects, *second.rejects)]
    assert offsets == list(range(1, len(values), 2))


def test_a_left_out_row_with_a_time_beyond_python_is_a_reject() -> None:
    """Microseconds instead of milliseconds are a usual mistake of producers: the year 55,840."""
    record = FakeRecord(offset=5, value=b"x", timestamp=1_700_000_000_000_000)
    rows = RowFormat(decode="utf8").rows(("t", 0), [record])

    rejects = rejects_of_records(rows, ["too late"])

    places = ("topic", "partition", "offset", "reason", "row")
    assert [tuple(row[name] for name in places) for row in rejects.to_pylist()] == [
        ("t", 0, 5, "too late", "x")
    ]


def test_skipped_records_are_counted_and_not_emitted() -> None:
    read = Read([b"x", b'{"a":1}'], replace(OPTIONS, bad_rows="skip")).to_the_end()

    assert (read.rows, read.rejects, read.ended) == ([(1, {"a": 1})], [], [(1, 1)])


def test_without_the_option_a_bad_record_is_an_error_with_its_offset() -> None:
    with pytest.raises(SourceError, match=r"partition t/0, offset 1: its value cannot be read"):
        Read([b'{"a":1}', b"x"], replace(OPTIONS, bad_rows="fail")).to_the_end()


def test_memory_that_is_used_up_is_no_fault_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_self: RowFormat, _values: object) -> None:
        raise pa.ArrowMemoryError("no memory")

    monkeypatch.setattr(RowFormat, "_decoded", no_memory)
    with pytest.raises(MemoryError):
        Read([b'{"a":1}'], OPTIONS).to_the_end()


def test_the_rejects_of_a_topic_have_a_place_that_is_checked(tmp_path: Path) -> None:
    with pytest.raises((OptionError, OptionsError), match="bad_rows"):
        KafkaSource("t", bootstrap_servers="h:9", bad_rows="")
    source = KafkaSource("t", bootstrap_servers="h:9", bad_rows=tmp_path / "rejects")
    (follower,) = source.spec().followers
    assert follower.coordinator is not None
    assert follower.coordinator.destination == str(tmp_path / "rejects")
    assert KafkaSource("t", bootstrap_servers="h:9", bad_rows="skip").spec().followers == ()
