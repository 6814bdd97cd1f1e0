"""Options of `coordlog ingest` that do nothing for the job at hand: an error where they are given to it.

Where `coordlog.toml` or a variable sets one for all jobs it is left out, with a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coordlog.cli.ingest.options import IngestOptions

__all__ = ["Unfit", "fitted", "unfit"]

_OF_FILES: Final = {
    "file_format": "--format",
    "compression": "--compression",
    "null_values": "--null-value",
    "encoding": "--encoding",
    "delimiter": "--delimiter",
    "quote": "--quote",
    "escape": "--escape",
    "schema": "--schema",
    "no_newlines_in_fields": "--no-newlines-in-fields",
    "on_error": "--on-error",
    "exclude": "--exclude",
    "allow_other_source": "--allow-other-source",
    "partition_folders": "--partition-folders",
    "is_watching": "--watch",
    "watch_interval_s": "--watch-interval",
    "idle_timeout_s": "--idle-timeout",
    "schemas": "--schemas",
    "changed_by": "--changed-by",
    "listing_timeout_s": "--listing-timeout",
}
_OF_TOPICS: Final = {"is_bounded": "--unbounded", "starting": "--starting", "decode": "--decode"}
_OF_FORMATS: Final = {
    "null_values": ("csv",),
    "encoding": ("csv", "jsonl", "text"),
    "delimiter": ("csv",),
    "quote": ("csv",),
    "escape": ("csv",),
    "schema": ("csv", "jsonl", "parquet"),
    "no_newlines_in_fields": ("csv",),
}
_OF_WATCHES: Final = ("watch_interval_s", "idle_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """An option that has a value, and does nothing."""

    field: str
    option: str
    is_for: str
    is_told: bool
    """Whether the command has been given it, and not all commands."""

    @property
    def problem(self) -> str:
        """What is said of it."""
        if self.is_told:
            return f"{self.option} is given; it is for {self.is_for}"
        return f"{self.option} is set, and does nothing here: it is for {self.is_for}"


def unfit(options: IngestOptions) -> list[Unfit]:
    """All that do nothing, in the order of their groups."""
    defaults = {one.name: one.default for one in fields(options)}
    found: list[Unfit] = []
    for field, option, is_for in _useless(options):
        differs = getattr(options, field) != defaults[field]
        is_told = differs if options.told is None else field in options.told
        if differs or is_told:
            found.append(Unfit(field=field, option=option, is_for=is_for, is_told=is_told))
    return found


def fitted(options: IngestOptions) -> IngestOptions:
    """The same without those that do nothing: each is an error or a warning of its own already."""
    defaults = {one.name: one.default for one in fields(options)}
    left_out = {one.field: defaults[one.field] for one in unfit(options)}
    return replace(options, **left_out)  # type: ignore[arg-type]


def _useless(options: IngestOptions) -> Iterator[tuple[str, str, str]]:
    if options.is_kafka:
        for field, option in _OF_FILES.items():
            yield field, option, "files"
    else:
        for field, option in _OF_TOPICS.items():
            yield field, option, "kafka://"
        for field, formats in _OF_FORMATS.items():
            if options.file_format not in formats:
                yield field, _OF_FILES[field], f"--format {' or '.join(formats)}"
        if not options.is_watching:
            for field in _OF_WATCHES:
                yield field, _OF_FILES[field], "--watch"
    if options.is_batch:
        yield "checkpoint_interval_s", "--checkpoint-interval", "a job without --batch"
