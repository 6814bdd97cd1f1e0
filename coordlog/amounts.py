"""Amounts, for people."""

from __future__ import annotations

from typing import Final

__all__ = ["in_bytes"]

_THOUSAND: Final = 1000


def in_bytes(count: float) -> str:
    """A number of bytes: decimal units, one place behind the point, but for single bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < _THOUSAND:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _THOUSAND
    return f"{count:,.1f} TB"
