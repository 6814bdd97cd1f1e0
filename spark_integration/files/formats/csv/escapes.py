"""Characters before quotes that programs write in different ways: what Arrow would read otherwise is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from coordlog.spark_integration.files.formats.csv.options import CsvText

__all__ = ["DoubtfulEscapes", "doubtful_escapes"]

_BACKSLASH: Final = "\\"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulEscapes:
    """Rows that Arrow's reader would take otherwise than the program that has written them."""

    mark: bytes
    """A byte that each of them has."""
    stays: bool
    """Whether Arrow leaves the mark in the value; else it takes it off."""
    rows: re.Pattern[bytes]
    """Matches whole rows, of which one is such a row."""
    problem: str
    next_step: str

    def are_in(self, data: bytes) -> bool:
        """Whether one of these whole rows is such a row."""
        return self.mark in data and self.rows.match(data) is not None


def doubtful_escapes(options: CsvText) -> DoubtfulEscapes | None:
    """The rows in doubt with these options; None if no character before another one can have a meaning."""
    csv = options.csv
    if csv.escape is None:
        return _without_escape(csv.delimiter, csv.quote) if csv.quote else None
    escape = re.escape(csv.escape).encode()
    if csv.quote:
        rows = _escape_elsewhere(escape, csv.delimiter, csv.quote)
        places = f"elsewhere than in a quoted value before {csv.quote} or itself"
    else:
        # An escape, then a letter or a digit: a tab, a line end or a null of some programs.
        rows = re.compile(rb"(?:[^%b]++|%b[^A-Za-z0-9])*+%b[A-Za-z0-9]" % ((escape,) * 3))
        places = "before a letter or a digit"
    return DoubtfulEscapes(
        mark=csv.escape.encode(),
        stays=False,
        rows=rows,
        problem=f"the escape {csv.escape} stands {places}, where programs differ in its meaning",
        next_step="write the file with each value in quotes (Spark's `quoteAll`), or with doubled quotes alone; or "
        "leave out `escape=` if it is none",
    )


def _without_escape(delimiter: str, quote: str) -> DoubtfulEscapes:
    return DoubtfulEscapes(
        mark=_BACKSLASH.encode(),
        stays=True,
        rows=_text_behind_quote(delimiter, quote),
        problem="a quoted value has text behind its closing quote, and a backslash",
        next_step="set `escape='\\\\'` if they stand before quotes, as in CSV of Spark",
    )


def _text_behind_quote(separator: str, mark: str) -> re.Pattern[bytes]:
    """Matches rows of which a quoted value goes on behind its closing quote."""
    quote, delimiter = (re.escape(char).encode() for char in (mark, separator))
    ends = rb"\r\n" + delimiter
    quoted = rb"%b(?:[^%b]|%b%b)*+%b" % (quote, quote, quote, quote, quote)
    plain = rb"[^%b%b][^%b]*+" % (quote, ends, ends)
    return re.compile(
        rb"(?:(?:%b|%b)?+[%b])*+%b[^%b%b]" % (quoted, plain, ends, quoted, quote, ends)
    )


def _escape_elsewhere(escape: bytes, separator: str, mark: str) -> re.Pattern[bytes]:
    """Matches rows with an escape outside of quotes, or in them before another character than a quote and itself."""
    quote, delimiter = (re.escape(char).encode() for char in (mark, separator))
    ends, both = rb"\r\n" + delimiter, quote + escape
    inside = rb"(?:[^%b]++|%b[%b]|%b%b)*+" % (both, escape, both, quote, quote)
    field = rb"(?:%b%b%b|(?!%b))[^%b%b]*+" % (quote, inside, quote, quote, ends, escape)
    return re.compile(rb"(?:%b[%b])*+(?:%b%b|%b)%b" % (field, ends, quote, inside, field, escape))
