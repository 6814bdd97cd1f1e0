"""Rounds of an iteration: each subtask contributes, the coordinator combines, and all go on with the new model.

The subtasks first read their rows to the end. A round ends once all have contributed; the model that follows is a
record of the history. After the last round each subtask emits its rows with the final model. Over failures:

- local failover: the new attempt reads its rows again, or has them from its checkpoint, and contributes to the round in
  progress; rounds that have ended stay;
- global failover and restore: the rounds go on from that of the checkpoint; a resume keeps all ended rounds;
- rescaling: the rows go with the states of removed subtasks, and all contribute to the round in progress anew;
- batch: there are no checkpoints: a failed attempt reads its rows again, and a resume keeps all ended rounds.

All rows of a subtask are in its memory, and in each checkpoint; a batch job has none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from immutables import Map

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
    SubtaskGateway,
)
from coordlog.api.operator import Operator, OperatorContext, PollStatus, Snapshot, Waiting
from coordlog.coordinators.held_rows import HeldRows
from coordlog.errors import OptionError
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import (
    Payload,
    decode_versioned,
    encode_versioned,
    event,
    fact,
    payload,
)
from coordlog.schemas.record import Kind, Record

__all__ = [
    "BeginRound",
    "Contributed",
    "Iteration",
    "RoundEnded",
    "RoundsCoordinator",
    "RoundsOperator",
    "RoundsProvider",
    "RoundsState",
    "SubtaskRows",
    "rounds_operator",
]


class Iteration(ABC):
    """The parts of an iteration. Pickled to the tasks; `combine` runs on the driver."""

    @abstractmethod
    def contribute(self, rows: Sequence[pa.RecordBatch], model: bytes) -> bytes:
        """A subtask's contribution to a round: from its rows, maybe none, and the model of the round before.

        The same rows must give the same contribution. The model of the first round is empty.
        """

    @abstractmethod
    def combine(self, model: bytes, contributions: Sequence[bytes]) -> tuple[bytes, bool]:
        """The next model, and whether the iteration has converged.

        Args:
            model: Model of the round before; empty in the first.
            contributions: One of each subtask, in the order of the subtasks. A callback of the driver: must be quick,
                and compute the result from its arguments alone.
        """

    @abstractmethod
    def emit(self, rows: Sequence[pa.RecordBatch], model: bytes) -> Iterable[pa.RecordBatch]:
        """The output of a subtask: from its rows and the final model."""


@event("coordlog.round.contributed", version=1)
class Contributed(Payload):
    """Up: a subtask's contribution to a round."""

    round: int
    content: bytes


@fact("coordlog.round.ended", version=1)
class RoundEnded(Payload):
    """The end of a round."""

    round: int
    """0 first."""
    model: bytes
    is_last: bool
    has_converged: bool


@event("coordlog.round.begin", version=1)
class BeginRound(Payload):
    """Down: the round in progress with its model, or after the last round the final model."""

    round: int
    model: bytes
    is_over: bool


@payload("coordlog.round.subtask_rows", version=1)
class SubtaskRows(Payload):
    """State of the operator in a snapshot."""

    rows: list[bytes]


_EMITTED: Final = b""
"""State of the operator once it has emitted its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsState:
    """State of the coordinator. Only `_fold` and snapshots create it."""

    round: int = 0
    """The round in progress."""
    model: bytes = b""
    """Model of the round before."""
    is_over: bool = False
    """Whether the last round has ended."""
    contributions: Map[int, bytes] = field(default_factory=Map)
    """Contributions of live attempts to the round in progress, by subtask."""


def _fold(state: RoundsState, record: Record, value: Payload | None) -> RoundsState:
    """The state after one more record."""
    subtask = record.subtask or 0
    match record.kind:
        case Kind.FACT if isinstance(value, RoundEnded):
            return RoundsState(round=value.round + 1, model=value.model, is_over=value.is_last)
        case Kind.EVENT_TO_COORDINATOR if isinstance(value, Contributed):
            if value.round != state.round:
                return state
            return replace(state, contributions=state.contributions.set(subtask, value.content))
        case Kind.ATTEMPT_STARTED | Kind.SUBTASK_RESET if subtask in state.contributions:
            return replace(state, contributions=state.contributions.delete(subtask))
        case Kind.RESET_TO_CHECKPOINT:
            return replace(state, contributions=Map())
        case Kind.COORDINATORS_STARTED:
            return RoundsState()  # opened again: another iteration
        case _:
            return state


_ROUNDS: Final = OperatorProjection(
    name="coordlog.rounds",
    version=1,
    initial=RoundsState(),
    apply=_fold,
    codec=DerivedCodec(RoundsState),
    reads=(Contributed, RoundEnded),
)


class RoundsCoordinator(EventSourcedCoordinator[RoundsState]):
    """Ends a round once all subtasks have contributed."""

    def __init__(self, context: CoordinatorContext, iteration: Iteration, rounds_max: int) -> None:
        super().__init__(context)
        self._iteration, self._rounds_max = iteration, rounds_max

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """End the round if this was the last missing contribution."""
        state, gateways = self.state, self.context.gateways
        if self.context.is_redelivery or state.is_over:
            return
        # A redelivered contribution is of an attempt that is over, and maybe of a subtask that the job has no more.
        parts = {n: part for n, part in state.contributions.items() if n in gateways}
        absent = self.context.finished_subtasks - parts.keys()  # before the operator was added
        if len(parts) < self.context.current_parallelism() - len(absent):
            return
        contributions = [parts[number] for number in sorted(parts)]
        model, has_converged = self._iteration.combine(state.model, contributions)
        self.context.record(
            RoundEnded(
                round=state.round,
                model=model,
                is_last=has_converged or state.round + 1 >= self._rounds_max,
                has_converged=has_converged,
            )
        )
        for gateway in gateways.values():
            self._begin(gateway)

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Send the round in progress."""
        self._begin(gateway)

    def _begin(self, gateway: SubtaskGateway) -> None:
        state = self.state
        gateway.send_event(BeginRound(round=state.round, model=state.model, is_over=state.is_over))


