"""The folds that Spark's Python workers run, without Spark: in any parts a log gives the same rows."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

import datetime as dt
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordlog.errors import RecordError
from coordlog.log.interface import UnstoredRecord
from coordlog.projections.tables.audit import audit_records
from coordlog.projections.tables.columns import TABLES
from coordlog.schemas.codec import decode_record
from coordlog.schemas.payload import Payload, event, payload_type_of
from coordlog.schemas.payload_address import PayloadAddress, inline
from coordlog.schemas.record import Kind
from coordlog.schemas.secret_fields import REDACTED
from coordlog.spark_integration.history_frames import folds as history_folds
from coordlog.spark_integration.history_frames.bulk_validity import why_not
from coordlog.spark_integration.history_frames.folds import (
    STREAM_INPUT,
    STREAM_STATE,
    json_texts,
    packed,
    payload_texts,
    tell_codes,
    tell_stream,
    unpacked,
)
from coordlog.spark_integration.history_frames.views import UNREADABLE, tables_of
from histories.hand_history import HandHistory, streaming_history, unstored

COLUMNS = [one.split()[0] for one in STREAM_INPUT.split(", ")]


class FakeState:
    """What Spark hands a group: a row, or nothing, that crosses to the next micro-batch."""

    def __init__(self) -> None:
        self._row: tuple[Any, ...] | None = None

    @property
    def exists(self) -> bool:
        return self._row is not None

    @property
    def get(self) -> tuple[Any, ...]:
        assert self._row is not None
        return self._row

    def update(self, row: tuple[Any, ...]) -> None:
        assert len(row) == len(STREAM_STATE.split(", "))
        assert all(isinstance(one, (int, str, bytes)) for one in row), (
            "columns of Spark's own types"
        )
        self._row = row


def frame(records: Sequence[UnstoredRecord], first_offset: int = 0) -> pd.DataFrame:
    """As Spark hands them over: what does not decode is NULL."""
    rows: list[tuple[Any, ...]] = []
    for offset, one in enumerate(records, first_offset):
        header = one.header or None
        said: tuple[int | None, str | None, str | None, str | None, bytes | None]
        try:
            record = decode_record(offset, one.value, header)
            writer = (record.epoch, record.driver_id)
            said = (*writer, record.kind.value, record.payload_type, record.payload)
        except RecordError:
            said = (None, None, None, None, None)
        rows.append((offset, one.key, one.value, header, one.timestamp_us, *said))
    types = {"offset": "int64", "log_us": "int64", "epoch": "Int32"}
    return pd.DataFrame(rows, columns=COLUMNS).astype(types)


def micro_batch(parts: Sequence[pd.DataFrame], state: FakeState) -> Iterator[pd.DataFrame]:
    """What Spark does with the parts of one."""
    schema = history_folds._INPUT.append(pa.field("topic", pa.string()))
    batches = [
        pa.RecordBatch.from_pandas(one.assign(topic="ingest.log"), schema, preserve_index=False)
        for one in parts
    ]
    packs = [one.to_pandas() for one in packed(batches)]
    given: Any = state
    for told in tell_stream(("ingest.log",), packs, given):
        for batch in unpacked([pa.RecordBatch.from_pandas(told)]):
            yield batch.to_pandas()


def streamed(
    parts: Sequence[Sequence[pd.DataFrame]],
) -> Iterator[tuple[int, str | None, str | None]]:
    """Offset, why it is void, and payload, of each micro-batch's rows."""
    state = FakeState()
    for part in parts:
        for told in micro_batch(part, state):
            reasons = why_not(told["code"].to_numpy(dtype="int8")).to_pylist()
            yield from zip(
                told["offset"].tolist(), reasons, told["payload_json"].tolist(), strict=True
            )


