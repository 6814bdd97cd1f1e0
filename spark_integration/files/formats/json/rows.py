"""Rows of JSON lines as Arrow batches, and errors that name file, line and field."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from coordlog.errors import SourceError
from coordlog.spark_integration.files.formats.bad_rows import BadRow
from coordlog.spark_integration.files.formats.inferring import infer_json
from coordlog.spark_integration.files.formats.json.values import parse_json
from coordlog.spark_integration.files.formats.text.line_blocks import LineBlocks

__all__ = ["JsonRows", "wrong_json"]

_SHOWN_CHARS: Final = 200
_ROW: Final = re.compile(r"^JSON parse error: | in row \d+$")
_BEHIND_OBJECT: Final = "Extra data"
"""Words of the error of text behind a whole value."""
_SCHEMA_STEP: Final = (
    "set the types with `schema=`, or files of another form in a source of their own"
)


@dataclass(slots=True, kw_only=True)
class JsonRows:
    """The objects of one split, block by block. Call `close` when done, whatever happened."""

    path: str
    blocks: LineBlocks
    schema: pa.Schema
    unexpected: Literal["error", "ignore"]
    """Treatment of a field that the schema lacks."""
    bytes_read: int
    skip_rows: int
    """Rows of the next batches that are still to be passed over: lines have no index."""
    bad_rows: Sequence[BadRow] = ()

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None after the last. A field that an object lacks is null."""
        while (text := self.blocks.next()) is not None:
            if not text.strip():
                continue
            try:
                table = parse_json(text, self.schema, self.unexpected)
            except (pa.ArrowException, ValueError) as error:
                raise wrong_json(
                    self.path, self.blocks, text, self.schema, self.unexpected
                ) from error
            (batch,) = table.combine_chunks().to_batches() or [_no_rows(table.schema)]
            return batch
        return None

    def close(self) -> None:
        """Close the file."""
        self.blocks.close()


def wrong_json(
    path: str,
    blocks: LineBlocks,
    text: str,
    schema: pa.Schema | None,
    unexpected: Literal["error", "ignore"],
) -> SourceError:
    """The error of the first line of `text` that is not compatible."""
    lines = text.split("\n")
    good, bad = 0, len(lines)  # so many lines fit; so many do not
    while bad - good > 1:
        middle = (good + bad) // 2
        if _problem(lines[:middle], schema, unexpected) is None:
            good = middle
        else:
            bad = middle
    line = lines[good]
    where, shown = blocks.line(good), repr(line.strip()[:_SHOWN_CHARS])
    is_last = blocks.is_at_end and good == len(lines) - 1
    problem = _problem([line], schema, unexpected)
    if problem is None:
        # Alone the line is well: it differs from the types of the lines before.
        together = _problem(lines[:bad], schema, unexpected)
        return SourceError(path, f"{where}: {together}: {shown}", _SCHEMA_STEP)
    try:
        value = json.loads(line)
    except RecursionError:
        return SourceError(path, f"{where}: {problem}: {shown}", _SCHEMA_STEP)
    except ValueError as error:
        is_behind = str(error).startswith(_BEHIND_OBJECT)
        if "\r" in line.strip():
            return SourceError(
                path,
                f"{where} holds a CR within: a line ends with LF, or with CR and LF: {shown}",
                "check that the file is one of JSON lines; if its lines end with CR, make LF of it",
            )
        if is_last and not is_behind:
            return SourceError(
                path,
                f"its last line, {where}, is cut off: it has no line end and is no whole object: "
                f"{shown}",
                "check that the file is whole; write it under another name and rename it when it is",
            )
        return SourceError(
            path, f"{where} is no JSON: {problem}: {shown}", "fix the line: one object each"
        )
    if not isinstance(value, dict):
        return SourceError(
            path, f"{where} is no JSON object: {shown}", "fix the line: one object each"
        )
    if schema is not None:
        new = [name for name in value if name not in schema.names]
        if new and unexpected == "error":
            return SourceError(
                path,
                f"{where}: it has the fields {new}, which the source has not; those are "
                f"{schema.names}",
                _SCHEMA_STEP,
            )
    return SourceError(path, f"{where}: {problem}: {shown}", _SCHEMA_STEP)


def _problem(
    lines: list[str], schema: pa.Schema | None, unexpected: Literal["error", "ignore"]
) -> str | None:
    text = "\n".join(lines)
    if not text.strip():
        return None
    try:
        if schema is None:
            infer_json(text)
        else:
            parse_json(text, schema, unexpected)
    except (pa.ArrowException, ValueError) as error:
        return _ROW.sub("", str(error))
    return None


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
