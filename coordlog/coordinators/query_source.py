"""The coordinator of a source that queries read: plans reads, assigns splits, keeps the assignments.

It has no subtasks; its clients are Spark's planners and tasks. Each request is recorded before it is
answered, and a repeated request gets the same answer, also from another client. So no client needs
fencing: two tasks of one partition get the same splits.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
    Sink,
)
from coordlog.api.operator import SourceReader
from coordlog.coordinators.enumerator import SHARES
from coordlog.coordinators.known_reads import KnownOfReads
from coordlog.coordinators.listing import PatientListing, Relisted, once_settled
from coordlog.coordinators.query_rejects import QueryRejects
from coordlog.coordinators.splits import NoteEvent
from coordlog.coordinators.watching import SplitWatch
from coordlog.errors import RequestRefusedError
from coordlog.limits import (
    LISTING_TIMEOUT_S,
    PAYLOAD_BYTES_MAX,
    SPLITS_AT_ONCE_MAX,
    SPLITS_AT_ONCE_WEIGHT,
    SPLITS_PER_PARTITION_MAX,
    STREAM_READERS_MAX,
)
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.splits.query_reads import READS, Read, ReadsState
from coordlog.projections.splits.table import SplitsByOrdinal
from coordlog.schemas.payload import Payload
from coordlog.schemas.reads import (
    CommitRead,
    EndQuery,
    NextSplits,
    PlanRead,
    QueryEnded,
    QueryReads,
    ReadCommitted,
    ReaderGivenUp,
    ReadFailed,
    ReadFailureNoted,
    ReadPlanned,
    ReadsOpened,
    ReadsProblem,
    ReadsSeen,
    SplitsForgotten,
    SplitsGiven,
)
from coordlog.schemas.record import NO_CHECKPOINT
from coordlog.schemas.source_types import (
    EnumeratorState,
    KnownSplitsForgotten,
    ListingFailed,
    ReleaseSplits,
    Split,
    SplitsDiscovered,
    SplitsReleased,
)

__all__ = ["CoordinatedSource", "QueryWatch", "ReadsCoordinator", "ReadsProvider"]

_log = logging.getLogger(__name__)

_PAGE_BYTES: Final = PAYLOAD_BYTES_MAX * 3 // 4
"""Limit of the splits in one `SplitsGiven`."""
_FORGOTTEN_AT_ONCE: Final = 10_000
"""Limit of the splits in one `SplitsForgotten`."""


@dataclass(frozen=True, kw_only=True)
class QueryWatch:
    """The listing of one coordinator."""

    watch: SplitWatch
    note_fact: NoteEvent | None = None
    """Bytes that the coordinator keeps after a fact of a listing, and after its last page; None: it keeps none."""
    release: Callable[[SplitsByOrdinal, Sequence[int]], Sequence[ReleaseSplits]] | None = None
    """Intents for the input of splits that all streams have committed: arguments are the known splits, and ordinals of
    those that are committed since the last call. None: input stays as it is."""


@dataclass(frozen=True, kw_only=True)
class CoordinatedSource:
    """A source that queries read: its listing, and the reader of its splits."""

    create_reader: Callable[[], SourceReader]
    """Factory of the reader; pickled and sent to the tasks. The reader requests no splits."""
    open_watch: Callable[[bytes | None], QueryWatch]
    """Factory of the listing, called once per coordinator with the bytes that former ones kept. `look` of a bounded
    source ends with `is_complete`."""
    is_unbounded: bool
    """Whether splits may be added while the service runs."""
    schema_of: Callable[[Split], pa.Schema]
    """Schema of a split's rows: the same for all splits."""
    settle_schema: Callable[[bytes | None], pa.Schema]
    """The schema if no split is known, from the bytes that `QueryWatch.note_fact` kept. Blocks; raises SourceError if
    the schema is unknown."""
    weight_of: Callable[[Split], int] = field(default=lambda _split: 0)
    """Approximate size of a split, bytes; 0 if unknown."""
    lane_of: Callable[[Split], str] | None = None
    """Lane of a split, such as its Kafka partition: a split begins at the end of the one before it in its lane. All
    but the newest of a lane are forgotten once all streams have read them. None: no split is forgotten."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Options that the state depends on; no secrets."""
    location: str | None = None
    """Location of the input; another one is refused if the history has splits, as in `SourceSpec`."""
    inputs: Sequence[str] = ()
    """As in `SourceSpec`."""
    archive: str | None = None
    """Place to which committed input is moved, as in `SourceSpec`."""
    allows_other_location: bool = False
    payload_types: Sequence[type[Payload]] = ()
    """Facts of the source's own."""
    sink: Sink | None = None
    """Settles the intents of `QueryWatch.release`, also those of a service before; None: there are none."""
    releases: str = ""
    """The option by which committed input is released, such as `after_commit`; empty if it stays. Batch reads, which
    have no commit, are refused then."""
    rejects: QueryRejects | None = None
    """Place of the bad rows that `create_reader`'s reader emits as rejects; None: it emits none."""
    readers: Mapping[str, Callable[[], SourceReader]] = field(
        default_factory=dict[str, Callable[[], SourceReader]]
    )
    """Factories by the value of a query's option `bad_rows`: `fail`, `skip`, or spellings of the place of `rejects`."""


