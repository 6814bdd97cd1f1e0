"""The coordinator of a sink: commits what each completed checkpoint allows (clauses H1, H3, I4)."""

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
    """The state of a coordinator that keeps none."""


COMMITS: Final[OperatorProjection[None]] = OperatorProjection(
    name="coordlog.commits",
    version=1,
    initial=None,
    apply=_nothing,
    codec=DerivedCodec(type(None)),
)


class CommitCoordinator(EventSourcedCoordinator[None]):
    """Commits at `notify_checkpoint_complete`, and keeps nothing.

    What is to be committed, and what an intent holds already, is the job state's; so that told of
    a completion again it commits only what no intent holds.
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
        """A sink's writers send none."""
        raise NotImplementedError(
            f"the sink {self.context.operator_id!r} handles no events; subtask {subtask} sent a "
            f"{type(event).__name__}"
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Give the intents, all in this turn; each covers the committables that it is made of."""
        committables = list(self.context.committables(checkpoint_id))
        size = self._per_intent or max(len(committables), 1)
        for start in range(0, len(committables), size):
            part = committables[start : start + size]
            intent = self._make_intent(checkpoint_id, part)
            is_all = len(part) == len(committables)
            self.context.commit(checkpoint_id, intent, committables=None if is_all else part)


class CommitCoordinatorProvider(CoordinatorProvider):
    """Makes a sink's coordinators.

    Args:
        operator_id: The sink's.
        sink: Settles the intents.
        make_intent: The intent for a checkpoint's committables, which come in subtask order.
        payload_types: Intents, outcomes, and what they are made of.
        committables_per_intent: The most that one intent takes; None: a checkpoint has one intent,
            however large, as a sink needs that commits a checkpoint as a whole.
        destination: Where the sink writes, as the log is to have it: no credentials. Only a sink
            that tells it may go on elsewhere from an older checkpoint (clause E6).

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
