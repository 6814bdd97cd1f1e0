"""Where each split of a source is, as a fold of the source's records (clauses L3, L4, L5, D5).

A split is in one place at a time: with the enumerator, assigned to a subtask, finished, or skipped.
Requests of readers are kept here too, until they are answered, so that nothing is remembered beside
the log.

What a failover to checkpoint n undoes is decided by two places. What the coordinator sent is part
of n where it stands before the coordinator's cut of n. What a subtask sent is part of n where its
`last_barrier` is below n.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
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
)
from coordlog.schemas.builtin_types import SplitFinished, SplitSkipped
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record
from coordlog.schemas.source_events import (
    AddSplits,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
)
from coordlog.schemas.source_facts import EnumeratorState, ListingStarted

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
]

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A reader's `RequestSplit` that may still matter."""

    sequence: int
    last_barrier: int
    answered: int | None = None
    """The sequence of the `AddSplits` or `NoMoreSplits` that answers it."""


@dataclass(frozen=True, kw_only=True)
class ReaderState:
    """What the source has to do with one subtask."""

    attempt_number: int | None = None
    """The live attempt."""
    is_completed: bool = False
    splits: tuple[str, ...] = ()
    """Assigned to it and perhaps not finished for good, in the order of assignment."""
    requests: tuple[Request, ...] = ()
    """In log order. An answered one stays until a completed checkpoint holds its answer."""
    told_no_more: int | None = None
    """The sequence of the `NoMoreSplits` to the live attempt."""
    is_told_in_checkpoint: bool = False
    """The last completed checkpoint holds a `NoMoreSplits`: each later attempt is owed it (L5)."""
    given_back: tuple[str, ...] = ()
    """What its last reset gave back, oldest assignment first; until an attempt starts."""

    @property
    def owed(self) -> int:
        """How many of its requests nothing answers yet."""
        return len(self.open_requests)

    @property
    def open_requests(self) -> tuple[Request, ...]:
        """Those of its requests that nothing answers yet, in log order."""
        return self.requests[_first_open(self.requests) :]

    @property
    def is_told(self) -> bool:
        """Whether it has been told that there are no more splits, its live attempt or the restored one."""
        return self.is_told_in_checkpoint or self.told_no_more is not None


@dataclass(frozen=True, kw_only=True)
class SplitsState:
    """All of it. Made by `apply_record`, and by nothing else."""

    splits: SplitTable = field(default_factory=SplitTable)
    """By split id; iterates in the order of discovery."""
    fresh_from: int = 0
    """From this ordinal on every split is with the enumerator, or skipped."""
    passed_over: Map[int, None] = field(default_factory=Map)
    """The ordinals below `fresh_from` that are with it too: given back, or passed over. Follows from the rest."""
    is_discovery_complete: bool = False
    listed_before: int = 0
    """How many splits the listings before this opening of the job have found: their rows are committed."""
    readers: Map[int, ReaderState] = field(default_factory=Map)
    """By subtask; those that nothing has happened to are missing: use `reader`."""
    cuts: Map[int, int] = field(default_factory=Map)
    """By pending checkpoint: the sequence of this coordinator's cut."""
    last_cut: int = -1
    """The sequence of the cut of the last completed checkpoint; after a reset, of the reset."""
    skips: Map[str, None] = field(default_factory=Map)
    """The ids of skipped splits, those included that no listing has found (again) yet."""
    enumerator_state: bytes | None = None
    """What the enumerator says that it keeps itself."""
    parallelism: int | None = None
    """Of the last reset to a checkpoint of another one: what its subtasks said is said by others now (E7)."""

    def reader(self, subtask: int) -> ReaderState:
        """The state of one subtask."""
        return self.readers.get(subtask, _NEW_READER)

    def is_unassigned(self, split_id: str) -> bool:
        """Whether the split is known and with the enumerator."""
        return split_id in self.splits and isinstance(self.splits.place(split_id), WithEnumerator)

    def skipped(self) -> frozenset[str]:
        """The ids of skipped splits (clause J2)."""
        return frozenset(self.skips)

    def unassigned(self, count: int | None = None) -> tuple[str, ...]:
        """The first `count`, or all, of those with the enumerator, in the order of discovery."""
        return tuple(self.splits.name_at(one) for one in self._unassigned(count))

    def unassigned_splits(self, count: int | None = None) -> tuple[Split, ...]:
        """The same, as splits."""
        return tuple(self.splits.split_at(one) for one in self._unassigned(count))

    def _unassigned(self, count: int | None) -> Iterator[int]:
        splits = self.splits
        fresh = (
            ordinal
            for ordinal in range(self.fresh_from, len(splits))
            if isinstance(splits.place_at(ordinal), WithEnumerator)
        )
        # There may be many, where an enumerator does not go by the order.
        known = self.passed_over
        passed_over = sorted(known) if count is None else heapq.nsmallest(count, known)
        return itertools.islice(itertools.chain(passed_over, fresh), count)

    @property
    def waiting_count(self) -> int:
        """Number of the splits with the enumerator: neither assigned, finished nor skipped."""
        fresh = range(self.fresh_from, len(self.splits))
        waiting = sum(isinstance(self.splits.place_at(one), WithEnumerator) for one in fresh)
        return len(self.passed_over) + waiting

    def in_order(self) -> SplitsInOrder:
        """All that is known, in the order of discovery."""
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
        return state  # for a coordinator that was closed: recorded only (clause A6)
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
    """Add what is not known yet: a listing that is made again finds the same splits again."""

    def place_of(split_id: str) -> Place:
        return Skipped() if split_id in state.skips else _WITH_ENUMERATOR

    return evolve(
        state,
        splits=state.splits.extended(value.splits, place_of),
        is_discovery_complete=state.is_discovery_complete or value.is_complete,
    )


