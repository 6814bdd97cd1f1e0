"""The queries of docs/history.md with what the page says that they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from coordlog.schemas.codec import ENVELOPE_SCHEMA

__all__ = ["PAGE", "printed", "queries"]

PAGE: Final = Path(__file__).parents[3] / "docs" / "history.md"
_BLOCKS: Final = re.compile(
    r"```(sql|python)\n((?:(?!```).)*)```\n\n```text\n((?:(?!```).)*)```\n", re.DOTALL
)


def queries(page: str) -> list[tuple[str, str, str]]:
    """Each block that an output follows: its language, its text, and the output."""
    return _BLOCKS.findall(page)


def printed(spark: SparkSession, servers: str, language: str, text: str) -> str:
    """What a block prints, without the space at the lines' ends."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if language == "sql":
            spark.sql(text).show(100, truncate=False)
        else:
            exec(text, {"spark": spark, "servers": servers, "record": ENVELOPE_SCHEMA})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip()) + "\n"
