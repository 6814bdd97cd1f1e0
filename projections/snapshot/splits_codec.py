"""Codec of the states of a source's splits in a snapshot: parts that states have in common are stored once.

A snapshot holds the newest state, and the state at the cut of each retained checkpoint. These have nearly the same
splits, and most splits are at the same place. So pages of splits and pages of places are numbered; each state is a list
of such numbers with the fields of its own. Fields that can be derived are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from immutables import Map

from coordlog.limits import SNAPSHOT_NAMES_BYTES_MAX
from coordlog.projections.operators.operator_projection import (
    OperatorProjection,
    StatesReader,
    StatesWriter,
)
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.projections.snapshot.codec import SnapshotTooLargeError
from coordlog.projections.splits.fold import ReaderState, SplitsState, apply_record, at_completion
from coordlog.projections.splits.relisting import (
    after_branch,
    after_end,
    after_reset,
    apply_listed,
)
from coordlog.projections.splits.table import Place, SplitPage, SplitTable, indexed, unpacked_page
from coordlog.schemas.builtin_types import SplitFinished, SplitSkipped
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import (
    AddSplits,
    EnumeratorState,
    KnownSplitsForgotten,
    ListingStarted,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
    SplitsReleased,
    SplitsWithdrawn,
)

__all__ = ["LISTED_SPLITS", "SPLITS", "SplitsCodec"]

T = TypeVar("T")
W = TypeVar("W", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackedPage:
    """A `SplitPage` in its packed form."""

    names: bytes
    contents: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacesPage:
    """Places of one page of splits."""

    distinct: tuple[Place, ...]
    """Distinct places, in the order of their first occurrence."""
    numbers: bytes
    """One byte for each split: index of its place in `distinct`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Parts that states refer to."""

    pages: tuple[_PackedPage, ...]
    tails: tuple[tuple[Split, ...], ...]
    places: tuple[_PlacesPage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """A state, with numbers of its shared parts."""

    pages: tuple[int, ...]
    tail: int
    places: tuple[int, ...]
    fresh_from: int
    is_discovery_complete: bool
    listed_before: int
    readers: Map[int, ReaderState]
    cuts: Map[int, int]
    last_cut: int
    skips: Map[str, None]
    enumerator_state: bytes | None
    parallelism: int | None


_SHARED: Final = DerivedCodec(_Shared)
_OWN: Final = DerivedCodec(_Own)


class SplitsCodec:
    """The `SharingCodec` of a source's splits."""

    fingerprint: str = f"{_SHARED.fingerprint}-{_OWN.fingerprint}"

    def writer(self, *, is_plain: bool = False) -> StatesWriter[SplitsState]:
        """Encodes the states of one snapshot."""
        return _Writer(is_plain=is_plain)

    def reader(self, shared: bytes) -> StatesReader[SplitsState]:
        """Decodes them."""
        return _Reader(shared)


class _Numbered(Generic[T, W]):
    """Distinct parts in their written form, numbered in order of arrival."""

    def __init__(self, written: Callable[[T], W]) -> None:
        self._written = written
        self._by_identity: dict[int, int] = {}
        self._by_value: dict[W, int] = {}
        self._alive: list[T] = []

    def number(self, part: T) -> int:
        known = self._by_identity.get(id(part))
        if known is None:
            known = self._by_value.setdefault(self._written(part), len(self._by_value))
            self._by_identity[id(part)] = known
            self._alive.append(part)  # an identity is unique only while the object lives
        return known

    def all(self) -> tuple[W, ...]:
        return tuple(self._by_value)


class _Writer:
    def __init__(self, *, is_plain: bool) -> None:
        self._is_plain = is_plain
        self._names_bytes: dict[_PackedPage, int] = {}
        self._pages: _Numbered[SplitPage, _PackedPage] = _Numbered(self._page)
        self._tails: _Numbered[tuple[Split, ...], tuple[Split, ...]] = _Numbered(lambda tail: tail)
        self._places: _Numbered[tuple[Place, ...], _PlacesPage] = _Numbered(_written_places)

    def _page(self, page: SplitPage) -> _PackedPage:
        if self._is_plain:
            return _PackedPage(
                names="\n".join(page.names).encode(), contents=page.unpacked_contents()
            )
        packed = _PackedPage(names=page.packed_names, contents=page.packed_contents)
        self._names_bytes[packed] = page.names_bytes
        return packed

    def own(self, state: SplitsState) -> bytes:
        table = state.splits
        own = _Own(
            pages=_with_runs(table.page_count, table.pages, self._pages.number),
            tail=self._tails.number(table.tail),
            places=_with_runs(
                table.page_count + bool(table.tail), table.places, self._places.number
            ),
            fresh_from=state.fresh_from,
            is_discovery_complete=state.is_discovery_complete,
            listed_before=state.listed_before,
            readers=state.readers,
            cuts=state.cuts,
            last_cut=state.last_cut,
            skips=state.skips,
            enumerator_state=state.enumerator_state,
            parallelism=state.parallelism,
        )
        return _OWN.encode(own)

    def shared(self) -> bytes:
        names_bytes = sum(self._names_bytes.values())
        if names_bytes > SNAPSHOT_NAMES_BYTES_MAX:
            raise SnapshotTooLargeError(
                "the list of all ids of splits", names_bytes, SNAPSHOT_NAMES_BYTES_MAX
            )
        return _SHARED.encode(
            _Shared(pages=self._pages.all(), tails=self._tails.all(), places=self._places.all())
        )


