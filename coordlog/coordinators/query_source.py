"""The coordinator of a source that queries read: plans reads, gives out splits, remembers who had which.

It has no subtasks. Planners and tasks of Spark's are its clients: each question is recorded before it
is answered, and the same question gets the same answer, however often and by whomever it is asked.
So nobody needs to be fenced off: what another task of the same partition was given is given again.
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
)
from coordlog.api.operator import SourceReader
from coordlog.coordinators.listing import PatientListing
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
from coordlog.schemas.payload import Payload
from coordlog.schemas.reads import (
    CommitRead,
    EndQuery,
    LookAtReads,
    NextSplits,
    PlanRead,
    QueryEnded,
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
from coordlog.schemas.source_events import Split, SplitsDiscovered
from coordlog.schemas.source_facts import ListingFailed

__all__ = ["CoordinatedSource", "ReadsCoordinator", "ReadsProvider"]

_log = logging.getLogger(__name__)

_SHARES: Final = 4
"""Of what is left a task is given at most one part in so many for each partition: the end is shared finely."""
_PAGE_BYTES: Final = PAYLOAD_BYTES_MAX * 3 // 4
_FORGOTTEN_AT_ONCE: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class CoordinatedSource:
    """A source as queries read it: how it is listed, and what reads its splits."""

    create_reader: Callable[[], SourceReader]
    """Travels to the tasks, so that it must pickle. It does not ask for splits."""
    open_watch: Callable[[], SplitWatch]
    """Made for one coordinator; its `look` says `is_complete` once it has listed what has an end."""
    is_unbounded: bool
    """More may come while the service lives."""
    schema_of: Callable[[Split], pa.Schema]
    """Of a split's rows: the same for all."""
    settle_schema: Callable[[], pa.Schema]
    """The schema where there is no split yet. Blocks; raises SourceError where it cannot be told."""
    weight_of: Callable[[Split], int] = field(default=lambda _split: 0)
    """About how much work it is, in bytes; 0: not known."""
    lane_of: Callable[[Split], str] | None = None
    """Where splits go on where earlier ones of the same lane have ended, as a partition's do: once
    nobody reads them any more, all but the newest of a lane are forgotten. None: none ever are."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those that its state depends on; no secrets."""
    location: str | None = None
    """What it reads; another one is refused where the history has splits, as in `SourceSpec`."""
    allows_other_location: bool = False


