"""Rows of CSV splits as Arrow batches, and errors that name file, row, column and value."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from coordlog.errors import SourceError
from coordlog.spark_integration.casts.exact_cast import (
    InexactError,
    exact_cast,
    exact_from_text,
    refuse_nulls,
)
from coordlog.spark_integration.casts.exact_numbers import are_whole_exact
from coordlog.spark_integration.files.compression import Compression, codec_of
from coordlog.spark_integration.files.formats.bad_rows import BadRow
from coordlog.spark_integration.files.formats.csv.escapes import doubtful_escapes
from coordlog.spark_integration.files.formats.csv.options import CsvText
from coordlog.spark_integration.files.formats.csv.rescued import rescued_rows
from coordlog.spark_integration.files.formats.text.row_cutter import RowCutter, csv_form
from coordlog.spark_integration.files.formats.text.text_bytes import (
    TextBytes,
    header_end,
    line_start,
)
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.missing import read_error
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.rescued import file_schema, without_rescued

__all__ = [
    "CsvPart",
    "CsvRows",
    "check_csv_types",
    "check_names",
    "doubtful_floats",
    "float_columns",
    "header_names",
    "number_columns",
    "open_csv",
    "open_part",
    "reading_error",
    "refused_decimals",
    "row_cutter",
    "typed_rows",
]

_CONVERSION: Final = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?CSV conversion error to "
    r"(?P<type>.+?): (?:invalid value '(?P<value>.*)'|(?P<problem>.*))",
    re.DOTALL,
)
_SHAPE: Final = re.compile(
    r"(?:Row #(?P<row>\d+): )?Expected (?P<expected>\d+) columns, got (?P<got>\d+): (?P<text>.*)",
    re.DOTALL,
)
_DECIMAL: Final = re.compile("decimal[0-9]|Decimal value")
"""Words of Arrow's errors of decimals, most of which name no row."""
_DIGITS_MAX: Final = 38
"""Digits of a decimal128."""
_SHOWN_CHARS: Final = 200
_TYPE_STEP: Final = (
    "set another type for the column with `schema=`, or name the value in `null_values=`"
)


