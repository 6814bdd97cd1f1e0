"""Committed batches of each query: a fold of the log, and the coordinator that reads its state."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final

from immutables import Map

from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
    Sink,
)
from coordlog.errors import RequestRefusedError
from coordlog.limits import (
    BATCH_RANGES_REMEMBERED,
    FORMER_QUERIES_MAX,
    NAMED_WRITES_MAX,
    UNNAMED_WRITES_REMEMBERED,
)
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record
from coordlog.spark_integration.batches.payloads import (
    BatchIntent,
    BatchOutcome,
    BatchPart,
    BatchStanding,
    CommitBatch,
    PartOutcome,
)
from coordlog.spark_integration.files.payloads import StagedFile

__all__ = [
    "BATCHES",
    "BatchKey",
    "BatchProvider",
    "BatchesState",
    "Standing",
    "free_place",
    "is_unnamed",
    "standing_of",
    "unnamed_write",
    "why_refused",
]

BATCHES: Final = "batches"
"""The operator id."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchKey:
    """Identity of a batch."""

    query_id: str
    """Id of the streaming query, from its checkpoint, or of the batch write."""
    batch_id: int
    is_write: bool = False
    """Whether it is a batch write, which has no query."""

    def __str__(self) -> str:
        if self.is_write:
            return f"write {self.query_id}"
        return f"batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """The newest batch of the query, if it has an intent and unfinished parts, or a write's part with an intent."""

    batch_id: int
    open_intent: int | None
    """Sequence of the intent without an outcome, or None if all have one."""
    done_sinks: tuple[str, ...] = ()
    left_sinks: tuple[str, ...] = ()
    """Sinks that have not taken their part."""
    ranges: str = ""
    """Fingerprint of the positions at which its sources end; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesState:
    """State of a job's batches by the log."""

    query_id: str = ""
    """Query that the job belongs to now; empty before the first."""
    former: tuple[str, ...] = ()
    """Queries that were replaced by another, oldest first."""
    last_done: int = -1
    """Highest batch of the query that is committed whole. Spark runs one before it again only from an older copy of
    its checkpoint."""
    last_ranges: str = ""
    """Fingerprint of the positions at which the sources of that batch end; empty if unknown."""
    earlier_ranges: Map[int, str] = field(default_factory=Map)
    """Fingerprints of the newest batches before that one, by number, without unknown ones."""
    begun: _Begun | None = None
    writes: Map[str, _Begun] = field(default_factory=Map)
    """Unfinished batch writes, by id and sink; in older snapshots by id."""
    writes_done: Map[str, int] = field(default_factory=Map)
    """Sequence of the last outcome of each finished write, by id and sink; an id without a sink, as in older
    snapshots, is finished at all sinks."""
    unnamed_done: tuple[str, ...] = ()
    """Newest finished writes without a name, by id and sink, oldest first."""
    last_number: int = 0
    """Number of the newest intent."""
    places: Map[int, int] = field(default_factory=Map)
    """Places of the intents without an outcome, by their sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Progress of one batch."""

    is_done: bool = False
    open_intent: int | None = None
    done_sinks: tuple[str, ...] = ()
    left_sinks: tuple[str, ...] = ()
    """Sinks that have not taken their part of an intent that has an outcome."""


def standing_of(state: BatchesState, key: BatchKey, sinks: Collection[str]) -> Standing:
    """Progress of a batch by the log. A batch of a query that is not the job's has not begun.

    Args:
        state: State by the log.
        key: The batch.
        sinks: Sinks of a batch write, which is identified by id and sink.
    """
    if key.is_write:
        return _write_standing(state, key.query_id, sinks)
    if key.query_id != state.query_id:
        return Standing()
    if key.batch_id <= state.last_done:
        return Standing(is_done=True)
    begun = state.begun
    if begun is None or begun.batch_id != key.batch_id:
        return Standing()
    return Standing(
        open_intent=begun.open_intent, done_sinks=begun.done_sinks, left_sinks=begun.left_sinks
    )


def _write_standing(state: BatchesState, write_id: str, sinks: Collection[str]) -> Standing:
    known = state.unnamed_done if is_unnamed(write_id) else state.writes_done
    done = {sink for sink in sinks if _write_name(write_id, sink) in known}
    if write_id in state.writes_done or (done and done.issuperset(sinks)):
        return Standing(is_done=True)
    names = (write_id, *(_write_name(write_id, sink) for sink in sorted(sinks)))
    writes = [state.writes[name] for name in names if name in state.writes]
    intents = [write.open_intent for write in writes if write.open_intent is not None]
    done.update(sink for write in writes for sink in write.done_sinks)
    return Standing(open_intent=next(iter(intents), None), done_sinks=tuple(sorted(done)))


