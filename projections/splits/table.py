"""Table of the known splits of a source, in the order of discovery, each with its place. Immutable, stored in pages.

A source may have a million splits. So each split is stored once: a page is packed when it is full, never changes
again, and is shared by all states that contain it. A change of a place copies one page of places. Look-up by name uses
an index, which is not part of snapshots.

A forgotten or withdrawn split leaves a gap: the ordinals of the others stay, and a page of gaps alone is dropped.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol, cast, overload, runtime_checkable

from immutables import Map

from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.schemas.codec import Avro
from coordlog.schemas.source_types import Split

__all__ = [
    "FORGOTTEN",
    "PAGE_SPLITS",
    "Assigned",
    "Finished",
    "KnownSplit",
    "Place",
    "PlacedSplits",
    "Skipped",
    "SplitPage",
    "SplitTable",
    "SplitsByOrdinal",
    "SplitsInOrder",
    "WithEnumerator",
    "indexed",
    "is_gap",
    "unpacked_page",
]

PAGE_SPLITS: Final = 256
"""Number of splits of a full page: a change of one place copies that many references."""

_PAGE_BYTES_MAX: Final = PAGE_SPLITS * PAYLOAD_BYTES_MAX
_COMPRESSION: Final = 6
"""Level of zlib. It costs 4 µs once per split, and snapshots are a seventh smaller than at the fastest level."""
_NAMES: Final = Avro(
    '{"type":"record","name":"Names","fields":[{"name":"names","type":{"type":"array","items":"string"}}]}'
)
_CONTENTS: Final = Avro(
    '{"type":"record","name":"Contents","fields":[{"name":"contents","type":{"type":"array","items":"bytes"}}]}'
)


# --- places -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class WithEnumerator:
    """Place of a split that is assigned to no subtask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Place of a split that an `AddSplits` assigned to a subtask.

    The event is in flight, or the reader has the split, or the split has ended without a record of its
    end. This last case occurs if the subtask has completed without such a record; or if the split ended
    between the coordinator's cut and the subtask's barrier of checkpoint n, and a
    `RESET_TO_CHECKPOINT(n)` followed once a later checkpoint had completed: then its end is not recorded again.
    """

    subtask: int
    sequence: int
    """Sequence of the `EVENT_TO_SUBTASK` that assigned it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Place of a split that was read to its end."""

    subtask: int
    sequence: int
    """Sequence of the `EVENT_TO_SUBTASK` that assigned it, or -1 once no failover can undo the split's end. That of the
    `SUBTASK_COMPLETED`, if the subtask has completed before and the source can be listed again."""
    last_barrier: int
    """Last barrier that the attempt had passed at the split's end, or -1 if `sequence` is -1."""
    is_kept: bool
    """Whether all its rows are in committables of a batch job: then it stays finished (L4: batch failover)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Place of a skipped split: it is not read, or not read further, and no reset undoes this (J2: skip poison)."""

    subtask: int | None = None
    """Subtask that had the split, or None if none of its rows are left."""
    sequence: int = -1
    """Sequence of the `EVENT_TO_SUBTASK` that assigned it."""
    last_barrier: int | None = None
    """Last barrier that its reader had passed when it released the split, or None before that."""
    rows: int | None = 0
    """Number of the split's first rows that stay in the job, or None until its reader has reported it."""


Place = WithEnumerator | Assigned | Finished | Skipped

FORGOTTEN: Final = Finished(subtask=-1, sequence=-1, last_barrier=-1, is_kept=True)
"""Place of a gap, where a split was forgotten or withdrawn. No type of its own: it would change the encoding of
places, so that earlier snapshots could not be read."""


def is_gap(place: Place) -> bool:
    """Whether it is the place of a forgotten split."""
    return isinstance(place, Finished) and place.subtask == FORGOTTEN.subtask


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSplit:
    """A split that has been discovered."""

    ordinal: int
    """Number in the order of discovery, from 0."""
    split: Split
    place: Place = field(default_factory=WithEnumerator)


