"""The folds over a log that run inside Spark's Python workers, on one partition or one group.

Spark may give a fold the rows of a log in any number of batches; the order is the log's, which each
fold looks at: offsets rise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from coordlog.errors import RecordError
from coordlog.projections.tables.audit import counting_at, schemas_before
from coordlog.projections.tables.payload_json import PayloadReader
from coordlog.schemas.header import Header, decode_header
from coordlog.schemas.record import Kind
from coordlog.schemas.validity import Counting
from coordlog.spark_integration.history_frames.bulk_validity import COUNTS, Teller
from coordlog.spark_integration.task.worker_archives import keep_archives

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

__all__ = [
    "STREAM_COLUMNS",
    "STREAM_INPUT",
    "STREAM_STATE",
    "FirstRecord",
    "LogOrder",
    "packed",
    "payload_texts",
    "tell_codes",
    "tell_stream",
    "unpacked",
]


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record of a log, as `counting_at` looks at it."""

    offset: int
    value: bytes | None
    header_bytes: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0

    @property
    def header(self) -> Header | None:
        """The decoded header."""
        return decode_header(self.header_bytes)


class LogOrder:
    """Sees to it that each record comes once, in log order."""

    def __init__(self, last: int = -1) -> None:
        self.last = last

    def check(self, offsets: pa.Array) -> None:
        """Raises RecordError where they do not rise."""
        values = offsets.to_numpy(zero_copy_only=False)
        before = np.concatenate([[self.last], values[:-1]])
        wrong = np.flatnonzero(values <= before)
        if len(wrong):
            place = int(wrong[0])
            raise RecordError(
                int(values[place]),
                "",
                f"Spark gives it after offset {before[place]}: what counts is told in log order, of "
                "a topic with one partition that is read as one; leave out Kafka options that "
                "split it, as minPartitions does",
            )
        if len(values):
            self.last = int(values[-1])


