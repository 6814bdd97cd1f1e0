"""Parquet files in the calendar of Spark 2, which is the Julian one before 1582-10-15.

Spark writes it before version 3, and later with `spark.sql.parquet.datetimeRebaseModeInWrite=LEGACY`. Spark itself
converts the early values when it reads such a file; other readers return other days. Moments before 1900 may differ
too, by the rules of the writer's time zone, which only its JVM has.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["OldCalendar", "old_calendar"]

_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_VERSION: Final = b"org.apache.spark.version"
_LEGACY: Final = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96: Final = b"org.apache.spark.legacyINT96"

_FIRST_DATE: Final = dt.date(1582, 10, 15)
_FIRST_MOMENT: Final = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)


class OldCalendar(NamedTuple):
    """Columns of a file in which early values are days of the old calendar."""

    has_dates: bool
    has_moments: bool

    def early_row(self, values: pa.Array, *, has_int96: bool) -> int | None:
        """Place of the first row with an early date or moment, at any depth; None if there is none.

        Args:
            values: A column.
            has_int96: Whether its timestamps are moments also without a zone, as those of type INT96.
        """
        if not self._is_early(values, has_int96):
            return None
        places = range(len(values))
        return next(i for i in places if self._is_early(values.slice(i, 1), has_int96))

    def _is_early(self, values: pa.Array, has_int96: bool) -> bool:  # noqa: FBT001, for each part
        kind = values.type
        if pa.types.is_date(kind):
            return self.has_dates and _is_before(values, pa.scalar(_FIRST_DATE, kind))
        if pa.types.is_timestamp(kind):
            is_moment = has_int96 or kind.tz is not None
            first = _FIRST_MOMENT if kind.tz is not None else _FIRST_MOMENT.replace(tzinfo=None)
            return self.has_moments and is_moment and _is_before(values, pa.scalar(first, kind))
        if pa.types.is_struct(kind):
            return any(self._is_early(part, has_int96) for part in values.flatten())
        if pa.types.is_map(kind):
            values = values.cast(pa.list_(kind.field(0)))
        return bool(pa.types.is_nested(kind)) and self._is_early(values.flatten(), has_int96)


def old_calendar(metadata: Mapping[bytes, bytes] | None, *, has_int96: bool) -> OldCalendar | None:
    """The old calendar of a file; None if it is in that of all other writers.

    Args:
        metadata: Keys and values of the file's footer.
        has_int96: Whether its timestamps are of type INT96.
    """
    keys = metadata or {}
    version = keys.get(_VERSION)
    is_old = _SCHEMA in keys and version is None
    is_old = is_old or (version is not None and version.startswith((b"1.", b"2.")))
    has_dates = is_old or _LEGACY in keys
    has_moments = is_old or (_LEGACY_INT96 if has_int96 else _LEGACY) in keys
    if not has_dates and not has_moments:
        return None
    return OldCalendar(has_dates, has_moments)


def _is_before(values: pa.Array, first: pa.Scalar) -> bool:
    is_before = pc.call_function("less", [values, first])
    return bool(pc.call_function("any", [is_before]).as_py())