# --- pages ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitPage:
    """`PAGE_SPLITS` splits: their ids, and their packed contents. Equal if they hold equal splits."""

    names: tuple[str, ...]
    names_bytes: int
    """Size of the unpacked names, in bytes; readers of snapshots limit it."""
    packed_names: bytes
    packed_contents: bytes

    def splits(self) -> tuple[Split, ...]:
        """All splits of the page; a cache keeps those of the last pages used."""
        return _opened(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SplitPage):
            return NotImplemented
        if self is other:
            return True
        if self.names != other.names:
            return False
        # Two releases of zlib may pack equal contents differently.
        return (
            self.packed_contents == other.packed_contents
            or self.unpacked_contents() == other.unpacked_contents()
        )

    def __hash__(self) -> int:
        return hash(self.names[0])

    def unpacked_contents(self) -> bytes:
        """The encoded contents: the same for equal pages, for every release of zlib."""
        plain_names = _unpacked(self.packed_names, _PAGE_BYTES_MAX)
        return _unpacked(self.packed_contents, _PAGE_BYTES_MAX, dictionary=plain_names)


def _page_of(splits: Sequence[Split]) -> SplitPage:
    names = [split.split_id for split in splits]
    plain_names = _NAMES.encode({"names": list(names)})
    # Contents often repeat the names, so these are zlib's dictionary.
    packer = zlib.compressobj(_COMPRESSION, zdict=plain_names)
    contents = _CONTENTS.encode({"contents": [split.content for split in splits]})
    return SplitPage(
        names=tuple(names),
        names_bytes=len(plain_names),
        packed_names=zlib.compress(plain_names, _COMPRESSION),
        packed_contents=packer.compress(contents) + packer.flush(),
    )


def unpacked_page(packed_names: bytes, packed_contents: bytes, names_bytes_max: int) -> SplitPage:
    """A page of a snapshot. Its contents are unpacked at their first use.

    Raises:
        ValueError: `packed_names` are damaged, do not fill a page, or unpack to more than `names_bytes_max` bytes.
    """
    plain = _unpacked(packed_names, names_bytes_max)
    names = tuple(cast("list[str]", _NAMES.decode(plain)["names"]))
    if len(names) != PAGE_SPLITS:
        raise ValueError(f"a full page has {PAGE_SPLITS} splits, and this one {len(names)}")
    return SplitPage(
        names=names,
        names_bytes=len(plain),
        packed_names=packed_names,
        packed_contents=packed_contents,
    )


def _unpacked(packed: bytes, bytes_max: int, *, dictionary: bytes = b"") -> bytes:
    unpacker = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    try:
        # One byte more than allowed: 0 would mean no limit, and zlib sets `eof` only if the output has room left.
        plain = unpacker.decompress(packed, bytes_max + 1)
    except zlib.error as error:
        raise ValueError(f"a page of splits is damaged: {error}") from error
    if len(plain) > bytes_max or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"a page of splits does not end within {bytes_max} bytes")
    return plain


@lru_cache(maxsize=16)
def _opened(page: SplitPage) -> tuple[Split, ...]:
    contents = cast("list[bytes]", _CONTENTS.decode(page.unpacked_contents())["contents"])
    return tuple(
        Split(split_id=name, content=content)
        for name, content in zip(page.names, contents, strict=True)
    )


