"""The subtask's side: prices each row by the rule in force, and adds the rule's number to the row."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from coordlog import Operator, OperatorContext, Payload, Snapshot

from .events import RuleApplied, RulesFinished, RuleUpdate

__all__ = ["NO_RULE", "RuleInForce", "RulesOperator", "RulesOutOfOrderError"]


class RulesOutOfOrderError(Exception):
    """A rule, or an event about one, came twice, too early, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInForce:
    """The operator's whole state: the content of a snapshot."""

    number: int
    factor: int
    rows: int
    """Number of rows that this subtask has emitted since the job began."""

    def to_bytes(self) -> bytes:
        """The state as bytes, for a snapshot."""
        return json.dumps([self.number, self.factor, self.rows]).encode()

    @classmethod
    def from_bytes(cls, state: bytes) -> RuleInForce:
        """The state in a snapshot."""
        number, factor, rows = json.loads(state)
        return cls(number=number, factor=factor, rows=rows)


NO_RULE = RuleInForce(number=0, factor=1, rows=0)


class RulesOperator(Operator):
    """Adds to each row its subtask, its place among the subtask's rows, the rule, and the price.

    Args:
        pause_s: Delay of each batch, seconds, so that there is time for a kill.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self._state = NO_RULE

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Begin with the state of the restored checkpoint."""
        self._context = context
        if state is not None:
            self._state = RuleInForce.from_bytes(state)

    def handle_event(self, event: Payload) -> None:
        """Bring a rule into force; the event to the coordinator precedes the rule's ack."""
        assert isinstance(event, RuleUpdate)
        state = self._state
        if event.number != state.number + 1:
            raise RulesOutOfOrderError(f"rule {event.number} came after rule {state.number}")
        self._state = RuleInForce(number=event.number, factor=event.factor, rows=state.rows)
        self._context.send_event(RuleApplied(number=event.number))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch, priced."""
        time.sleep(self._pause_s)
        state, count = self._state, batch.num_rows
        self._state = RuleInForce(number=state.number, factor=state.factor, rows=state.rows + count)
        added = {
            "subtask": pa.array([self._context.subtask] * count, pa.int64()),
            "nth": pa.array(range(state.rows + 1, state.rows + count + 1), pa.int64()),
            "rule": pa.array([state.number] * count, pa.int64()),
            "price": pa.array(batch.column("amount").to_numpy() * state.factor, pa.int64()),
        }
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, *added.values()], names=[*batch.schema.names, *added]
        )

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """The rule and the number of rows before the barrier."""
        return Snapshot(state=self._state.to_bytes())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Report the end of the rows."""
        self._context.send_event(RulesFinished(number=self._state.number, rows=self._state.rows))
        yield from ()

    def final_snapshot(self) -> Snapshot:
        """The same as at a barrier."""
        return Snapshot(state=self._state.to_bytes())