class RoundsProvider(CoordinatorProvider):
    """Makes the coordinators. Raises OptionError if `rounds_max` is below 1."""

    payload_types: tuple[type[Payload], ...] = (Contributed, RoundEnded, BeginRound)
    projection: OperatorProjection[Any] | None = _ROUNDS

    def __init__(self, operator_id: str, iteration: Iteration, rounds_max: int) -> None:
        if rounds_max < 1:
            raise OptionError("rounds_max", rounds_max, "at least 1")
        self.operator_id, self._iteration, self._rounds_max = operator_id, iteration, rounds_max

    def create(self, context: CoordinatorContext) -> RoundsCoordinator:
        """A new coordinator."""
        return RoundsCoordinator(context, self._iteration, self._rounds_max)


class RoundsOperator(Operator):
    """Holds all rows; contributes once to each round, and emits after the last."""

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self._current: BeginRound | None = None
        self._contributed = -1
        """Newest round to which this attempt has contributed."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Begin with the rows of the restored checkpoint."""
        self._context = context
        self._has_emitted = state == _EMITTED
        parts = decode_versioned(SubtaskRows, state).rows if state else []
        self._rows = HeldRows(parts)

    def handle_event(self, event: Payload) -> None:
        """Begin a round; `finish` is called after this, if all rows are read."""
        assert isinstance(event, BeginRound)
        self._current = event

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """No rows: they are held."""
        self._rows.append(batch)
        return ()

    def finish(self) -> Iterable[pa.RecordBatch | Waiting] | Waiting:
        """Contribute to the round in progress; after the last round, emit."""
        current = self._current
        if self._has_emitted:
            return ()
        if current is None:
            return PollStatus.WAITING
        batches = self._rows.batches()
        if current.is_over:
            self._has_emitted = True
            self._rows.clear()
            return self._iteration.emit(batches, current.model)
        if self._contributed < current.round:
            content = self._iteration.contribute(batches, current.model)
            self._context.send_event(Contributed(round=current.round, content=content))
            self._contributed = current.round
        return PollStatus.WAITING

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """The rows; once they are emitted, operators behind may hold them."""
        if self._has_emitted:
            return Snapshot(state=_EMITTED)
        return Snapshot(state=encode_versioned(SubtaskRows(rows=self._rows.to_parts())))


def _merged(states: Sequence[bytes]) -> bytes:
    parts = [decode_versioned(SubtaskRows, state) for state in states if state != _EMITTED]
    if not parts:
        return _EMITTED
    return encode_versioned(SubtaskRows(rows=[rows for part in parts for rows in part.rows]))


def rounds_operator(
    iteration: Iteration, *, rounds_max: int = 100, operator_id: str = "rounds"
) -> OperatorSpec:
    """An operator that iterates over all rows of a bounded input in rounds, as a link of a chain.

    Args:
        iteration: Parts of the iteration; its class is in a module that the workers can import.
        rounds_max: Number of rounds after which the iteration ends also if it has not converged.
        operator_id: Id of the operator.

    Raises:
        OptionError: `rounds_max` is below 1.
    """
    return OperatorSpec(
        operator_id=operator_id,
        create_operator=partial(RoundsOperator, iteration),
        coordinator=RoundsProvider(operator_id, iteration, rounds_max),
        merge_states=_merged,
    )