def in_batch(records: Sequence[UnstoredRecord]) -> list[tuple[int, str | None, str | None]]:
    whole = frame(records)
    table = pa.Table.from_pandas(whole, preserve_index=False)
    offsets = pa.array(whole["offset"], pa.int64())
    headers = pa.array(whole["header"], pa.binary())
    firsts = pa.array([records[0].value, *[None] * (len(records) - 1)], pa.binary())
    codes = pa.concat_arrays(list(tell_codes(iter([(offsets, headers, firsts)]))))
    counts = pa.array([one == 0 for one in codes.to_pylist()])
    said = [table.column(one).combine_chunks() for one in ("payload_type", "payload")]
    registrations = pa.array(whole["kind"] == "TYPE_REGISTERED")
    (texts,) = payload_texts(iter([(offsets, headers, firsts, counts, registrations, *said)]))
    reasons = why_not(codes.to_numpy()).to_pylist()
    return list(zip(offsets.to_pylist(), reasons, texts.to_pylist(), strict=True))


HISTORY = streaming_history().records


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.randoms())
@settings(max_examples=30, deadline=None)
def test_a_stream_in_any_parts_gives_the_rows_of_the_batch(
    sizes: list[int], chance: Random
) -> None:
    parts: list[list[pd.DataFrame]] = []
    offset = 0
    while offset < len(HISTORY):
        part = frame(HISTORY[offset : offset + sizes[len(parts) % len(sizes)]], offset)
        offset += len(part)
        part = part.sample(frac=1, random_state=chance.randrange(100))  # a shuffle keeps no order
        half = len(part) // 2
        parts.append([part.iloc[:half], part.iloc[half:]])

    assert list(streamed(parts)) == in_batch(HISTORY)


def test_a_record_and_those_behind_it_wait_until_its_turn_is_decided() -> None:
    one = HandHistory()
    one.epoch()
    open_turn = one.record(Kind.JOB_FINISHED)
    one.void(open_turn, epoch=0, sequence=0, remaining=1)
    one.foreign()
    state = FakeState()
    (told,) = micro_batch([frame(one.records)], state)
    assert told["offset"].tolist() == [0]

    one.epoch()
    (told,) = micro_batch([frame(one.records[3:], 3)], state)
    assert told["offset"].tolist() == [1, 2, 3]
    assert why_not(told["code"].to_numpy(dtype="int8")).to_pylist() == [
        "void: a newer epoch cut its turn off",
        "void: not a record of this log's format",
        None,
    ]


@pytest.mark.parametrize("offsets", [(0, 2, 1), (0, 0), (3, 1)])
def test_a_log_out_of_order_is_refused(offsets: tuple[int, ...]) -> None:
    headers = pa.nulls(len(offsets), pa.binary())
    with pytest.raises(RecordError, match="minPartitions"):
        list(tell_codes(iter([(pa.array(offsets, pa.int64()), headers, headers)])))


def test_a_stream_whose_topic_begins_again_is_refused() -> None:
    state = FakeState()
    list(micro_batch([frame(HISTORY[:9])], state))
    with pytest.raises(RecordError, match="Spark passes it after offset 8"):
        list(micro_batch([frame(HISTORY[:2])], state))


def told_reasons(
    records: Sequence[UnstoredRecord], first: int, state: FakeState
) -> list[str | None]:
    (told,) = micro_batch([frame(records[first:], first)], state)
    reasons: list[str | None] = why_not(told["code"].to_numpy(dtype="int8")).to_pylist()
    return reasons


def of_epochs(count: int) -> HandHistory:
    history = HandHistory()
    for _ in range(count):
        history.epoch()
        history.turn(history.record(Kind.GLOBAL_FAILURE))
    return history


def test_a_stream_that_would_go_on_in_another_log_is_refused() -> None:
    """The topic was made again, and is longer than the stream's position: by its place the next record would count."""
    former, later, state = of_epochs(1), of_epochs(1), FakeState()
    for _ in range(3):
        later.turn(replace(later.record(Kind.GLOBAL_FAILURE), driver_id="another"))
    list(micro_batch([frame(former.records)], state))

    with pytest.raises(
        RecordError, match=r"driver another and epoch 0.*made again.*new checkpoint"
    ):
        told_reasons(later.records, len(former.records), state)


