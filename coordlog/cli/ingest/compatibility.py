"""Options of `coordlog ingest` without effect on the job: an error if they are on the command line.

If `coordlog.toml` or a variable sets such an option, it is ignored with a warning.
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
    """An option that has a value but no effect."""

    field: str
    option: str
    is_for: str
    is_chosen: bool
    """Whether the option is on the command line, not in a file or a variable."""

    @property
    def problem(self) -> str:
        """Text of the error or the warning."""
        if self.is_chosen:
            return f"{self.option} is given; it is for {self.is_for}"
        return f"{self.option} is set, and does nothing here: it is for {self.is_for}"


def unfit(options: IngestOptions) -> list[Unfit]:
    """All options without effect, in the order of their groups."""
    defaults = {field.name: field.default for field in fields(options)}
    unfit_options: list[Unfit] = []
    for field, option, is_for in _useless(options):
        differs = getattr(options, field) != defaults[field]
        is_chosen = differs if options.told is None else field in options.told
        if differs or is_chosen:
            unfit_options.append(
                Unfit(field=field, option=option, is_for=is_for, is_chosen=is_chosen)
            )
    return unfit_options


def fitted(options: IngestOptions) -> IngestOptions:
    """The options, with defaults in place of values without effect: these are reported separately."""
    defaults = {field.name: field.default for field in fields(options)}
    changes = {option.field: defaults[option.field] for option in unfit(options)}
    return replace(options, **changes)  # type: ignore[arg-type]


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
