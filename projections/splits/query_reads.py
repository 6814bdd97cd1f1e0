"""What queries read of a source, as a fold of the source's records.

Splits have numbers, in the order of their discovery. A *read* covers a range of these: a batch
query's one, or one batch of a stream. Each of its partitions has a list of splits, which only grows,
in the order in which they were given to whichever task asked first; every other task of that
partition is given the same list. So a task that is tried again reads its splits again, one that had
ended before reads exactly those that it had, and the lists of a read's partitions never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from immutables import Map

from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload
from coordlog.schemas.reads import (
    ReadCommitted,
    ReaderGivenUp,
    ReadPlanned,
    ReadsOpened,
    ReadsProblem,
    SplitsForgotten,
    SplitsGiven,
)
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_events import Split, SplitsDiscovered

__all__ = ["READS", "FoundSplit", "Read", "ReadsState", "StreamReader"]

_BATCH_READS_MAX: Final = 1_000
"""Of one service: the oldest is forgotten then, and its tasks are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSplit:
    """A split, and the sequence of the record that has found it."""

    split: Split
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one query reads, or one batch of a stream."""

    read_id: str
    reader: str
    """The stream; empty for a batch query."""
    start: int
    end: int
    """Exclusive."""
    partitions: int
    given: Map[int, tuple[int, ...]] = field(default_factory=Map)
    """By partition, the numbers of its splits in the order in which they were given."""
    given_count: int = 0
    """How many that are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReader:
    """How far one stream has come."""

    planned: int
    """Where its newest batch ends."""
    committed: int
    """What was found before this is not read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsState:
    """All of it. Made by `READS.apply`, and by nothing else."""

    history: str = ""
    """A name of chance: a position of another history is refused."""
    splits: Map[int, FoundSplit] = field(default_factory=Map)
    """By number; those that were forgotten are missing."""
    numbers: Map[str, int] = field(default_factory=Map)
    """By split id; of those in `splits`."""
    found: int = 0
    """How many have been found; the next one's number."""
    first: int = 0
    """No read begins below."""
    is_listed: bool = False
    """A listing of the service in force has been whole."""
    problem: str = ""
    """Why the source cannot be listed any more; empty: it can."""
    reads: Map[str, Read] = field(default_factory=Map)
    """By id; those that may still be read."""
    batch_reads: tuple[str, ...] = ()
    """The ids of batch queries' reads, oldest first."""
    readers: Map[str, StreamReader] = field(default_factory=Map)
    """The streams, by name."""

    def sequence_of(self, end: int) -> int:
        """The sequence of the record that has found the last split before `end`; -1 for none."""
        known = self.splits.get(end - 1)
        return -1 if known is None else known.sequence


def _apply(state: ReadsState, record: Record, value: Payload | None) -> ReadsState:
    """The state after one more record that counts."""
    if record.kind is Kind.FACT:
        return _fact(state, record, value)
    if record.kind is Kind.RESPONSE:
        return _answered(state, value)
    return state


def _fact(state: ReadsState, record: Record, value: Payload | None) -> ReadsState:
    if record.attributes.get("closed") == "true":
        return state  # for a coordinator that was closed: recorded only (clause A6)
    if isinstance(value, SplitsDiscovered):
        return _discovered(state, record, value)
    if isinstance(value, ReadsOpened):
        return _opened(state, value)
    if isinstance(value, ReadsProblem):
        return replace(state, problem=value.problem)
    if isinstance(value, SplitsForgotten):
        return _forgotten(state, value)
    if isinstance(value, ReaderGivenUp):
        return _given_up(state, value)
    return state


def _answered(state: ReadsState, value: Payload | None) -> ReadsState:
    if isinstance(value, SplitsGiven):
        return _given(state, value)
    if isinstance(value, ReadPlanned):
        return _planned(state, value)
    if isinstance(value, ReadCommitted):
        return _committed(state, value)
    return state


def _opened(state: ReadsState, value: ReadsOpened) -> ReadsState:
    """The tasks of batch queries are gone with the service that they asked; streams plan again."""
    reads = state.reads
    for read_id in state.batch_reads:
        reads = reads.delete(read_id)
    return replace(
        state,
        history=state.history or value.history,
        is_listed=False,
        problem="",
        reads=reads,
        batch_reads=(),
    )


