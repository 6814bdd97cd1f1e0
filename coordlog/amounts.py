"""Text of amounts for people."""

from __future__ import annotations

from typing import Final

__all__ = ["in_bytes", "many"]

_THOUSAND: Final = 1000


def in_bytes(count: float) -> str:
    """A number of bytes in decimal units, with one decimal place from kB on."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < _THOUSAND:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _THOUSAND
    return f"{count:,.1f} TB"


def many(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
