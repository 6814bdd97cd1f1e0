"""The place of each split of a source, as a fold of the source's records (L3, L4, L5, D5: places, failovers).

A split is in one place at a time: with the enumerator, assigned to a subtask, finished, or skipped.
Open requests of readers are stored here too, so that the log is the only memory.

Two positions decide which records a failover to checkpoint n undoes. A record of the coordinator is
part of n if it is before the coordinator's cut of n. A record of a subtask is part of n if its
`last_barrier` is below n.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import gt, itemgetter
from typing import TypeVar

from immutables import Map

from coordlog.projections.splits.table import (
    Assigned,
    Finished,
    KnownSplit,
    Place,
    Skipped,
    SplitsInOrder,
    SplitTable,
    WithEnumerator,
    is_gap,
)
from coordlog.schemas.builtin_types import SplitFinished, SplitSkipped
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record
from coordlog.schemas.source_types import (
    AddSplits,
    EnumeratorState,
    ListingStarted,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
)

__all__ = [
    "Assigned",
    "Finished",
    "KnownSplit",
    "Place",
    "ReaderState",
    "Request",
    "Skipped",
    "SplitsState",
    "WithEnumerator",
    "apply_record",
    "at_completion",
]

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A reader's `RequestSplit` that is open, or whose answer no completed checkpoint holds."""

    sequence: int
    last_barrier: int
    answered: int | None = None
    """Sequence of the `AddSplits` or `NoMoreSplits` for it, or None if the request is open."""


@dataclass(frozen=True, kw_only=True)
class ReaderState:
    """Splits and requests of one subtask."""

    attempt_number: int | None = None
    """Number of the live attempt."""
    is_completed: bool = False
    splits: tuple[str, ...] = ()
    """Ids of assigned splits that a failover may undo, in the order of assignment."""
    requests: tuple[Request, ...] = ()
    """Requests in log order. An answered one stays until a completed checkpoint holds its answer."""
    no_more_sequence: int | None = None
    """Sequence of the `NoMoreSplits` to the live attempt, or None."""
    has_no_more_in_checkpoint: bool = False
    """Whether the last completed checkpoint holds a `NoMoreSplits`: later attempts need it again (L5: repeat end)."""
    given_back: tuple[str, ...] = ()
    """Ids of splits released by its last reset, oldest assignment first; until an attempt starts."""

    @property
    def owed(self) -> int:
        """Number of open requests."""
        return len(self.open_requests)

    @property
    def open_requests(self) -> tuple[Request, ...]:
        """Requests without an answer so far, in log order."""
        return self.requests[_first_open(self.requests) :]

    @property
    def has_no_more(self) -> bool:
        """Whether a `NoMoreSplits` was sent to the live attempt, or is in its checkpoint."""
        return self.has_no_more_in_checkpoint or self.no_more_sequence is not None