class CsvRows:
    """The rows of one split, batch by batch. Call `close` when done with it, whatever happened."""

    def __init__(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        options: CsvText,
        compression: Compression = "infer",
        skip_rows: int = 0,
    ) -> None:
        """Open the split's file and parse its first block.

        Raises:
            SourceError: The file cannot be read, or its header is not that of `schema`.
        """
        self.skip_rows = skip_rows
        """Rows of the next batches that are still to be passed over: lines have no index."""
        self.bad_rows: Sequence[BadRow] = ()
        self._path = split.path
        self._files, self._split = files, split
        self._options = options
        self._compression: Compression = compression
        self._output = schema
        self._schema = self._file_schema()
        """Columns of the file, in the types of the source."""
        self._texts: frozenset[str] = frozenset()
        """Columns that are read as texts, because a value of Arrow's was in doubt."""
        self._floats = float_columns(self._schema)
        self._header_rows = 0 if options.csv.column_names is not None else 1
        self._rows = 0
        self._escapes = doubtful_escapes(options)
        self._checked: tuple[TextBytes, RowCutter] | None = None
        """The rows once more, cut as far as they were checked for escapes in doubt."""
        self._last_value: object = None
        """Value of the last column of the last row so far."""
        self._ahead: pa.RecordBatch | None = None
        """The next rows, if they had to be read already."""
        part = self._opened()
        self._bytes, is_empty = part.text, part.is_empty
        self._begins_at, self.bytes_read = part.begins_at, part.bytes_read
        # A headless part without a line has no block that Arrow could begin with.
        try:
            is_empty = is_empty or not self._bytes.has_text(options.block_bytes)
        except SourceError:
            self._bytes.close()
            raise
        self._reader = None if is_empty else self._open()

    def _file_schema(self) -> pa.Schema:
        if without_rescued(self._output) is self._output:
            return self._output
        part = open_part(self._files, self._split, self._options, self._compression, for_csv=False)
        with closing(part.text):
            names = header_names(self._path, row_cutter(part.text, self._options), self._options)
        return file_schema(names, self._output)

    def _opened(self) -> CsvPart:
        return open_part(self._files, self._split, self._options, self._compression)

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        batch, self._ahead = self._ahead, None
        if batch is None:
            batch = self._read()
        if batch is not None and self._may_end_in_quote():
            self._ahead = self._read()
            while self._ahead is not None and not self._ahead.num_rows:
                self._ahead = self._read()
            if self._ahead is None:
                self._check_last_quote()
        return batch

    def _read(self) -> pa.RecordBatch | None:
        while self._reader is not None:
            try:
                batch = self._reader.read_next_batch()
            except StopIteration:
                return None
            except (pa.ArrowInvalid, UnicodeError) as error:
                doubtful = self._refused_decimals(error)
                if not doubtful:
                    raise self._error(error) from error
            else:
                doubtful = self._doubtful_floats(batch)
                if not doubtful:
                    return self._typed(batch)
            self._read_as_texts(doubtful)
        return None

    def _doubtful_floats(self, batch: pa.RecordBatch) -> frozenset[str]:
        """Columns in which a whole number may have been rounded, or a number was too large."""
        return doubtful_floats(batch, self._floats) - self._texts

    def _may_end_in_quote(self) -> bool:
        """Whether the last value has a line end, as that has that an open quote makes of all that follows it."""
        match self._last_value:
            case str() as text:
                return "\n" in text or "\r" in text
            case bytes() as data:
                return b"\n" in data or b"\r" in data
            case _:
                return False

    def _check_last_quote(self) -> None:
        """Refuse a quote that is not closed at the end: Arrow takes all that follows it as one value.

        Before the last rows go on. The rows are cut once more, by a rule that sees an open quote.
        """
        part = open_part(self._files, self._split, self._options, self._compression, for_csv=False)
        try:
            cutter = row_cutter(part.text, self._options)
            while rows := cutter.next():
                for row in rows:
                    if row.fault:
                        where = f"line {row.line}" if not part.begins_at else "its last rows"
                        raise SourceError(
                            self._path,
                            f"{where}: {row.fault}",
                            "check that the file is whole, or set `quote=`, or `bad_rows=`",
                        )
        finally:
            part.text.close()

    def _refuse_line_ends(self, values: pa.Array) -> None:
        """Refuse line ends in the last column if `no_newlines_in_fields` is set.

        Arrow then cuts blocks at any line end, and ends a value with an open quote where the last block but one ends.
        """
        if self._options.csv.no_newlines_in_fields and (_has(values, "\n") or _has(values, "\r")):
            self._check_last_quote()
            raise SourceError(
                self._path,
                "a field has a line end, or a quote is opened and not closed",
                "check that the file is whole, or set `quote=`, or leave `no_newlines_in_fields` out",
            )

    def _check_escapes(self, batch: pa.RecordBatch) -> None:
        """Refuse escapes in doubt before their rows go on: all bytes that Arrow has read are cut once more."""
        escapes = self._escapes
        if escapes is None:
            return
        if self._checked is None:
            if escapes.stays and not any(_has(values, "\\") for values in batch.columns):
                return
            part = open_part(
                self._files, self._split, self._options, self._compression, for_csv=False
            )
            self._checked = part.text, row_cutter(part.text, self._options)
        text, cutter = self._checked
        arrow_read = self._bytes.bytes_read
        while text.bytes_read <= arrow_read:
            data = cutter.whole()
            if data and not escapes.are_in(data):
                cutter.take(data)
                continue
            rows = cutter.next()
            if not rows:
                return
            row = next((row for row in rows if escapes.are_in(row.data)), None)
            if row is not None:
                where = "a row" if self._begins_at else f"line {row.line}"
                raise SourceError(
                    self._path,
                    f"{where}: {escapes.problem}: {row.data[:_SHOWN_CHARS]!r}",
                    escapes.next_step,
                )

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._check_escapes(batch)
        if batch.num_rows and batch.num_columns:
            last = batch.column(batch.num_columns - 1)
            self._refuse_line_ends(last)
            self._last_value = last[-1].as_py()
        row, self._rows = 1 + self._header_rows + self._rows, self._rows + batch.num_rows
        typed = typed_rows(
            self._path,
            batch,
            self._schema,
            row=row,
            begins_at=self._begins_at,
            header_rows=self._header_rows,
        )
        return rescued_rows(typed, self._output)

    def close(self) -> None:
        """Close the file."""
        self._close_reader()
        if self._checked is not None:
            self._checked[0].close()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._bytes.close()

    def _read_as_texts(self, columns: frozenset[str]) -> None:
        """Open the file once more, with these columns as texts, and pass over the rows that were read.

        The file is parsed once more for each block at which a column first comes to be in doubt.
        """
        self._close_reader()
        self._texts |= columns
        self._bytes = self._opened().text
        self._reader = self._open()
        rows = 0
        while rows < self._rows:
            try:
                rows += self._reader.read_next_batch().num_rows
            except (pa.ArrowInvalid, UnicodeError) as error:
                raise self._error(error) from error
            except StopIteration:
                break
        if rows != self._rows:  # blocks are cut by bytes, not by types
            raise SourceError(
                self._path,
                f"it has changed while it was read: its first blocks had {self._rows} rows, and have "
                f"{rows}",
                "check that files are written under another name and renamed when they are whole",
            )

    def _refused_decimals(self, error: Exception) -> frozenset[str]:
        return refused_decimals(error, self._schema) - self._texts

    def _error(self, error: Exception) -> SourceError:
        return reading_error(self._path, error, self._schema, self._begins_at, self._header_rows)

    def _open(self) -> pa_csv.CSVStreamingReader:
        try:
            reader = open_csv(self._bytes, self._options, schema=self._schema, texts=self._texts)
            names: list[str] = reader.schema.names  # decodes the header
        except (pa.ArrowInvalid, UnicodeError) as error:
            self._bytes.close()
            decimals = self._refused_decimals(error)
            if not decimals:
                raise self._error(error) from error
            self._texts |= decimals
            self._bytes = self._opened().text
            return self._open()
        except SourceError:
            self._bytes.close()
            raise
        try:
            check_names(self._path, names, self._schema)
        except SourceError:
            reader.close()
            self._bytes.close()
            raise
        return reader


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvPart:
    """The bytes of a split, after those of its file's header."""

    text: TextBytes
    is_empty: bool
    """Whether the split has no byte, and its file no header."""
    begins_at: int
    """First byte of its rows in the file; 0 if the split begins with the file."""
    header_bytes: int
    """Bytes of the header that `text` begins with, if the split begins later."""
    bytes_read: int
    """Bytes of the split for the progress."""


