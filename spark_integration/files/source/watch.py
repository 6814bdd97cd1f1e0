"""Options of a source that continues to list new files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from coordlog.errors import OptionError
from coordlog.limits import WATCH_INTERVAL_S
from coordlog.option_types import check_types

__all__ = ["Watch"]

_LOWEST_S: Final = 0.01
_HIGHEST_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """New files are listed and read until the source has been idle, or the job is stopped.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options have a wrong type.
    """

    watch_interval_s: float = WATCH_INTERVAL_S
    """Seconds between two listings. A file is read once two listings in a row have found it the same."""
    idle_timeout_s: float | None = None
    """Seconds without a new file after which the source ends; None: only a stop ends it."""
    start_after: str | None = None
    """Name below the path, as in `2026-11-20/`: only names after it are listed, in the order of code points. In S3 the
    listing begins there. None: all are."""

    def __post_init__(self) -> None:
        check_types(
            Watch.__init__, {field.name: getattr(self, field.name) for field in fields(self)}
        )
        interval_s, idle_s = self.watch_interval_s, self.idle_timeout_s
        if not _LOWEST_S <= interval_s <= _HIGHEST_S:
            expected = f"between {_LOWEST_S:g} and {_HIGHEST_S:g}"
            raise OptionError("watch_interval_s", interval_s, expected)
        if idle_s is not None and not idle_s >= interval_s:
            raise OptionError("idle_timeout_s", idle_s, f"at least {interval_s:g}, an interval")
        if self.start_after is not None and self.start_after.strip("/") in ("", ".", ".."):
            raise OptionError("start_after", self.start_after, "a name below the path")
        if self.start_after is not None and self.start_after.startswith("/"):
            raise OptionError(
                "start_after",
                self.start_after,
                "a name below the path, without the slash before it",
            )
