"""What counts: the fold over headers that everything that reads a log goes through.

1. An `EPOCH_STARTED` counts if its epoch is exactly one above the epoch in force. An unfinished turn before it becomes
   void, and `next_sequence` goes back to where that turn began.
2. Any other record fits if its epoch is in force and its sequence is `next_sequence`. It counts once the last record
   of its turn (`turn_remaining` = 0) fits.
3. Everything else is void.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from coordlog.schemas.header import Header

__all__ = [
    "NOTHING_COUNTED",
    "Counted",
    "Counting",
    "HasHeader",
    "Judged",
    "Verdict",
    "count",
    "counted_turns",
    "judge",
]

E = TypeVar("E", bound="HasHeader")


class Verdict(enum.Enum):
    """What one record is worth at its place."""

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
    def is_void(self) -> bool:
        """Whether the record never counts."""
        return self not in _MAY_COUNT


_MAY_COUNT: Final = (Verdict.COMPLETES, Verdict.FITS, Verdict.EPOCH)


class Counting(NamedTuple):
    """Where a log stands: what the next record must look like to count. A tuple for the same reason as `Header`."""

    epoch: int
    """The epoch in force, -1 before the first."""
    next_sequence: int
    """The sequence that fits next, an unfinished turn's records included."""
    turn_began: int
    """The sequence at which the unfinished turn began; `next_sequence` where there is none."""

    @property
    def counted_end(self) -> int:
        """The sequence after the last record that counts."""
        return self.turn_began


NOTHING_COUNTED: Final = Counting(epoch=-1, next_sequence=0, turn_began=0)


def count(state: Counting, header: Header | None) -> tuple[Counting, Verdict]:
    """The state after one more record, in offset order, and what that record is worth."""
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
    """Something read from a log."""

    @property
    def header(self) -> Header | None:
        """Its decoded header, None where it has none of ours."""
        ...


@dataclass(frozen=True, slots=True)
class Counted(Generic[E]):
    """One whole turn that counts, or one `EPOCH_STARTED` alone, and where the log stands after it."""

    entries: tuple[E, ...]
    after: Counting


def counted_turns(entries: Iterable[E], state: Counting = NOTHING_COUNTED) -> Iterator[Counted[E]]:
    """The turns that count among `entries`, each whole, in log order; an unfinished one at the end is left out."""
    turn: list[E] = []
    for entry in entries:
        state, verdict = count(state, entry.header)
        if verdict is Verdict.EPOCH:
            turn.clear()
            yield Counted((entry,), state)
        elif verdict is Verdict.FITS:
            turn.append(entry)
        elif verdict is Verdict.COMPLETES:
            turn.append(entry)
            yield Counted(tuple(turn), state)
            turn.clear()


@dataclass(frozen=True, slots=True)
class Judged(Generic[E]):
    """A record with what it is worth, for audits."""

    entry: E
    verdict: Verdict
    """`EPOCH` or `COMPLETES` where it counts, `FITS` where its turn is not finished (yet), else void."""


def judge(entries: Iterable[E], state: Counting = NOTHING_COUNTED) -> Iterator[Judged[E]]:
    """Every one of `entries`, in log order, with its verdict; a turn's records wait for the turn's fate."""
    waiting: list[Judged[E]] = []
    for entry in entries:
        state, verdict = count(state, entry.header)
        if verdict is Verdict.EPOCH:
            for one in waiting:
                cut_off = one.verdict is Verdict.FITS
                yield Judged(one.entry, Verdict.VOID_TURN) if cut_off else one
            waiting.clear()
            yield Judged(entry, verdict)
        elif verdict is Verdict.FITS:
            waiting.append(Judged(entry, verdict))
        elif verdict is Verdict.COMPLETES:
            for one in waiting:
                counts = one.verdict is Verdict.FITS
                yield Judged(one.entry, Verdict.COMPLETES) if counts else one
            waiting.clear()
            yield Judged(entry, verdict)
        elif waiting:
            waiting.append(Judged(entry, verdict))
        else:
            yield Judged(entry, verdict)
    yield from waiting
