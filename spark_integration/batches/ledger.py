"""Which batches of which query are committed: a fold of the log, and the coordinator that asks it."""

from __future__ import annotations

from collections.abc import Collection
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
from coordlog.limits import FORMER_QUERIES_MAX, NAMED_WRITES_MAX, UNNAMED_WRITES_REMEMBERED
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
    "is_unnamed",
    "standing_of",
    "unnamed_write",
    "why_refused",
]

BATCHES: Final = "batches"
"""The operator id."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchKey:
    """What a batch is known by."""

    query_id: str
    """Of the streaming query, from its checkpoint; of a batch write its id."""
    batch_id: int
    is_write: bool = False
    """A batch write: it has no query."""

    def __str__(self) -> str:
        if self.is_write:
            return f"write {self.query_id}"
        return f"batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """The newest batch of the query with an intent and not all of its parts done, or a write's part with an intent."""

    batch_id: int
    open_intent: int | None
    """Its sequence; None where all intents have an outcome."""
    done_sinks: tuple[str, ...] = ()
    left_sinks: tuple[str, ...] = ()
    """Those of its parts that have not taken them."""
    ranges: str = ""
    """Fingerprint of where its sources end; empty if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesState:
    """What the log says of a job's batches."""

    query_id: str = ""
    """The query that the job belongs to now; empty before the first."""
    former: tuple[str, ...] = ()
    """Queries whose place another has taken, oldest first."""
    last_done: int = -1
    """The highest batch of the query that is committed whole: Spark replays none before its last."""
    last_ranges: str = ""
    """Fingerprint of where the sources of that batch end; empty if it is not known."""
    begun: _Begun | None = None
    writes: Map[str, _Begun] = field(default_factory=Map)
    """Batch writes that are not done, by id and sink; in older snapshots by id."""
    writes_done: Map[str, int] = field(default_factory=Map)
    """The sequence of their last outcome, by id and sink; one by its id alone, as before, is done at all sinks."""
    unnamed_done: tuple[str, ...] = ()
    """The newest writes without a name that are done, by id and sink, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one batch stands."""

    is_done: bool = False
    open_intent: int | None = None
    done_sinks: tuple[str, ...] = ()
    left_sinks: tuple[str, ...] = ()
    """Those that have not taken their part of an intent that has an outcome."""


def standing_of(state: BatchesState, key: BatchKey, sinks: Collection[str]) -> Standing:
    """How a batch stands by the log. One of a query that is not the job's has not begun.

    Args:
        state: The log's.
        key: The batch.
        sinks: Where a batch write is asked about: it is known by its id and its sink.
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
    names = (write_id, *(_write_name(write_id, one) for one in sorted(sinks)))
    begun = [state.writes[one] for one in names if one in state.writes]
    intents = [one.open_intent for one in begun if one.open_intent is not None]
    done.update(sink for one in begun for sink in one.done_sinks)
    return Standing(open_intent=next(iter(intents), None), done_sinks=tuple(sorted(done)))


def unnamed_write(token: str) -> str:
    """The id of a write that was given none: it begins with a hyphen, which no given one does."""
    return f"-{token}"


def is_unnamed(write_id: str) -> bool:
    """Whether only the writer itself can ask for this write again."""
    return write_id.startswith("-")


def _write_name(write_id: str, sink: str) -> str:
    """What a write to a sink is known by; no write's id has a slash."""
    return f"{write_id}/{sink}"


def why_refused(
    state: BatchesState, key: BatchKey, instead_of: str, ranges: str = ""
) -> str | None:
    """Why a batch may not be committed; None if it may.

    Args:
        state: The log's.
        key: The batch.
        instead_of: The older query whose place this one may take.
        ranges: Fingerprint of where its sources end; empty if it is not known.
    """
    if key.is_write:
        return _why_no_write(state, key)
    if not state.query_id:
        return None
    if key.query_id == state.query_id:
        return _why_no_batch(state, key, ranges)
    if key.query_id in state.former:  # first: what it has committed is not known any more
        return (
            f"query {state.query_id} has taken the place of query {key.query_id}, whose batches are "
            "not committed any more, whatever instead_of says: end it, and go on with "
            f"{state.query_id} or a query with a new checkpoint"
        )
    if instead_of == state.query_id:
        if state.begun is not None and state.begun.open_intent is not None:
            return f"batch {state.begun.batch_id} of query {state.query_id} is being committed"
        if len(state.former) >= FORMER_QUERIES_MAX:
            return (
                f"the job has had {len(state.former):,} queries before query {state.query_id}, and "
                f"remembers no more than {FORMER_QUERIES_MAX:,}: give the new query a job id of its own"
            )
        return None
    return (
        f"the job has batches of query {state.query_id}, up to {state.last_done}, and this is query "
        f"{key.query_id}, with another checkpoint: what the older one has committed would be "
        f"committed again. Start it with the older one's checkpoint; where it begins after what "
        f"that one has done, allow it with instead_of={state.query_id!r}"
    )


def _why_no_write(state: BatchesState, key: BatchKey) -> str | None:
    if is_unnamed(key.query_id) or len(state.writes_done) < NAMED_WRITES_MAX:
        return None
    prefix = _write_name(key.query_id, "")
    if any(name.startswith(prefix) for name in state.writes_done):
        return None
    return (
        f"the job has {len(state.writes_done):,} writes with a name, and remembers no more than "
        f"{NAMED_WRITES_MAX:,}: give further writes another job id, or no write_id"
    )