def _has(values: pa.Array, text: str) -> bool:
    """Whether a value has the text within it; no value that is no text has."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary
    types = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    if values.type not in types:
        return False
    options = pc.MatchSubstringOptions(text)
    return bool(
        pc.call_function("any", [pc.call_function("match_substring", [values], options)]).as_py()
    )


def open_part(
    files: InputFiles,
    split: FileSplit,
    options: CsvText,
    compression: Compression,
    *,
    for_csv: bool = True,
) -> CsvPart:
    """Open the file of a split. `for_csv` as in `TextBytes`.

    Raises:
        SourceError: The file cannot be read.
    """
    file = files.open(split)
    ranges: list[tuple[int, int]] | None = None
    begins_at, header, bytes_read = 0, 0, max(split.size_bytes, 0)
    try:
        if (split.start, split.end) != (0, split.size_bytes):
            has_header = options.csv.column_names is None
            header = header_end(file, split.size_bytes) if has_header else 0
            start = max(line_start(file, split.start, split.size_bytes), header)
            end = max(line_start(file, split.end, split.size_bytes), header)
            ranges = [(0, header), (start, end)]
            begins_at = start if split.start else 0
            bytes_read = end - start if split.start else end
        text = TextBytes(
            split.path,
            file,
            ranges,
            None if options.is_utf8 else options.encoding,
            codec=codec_of(split.path, compression),
            for_csv=for_csv,
        )
    except Exception as error:  # file systems raise errors of any type
        file.close()
        raise read_error(
            split.path, "it cannot be read", "check that the file is whole", error
        ) from error
    return CsvPart(
        text=text,
        is_empty=ranges is not None and all(start == end for start, end in ranges),
        begins_at=begins_at,
        header_bytes=header,
        bytes_read=bytes_read,
    )


def row_cutter(stream: TextBytes, options: CsvText) -> RowCutter:
    """What cuts the bytes of a file, which are not `for_csv`, into rows, as Arrow's reader does."""
    csv = options.csv
    return RowCutter(
        stream,
        csv_form(csv.delimiter, csv.quote, csv.escape),
        block_bytes=options.block_bytes,
        # Arrow reads a row that lies in two blocks: no row that it reads may be bad here.
        row_bytes_max=2 * options.block_bytes,
    )


