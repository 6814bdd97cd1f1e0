"""The folds over a log that run inside Spark's Python workers, on one partition or one group.

Spark may pass the rows of a log to a fold in any number of batches. Their order must be the log's; each
fold checks it by the offsets, which rise.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordlog.errors import RecordError
from coordlog.limits import GROUP_RECORDS_MAX
from coordlog.projections.snapshot.codec import schemas_before
from coordlog.projections.tables.payload_json import Fields, PayloadReader, to_json
from coordlog.schemas.header import Header, decode_header
from coordlog.schemas.record import Kind
from coordlog.schemas.validity import Counting, beginning_of
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
    """The first record of a log, as the argument of `beginning_of`."""

    offset: int
    value: bytes | None
    header_bytes: bytes | None

    @property
    def header(self) -> Header | None:
        """The decoded header."""
        return decode_header(self.header_bytes)


class LogOrder:
    """Checks that each record arrives once, in log order."""

    def __init__(self, last: int = -1) -> None:
        self.last = last

    def check(self, offsets: pa.Array) -> None:
        """Raises RecordError if the offsets do not rise."""
        values = offsets.to_numpy(zero_copy_only=False)
        before = np.concatenate([[self.last], values[:-1]])
        wrong = np.flatnonzero(values <= before)
        if len(wrong):
            place = int(wrong[0])
            raise RecordError(
                int(values[place]),
                "",
                f"Spark passes it after offset {before[place]}, but records are counted in log order, "
                "from a topic with one partition; leave out Kafka options that "
                "split it, such as minPartitions",
            )
        if len(values):
            self.last = int(values[-1])


class EpochDrivers:
    """Checks that the records are of the log that was read before: in a topic that was made again, offsets go on too.

    A record that counts is of the driver of its epoch. Of the others, an `EPOCH_STARTED` may be any driver's. Further
    ones that are not of their epoch's driver, or of an epoch that has not begun, may be one append of a driver of a
    former log; if there are more, with none that counts behind them, the log is another one.

    Args:
        by_epoch: Ids of the drivers of earlier records.
        strangers: Number of earlier records behind the last one that counts that are not of their epoch's driver.
    """

    def __init__(self, by_epoch: Mapping[int, str], strangers: int = 0) -> None:
        self.by_epoch, self.strangers = dict(by_epoch), strangers

    def check(self, decided: pa.Table, counts: pa.Array, epoch_in_force: int) -> None:
        """Raises RecordError if the records are of another log.

        Args:
            decided: The next records of the log.
            counts: Whether each of them counts.
            epoch_in_force: The epoch in force behind them.
        """
        rows = decided.select(["offset", "kind", *_WRITER]).append_column("counts", counts)
        counted = rows.filter(pc.field("counts"))
        for row in _by_writer(counted.filter(pc.field("kind").is_valid())):
            known = self.by_epoch.setdefault(row["epoch"], row["driver_id"])
            if row["driver_id"] != known:
                raise _of_another_log(row, f"whose earlier records are of driver {known}")
        last = -1
        if counted.num_rows:
            last, self.strangers = counted.column("offset")[-1].as_py(), 0
        is_other = pc.field("kind") != Kind.EPOCH_STARTED.value  # not true if it is NULL
        for row in _by_writer(rows.filter((pc.field("offset") > last) & is_other)):
            known = self.by_epoch.get(row["epoch"], row["driver_id"])
            if row["epoch"] <= epoch_in_force and row["driver_id"] == known:
                continue
            self.strangers += row["offset_count"]
            if self.strangers > GROUP_RECORDS_MAX:
                raise _of_another_log(
                    row, f"and none counts among {self.strangers} of other drivers or epochs"
                )


def _by_writer(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """First offset and number of the rows of each epoch and driver, by that offset."""
    grouped = rows.group_by(list(_WRITER)).aggregate([("offset", "min"), ("offset", "count")])
    yield from grouped.sort_by("offset_min").to_pylist()


def _of_another_log(row: Mapping[str, Any], contradiction: str) -> RecordError:
    return RecordError(
        row["offset_min"],
        "",
        f"it is of driver {row['driver_id']} and epoch {row['epoch']}, {contradiction}: the topic was deleted and made "
        "again, or has lost records; begin the stream again, with a new checkpointLocation and a new output",
    )


def tell_codes(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Validity code of each record, by `Teller`, int8; the function of an `arrow_udf`.

    Args:
        batches: A whole log, in log order: `offset: int64`, `header: binary`, and `value: binary`
            of the first record, null in others.
    """
    teller: Teller | None = None
    order = LogOrder()
    for offsets, headers, firsts in batches:
        order.check(offsets)
        if teller is None:
            if not len(offsets):
                yield pa.array([], pa.int8())
                continue
            teller = Teller(beginning_of(_first(offsets, headers, firsts)).counting)
        yield pa.array(teller.tell(headers))
    if teller is not None:
        yield pa.array(teller.rest())


