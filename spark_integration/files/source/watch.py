"""Options of a source that continues to list new files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from coordlog.amounts import age_of
from coordlog.errors import OptionError
from coordlog.limits import NOTIFIED_LISTING_S, WATCH_INTERVAL_S
from coordlog.option_types import check_types

__all__ = ["Watch"]

_LOWEST_S: Final = 0.01
_HIGHEST_S: Final = 86_400.0
_ARCHIVE: Final = "archive:"
_SQS: Final = "sqs://"
_AGE_LOWEST_S: Final = 1.0
_AGE_INTERVALS: Final = 10
"""Intervals that an age has at least: a file is discovered by its second listing."""


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

    max_file_age: timedelta | str | None = None
    """Age, as in `30d` or `12h`, above which files are not discovered, and the names of read ones are forgotten. An age
    is the time from a file's modification to that of the newest file, or to the driver's time if that is earlier. Files
    that are left out are recorded. None: files of any age are read, and each stays known."""

    after_commit: str = "keep"
    """What becomes of a file of which a completed checkpoint, and every sink, has all rows, or in queries all streams:
    `keep`; `delete`; or `archive:DIR`, to a folder or S3 URL outside of the listing. Only exactly the file that was
    read; see the docs."""

    notify: str | None = None
    """`sqs://QUEUE`: queue with the S3 events of new objects, which are read without a listing; None: each interval
    lists."""
    full_listing_interval_s: float = NOTIFIED_LISTING_S
    """Seconds between two listings with `notify`, for notifications that are lost."""

    @property
    def queue(self) -> str | None:
        """Name of the queue, or its URL without a scheme; None without notifications."""
        return None if self.notify is None else self.notify.removeprefix(_SQS)

    @property
    def archive(self) -> str | None:
        """Folder or URL to which read files are moved, or None."""
        return (
            self.after_commit.removeprefix(_ARCHIVE)
            if self.after_commit.startswith(_ARCHIVE)
            else None
        )

    @property
    def age(self) -> timedelta | None:
        """The greatest age of a file that is discovered, or None."""
        age = self.max_file_age
        return age_of(age) if isinstance(age, str) else age

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
        if self.max_file_age is not None:
            lowest_s = max(_AGE_LOWEST_S, _AGE_INTERVALS * interval_s)
            if self.age is None or self.age.total_seconds() < lowest_s:
                expected = f"as in 30d, 12h, 45m or 90s, and at least {lowest_s:g} s"
                raise OptionError("max_file_age", self.max_file_age, expected)
        if self.after_commit not in ("keep", "delete") and not self.archive:
            raise OptionError("after_commit", self.after_commit, "keep, delete or archive:DIR")
        if self.notify is not None and not (self.notify.startswith(_SQS) and self.queue):
            raise OptionError("notify", self.notify, "sqs://QUEUE")
        if not interval_s <= self.full_listing_interval_s <= _HIGHEST_S:
            expected = f"between {interval_s:g}, an interval, and {_HIGHEST_S:g}"
            raise OptionError("full_listing_interval_s", self.full_listing_interval_s, expected)
        if self.start_after is not None and self.start_after.strip("/") in ("", ".", ".."):
            raise OptionError("start_after", self.start_after, "a name below the path")
        if self.start_after is not None and self.start_after.startswith("/"):
            raise OptionError(
                "start_after",
                self.start_after,
                "a name below the path, without the slash before it",
            )
