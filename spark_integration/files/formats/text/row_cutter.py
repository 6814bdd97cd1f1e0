"""Cuts the bytes of a text file into rows, with the place of each, also if some of them are damaged.

Where a row ends depends on its own bytes alone, not on the blocks in which the file is read. So a row has the same
place, and the same fault, in every attempt.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final

from coordlog.limits import BAD_ROW_TEXT_BYTES
from coordlog.spark_integration.files.formats.text.text_bytes import TextBytes

__all__ = ["LINES", "CutRow", "RowCutter", "RowForm", "csv_form"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRow:
    """The bytes of one row, with its line end."""

    data: bytes
    offset: int
    line: int | None
    """Line in which it begins, from 1; None if unknown."""
    fault: str = ""
    """Reason for which it is no row; empty if it may be one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """How rows end. Built by `csv_form`; `LINES` for lines that end with LF alone."""

    rows: re.Pattern[bytes]
    """As many rows as there are, each with its line end."""
    row: re.Pattern[bytes]
    """A row with its line end."""
    last_row: re.Pattern[bytes]
    """A row with or without its line end."""
    line: re.Pattern[bytes]
    """A line with or without its line end."""
    blanks: bytes
    """Bytes of which a line without a row consists."""
    ends_by_cr: bool


def _pattern(*parts: bytes) -> re.Pattern[bytes]:
    return re.compile(b"".join(parts))


LINES: Final = RowForm(
    rows=_pattern(rb"(?:[^\n]*+\n)++"),
    row=_pattern(rb"[^\n]*+\n"),
    last_row=_pattern(rb"[^\n]*+(?:\n|\Z)"),
    line=_pattern(rb"[^\n]*+(?:\n|\Z)"),
    blanks=b" \t\r\n\v\f",
    ends_by_cr=False,
)
_CSV_END: Final = rb"\r\n|\r|\n"


def csv_form(delimiter: str, quote: str | None, escape: str | None) -> RowForm:
    """The form of CSV rows as Arrow's parser has it: a quote counts at the beginning of a field alone."""
    comma, mark = re.escape(delimiter.encode()), re.escape((escape or "").encode())
    escaped = b"|" + mark + rb"[\s\S]" if mark else b""
    plain = rb"(?:[^\r\n" + comma + mark + b"]++" + escaped + b")*+"
    row = plain + b"(?:" + comma + plain + b")*+"
    if quote is not None:
        sign = re.escape(quote.encode())
        inside = b"(?:[^" + sign + mark + b"]++" + escaped + b"|" + sign + sign + b")*+"
        quoted = sign + inside + sign
        if escape is None:
            # All that has no quote at once, in fewer steps. A quote elsewhere is part of its field.
            run = rb"[^\r\n" + sign + b"]++|(?<=" + comma + b")" + quoted
            row = b"(?:" + quoted + b"|(?!" + sign + b"))"
            row += b"(?:" + run + b"|(?<!" + comma + b")" + sign + b")*+"
        else:
            # An escape outside of quotes takes no line end: its row is refused (`doubtful_escapes`).
            plain = rb"[^\r\n" + comma + b"]*+"
            field = b"(?:" + quoted + plain + b"|(?!" + sign + b")" + plain + b")"
            row = field + b"(?:" + comma + field + b")*+"
    return RowForm(
        rows=_pattern(b"(?:", row, b"(?:", _CSV_END, b"))++"),
        row=_pattern(row, b"(?:", _CSV_END, b")"),
        last_row=_pattern(row, b"(?:", _CSV_END, rb"|\Z)"),
        line=_pattern(rb"[^\r\n]*+(?:", _CSV_END, rb"|\Z)"),
        blanks=b"\r\n",
        ends_by_cr=True,
    )


