"""Where each split of a source is, as a fold of the source's records (clauses L3, L4, L5, D5).

A split is in one place at a time: with the enumerator, assigned to a subtask, finished, or skipped.
Requests of readers are kept here too, until they are answered, so that nothing is remembered beside
the log.

What a failover to checkpoint n undoes is decided by two places. What the coordinator sent is part
of n where it stands before the coordinator's cut of n. What a subtask sent is part of n where its
`last_barrier` is below n.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from immutables import Map

from coordlog.schemas.builtin import SplitFinished, SplitSkipped
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

from .evolving import evolve
from .operator_projection import OperatorProjection
from .state_codec import DerivedCodec

__all__ = [
    "SPLITS",
    "Assigned",
    "Finished",
    "KnownSplit",
    "Place",
    "ReaderState",
    "Request",
    "Skipped",
    "SplitsState",
    "WithEnumerator",
]

V = TypeVar("V")


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
    """Of the `EVENT_TO_SUBTASK` that had assigned it."""
    last_barrier: int
    """The last barrier that the attempt had passed then."""
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
        return sum(1 for one in self.requests if one.answered is None)

    @property
    def is_told(self) -> bool:
        """Whether it has been told that there are no more splits, its live attempt or the restored one."""
        return self.is_told_in_checkpoint or self.told_no_more is not None


@dataclass(frozen=True, kw_only=True)
class SplitsState:
    """All of it. Made by `SPLITS.apply`, and by nothing else."""

    splits: Map[str, KnownSplit] = field(default_factory=Map)
    """By split id."""
    by_ordinal: Map[int, str] = field(default_factory=Map)
    """Split ids in the order of discovery."""
    fresh_from: int = 0
    """From this ordinal on every split is with the enumerator, or skipped."""
    passed_over: tuple[int, ...] = ()
    """The ordinals below `fresh_from` that are with it too: given back, or passed over. Rising."""
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
        known = self.splits.get(split_id)
        return known is not None and isinstance(known.place, WithEnumerator)

    def skipped(self) -> frozenset[str]:
        """The ids of skipped splits (clause J2)."""
        return frozenset(self.skips)

    def unassigned(self, count: int | None = None) -> tuple[str, ...]:
        """The first `count`, or all, of those with the enumerator, in the order of discovery."""
        ordinals = itertools.chain(self.passed_over, range(self.fresh_from, len(self.splits)))
        names = (self.by_ordinal[one] for one in ordinals)
        return tuple(itertools.islice((one for one in names if self.is_unassigned(one)), count))

    def unassigned_splits(self, count: int | None = None) -> tuple[Split, ...]:
        """The same, as splits."""
        return tuple(self.splits[one].split for one in self.unassigned(count))


_NEW_READER = ReaderState()


def _with_reader(state: SplitsState, subtask: int, reader: ReaderState) -> SplitsState:
    return evolve(state, readers=state.readers.set(subtask, reader))


def _required(value: int | None) -> int:
    assert value is not None, "the kind has this field"
    return value


def _in_order(mapping: Map[int, V]) -> list[tuple[int, V]]:
    return sorted(mapping.items(), key=lambda item: item[0])


def _apply(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
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
    splits, by_ordinal = state.splits, state.by_ordinal
    for one in value.splits:
        if one.split_id not in splits:
            ordinal = len(splits)
            place = Skipped() if one.split_id in state.skips else WithEnumerator()
            splits = splits.set(one.split_id, KnownSplit(ordinal=ordinal, split=one, place=place))
            by_ordinal = by_ordinal.set(ordinal, one.split_id)
    return evolve(
        state,
        splits=splits,
        by_ordinal=by_ordinal,
        is_discovery_complete=state.is_discovery_complete or value.is_complete,
    )


def _listing_started(state: SplitsState) -> SplitsState:
    """Forget what is left of a listing that its driver could not end.

    Where something is assigned there was a watch, of which each page is good by itself.
    """
    first = state.listed_before
    if state.is_discovery_complete or state.fresh_from > first:
        return state
    splits, by_ordinal = state.splits, state.by_ordinal
    for ordinal in range(first, len(splits)):
        splits, by_ordinal = splits.delete(by_ordinal[ordinal]), by_ordinal.delete(ordinal)
    return evolve(state, splits=splits, by_ordinal=by_ordinal)


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
    splits, names = state.splits, [one.split_id for one in value.splits]
    fresh_from, passed_over = state.fresh_from, state.passed_over
    for name in names:
        known = splits[name]
        assert isinstance(known.place, WithEnumerator), f"split {name!r} is assigned already"
        place = Assigned(subtask=subtask, sequence=sequence)
        splits = splits.set(name, replace(known, place=place))
        if known.ordinal >= fresh_from:
            passed_over = (*passed_over, *range(fresh_from, known.ordinal))
            fresh_from = known.ordinal + 1
        else:
            passed_over = tuple(one for one in passed_over if one != known.ordinal)
    reader = evolve(
        reader,
        splits=(*reader.splits, *names),
        requests=_answered(reader.requests, sequence, len(names)),
    )
    state = _with_reader(state, subtask, reader)
    return evolve(state, splits=splits, fresh_from=fresh_from, passed_over=passed_over)


def _answered(requests: tuple[Request, ...], sequence: int, count: int) -> tuple[Request, ...]:
    """The oldest `count` open requests are answered at `sequence`."""
    made = []
    for one in requests:
        if one.answered is None and count > 0:
            made.append(replace(one, answered=sequence))
            count -= 1
        else:
            made.append(one)
    return tuple(made)


def _finished(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    assert isinstance(value, SplitFinished), "the kind has this payload"
    split_id = value.split_id
    known = state.splits.get(split_id)
    if known is None or not isinstance(known.place, Assigned):
        return state  # of a reader's own making: it concerns nothing that was assigned
    if known.place.subtask != record.subtask:
        return state
    place = Finished(
        subtask=known.place.subtask,
        sequence=known.place.sequence,
        last_barrier=_required(record.last_barrier),
        is_kept=record.attributes.get("kept") == "true",
    )
    return evolve(state, splits=state.splits.set(split_id, replace(known, place=place)))


def _skipped(state: SplitsState, record: Record, value: SplitSkipped) -> SplitsState:
    """Given when it is recorded, and again with each `RESET_TO_CHECKPOINT`; what was read stays read."""
    state = evolve(state, skips=state.skips.set(value.split_id, None))
    known = state.splits.get(value.split_id)
    if known is None:
        return state
    place: Place = known.place
    match place:
        case WithEnumerator():
            place = Skipped()
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
        splits=state.splits.set(value.split_id, replace(known, place=place)),
        passed_over=tuple(one for one in state.passed_over if one != known.ordinal),
    )


def _completed(state: SplitsState, record: Record) -> SplitsState:
    """What the checkpoint holds is not undone any more by a local failover: forget how to."""
    checkpoint_id = _required(record.checkpoint_id)
    cut = state.cuts.get(checkpoint_id, state.last_cut)
    readers = state.readers
    for subtask, reader in _in_order(readers):
        changed = evolve(
            reader,
            splits=tuple(
                name
                for name in reader.splits
                if not _is_over_before(state.splits[name].place, checkpoint_id)
            ),
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
    return evolve(state, readers=readers, cuts=cuts, last_cut=cut)


def _is_over_before(place: Place, checkpoint_id: int) -> bool:
    """Whether no reader that is restored from the checkpoint has the split."""
    if not isinstance(place, (Finished, Skipped)) or place.last_barrier is None:
        return False
    return place.last_barrier < checkpoint_id


def _subtask_reset(state: SplitsState, record: Record) -> SplitsState:
    """A local failover to n: what was assigned after the cut of n goes back, oldest first (L4)."""
    subtask, checkpoint_id = _required(record.subtask), _required(record.checkpoint_id)
    reader = state.reader(subtask)
    splits, kept, given_back = state.splits, [], []
    for name in reader.splits:
        known = splits[name]
        place = known.place
        assert not isinstance(place, WithEnumerator), "it is with this subtask"
        if place.sequence > state.last_cut:
            if isinstance(place, Finished) and place.is_kept:
                kept.append(name)
                continue
            if isinstance(place, Skipped):
                splits = splits.set(name, replace(known, place=Skipped()))
                continue
            given_back.append(name)
            splits = splits.set(name, replace(known, place=WithEnumerator()))
            continue
        kept.append(name)
        if isinstance(place, Finished) and place.last_barrier >= checkpoint_id:
            # Its end came after the barrier of n: the restored reader has it again.
            again = Assigned(subtask=subtask, sequence=place.sequence)
            splits = splits.set(name, replace(known, place=again))
        elif isinstance(place, Skipped) and not _is_over_before(place, checkpoint_id):
            # The restored reader has it, is told, and says how far it had come.
            unsaid = replace(place, last_barrier=None, rows=None)
            splits = splits.set(name, replace(known, place=unsaid))
    reader = evolve(
        reader,
        attempt_number=None,
        splits=tuple(kept),
        requests=_asked_before(reader.requests, checkpoint_id, state.last_cut),
        told_no_more=None,
        given_back=tuple(given_back),
    )
    state = _with_reader(state, subtask, reader)
    passed_over = sorted((*state.passed_over, *(splits[name].ordinal for name in given_back)))
    return evolve(state, splits=splits, passed_over=tuple(passed_over))


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
    splits = state.splits
    for name in (name for _, reader in _in_order(state.readers) for name in reader.splits):
        known_split = splits[name]
        place = known_split.place
        if not isinstance(place, WithEnumerator) and place.subtask is not None:
            place = replace(place, subtask=place.subtask % parallelism)
            splits = splits.set(name, replace(known_split, place=place))
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


SPLITS: Final[OperatorProjection[SplitsState]] = OperatorProjection(
    name="coordlog.splits",
    version=1,
    initial=SplitsState(),
    apply=_apply,
    codec=DerivedCodec(SplitsState),
)
