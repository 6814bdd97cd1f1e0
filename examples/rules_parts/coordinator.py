"""The driver's side: makes rules while rows flow, and sends each to every subtask, once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

from coordlog import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
    OperatorSpec,
    Payload,
    SubtaskGateway,
)

from .events import RuleApplied, RulesFinished, RuleUpdate
from .operator import RulesOperator, RulesOutOfOrderError

__all__ = ["OPERATOR_ID", "RulesCoordinator", "RulesProvider", "RulesState", "View", "rules_spec"]

OPERATOR_ID = "rules"


@dataclass(slots=True, kw_only=True)
class View:
    """The coordinator's state of a subtask."""

    sent: int = 0
    """Number of the newest rule that was sent to it; newer ones are still to be sent."""
    applied: int = 0
    """Number of the newest rule that it has reported as in force."""
    rows: int | None = None
    """Number of all its rows once it has finished, or None before."""

    def hear(self, event: Payload) -> None:
        """Apply an event of the subtask. Raises RulesOutOfOrderError if one is lost or arrives twice."""
        match event:
            case RuleApplied(number=number):
                expected = self.applied + 1
            case RulesFinished(number=number):
                expected = self.applied
            case _:
                raise AssertionError(f"{type(event).__name__} is none of the operator's events")
        if number != expected or self.rows is not None:
            raise RulesOutOfOrderError(f"heard {event}, expected rule {expected}")
        self.applied = number
        if isinstance(event, RulesFinished):
            self.rows = event.rows


class RulesState:
    """The coordinator's whole state: the content of its checkpoints."""

    def __init__(self) -> None:
        self.factors: list[int] = []
        """Factors of the rules; that of rule n has index n - 1."""
        self._views: dict[int, View] = {}

    @property
    def views(self) -> Mapping[int, View]:
        """Views by subtask; one without any event may be missing."""
        return self._views

    def view(self, subtask: int) -> View:
        """The view of a subtask."""
        return self._views.setdefault(subtask, View())

    def to_bytes(self) -> bytes:
        """The state as bytes, for a checkpoint."""
        views = {str(subtask): asdict(view) for subtask, view in sorted(self._views.items())}
        return json.dumps({"factors": self.factors, "views": views}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RulesState:
        """The state in a checkpoint."""
        state, loaded = cls(), json.loads(data)
        state.factors = loaded["factors"]
        state._views = {int(subtask): View(**view) for subtask, view in loaded["views"].items()}
        return state


class RulesCoordinator(OperatorCoordinator):
    """Makes a rule every `interval_s`, and one in the middle of each checkpoint.

    A subtask without an attempt gets its rules when its next attempt is ready.
    """

    def __init__(self, context: CoordinatorContext, interval_s: float) -> None:
        self._context, self._interval_s = context, interval_s
        self._state = RulesState()

    def start(self) -> None:
        """Start the timer: timers end with their coordinator."""
        self._context.schedule(self._interval_s, self._tick)

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Apply it, also if a restore delivers it again."""
        self._state.view(subtask).hear(event)

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Send the rules that the subtask does not have."""
        self._send_owed(subtask)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Undo the events to and from the subtask since the checkpoint."""
        lost, view = self._context.lost_events(subtask), self._state.view(subtask)
        view.sent -= len(lost.to_subtask)
        for event in lost.to_coordinator:
            if isinstance(event, RulesFinished):
                view.rows = None
            else:
                view.applied -= 1

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Complete with the state; a rule made after that is not part of the checkpoint, and waits."""
        result.complete(self._state.to_bytes())
        self._make_rule()

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Restore the state: all subtasks and this coordinator go back."""
        if state is not None:
            self._state = RulesState.from_bytes(state)

    def _tick(self) -> None:
        self._make_rule()
        self._context.schedule(self._interval_s, self._tick)

    def _make_rule(self) -> None:
        self._state.factors.append(self._context.random().randint(2, 1000))
        for subtask in self._context.gateways:
            self._send_owed(subtask)

    def _send_owed(self, subtask: int) -> None:
        view, gateway = self._state.view(subtask), self._context.gateways[subtask]
        if view.rows is not None:
            return
        for number in range(view.sent + 1, len(self._state.factors) + 1):
            factor = self._state.factors[number - 1]
            gateway.send_event(RuleUpdate(number=number, factor=factor))
            view.sent = number


class RulesProvider(CoordinatorProvider):
    """Makes the coordinators, and declares the types of their events."""

    operator_id = OPERATOR_ID
    payload_types: tuple[type[Payload], ...] = (RuleUpdate, RuleApplied, RulesFinished)

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s

    def create(self, context: CoordinatorContext) -> RulesCoordinator:
        """A new coordinator."""
        return RulesCoordinator(context, self._interval_s)


def rules_spec(*, interval_s: float = 0.1, pause_s: float = 0.0) -> OperatorSpec:
    """The operator as a link of a chain.

    Args:
        interval_s: Seconds between two rules.
        pause_s: As in `RulesOperator`.
    """
    return OperatorSpec(
        operator_id=OPERATOR_ID,
        create_operator=partial(RulesOperator, pause_s),
        coordinator=RulesProvider(interval_s),
    )