def header_names(path: str, cutter: RowCutter, options: CsvText) -> list[str]:
    """Names of the columns in the next row, which is a header; none if there is no row or no header.

    Raises:
        SourceError: The file cannot be read, or the row is no header.
    """
    header = cutter.next_one() if options.csv.column_names is None else None
    if header is None:
        return []
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(header.data.rstrip(b"\r\n") + b"\n"),
            read_options=options.read_options(block_bytes=len(header.data) + 2),
            parse_options=options.parse_options(),
        )
        names: list[str] = table.schema.names  # decodes the header
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise reading_error(path, error, None) from error
    return names


def check_names(path: str, names: list[str], schema: pa.Schema) -> None:
    """Raise SourceError if the columns of a file are not those of `schema`."""
    if names != schema.names:
        raise SourceError(
            path,
            f"its columns are {names}, those of the source are {schema.names}",
            "use files of one header, or those of the other in a source of their own",
        )


def open_csv(
    stream: TextBytes | pa.NativeFile,
    options: CsvText,
    *,
    schema: pa.Schema | None,
    block_bytes: int | None = None,
    texts: Collection[str] = (),
) -> pa_csv.CSVStreamingReader:
    """Arrow's reader of `stream`; without `schema`, types are as its first block has them.

    Columns of `texts`, and of types that Arrow cannot read, are of strings: `typed_rows` has them in
    the types of `schema`.

    Raises:
        pa.ArrowInvalid: The header, or the first block, is not of that form.
    """
    if schema is not None:
        schema = pa.schema(
            pa.field(column.name, pa.string() if column.name in texts else _read_type(column.type))
            for column in schema
        )
    return pa_csv.open_csv(
        stream,
        read_options=options.read_options(block_bytes=block_bytes),
        parse_options=options.parse_options(),
        convert_options=options.convert_options(schema),
    )


def check_csv_types(schema: pa.Schema) -> None:
    """Check that a field of a CSV file may be a value of each type.

    Raises:
        ValueError: Of one it never is.
    """
    for column in schema:
        kind = _read_type(column.type)
        is_readable = pa.types.is_dictionary(kind) or not pa.types.is_nested(column.type)
        try:
            pa_csv.read_csv(
                pa.BufferReader(b'x\n""\n'),
                convert_options=pa_csv.ConvertOptions(
                    column_types={"x": kind}, strings_can_be_null=True
                ),
            )
        except pa.ArrowNotImplementedError:
            is_readable = False
        if not is_readable:
            raise ValueError(f"column {column.name!r}: CSV has no {column.type}; read it as a text")


def number_columns(schema: pa.Schema) -> frozenset[str]:
    """Columns of which Arrow's own values may be in doubt: floats and decimals."""
    types = pa.types
    return frozenset(
        column.name
        for column in schema
        if types.is_floating(column.type) or types.is_decimal(column.type)
    )


def float_columns(schema: pa.Schema) -> Sequence[tuple[int, str]]:
    """Places and names of the columns that Arrow reads as floats, if not as texts."""
    return tuple(
        (index, column.name)
        for index, column in enumerate(schema)
        if pa.types.is_floating(_read_type(column.type))
    )


def doubtful_floats(batch: pa.RecordBatch, floats: Sequence[tuple[int, str]]) -> frozenset[str]:
    """Columns in which a whole number may have been rounded, or a number was too large."""
    columns = ((name, batch.column(index)) for index, name in floats)
    return frozenset(
        name
        for name, values in columns
        if pa.types.is_floating(values.type) and not are_whole_exact(values, values.type)
    )


def refused_decimals(error: Exception, schema: pa.Schema) -> frozenset[str]:
    """Columns of decimals, if one may be the one that Arrow has refused, without a row."""
    if _DECIMAL.search(str(error)) is None:
        return frozenset()
    return frozenset(field.name for field in schema if pa.types.is_decimal(field.type))