def unnamed_write(token: str) -> str:
    """Id of a write without a name: it begins with a hyphen, which no user's `write_id` does."""
    return f"-{token}"


def is_unnamed(write_id: str) -> bool:
    """Whether the write has no name, so that only its own writer can request it again."""
    return write_id.startswith("-")


def _write_name(write_id: str, sink: str) -> str:
    """Key of a write to a sink; ids of writes have no slash."""
    return f"{write_id}/{sink}"


def free_place(state: BatchesState) -> int:
    """Lowest place that no open intent has."""
    taken = set(state.places.values())
    return next(place for place in range(len(taken) + 1) if place not in taken)


def why_refused(
    state: BatchesState, key: BatchKey, instead_of: str, ranges: str = ""
) -> str | None:
    """Reason to refuse a batch; None if it may be committed.

    Args:
        state: State by the log.
        key: The batch.
        instead_of: The older query that this one may replace.
        ranges: Fingerprint of the positions at which its sources end; empty if unknown.
    """
    if key.is_write:
        return _why_no_write(state, key)
    if not state.query_id:
        return None
    if key.query_id == state.query_id:
        return _why_no_batch(state, key, ranges)
    if key.query_id in state.former:  # first: the state keeps nothing of its commits
        return (
            f"query {state.query_id} has taken the place of query {key.query_id}, whose batches are "
            f"not committed any more, with any value of instead_of: end query {key.query_id}, and go "
            f"on with {state.query_id} or a query with a new checkpoint"
        )
    if instead_of == state.query_id:
        if state.begun is not None and state.begun.open_intent is not None:
            return f"batch {state.begun.batch_id} of query {state.query_id} is being committed"
        if len(state.former) >= FORMER_QUERIES_MAX:
            return (
                f"the job has had {len(state.former):,} queries before query {state.query_id}, and "
                f"remembers no more than {FORMER_QUERIES_MAX:,}: use a job id of its own for the new query"
            )
        return None
    return (
        f"the job has batches of query {state.query_id}, up to {state.last_done}, and this is query "
        f"{key.query_id}, with another checkpoint: rows that the older query has committed would be "
        f"committed again. Start it with the older query's checkpoint; if it begins after the rows "
        f"of the older query, allow it with instead_of={state.query_id!r}"
    )


def _why_no_write(state: BatchesState, key: BatchKey) -> str | None:
    if is_unnamed(key.query_id) or len(state.writes_done) < NAMED_WRITES_MAX:
        return None
    prefix = _write_name(key.query_id, "")
    if any(name.startswith(prefix) for name in state.writes_done):
        return None
    return (
        f"the job has {len(state.writes_done):,} writes with a name, and remembers no more than "
        f"{NAMED_WRITES_MAX:,}: use another job id for further writes, or no write_id"
    )


def _why_no_batch(state: BatchesState, key: BatchKey, ranges: str) -> str | None:
    begun = state.begun
    if begun is not None and begun.open_intent is None and key.batch_id > begun.batch_id:
        return (
            f"batch {begun.batch_id} of query {key.query_id} is begun and not committed at "
            f"{', '.join(map(repr, begun.left_sinks))}, and Spark starts batch {key.batch_id}: the "
            "rows between are lost. Go on with a copy of the checkpoint in which it is not done"
        )
    if key.batch_id < state.last_done:
        known = state.earlier_ranges.get(key.batch_id, "")
        if not ranges or not known:
            # Spark itself runs only the last batch again.
            return _anew(
                key,
                f"is committed, as are later ones up to {state.last_done}, and its fingerprint is not known to be the "
                f"one of now: {known or 'none'} then, {ranges or 'none'} now",
            )
        progress = "is committed"
    elif key.batch_id == state.last_done:
        progress, known = "is committed", state.last_ranges
    elif begun is not None and begun.batch_id == key.batch_id and begun.done_sinks:
        progress, known = f"is at {', '.join(map(repr, begun.done_sinks))}", begun.ranges
    else:
        return None
    if not ranges or not known or _are_same(ranges, known):
        return None
    return _anew(
        key,
        f"{progress} with other rows: its sources ended at {known} (a fingerprint), and end at {ranges} now",
    )


