"""Rows of text splits: a line each, in one column `value`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coordlog.spark_integration.files.formats.line_blocks import LineBlocks

__all__ = ["TEXT_SCHEMA", "TextRows"]

TEXT_SCHEMA: Final = pa.schema([pa.field("value", pa.string())])
"""Of every text source, as Spark has it."""


@dataclass(slots=True, kw_only=True)
class TextRows:
    """The lines of one split, block by block. Call `close` when done, whatever happened."""

    blocks: LineBlocks
    bytes_read: int
    skip_rows: int
    """Rows of what `next` gives that are still to be passed over: lines have no index."""

    def next(self) -> pa.RecordBatch | None:
        """The next lines, without their ends; None after the last."""
        text = self.blocks.next()
        if text is None:
            return None
        lines = text.removesuffix("\n").split("\n")
        if "\r" in text:
            lines = [one.removesuffix("\r") for one in lines]
        return pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=TEXT_SCHEMA)

    def close(self) -> None:
        """Let go of the file."""
        self.blocks.close()
