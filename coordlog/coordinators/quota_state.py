"""Permits of a quota: the events that move them, and the state that counts them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from immutables import Map

from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload, event, fact, request, response
from coordlog.schemas.record import Kind, Record

__all__ = [
    "QUOTA_PAYLOADS",
    "QUOTA_PROJECTIONS",
    "Counting",
    "PermitsGivenBack",
    "PermitsGranted",
    "PermitsHeld",
    "PermitsRecalled",
    "PermitsRequested",
    "QuotaLimit",
    "QuotaNow",
    "QuotaState",
    "QuotaUsedUp",
    "RaiseQuota",
    "ReadQuota",
    "Share",
    "read_quota",
]


class Counting(enum.Enum):
    """Rows that count towards a limit."""

    COMMITTED = "committed"
    """Rows of the surviving history: thrown-away ones are read again, and do not count twice."""
    TRIED = "tried"
    """All rows that were processed, thrown-away ones included."""


@fact("coordlog.quota.limit", version=1)
class QuotaLimit(Payload):
    """The limit from now on."""

    limit: int


@event("coordlog.quota.held", version=1)
class PermitsHeld(Payload):
    """Up, first event of each attempt: the permits in its restored state."""

    held: int
    """Permits received and not returned, used ones included."""
    unused: int
    """Always 0, because an attempt begins without unused permits; higher only in older records."""


@event("coordlog.quota.requested", version=1)
class PermitsRequested(Payload):
    """Up: the attempt has rows and no permits."""


@event("coordlog.quota.given_back", version=1)
class PermitsGivenBack(Payload):
    """Up: the attempt returns all unused permits, except those for the rows that it holds."""

    count: int
    is_last: bool
    """Whether the subtask has no more rows."""


@event("coordlog.quota.granted", version=1)
class PermitsGranted(Payload):
    """Down: a lease."""

    count: int


@event("coordlog.quota.recalled", version=1)
class PermitsRecalled(Payload):
    """Down: the attempt must return all unused permits."""


@event("coordlog.quota.used_up", version=1)
class QuotaUsedUp(Payload):
    """Down: all permits of the limit are used."""


@request("coordlog.quota.raise", version=1)
class RaiseQuota(Payload):
    """Request for a higher limit, of a quota beyond which rows wait; the response is a `QuotaNow`."""

    limit: int


@request("coordlog.quota.read", version=1)
class ReadQuota(Payload):
    """Query; the response is a `QuotaNow`. Answered by the driver, and not recorded."""


@response("coordlog.quota.now", version=1)
class QuotaNow(Payload):
    """The permits at this moment: `limit` is the sum of the others."""

    limit: int
    handed_out: int
    """Permits of attempts, used and unused, and of subtasks that have finished."""
    spent: int
    """Permits of lost attempts, if tries count."""
    left: int


QUOTA_PAYLOADS: Final[tuple[type[Payload], ...]] = (
    QuotaLimit,
    PermitsHeld,
    PermitsRequested,
    PermitsGivenBack,
    PermitsGranted,
    PermitsRecalled,
    QuotaUsedUp,
    RaiseQuota,
    ReadQuota,
    QuotaNow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One subtask's part of the limit."""

    held: int = 0
    """Permits of the subtask, used and unused. Between a failover and the report of the new attempt: at most."""
    has_unused: bool = False
    """Whether some of them may be unused."""
    is_known: bool = False
    """Whether the live attempt has reported the permits of its state."""
    requested: int | None = None
    """Sequence of the open request, or None."""
    is_recalled: bool = False
    """Whether a recall has no response yet."""
    is_finished: bool = False
    """Whether the subtask has no more rows."""

    def without_attempt(self) -> Share:
        """The share after the end of its attempt."""
        return Share(held=self.held, has_unused=self.held > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaState:
    """State of the coordinator. Only `_fold` and snapshots create it."""

    limit: int | None = None
    spent: int = 0
    shares: Map[int, Share] = field(default_factory=Map)
    """Shares by subtask."""
    rescaled_to: int | None = None
    """Another parallelism, until an attempt starts: redelivered events have the old subtask numbers."""

    is_streaming: bool = False
    """Whether the job takes checkpoints."""

    @property
    def handed_out(self) -> int:
        """Permits of all subtasks."""
        return sum(share.held for share in self.shares.values())

    @property
    def left(self) -> int:
        """Permits that can be granted now."""
        return (self.limit or 0) - self.spent - self.handed_out

    def share(self, subtask: int) -> Share:
        """The share of one subtask."""
        return self.shares.get(subtask, Share())

    def waiting(self) -> list[int]:
        """Subtasks with an open request, oldest request first."""
        requests = [(s.requested, n) for n, s in self.shares.items() if s.requested is not None]
        return [subtask for _, subtask in sorted(requests)]


def read_quota(state: QuotaState, _request: Payload) -> QuotaNow:
    """The response to a `ReadQuota`."""
    return QuotaNow(
        limit=state.limit or 0, handed_out=state.handed_out, spent=state.spent, left=state.left
    )


def _with(state: QuotaState, subtask: int, share: Share) -> QuotaState:
    return replace(state, shares=state.shares.set(subtask, share))


def _fold(
    counting: Counting, state: QuotaState, record: Record, value: Payload | None
) -> QuotaState:
    """The state after one more record."""
    subtask = record.subtask or 0
    match record.kind:
        case Kind.FACT if isinstance(value, QuotaLimit):
            return replace(state, limit=value.limit)
        case Kind.EVENT_TO_COORDINATOR | Kind.EVENT_TO_SUBTASK if value is not None:
            return _with(state, subtask, _exchanged(state.share(subtask), record, value))
        case Kind.ATTEMPT_STARTED:
            state = _rescaled(state)
            return _with(state, subtask, state.share(subtask).without_attempt())
        case Kind.SUBTASK_RESET if counting is Counting.TRIED:
            return _spent(state, subtask)
        case Kind.SUBTASK_RESET:
            return _with(state, subtask, state.share(subtask).without_attempt())
        case Kind.RESET_TO_CHECKPOINT if counting is Counting.TRIED:
            for number in sorted(state.shares):
                state = _spent(state, number)
            return state
        case Kind.COORDINATOR_CHECKPOINTED if not state.is_streaming:
            return replace(state, is_streaming=True)
        case Kind.COORDINATORS_STARTED if counting is Counting.TRIED or not state.is_streaming:
            # Opened again: committed rows stay, and attempts begin without the permits of these.
            return replace(state, spent=state.spent + state.handed_out, shares=Map())
        case Kind.RESET_TO_CHECKPOINT | Kind.COORDINATORS_STARTED:
            parallelism = record.attributes.get("parallelism")
            kept = {n: s if s.is_finished else s.without_attempt() for n, s in state.shares.items()}
            rescaled_to = None if parallelism is None else int(parallelism)
            return replace(state, shares=Map(kept), rescaled_to=rescaled_to)
        case _:
            return state


def _exchanged(share: Share, record: Record, value: Payload) -> Share:
    match value:
        case PermitsHeld():
            return Share(held=value.held, has_unused=value.unused > 0, is_known=True)
        case PermitsRequested():
            return replace(share, requested=record.sequence, has_unused=False)
        case PermitsGivenBack():
            return replace(
                share,
                held=max(share.held - value.count, 0),
                has_unused=False,
                is_recalled=False,
                is_finished=value.is_last,
            )
        case PermitsGranted():
            held = share.held + value.count
            return replace(share, held=held, has_unused=True, requested=None)
        case PermitsRecalled():
            return replace(share, is_recalled=True)
        case QuotaUsedUp():
            return replace(share, requested=None)
        case _:
            return share


def _spent(state: QuotaState, subtask: int) -> QuotaState:
    held = state.share(subtask).held
    return replace(state, spent=state.spent + held, shares=state.shares.set(subtask, Share()))


def _rescaled(state: QuotaState) -> QuotaState:
    """The shares of removed subtasks go to those that get their states (E7: rescaling)."""
    if state.rescaled_to is None:
        return state
    shares: Map[int, Share] = Map()
    for number, share in sorted(state.shares.items()):
        known = shares.get(number % state.rescaled_to)
        merged = share
        if known is not None:
            merged = replace(
                Share(held=known.held + share.held).without_attempt(),
                is_finished=known.is_finished and share.is_finished,
            )
        shares = shares.set(number % state.rescaled_to, merged)
    return replace(state, shares=shares, rescaled_to=None)


def _keep_limit(before: QuotaState, at_cut: QuotaState) -> QuotaState:
    return replace(at_cut, limit=before.limit)


def _keep_all(before: QuotaState, _at_cut: QuotaState) -> QuotaState:
    return before


QUOTA_PROJECTIONS: Final = {
    counting: OperatorProjection(
        name=f"coordlog.quota.{counting.value}",
        version=1,
        initial=QuotaState(),
        apply=partial(_fold, counting),
        codec=DerivedCodec(QuotaState),
        after_reset=_keep_all if counting is Counting.TRIED else _keep_limit,
        reads=(
            QuotaLimit,
            PermitsHeld,
            PermitsRequested,
            PermitsGivenBack,
            PermitsGranted,
            PermitsRecalled,
            QuotaUsedUp,
        ),
    )
    for counting in Counting
}