def _anew(key: BatchKey, fact: str) -> str:
    """Reason to refuse a batch that is committed, and that Spark may have planned again with other rows."""
    return (
        f"{key} {fact}. The file offsets/{key.batch_id} of the checkpoint was lost or changed, or the checkpoint is an "
        "older copy, and Spark has planned the batch anew: to skip it would lose rows, to write it would double "
        "some. Put the newest checkpoint back; else begin a query with a new checkpoint after the "
        f"committed rows, with instead_of={key.query_id!r}"
    )


def _are_same(ranges: str, known: str) -> bool:
    """Whether two fingerprints are of one batch: their second parts are compared if both have one."""
    parts = [fingerprint.partition(".") for fingerprint in (ranges, known)]
    (first, _, listed), (other, _, other_listed) = parts
    return first == other and (listed == other_listed or not (listed and other_listed))


# --- the fold ---------------------------------------------------------------------------------------------------------
def _apply(state: BatchesState, record: Record, value: Payload | None) -> BatchesState:
    if record.kind is Kind.COMMIT_INTENT and isinstance(value, BatchIntent):
        sequence = record.sequence or 0
        places = state.places.set(sequence, value.place)
        state = replace(state, last_number=value.number, places=places)
        return _intent(state, sequence, value)
    if record.kind is Kind.COMMIT_OUTCOME and isinstance(value, BatchOutcome):
        if record.cause is not None and record.cause in state.places:
            state = replace(state, places=state.places.delete(record.cause))
        return _outcome(state, record.sequence or 0, value)
    return state


def _intent(state: BatchesState, sequence: int, value: BatchIntent) -> BatchesState:
    if value.is_write:
        begun = _Begun(batch_id=value.batch_id, open_intent=sequence)
        names = (_write_name(value.query_id, part.sink) for part in value.parts)
        return replace(state, writes=state.writes.update(dict.fromkeys(names, begun)))
    if value.query_id != state.query_id:
        former = (*state.former, state.query_id) if state.query_id else state.former
        state = replace(
            state,
            query_id=value.query_id,
            former=former,
            last_done=-1,
            last_ranges="",
            earlier_ranges=Map(),
            begun=None,
        )
    before = state.begun
    done = () if before is None or before.batch_id != value.batch_id else before.done_sinks
    begun = _Begun(
        batch_id=value.batch_id, open_intent=sequence, done_sinks=done, ranges=value.ranges
    )
    return replace(state, begun=begun)


def _outcome(state: BatchesState, sequence: int, value: BatchOutcome) -> BatchesState:
    if value.is_write:
        return _write_outcome(state, sequence, value)
    begun = state.begun
    assert begun is not None, "an intent came before it"
    if all(part.is_done for part in value.parts):
        return replace(
            state,
            begun=None,
            last_done=value.batch_id,
            last_ranges=begun.ranges,
            earlier_ranges=_earlier_ranges(state, value.batch_id),
        )
    sinks = {*begun.done_sinks, *(part.sink for part in value.parts if part.is_done)}
    left = {part.sink for part in value.parts if not part.is_done}
    begun = replace(
        begun,
        open_intent=None,
        done_sinks=tuple(sorted(sinks)),
        left_sinks=tuple(sorted(left)),
    )
    return replace(state, begun=begun)


def _earlier_ranges(state: BatchesState, batch_id: int) -> Map[int, str]:
    """The fingerprints to keep once this batch is committed."""
    earlier = state.earlier_ranges
    if state.last_ranges and state.last_done < batch_id:
        earlier = earlier.set(state.last_done, state.last_ranges)
    for number in sorted(earlier)[:-BATCH_RANGES_REMEMBERED]:
        earlier = earlier.delete(number)
    return earlier


def _write_outcome(state: BatchesState, sequence: int, value: BatchOutcome) -> BatchesState:
    names = {_write_name(value.query_id, part.sink): part.is_done for part in value.parts}
    writes = state.writes
    for name in (value.query_id, *names):  # the id alone: in a state of an older snapshot
        if name in writes:
            writes = writes.delete(name)
    done = [name for name, is_done in names.items() if is_done]
    if is_unnamed(value.query_id):
        remembered = (*state.unnamed_done, *done)[-UNNAMED_WRITES_REMEMBERED:]
        return replace(state, writes=writes, unnamed_done=remembered)
    writes_done = state.writes_done.update(dict.fromkeys(done, sequence))
    return replace(state, writes=writes, writes_done=writes_done)