@dataclass(frozen=True, kw_only=True)
class SplitsState:
    """The whole state of a source. Only `apply_record` and snapshots create it."""

    splits: SplitTable = field(default_factory=SplitTable)
    """Known splits by id; iterates in the order of discovery."""
    fresh_from: int = 0
    """Ordinal from which on every split is with the enumerator, or skipped."""
    passed_over: Map[int, None] = field(default_factory=Map)
    """Ordinals below `fresh_from` with the enumerator: released, or passed over. Derived from the other fields."""
    is_discovery_complete: bool = False
    listed_before: int = 0
    """Ordinal of the first split that was listed in this opening of the job: rows of earlier ones are committed."""
    readers: Map[int, ReaderState] = field(default_factory=Map)
    """Reader states by subtask; subtasks without records are missing: use `reader`."""
    cuts: Map[int, int] = field(default_factory=Map)
    """Sequence of this coordinator's cut, by pending checkpoint."""
    last_cut: int = -1
    """Sequence of the cut of the last completed checkpoint; after a reset, of the reset."""
    skips: Map[str, None] = field(default_factory=Map)
    """Ids of skipped splits, also of those that no listing has found (again) yet."""
    enumerator_state: bytes | None = None
    """State that the enumerator recorded itself."""
    parallelism: int | None = None
    """Parallelism of the last rescaling reset: records of removed subtasks belong to others (E7: rescaling)."""

    def reader(self, subtask: int) -> ReaderState:
        """The state of one subtask."""
        return self.readers.get(subtask, _NEW_READER)

    def is_unassigned(self, split_id: str) -> bool:
        """Whether the split is known and with the enumerator."""
        return split_id in self.splits and isinstance(self.splits.place(split_id), WithEnumerator)

    def skipped(self) -> frozenset[str]:
        """The ids of skipped splits (J2: skip poison)."""
        return frozenset(self.skips)

    def unassigned(self, count: int | None = None) -> tuple[str, ...]:
        """Ids of the first `count`, or all, splits with the enumerator, in the order of discovery."""
        return tuple(self.splits.name_at(ordinal) for ordinal in self._unassigned(count))

    def unassigned_splits(self, count: int | None = None) -> tuple[Split, ...]:
        """The first `count`, or all, splits with the enumerator, in the order of discovery."""
        return tuple(self.splits.split_at(ordinal) for ordinal in self._unassigned(count))

    def _unassigned(self, count: int | None) -> Iterator[int]:
        splits = self.splits
        fresh = (
            ordinal
            for ordinal in splits.live(self.fresh_from)
            if isinstance(splits.place_at(ordinal), WithEnumerator)
        )
        # There may be many if an enumerator does not assign in the order of discovery.
        known = self.passed_over
        passed_over = sorted(known) if count is None else heapq.nsmallest(count, known)
        return itertools.islice(itertools.chain(passed_over, fresh), count)

    def is_committed(self, ordinal: int, checkpoint_id: int) -> bool:
        """Whether this completed checkpoint, the last one, has every row of this split."""
        place = self.splits.place_at(ordinal)
        if not isinstance(place, Finished) or is_gap(place):
            return False
        if place.sequence < 0 or ordinal < self.listed_before:
            return True
        # The end of a subtask is its ack of each checkpoint that waits for it, also of one that was cut before.
        return self.reader(place.subtask).is_completed and _is_over_before(place, checkpoint_id)

    @property
    def waiting_count(self) -> int:
        """Number of the splits with the enumerator: neither assigned, finished nor skipped."""
        fresh = self.splits.live(self.fresh_from)
        waiting = sum(isinstance(self.splits.place_at(n), WithEnumerator) for n in fresh)
        return len(self.passed_over) + waiting

    def in_order(self) -> SplitsInOrder:
        """All known splits, in the order of discovery."""
        return self.splits.in_order()


_NEW_READER = ReaderState()
_WITH_ENUMERATOR = WithEnumerator()


def _with_reader(state: SplitsState, subtask: int, reader: ReaderState) -> SplitsState:
    return evolve(state, readers=state.readers.set(subtask, reader))


def _required(value: int | None) -> int:
    assert value is not None, "the kind has this field"
    return value


def _in_order(mapping: Map[int, V]) -> list[tuple[int, V]]:
    return sorted(mapping.items(), key=itemgetter(0))