class _ListingContext:
    """Context of a listing whose failure ends no job: new queries get the error, and running queries continue."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context

    @property
    def operator_id(self) -> str:
        return self._context.operator_id

    def call_async(
        self,
        work: Callable[[], Payload],
        handler: Callable[[Payload | None, str | None], None],
    ) -> None:
        self._context.call_async(work, handler)

    def schedule(self, delay_s: float, handler: Callable[[], None]) -> None:
        self._context.schedule(delay_s, handler)

    def fail_job(self, cause: BaseException | str, *, is_final: bool = False) -> None:
        self._context.record(ReadsProblem(problem=str(cause)))


class ReadsCoordinator(EventSourcedCoordinator[ReadsState]):
    """See the module. Its attributes are caches of the projection's state."""

    def __init__(
        self,
        context: CoordinatorContext,
        source: CoordinatedSource,
        listing_timeout_s: float,
        abandoned: Collection[str] = (),
        end_query: Callable[[int, str], None] | None = None,
        on_stage: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(context)
        self._source, self._abandoned, self._end_query = source, abandoned, end_query
        self._on_stage, self._stage_id = on_stage, -1
        self._listing = PatientListing(_ListingContext(context), timeout_s=listing_timeout_s)
        self._watch: QueryWatch | None = None
        self._released_to = 0
        """Number of the first split that `QueryWatch.release` has not had."""
        self._unassigned: dict[str, deque[int]] = {}
        """Numbers of the unassigned splits by read, in the order of their assignment."""
        self._weights: dict[int, int] = {}
        self._known: list[Split] = []
        """Stored splits at the newest listing, in the order of discovery."""
        self._known_to = 0

    def start(self) -> None:
        """Record that the service has started; then list."""
        history = self.state.history
        if history:
            # In this turn: a query in the next turn must not see the former service's listing.
            self.context.record(ReadsOpened(history=history))
            self._begin()
            return

        def opened(_opened: Payload | None, _error: str | None) -> None:
            self._begin()

        self.context.call_async(lambda: ReadsOpened(history=secrets.token_hex(8)), opened)

    def _begin(self) -> None:
        for reader in sorted(self._abandoned):
            position = self.state.readers.get(reader)
            if position is None:
                _log.warning("%s: no stream is called %s", self.context.operator_id, reader)
            else:
                _log.info(
                    "%s: stream %s is abandoned at split %d",
                    self.context.operator_id,
                    reader,
                    position.committed,
                )
                self.context.record(ReaderGivenUp(reader=reader))
        self._watch = self._source.open_watch(self.state.kept)
        if self._watch.release is None:
            once_settled(self.context, self._list_again)
        else:
            # Its watch tolerates new input of a name that is being released.
            self._release(self.state.settled)
            self._list_again()

    def close(self) -> None:
        """Release a worker that waits for new splits."""
        if self._watch is not None:
            self._watch.watch.close()

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Never called: there are no subtasks."""
        raise AssertionError(event)

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Answer to a request of a planner or a task."""
        if isinstance(request, PlanRead):
            return self._plan(request)
        if isinstance(request, NextSplits):
            return self._next(request)
        if isinstance(request, CommitRead):
            return self._commit(request)
        if isinstance(request, EndQuery):
            self._end(request)
            return ReadFailureNoted()
        if isinstance(request, ReadFailed):
            return ReadFailureNoted()
        raise RequestRefusedError(f"a source for queries has no request {type(request).__name__}")

    def _end(self, failed: EndQuery) -> None:
        """End the query of a task whose next attempt would fail in the same way."""
        end_query = self._end_query
        if end_query is None:
            return

        def end() -> QueryEnded:
            end_query(failed.stage_id, failed.reason)
            return QueryEnded(stage_id=failed.stage_id, reason=failed.reason)

        def ended(_ended: Payload | None, error: str | None) -> None:
            if error is not None:
                _log.warning("stage_id=%d could not be cancelled: %s", failed.stage_id, error)

        self.context.call_async(end, ended)

    # --- listing ----------------------------------------------------------------------------------
    def _list_again(self) -> None:
        self._listing.begin(self._look, self._looked, self._noted)

    def _look(self) -> Callable[[], SplitsDiscovered | Relisted]:
        opened, known = self._watch, KnownOfReads(self._known_splits(), self.state)
        assert opened is not None, "opened before"
        return lambda: opened.watch.look(known, frozenset())

    def _noted(self, fact: Payload) -> None:
        """Record the kept bytes after a fact of a listing, or its last page: the next listing relies on them."""
        note_fact, before = None if self._watch is None else self._watch.note_fact, self.state.kept
        kept = before if note_fact is None else note_fact(before, fact)
        if kept is not None and kept != before:
            self.context.record(EnumeratorState(content=kept))

    def _known_splits(self) -> list[Split]:
        """All stored splits, in the order of discovery. Extends the cache, or rebuilds it if splits were forgotten."""
        state = self.state
        if len(state.splits) == len(self._known) + state.split_count - self._known_to:
            new = range(self._known_to, state.split_count)
            self._known += [state.splits[number].split for number in new]
        else:
            self._known = [kept.split for _, kept in sorted(state.splits.items())]
            self._weights = {n: w for n, w in self._weights.items() if n in state.splits}
        self._known_to = state.split_count
        return list(self._known)  # a copy: a worker that is abandoned may still read it

    def _looked(self, page: SplitsDiscovered) -> None:
        if not self._listing.is_exhausted:
            return
        self._noted(page)
        self._release(self.state.settled)  # also for an idle stream: what has failed is tried again
        if not page.is_complete:
            self._list_again()

    # --- planning ---------------------------------------------------------------------------------
    def _plan(self, request: PlanRead) -> ReadPlanned:
        state = self.state
        planned = state.reads.get(request.read_id)
        if planned is not None:
            return _planned(planned, request)
        check_can_read(state, is_unbounded=self._source.is_unbounded)
        if self._source.releases and not request.history:
            raise RequestRefusedError(
                f"a batch DataFrame has no commit, and with {self._source.releases} files are moved or deleted once "
                "streams have committed their rows: read the source under a job id of its own, without this option"
            )
        check_reader(state, request)
        end = state.split_count if request.end < 0 else request.end
        if request.history:
            check_position(state, request.history, request.start, end)
            check_stream(state, request)
        elif state.first > 0:
            raise RequestRefusedError(
                f"the first {state.first} splits of this history have been read by streams and are "
                "forgotten: read them as a batch under a job id of their own"
            )
        count = end - request.start - state.left_out_of(request.start, end)
        fewest = -(-count // SPLITS_PER_PARTITION_MAX)
        return ReadPlanned(
            read_id=request.read_id,
            reader=request.reader,
            follows=request.follows,
            start=request.start,
            end=end,
            partitions=min(count, max(request.partitions, fewest)),
        )

    # --- assignment -------------------------------------------------------------------------------
    def _next(self, request: NextSplits) -> SplitsGiven:
        if self._on_stage is not None and request.stage_id != self._stage_id:
            self._stage_id = request.stage_id
            self._on_stage(request.stage_id)
        state = self.state
        read = state.reads.get(request.read_id)
        if read is None:
            raise RequestRefusedError(
                f"read {request.read_id} has ended, or belongs to another service: load the DataFrame again, and "
                "run its query again"
            )
        listed = read.assigned.get(request.partition, ())
        if not (0 <= request.partition < read.partitions and 0 <= request.position <= len(listed)):
            raise RequestRefusedError(
                f"read {read.read_id} has {read.partitions} partitions; partition "
                f"{request.partition} has been assigned {len(listed)} splits, and position "
                f"{request.position} was requested"
            )
        check_kept(state, read, request)
        numbers = listed[request.position :] or self._take(read, len(listed))
        return SplitsGiven(
            read_id=read.read_id,
            partition=request.partition,
            position=request.position,
            splits=self._page(numbers),
        )

    def _page(self, numbers: Sequence[int]) -> list[Split]:
        """The first splits, as many as one record can hold; at least one if `numbers` is not empty."""
        page: list[Split] = []
        size = 0
        for number in numbers:
            split = self.state.splits[number].split
            size += len(split.split_id.encode()) + len(split.content) + 16
            if page and size > _PAGE_BYTES:
                break
            page.append(split)
        return page

    def _take(self, read: Read, assigned_count: int) -> Sequence[int]:
        """Numbers of the next splits of a read, heaviest first, so that the last ones are light.

        `assigned_count` is the number of splits that the partition has already.
        """
        unassigned = self._unassigned_of(read)
        allowed = min(SPLITS_AT_ONCE_MAX, SPLITS_PER_PARTITION_MAX - assigned_count)
        allowed = min(allowed, max(1, len(unassigned) // (read.partitions * SHARES)))
        taken: list[int] = []
        weight = 0
        while unassigned and len(taken) < allowed:
            weight += self._weight(unassigned[0])
            if taken and weight > SPLITS_AT_ONCE_WEIGHT:
                break
            taken.append(unassigned.popleft())
        page = len(self._page(taken))
        unassigned.extendleft(reversed(taken[page:]))
        return taken[:page]

    def _unassigned_of(self, read: Read) -> deque[int]:
        unassigned = self._unassigned.get(read.read_id)
        if unassigned is None or len(unassigned) != read.count - read.assigned_count:
            assigned = {number for numbers in read.assigned.values() for number in numbers}
            known = self.state.splits
            numbers = (n for n in range(read.start, read.end) if n not in assigned and n in known)
            unassigned = deque(sorted(numbers, key=lambda n: (-self._weight(n), n)))
            reads = self.state.reads
            self._unassigned = {
                read_id: queue for read_id, queue in self._unassigned.items() if read_id in reads
            }
            self._unassigned[read.read_id] = unassigned
        return unassigned

    def _weight(self, number: int) -> int:
        weight = self._weights.get(number)
        if weight is None:
            weight = self._source.weight_of(self.state.splits[number].split)
            self._weights[number] = weight
        return weight

    # --- commits ----------------------------------------------------------------------------------
    def _commit(self, request: CommitRead) -> ReadCommitted:
        state = self.state
        check_position(state, request.history, request.end, request.end)
        settled = state.settled_after(request.reader, request.end)
        self._forget(settled)
        self._release(settled)
        return ReadCommitted(reader=request.reader, end=request.end)

    def _forget(self, settled: int) -> None:
        """Forget the splits below `settled` that have a later split in their lane."""
        lane_of, state = self._source.lane_of, self.state
        if lane_of is None or settled <= state.first:
            return
        newest: dict[str, int] = {}
        lanes: list[tuple[int, str]] = []
        for number, listed in sorted(state.splits.items()):
            lane = lane_of(listed.split)
            newest[lane] = number
            lanes.append((number, lane))
        forgotten = [
            number for number, lane in lanes if number < settled and newest[lane] != number
        ]
        for first in range(0, max(len(forgotten), 1), _FORGOTTEN_AT_ONCE):
            page = forgotten[first : first + _FORGOTTEN_AT_ONCE]
            self.context.record(SplitsForgotten(first=settled, ordinals=page))
        for number in forgotten:
            self._weights.pop(number, None)

    def _release(self, settled: int) -> None:
        """Commit the intents to release the input of the splits below `settled`, which a stream has committed."""
        release, state = None if self._watch is None else self._watch.release, self.state
        if release is None or not state.readers:
            return
        if settled > state.first:
            # In this turn: a stream that begins later would miss what is released.
            self.context.record(SplitsForgotten(first=settled, ordinals=[]))
            state = self.state
        committed = [n for n in range(self._released_to, settled) if n in state.splits]
        self._released_to = max(self._released_to, settled)
        for intent in release(state, committed):
            self.context.commit(NO_CHECKPOINT, intent)


class ReadsProvider(CoordinatorProvider):
    """Makes the coordinators of a source that queries read.

    Args:
        operator_id: Id of the source.
        source: The source.
        listing_timeout_s: Limit of the time for which attempts to list may fail one after the other, seconds.
        abandoned: Names of abandoned streams: they do not continue.
        end_query: Ends the query of a Spark stage, by the stage's id, with a reason. Blocks; runs on a
            worker. None: Spark retries the task up to its own limit.
        on_stage: Called with the id of the Spark stage whose tasks request splits, before they get any, and
            again if another stage's have done so in between. On the mailbox; never blocks.
    """

    projection: OperatorProjection[Any] | None = READS

    def __init__(
        self,
        operator_id: str,
        source: CoordinatedSource,
        *,
        listing_timeout_s: float = LISTING_TIMEOUT_S,
        abandoned: Collection[str] = (),
        end_query: Callable[[int, str], None] | None = None,
        on_stage: Callable[[int], None] | None = None,
    ) -> None:
        self.operator_id = operator_id
        self.payload_types = (
            CommitRead,
            EndQuery,
            EnumeratorState,
            KnownSplitsForgotten,
            ListingFailed,
            QueryReads,
            NextSplits,
            PlanRead,
            QueryEnded,
            ReadCommitted,
            ReadFailed,
            ReadFailureNoted,
            ReadPlanned,
            ReaderGivenUp,
            ReadsOpened,
            ReadsProblem,
            ReadsSeen,
            ReleaseSplits,
            SplitsDiscovered,
            SplitsForgotten,
            SplitsGiven,
            SplitsReleased,
            *source.payload_types,
        )
        self.sink, self.releases_input = source.sink, source.sink is not None
        self.queries = {QueryReads: _answer}
        self._source, self._listing_timeout_s = source, listing_timeout_s
        self._abandoned, self._end_query, self._on_stage = abandoned, end_query, on_stage

    def create(self, context: CoordinatorContext) -> ReadsCoordinator:
        """A new coordinator."""
        return ReadsCoordinator(
            context,
            self._source,
            self._listing_timeout_s,
            self._abandoned,
            self._end_query,
            self._on_stage,
        )


def check_can_read(state: ReadsState, *, is_unbounded: bool) -> None:
    """Refuse to read a source whose listing has failed, or is bounded and not complete.

    Raises:
        RequestRefusedError: With the reason.
    """
    if state.problem:
        raise RequestRefusedError(state.problem)
    if not state.is_listed and not is_unbounded:
        raise RequestRefusedError(
            "the listing of the source is in progress: wait until the service has started"
        )


def check_reader(state: ReadsState, request: PlanRead) -> None:
    """Refuse a new stream if the source has `STREAM_READERS_MAX` streams.

    Raises:
        RequestRefusedError: With the number, and the name of the slowest stream, which may be abandoned.
    """
    readers = state.readers
    if not request.reader or request.reader in readers or request.follows in readers:
        return
    if len(readers) >= STREAM_READERS_MAX:
        slowest = min(readers, key=lambda name: (readers[name].committed, name))
        raise RequestRefusedError(
            f"the source has {len(readers):,} streams that were not given up, and the limit is "
            f"{STREAM_READERS_MAX:,}: start the service with abandoned= those that have ended, "
            f"such as {slowest!r}, which has read {readers[slowest].committed:,} splits"
        )


def check_position(state: ReadsState, history: str, start: int, end: int) -> None:
    """Refuse a stream's position that this history does not have.

    Raises:
        RequestRefusedError: With both values.
    """
    if history != state.history:
        raise RequestRefusedError(
            f"the query's checkpoint is of history {history}, and this job's is {state.history}: "
            "another job, or one with a new log; begin the query with a new checkpoint, "
            "or use the job with which it began"
        )
    if not state.first <= start <= end <= state.split_count:
        raise RequestRefusedError(
            f"splits {start} to {end} were requested, and this history has {state.first} to "
            f"{state.split_count}: the query has begun after, or its checkpoint is older than, the commits of all "
            "streams, or the log has lost records; read the source under a job id of its own"
        )


def check_stream(state: ReadsState, request: PlanRead) -> None:
    """Refuse a stream that would continue before its own commits at splits that are forgotten.

    A stream that begins leaves these out.

    Raises:
        RequestRefusedError: With the number of these splits.
    """
    left_out = state.left_out_of(request.start, request.end)
    reader = state.readers.get(request.follows) or state.readers.get(request.reader)
    continues = request.start > 0 or request.reader in state.abandoned
    if left_out and continues and (reader is None or request.start < reader.committed):
        raise RequestRefusedError(
            f"{left_out} of the splits {request.start} to {request.end} are forgotten: the query's checkpoint is "
            "older than its commits, or its stream was abandoned; begin the query with a new checkpoint"
        )


def check_kept(state: ReadsState, read: Read, request: NextSplits) -> None:
    """Refuse a task whose splits were forgotten. Only of batch reads: these keep no splits.

    Raises:
        RequestRefusedError: With the first forgotten split.
    """
    needed: Sequence[int] = read.assigned.get(request.partition, ())[request.position :]
    if not needed and read.assigned_count < read.count:
        # Below `first` one of each lane is kept, so that this ends early. Other batch reads keep their splits.
        needed = range(read.start, min(read.end, state.first))
    missing = next((number for number in needed if number not in state.splits), None)
    if missing is not None:
        raise RequestRefusedError(
            f"read {read.read_id}, partition {request.partition}: split {missing} of {read.start} to "
            f"{read.end} is forgotten, as streams have read and committed the first {state.first} of "
            "this history: read them as a batch under a job id of their own"
        )


def _planned(read: Read, request: PlanRead) -> ReadPlanned:
    """The first plan of a read, as the answer to a repeated request."""
    return ReadPlanned(
        read_id=read.read_id,
        reader=read.reader,
        follows=request.follows,
        start=read.start,
        end=read.end,
        partitions=read.partitions,
    )


def _answer(state: ReadsState, request: Payload) -> ReadsSeen:
    """Answer to `QueryReads`: the possible end of a stream's next batch."""
    assert isinstance(request, QueryReads), "it is registered for this type"
    after = request.after
    if after < 0:
        # Spark's first query of a stream has no position: it is the position of the only stream, or the start.
        planned = sorted(reader.planned for reader in state.readers.values())
        after = state.first if not planned else planned[0] if len(planned) == 1 else -1
    end = state.split_count
    if request.splits_max and after >= 0:
        end = max(after, min(end, after + request.splits_max))
    if request.after < 0:
        # An abandoned stream that continues is not among the readers: its batch must not end before its start.
        end = max(end, state.streamed)
    return ReadsSeen(
        history=state.history,
        end=end,
        sequence=state.sequence_of(end),
        first=state.first,
        is_listed=state.is_listed,
        problem=state.problem,
    )
