"""Reads of a source by queries, as a fold of the source's records.

Splits have numbers, in the order of their discovery. A *read* covers a range of numbers: that of a
batch query, or of one batch of a stream. Each partition of a read has a list of splits, which only
grows, in the order of assignment to the first task that requests; every other task of the partition
gets the same list. So a retried task reads its splits again, a task that had ended reads exactly its
earlier splits, and the lists of a read's partitions never overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    is_position,
)
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import (
    EnumeratorState,
    KnownSplitsForgotten,
    Split,
    SplitsDiscovered,
    SplitsReleased,
)

__all__ = ["READS", "FoundSplit", "Read", "ReadsState", "StreamReader"]

_BATCH_READS_MAX: Final = 1_000
"""Limit of one service: above it the oldest read is forgotten, and its tasks are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSplit:
    """A split, and the sequence of the record of its discovery."""

    split: Split
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The read of one batch query, or of one batch of a stream."""

    read_id: str
    reader: str
    """Name of the stream; empty for a batch query."""
    start: int
    end: int
    """End of the range, exclusive."""
    partitions: int
    assigned: Map[int, tuple[int, ...]] = field(default_factory=Map)
    """Numbers of the assigned splits by partition, in the order of assignment."""
    assigned_count: int = 0
    """Number of assigned splits."""
    left_out: int = 0
    """Number of splits of the range that were not known any more when it was planned."""

    @property
    def count(self) -> int:
        """Number of splits that the read covers."""
        return self.end - self.start - self.left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReader:
    """Progress of one stream."""

    planned: int
    """End of its newest batch."""
    committed: int
    """Number of the first split that may be read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsState:
    """The whole state of a source's reads. Only `READS.apply` and snapshots create it."""

    history: str = ""
    """Random name: a position of another history is refused."""
    splits: Map[int, FoundSplit] = field(default_factory=Map)
    """Known splits by number; forgotten ones are missing."""
    numbers: Map[str, int] = field(default_factory=Map)
    """Numbers of the known splits, by id."""
    split_count: int = 0
    """Number of discovered splits, and so the number of the next one."""
    first: int = 0
    """Lowest number at which a read may begin."""
    is_listed: bool = False
    """Whether a listing of the service in force was complete."""
    problem: str = ""
    """Reason if the source cannot be listed any more, else empty."""
    reads: Map[str, Read] = field(default_factory=Map)
    """Reads that may continue, by id."""
    batch_reads: tuple[str, ...] = ()
    """Ids of the reads of batch queries, oldest first."""
    readers: Map[str, StreamReader] = field(default_factory=Map)
    """Streams by name."""
    abandoned: tuple[str, ...] = ()
    """Names of abandoned streams: one that continues is not a stream that begins."""
    planned: int = 0
    """Highest end of all reads: no query has read the splits from there on."""
    streamed: int = 0
    """Highest end of the batches of all streams, also of abandoned ones."""
    newest_sequence: int = -1
    """Sequence of the discovery of the newest split, known or not; -1 if there is none."""
    kept: bytes | None = None
    """Bytes that the listing keeps beside the splits."""

    @property
    def ordinals(self) -> Map[str, int]:
        """See `SplitsByOrdinal`."""
        return self.numbers

    @property
    def end(self) -> int:
        """See `SplitsByOrdinal`."""
        return self.split_count

    def split_at(self, ordinal: int) -> Split:
        """See `SplitsByOrdinal`."""
        return self.splits[ordinal].split

    def sequence_of(self, end: int) -> int:
        """Sequence of the discovery of the last split before `end`; -1 if there is none or it is not known."""
        known = self.splits.get(end - 1)
        if known is not None:
            return known.sequence
        return self.newest_sequence if end == self.split_count else -1

    @property
    def settled(self) -> int:
        """Number of the first split that a stream may read again, or that no query has read."""
        return min(self.planned, self.settled_after("", self.split_count))

    def settled_after(self, reader: str, end: int) -> int:
        """Number of the first split that a stream may read again, once `reader` has committed the splits below `end`.

        Batch reads, without a reader, do not count: they begin at 0, and no client reports their end.
        """
        return min(
            *(known.committed for name, known in self.readers.items() if name != reader),
            *(read.start for read in self.reads.values() if read.reader not in ("", reader)),
            end,
            self.split_count,
        )

    def left_out_of(self, start: int, end: int) -> int:
        """Number of the splits from `start` to `end` that are not known any more."""
        if len(self.splits) == self.split_count:
            return 0
        return sum(number not in self.splits for number in range(start, end))

    def when_settled(self) -> Callable[[int], bool]:
        """Whether no read may need a split again: batch reads may need theirs until their service ends."""
        settled, batch_reads = self.settled, (self.reads[read_id] for read_id in self.batch_reads)
        ranges = {(read.start, read.end) for read in batch_reads}
        return lambda number: (
            number < settled and not any(start <= number < end for start, end in ranges)
        )


def _apply(state: ReadsState, record: Record, value: Payload | None) -> ReadsState:
    """The state after one more record that counts."""
    if record.kind is Kind.FACT:
        return _fact(state, record, value)
    if record.kind is Kind.RESPONSE:
        return _answered(state, value)
    if record.kind is Kind.COMMIT_OUTCOME and isinstance(value, SplitsReleased):
        numbers = (state.numbers[name] for name in value.split_ids if name in state.numbers)
        return _without(state, [number for number in numbers if number < value.discovered_below])
    return state


