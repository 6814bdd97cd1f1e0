"""Validity of records: the fold over headers that every reader of a log uses.

1. An `EPOCH_STARTED` counts if its epoch is exactly one above the epoch in force. An unfinished turn before it becomes
   void, and `next_sequence` goes back to where that turn began.
2. Any other record fits if its epoch is in force and its sequence is `next_sequence`. It counts once the last record
   of its turn (`turn_remaining` = 0) fits.
3. Everything else is void.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from coordlog.errors import RecordError
from coordlog.schemas.codec import decode_record
from coordlog.schemas.header import Header, run_of_headers
from coordlog.schemas.record import Kind, Record

__all__ = [
    "NOTHING_COUNTED",
    "Beginning",
    "Counted",
    "Counting",
    "HasContent",
    "HasHeader",
    "Judged",
    "Turns",
    "Verdict",
    "beginning_at",
    "beginning_of",
    "begun",
    "count",
    "counted_turns",
    "judge",
]

E = TypeVar("E", bound="HasHeader")
C = TypeVar("C", bound="HasContent")


class Verdict(enum.Enum):
    """Verdict on one record at its place."""

    EPOCH = "counts"
    """An `EPOCH_STARTED` that is in force from here on."""
    FITS = "fits"
    """Counts once its turn is whole."""
    COMPLETES = "completes"
    """The last record of its turn: all of the turn counts."""
    VOID_HEADER = "void: not a record of this log's format"
    VOID_EPOCH = "void: its epoch is not in force"
    VOID_SEQUENCE = "void: its sequence is not the next one"
    VOID_TAKE_OVER = "void: its epoch is not one above the epoch in force"
    VOID_TURN = "void: a newer epoch cut its turn off"

    @property
    def counts(self) -> bool:
        """Whether the record is part of the job's history."""
        return self in (Verdict.EPOCH, Verdict.COMPLETES)

    @property
    def is_void(self) -> bool:
        """Whether the record never counts."""
        return self not in _MAY_COUNT


_MAY_COUNT: Final = (Verdict.COMPLETES, Verdict.FITS, Verdict.EPOCH)


class Counting(NamedTuple):
    """Position of counting in a log: decides whether the next record counts. A tuple as `Header`."""

    epoch: int
    """Epoch in force, -1 before the first."""
    next_sequence: int
    """Sequence of the next valid record, after those of an unfinished turn."""
    turn_began: int
    """Sequence at which the unfinished turn began; `next_sequence` if no turn is unfinished."""

    @property
    def counted_end(self) -> int:
        """The sequence after the last record that counts."""
        return self.turn_began


NOTHING_COUNTED: Final = Counting(epoch=-1, next_sequence=0, turn_began=0)


def count(state: Counting, header: Header | None) -> tuple[Counting, Verdict]:
    """The state after one more record, in offset order, and the verdict on that record."""
    if header is None:
        return state, Verdict.VOID_HEADER
    if header.is_epoch_started:
        if header.epoch != state.epoch + 1:
            return state, Verdict.VOID_TAKE_OVER
        began = state.turn_began
        return Counting(header.epoch, began, began), Verdict.EPOCH
    if header.epoch != state.epoch or header.epoch < 0:
        return state, Verdict.VOID_EPOCH
    if header.sequence != state.next_sequence:
        return state, Verdict.VOID_SEQUENCE
    after = header.sequence + 1
    if header.turn_remaining == 0:
        return Counting(state.epoch, after, after), Verdict.COMPLETES
    return Counting(state.epoch, after, state.turn_began), Verdict.FITS


class HasHeader(Protocol):
    """An entry read from a log."""

    @property
    def header(self) -> Header | None:
        """Decoded header, or None if it has no header of this format."""
        ...


class HasContent(HasHeader, Protocol):
    """A record read from a log, with its place and its bytes."""

    @property
    def offset(self) -> int:
        """Its place in the log."""
        ...

    @property
    def value(self) -> bytes | None:
        """Its value."""
        ...

    @property
    def header_bytes(self) -> bytes | None:
        """Packed header, or None if it has no header of this format."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Start of a reading of a log: offset 0, or a `SNAPSHOT`, which is the first record that is read."""

    offset: int
    counting: Counting
    """Position of counting before the record at `offset`."""
    snapshot: Record | None
    """`SNAPSHOT` at `offset`; None at offset 0."""


