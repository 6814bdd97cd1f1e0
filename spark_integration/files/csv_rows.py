"""Rows of CSV splits as Arrow batches, and errors that name file, row, column and value."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from coordlog.errors import SourceError

from .compression import Compression, codec_of
from .csv_options import CsvOptions
from .listing import InputFiles
from .payloads import FileSplit
from .text_bytes import TextBytes, header_end, line_start

__all__ = ["CsvRows", "open_csv", "reading_error"]

_CONVERSION: Final = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?CSV conversion error to "
    r"(?P<type>.+?): (?:invalid value '(?P<value>.*)'|(?P<problem>.*))",
    re.DOTALL,
)
_SHAPE: Final = re.compile(
    r"(?:Row #(?P<row>\d+): )?Expected (?P<expected>\d+) columns, got (?P<got>\d+): (?P<text>.*)",
    re.DOTALL,
)
_SHOWN_CHARS: Final = 200


class CsvRows:
    """The rows of one split, batch by batch. Call `close` when done with it, whatever happened."""

    def __init__(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        options: CsvOptions,
        compression: Compression = "infer",
        skip_rows: int = 0,
    ) -> None:
        """Open the split's file and parse its first block.

        Raises:
            SourceError: The file cannot be read, or its header is not that of `schema`.
        """
        self.skip_rows = skip_rows
        """Rows of what `next` gives that are still to be passed over: lines have no index."""
        self.bytes_read = max(split.size_bytes, 0)
        self._schema, self._path = schema, split.path
        self._header_rows = 0 if options.column_names is not None else 1
        self._begins_at = 0
        file = files.open(split)
        ranges: list[tuple[int, int]] | None = None
        try:
            if (split.start, split.end) != (0, split.size_bytes):
                header = header_end(file, split.size_bytes) if self._header_rows else 0
                start = max(line_start(file, split.start, split.size_bytes), header)
                end = max(line_start(file, split.end, split.size_bytes), header)
                ranges = [(0, header), (start, end)]
                self._begins_at = start if split.start else 0
                self.bytes_read = end - start if split.start else end
            self._bytes = TextBytes(
                split.path,
                file,
                ranges,
                None if options.is_utf8 else options.encoding,
                codec=codec_of(split.path, compression),
            )
        except Exception as error:  # whatever its file system raises
            file.close()
            raise SourceError(
                split.path, f"it cannot be read: {error}", "see that the file is whole"
            ) from error
        # A headless part without a line has no block that Arrow could begin with.
        is_empty = ranges is not None and all(start == end for start, end in ranges)
        self._reader = None if is_empty else self._open(options)

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        if self._reader is None:
            return None
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            return None
        except (pa.ArrowInvalid, UnicodeError) as error:
            raise reading_error(
                self._path, error, self._schema, self._begins_at, self._header_rows
            ) from error

    def close(self) -> None:
        """Let go of the file."""
        if self._reader is not None:
            self._reader.close()
        self._bytes.close()

    def _open(self, options: CsvOptions) -> pa_csv.CSVStreamingReader:
        try:
            reader = open_csv(self._bytes, options, schema=self._schema)
            names: list[str] = reader.schema.names  # decodes the header
        except (pa.ArrowInvalid, UnicodeError) as error:
            self._bytes.close()
            raise reading_error(
                self._path, error, self._schema, self._begins_at, self._header_rows
            ) from error
        except SourceError:
            self._bytes.close()
            raise
        if names != self._schema.names:
            reader.close()
            self._bytes.close()
            raise SourceError(
                self._path,
                f"its columns are {names}, those of the source are {self._schema.names}",
                "give files of one header, or those of the other in a source of their own",
            )
        return reader


def open_csv(
    stream: TextBytes,
    options: CsvOptions,
    *,
    schema: pa.Schema | None,
    block_bytes: int | None = None,
) -> pa_csv.CSVStreamingReader:
    """Arrow's reader of `stream`; without `schema`, types are as its first block has them."""
    return pa_csv.open_csv(
        stream,
        read_options=options.read_options(block_bytes=block_bytes),
        parse_options=options.parse_options(),
        convert_options=options.convert_options(schema),
    )


def reading_error(
    path: str,
    error: Exception,
    schema: pa.Schema | None,
    begins_at: int = 0,
    header_rows: int = 1,
) -> SourceError:
    """What Arrow or a codec found wrong, with file, row, column, value and the next step."""
    text = str(error)
    if (found := _CONVERSION.search(text)) is not None:
        return _conversion_error(path, found, schema, begins_at, header_rows)
    if (found := _SHAPE.search(text)) is not None:
        return SourceError(
            path,
            f"{_row(found['row'], begins_at, header_rows)} has {found['got']} fields where "
            f"{found['expected']} are expected: {found['text'][:_SHOWN_CHARS]!r}",
            "mend the line, or see `delimiter=`, `quote=` and `escape=`",
        )
    if "straddl" in text:
        return SourceError(
            path,
            "a line is longer than a block, or a quote is never closed",
            "see `quote=` and `escape=`, or give a larger `block_bytes=`",
        )
    if isinstance(error, UnicodeError):
        return SourceError(
            path, f"its header is not UTF-8: {text}", "give its encoding with `encoding=`"
        )
    return SourceError(path, text, "see that it is CSV, and the options of the source")


def _conversion_error(
    path: str, found: re.Match[str], schema: pa.Schema | None, begins_at: int, header_rows: int
) -> SourceError:
    column = int(found["column"])
    name = repr(schema.names[column]) if schema is not None else f"#{column}"
    row = _row(found["row"], begins_at, header_rows)
    if found["value"] is None and "UTF8" in str(found["problem"]):
        return SourceError(
            path,
            f"{row}, column {name}: the text is not UTF-8",
            "give the file's encoding with `encoding=`",
        )
    what = (
        f"the value {found['value'][:_SHOWN_CHARS]!r} is no {found['type']}"
        if found["value"] is not None
        else f"{found['problem']} ({found['type']})"
    )
    return SourceError(
        path,
        f"{row}, column {name}: {what}",
        "give the column another type with `schema=`, or name the value in `null_values=`",
    )


def _row(number: str | None, begins_at: int, header_rows: int) -> str:
    """`number` counts from 1 the lines that are not empty, a part's copy of the header too."""
    if number is None:
        return "a row"
    if begins_at:
        return f"row {int(number) - header_rows} of the part that begins at byte {begins_at}"
    return f"row {number} (a header is row 1)" if header_rows else f"row {number}"