def payload_texts(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Each record's payload as JSON, decoded by the schemas that the log has registered before.

    Args:
        batches: A whole log, in log order: `offset: int64`, `header: binary` and `value: binary` of the
            first record, null in others; `counts: boolean`; whether it is a `TYPE_REGISTERED`: boolean;
            `payload_type: string` and `payload: binary`.
    """
    reader: PayloadReader | None = None
    for offsets, headers, firsts, counts, registrations, types, payloads in batches:
        if reader is None and len(offsets):
            reader = PayloadReader()
            first = _first(offsets, headers, firsts)
            reader.begin(schemas_before(beginning_of(first)))
        yield _texts(reader or PayloadReader(), counts, registrations, types, payloads)


def _texts(
    reader: PayloadReader,
    counts: pa.Array,
    registrations: pa.Array,
    types: pa.Array,
    payloads: pa.Array,
) -> pa.Array:
    texts: list[str | None] = [None] * len(payloads)
    rows = zip(
        counts.to_pylist(),
        registrations.to_pylist(),
        types.to_pylist(),
        payloads.to_pylist(),
        strict=True,
    )
    places: list[int] = []
    shown: list[Fields] = []
    for place, (is_counted, is_type, payload_type, payload) in enumerate(rows):
        if payload is not None:
            places.append(place)
            shown.append(
                reader.shown(
                    payload_type, payload, is_registration=bool(is_type), counts=is_counted
                )
            )
    for place, text in zip(places, json_texts(shown), strict=True):
        texts[place] = text
    return pa.array(texts, pa.string())


def json_texts(values: Sequence[object]) -> Sequence[str]:
    """Each value as JSON text, in the form of `to_json`.

    All are encoded by one call, with a random mark between any two: a call for each costs three times as much.
    """
    mark = secrets.token_hex(16)
    marked: list[object] = [mark] * (2 * len(values) - 1)
    marked[::2] = values
    try:
        whole = _ENCODER.encode(marked)
    except ValueError:  # a number that is not finite
        return [_ENCODER.encode(to_json(value)) for value in values]
    return whole[1:-1].split(f',"{mark}",') if values else ()


def _first(offsets: pa.Array, headers: pa.Array, firsts: pa.Array) -> FirstRecord:
    return FirstRecord(offsets[0].as_py(), firsts[0].as_py(), headers[0].as_py())


STREAM_INPUT: Final = (
    "offset BIGINT, key BINARY, value BINARY, header BINARY, log_us BIGINT, epoch INT, "
    "driver_id STRING, kind STRING, payload_type STRING, payload BINARY"
)
"""Columns of `packed`'s rows, in this order."""

STREAM_COLUMNS: Final = (
    "offset BIGINT, key BINARY, value BINARY, header BINARY, log_us BIGINT, "
    "code TINYINT, payload_json STRING"
)
"""Columns of `unpacked`'s rows."""

STREAM_STATE: Final = (
    "version INT, epoch INT, next_sequence BIGINT, turn_began BIGINT, last_offset BIGINT, "
    "types STRING, held BINARY"
)
"""Columns of the stream's state: the state of counting, as JSON the registered schemas with what `EpochDrivers` keeps,
and the waiting records as Arrow."""

_STATE_VERSION: Final = 2
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=to_json
)
_INPUT: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("header", pa.binary()),
        ("log_us", pa.int64()),
        ("epoch", pa.int32()),
        ("driver_id", pa.string()),
        ("kind", pa.string()),
        ("payload_type", pa.string()),
        ("payload", pa.binary()),
    ]
)
_ROWS_PER_BATCH: Final = 10_000
_WRITER: Final = ("epoch", "driver_id")
_PASSED_ON: Final = ("offset", "key", "value", "header", "log_us")