def beginning_of(first: HasContent) -> Beginning:
    """The beginning of a log with this first record.

    Raises:
        RecordError: Records before it are gone, and it is no `SNAPSHOT`: validity of those after it is unknown.
    """
    if first.offset == 0:
        return Beginning(offset=0, counting=NOTHING_COUNTED, snapshot=None)
    beginning = beginning_at(first)
    if beginning is None:
        raise RecordError(
            first.offset,
            "",
            "the log begins here, and not with a SNAPSHOT: retention of the topic or a manual deletion has "
            "removed earlier records, and without them no record can be judged",
        )
    return beginning


def begun(stored: Iterable[C]) -> tuple[Beginning, Iterator[C]]:
    """The beginning of a log, and all of its records, of which the first was read. Raises as `beginning_of`."""
    entries = iter(stored)
    first = next(entries, None)
    if first is None:
        return Beginning(offset=0, counting=NOTHING_COUNTED, snapshot=None), entries
    return beginning_of(first), itertools.chain([first], entries)


def beginning_at(stored: HasContent) -> Beginning | None:
    """The beginning of a reading at a `SNAPSHOT`; None if the record is another.

    Raises:
        RecordError: The record cannot be decoded.
    """
    header = stored.header
    if header is None or header.is_epoch_started or header.turn_remaining:
        return None
    record = decode_record(stored.offset, stored.value, stored.header_bytes, header=header)
    if record.kind is not Kind.SNAPSHOT:
        return None
    place = header.sequence
    counting = Counting(epoch=header.epoch, next_sequence=place, turn_began=place)
    return Beginning(offset=stored.offset, counting=counting, snapshot=record)


class Judged(NamedTuple, Generic[E]):
    """A record with its verdict."""

    entry: E
    header: Header | None
    """Header of the entry, decoded once."""
    verdict: Verdict
    """`EPOCH` or `COMPLETES` if the record counts, `FITS` if its turn is not finished (yet), else void."""

    @property
    def counts(self) -> bool:
        """Whether it is part of the job's history."""
        return self.verdict.counts


class Turns(Generic[E]):
    """Assembles entries, fed in offset order, into whole turns.

    Args:
        counting: Position of counting before the first entry; no turn is unfinished there.
    """

    def __init__(self, counting: Counting = NOTHING_COUNTED) -> None:
        self.counting = counting
        """Position of counting after the last entry."""
        self.waiting: list[Judged[E]] = []
        """Entries from the beginning of the unfinished turn on, void ones among them."""

    def feed_whole(self, headers: Sequence[bytes | None]) -> Sequence[Header]:
        """Feed the longest beginning of these records that is of whole turns which count; returns their headers.

        As `feed` of each, and faster. Nothing is fed, and the result is empty, if a turn is unfinished or the first
        record is not of such a turn: then feed it alone.
        """
        state = self.counting
        if self.waiting or state.epoch < 0:
            return ()
        run = run_of_headers(headers, state.epoch, state.next_sequence)
        while run and run[-1].turn_remaining:
            run.pop()
        after = state.next_sequence + len(run)
        self.counting = Counting(state.epoch, after, after)
        return run

    def feed(self, entry: E) -> Sequence[Judged[E]]:
        """Entries whose verdict is final with this entry, in log order: those that count are one whole turn."""
        header = entry.header
        self.counting, verdict = count(self.counting, header)
        judged = Judged(entry, header, verdict)
        if verdict.counts:
            decided = Verdict.VOID_TURN if verdict is Verdict.EPOCH else verdict
            before, self.waiting = self.waiting, []
            whole = [
                earlier._replace(verdict=decided) if earlier.verdict is Verdict.FITS else earlier
                for earlier in before
            ]
            return [*whole, judged]
        if verdict is Verdict.FITS or self.waiting:
            self.waiting.append(judged)
            return ()
        return (judged,)


@dataclass(frozen=True, slots=True)
class Counted(Generic[E]):
    """One complete turn that counts, or one `EPOCH_STARTED` alone, and the position of counting after it."""

    entries: tuple[E, ...]
    after: Counting


def counted_turns(entries: Iterable[E], state: Counting = NOTHING_COUNTED) -> Iterator[Counted[E]]:
    """The turns that count among `entries`, each whole, in log order; an unfinished turn at the end is left out."""
    turns = Turns[E](state)
    for entry in entries:
        whole = tuple(judged.entry for judged in turns.feed(entry) if judged.counts)
        if whole:
            yield Counted(whole, turns.counting)


def judge(entries: Iterable[E], state: Counting = NOTHING_COUNTED) -> Iterator[Judged[E]]:
    """Every entry, in log order, with its verdict; the records of a turn wait for the turn's verdict."""
    turns = Turns[E](state)
    for entry in entries:
        yield from turns.feed(entry)
    yield from turns.waiting