# --- the table --------------------------------------------------------------------------------------------------------
_WITH_ENUMERATOR: Final = WithEnumerator()


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTable(Mapping[str, KnownSplit]):
    """Every known split, by its id; iterates in the order of discovery. Any thread."""

    pages: Map[int, SplitPage] = field(default_factory=Map)
    """Full pages by number, from 0; those of gaps alone are missing."""
    tail: tuple[Split, ...] = ()
    """Splits after the full pages, fewer than a page."""
    places: Map[int, tuple[Place, ...]] = field(default_factory=Map)
    """Places by number of page; the last page of places is that of the tail."""
    ordinals: Map[str, int] = field(default_factory=Map)
    """Ordinals by split id. Derived from the other fields."""
    page_count: int = 0
    """Number of the tail's page."""

    def __len__(self) -> int:
        return len(self.ordinals)

    def __iter__(self) -> Iterator[str]:
        return map(self.name_at, self.live())

    def __contains__(self, split_id: object) -> bool:
        return split_id in self.ordinals

    def __getitem__(self, split_id: str) -> KnownSplit:
        ordinal = self.ordinals[split_id]
        return KnownSplit(
            ordinal=ordinal, split=self.split_at(ordinal), place=self.place_at(ordinal)
        )

    @property
    def end(self) -> int:
        """Ordinal of the next split to be discovered: above `len` if there are gaps."""
        return self.page_count * PAGE_SPLITS + len(self.tail)

    @property
    def has_gaps(self) -> bool:
        """Whether splits were forgotten or withdrawn."""
        return len(self.ordinals) != self.end

    def live(self, first: int = 0) -> Iterable[int]:
        """Ordinals of the known splits, ascending, from `first` on. Costs as much as the pages, not as the gaps."""
        if not self.has_gaps:
            return range(first, self.end)
        return (
            ordinal
            for number in sorted(n for n in self.places if n >= first // PAGE_SPLITS)
            for ordinal, place in enumerate(self.places[number], number * PAGE_SPLITS)
            if ordinal >= first and not is_gap(place)
        )

    def ordinal(self, split_id: str) -> int:
        """Number of a split in the order of discovery. Raises KeyError."""
        return self.ordinals[split_id]

    def place(self, split_id: str) -> Place:
        """Place of a split: cheaper than the whole `KnownSplit`. Raises KeyError."""
        return self.place_at(self.ordinals[split_id])

    def place_at(self, ordinal: int) -> Place:
        """Place of the split with this number in the order of discovery; `FORGOTTEN` for a gap."""
        page, within = divmod(ordinal, PAGE_SPLITS)
        places = self.places.get(page)
        return FORGOTTEN if places is None else places[within]

    def name_at(self, ordinal: int) -> str:
        """Id of the split with this number in the order of discovery."""
        page, within = divmod(ordinal, PAGE_SPLITS)
        full = self.pages.get(page)
        return self.tail[within].split_id if full is None else full.names[within]

    def split_at(self, ordinal: int) -> Split:
        """Split with this number in the order of discovery."""
        page, within = divmod(ordinal, PAGE_SPLITS)
        full = self.pages.get(page)
        return self.tail[within] if full is None else full.splits()[within]

    def in_order(self) -> SplitsInOrder:
        """All splits, in the order of discovery."""
        return SplitsInOrder(self)

    def changed_since(self, earlier: SplitTable) -> Iterator[int]:
        """Ordinals of the known splits, ascending, on pages of places that are not those of `earlier`."""
        for number in sorted(self.places):
            places = self.places[number]
            if earlier.places.get(number) is not places:
                start = number * PAGE_SPLITS
                yield from (n for n, place in enumerate(places, start) if not is_gap(place))

    def extended(self, splits: Iterable[Split], place_of: Callable[[str], Place]) -> SplitTable:
        """The table with those of `splits` appended that it lacks; `place_of` returns the place of each, by its id."""
        pages, tail, places = self.pages, list(self.tail), self.places
        number, end = self.page_count, self.end
        tail_places = list(places.get(number, ()))
        fresh: dict[str, int] = {}
        for split in splits:
            if split.split_id in self.ordinals or split.split_id in fresh:
                continue
            fresh[split.split_id] = end + len(fresh)
            tail.append(split)
            tail_places.append(place_of(split.split_id))
            if len(tail) == PAGE_SPLITS:
                if not all(map(is_gap, tail_places)):
                    pages = pages.set(number, _page_of(tail))
                    places = places.set(number, tuple(tail_places))
                number, tail, tail_places = number + 1, [], []
        if not fresh:
            return self
        if tail:
            places = places.set(number, tuple(tail_places))
        ordinals = self.ordinals.update(fresh)
        return SplitTable(
            pages=pages, tail=tuple(tail), places=places, ordinals=ordinals, page_count=number
        )

    def shortened(self, count: int) -> SplitTable:
        """The table of the splits with ordinals below `count`."""
        ordinals = self.ordinals
        for ordinal in self.live(count):
            ordinals = ordinals.delete(self.name_at(ordinal))
        full, left = divmod(count, PAGE_SPLITS)
        if left and full < self.page_count and full not in self.pages:
            full, left = full + 1, 0  # in the middle of a page of gaps, which stays one
        last = self.pages.get(full)
        tail = (self.tail if last is None else last.splits())[:left]
        pages, places = self.pages, self.places
        for number in [number for number in sorted(pages) if number >= full]:
            pages = pages.delete(number)
        for number in [number for number in sorted(places) if number >= full]:
            kept = places[number][:left] if number == full else ()
            places = places.set(number, kept) if kept else places.delete(number)
        return SplitTable(pages=pages, tail=tail, places=places, ordinals=ordinals, page_count=full)

    def continued(self, later: SplitTable, place_of: Callable[[str], Place]) -> SplitTable:
        """The table with the splits of `later` appended that it lacks; `place_of` returns the place of each, by its id.

        Shares the pages of `later` if that is an extension of this table.
        """
        first = len(self)
        if self.has_gaps or later.has_gaps:
            return self.extended(later.in_order(), place_of)
        if any(self.name_at(n) != later.name_at(n) for n in range(min(first, len(later)))):
            return self.extended(later.in_order(), place_of)
        if len(later) <= first:
            return self
        places: Map[int, tuple[Place, ...]] = Map()
        for number in range(len(later.places)):
            start = number * PAGE_SPLITS
            known = self.places.get(number, ())
            fresh = range(start + len(known), min(start + PAGE_SPLITS, len(later)))
            places = places.set(number, (*known, *(place_of(later.name_at(n)) for n in fresh)))
        return replace(later, places=places)

    def replaced(self, splits: Iterable[Split]) -> SplitTable:
        """The table with `splits` instead of those with the same ids. Raises KeyError."""
        by_page: dict[int, dict[int, Split]] = {}
        for split in splits:
            number, within = divmod(self.ordinals[split.split_id], PAGE_SPLITS)
            by_page.setdefault(number, {})[within] = split
        pages, tail = self.pages, self.tail
        for number, changed in by_page.items():
            page = pages.get(number)
            known = tail if page is None else page.splits()
            new = tuple(changed.get(within, split) for within, split in enumerate(known))
            if page is None:
                tail = new
            else:
                pages = pages.set(number, _page_of(new))
        return replace(self, pages=pages, tail=tail)

    def forgetting(self, names: Collection[str]) -> SplitTable:
        """The table with gaps instead of these splits. Costs as much as `names`, not as the table. Raises KeyError."""
        moved = self.moved(dict.fromkeys(names, FORGOTTEN))
        pages, places, ordinals = moved.pages, moved.places, moved.ordinals
        touched = {self.ordinals[name] // PAGE_SPLITS for name in names}
        for name in names:
            ordinals = ordinals.delete(name)
        for number in sorted(touched):
            if number in pages and all(map(is_gap, places[number])):
                pages, places = pages.delete(number), places.delete(number)
        return replace(moved, pages=pages, places=places, ordinals=ordinals)

    def moved(self, to: Mapping[str, Place]) -> SplitTable:
        """The table with these splits in other places. Raises KeyError."""
        changed: dict[int, list[Place]] = {}
        for name, place in to.items():
            number, within = divmod(self.ordinals[name], PAGE_SPLITS)
            if number not in changed:
                changed[number] = list(self.places[number])
            changed[number][within] = place
        places = self.places
        for number, page in changed.items():
            places = places.set(number, tuple(page))
        return replace(self, places=places)

    def with_enumerator(self, before: int) -> Iterator[int]:
        """Ordinals of the splits whose place is `WithEnumerator`, ascending, below `before`."""
        for number in sorted(n for n in self.places if n * PAGE_SPLITS < before):
            page = self.places[number]
            if _WITH_ENUMERATOR not in page:
                continue
            for within, place in enumerate(page):
                ordinal = number * PAGE_SPLITS + within
                if ordinal < before and isinstance(place, WithEnumerator):
                    yield ordinal


class SplitsByOrdinal(Protocol):
    """Known splits by their places in the order of discovery; forgotten ones leave gaps."""

    @property
    def ordinals(self) -> Mapping[str, int]:
        """Ordinals of the known splits by id."""
        ...

    @property
    def end(self) -> int:
        """Ordinal of the next split to be discovered."""
        ...

    def split_at(self, ordinal: int) -> Split:
        """The known split with this ordinal."""
        ...


@runtime_checkable
class PlacedSplits(Protocol):
    """Known splits of which each has a place. Any thread."""

    def is_finished(self, split_id: str) -> bool:
        """Whether the split was read to its end. Raises KeyError."""
        ...

    def is_committed(self, split_id: str) -> bool:
        """Whether the split was read to its end, and nothing can undo that. Raises KeyError."""
        ...


class SplitsInOrder(Sequence[Split]):
    """The splits of a table, each created at access: an iteration unpacks one page after the other. Any thread."""

    def __init__(self, table: SplitTable, chosen: Sequence[int] | None = None) -> None:
        self._table, self._given = table, chosen

    @property
    def _chosen(self) -> Sequence[int]:
        """Ordinals of the splits: computed at the first use, which may be on another thread than the table's."""
        if self._given is None:
            live = self._table.live()
            self._given = live if isinstance(live, range) else array("q", live)
        return self._given

    def __len__(self) -> int:
        return len(self._table) if self._given is None else len(self._given)

    @overload
    def __getitem__(self, index: int) -> Split: ...

    @overload
    def __getitem__(self, index: slice) -> SplitsInOrder: ...

    def __getitem__(self, index: int | slice) -> Split | SplitsInOrder:
        if isinstance(index, slice):
            return SplitsInOrder(self._table, self._chosen[index])
        return self._table.split_at(self._chosen[index])

    def place(self, split_id: str) -> Place:
        """Place of a split in the table. Raises KeyError."""
        return self._table.place(split_id)

    def is_finished(self, split_id: str) -> bool:
        """See `PlacedSplits`."""
        return isinstance(self.place(split_id), Finished)

    def is_committed(self, split_id: str) -> bool:
        """See `PlacedSplits`."""
        place = self.place(split_id)
        return isinstance(place, Finished) and place.sequence < 0

    def names(self) -> Iterator[str]:
        """Ids of the splits, without unpacking their contents."""
        return map(self._table.name_at, self._chosen)


def indexed(
    pages: Map[int, SplitPage],
    tail: tuple[Split, ...],
    places: Map[int, tuple[Place, ...]],
    page_count: int,
    like: SplitTable,
) -> SplitTable:
    """The table of these pages. Its index is made from that of `like`, so that equal parts are shared.

    Args:
        pages: Full pages by number.
        tail: Splits after the full pages.
        places: Places by number of page.
        page_count: Number of the tail's page.
        like: Another table.

    Raises:
        ValueError: The pages are inconsistent: a page is missing, an id is repeated, or the number of places is wrong.
    """
    sizes = dict.fromkeys(pages, PAGE_SPLITS) | ({page_count: len(tail)} if tail else {})
    if {number: len(page) for number, page in places.items()} != sizes:
        raise ValueError("its pages of splits and of places are inconsistent")
    ordinals = like.ordinals
    table = SplitTable(
        pages=pages, tail=tail, places=places, ordinals=ordinals, page_count=page_count
    )
    stale = [number for number in sorted(like.places) if not _is_same(table, like, number)]
    for number in stale:
        for ordinal in _known_on(like, number):
            ordinals = ordinals.delete(like.name_at(ordinal))
    fresh: dict[str, int] = {}
    count = len(ordinals)
    for number in sorted(places):
        if number not in like.places or not _is_same(table, like, number):
            known = _known_on(table, number)
            fresh.update({table.name_at(ordinal): ordinal for ordinal in known})
            count += len(known)
    ordinals = ordinals.update(fresh)
    if len(ordinals) != count:
        raise ValueError("its pages of splits and of places are inconsistent")
    return replace(table, ordinals=ordinals)


def _known_on(table: SplitTable, number: int) -> list[int]:
    """Ordinals of the known splits of a page."""
    places = table.places.get(number, ())
    return [n for n, place in enumerate(places, number * PAGE_SPLITS) if not is_gap(place)]


def _is_same(table: SplitTable, like: SplitTable, number: int) -> bool:
    """Whether both tables have the same names, and the same gaps, on a page."""
    page = table.pages.get(number)
    if page is None or page is not like.pages.get(number):
        return False
    ours, theirs = table.places[number], like.places[number]
    return ours is theirs or _known_on(table, number) == _known_on(like, number)
