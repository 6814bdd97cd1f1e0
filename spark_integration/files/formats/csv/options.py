"""The format of the CSV files of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import pyarrow as pa
import pyarrow.csv as pa_csv

from coordlog.errors import OptionError
from coordlog.option_types import check_types
from coordlog.spark_integration.files.formats.text.encoding import (
    check_encoding,
    has_whole_line_ends,
    is_utf8,
)

__all__ = ["CsvOptions", "CsvText"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """Format of CSV files, checked when it is made.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options have a wrong type.
    """

    null_values: Sequence[str] = ("",)
    """Words that mean null, in columns of all types, strings included. No other word does."""
    delimiter: str = ","
    """One character."""
    quote: str | None = '"'
    """One character, or None if quotes mean nothing."""
    escape: str | None = None
    """One character, or None."""
    column_names: Sequence[str] | None = None
    """Names of the columns, or None: the first line of each file that is not empty is a header."""
    no_newlines_in_fields: bool = False
    """True: no field holds a carriage return or a line feed; a file may be split at any of them."""

    def __post_init__(self) -> None:
        check_types(
            CsvOptions.__init__, {field.name: getattr(self, field.name) for field in fields(self)}
        )
        for name, char in (
            ("delimiter", self.delimiter),
            ("quote", self.quote),
            ("escape", self.escape),
        ):
            if char is not None and (len(char) != 1 or not char.isascii() or char in "\r\n"):
                raise OptionError(name, char, "one ASCII character, and no line end")
        if self.delimiter in (self.quote, self.escape):
            raise OptionError("delimiter", self.delimiter, "unlike `quote` and `escape`")
        if self.escape is not None and self.escape == self.quote:
            raise OptionError(
                "escape", self.escape, "unlike `quote`: doubled quotes need no `escape`"
            )
        names = self.column_names
        if names is not None and (not names or len(set(names)) != len(names)):
            raise OptionError("column_names", names, "at least one name, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvText:
    """CSV files as they are read: their format, the encoding of the text, and the size of a block.

    Raises:
        OptionError: An option is out of range.
    """

    csv: CsvOptions
    encoding: str
    block_bytes: int

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if self.block_bytes < 1:
            raise OptionError("block_bytes", self.block_bytes, "at least 1")

    skips_ragged: bool = False
    """True: rows with another number of fields are left out, as samples of files with bad rows need it."""

    @property
    def is_utf8(self) -> bool:
        """Whether Arrow can read the bytes as they are."""
        return is_utf8(self.encoding)

    @property
    def may_split(self) -> bool:
        """Whether each byte that looks like a line end is one, so that files may be split."""
        return self.csv.no_newlines_in_fields and has_whole_line_ends(self.encoding)

    def with_names(self, names: Sequence[str]) -> CsvText:
        """The same, of rows without a header, in UTF-8."""
        return replace(self, csv=replace(self.csv, column_names=tuple(names)), encoding="utf-8")

    def read_options(self, *, block_bytes: int | None = None) -> pa_csv.ReadOptions:
        """Options of Arrow's reader: one thread, because a task has one core."""
        names = self.csv.column_names
        return pa_csv.ReadOptions(
            use_threads=False,
            block_size=block_bytes or self.block_bytes,
            column_names=None if names is None else list(names),
        )

    def parse_options(self) -> pa_csv.ParseOptions:
        """Options of Arrow's parser."""
        return pa_csv.ParseOptions(
            delimiter=self.csv.delimiter,
            quote_char=self.csv.quote or False,
            escape_char=self.csv.escape or False,
            newlines_in_values=not self.csv.no_newlines_in_fields,
            invalid_row_handler=_left_out if self.skips_ragged else None,
        )

    def convert_options(self, schema: pa.Schema | None) -> pa_csv.ConvertOptions:
        """Options of Arrow's conversion: to the types of `schema`, or inferring them."""
        return pa_csv.ConvertOptions(
            null_values=list(self.csv.null_values), strings_can_be_null=True, column_types=schema
        )


def _left_out(_row: pa_csv.InvalidRow) -> str:
    return "skip"