def _discovered(state: ReadsState, record: Record, value: SplitsDiscovered) -> ReadsState:
    """Number what is not known yet: a listing that is made again finds the same splits again."""
    assert record.sequence is not None, "a fact has its place"
    splits, numbers, found = state.splits, state.numbers, state.found
    for one in value.splits:
        if one.split_id not in numbers:
            splits = splits.set(found, FoundSplit(split=one, sequence=record.sequence))
            numbers = numbers.set(one.split_id, found)
            found += 1
    return replace(
        state,
        splits=splits,
        numbers=numbers,
        found=found,
        is_listed=state.is_listed or value.is_complete,
    )


def _planned(state: ReadsState, value: ReadPlanned) -> ReadsState:
    if value.read_id in state.reads:
        return state
    read = Read(
        read_id=value.read_id,
        reader=value.reader,
        start=value.start,
        end=value.end,
        partitions=value.partitions,
    )
    state = replace(state, reads=state.reads.set(value.read_id, read))
    if value.reader:
        return _stream_planned(state, value)
    batch_reads = (*state.batch_reads, value.read_id)
    if len(batch_reads) > _BATCH_READS_MAX:
        state = replace(state, reads=state.reads.delete(batch_reads[0]))
        batch_reads = batch_reads[1:]
    return replace(state, batch_reads=batch_reads)


def _stream_planned(state: ReadsState, value: ReadPlanned) -> ReadsState:
    readers = state.readers
    before = readers.get(value.reader)
    committed = value.start if before is None else before.committed
    reads = state.reads
    if value.follows != value.reader and value.follows in readers:
        readers = readers.delete(value.follows)
        # Spark plans the next batch once it has that before: nobody commits it under its old name.
        for read_id, read in sorted(reads.items()):
            if read.reader == value.follows and read.end <= value.start:
                reads = reads.delete(read_id)
    end = value.end if before is None else max(before.planned, value.end)
    reader = StreamReader(planned=end, committed=committed)
    return replace(state, reads=reads, readers=readers.set(value.reader, reader))


def _given(state: ReadsState, value: SplitsGiven) -> ReadsState:
    read = state.reads[value.read_id]
    listed = read.given.get(value.partition, ())
    fresh = value.splits[len(listed) - value.position :]
    if not fresh:
        return state
    numbers = tuple(state.numbers[one.split_id] for one in fresh)
    changed = replace(
        read,
        given=read.given.set(value.partition, (*listed, *numbers)),
        given_count=read.given_count + len(numbers),
    )
    return replace(state, reads=state.reads.set(value.read_id, changed))


def _committed(state: ReadsState, value: ReadCommitted) -> ReadsState:
    """The stream's batches up to `end` are over: Spark does not run them again."""
    reads = state.reads
    for read_id, read in sorted(reads.items()):
        if read.reader == value.reader and read.end <= value.end:
            reads = reads.delete(read_id)
    before = state.readers.get(value.reader)
    planned = value.end if before is None else max(before.planned, value.end)
    reader = StreamReader(planned=planned, committed=value.end)
    return replace(state, reads=reads, readers=state.readers.set(value.reader, reader))


def _given_up(state: ReadsState, value: ReaderGivenUp) -> ReadsState:
    reads, readers = state.reads, state.readers
    for read_id, read in sorted(reads.items()):
        if read.reader == value.reader:
            reads = reads.delete(read_id)
    if value.reader in readers:
        readers = readers.delete(value.reader)
    return replace(state, reads=reads, readers=readers)


def _forgotten(state: ReadsState, value: SplitsForgotten) -> ReadsState:
    splits, numbers = state.splits, state.numbers
    for number in value.ordinals:
        numbers = numbers.delete(splits[number].split.split_id)
        splits = splits.delete(number)
    return replace(state, splits=splits, numbers=numbers, first=max(state.first, value.first))


READS: Final[OperatorProjection[ReadsState]] = OperatorProjection(
    name="coordlog.reads",
    version=1,
    initial=ReadsState(),
    apply=_apply,
    codec=DerivedCodec(ReadsState),
    # What tasks have been given they have, whatever becomes of the coordinator.
    survives_resets=True,
)
