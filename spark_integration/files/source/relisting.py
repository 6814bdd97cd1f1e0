"""A listing that is made while splits of an earlier one wait: each is listed anew, left out, or missed by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from coordlog.coordinators.listing import Relisted
from coordlog.errors import SourceError
from coordlog.schemas.source_events import Split, SplitsDiscovered
from coordlog.spark_integration.files.payloads import FileChanged, FileSplit
from coordlog.spark_integration.files.source.bad_files import named_files
from coordlog.spark_integration.files.source.discovery import Discovery
from coordlog.spark_integration.files.source.split_bytes import decode_split

__all__ = ["LEFT_OUT", "RECUT", "relisted"]

RECUT: Final = "a later listing has cut its file otherwise"
LEFT_OUT: Final = "a later listing has left it out, by `exclude`"


def relisted(
    discovery: Discovery,
    known: Mapping[str, Sequence[FileSplit]],
    *,
    unread: frozenset[str],
    skipped: frozenset[str] = frozenset(),
    as_read: Mapping[str, FileChanged] | None = None,
    with_new: bool = True,
) -> Relisted:
    """What the source has now, of which `known` was listed before (clause L6).

    A file of which no reader has had a split is listed as if it were new: options may have changed,
    and it may have been mended. If it is not there any more, its splits stay as they are if the
    source skips files at fault: its reader gives it up by name. A file of which some splits are skipped
    stays cut as it is: in other cuts the skipped rows would be read (clause J2).

    Args:
        discovery: Makes the splits.
        known: The splits of the earlier listings, by path.
        unread: The ids of those that no reader has had.
        skipped: The ids of splits that are not read.
        as_read: Files that were read otherwise than they were listed, by path.
        with_new: Whether files that are not known are listed too, which makes the listing complete.

    Raises:
        SourceError: A file that was listed before is missing; or as `Discovery.splits_of`.
    """
    listed = discovery.files.list(allow_none=bool(known))
    there = {one.path for one in listed}
    waiting = {
        path: splits
        for path, splits in known.items()
        if {one.split_id for one in splits} <= unread | skipped
        and not {one.split_id for one in splits} <= skipped
    }
    gone = {path: splits for path, splits in waiting.items() if path not in there}
    left_out = {path: splits for path, splits in gone.items() if discovery.files.leaves_out(path)}
    stays = {path: splits for path, splits in gone.items() if path not in left_out}
    if not discovery.skips_unreadable:
        _check_there(discovery, stays)
    rest = {path: splits for path, splits in known.items() if path not in waiting}
    again = [one for one in listed if one.path in waiting]
    new = discovery.fresh(
        [one for one in listed if one.path not in waiting], rest, as_read, skipped
    )
    fresh = again + (new if with_new else [one for one in new if one.path in known])
    found = discovery.splits_of(
        sorted(fresh, key=lambda one: one.path), rest, is_checked=bool(rest)
    )
    found, recut = _cut_anew(
        {path: splits for path, splits in waiting.items() if path in there}, found, skipped
    )
    withdrawn = {
        RECUT: recut,
        LEFT_OUT: [one.split_id for path in sorted(left_out) for one in left_out[path]],
    }
    return Relisted(
        found=SplitsDiscovered(splits=found, is_complete=with_new),
        withdrawn={why: names for why, names in withdrawn.items() if names},
    )


def _cut_anew(
    waiting: Mapping[str, Sequence[FileSplit]], found: list[Split], skipped: frozenset[str]
) -> tuple[list[Split], list[str]]:
    """What of `found` holds, and the ids of the splits of `waiting` that other cuts replace."""
    ids = {one.split_id for one in found}
    cut_anew = {
        path: splits
        for path, splits in waiting.items()
        if not {one.split_id for one in splits} <= ids
    }
    stays_cut = {
        path: splits
        for path, splits in cut_anew.items()
        if any(one.split_id in skipped for one in splits)
    }
    _check_whole(stays_cut)
    if stays_cut:
        found = [one for one in found if decode_split(one.content).path not in stays_cut]
    replaced = sorted(cut_anew.keys() - stays_cut.keys())
    return found, [
        one.split_id for path in replaced for one in cut_anew[path] if one.split_id not in ids
    ]


def _check_whole(stays_cut: Mapping[str, Sequence[FileSplit]]) -> None:
    """Files that stay cut as they are were listed whole, before a driver ended between two pages.

    Raises:
        SourceError: Splits of one are not known.
    """
    for path, splits in sorted(stays_cut.items()):
        if len(splits) < splits[0].parts:
            raise SourceError(
                path,
                f"{len(splits)} of its {splits[0].parts} splits are known, some of them are skipped, and it "
                "is cut otherwise now",
                "give `split_bytes=` and the other options as they were when it was listed, or skip its "
                "other splits too (`coordlog skip`)",
            )


def _check_there(discovery: Discovery, waiting: Mapping[str, Sequence[FileSplit]]) -> None:
    """Files that an earlier listing had, and this one has not, are still there: of another path, say.

    Raises:
        SourceError: Some are not; it names them.
    """
    missing = [path for path in sorted(waiting) if not _is_there(discovery, waiting[path][0])]
    if missing:
        raise SourceError(
            discovery.files.url,
            f"{named_files(missing)} of an earlier listing of this job, of which no row is in use, "
            "cannot be found any more",
            "put them back; or go on without them, by name: `coordlog skip`, `exclude=`, or "
            '`on_error="skip"`',
        )


def _is_there(discovery: Discovery, split: FileSplit) -> bool:
    try:
        discovery.files.look(split)
    except SourceError:
        return False
    return True
