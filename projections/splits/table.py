"""The splits that a source knows, in the order of discovery, with the place of each: immutable, in pages.

A source may have a million. So what is known of them stands once: a full page is packed when it is full, never changes
again, and is the same object in every state that has it; a place that changes makes one page of places anew. What is
found by a name is found by an index, which no snapshot holds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, cast, overload

from immutables import Map

from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.schemas.codec import Avro
from coordlog.schemas.source_events import Split

__all__ = [
    "PAGE_SPLITS",
    "Assigned",
    "Finished",
    "KnownSplit",
    "Place",
    "Skipped",
    "SplitPage",
    "SplitTable",
    "SplitsInOrder",
    "WithEnumerator",
    "indexed",
    "unpacked_page",
]

PAGE_SPLITS: Final = 256
"""Of a full page: a change of one place copies so many references."""

_PAGE_BYTES_MAX: Final = PAGE_SPLITS * PAYLOAD_BYTES_MAX
_COMPRESSION: Final = 6
"""4 µs a split, once; a snapshot has a seventh less than with the quickest."""
_NAMES: Final = Avro(
    '{"type":"record","name":"Names","fields":[{"name":"names","type":{"type":"array","items":"string"}}]}'
)
_CONTENTS: Final = Avro(
    '{"type":"record","name":"Contents","fields":[{"name":"contents","type":{"type":"array","items":"bytes"}}]}'
)


# --- places -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class WithEnumerator:
    """Not assigned to anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """In an `AddSplits` to a subtask: on its way, with its reader, or finished unheard.

    The last where the subtask has completed without naming the split, and after a
    `RESET_TO_CHECKPOINT(n)` for a split that was read to its end between the coordinator's cut of n
    and the subtask's barrier of n: no record says so again.
    """

    subtask: int
    sequence: int
    """Of the `EVENT_TO_SUBTASK`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Read to its end."""

    subtask: int
    sequence: int
    """Of the `EVENT_TO_SUBTASK` that had assigned it; -1 once no failover undoes its end."""
    last_barrier: int
    """The last barrier that the attempt had passed then; -1 likewise."""
    is_kept: bool
    """Batch: all its rows are in committables, so that it stays finished (clause L4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Not read, or not any further: for good, whatever is reset (clause J2)."""

    subtask: int | None = None
    """Which had it; None where no rows of it are left anywhere."""
    sequence: int = -1
    """Of the `EVENT_TO_SUBTASK` that had assigned it."""
    last_barrier: int | None = None
    """The last barrier that its reader had passed when it let go of it; None until it has."""
    rows: int | None = 0
    """Its rows that stay, from the first on; None until its reader says."""


Place = WithEnumerator | Assigned | Finished | Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSplit:
    """A split that has been discovered."""

    ordinal: int
    """Its place in the order of discovery, 0 first."""
    split: Split
    place: Place = field(default_factory=WithEnumerator)


# --- pages ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitPage:
    """`PAGE_SPLITS` splits: their ids, and packed what else there is. Equal where they hold equal splits."""

    names: tuple[str, ...]
    names_bytes: int
    """Of the packed names, once they are unpacked: what a reader of snapshots bounds."""
    packed_names: bytes
    packed_contents: bytes

    def splits(self) -> tuple[Split, ...]:
        """All of them; those of the pages asked for last are at hand."""
        return _opened(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SplitPage):
            return NotImplemented
        if self is other:
            return True
        if self.names != other.names:
            return False
        # Two releases of zlib may pack the same otherwise.
        return (
            self.packed_contents == other.packed_contents
            or self.unpacked_contents() == other.unpacked_contents()
        )

    def __hash__(self) -> int:
        return hash(self.names[0])

    def unpacked_contents(self) -> bytes:
        """The contents, encoded: the same for equal pages, whoever has packed them."""
        plain_names = _unpacked(self.packed_names, _PAGE_BYTES_MAX)
        return _unpacked(self.packed_contents, _PAGE_BYTES_MAX, dictionary=plain_names)


