"""Rows of CSV splits without the bad ones, and samples of files that have bad rows."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import pyarrow as pa

from coordlog.errors import SourceError
from coordlog.spark_integration.files.compression import Compression
from coordlog.spark_integration.files.formats.csv.escapes import (
    DoubtfulEscapes,
    doubtful_escapes,
)
from coordlog.spark_integration.files.formats.csv.options import CsvText
from coordlog.spark_integration.files.formats.csv.rescued import rescued_rows
from coordlog.spark_integration.files.formats.csv.rows import (
    check_names,
    doubtful_floats,
    float_columns,
    header_names,
    open_csv,
    open_part,
    reading_error,
    refused_decimals,
    row_cutter,
    typed_rows,
)
from coordlog.spark_integration.files.formats.sifting import BadRowError, SiftedRows
from coordlog.spark_integration.files.formats.text.text_bytes import TextBytes
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.rescued import file_schema, unmarked

__all__ = ["sifted_csv", "whole_rows"]

_PLACE: Final = re.compile(r"(?:a row|row (?P<row>\d+))(?:, | )")
"""Place that an error has of a row among those parsed with it."""
_TEXT: Final = re.compile(r"(?<=are expected): .*", re.DOTALL)


def sifted_csv(
    files: InputFiles,
    split: FileSplit,
    schema: pa.Schema,
    *,
    options: CsvText,
    compression: Compression = "infer",
    skip_rows: int = 0,
) -> SiftedRows:
    """The rows of a split; those that cannot be parsed or cast are left out.

    Raises:
        SourceError: The file cannot be read, or its header is not that of `schema`.
    """
    part = open_part(files, split, options, compression, for_csv=False)
    try:
        cutter = row_cutter(part.text, options)
        has_header = options.csv.column_names is None
        names = header_names(split.path, cutter, options)
        columns = file_schema(names, schema)
        if names:
            check_names(split.path, names, columns)
        if part.begins_at:
            # A header that ends with CR has taken the LF of a part that begins with an empty line.
            cutter.offset += part.begins_at - part.header_bytes
            cutter.line = None
    except BaseException:
        part.text.close()
        raise
    return SiftedRows(
        None if has_header and not names else cutter,
        partial(_parsed, split.path, columns, schema, options, doubtful_escapes(options)),
        schema=unmarked(schema),
        is_utf8=options.is_utf8,
        bytes_read=part.bytes_read,
        skip_rows=skip_rows,
        close=part.text.close,
    )


def whole_rows(stream: TextBytes, options: CsvText) -> bytes:
    """The header and the first rows of a file, as many as are in a block, without damaged rows.

    Raises:
        SourceError: The file cannot be read.
    """
    rows = row_cutter(stream, options).next()
    kept = [row.data for row in rows if not row.fault and _is_utf8(row.data)]
    return b"".join(kept)[: options.block_bytes]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeError:
        return False
    return True


def _parsed(
    path: str,
    columns: pa.Schema,
    schema: pa.Schema,
    options: CsvText,
    escapes: DoubtfulEscapes | None,
    data: bytes,
) -> pa.RecordBatch:
    """Whole rows, as `CsvRows` has them; `columns` are those of the file.

    Raises:
        BadRowError: Some are no rows of `columns`.
    """
    texts: frozenset[str] = frozenset()
    floats = float_columns(columns)
    if escapes is not None and escapes.are_in(data):
        raise BadRowError(f"{escapes.problem}: see `escape=`")
    while True:
        try:
            batch = _read(data, columns, options, texts)
        except (pa.ArrowInvalid, UnicodeError) as error:
            doubtful = refused_decimals(error, columns) - texts
            if not doubtful:
                problem = reading_error(path, error, columns, header_rows=0).problem
                raise _bad_row(_TEXT.sub("", problem)) from error
        else:
            doubtful = doubtful_floats(batch, floats) - texts
            if not doubtful:
                break
        texts |= doubtful
    try:
        typed = typed_rows(path, batch, columns, row=1, header_rows=0)
    except SourceError as error:
        raise _bad_row(error.problem) from error
    return rescued_rows(typed, schema)


def _bad_row(problem: str) -> BadRowError:
    place = _PLACE.match(problem)
    if place is None:
        return BadRowError(problem)
    row = None if place["row"] is None else int(place["row"]) - 1
    return BadRowError(problem[place.end() :], row)


def _read(
    data: bytes, schema: pa.Schema, options: CsvText, texts: frozenset[str]
) -> pa.RecordBatch:
    headless = options.with_names(schema.names)
    source = pa.BufferReader(data)
    with open_csv(
        source, headless, schema=schema, block_bytes=len(data) + 1, texts=texts
    ) as reader:
        table = reader.read_all().combine_chunks()
    (batch,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    return batch