def _listing_started(state: SplitsState) -> SplitsState:
    """Forget what is left of a listing that its driver could not end.

    Where something is assigned there was a watch, of which each page is good by itself.
    """
    first = state.listed_before
    if state.is_discovery_complete or state.fresh_from > first or len(state.splits) <= first:
        return state
    return evolve(state, splits=state.splits.shortened(first))


def _opened_again(state: SplitsState, record: Record) -> SplitsState:
    """The job is opened again after its end: list anew; what is known stays where it is."""
    return evolve(
        state,
        is_discovery_complete=False,
        listed_before=len(state.splits),
        readers=Map(),
        cuts=Map(),
        last_cut=_required(record.sequence),
        parallelism=None,
    )


def _requested(state: SplitsState, record: Record) -> SplitsState:
    subtask = _required(record.subtask)
    if state.parallelism is not None:
        subtask %= state.parallelism  # delivered again: of a subtask that there is no more
    reader = state.reader(subtask)
    if reader.told_no_more is not None:
        return state  # it crossed the answer, which stands
    request = Request(
        sequence=_required(record.sequence), last_barrier=_required(record.last_barrier)
    )
    return _with_reader(state, subtask, evolve(reader, requests=(*reader.requests, request)))


def _sent(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    subtask, sequence = _required(record.subtask), _required(record.sequence)
    reader = state.reader(subtask)
    if isinstance(value, NoMoreSplits):
        requests = _answered(reader.requests, sequence, len(reader.requests))
        told = evolve(reader, requests=requests, told_no_more=sequence)
        return _with_reader(state, subtask, told)
    if not isinstance(value, AddSplits):
        return state
    names = [one.split_id for one in value.splits]
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
        for other in range(fresh_from, ordinal):
            if isinstance(splits.place_at(other), WithEnumerator):
                passed_over = passed_over.set(other, None)
        fresh_from = ordinal + 1
    moved = splits.moved(dict.fromkeys(names, place))
    return evolve(state, splits=moved, fresh_from=fresh_from, passed_over=passed_over)


def _answered(requests: tuple[Request, ...], sequence: int, count: int) -> tuple[Request, ...]:
    """The oldest `count` open requests are answered at `sequence`."""
    first = _first_open(requests)
    answered = tuple(replace(one, answered=sequence) for one in requests[first : first + count])
    return (*requests[:first], *answered, *requests[first + count :])


def _first_open(requests: tuple[Request, ...]) -> int:
    """The place of the oldest open request; the number of all if none is open.

    The oldest are answered first, so that the open ones are the last: looked for from there.
    """
    first = len(requests)
    while first and requests[first - 1].answered is None:
        first -= 1
    return first


def _finished(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    assert isinstance(value, SplitFinished), "the kind has this payload"
    split_id = value.split_id
    was = state.splits.place(split_id) if split_id in state.splits else None
    if not isinstance(was, Assigned) or was.subtask != record.subtask:
        return state  # of a reader's own making: it concerns nothing that was assigned
    if "kept" in record.attributes:
        state = _without_answered(state, was.subtask)
    if record.attributes.get("kept") != "true":
        place = Finished(
            subtask=was.subtask,
            sequence=was.sequence,
            last_barrier=_required(record.last_barrier),
            is_kept=False,
        )
        return evolve(state, splits=state.splits.moved({split_id: place}))
    # Only a batch job keeps it, all of whose resets begin anew: for good.
    reader = state.reader(was.subtask)
    left = tuple(name for name in reader.splits if name != split_id)
    state = _with_reader(state, was.subtask, evolve(reader, splits=left))
    over = _over(was.subtask, is_kept=True)
    return evolve(state, splits=state.splits.moved({split_id: over}))


def _without_answered(state: SplitsState, subtask: int) -> SplitsState:
    """Without answered requests, in batch: a reset begins anew there, and no checkpoint would forget them."""
    reader = state.reader(subtask)
    left = reader.requests[_first_open(reader.requests) :]
    if len(left) == len(reader.requests):
        return state
    return _with_reader(state, subtask, evolve(reader, requests=left))


@lru_cache(maxsize=1_024)
def _over(subtask: int, *, is_kept: bool = False) -> Finished:
    """The place of what is finished for good: one object, however many splits."""
    return Finished(subtask=subtask, sequence=-1, last_barrier=-1, is_kept=is_kept)


def _skipped(state: SplitsState, record: Record, value: SplitSkipped) -> SplitsState:
    """Given when it is recorded, and again with each `RESET_TO_CHECKPOINT`; what was read stays read."""
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
    """What the checkpoint holds is not undone any more by a local failover: forget how to."""
    checkpoint_id = _required(record.checkpoint_id)
    cut = state.cuts.get(checkpoint_id, state.last_cut)
    readers, over = state.readers, dict[str, Place]()
    for subtask, reader in _in_order(readers):
        left = []
        for name in reader.splits:
            place = state.splits.place(name)
            if not _is_over_before(place, checkpoint_id):
                left.append(name)
            elif isinstance(place, Finished):
                over[name] = _over(place.subtask)
        changed = evolve(
            reader,
            splits=tuple(left),
            requests=tuple(
                one for one in reader.requests if one.answered is None or one.answered > cut
            ),
            is_told_in_checkpoint=reader.is_told_in_checkpoint
            or (reader.told_no_more is not None and reader.told_no_more < cut),
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
    """Whether no reader that is restored from the checkpoint has the split."""
    if not isinstance(place, (Finished, Skipped)) or place.last_barrier is None:
        return False
    return place.last_barrier < checkpoint_id


def _subtask_reset(state: SplitsState, record: Record) -> SplitsState:
    """A local failover to n: what was assigned after the cut of n goes back, oldest first (L4)."""
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
            # Its end came after the barrier of n: the restored reader has it again.
            moved[name] = Assigned(subtask=subtask, sequence=place.sequence)
        elif isinstance(place, Skipped) and not _is_over_before(place, checkpoint_id):
            # The restored reader has it, is told, and says how far it had come.
            moved[name] = replace(place, last_barrier=None, rows=None)
    reader = evolve(
        reader,
        attempt_number=None,
        splits=tuple(kept),
        requests=_asked_before(reader.requests, checkpoint_id, state.last_cut),
        told_no_more=None,
        given_back=tuple(given_back),
    )
    state = _with_reader(state, subtask, reader)
    splits = state.splits.moved(moved)
    passed_over = state.passed_over.update({splits.ordinal(name): None for name in given_back})
    return evolve(state, splits=splits, passed_over=passed_over)


def _asked_before(
    requests: tuple[Request, ...], checkpoint_id: int, cut: int
) -> tuple[Request, ...]:
    """The requests that are part of the checkpoint; answers after its cut are undone (D5)."""
    return tuple(
        replace(one, answered=None) if one.answered is not None and one.answered > cut else one
        for one in requests
        if one.last_barrier < checkpoint_id
    )


def _subtask_completed(state: SplitsState, record: Record) -> SplitsState:
    """A subtask that has completed is never reset by itself: nothing of it can go back."""
    subtask = _required(record.subtask)
    over = evolve(
        state.reader(subtask), attempt_number=None, is_completed=True, splits=(), requests=()
    )
    return _with_reader(state, subtask, over)


def _reset_to_checkpoint(state: SplitsState, record: Record) -> SplitsState:
    """The state is that of the cut of n already: all attempts are gone, all assignments in n."""
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
            requests=tuple(one for one in reader.requests if one.answered is None),
            told_no_more=None,
            is_told_in_checkpoint=reader.is_told,
            given_back=(),
        )
        readers = readers.set(subtask, reset)
    return evolve(state, readers=readers, cuts=Map(), last_cut=sequence)


def _rescaled(state: SplitsState, parallelism: int) -> SplitsState:
    """What subtasks had that there are no more goes to those that are left, dealt in turn (clause E7)."""
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


def _merged(one: ReaderState, other: ReaderState) -> ReaderState:
    requests = sorted((*one.requests, *other.requests), key=lambda request: request.sequence)
    return ReaderState(
        is_completed=one.is_completed and other.is_completed,
        splits=(*one.splits, *other.splits),
        requests=tuple(requests),
        # One that has not been told may still be owed what an attempt that was lost gave back.
        is_told_in_checkpoint=one.is_told and other.is_told,
    )
