"""A listing while splits of an earlier one wait: each file is listed anew, left out, or reported as missing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final

from coordlog.coordinators.enumerator import pages_of_ids
from coordlog.coordinators.listing import Relisted
from coordlog.errors import SourceError
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import KnownSplitsForgotten, Split, SplitsDiscovered
from coordlog.spark_integration.files.listing import ListedFile, modified_us
from coordlog.spark_integration.files.payloads import FileChanged, FileSplit
from coordlog.spark_integration.files.source.ages import left_out_fact
from coordlog.spark_integration.files.source.bad_files import named_files
from coordlog.spark_integration.files.source.discovery import Discovery
from coordlog.spark_integration.files.source.split_bytes import decode_split

__all__ = ["FILLED", "LEFT_OUT", "OTHER_CUT", "RECUT", "relisted"]

RECUT: Final = "a later listing has cut its file otherwise"
LEFT_OUT: Final = "a later listing has left it out, by `exclude`"
FILLED: Final = "its file was empty, and has rows now"
OTHER_CUT: Final = (
    "another branch of the job has cut its file otherwise, and this one has rows of it"
)


def relisted(
    discovery: Discovery,
    known: Mapping[str, Sequence[FileSplit]],
    *,
    unread: frozenset[str],
    skipped: frozenset[str] = frozenset(),
    as_read: Mapping[str, FileChanged] | None = None,
    modified_from_us: int | None = None,
    settled: bytes = b"",
    with_new: bool = True,
    is_committed: Callable[[str], bool] = lambda _split_id: False,
) -> Relisted:
    """The present files of a source, of which `known` was listed before (clause L6: no split waits for ever).

    A file of which no reader has had a split is listed as if it were new: options may have changed,
    and it may have been fixed. If it is gone, its splits stay as they are if the source skips files
    at fault: its reader skips it, and records its name. A file of which some splits are skipped stays cut as it is:
    in other cuts the skipped rows would be read (clause J2: a skip is permanent). A file that was empty and has rows
    now is a new one.

    Args:
        discovery: Makes the splits.
        known: The splits of the earlier listings, by path.
        unread: Ids of the splits that no reader has had.
        skipped: Ids of the splits that are not read.
        as_read: Files that were read otherwise than they were listed, by path.
        modified_from_us: Limit of a watch before this run, or None. Files that were modified earlier and are not known
            are left out: they may have been read, and forgotten.
        settled: Schema of files that were forgotten or released, as in their splits; empty: none was.
        with_new: Whether all other files are listed too, which makes the listing complete. Otherwise a watch does that,
            which may tolerate that a known one has changed.
        is_committed: Whether a completed checkpoint has every row of a split.

    Raises:
        SourceError: A file that was listed before is missing; or as `Discovery.splits_of`.
    """
    known, other_cuts = _of_one_cut(known, unread)
    had_files = bool(known or settled) or modified_from_us is not None
    listed = discovery.files.list(allow_none=had_files)
    too_old = (
        _too_old(listed, known, modified_from_us)
        if with_new and modified_from_us is not None
        else []
    )
    present = {file.path for file in listed}
    waiting = _waiting(known, unread, skipped)
    gone = {path: splits for path, splits in waiting.items() if path not in present}
    left_out = _excluded(discovery, gone)
    rest = {path: splits for path, splits in known.items() if path not in waiting}
    again = [file for file in listed if file.path in waiting]
    aside = waiting.keys() | {file.path for file in too_old}
    others = [file for file in listed if file.path not in aside] if with_new else []
    filled = _filled(others, rest, as_read or {}, skipped, is_committed)
    rest = {path: splits for path, splits in rest.items() if path not in filled}
    fresh = again + discovery.fresh(others, rest, as_read, skipped)
    fresh_splits = discovery.splits_of(
        sorted(fresh, key=lambda file: file.path),
        rest,
        settled=settled,
        is_checked=bool(rest or settled),
    )
    fresh_splits, recut = _cut_anew(
        {path: splits for path, splits in waiting.items() if path in present}, fresh_splits, skipped
    )
    withdrawn = {RECUT: recut, LEFT_OUT: _split_ids(left_out), OTHER_CUT: other_cuts}
    return Relisted(
        discovered=SplitsDiscovered(splits=fresh_splits, is_complete=with_new),
        withdrawn={reason: split_ids for reason, split_ids in withdrawn.items() if split_ids},
        facts=[*_forgotten(filled), *_left_out(too_old, modified_from_us)],
    )


def _waiting(
    known: Mapping[str, Sequence[FileSplit]], unread: frozenset[str], skipped: frozenset[str]
) -> dict[str, Sequence[FileSplit]]:
    """The files of which no reader has had a split, and not all splits are skipped."""
    return {
        path: splits
        for path, splits in known.items()
        if {split.split_id for split in splits} <= unread | skipped
        and not {split.split_id for split in splits} <= skipped
    }


def _excluded(
    discovery: Discovery, gone: Mapping[str, Sequence[FileSplit]]
) -> dict[str, Sequence[FileSplit]]:
    """The files that `exclude` names. Raises SourceError if another one is missing."""
    left_out = {path: splits for path, splits in gone.items() if discovery.files.leaves_out(path)}
    if not discovery.skips_unreadable:
        _check_there(discovery, {path: gone[path] for path in gone.keys() - left_out.keys()})
    return left_out


def _forgotten(filled: Mapping[str, Sequence[FileSplit]]) -> list[KnownSplitsForgotten]:
    pages = pages_of_ids(_split_ids(filled))
    return [KnownSplitsForgotten(split_ids=page, why=FILLED) for page in pages]


def _filled(
    listed: Sequence[ListedFile],
    known: Mapping[str, Sequence[FileSplit]],
    as_read: Collection[str],
    skipped: frozenset[str],
    is_committed: Callable[[str], bool],
) -> dict[str, Sequence[FileSplit]]:
    """The known files that were read as empty ones and have bytes now, such as a copy that had only just begun."""
    return {
        file.path: known[file.path]
        for file in listed
        if file.size_bytes > 0
        and file.path in known
        and file.path not in as_read
        and all(
            split.size_bytes == 0 and split.split_id not in skipped and is_committed(split.split_id)
            for split in known[file.path]
        )
    }


def _split_ids(by_path: Mapping[str, Sequence[FileSplit]]) -> list[str]:
    return [split.split_id for path in sorted(by_path) for split in by_path[path]]


def _of_one_cut(
    known: Mapping[str, Sequence[FileSplit]], unread: Collection[str]
) -> tuple[Mapping[str, Sequence[FileSplit]], list[str]]:
    """The known splits, for each file of which splits were read or skipped those of one cut; and ids of the others.

    A job that goes from one branch to a checkpoint of another knows the splits of both, which may cut a file otherwise.
    """
    of_one_cut: dict[str, Sequence[FileSplit]] = {}
    others: list[str] = []
    for path, splits in known.items():
        of_one_cut[path] = splits
        held = [split for split in splits if split.split_id not in unread]
        if not held or _is_one_cut(splits):
            continue
        taken = sorted(map(_range, held))
        of_one_cut[path] = kept = held
        for split in splits:
            if split.split_id not in unread:
                continue
            if split.parts == held[0].parts and not _overlaps(taken, split):
                insort(taken, _range(split))
                kept.append(split)
            else:
                others.append(split.split_id)
    return of_one_cut, others


def _is_one_cut(splits: Sequence[FileSplit]) -> bool:
    ranges = sorted(map(_range, splits))
    are_apart = all(before[1] <= after[0] for before, after in pairwise(ranges))
    return are_apart and len({split.parts for split in splits}) == 1


def _overlaps(taken: Sequence[tuple[float, float]], split: FileSplit) -> bool:
    """Whether a split overlaps one of these ranges, which are sorted and do not overlap each other."""
    start, end = _range(split)
    following = bisect_left(taken, (start, end))
    return any(
        start < other_end and other_start < end
        for other_start, other_end in taken[max(0, following - 1) : following + 1]
    )


def _range(split: FileSplit) -> tuple[float, float]:
    return split.start, inf if split.end < 0 else split.end


def _too_old(
    listed: Sequence[ListedFile], known: Mapping[str, Sequence[FileSplit]], from_us: int
) -> list[ListedFile]:
    """The files that are not known and were modified before the limit."""
    ages = ((file, modified_us(file)) for file in listed if file.path not in known)
    return [file for file, time_us in ages if time_us is not None and time_us < from_us]


def _left_out(too_old: Sequence[ListedFile], from_us: int | None) -> Sequence[Payload]:
    if not too_old or from_us is None:
        return ()
    paths = [file.path for file in too_old]
    return (left_out_fact(from_us, paths, len(paths), may_be_read=True),)


def _cut_anew(
    waiting: Mapping[str, Sequence[FileSplit]], fresh_splits: list[Split], skipped: frozenset[str]
) -> tuple[list[Split], list[str]]:
    """The splits of `fresh_splits` that are kept, and the ids of the splits of `waiting` that they replace."""
    ids = {split.split_id for split in fresh_splits}
    cut_anew = {
        path: splits
        for path, splits in waiting.items()
        if not {split.split_id for split in splits} <= ids
    }
    stays_cut = {
        path: splits
        for path, splits in cut_anew.items()
        if any(split.split_id in skipped for split in splits)
    }
    _check_whole(stays_cut)
    if stays_cut:
        fresh_splits = [
            split for split in fresh_splits if decode_split(split.content).path not in stays_cut
        ]
    replaced = sorted(cut_anew.keys() - stays_cut.keys())
    return fresh_splits, [
        split.split_id for path in replaced for split in cut_anew[path] if split.split_id not in ids
    ]


def _check_whole(stays_cut: Mapping[str, Sequence[FileSplit]]) -> None:
    """Check that all splits of these files are known: a driver may have ended between two pages.

    Raises:
        SourceError: Splits of a file are not known.
    """
    for path, splits in sorted(stays_cut.items()):
        if len(splits) < splits[0].parts:
            raise SourceError(
                path,
                f"{len(splits)} of its {splits[0].parts} splits are known, some of them are skipped, and it "
                "is cut otherwise now",
                "set `split_bytes=` and the other options as they were when it was listed, or skip its "
                "other splits too (`coordlog skip`)",
            )


def _check_there(discovery: Discovery, waiting: Mapping[str, Sequence[FileSplit]]) -> None:
    """Check that files of an earlier listing that are not in this one still exist, perhaps by another path.

    Raises:
        SourceError: Files are missing; it names them.
    """
    missing = [path for path in sorted(waiting) if not _is_there(discovery, waiting[path][0])]
    if missing:
        raise SourceError(
            discovery.files.url,
            f"{named_files(missing)} of an earlier listing of this job, of which no row is in use, "
            "cannot be found any more",
            "put them back; or continue without them: `coordlog skip`, `exclude=`, or "
            '`on_error="skip"`',
        )


def _is_there(discovery: Discovery, split: FileSplit) -> bool:
    try:
        discovery.files.look(split)
    except SourceError:
        return False
    return True
