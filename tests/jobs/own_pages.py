"""The program of the pages of an own source and an own sink."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["program"]

_DOCS: Final = Path(__file__).parents[2] / "docs"
_PAGES: Final = ("write-your-own-source.md", "write-your-own-sink.md")
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def program() -> str:
    """All Python blocks of both pages, in order: one module."""
    texts = [(_DOCS / name).read_text("utf-8") for name in _PAGES]
    return "\n\n".join(block for text in texts for block in _BLOCK.findall(text))
