"""Rows of text splits: one row per line, in the only column `value`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coordlog.spark_integration.files.formats.bad_rows import BadRow
from coordlog.spark_integration.files.formats.text.line_blocks import LineBlocks

__all__ = ["TEXT_SCHEMA", "TextRows"]

TEXT_SCHEMA: Final = pa.schema([pa.field("value", pa.string())])
"""Schema of every text source, as in Spark."""


@dataclass(slots=True, kw_only=True)
class TextRows:
    """Lines of one split, block by block. The caller must call `close` at the end, also after an error."""

    blocks: LineBlocks
    bytes_read: int
    skip_rows: int
    """Number of rows that the caller must still drop from the next batches: lines have no index to seek by."""
    bad_rows: Sequence[BadRow] = ()

    def next(self) -> pa.RecordBatch | None:
        """Next lines, without their line ends, or None after the last."""
        text = self.blocks.next()
        if text is None:
            return None
        lines = text.removesuffix("\n").split("\n")
        if "\r" in text:
            lines = [line.removesuffix("\r") for line in lines]
        return pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=TEXT_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self.blocks.close()