def _read_type(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow reads."""
    types = pa.types
    if types.is_decimal(kind):
        # Of a decimal's precision Arrow's reader takes no notice: 70000 would be a decimal(5, 2).
        # Digits and scale together must not be more than 38: the product would wrap. A text of more is refused.
        is_narrow = 0 <= kind.scale < _DIGITS_MAX
        return pa.decimal128(_DIGITS_MAX - kind.scale, kind.scale) if is_narrow else pa.string()
    is_text = types.is_float16(kind) or types.is_nested(kind)
    return pa.string() if is_text and not types.is_dictionary(kind) else kind


def typed_rows(
    path: str,
    batch: pa.RecordBatch,
    schema: pa.Schema,
    *,
    row: int,
    begins_at: int = 0,
    header_rows: int = 1,
) -> pa.RecordBatch:
    """A batch of `open_csv`, in the types of `schema`.

    Args:
        path: The file.
        batch: Rows of it.
        schema: Types of the columns.
        row: The batch's first row, counted as Arrow does: from 1, the header too.
        begins_at: The byte at which the part begins, of which these are rows.
        header_rows: 1 if the file has a header, else 0.

    Raises:
        SourceError: A text is no value of its column's type.
    """
    if batch.schema == schema:
        return batch
    columns: list[pa.Array] = []
    for values, column in zip(batch.columns, schema, strict=True):
        try:
            cast = exact_from_text if pa.types.is_string(values.type) else exact_cast
            columns.append(refuse_nulls(cast(values, column.type), column))
        except InexactError as error:
            place = (
                ""
                if error.row is None
                else f"{_row(str(row + error.row), begins_at, header_rows)}, "
            )
            raise SourceError(
                path,
                f"{place}column {column.name!r}: the value {_shown(error.value)} is no "
                f"{error.target}: {error.reason}",
                _TYPE_STEP,
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _shown(value: object) -> str:
    return "null" if value is None else repr(str(value)[:_SHOWN_CHARS])


def reading_error(
    path: str,
    error: Exception,
    schema: pa.Schema | None,
    begins_at: int = 0,
    header_rows: int = 1,
) -> SourceError:
    """Error of Arrow or of a codec, with file, row, column, value and the next step."""
    text = str(error)
    if (match := _CONVERSION.search(text)) is not None:
        return _conversion_error(path, match, schema, begins_at, header_rows)
    if (match := _SHAPE.search(text)) is not None:
        return SourceError(
            path,
            f"{_row(match['row'], begins_at, header_rows)} has {match['got']} fields where "
            f"{match['expected']} are expected: {match['text'][:_SHOWN_CHARS]!r}",
            "fix the line, or see `delimiter=`, `quote=` and `escape=`",
        )
    if "straddl" in text:
        return SourceError(
            path,
            "a line is longer than a block, or a quote is never closed",
            "see `quote=` and `escape=`, or set a larger `block_bytes=`",
        )
    if isinstance(error, UnicodeError):
        return SourceError(
            path, f"its header is not UTF-8: {text}", "set its encoding with `encoding=`"
        )
    return SourceError(path, text, "check that it is CSV, and the options of the source")


def _conversion_error(
    path: str, match: re.Match[str], schema: pa.Schema | None, begins_at: int, header_rows: int
) -> SourceError:
    column = int(match["column"])
    # A file with more columns than `schema` may be at fault in one of these first.
    names = [] if schema is None else schema.names
    name = repr(names[column]) if column < len(names) else f"#{column}"
    row = _row(match["row"], begins_at, header_rows)
    if match["value"] is None and "UTF8" in str(match["problem"]):
        return SourceError(
            path,
            f"{row}, column {name}: the text is not UTF-8",
            "set the file's encoding with `encoding=`",
        )
    fault = (
        f"the value {match['value'][:_SHOWN_CHARS]!r} is no {match['type']}"
        if match["value"] is not None
        else f"{match['problem']} ({match['type']})"
    )
    return SourceError(
        path,
        f"{row}, column {name}: {fault}",
        _TYPE_STEP,
    )


def _row(number: str | None, begins_at: int, header_rows: int) -> str:
    """`number` counts from 1 the lines that are not empty, a part's copy of the header too."""
    if number is None:
        return "a row"
    if begins_at:
        return f"row {int(number) - header_rows} of the part that begins at byte {begins_at}"
    return f"row {number} (a header is row 1)" if header_rows else f"row {number}"
