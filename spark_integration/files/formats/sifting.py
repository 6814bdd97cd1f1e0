"""Reads a split although some of its rows are bad: these are left out, each with its place and the reason.

One function, `parse`, decides about rows, many at once: what it refuses is divided until the bad rows are alone.
So each row is judged as if there were no bad one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pyarrow as pa

from coordlog.limits import SIFTED_ROWS
from coordlog.spark_integration.files.formats.bad_rows import BadRow, shown_text
from coordlog.spark_integration.files.formats.text.row_cutter import CutRow, RowCutter

__all__ = ["BadRowError", "SiftedRows"]


class BadRowError(Exception):
    """Rows cannot be parsed or cast.

    Attributes:
        reason: Cause, without the place.
        row: Index of the row that seems to be bad, among those that were parsed; None if unknown.
    """

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason, row)
        self.reason, self.row = reason, row


class SiftedRows:
    """The good rows of one split, and its bad ones. Call `close` when done, whatever happened.

    Args:
        cutter: Rows of the split, the header apart; None for a split without rows.
        parse: Rows, as bytes of whole rows, in the schema of the source. Raises BadRowError.
        schema: Schema of the rows.
        is_utf8: Whether the file is in UTF-8, so that offsets are those of the file.
        bytes_read: Bytes of the split.
        skip_rows: Good rows to pass over.
        close: Closes the file.
    """

    def __init__(
        self,
        cutter: RowCutter | None,
        parse: Callable[[bytes], pa.RecordBatch],
        *,
        schema: pa.Schema,
        is_utf8: bool,
        bytes_read: int,
        skip_rows: int,
        close: Callable[[], None],
    ) -> None:
        self.skip_rows, self.bytes_read = skip_rows, bytes_read
        self.bad_rows: Sequence[BadRow] = ()
        """Rows that were left out of the last batch, in the order of the file."""
        self._cutter, self._parse, self._schema = cutter, parse, schema
        self._is_utf8, self._close = is_utf8, close
        self._pieces: deque[Sequence[CutRow]] = deque()
        """Parts of a block that has bad rows."""

    def next(self) -> pa.RecordBatch | None:
        """The next good rows, perhaps none, with the bad rows between them in `bad_rows`; None after the last.

        Raises:
            SourceError: The file cannot be read.
        """
        self.bad_rows = ()
        if not self._pieces:
            if (batch := self._whole()) is not None:
                return batch
            rows = [] if self._cutter is None else self._cutter.next()
            if not rows:
                return None
            # A block of bad rows takes long: in parts, so that barriers need not wait for all of it.
            starts = range(0, len(rows), SIFTED_ROWS)
            self._pieces.extend(rows[start : start + SIFTED_ROWS] for start in starts)
        return self._sifted(self._pieces.popleft())

    def close(self) -> None:
        """Close the file."""
        self._close()

    def _whole(self) -> pa.RecordBatch | None:
        """The next rows without a look at each, or None if one may be bad."""
        data = b"" if self._cutter is None else self._cutter.whole()
        if self._cutter is None or not data:
            return None
        try:
            batch = self._parse(data)
        except BadRowError:
            return None
        self._cutter.take(data)
        return batch

    def _judged(self, rows: Sequence[CutRow]) -> pa.RecordBatch | int:
        """The rows; or if one is bad, the index of a row that is bad, as far as is known."""
        fault = next((index for index, row in enumerate(rows) if row.fault), None)
        if fault is not None:
            return fault
        try:
            batch = self._parse(b"".join(row.data for row in rows))
        except BadRowError as error:
            is_known = error.row is not None and 0 <= error.row < len(rows)
            return error.row if error.row is not None and is_known else len(rows) // 2
        return batch if batch.num_rows == len(rows) else len(rows) // 2

    def _sifted(self, rows: Sequence[CutRow]) -> pa.RecordBatch:
        good: list[pa.RecordBatch] = []
        bad: list[BadRow] = []
        parts = [rows]
        while parts:
            part = parts.pop()
            if not part:
                continue
            judged = self._judged(part)
            if isinstance(judged, pa.RecordBatch):
                good.append(judged)
            elif len(part) == 1:
                bad.append(self._bad(part[0]))
            else:
                parts += [part[judged + 1 :], part[judged : judged + 1], part[:judged]]
        self.bad_rows = bad
        table = pa.Table.from_batches(good, self._schema).combine_chunks()
        (batch,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=self._schema)]
        return batch

    def _bad(self, row: CutRow) -> BadRow:
        return BadRow(
            line=row.line,
            offset=row.offset if self._is_utf8 else None,
            reason=row.fault or self._reason(row),
            text=shown_text(row.data),
        )

    def _reason(self, row: CutRow) -> str:
        try:
            batch = self._parse(row.data)
        except BadRowError as error:
            return error.reason
        return f"it is {batch.num_rows} rows, and not one"
