"""Rows of JSON lines without the bad ones, and samples of files that have bad rows."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Final, Literal

import pyarrow as pa

from coordlog.spark_integration.files.compression import Compression
from coordlog.spark_integration.files.formats.json.values import parse_json
from coordlog.spark_integration.files.formats.sifting import BadRowError, SiftedRows
from coordlog.spark_integration.files.formats.text.encoding import is_utf8
from coordlog.spark_integration.files.formats.text.line_blocks import open_lines
from coordlog.spark_integration.files.formats.text.row_cutter import LINES, RowCutter
from coordlog.spark_integration.files.formats.text.text_bytes import TextBytes
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.rescued import unmarked

__all__ = ["sifted_json", "whole_objects"]

_WORDS_OF_PLACE: Final = re.compile(r" in row (\d+)$")
_WORDS: Final = re.compile(r"^JSON parse error: | in row \d+$")


def sifted_json(
    files: InputFiles,
    split: FileSplit,
    schema: pa.Schema,
    *,
    encoding: str,
    compression: Compression,
    block_bytes: int,
    unexpected: Literal["error", "ignore"],
    bytes_read: int,
    skip_rows: int = 0,
) -> SiftedRows:
    """The rows of a split; lines that are no object, or do not have the schema's types, are left out.

    Raises:
        SourceError: The file cannot be read.
    """
    text, begins_at = open_lines(
        files, split, start=split.start, end=split.end, encoding=encoding, compression=compression
    )
    cutter = RowCutter(
        text,
        LINES,
        block_bytes=block_bytes,
        row_bytes_max=block_bytes,
        offset=begins_at,
        line=None if begins_at else 1,
    )
    return SiftedRows(
        cutter,
        partial(_parsed, schema, unexpected),
        schema=unmarked(schema),
        is_utf8=is_utf8(encoding),
        bytes_read=bytes_read,
        skip_rows=skip_rows,
        close=text.close,
    )


def whole_objects(stream: TextBytes, block_bytes: int) -> str:
    """The first lines of a file, as many as are in a block; those that are no objects are empty.

    Raises:
        SourceError: The file cannot be read.
    """
    lines: list[str] = []
    for row in RowCutter(stream, LINES, block_bytes=block_bytes, row_bytes_max=block_bytes).next():
        assert row.line is not None, "a sample begins with its file"
        text = None if row.fault else _text_of(row.data)
        lines += [""] * (row.line - 1 - len(lines))
        lines.append("" if text is None or _problem(text) is not None else text)
    return "\n".join(lines)


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode().strip()
    except UnicodeError:
        return None


def _parsed(
    schema: pa.Schema, unexpected: Literal["error", "ignore"], data: bytes
) -> pa.RecordBatch:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        reason = f"the text is not UTF-8: {error.reason} (0x{data[error.start]:02x})"
        raise BadRowError(reason, data.count(b"\n", 0, error.start)) from error
    try:
        table = parse_json(text, schema, unexpected)
    except (pa.ArrowException, ValueError, RecursionError) as error:
        place = _WORDS_OF_PLACE.search(str(error))
        raise BadRowError(_reason(text, error), place and int(place[1])) from error
    (batch,) = table.combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], schema=table.schema)
    ]
    return batch


def _reason(text: str, error: Exception) -> str:
    return _problem(text.strip()) or _WORDS.sub("", str(error))


def _problem(line: str) -> str | None:
    """Why a line is no object; None if it is one."""
    try:
        value = json.loads(line, object_pairs_hook=_object)
    except RecursionError:
        return "it is nested too deep"
    except ValueError as error:
        return f"it is no JSON: {error}"
    return None if isinstance(value, dict) else "it is no JSON object"


def _object(fields: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(fields)
    if len(value) < len(fields):
        names = [name for name, _ in fields]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the field {doubled!r} more than once")
    return value