class RowCutter:
    """The rows of a stream, block by block, without lines that hold no row.

    Args:
        stream: Bytes of whole lines; not `for_csv`.
        form: How rows end.
        block_bytes: Bytes that are read at once.
        row_bytes_max: Length above which a row is damaged; its first line is left out then, and cutting goes on
            with the next line.
        offset: Byte of the file with which the stream begins.
        line: Line of the file with which the stream begins, or None.
    """

    def __init__(
        self,
        stream: TextBytes,
        form: RowForm,
        *,
        block_bytes: int,
        row_bytes_max: int,
        offset: int = 0,
        line: int | None = 1,
    ) -> None:
        self._stream, self._form = stream, form
        self._block_bytes, self._max = block_bytes, row_bytes_max
        self.offset, self.line = offset, line
        """Place of the next row."""
        self._data, self._is_at_end = b"", False
        self._is_first = not offset

    def whole(self) -> bytes:
        """The bytes of the next rows, if none of them is damaged; else empty. They stay until `take`, or `next`.

        Raises:
            SourceError: The file cannot be read.
        """
        self._fill()
        match = None if len(self._data) > self._max else self._form.rows.match(self._data)
        return b"" if match is None or self._may_go_on(match.end()) else match.group()

    def take(self, data: bytes) -> None:
        """Pass over these bytes, the result of `whole`."""
        self._pass_over(data)
        self._data = self._data[len(data) :]

    def next(self) -> list[CutRow]:
        """The next rows; empty after the last.

        Raises:
            SourceError: The file cannot be read.
        """
        while not self._is_at_end or self._data:
            rows = self._cut(None)
            if rows:
                return rows
            self._fill()
        return []

    def next_one(self) -> CutRow | None:
        """The next row alone, as the header is; None after the last. Raises as `next`."""
        while True:
            rows = self._cut(1)
            if rows:
                return rows[0]
            if self._is_at_end:
                return None
            self._fill()

    def _fill(self) -> None:
        if self._is_at_end:
            return
        wanted = self._block_bytes - len(self._data)
        wanted = wanted if wanted > 0 else self._block_bytes
        read = self._stream.read(wanted)
        self._is_at_end = len(read) < wanted
        self._data += read
        if self._is_first and (self._is_at_end or len(self._data) >= len(codecs.BOM_UTF8)):
            self._is_first = False
            if self._data.startswith(codecs.BOM_UTF8):
                self._pass_over(self._data[: len(codecs.BOM_UTF8)])
                self._data = self._data[len(codecs.BOM_UTF8) :]

    def _cut(self, count: int | None) -> list[CutRow]:
        """Up to `count` rows of the bytes that have been read; the rest stays."""
        rows: list[CutRow] = []
        at = 0
        while (row := self._row_at(at)) is not None:
            at += len(row.data)
            if row.fault and not row.data.endswith((b"\n", b"\r")):
                self._data, at = self._data[at:], 0
                self._pass_over(row.data)
                self._skip_line()
            else:
                self._pass_over(row.data)
            if row.fault or row.data.strip(self._form.blanks):
                rows.append(row)
                if len(rows) == count:
                    break
        self._data = self._data[at:]
        return rows

    def _row_at(self, at: int) -> CutRow | None:
        """The row that begins there; None at the end, and if its end may follow."""
        data, form = self._data, self._form
        if at >= len(data) or self._is_first:
            return None
        match = (form.last_row if self._is_at_end else form.row).match(data, at)
        if match is not None and self._may_go_on(match.end()):
            return None
        if match is not None and match.end() - at <= self._max:
            return CutRow(data=match.group(), offset=self.offset, line=self.line)
        if match is None and not self._is_at_end and len(data) - at <= self._max:
            return None
        line = form.line.match(data, at)
        assert line is not None, "a line may be empty"
        if self._may_go_on(line.end()) and line.end() - at <= self._max:
            return None
        fault = "a quote is opened in this line and not closed"
        if not self._is_at_end or len(data) - at > self._max:
            fault += f" within {self._max:,} bytes"
        text = line.group()
        if len(text) > self._max:
            text = text[: max(1, min(self._max, BAD_ROW_TEXT_BYTES))].rstrip(b"\r\n")
            fault = f"the line is longer than {self._max:,} bytes"
        return CutRow(data=text, offset=self.offset, line=self.line, fault=fault)

    def _may_go_on(self, end: int) -> bool:
        """Whether the line end before `end` may be the first half of CR LF."""
        is_open = self._form.ends_by_cr and not self._is_at_end and end == len(self._data)
        return is_open and self._data.endswith(b"\r")

    def _skip_line(self) -> None:
        """Pass over the rest of a line, of any length."""
        while self._data or not self._is_at_end:
            self._fill()
            match = self._form.line.match(self._data)
            assert match is not None, "a line may be empty"
            if self._may_go_on(match.end()):
                self._pass_over(self._data[:-1])
                self._data = self._data[-1:]
                continue
            self._pass_over(match.group())
            self._data = self._data[match.end() :]
            if match.group().endswith((b"\n", b"\r")):
                return

    def _pass_over(self, data: bytes) -> None:
        self.offset += len(data)
        if self.line is not None:
            self.line += data.count(b"\n")
            if self._form.ends_by_cr and b"\r" in data:
                self.line += data.count(b"\r") - data.count(b"\r\n")
