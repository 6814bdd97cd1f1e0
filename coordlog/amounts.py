"""Texts of amounts, for people and from them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

__all__ = ["age_of", "in_bytes", "many"]

_THOUSAND: Final = 1000
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def in_bytes(count: float) -> str:
    """A number of bytes in decimal units, with one decimal place from kB on."""
    for unit in ("B", "kB", "MB", "GB"):
        # Rounded before it is compared: never 1000.0 kB.
        if round(count, 0 if unit == "B" else 1) < _THOUSAND:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _THOUSAND
    return f"{count:,.1f} TB"


def many(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def age_of(text: str) -> timedelta | None:
    """A whole number of days, hours, minutes or seconds, as in 30d, 12h, 45m or 90s; None for other texts."""
    age = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    return None if age is None else timedelta(**{_UNITS[age[2]]: int(age[1])})