_PROJECTION: Final[OperatorProjection[BatchesState]] = OperatorProjection(
    name="coordlog.batches",
    version=1,
    initial=BatchesState(),
    apply=_apply,
    codec=DerivedCodec(BatchesState),
    survives_resets=True,
    reads=(BatchIntent, BatchOutcome),
)


# --- the coordinator --------------------------------------------------------------------------------------------------
class BatchCoordinator(EventSourcedCoordinator[BatchesState]):
    """Creates an intent for each batch that may be committed and is not."""

    def __init__(self, context: CoordinatorContext, sinks: frozenset[str], driver_id: str) -> None:
        super().__init__(context)
        self._sinks, self._driver_id = sinks, driver_id

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """There are no subtasks."""
        raise NotImplementedError(f"subtask {subtask} sent a {type(event).__name__}")

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Answers a `CommitBatch` before its sinks have committed it.

        Raises:
            RequestRefusedError: The batch may not be committed, or the request is of another type.
        """
        if not isinstance(request, CommitBatch):
            raise RequestRefusedError(f"a {type(request).__name__} is not known here")
        key = BatchKey(
            query_id=request.query_id, batch_id=request.batch_id, is_write=request.is_write
        )
        if why_not := why_refused(self.state, key, request.instead_of, request.ranges):
            raise RequestRefusedError(why_not)
        sinks = {part.sink for part in request.parts} or self._sinks
        standing = standing_of(self.state, key, sinks)
        if request.parts and not standing.is_done and standing.open_intent is None:
            self._check_parts(request, standing)
            self.context.commit(
                NO_CHECKPOINT,
                BatchIntent(
                    query_id=request.query_id,
                    batch_id=request.batch_id,
                    is_write=request.is_write,
                    parts=request.parts,
                    ranges=request.ranges,
                    number=max(self.state.last_number + 1, self.context.now_us()),
                    place=free_place(self.state),
                    epoch=self.context.epoch,
                ),
            )
            standing = standing_of(self.state, key, sinks)
        return BatchStanding(
            is_open=standing.open_intent is not None,
            is_done=standing.is_done,
            done_sinks=list(standing.done_sinks),
        )

    def _check_parts(self, request: CommitBatch, standing: Standing) -> None:
        if self._driver_id not in ("", request.driver_id):
            raise RequestRefusedError(
                f"the batch is staged for driver {request.driver_id}, and this is driver "
                f"{self._driver_id}: start the query again"
            )
        for part in request.parts:
            if part.sink not in self._sinks:
                known = ", ".join(sorted(self._sinks))
                raise RequestRefusedError(f"there is no sink {part.sink!r}; there are: {known}")
            if part.sink in standing.done_sinks:
                raise RequestRefusedError(f"sink {part.sink!r} has its part of this batch already")


class BatchProvider(CoordinatorProvider):
    """Makes the coordinators of a job's batches.

    Args:
        sink: Settles their intents.
        sinks: Names of the sinks.
        destination: Their destinations as written to the log: without credentials.
        refuse_writes_above: Called with a job id and the number of the newest intent in the job's log. Raises SinkError
            if a destination has a batch write of the job with a higher number.
    """

    operator_id = BATCHES
    payload_types: tuple[type[Payload], ...] = (
        StagedFile,
        BatchPart,
        PartOutcome,
        CommitBatch,
        BatchStanding,
        BatchIntent,
        BatchOutcome,
    )
    projection: OperatorProjection[Any] | None = _PROJECTION

    def __init__(
        self,
        *,
        sink: Sink,
        sinks: frozenset[str],
        destination: str,
        refuse_writes_above: Callable[[str, int], None],
    ) -> None:
        self.sink, self.destination = sink, destination
        self._sinks, self._refuse_writes_above = sinks, refuse_writes_above
        self.driver_id = ""
        """Id of the driver, in the names of all staged data; set before it starts. Empty if there is none, as in a
        replay."""

    def refuse_unknown_commits(self, job_id: str, state: BatchesState | None) -> None:
        """Refuse a table with batch writes that the log has not, as after a return to an older copy of it.

        Raises:
            SinkError: A table has some.
        """
        self._refuse_writes_above(job_id, (state or BatchesState()).last_number)

    def create(self, context: CoordinatorContext) -> BatchCoordinator:
        """A new coordinator."""
        return BatchCoordinator(context, self._sinks, self.driver_id)