def _why_no_batch(state: BatchesState, key: BatchKey, ranges: str) -> str | None:
    begun = state.begun
    if begun is not None and begun.open_intent is None and key.batch_id > begun.batch_id:
        return (
            f"batch {begun.batch_id} of query {key.query_id} is begun and not committed at "
            f"{', '.join(map(repr, begun.left_sinks))}, and Spark gives batch {key.batch_id}: the "
            "rows between are lost. Go on with a copy of the checkpoint in which it is not done"
        )
    there, known = "", ""
    if key.batch_id == state.last_done:
        there, known = "is committed", state.last_ranges
    elif begun is not None and begun.batch_id == key.batch_id and begun.done_sinks:
        there = f"is at {', '.join(map(repr, begun.done_sinks))}"
        known = begun.ranges
    if not ranges or not known or ranges == known:
        return None
    return (
        f"{key} {there} with other rows: its sources ended at {known} (a fingerprint), and end at "
        f"{ranges} now. The file offsets/{key.batch_id} of the checkpoint was lost or changed, and "
        "Spark has planned the batch anew: to skip it would lose rows, to write it would double "
        "some. Put the file back from a copy; else begin a query with a new checkpoint after the "
        f"rows that are there, with instead_of={key.query_id!r}"
    )


# --- the fold ---------------------------------------------------------------------------------------------------------
def _apply(state: BatchesState, record: Record, value: Payload | None) -> BatchesState:
    if record.kind is Kind.COMMIT_INTENT and isinstance(value, BatchIntent):
        return _intent(state, record.sequence or 0, value)
    if record.kind is Kind.COMMIT_OUTCOME and isinstance(value, BatchOutcome):
        return _outcome(state, record.sequence or 0, value)
    return state


def _intent(state: BatchesState, sequence: int, value: BatchIntent) -> BatchesState:
    if value.is_write:
        begun = _Begun(batch_id=value.batch_id, open_intent=sequence)
        names = (_write_name(value.query_id, one.sink) for one in value.parts)
        return replace(state, writes=state.writes.update(dict.fromkeys(names, begun)))
    if value.query_id != state.query_id:
        former = (*state.former, state.query_id) if state.query_id else state.former
        state = replace(
            state,
            query_id=value.query_id,
            former=former,
            last_done=-1,
            last_ranges="",
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
    if all(one.is_done for one in value.parts):
        return replace(state, begun=None, last_done=value.batch_id, last_ranges=begun.ranges)
    sinks = {*begun.done_sinks, *(part.sink for part in value.parts if part.is_done)}
    left = {part.sink for part in value.parts if not part.is_done}
    begun = replace(
        begun,
        open_intent=None,
        done_sinks=tuple(sorted(sinks)),
        left_sinks=tuple(sorted(left)),
    )
    return replace(state, begun=begun)


def _write_outcome(state: BatchesState, sequence: int, value: BatchOutcome) -> BatchesState:
    names = {_write_name(value.query_id, one.sink): one.is_done for one in value.parts}
    writes = state.writes
    for one in (value.query_id, *names):  # by its id alone in a state of an older snapshot
        if one in writes:
            writes = writes.delete(one)
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
)


# --- the coordinator --------------------------------------------------------------------------------------------------
class BatchCoordinator(EventSourcedCoordinator[BatchesState]):
    """Gives an intent for each batch that may be committed and is not."""

    def __init__(self, context: CoordinatorContext, sinks: frozenset[str], driver_id: str) -> None:
        super().__init__(context)
        self._sinks, self._driver_id = sinks, driver_id

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """There are no subtasks."""
        raise NotImplementedError(f"subtask {subtask} sent a {type(event).__name__}")

    def handle_coordination_request(self, request: Payload) -> Payload:
        """`CommitBatch`, answered before its sinks have done it."""
        if not isinstance(request, CommitBatch):
            raise RequestRefusedError(f"a {type(request).__name__} is not known here")
        key = BatchKey(
            query_id=request.query_id, batch_id=request.batch_id, is_write=request.is_write
        )
        if why_not := why_refused(self.state, key, request.instead_of, request.ranges):
            raise RequestRefusedError(why_not)
        sinks = {one.sink for one in request.parts} or self._sinks
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
                f"it is staged for driver {request.driver_id}, and this is driver "
                f"{self._driver_id}: start the query again"
            )
        for one in request.parts:
            if one.sink not in self._sinks:
                known = ", ".join(sorted(self._sinks))
                raise RequestRefusedError(f"there is no sink {one.sink!r}; there are: {known}")
            if one.sink in standing.done_sinks:
                raise RequestRefusedError(f"sink {one.sink!r} has its part of this batch already")


class BatchProvider(CoordinatorProvider):
    """Makes the coordinators of a job's batches.

    Args:
        sink: Settles their intents.
        sinks: The names of the sinks that it knows.
        destination: Where they write, as the log is to have it: no credentials.
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

    def __init__(self, *, sink: Sink, sinks: frozenset[str], destination: str) -> None:
        self.sink, self.destination = sink, destination
        self._sinks = sinks
        self.driver_id = ""
        """Of the driver, in the names of all that is staged; set before it starts. Empty: of none, as in a replay."""

    def create(self, context: CoordinatorContext) -> BatchCoordinator:
        """A new coordinator."""
        return BatchCoordinator(context, self._sinks, self.driver_id)