def _written_places(page: Sequence[Place]) -> _PlacesPage:
    by_identity: dict[int, int] = {}
    by_value: dict[Place, int] = {}
    for place in page:
        if id(place) not in by_identity:  # most are the same object: that of finished splits
            by_identity[id(place)] = by_value.setdefault(place, len(by_value))
    numbers = bytes([by_identity[id(place)] for place in page])
    return _PlacesPage(distinct=tuple(by_value), numbers=numbers)


def _with_runs(count: int, pages: Map[int, T], number_of: Callable[[T], int]) -> tuple[int, ...]:
    """Numbers of the parts of pages 0 to `count`; for n pages that are missing in a row, -n."""
    numbers: list[int] = []
    following = 0
    for number in sorted(pages):
        if following < number:
            numbers.append(following - number)
        numbers.append(number_of(pages[number]))
        following = number + 1
    if following < count:
        numbers.append(following - count)
    return tuple(numbers)


def _without_runs(numbers: Sequence[int], parts: Sequence[T]) -> tuple[Map[int, T], int]:
    """Pages by number, and the number of the page after the last: see `_with_runs`."""
    pages: dict[int, T] = {}
    count = 0
    for number in numbers:
        if number < 0:
            count -= number
        else:
            pages[count] = _at(parts, number)
            count += 1
    return Map(pages), count


class _Reader:
    def __init__(self, data: bytes) -> None:
        shared = _SHARED.decode(data)
        bytes_left = SNAPSHOT_NAMES_BYTES_MAX
        self._pages: list[SplitPage] = []
        for packed in shared.pages:
            page = unpacked_page(packed.names, packed.contents, bytes_left)
            bytes_left -= page.names_bytes
            self._pages.append(page)
        self._tails = shared.tails
        self._places = [_read_places(page) for page in shared.places]
        self._like = SplitTable()

    def state(self, own: bytes) -> SplitsState:
        fields = _OWN.decode(own)
        pages, page_count = _without_runs(fields.pages, self._pages)
        places, _ = _without_runs(fields.places, self._places)
        tail = _at(self._tails, fields.tail)
        table = indexed(pages, tail, places, page_count, self._like)
        self._like = table
        if not 0 <= fields.fresh_from <= table.end:
            raise ValueError(f"its first fresh split is {fields.fresh_from} of {table.end}")
        return SplitsState(
            splits=table,
            fresh_from=fields.fresh_from,
            passed_over=Map(dict.fromkeys(table.with_enumerator(fields.fresh_from))),
            is_discovery_complete=fields.is_discovery_complete,
            listed_before=fields.listed_before,
            readers=fields.readers,
            cuts=fields.cuts,
            last_cut=fields.last_cut,
            skips=fields.skips,
            enumerator_state=fields.enumerator_state,
            parallelism=fields.parallelism,
        )


def _at(parts: Sequence[T], number: int) -> T:
    if not 0 <= number < len(parts):
        raise ValueError(f"it refers to part {number} of {len(parts)}")
    return parts[number]


def _read_places(page: _PlacesPage) -> tuple[Place, ...]:
    return tuple(_at(page.distinct, number) for number in page.numbers)


_READS: Final[tuple[type[Payload], ...]] = (
    AddSplits,
    NoMoreSplits,
    RequestSplit,
    SplitsDiscovered,
    ListingStarted,
    EnumeratorState,
    SplitsWithdrawn,
    SplitFinished,
    SplitSkipped,
)

SPLITS: Final[OperatorProjection[SplitsState]] = OperatorProjection(
    name="coordlog.splits",
    version=1,
    initial=SplitsState(),
    apply=apply_record,
    codec=SplitsCodec(),
    at_completion=at_completion,
    reads=_READS,
)

LISTED_SPLITS: Final[OperatorProjection[SplitsState]] = OperatorProjection(
    name="coordlog.splits",
    version=2,
    initial=SplitsState(),
    apply=apply_listed,
    codec=SplitsCodec(),
    goes_on_from=(SPLITS.version,),
    at_completion=at_completion,
    after_reset=after_reset,
    after_branch=after_branch,
    after_end=after_end,
    reads=(*_READS, KnownSplitsForgotten, SplitsReleased),
)
"""Projection of a source that can be listed again: splits of an earlier listing stay known (clause L6)."""
