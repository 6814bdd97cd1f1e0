"""Kafka's records as Arrow rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import pyarrow as pa

from coordlog.errors import SourceError

from .cluster import Partition, named

__all__ = ["Decode", "Received", "RowFormat"]

Decode = Literal["utf8", "json"]

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
_UNREADABLE: Final = (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException)


class Received(Protocol):
    """A record, as the client gives it."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, UTC; -1 for none."""
        ...

    @property
    def key(self) -> bytes | None:
        """None for none."""
        ...

    @property
    def value(self) -> bytes | None:
        """None: what compaction takes for a deletion."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """In order; a name may stand twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """What the column `value` holds: bytes, text, or the fields of a JSON object; pickles."""

    decode: Decode | None = None
    value_schema: pa.Schema | None = None
    """With `json`."""

    @property
    def schema(self) -> pa.Schema:
        """Of every batch."""
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
            SourceError: A value is not what `decode` says; with its offset.
        """
        count = len(records)
        columns = [
            pa.array([one.key for one in records], pa.binary()),
            self._values(partition, records),
            pa.array([partition[0]] * count, pa.string()),
            pa.array([partition[1]] * count, pa.int32()),
            pa.array([one.offset for one in records], pa.int64()),
            pa.array(
                [one.timestamp if one.timestamp >= 0 else None for one in records], _TIMESTAMP
            ),
            pa.array(
                [[{"key": k, "value": v} for k, v in one.headers] for one in records], _HEADERS
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _values(self, partition: Partition, records: Sequence[Received]) -> pa.Array:
        values = [one.value for one in records]
        if self.decode is None:
            return pa.array(values, pa.binary())
        convert = _text if self.decode == "utf8" else _object
        value_type = self._value_type
        try:
            return pa.array([convert(one) for one in values], value_type)
        except _UNREADABLE as error:
            self._name(partition, records, convert)
            raise SourceError(
                f"partition {named(partition)}, offsets {records[0].offset} to "
                f"{records[-1].offset}",
                f"a value cannot be read as {self.decode}: {error}",
                "read it without `decode`, and take it apart in a transform",
            ) from error

    def _name(
        self,
        partition: Partition,
        records: Sequence[Received],
        convert: Callable[[bytes | None], object],
    ) -> None:
        """Raise for the first record that cannot be converted by itself."""
        for one in records:
            try:
                pa.array([convert(one.value)], self._value_type)
            except _UNREADABLE as error:
                raise SourceError(
                    f"partition {named(partition)}, offset {one.offset}",
                    f"its value cannot be read as {self.decode}: {error}",
                    "read it without `decode`, and take it apart in a transform",
                ) from error


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8")


def _object(value: bytes | None) -> Mapping[str, object] | None:
    if value is None:
        return None
    parsed = json.loads(value)
    if not isinstance(parsed, dict):
        raise TypeError(f"a JSON object is needed, and this is {type(parsed).__name__}")
    return parsed