def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows of a partition as one row: `topic: string` and the other columns as Arrow, `records: binary`.

    The function of a `mapInArrow`. The state's function gets one row per log, and returns one: with
    more rows than states and a newer pyarrow, PySpark 4.1 passes indexes that are no integers, and
    fails.

    Args:
        batches: `topic: string` and the columns of `STREAM_INPUT`.
    """
    keep_archives()
    parts = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
    if not parts:
        return
    whole = pa.concat_tables(parts)
    content = _to_bytes(whole.drop_columns(["topic"]).cast(_INPUT))
    yield _packed(topic=pa.array([whole.column("topic")[0].as_py()]), records=pa.array([content]))


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that `tell_stream` has returned as one row; the function of a `mapInArrow`."""
    for batch in batches:
        for content in batch.column("records").to_pylist():
            yield from _from_bytes(content).to_batches(max_chunksize=_ROWS_PER_BATCH)


def tell_stream(
    _job: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """The decided records of a micro-batch, and of those that waited.

    The function of `applyInPandasWithState`, for all records of one log, in the form of `packed`.

    Args:
        frames: Frames with a column `records`, in any order: a micro-batch is sorted here.
        state: The columns of `STREAM_STATE`.
    """
    keep_archives()
    parts = [_from_bytes(content) for frame in frames for content in frame["records"]]
    arrived = pa.concat_tables([_INPUT.empty_table(), *parts]).sort_by("offset").combine_chunks()
    fold = _StreamFold.begun(arrived) if not state.exists else _StreamFold.read(state.get)
    decided = fold.tell(arrived)
    state.update(fold.written())
    if decided.num_rows:
        yield _packed(records=pa.array([_to_bytes(decided)])).to_pandas()


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
    """The state between two micro-batches."""

    def __init__(
        self,
        teller: Teller,
        order: LogOrder,
        drivers: EpochDrivers,
        types: dict[str, str],
        held: pa.Table,
    ) -> None:
        self._teller = teller
        self._order = order
        self._drivers = drivers
        self._types = types
        self._held = held

    @classmethod
    def begun(cls, arrived: pa.Table) -> _StreamFold:
        """The state at the start of a log; `arrived` begins with the log's first record."""
        first = FirstRecord(
            *(arrived.column(name)[0].as_py() for name in ("offset", "value", "header"))
        )
        beginning = beginning_of(first)
        types = dict(schemas_before(beginning))
        drivers, held = EpochDrivers({}), _INPUT.empty_table()
        return cls(Teller(beginning.counting), LogOrder(), drivers, types, held)

    @classmethod
    def read(cls, state: tuple[Any, ...]) -> _StreamFold:
        """The state that `written` has returned."""
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
        known: dict[str, Any] = json.loads(types)
        drivers = EpochDrivers(dict(known["drivers"]), known["strangers"])
        held = table.drop_columns(["code"])
        return cls(teller, LogOrder(last_offset), drivers, known["types"], held)

    def written(self) -> tuple[Any, ...]:
        """The state as columns of `STREAM_STATE`."""
        codes = pa.array(self._teller.rest(), pa.int8())
        table = self._held.append_column("code", codes)
        counting = self._teller.state
        known = {
            "types": self._types,
            "drivers": sorted(self._drivers.by_epoch.items()),
            "strangers": self._drivers.strangers,
        }
        return (
            _STATE_VERSION,
            *(counting.epoch, counting.next_sequence, counting.turn_began),
            self._order.last,
            json.dumps(known, sort_keys=True),
            _to_bytes(table),
        )

    def tell(self, arrived: pa.Table) -> pa.Table:
        """The decided records, in log order, of those that waited and those that arrived."""
        self._order.check(arrived.column("offset").combine_chunks())
        codes = self._teller.tell(arrived.column("header").combine_chunks())
        rows = pa.concat_tables([self._held, arrived]).combine_chunks()
        decided, self._held = rows.slice(0, len(codes)), rows.slice(len(codes))
        self._drivers.check(decided, pa.array(codes == COUNTS), self._teller.state.epoch)
        coded = decided.select(list(_PASSED_ON)).append_column("code", pa.array(codes, pa.int8()))
        return coded.append_column("payload_json", self._payloads(decided, codes))

    def _payloads(self, rows: pa.Table, codes: Any) -> pa.Array:  # noqa: ANN401, numpy's array
        reader = PayloadReader()
        reader.begin(self._types)
        kinds, registration = rows.column("kind"), Kind.TYPE_REGISTERED.value
        registrations = pc.equal(kinds, registration)  # pyright: ignore[reportAttributeAccessIssue]  # made at import
        columns = [rows.column(name) for name in ("payload_type", "payload")]
        texts = _texts(reader, pa.array(codes == COUNTS), registrations, *columns)
        self._types = dict(reader.schemas())
        return texts