@pytest.mark.parametrize(
    ("epoch", "driver_id"),
    [(0, "another"), (2, "driver-2")],
    ids=["of-another-log", "behind-the-beginning-of-an-epoch"],
)
def test_a_stream_in_which_no_record_counts_any_more_is_refused(
    monkeypatch: pytest.MonkeyPatch, epoch: int, driver_id: str
) -> None:
    """As after the log was made again, or adopted with other offsets. One append of such may be a stale driver's."""
    monkeypatch.setattr(history_folds, "GROUP_RECORDS_MAX", 3)
    history, state = of_epochs(2), FakeState()
    end = len(history.records)
    list(micro_batch([frame(history.records)], state))
    stale = replace(history.record(Kind.GLOBAL_FAILURE), epoch=epoch, driver_id=driver_id)
    history.records += [unstored(replace(stale, sequence=n, turn_remaining=0)) for n in range(4)]

    reasons = told_reasons(history.records[: end + 3], end, state)
    assert None not in reasons
    assert len(reasons) == 3

    with pytest.raises(RecordError, match=r"none counts among 4 .*made again"):
        told_reasons(history.records, end + 3, state)


def test_a_stream_goes_on_behind_appends_of_a_former_logs_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record that counts behind them shows that the log is still the same."""
    monkeypatch.setattr(history_folds, "GROUP_RECORDS_MAX", 3)
    history, state = of_epochs(2), FakeState()
    end = len(history.records)
    list(micro_batch([frame(history.records)], state))
    for sequence in range(9):
        stale = replace(history.record(Kind.GLOBAL_FAILURE), epoch=0, driver_id="another")
        history.records.append(unstored(replace(stale, sequence=sequence, turn_remaining=0)))
        if sequence % 3 == 2:
            history.turn(history.record(Kind.GLOBAL_FAILURE))

    reasons = [told_reasons(history.records[: at + 1], at, state) for at in range(end, end + 12)]
    assert reasons.count([None]) == 3


def test_a_stream_goes_on_with_late_records_of_the_drivers_before() -> None:
    history, state = of_epochs(2), FakeState()
    end = len(history.records)
    list(micro_batch([frame(history.records)], state))

    history.void(history.record(Kind.GLOBAL_FAILURE), epoch=0, sequence=1)
    history.turn(history.record(Kind.GLOBAL_FAILURE))

    reasons = told_reasons(history.records, end, state)
    assert reasons == ["void: its epoch is not in force", None]


def test_a_state_of_another_version_is_refused_by_name() -> None:
    state = FakeState()
    list(micro_batch([frame(HISTORY[:9])], state))
    state.update((99, *state.get[1:]))
    with pytest.raises(RecordError, match=r"state of version 99.*new checkpointLocation"):
        list(micro_batch([frame(HISTORY[9:11], 9)], state))


@event("folds.told", version=1)
class Told(Payload):
    """A user's own, that Spark's workers have no code of."""

    name: str
    secret: Annotated[str, REDACTED]


def test_payloads_that_are_encoded_together_are_told_apart() -> None:
    values: list[object] = [
        {"text": 'a","b', "more": [1, {"x": None}]},
        {},
        {"bytes": b"\x01", "time": dt.date(2024, 2, 1)},
        {"text": "\n", "map": {"key": [True, 0.5]}},
    ]
    expected = [
        '{"text":"a\\",\\"b","more":[1,{"x":null}]}',
        "{}",
        '{"bytes":"0x01","time":"2024-02-01"}',
        '{"text":"\\n","map":{"key":[true,0.5]}}',
    ]

    assert json_texts(values) == expected
    assert json_texts([*values, {"number": math.inf}]) == [*expected, '{"number":"inf"}']
    assert list(json_texts([])) == []


def test_payloads_are_told_by_the_schemas_that_the_log_registers() -> None:
    told = payload_type_of(Told)
    content = told.encode(Told(name="ann", secret="hush"))
    address = PayloadAddress.of(bytes(9), "0-driver").encode()
    rows: list[tuple[str | None, str | None, bytes | None, bool]] = [
        ("EVENT_TO_SUBTASK", told.key, content, True),
        ("TYPE_REGISTERED", told.key, told.schema_json.encode(), False),
        ("EVENT_TO_SUBTASK", told.key, content, True),
        ("TYPE_REGISTERED", told.key, told.schema_json.encode(), True),
        ("EVENT_TO_SUBTASK", told.key, content, True),
        ("EVENT_TO_SUBTASK", told.key, inline(b"coordlog-payload:x"), True),
        ("EVENT_TO_SUBTASK", told.key, address, True),
        ("EVENT_ACKED", None, None, True),
        ("COORDINATOR_CHECKPOINTED", None, b"\x01\xff", True),
        ("EVENT_TO_SUBTASK", told.key, content, False),
    ]
    kinds, types, payloads, counts = zip(*rows, strict=True)
    (texts,) = payload_texts(
        iter(
            [
                (
                    pa.array(range(len(rows)), pa.int64()),
                    pa.nulls(len(rows), pa.binary()),
                    pa.nulls(len(rows), pa.binary()),
                    pa.array(counts),
                    pa.array([kind == "TYPE_REGISTERED" for kind in kinds]),
                    pa.array(types, pa.string()),
                    pa.array(payloads, pa.binary()),
                )
            ]
        )
    )

    shown = [None if one is None else json.loads(one) for one in texts.to_pylist()]
    schema = json.loads(told.schema_json)
    decoded = {"name": "ann", "secret": "(redacted)"}
    unknown = {"payload_hex": content.hex()}
    assert shown == [
        unknown,
        schema,
        unknown,
        schema,
        decoded,
        {"payload_hex": inline(b"coordlog-payload:x").hex()},
        {"payload_stored": address.decode()},
        None,
        {"payload_hex": "01ff"},
        decoded,
    ]


def test_a_view_has_each_of_its_columns_filled() -> None:
    whole = pa.RecordBatch.from_pandas(frame(HISTORY)[["offset", "key", "value", "header"]])
    found = pa.Table.from_batches(list(tables_of([whole])))
    assert found.schema.names == [*TABLES, UNREADABLE]
    assert found.column(UNREADABLE).null_count == found.num_rows
    for name, columns in TABLES.items():
        rows = [one for one in found.column(name).to_pylist() if one is not None]
        assert rows, name
        assert set(rows[0]) == set(columns), name
    by_record = [one for one in audit_records(_stored()) if one.counts and one.record]
    failed = [one for one in by_record if one.record and one.record.kind is Kind.ATTEMPT_FAILED]
    rows = [one for one in found.column("failures").to_pylist() if one is not None]
    assert sum(one["scope"] == "attempt" for one in rows) == len(failed)


def _stored() -> Iterator[Any]:
    from coordlog.log.memory import MemoryLog  # noqa: PLC0415, for this test alone

    log = MemoryLog("ingest")
    writer = log.writer()
    writer.append(HISTORY, timeout_s=1.0)
    return iter(log.records)


def test_a_record_that_counts_and_cannot_be_read_is_a_row_of_its_own() -> None:
    records = frame(HISTORY)[["offset", "key", "value", "header"]]
    records.loc[3, "value"] = b"\x01"
    batch = pa.RecordBatch.from_pandas(records, preserve_index=False)

    (last,) = tables_of([batch])
    (row,) = last.column(UNREADABLE).to_pylist()
    assert (row["offset"], row["kind"]) == (3, "")
    assert row["problem"].startswith("its value is damaged: ")