def apply_record(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    """The state after one more record that counts."""
    match record.kind:
        case Kind.FACT:
            return _fact(state, record, value)
        case Kind.EVENT_TO_COORDINATOR:
            return _requested(state, record) if isinstance(value, RequestSplit) else state
        case Kind.EVENT_TO_SUBTASK:
            return _sent(state, record, value)
        case Kind.SPLIT_FINISHED:
            return _finished(state, record, value)
        case Kind.COORDINATOR_CHECKPOINTED:
            cuts = state.cuts.set(_required(record.checkpoint_id), _required(record.sequence))
            return evolve(state, cuts=cuts)
        case Kind.CHECKPOINT_COMPLETED:
            return _completed(state, record)
        case Kind.CHECKPOINT_ABORTED:
            checkpoint_id = _required(record.checkpoint_id)
            if checkpoint_id not in state.cuts:
                return state
            return evolve(state, cuts=state.cuts.delete(checkpoint_id))
        case Kind.ATTEMPT_STARTED:
            reader = state.reader(_required(record.subtask))
            started = evolve(reader, attempt_number=record.attempt_number, given_back=())
            return _with_reader(state, _required(record.subtask), started)
        case Kind.ATTEMPT_FAILED:
            reader = state.reader(_required(record.subtask))
            over = evolve(reader, attempt_number=None)
            return _with_reader(state, _required(record.subtask), over)
        case Kind.SUBTASK_RESET:
            return _subtask_reset(state, record)
        case Kind.SUBTASK_COMPLETED:
            return _subtask_completed(state, record)
        case Kind.RESET_TO_CHECKPOINT:
            return _reset_to_checkpoint(state, record)
        case Kind.COORDINATORS_STARTED:
            return _opened_again(state, record)
        case _:
            return state


def _fact(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    if record.attributes.get("closed") == "true":
        return state  # for a closed coordinator (A6: recorded only)
    if isinstance(value, SplitsDiscovered):
        return _discovered(state, value)
    if isinstance(value, ListingStarted):
        return _listing_started(state)
    if isinstance(value, SplitSkipped):
        return _skipped(state, record, value)
    if isinstance(value, EnumeratorState):
        return evolve(state, enumerator_state=value.content)
    return state


def _discovered(state: SplitsState, value: SplitsDiscovered) -> SplitsState:
    """Add unknown splits: a repeated listing finds the same splits again."""

    def place_of(split_id: str) -> Place:
        return Skipped() if split_id in state.skips else _WITH_ENUMERATOR

    return evolve(
        state,
        splits=state.splits.extended(value.splits, place_of),
        is_discovery_complete=state.is_discovery_complete or value.is_complete,
    )


def _listing_started(state: SplitsState) -> SplitsState:
    """Remove the splits of a listing that its driver could not end.

    If a split is assigned the listing was a watch, of which each page is valid by itself.
    """
    first = state.listed_before
    if state.is_discovery_complete or state.fresh_from > first or state.splits.end <= first:
        return state
    return evolve(state, splits=state.splits.shortened(first))


def _opened_again(state: SplitsState, record: Record) -> SplitsState:
    """Prepare a new listing after a reopening of the job; known splits keep their places."""
    return evolve(
        state,
        is_discovery_complete=False,
        listed_before=state.splits.end,
        readers=Map(),
        cuts=Map(),
        last_cut=_required(record.sequence),
        parallelism=None,
    )


def _requested(state: SplitsState, record: Record) -> SplitsState:
    subtask = _required(record.subtask)
    if state.parallelism is not None:
        subtask %= state.parallelism  # a redelivered event of a removed subtask
    reader = state.reader(subtask)
    if reader.no_more_sequence is not None:
        return state  # the request crossed the answer, which remains valid
    if reader.is_completed:
        return state  # a redelivered one, of a reader that ended between the cut and its barrier
    request = Request(
        sequence=_required(record.sequence), last_barrier=_required(record.last_barrier)
    )
    return _with_reader(state, subtask, evolve(reader, requests=(*reader.requests, request)))


def _sent(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    subtask, sequence = _required(record.subtask), _required(record.sequence)
    reader = state.reader(subtask)
    if isinstance(value, NoMoreSplits):
        requests = _answered(reader.requests, sequence, len(reader.requests))
        ended = evolve(reader, requests=requests, no_more_sequence=sequence)
        return _with_reader(state, subtask, ended)
    if not isinstance(value, AddSplits):
        return state
    names = [split.split_id for split in value.splits]
    state = _assigned(state, names, Assigned(subtask=subtask, sequence=sequence))
    reader = evolve(
        reader,
        splits=(*reader.splits, *names),
        requests=_answered(reader.requests, sequence, len(names)),
    )
    return _with_reader(state, subtask, reader)


def _assigned(state: SplitsState, names: Sequence[str], place: Assigned) -> SplitsState:
    splits, fresh_from, passed_over = state.splits, state.fresh_from, state.passed_over
    for name in names:
        ordinal = splits.ordinal(name)
        assert isinstance(splits.place_at(ordinal), WithEnumerator), (
            f"split {name!r} is assigned already"
        )
        if ordinal < fresh_from:
            passed_over = passed_over.delete(ordinal)
            continue
        for other in itertools.takewhile(partial(gt, ordinal), splits.live(fresh_from)):
            if isinstance(splits.place_at(other), WithEnumerator):
                passed_over = passed_over.set(other, None)
        fresh_from = ordinal + 1
    moved = splits.moved(dict.fromkeys(names, place))
    return evolve(state, splits=moved, fresh_from=fresh_from, passed_over=passed_over)


def _answered(requests: tuple[Request, ...], sequence: int, count: int) -> tuple[Request, ...]:
    """The requests, with the oldest `count` open ones answered at `sequence`."""
    first = _first_open(requests)
    oldest = requests[first : first + count]
    answered = tuple(replace(request, answered=sequence) for request in oldest)
    return (*requests[:first], *answered, *requests[first + count :])


def _first_open(requests: tuple[Request, ...]) -> int:
    """Index of the oldest open request, or the number of requests if none is open.

    The oldest are answered first, so the open ones are at the end: search from there.
    """
    first = len(requests)
    while first and requests[first - 1].answered is None:
        first -= 1
    return first


def _finished(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    assert isinstance(value, SplitFinished), "the kind has this payload"
    split_id = value.split_id
    place_before = state.splits.place(split_id) if split_id in state.splits else None
    if not isinstance(place_before, Assigned) or place_before.subtask != record.subtask:
        return state  # a reader's own split, which was not assigned
    if "kept" in record.attributes:
        state = _without_answered(state, place_before.subtask)
    if record.attributes.get("kept") != "true":
        place = Finished(
            subtask=place_before.subtask,
            sequence=place_before.sequence,
            last_barrier=_required(record.last_barrier),
            is_kept=False,
        )
        return evolve(state, splits=state.splits.moved({split_id: place}))
    # Only a batch job keeps splits, and its resets go back to the start: no failover undoes the end.
    reader = state.reader(place_before.subtask)
    others = tuple(name for name in reader.splits if name != split_id)
    state = _with_reader(state, place_before.subtask, evolve(reader, splits=others))
    over = _over(place_before.subtask, is_kept=True)
    return evolve(state, splits=state.splits.moved({split_id: over}))


def _without_answered(state: SplitsState, subtask: int) -> SplitsState:
    """The state without answered requests, in batch: resets go back to the start, and no checkpoint removes them."""
    reader = state.reader(subtask)
    still_open = reader.requests[_first_open(reader.requests) :]
    if len(still_open) == len(reader.requests):
        return state
    return _with_reader(state, subtask, evolve(reader, requests=still_open))


@lru_cache(maxsize=1_024)
def _over(subtask: int, *, is_kept: bool = False) -> Finished:
    """Place of splits that are finished for good: one object for all splits of a subtask."""
    return Finished(subtask=subtask, sequence=-1, last_barrier=-1, is_kept=is_kept)


def _skipped(state: SplitsState, record: Record, value: SplitSkipped) -> SplitsState:
    """Skip a split, when it is recorded and again at each `RESET_TO_CHECKPOINT`; rows read before stay."""
    state = evolve(state, skips=state.skips.set(value.split_id, None))
    if value.split_id not in state.splits:
        return state
    ordinal = state.splits.ordinal(value.split_id)
    place = state.splits.place_at(ordinal)
    passed_over = state.passed_over
    match place:
        case WithEnumerator():
            place = Skipped()
            if ordinal in passed_over:
                passed_over = passed_over.delete(ordinal)
        case Assigned():
            place = Skipped(
                subtask=place.subtask,
                sequence=place.sequence,
                last_barrier=record.last_barrier,
                rows=value.rows,
            )
        case Skipped() if place.subtask is not None and record.last_barrier is not None:
            place = replace(place, last_barrier=record.last_barrier, rows=value.rows)
        case Skipped() | Finished():
            return state
    return evolve(
        state,
        splits=state.splits.moved({value.split_id: place}),
        passed_over=passed_over,
    )


def _completed(state: SplitsState, record: Record) -> SplitsState:
    """Remove the data to undo records of the checkpoint: no local failover undoes them any more."""
    checkpoint_id = _required(record.checkpoint_id)
    cut = state.cuts.get(checkpoint_id, state.last_cut)
    readers, over = state.readers, dict[str, Place]()
    for subtask, reader in _in_order(readers):
        still_open = []
        for name in reader.splits:
            place = state.splits.place(name)
            if not _is_over_before(place, checkpoint_id):
                still_open.append(name)
            elif isinstance(place, Finished):
                over[name] = _over(place.subtask)
        changed = evolve(
            reader,
            splits=tuple(still_open),
            requests=tuple(
                request
                for request in reader.requests
                if request.answered is None or request.answered > cut
            ),
            has_no_more_in_checkpoint=reader.has_no_more_in_checkpoint
            or (reader.no_more_sequence is not None and reader.no_more_sequence < cut),
        )
        if changed != reader:
            readers = readers.set(subtask, changed)
    cuts = state.cuts
    for older, _ in _in_order(cuts):
        if older <= checkpoint_id:
            cuts = cuts.delete(older)
    splits = state.splits.moved(over) if over else state.splits
    return evolve(state, splits=splits, readers=readers, cuts=cuts, last_cut=cut)


def _is_over_before(place: Place, checkpoint_id: int) -> bool:
    """Whether no reader restored from the checkpoint has the split."""
    if not isinstance(place, (Finished, Skipped)) or place.last_barrier is None:
        return False
    return place.last_barrier < checkpoint_id


def _subtask_reset(state: SplitsState, record: Record) -> SplitsState:
    """Apply a local failover to n: splits assigned after the cut of n are released, oldest first (L4)."""
    subtask, checkpoint_id = _required(record.subtask), _required(record.checkpoint_id)
    reader = state.reader(subtask)
    kept: list[str] = []
    given_back: list[str] = []
    moved: dict[str, Place] = {}
    for name in reader.splits:
        place = state.splits.place(name)
        assert not isinstance(place, WithEnumerator), "it is with this subtask"
        if place.sequence > state.last_cut:
            if isinstance(place, Skipped):
                moved[name] = Skipped()
                continue
            given_back.append(name)
            moved[name] = _WITH_ENUMERATOR
            continue
        kept.append(name)
        if isinstance(place, Finished) and place.last_barrier >= checkpoint_id:
            # Finished after the barrier of n: the restored reader has the split again.
            moved[name] = Assigned(subtask=subtask, sequence=place.sequence)
        elif isinstance(place, Skipped) and not _is_over_before(place, checkpoint_id):
            # The restored reader has the split, receives the skip, and records its rows.
            moved[name] = replace(place, last_barrier=None, rows=None)
    reader = evolve(
        reader,
        attempt_number=None,
        splits=tuple(kept),
        requests=_requested_before(reader.requests, checkpoint_id, state.last_cut),
        no_more_sequence=None,
        given_back=tuple(given_back),
    )
    state = _with_reader(state, subtask, reader)
    splits = state.splits.moved(moved)
    passed_over = state.passed_over.update({splits.ordinal(name): None for name in given_back})
    return evolve(state, splits=splits, passed_over=passed_over)


def _requested_before(
    requests: tuple[Request, ...], checkpoint_id: int, cut: int
) -> tuple[Request, ...]:
    """The requests that are part of the checkpoint; answers after its cut are undone (D5: lost events)."""
    return tuple(
        replace(request, answered=None)
        if request.answered is not None and request.answered > cut
        else request
        for request in requests
        if request.last_barrier < checkpoint_id
    )


def _subtask_completed(state: SplitsState, record: Record) -> SplitsState:
    """Drop splits and requests of a completed subtask: it is never reset alone, so none is released."""
    subtask = _required(record.subtask)
    over = evolve(
        state.reader(subtask), attempt_number=None, is_completed=True, splits=(), requests=()
    )
    return _with_reader(state, subtask, over)


def _reset_to_checkpoint(state: SplitsState, record: Record) -> SplitsState:
    """Adapt the state of the cut of n: all attempts are over, all assignments are part of n."""
    sequence = _required(record.sequence)
    if _required(record.checkpoint_id) == NO_CHECKPOINT:
        return evolve(state, last_cut=sequence)
    parallelism = record.attributes.get("parallelism")
    if parallelism is not None:
        state = _rescaled(state, int(parallelism))
    readers = state.readers
    for subtask, reader in _in_order(readers):
        reset = evolve(
            reader,
            attempt_number=None,
            requests=tuple(request for request in reader.requests if request.answered is None),
            no_more_sequence=None,
            has_no_more_in_checkpoint=reader.has_no_more,
            given_back=(),
        )
        readers = readers.set(subtask, reset)
    return evolve(state, readers=readers, cuts=Map(), last_cut=sequence)


def at_completion(
    checkpoint_id: int, finished: Collection[int], now: SplitsState, cut: SplitsState
) -> SplitsState:
    """The state of a completed checkpoint: that of its cut, with what the readers did before their barriers.

    The checkpoint has the rows of the splits that ended there, and no restored reader has these splits. A reader that
    ended there has no splits and no requests.

    Args:
        checkpoint_id: The checkpoint.
        finished: Subtasks that have finished in it.
        now: State at its completion.
        cut: State at its cut.
    """
    moved: dict[str, Place] = {}
    for name in (name for _, reader in _in_order(cut.readers) for name in reader.splits):
        place = cut.splits.place(name)
        end = now.splits.place(name) if name in now.splits else None
        is_over = isinstance(end, Finished) and _is_over_before(end, checkpoint_id)
        if is_over and isinstance(place, Assigned):
            moved[name] = Finished(
                subtask=place.subtask,
                sequence=place.sequence,
                last_barrier=NO_CHECKPOINT,
                is_kept=False,
            )
    readers = cut.readers
    for subtask in sorted(finished):
        if cut.reader(subtask) != now.reader(subtask):
            readers = readers.set(subtask, now.reader(subtask))
    if not moved and readers is cut.readers:
        return cut
    return evolve(cut, splits=cut.splits.moved(moved) if moved else cut.splits, readers=readers)


def _rescaled(state: SplitsState, parallelism: int) -> SplitsState:
    """The splits and requests of removed subtasks go to the remaining ones, in turn (E7: rescaling)."""
    readers: Map[int, ReaderState] = Map()
    for subtask, reader in _in_order(state.readers):
        target = subtask % parallelism
        known = readers.get(target)
        readers = readers.set(target, reader if known is None else _merged(known, reader))
    moved: dict[str, Place] = {}
    for name in (name for _, reader in _in_order(state.readers) for name in reader.splits):
        place = state.splits.place(name)
        if not isinstance(place, WithEnumerator) and place.subtask is not None:
            moved[name] = replace(place, subtask=place.subtask % parallelism)
    splits = state.splits.moved(moved)
    return evolve(state, readers=readers, splits=splits, parallelism=parallelism)


def _merged(first: ReaderState, second: ReaderState) -> ReaderState:
    requests = sorted((*first.requests, *second.requests), key=lambda request: request.sequence)
    return ReaderState(
        is_completed=first.is_completed and second.is_completed,
        splits=(*first.splits, *second.splits),
        requests=tuple(requests),
        # A reader without a `NoMoreSplits` may still need splits released by a lost attempt.
        has_no_more_in_checkpoint=first.has_no_more and second.has_no_more,
    )