def _page_of(splits: Sequence[Split]) -> SplitPage:
    names = [one.split_id for one in splits]
    plain_names = _NAMES.encode({"names": list(names)})
    # Contents tend to hold the names again.
    packer = zlib.compressobj(_COMPRESSION, zdict=plain_names)
    contents = _CONTENTS.encode({"contents": [one.content for one in splits]})
    return SplitPage(
        names=tuple(names),
        names_bytes=len(plain_names),
        packed_names=zlib.compress(plain_names, _COMPRESSION),
        packed_contents=packer.compress(contents) + packer.flush(),
    )


def unpacked_page(packed_names: bytes, packed_contents: bytes, names_bytes_max: int) -> SplitPage:
    """A page of a snapshot. Its contents are looked at when they are wanted.

    Raises:
        ValueError: These are no packed ids, or more bytes of them than are allowed.
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
        # One more than allowed: 0 means no bound to zlib, and it sees an end only with room behind it.
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
    """Every split that is known, by its id; iterates in the order of discovery. Any thread."""

    pages: Map[int, SplitPage] = field(default_factory=Map)
    """By number, 0 first: the full ones."""
    tail: tuple[Split, ...] = ()
    """Those after them, less than a page of them."""
    places: Map[int, tuple[Place, ...]] = field(default_factory=Map)
    """By number of page, the tail's last."""
    ordinals: Map[str, int] = field(default_factory=Map)
    """By split id: follows from the rest."""

    def __len__(self) -> int:
        return len(self.ordinals)

    def __iter__(self) -> Iterator[str]:
        return (self.name_at(ordinal) for ordinal in range(len(self)))

    def __contains__(self, split_id: object) -> bool:
        return split_id in self.ordinals

    def __getitem__(self, split_id: str) -> KnownSplit:
        ordinal = self.ordinals[split_id]
        return KnownSplit(
            ordinal=ordinal, split=self.split_at(ordinal), place=self.place_at(ordinal)
        )

    def ordinal(self, split_id: str) -> int:
        """Its place in the order of discovery. Raises KeyError."""
        return self.ordinals[split_id]

    def place(self, split_id: str) -> Place:
        """Where it is: cheaper than the whole of it. Raises KeyError."""
        return self.place_at(self.ordinals[split_id])

    def place_at(self, ordinal: int) -> Place:
        """The same, by its place in the order of discovery."""
        page, within = divmod(ordinal, PAGE_SPLITS)
        return self.places[page][within]

    def name_at(self, ordinal: int) -> str:
        """The id of the split at a place in the order of discovery."""
        page, within = divmod(ordinal, PAGE_SPLITS)
        full = self.pages.get(page)
        return self.tail[within].split_id if full is None else full.names[within]

    def split_at(self, ordinal: int) -> Split:
        """The split there."""
        page, within = divmod(ordinal, PAGE_SPLITS)
        full = self.pages.get(page)
        return self.tail[within] if full is None else full.splits()[within]

    def in_order(self) -> SplitsInOrder:
        """All of them, in the order of discovery."""
        return SplitsInOrder(self)

    def extended(self, found: Iterable[Split], place_of: Callable[[str], Place]) -> SplitTable:
        """With those of `found` that are not known yet, in their order, each in the place that `place_of` says."""
        pages, tail, places = self.pages, list(self.tail), self.places
        tail_places = list(places.get(len(pages), ()))
        fresh: dict[str, int] = {}
        for one in found:
            if one.split_id in self.ordinals or one.split_id in fresh:
                continue
            fresh[one.split_id] = len(self) + len(fresh)
            tail.append(one)
            tail_places.append(place_of(one.split_id))
            if len(tail) == PAGE_SPLITS:
                number = len(pages)
                page = _page_of(tail)
                pages, places = pages.set(number, page), places.set(number, tuple(tail_places))
                tail, tail_places = [], []
        if not fresh:
            return self
        if tail:
            places = places.set(len(pages), tuple(tail_places))
        ordinals = self.ordinals.update(fresh)
        return SplitTable(pages=pages, tail=tuple(tail), places=places, ordinals=ordinals)

    def shortened(self, count: int) -> SplitTable:
        """The first `count` of them."""
        ordinals = self.ordinals
        for ordinal in range(count, len(self)):
            ordinals = ordinals.delete(self.name_at(ordinal))
        full, left = divmod(count, PAGE_SPLITS)
        last = self.pages.get(full)
        tail = (self.tail if last is None else last.splits())[:left]
        pages, places = self.pages, self.places
        for number in range(full, len(pages)):
            pages = pages.delete(number)
        for number in range(full, len(self.places)):
            kept = places[number][:left] if number == full else ()
            places = places.set(number, kept) if kept else places.delete(number)
        return SplitTable(pages=pages, tail=tail, places=places, ordinals=ordinals)

    def continued(self, later: SplitTable, place_of: Callable[[str], Place]) -> SplitTable:
        """With the splits that `later` has beside these, in its order, each in the place that `place_of` says.

        Shares the pages of `later`, unless that is no longer an extension of this one.
        """
        first = len(self)
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
        """With these splits in the place of those that have their ids. Raises KeyError."""
        by_page: dict[int, dict[int, Split]] = {}
        for one in splits:
            number, within = divmod(self.ordinals[one.split_id], PAGE_SPLITS)
            by_page.setdefault(number, {})[within] = one
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

    def without(self, names: Collection[str]) -> SplitTable:
        """Without these splits: those behind them move up in the order of discovery."""
        left = frozenset(names)
        ordinals = [self.ordinals[name] for name in left if name in self.ordinals]
        if not ordinals:
            return self
        first = min(ordinals)
        kept = [self.split_at(n) for n in range(first, len(self)) if self.name_at(n) not in left]
        return self.shortened(first).extended(kept, self.place)

    def moved(self, to: Mapping[str, Place]) -> SplitTable:
        """With these splits in other places. Raises KeyError."""
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
        """The places in the order of discovery, below `before`, of those that nobody has, rising."""
        for number in range(-(-before // PAGE_SPLITS)):
            page = self.places[number]
            if _WITH_ENUMERATOR not in page:
                continue
            for within, place in enumerate(page):
                ordinal = number * PAGE_SPLITS + within
                if ordinal < before and isinstance(place, WithEnumerator):
                    yield ordinal


class SplitsInOrder(Sequence[Split]):
    """A table's splits, made when they are asked for: one pass opens one page after the other. Any thread."""

    def __init__(self, table: SplitTable, chosen: range | None = None) -> None:
        self._table = table
        self._chosen = range(len(table)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> Split: ...

    @overload
    def __getitem__(self, index: slice) -> SplitsInOrder: ...

    def __getitem__(self, index: int | slice) -> Split | SplitsInOrder:
        if isinstance(index, slice):
            return SplitsInOrder(self._table, self._chosen[index])
        return self._table.split_at(self._chosen[index])


def indexed(
    pages: Map[int, SplitPage],
    tail: tuple[Split, ...],
    places: Map[int, tuple[Place, ...]],
    like: SplitTable,
) -> SplitTable:
    """The table of these pages. Its index shares with that of `like` what the two have in common.

    Raises:
        ValueError: They do not make one: a page is missing, a place too many, an id twice.
    """
    same = 0
    while same < len(pages) and like.pages.get(same) is pages.get(same):
        same += 1
    first = same * PAGE_SPLITS
    names = [name for number in range(same, len(pages)) for name in pages[number].names]
    names += [one.split_id for one in tail]
    ordinals = like.ordinals
    if [like.name_at(one) for one in range(first, len(like))] != names:
        for ordinal in range(first, len(like)):
            ordinals = ordinals.delete(like.name_at(ordinal))
        ordinals = ordinals.update({name: first + n for n, name in enumerate(names)})
    count = len(pages) * PAGE_SPLITS + len(tail)
    sizes = [PAGE_SPLITS] * len(pages) + ([len(tail)] if tail else [])
    if len(ordinals) != count or [len(places[n]) for n in range(len(places))] != sizes:
        raise ValueError("its pages of splits and of places do not fit together")
    return SplitTable(pages=pages, tail=tail, places=places, ordinals=ordinals)
