"""Kafka's records as Arrow rows."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import pyarrow as pa

from coordlog.errors import SourceError
from coordlog.spark_integration.files.formats.bad_rows import shown_text
from coordlog.spark_integration.files.formats.json.values import parse_json
from coordlog.spark_integration.kafka.bad_records import BadRecord
from coordlog.spark_integration.kafka.cluster import Partition, named

__all__ = ["Decode", "Received", "RowFormat"]

Decode = Literal["utf8", "json"]

_ROW: Final = re.compile(r"^JSON parse error: | in row \d+$")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
_NO_TIME: Final = -1
"""Kafka's number for none; a time before 1970 is negative too."""
_NEXT_STEP: Final = "read it without `decode`, and take it apart in a transform"
_UNREADABLE: Final = (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException)


class Received(Protocol):
    """A record of the client."""

    @property
    def offset(self) -> int:
        """Offset of the record in its partition."""
        ...

    @property
    def leader_epoch(self) -> int:
        """Number of the leader that has stored the record; -1 if unknown."""
        ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, UTC; -1 for none."""
        ...

    @property
    def key(self) -> bytes | None:
        """Key, or None."""
        ...

    @property
    def value(self) -> bytes | None:
        """Value; None is a deletion for compaction."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Headers in order; a name may occur twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """Content of the column `value`: bytes, text, or the fields of a JSON object. Pickles."""

    decode: Decode | None = None
    value_schema: pa.Schema | None = None
    """Schema of the JSON objects; with `json` only."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch."""
        return pa.schema(
            [
                ("key", pa.binary()),
                ("value", self._value_type),
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", _TIMESTAMP),
                ("headers", _HEADERS),
            ]
        )

    @property
    def _value_type(self) -> pa.DataType:
        if self.decode is None:
            return pa.binary()
        if self.decode == "utf8":
            return pa.string()
        assert self.value_schema is not None, "the source looked when it was made"
        return pa.struct(list(self.value_schema))

    def rows(self, partition: Partition, records: Sequence[Received]) -> pa.RecordBatch:
        """The records of one partition.

        Raises:
            SourceError: A value cannot be decoded; with its offset.
        """
        return self._batch(partition, records, self._values(partition, records))

    def whole(self, partition: Partition, records: Sequence[Received]) -> pa.RecordBatch | None:
        """The records of one partition, or None if a value cannot be decoded."""
        try:
            return self._batch(partition, records, self._decoded(_values_of(records)))
        except MemoryError:
            raise
        except _UNREADABLE:
            return None

    def sifted(
        self, partition: Partition, records: Sequence[Received]
    ) -> tuple[pa.RecordBatch, Sequence[BadRecord]]:
        """The records of one partition that can be decoded, and the others, both in the order of offsets.

        Values are decoded many at once; what cannot be decoded is halved until the bad records are alone.

        Raises:
            SourceError: Values that can be decoded alone cannot be decoded together.
        """
        bad: list[BadRecord] = []
        good: list[Received] = []
        parts = [records]
        while parts:
            part = parts.pop()
            try:
                self._decoded(_values_of(part))
            except MemoryError:
                raise
            except _UNREADABLE as error:
                if len(part) > 1:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                else:
                    bad.append(_bad_record(part[0], error, self.decode))
            else:
                good += part
        return self.rows(partition, good), bad

    def _batch(
        self, partition: Partition, records: Sequence[Received], values: pa.Array
    ) -> pa.RecordBatch:
        count = len(records)
        columns = [
            pa.array([record.key for record in records], pa.binary()),
            values,
            pa.array([partition[0]] * count, pa.string()),
            pa.array([partition[1]] * count, pa.int32()),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array(
                [None if record.timestamp == _NO_TIME else record.timestamp for record in records],
                _TIMESTAMP,
            ),
            pa.array(
                [
                    [{"key": key, "value": value} for key, value in record.headers]
                    for record in records
                ],
                _HEADERS,
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _values(self, partition: Partition, records: Sequence[Received]) -> pa.Array:
        try:
            return self._decoded(_values_of(records))
        except MemoryError:
            raise
        except _UNREADABLE as error:
            self._raise_first(partition, records)
            raise SourceError(
                f"partition {named(partition)}, offsets {records[0].offset} to "
                f"{records[-1].offset}",
                f"a value cannot be read as {self.decode}: {error}",
                _NEXT_STEP,
            ) from error

    def _decoded(self, values: Sequence[bytes | None]) -> pa.Array:
        if self.decode is None:
            return pa.array(values, pa.binary())
        if self.decode == "utf8":
            texts = [None if value is None else value.decode("utf-8") for value in values]
            return pa.array(texts, pa.string())
        assert self.value_schema is not None, "the source looked when it was made"
        return _structs(values, self.value_schema)

    def _raise_first(self, partition: Partition, records: Sequence[Received]) -> None:
        """Raise for the first record that cannot be converted by itself."""
        for record in records:
            try:
                self._decoded([record.value])
            except _UNREADABLE as error:
                raise SourceError(
                    f"partition {named(partition)}, offset {record.offset}",
                    f"its value cannot be read as {self.decode}: {error}",
                    _NEXT_STEP,
                ) from error


def _values_of(records: Sequence[Received]) -> list[bytes | None]:
    return [record.value for record in records]


def _bad_record(record: Received, error: Exception, decode: Decode | None) -> BadRecord:
    problem = _ROW.sub("", str(error))
    return BadRecord(
        offset=record.offset,
        reason=f"the value cannot be read as {decode}: {problem}",
        text=None if record.value is None else shown_text(record.value),
    )


def _structs(values: Sequence[bytes | None], schema: pa.Schema) -> pa.Array:
    """JSON objects, as lines of a file are read: exactly, or not at all."""
    texts = [_line(value) for value in values if value is not None]
    kind = pa.struct(list(schema))
    if not texts:
        return pa.nulls(len(values), kind)
    table = parse_json("\n".join(texts), schema, "ignore")
    columns = [column.combine_chunks() for column in table.columns]
    whole = pa.StructArray.from_arrays(columns, fields=list(schema))
    if len(texts) == len(values):
        return whole
    places = itertools.count()
    return whole.take(pa.array([None if value is None else next(places) for value in values]))


def _line(value: bytes) -> str:
    """One object on one line."""
    text = value.decode(json.detect_encoding(value))
    if "\n" in text:
        json.loads(text)  # so each line end is between tokens, and may become a space
        text = text.replace("\n", " ")
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        kind = type(json.loads(text)).__name__
        raise TypeError(f"a JSON object is needed, and this is {kind}")
    return text