class _ListingContext:
    """A source that cannot be listed ends no job: queries are told, and those that run go on."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context

    @property
    def operator_id(self) -> str:
        return self._context.operator_id

    def now_us(self) -> int:
        return self._context.now_us()

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
    """See the module. Keeps, beside the projection, only what follows from it."""

    def __init__(
        self,
        context: CoordinatorContext,
        source: CoordinatedSource,
        listing_timeout_s: float,
        given_up: Collection[str] = (),
        end_query: Callable[[int, str], None] | None = None,
    ) -> None:
        super().__init__(context)
        self._source, self._given_up, self._end_query = source, given_up, end_query
        self._listing = PatientListing(_ListingContext(context), timeout_s=listing_timeout_s)
        self._watch: SplitWatch | None = None
        self._left: dict[str, deque[int]] = {}
        """By read: the numbers of the splits that nobody has, in the order in which they are given."""
        self._weights: dict[int, int] = {}
        self._known: list[Split] = []
        """The splits that are kept, as of the newest look, in their order."""
        self._known_to = 0

    def start(self) -> None:
        """Say that a service begins; then list."""
        history = self.state.history
        if history:
            # In this turn: a look that comes next is not told what the service before had found out.
            self.context.record(ReadsOpened(history=history))
            self._begin()
            return

        def opened(_opened: Payload | None, _error: str | None) -> None:
            self._begin()

        self.context.call_async(lambda: ReadsOpened(history=secrets.token_hex(8)), opened)

    def _begin(self) -> None:
        for reader in sorted(self._given_up):
            known = self.state.readers.get(reader)
            if known is None:
                _log.warning("%s: no stream %s holds anything", self.context.operator_id, reader)
            else:
                _log.info(
                    "%s: stream %s is given up at %d",
                    self.context.operator_id,
                    reader,
                    known.committed,
                )
                self.context.record(ReaderGivenUp(reader=reader))
        self._watch = self._source.open_watch()
        self._look_on()

    def close(self) -> None:
        """Let a worker that waits go."""
        if self._watch is not None:
            self._watch.close()

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """There are no subtasks."""
        raise AssertionError(event)

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Answer a planner or a task."""
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
        raise RequestRefusedError(f"a source for queries is not asked {type(request).__name__}")

    def _end(self, failed: EndQuery) -> None:
        """End the query of a task whose next try would fail in the same way."""
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

    # --- finding ----------------------------------------------------------------------------------
    def _look_on(self) -> None:
        self._listing.begin(self._look, self._looked)

    def _look(self) -> Callable[[], SplitsDiscovered]:
        watch, known = self._watch, self._known_splits()
        assert watch is not None, "opened before"
        return lambda: watch.look(known, frozenset())

    def _known_splits(self) -> list[Split]:
        """All that are kept, in their order: those found since the look before, or anew if some were forgotten."""
        state = self.state
        if len(state.splits) == len(self._known) + state.found - self._known_to:
            new = range(self._known_to, state.found)
            self._known += [state.splits[number].split for number in new]
        else:
            self._known = [kept.split for _, kept in sorted(state.splits.items())]
        self._known_to = state.found
        return list(self._known)  # for a worker, which may be left behind with it

    def _looked(self, found: SplitsDiscovered) -> None:
        if self._listing.is_exhausted and not found.is_complete:
            self._look_on()

    # --- planning ---------------------------------------------------------------------------------
    def _plan(self, request: PlanRead) -> ReadPlanned:
        state = self.state
        known = state.reads.get(request.read_id)
        if known is not None:
            return _planned(known, request)
        check_can_read(state, is_unbounded=self._source.is_unbounded)
        check_reader(state, request)
        end = state.found if request.end < 0 else request.end
        if request.history:
            check_position(state, request.history, request.start, end)
        elif state.first > 0:
            raise RequestRefusedError(
                f"the first {state.first} splits of this history have been read by streams and are "
                "forgotten: read them as a batch under a job id of their own"
            )
        count = end - request.start
        fewest = -(-count // SPLITS_PER_PARTITION_MAX)
        return ReadPlanned(
            read_id=request.read_id,
            reader=request.reader,
            follows=request.follows,
            start=request.start,
            end=end,
            partitions=min(count, max(request.partitions, fewest)),
        )

    # --- giving -----------------------------------------------------------------------------------
    def _next(self, request: NextSplits) -> SplitsGiven:
        state = self.state
        read = state.reads.get(request.read_id)
        if read is None:
            raise RequestRefusedError(
                f"read {request.read_id} is over, or none of this service: load the DataFrame again, and "
                "run its query anew"
            )
        listed = read.given.get(request.partition, ())
        if not (0 <= request.partition < read.partitions and 0 <= request.position <= len(listed)):
            raise RequestRefusedError(
                f"read {read.read_id} has {read.partitions} partitions; partition "
                f"{request.partition} has been given {len(listed)} splits, and position "
                f"{request.position} was asked for"
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
        """As many of them as fit a record, one at least where there are any."""
        page: list[Split] = []
        size = 0
        for number in numbers:
            one = self.state.splits[number].split
            size += len(one.split_id.encode()) + len(one.content) + 16
            if page and size > _PAGE_BYTES:
                break
            page.append(one)
        return page

    def _take(self, read: Read, had: int) -> Sequence[int]:
        """The next splits of a read that nobody has, heaviest first, so that the last are light."""
        left = self._left_of(read)
        allowed = min(SPLITS_AT_ONCE_MAX, SPLITS_PER_PARTITION_MAX - had)
        allowed = min(allowed, max(1, len(left) // (read.partitions * _SHARES)))
        taken: list[int] = []
        weight = 0
        while left and len(taken) < allowed:
            weight += self._weight(left[0])
            if taken and weight > SPLITS_AT_ONCE_WEIGHT:
                break
            taken.append(left.popleft())
        page = len(self._page(taken))
        left.extendleft(reversed(taken[page:]))
        return taken[:page]

    def _left_of(self, read: Read) -> deque[int]:
        left = self._left.get(read.read_id)
        if left is None or len(left) != read.end - read.start - read.given_count:
            given = {one for numbers in read.given.values() for one in numbers}
            numbers = (one for one in range(read.start, read.end) if one not in given)
            left = deque(sorted(numbers, key=lambda one: (-self._weight(one), one)))
            reads = self.state.reads
            self._left = {one: kept for one, kept in self._left.items() if one in reads}
            self._left[read.read_id] = left
        return left

    def _weight(self, number: int) -> int:
        weight = self._weights.get(number)
        if weight is None:
            weight = self._source.weight_of(self.state.splits[number].split)
            self._weights[number] = weight
        return weight

    # --- settling ---------------------------------------------------------------------------------
    def _commit(self, request: CommitRead) -> ReadCommitted:
        state = self.state
        check_position(state, request.history, request.end, request.end)
        # Batch reads hold nothing: they begin at 0, and nobody says when the last of their tasks is over.
        others = ("", request.reader)
        settled = min(
            *(one.committed for name, one in state.readers.items() if name != request.reader),
            *(one.start for one in state.reads.values() if one.reader not in others),
            request.end,
            state.found,
        )
        self._forget(settled)
        return ReadCommitted(reader=request.reader, end=request.end)

    def _forget(self, settled: int) -> None:
        """Let go of splits below `settled` that later ones of their lane stand for."""
        lane_of, state = self._source.lane_of, self.state
        if lane_of is None or settled <= state.first:
            return
        newest: dict[str, int] = {}
        lanes: list[tuple[int, str]] = []
        for number, one in sorted(state.splits.items()):
            lane = lane_of(one.split)
            newest[lane] = number
            lanes.append((number, lane))
        gone = [number for number, lane in lanes if number < settled and newest[lane] != number]
        for first in range(0, max(len(gone), 1), _FORGOTTEN_AT_ONCE):
            page = gone[first : first + _FORGOTTEN_AT_ONCE]
            self.context.record(SplitsForgotten(first=settled, ordinals=page))
        for number in gone:
            self._weights.pop(number, None)


class ReadsProvider(CoordinatorProvider):
    """Makes the coordinators of a source that queries read.

    Args:
        operator_id: The source's.
        source: What is read.
        listing_timeout_s: How long tries to list may fail one after the other.
        given_up: Names of streams that will not go on.
        end_query: Ends the query of a Spark stage, by the stage's id, with a reason. Blocks; runs on a
            worker. None: Spark tries the tasks again, as often as it does.
    """

    projection: OperatorProjection[Any] | None = READS

    def __init__(
        self,
        operator_id: str,
        source: CoordinatedSource,
        *,
        listing_timeout_s: float = LISTING_TIMEOUT_S,
        given_up: Collection[str] = (),
        end_query: Callable[[int, str], None] | None = None,
    ) -> None:
        self.operator_id = operator_id
        self.payload_types = (
            CommitRead,
            EndQuery,
            ListingFailed,
            LookAtReads,
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
            SplitsDiscovered,
            SplitsForgotten,
            SplitsGiven,
        )
        self.looks = {LookAtReads: _look}
        self._source, self._listing_timeout_s = source, listing_timeout_s
        self._given_up, self._end_query = given_up, end_query

    def create(self, context: CoordinatorContext) -> ReadsCoordinator:
        """A new coordinator."""
        return ReadsCoordinator(
            context, self._source, self._listing_timeout_s, self._given_up, self._end_query
        )


def check_can_read(state: ReadsState, *, is_unbounded: bool) -> None:
    """Refuse to read a source of which nobody knows, or will know, what there is.

    Raises:
        RequestRefusedError: With the reason.
    """
    if state.problem:
        raise RequestRefusedError(state.problem)
    if not state.is_listed and not is_unbounded:
        raise RequestRefusedError(
            "the source is being listed: wait for the service to have started"
        )


def check_reader(state: ReadsState, request: PlanRead) -> None:
    """Refuse a new stream if the source has as many as are remembered.

    Raises:
        RequestRefusedError: With the number, and one that may be given up.
    """
    readers = state.readers
    if not request.reader or request.reader in readers or request.follows in readers:
        return
    if len(readers) >= STREAM_READERS_MAX:
        slowest = min(readers, key=lambda name: (readers[name].committed, name))
        raise RequestRefusedError(
            f"the source has {len(readers):,} streams that were not given up, and remembers no more "
            f"than {STREAM_READERS_MAX:,}: start the service with given_up= those that have ended, "
            f"such as {slowest!r}, which has read {readers[slowest].committed:,} splits"
        )


def check_position(state: ReadsState, history: str, start: int, end: int) -> None:
    """Refuse a stream's position that is none of this history.

    Raises:
        RequestRefusedError: With both values.
    """
    if history != state.history:
        raise RequestRefusedError(
            f"the query's checkpoint is of history {history}, and this job's is {state.history}: "
            "another job, or one whose log was made anew; begin the query with a new checkpoint, "
            "or use the job that it was begun with"
        )
    if not state.first <= start <= end <= state.found:
        raise RequestRefusedError(
            f"splits {start} to {end} were asked for, and this history has {state.first} to "
            f"{state.found}: the query's checkpoint is older than what all streams had committed, "
            "or the log has lost records"
        )


def check_kept(state: ReadsState, read: Read, request: NextSplits) -> None:
    """Refuse a task whose splits were forgotten: of a batch read, which streams do not wait for.

    Raises:
        RequestRefusedError: With the first of them.
    """
    needed: Sequence[int] = read.given.get(request.partition, ())[request.position :]
    if not needed and read.given_count < read.end - read.start:
        # Below `first` one of each lane is kept, so that this ends early.
        needed = range(read.start, min(read.end, state.first))
    gone = next((one for one in needed if one not in state.splits), None)
    if gone is not None:
        raise RequestRefusedError(
            f"read {read.read_id}, partition {request.partition}: split {gone} of {read.start} to "
            f"{read.end} is forgotten, as streams have read and committed the first {state.first} of "
            "this history: read them as a batch under a job id of their own"
        )


def _planned(read: Read, request: PlanRead) -> ReadPlanned:
    """What a read was planned to be, whoever plans it again."""
    return ReadPlanned(
        read_id=read.read_id,
        reader=read.reader,
        follows=request.follows,
        start=read.start,
        end=read.end,
        partitions=read.partitions,
    )


def _look(state: ReadsState, request: Payload) -> ReadsSeen:
    """Where a stream's next batch may end."""
    assert isinstance(request, LookAtReads), "it is registered for this type"
    after = request.after
    if after < 0:
        # Spark asks before it says where its stream is: at the start, or behind the one that there is.
        planned = sorted(one.planned for one in state.readers.values())
        after = state.first if not planned else planned[0] if len(planned) == 1 else -1
    end = state.found
    if request.splits_max and after >= 0:
        end = max(after, min(end, after + request.splits_max))
    return ReadsSeen(
        history=state.history,
        end=end,
        sequence=state.sequence_of(end),
        first=state.first,
        is_listed=state.is_listed,
        problem=state.problem,
    )
