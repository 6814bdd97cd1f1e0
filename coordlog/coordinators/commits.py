"""The coordinator of a sink: commits each completed checkpoint (H1, H3: logged as intent and outcome)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from coordlog.api.coordinator import (
    CommittableOf,
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
    Sink,
)
from coordlog.errors import OptionError
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Record

__all__ = ["COMMITS", "CommitCoordinator", "CommitCoordinatorProvider", "MakeIntent"]

MakeIntent = Callable[[int, Sequence[CommittableOf]], Payload]


def _nothing(state: None, record: Record, value: Payload | None) -> None:
    """Fold of a coordinator without state."""


COMMITS: Final[OperatorProjection[None]] = OperatorProjection(
    name="coordlog.commits",
    version=1,
    initial=None,
    apply=_nothing,
    codec=DerivedCodec(type(None)),
    reads=(),
)


class CommitCoordinator(EventSourcedCoordinator[None]):
    """Commits at `notify_checkpoint_complete`; has no state of its own.

    The job state records the committables and the intents that cover them. So a repeated
    notification commits only the committables that no intent covers.
    """

    def __init__(
        self,
        context: CoordinatorContext,
        make_intent: MakeIntent,
        *,
        committables_per_intent: int | None = None,
    ) -> None:
        super().__init__(context)
        self._make_intent, self._per_intent = make_intent, committables_per_intent

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Always raise NotImplementedError: the writers of a sink send no events."""
        raise NotImplementedError(
            f"the sink {self.context.operator_id!r} handles no events; subtask {subtask} sent a "
            f"{type(event).__name__}"
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Record all intents in this turn; each intent covers a part of the committables."""
        committables = list(self.context.committables(checkpoint_id))
        size = self._per_intent or max(len(committables), 1)
        for start in range(0, len(committables), size):
            part = committables[start : start + size]
            intent = self._make_intent(checkpoint_id, part)
            is_all = len(part) == len(committables)
            self.context.commit(checkpoint_id, intent, committables=None if is_all else part)


class CommitCoordinatorProvider(CoordinatorProvider):
    """Creates the coordinators of a sink.

    Args:
        operator_id: Id of the sink.
        sink: Settles the intents.
        make_intent: Returns the intent for a checkpoint's id and its committables, in subtask order.
        payload_types: Types of intents, outcomes and their parts.
        committables_per_intent: Largest number of committables of one intent. None: each checkpoint
            has one intent of any size, for a sink that commits a checkpoint as a whole.
        destination: Destination of the sink as the log records it, without credentials. A sink
            without one cannot continue at another destination from an older checkpoint (E6: commits
            after a restore).

    Raises:
        OptionError: `committables_per_intent` is below 1.
    """

    projection: OperatorProjection[Any] | None = COMMITS

    def __init__(
        self,
        operator_id: str,
        *,
        sink: Sink,
        make_intent: MakeIntent,
        payload_types: Sequence[type[Payload]],
        committables_per_intent: int | None = None,
        destination: str | None = None,
    ) -> None:
        if committables_per_intent is not None and committables_per_intent < 1:
            raise OptionError("committables_per_intent", committables_per_intent, "at least 1")
        self.operator_id, self.sink, self.destination = operator_id, sink, destination
        self.payload_types = tuple(payload_types)
        self._make_intent, self._per_intent = make_intent, committables_per_intent

    def create(self, context: CoordinatorContext) -> CommitCoordinator:
        """A new coordinator."""
        return CommitCoordinator(
            context, self._make_intent, committables_per_intent=self._per_intent
        )