def _fact(state: ReadsState, record: Record, value: Payload | None) -> ReadsState:
    if record.attributes.get("closed") == "true":
        return state  # for a closed coordinator (A6: recorded only)
    if isinstance(value, SplitsDiscovered):
        return _discovered(state, record, value)
    if isinstance(value, ReadsOpened):
        return _opened(state, value)
    if isinstance(value, ReadsProblem):
        return replace(state, problem=value.problem)
    if isinstance(value, SplitsForgotten):
        state = _without(state, value.ordinals)
        return replace(state, first=max(state.first, value.first))
    if isinstance(value, KnownSplitsForgotten):
        numbers = [state.numbers[name] for name in value.split_ids if name in state.numbers]
        return _without(state, filter(state.when_settled(), numbers))
    if isinstance(value, EnumeratorState):
        return replace(state, kept=value.content)
    if isinstance(value, ReaderGivenUp):
        return _reader_abandoned(state, value)
    return state


def _answered(state: ReadsState, value: Payload | None) -> ReadsState:
    if isinstance(value, SplitsGiven):
        return _splits_given(state, value)
    if isinstance(value, ReadPlanned):
        return _planned(state, value)
    if isinstance(value, ReadCommitted):
        return _committed(state, value)
    return state


def _opened(state: ReadsState, value: ReadsOpened) -> ReadsState:
    """Remove the reads of batch queries, whose tasks ended with the former service; streams plan again."""
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
    """Number unknown splits: a repeated listing finds the same splits again."""
    assert record.sequence is not None, "a fact has its place"
    splits, numbers, split_count = state.splits, state.numbers, state.split_count
    for split in value.splits:
        if split.split_id not in numbers:
            splits = splits.set(split_count, FoundSplit(split=split, sequence=record.sequence))
            numbers = numbers.set(split.split_id, split_count)
            split_count += 1
    return replace(
        state,
        splits=splits,
        numbers=numbers,
        split_count=split_count,
        newest_sequence=(
            record.sequence if split_count > state.split_count else state.newest_sequence
        ),
        is_listed=state.is_listed or value.is_complete,
    )


def _planned(state: ReadsState, value: ReadPlanned) -> ReadsState:
    if value.read_id in state.reads or is_position(
        start=value.start, end=value.end, reader=value.reader, follows=value.follows
    ):
        return state
    read = Read(
        read_id=value.read_id,
        reader=value.reader,
        start=value.start,
        end=value.end,
        partitions=value.partitions,
        left_out=state.left_out_of(value.start, value.end),
    )
    state = replace(
        state,
        reads=state.reads.set(value.read_id, read),
        planned=max(state.planned, value.end),
    )
    if value.reader:
        state = replace(state, streamed=max(state.streamed, value.end))
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
        # Spark plans a batch after the end of the batch before, which has no commit under its old name.
        for read_id, read in sorted(reads.items()):
            if read.reader == value.follows and read.end <= value.start:
                reads = reads.delete(read_id)
    end = value.end if before is None else max(before.planned, value.end)
    reader = StreamReader(planned=end, committed=committed)
    return replace(state, reads=reads, readers=readers.set(value.reader, reader))


def _splits_given(state: ReadsState, value: SplitsGiven) -> ReadsState:
    read = state.reads[value.read_id]
    listed = read.assigned.get(value.partition, ())
    fresh = value.splits[len(listed) - value.position :]
    if not fresh:
        return state
    numbers = tuple(state.numbers[split.split_id] for split in fresh)
    changed = replace(
        read,
        assigned=read.assigned.set(value.partition, (*listed, *numbers)),
        assigned_count=read.assigned_count + len(numbers),
    )
    return replace(state, reads=state.reads.set(value.read_id, changed))


def _committed(state: ReadsState, value: ReadCommitted) -> ReadsState:
    """Remove the batches of the stream up to `end`: Spark does not run them again."""
    reads = state.reads
    for read_id, read in sorted(reads.items()):
        if read.reader == value.reader and read.end <= value.end:
            reads = reads.delete(read_id)
    before = state.readers.get(value.reader)
    planned = value.end if before is None else max(before.planned, value.end)
    reader = StreamReader(planned=planned, committed=value.end)
    return replace(state, reads=reads, readers=state.readers.set(value.reader, reader))


def _reader_abandoned(state: ReadsState, value: ReaderGivenUp) -> ReadsState:
    reads, readers, abandoned = state.reads, state.readers, state.abandoned
    for read_id, read in sorted(reads.items()):
        if read.reader == value.reader:
            reads = reads.delete(read_id)
    if value.reader in readers:
        readers = readers.delete(value.reader)
    if value.reader not in abandoned:
        abandoned = (*abandoned, value.reader)
    return replace(state, reads=reads, readers=readers, abandoned=abandoned)


def _without(state: ReadsState, forgotten: Iterable[int]) -> ReadsState:
    """The state without these splits, which are known."""
    splits, numbers = state.splits, state.numbers
    for number in forgotten:
        numbers = numbers.delete(splits[number].split.split_id)
        splits = splits.delete(number)
    return replace(state, splits=splits, numbers=numbers)


READS: Final[OperatorProjection[ReadsState]] = OperatorProjection(
    name="coordlog.reads",
    version=1,
    initial=ReadsState(),
    apply=_apply,
    codec=DerivedCodec(ReadsState),
    # Tasks keep their assigned splits through every reset of the coordinator.
    survives_resets=True,
    reads=(
        SplitsDiscovered,
        ReadsOpened,
        ReadsProblem,
        SplitsForgotten,
        KnownSplitsForgotten,
        SplitsReleased,
        EnumeratorState,
        ReaderGivenUp,
        SplitsGiven,
        ReadPlanned,
        ReadCommitted,
    ),
)