def tell_codes(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """What each record is worth, as `Teller` has it, int8; the function of an `arrow_udf`.

    Args:
        batches: All of a log, in log order: `offset: int64`, `header: binary`, and of the log's
            first record its `value: binary`, null elsewhere.
    """
    teller: Teller | None = None
    order = LogOrder()
    for offsets, headers, firsts in batches:
        order.check(offsets)
        if teller is None:
            if not len(offsets):
                yield pa.array([], pa.int8())
                continue
            teller = Teller(counting_at(_first(offsets, headers, firsts)))
        yield pa.array(teller.tell(headers))
    if teller is not None:
        yield pa.array(teller.rest())


def payload_texts(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Each record's payload as JSON, decoded by the schemas that the log has registered before.

    Args:
        batches: All of a log, in log order: `offset: int64`, `header: binary`, the first record's
            `value: binary`, `counts: boolean`, `kind: string`, `payload_type: string` and
            `payload: binary`.
    """
    reader: PayloadReader | None = None
    for offsets, headers, firsts, counts, kinds, types, payloads in batches:
        if reader is None and len(offsets):
            reader = PayloadReader()
            first = _first(offsets, headers, firsts)
            if first.offset > 0:
                reader.begin(schemas_before(first))
        yield _texts(reader or PayloadReader(), counts, kinds, types, payloads)


def _texts(
    reader: PayloadReader, counts: pa.Array, kinds: pa.Array, types: pa.Array, payloads: pa.Array
) -> pa.Array:
    texts: list[str | None] = [None] * len(payloads)
    rows = zip(
        counts.to_pylist(), kinds.to_pylist(), types.to_pylist(), payloads.to_pylist(), strict=True
    )
    for place, (counts_too, kind, payload_type, payload) in enumerate(rows):
        if payload is not None:
            is_type = kind == Kind.TYPE_REGISTERED.value
            texts[place] = reader.text_of(
                payload_type, payload, is_registration=is_type, counts=counts_too
            )
    return pa.array(texts, pa.string())


def _first(offsets: pa.Array, headers: pa.Array, firsts: pa.Array) -> FirstRecord:
    return FirstRecord(offsets[0].as_py(), firsts[0].as_py(), headers[0].as_py())


STREAM_INPUT: Final = (
    "offset BIGINT, key BINARY, value BINARY, header BINARY, log_us BIGINT, kind STRING, "
    "payload_type STRING, payload BINARY"
)
"""What `packed` takes of each record, in this order."""

STREAM_COLUMNS: Final = (
    "offset BIGINT, key BINARY, value BINARY, header BINARY, log_us BIGINT, "
    "code TINYINT, payload_json STRING"
)
"""What `unpacked` gives of each."""

STREAM_STATE: Final = (
    "version INT, epoch INT, next_sequence BIGINT, turn_began BIGINT, last_offset BIGINT, "
    "types STRING, held BINARY"
)
"""The counting state, the schemas that are registered, and the records that wait, as Arrow."""

_STATE_VERSION: Final = 1
_INPUT: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("header", pa.binary()),
        ("log_us", pa.int64()),
        ("kind", pa.string()),
        ("payload_type", pa.string()),
        ("payload", pa.binary()),
    ]
)
_ROWS_PER_BATCH: Final = 10_000
_GIVEN: Final = ("offset", "key", "value", "header", "log_us")


def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows of a partition as one: `topic: string` and the others as Arrow, `records: binary`.

    The function of a `mapInArrow`. The state's function gets one row of each log, and gives one:
    for more rows than states PySpark 4.1 hands over, with newer versions of pyarrow, places that
    are no integers, and fails.

    Args:
        batches: `topic: string` and the columns of `STREAM_INPUT`.
    """
    keep_archives()
    parts = [pa.Table.from_batches([one]) for one in batches if one.num_rows]
    if not parts:
        return
    whole = pa.concat_tables(parts)
    content = _to_bytes(whole.drop_columns(["topic"]).cast(_INPUT))
    yield _packed(topic=pa.array([whole.column("topic")[0].as_py()]), records=pa.array([content]))


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that `tell_stream` has given as one; the function of a `mapInArrow`."""
    for batch in batches:
        for content in batch.column("records").to_pylist():
            yield from _from_bytes(content).to_batches(max_chunksize=_ROWS_PER_BATCH)


def tell_stream(
    _job: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """The records of a micro-batch whose fate is known, and those that had waited for theirs.

    The function of `applyInPandasWithState`, for all records of one log, as `packed` has them.

    Args:
        frames: With a column `records`; in any order: a micro-batch is sorted here.
        state: The columns of `STREAM_STATE`.
    """
    keep_archives()
    parts = [_from_bytes(content) for one in frames for content in one["records"]]
    come = pa.concat_tables([_INPUT.empty_table(), *parts]).sort_by("offset").combine_chunks()
    fold = _StreamFold.begun(come) if not state.exists else _StreamFold.read(state.get)
    told = fold.tell(come)
    state.update(fold.written())
    if told.num_rows:
        yield _packed(records=pa.array([_to_bytes(told)])).to_pandas()


def _packed(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as target:
        target.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _from_bytes(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as source:
        return source.read_all()


class _StreamFold:
    """What lies between two micro-batches."""

    def __init__(
        self, teller: Teller, order: LogOrder, types: dict[str, str], held: pa.Table
    ) -> None:
        self._teller = teller
        self._order = order
        self._types = types
        self._held = held

    @classmethod
    def begun(cls, come: pa.Table) -> _StreamFold:
        """At the start of a log, whose first record is the first of these."""
        first = FirstRecord(
            *(come.column(name)[0].as_py() for name in ("offset", "value", "header"))
        )
        types = dict(schemas_before(first)) if first.offset > 0 else {}
        return cls(Teller(counting_at(first)), LogOrder(), types, _INPUT.empty_table())

    @classmethod
    def read(cls, state: tuple[Any, ...]) -> _StreamFold:
        """As `written` has left it."""
        version, epoch, next_sequence, turn_began, last_offset, types, held = state
        if version != _STATE_VERSION:
            raise RecordError(
                last_offset + 1,
                "",
                f"the stream's checkpoint holds a state of version {version}, this is version "
                f"{_STATE_VERSION}: begin the stream again, with a new checkpointLocation",
            )
        table = _from_bytes(held)
        codes = table.column("code").to_pylist()
        teller = Teller(Counting(epoch, next_sequence, turn_began), codes)
        return cls(teller, LogOrder(last_offset), json.loads(types), table.drop_columns(["code"]))

    def written(self) -> tuple[Any, ...]:
        """As columns of `STREAM_STATE`."""
        codes = pa.array(self._teller.rest(), pa.int8())
        table = self._held.append_column("code", codes)
        counting = self._teller.state
        return (
            _STATE_VERSION,
            *(counting.epoch, counting.next_sequence, counting.turn_began),
            self._order.last,
            json.dumps(self._types, sort_keys=True),
            _to_bytes(table),
        )

    def tell(self, come: pa.Table) -> pa.Table:
        """Of those that waited and these, in log order, the ones that are decided."""
        self._order.check(come.column("offset").combine_chunks())
        codes = self._teller.tell(come.column("header").combine_chunks())
        rows = pa.concat_tables([self._held, come]).combine_chunks()
        decided, self._held = rows.slice(0, len(codes)), rows.slice(len(codes))
        told = decided.select(list(_GIVEN)).append_column("code", pa.array(codes, pa.int8()))
        return told.append_column("payload_json", self._payloads(decided, codes))

    def _payloads(self, rows: pa.Table, codes: Any) -> pa.Array:  # noqa: ANN401, numpy's array
        reader = PayloadReader()
        reader.begin(self._types)
        columns = [rows.column(name) for name in ("kind", "payload_type", "payload")]
        texts = _texts(reader, pa.array(codes == COUNTS), *columns)
        self._types = dict(reader.schemas())
        return texts
