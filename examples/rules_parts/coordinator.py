"""The driver's side: makes rules while rows flow, and owes every subtask each of them, once."""

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
    """What the coordinator knows of one subtask."""

    sent: int = 0
    """The newest rule that it has been sent; what is above it is owed."""
    applied: int = 0
    """The newest rule that it has said to be in force."""
    rows: int | None = None
    """All its rows, once it has finished."""

    def hear(self, event: Payload) -> None:
        """The subtask's word. Raises RulesOutOfOrderError where one is lost or comes twice."""
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
    """All that a checkpoint must keep of the coordinator."""

    def __init__(self) -> None:
        self.factors: list[int] = []
        """Rule n's is at n - 1."""
        self._views: dict[int, View] = {}

    @property
    def views(self) -> Mapping[int, View]:
        """By subtask; those that nothing was sent to or heard from may be missing."""
        return self._views

    def view(self, subtask: int) -> View:
        """Of one subtask."""
        return self._views.setdefault(subtask, View())

    def to_bytes(self) -> bytes:
        """For a checkpoint."""
        views = {str(subtask): asdict(view) for subtask, view in sorted(self._views.items())}
        return json.dumps({"factors": self.factors, "views": views}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RulesState:
        """From a checkpoint."""
        made, loaded = cls(), json.loads(data)
        made.factors = loaded["factors"]
        made._views = {int(subtask): View(**view) for subtask, view in loaded["views"].items()}
        return made


class RulesCoordinator(OperatorCoordinator):
    """Makes a rule every `interval_s`, and one in the middle of each checkpoint.

    What is owed to a subtask without an attempt is sent when its next attempt is ready.
    """

    def __init__(self, context: CoordinatorContext, interval_s: float) -> None:
        self._context, self._interval_s = context, interval_s
        self._state = RulesState()
        self._gateways: dict[int, SubtaskGateway] = {}

    def start(self) -> None:
        """Timers do not outlive a coordinator: begin one."""
        self._context.schedule(self._interval_s, self._tick)

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Hear it; the same where a restore delivers it again."""
        self._state.view(subtask).hear(event)

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """There is a way again: send what is owed."""
        self._gateways[subtask] = gateway
        self._send_owed(subtask)

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        """The way is gone; what is made from here on is owed."""
        self._gateways.pop(subtask, None)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """One subtask goes back: what it was sent and has said since then has not happened."""
        lost, view = self._context.lost_events(subtask), self._state.view(subtask)
        view.sent -= len(lost.to_subtask)
        for event in lost.to_coordinator:
            if isinstance(event, RulesFinished):
                view.rows = None
            else:
                view.applied -= 1

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Hand over the state; a rule made after that is none of this checkpoint's, and waits."""
        result.complete(self._state.to_bytes())
        self._make_rule()

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """All go back, this one too."""
        if state is not None:
            self._state = RulesState.from_bytes(state)

    def _tick(self) -> None:
        self._make_rule()
        self._context.schedule(self._interval_s, self._tick)

    def _make_rule(self) -> None:
        self._state.factors.append(self._context.random().randint(2, 1000))
        for subtask in sorted(self._gateways):
            self._send_owed(subtask)

    def _send_owed(self, subtask: int) -> None:
        view, gateway = self._state.view(subtask), self._gateways[subtask]
        if view.rows is not None:
            return
        for number in range(view.sent + 1, len(self._state.factors) + 1):
            factor = self._state.factors[number - 1]
            gateway.send_event(RuleUpdate(number=number, factor=factor))
            view.sent = number


class RulesProvider(CoordinatorProvider):
    """Makes the coordinators, and names what they and their subtasks exchange."""

    operator_id = OPERATOR_ID
    payload_types: tuple[type[Payload], ...] = (RuleUpdate, RuleApplied, RulesFinished)

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s

    def create(self, context: CoordinatorContext) -> RulesCoordinator:
        """A new one."""
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
