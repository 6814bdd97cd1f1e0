"""A limit on the rows of all subtasks together, exact: handed out as leases of permits, and given back.

A row needs a permit. A subtask without permits requests a lease, and reads no more rows until it has one. If no
permits are left the coordinator recalls the unused ones of other subtasks; only if there are none, no row passes any
more. So exactly as many rows pass as the limit permits, if there are as many.

Two ways to count, over failures:

- `Counting.COMMITTED`: the permits of thrown-away rows return with the checkpoint, so that the committed output has
  exactly `limit` rows. After a local failover the permits of the lost attempt stay handed out until its successor has
  reported those in its state; after a global failover or a restore all states are those of one checkpoint. With
  another parallelism the permits of removed subtasks are with the subtasks that get their states.
- `Counting.TRIED`: all permits of a lost attempt are spent, also unused ones, so that at most `limit` rows are
  processed over all tries, thrown-away ones included: for calls of a paid service. A failure costs at most the leases
  that are handed out then.

In batch both hold too; there a failed attempt begins from nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal

import pyarrow as pa
from immutables import Map

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
    Query,
    SubtaskGateway,
)
from coordlog.api.operator import Operator, OperatorContext, PollStatus, Snapshot, Waiting
from coordlog.coordinators.held_rows import HeldRows
from coordlog.errors import OptionError, RequestRefusedError
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import (
    Payload,
    decode_versioned,
    encode_versioned,
    event,
    fact,
    payload,
    request,
    response,
)
from coordlog.schemas.record import Kind, Record

__all__ = [
    "Counting",
    "PermitsGivenBack",
    "PermitsGranted",
    "PermitsHeld",
    "PermitsRecalled",
    "PermitsRequested",
    "QuotaCoordinator",
    "QuotaLimit",
    "QuotaNow",
    "QuotaOperator",
    "QuotaProvider",
    "QuotaState",
    "QuotaUsedUp",
    "RaiseQuota",
    "ReadQuota",
    "Share",
    "quota_operator",
]

Beyond = Literal["drop", "wait"]


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
    """Permits received and not given back, used ones included."""
    unused: int


@event("coordlog.quota.requested", version=1)
class PermitsRequested(Payload):
    """Up: the attempt has rows and no permits."""


@event("coordlog.quota.given_back", version=1)
class PermitsGivenBack(Payload):
    """Up: all unused permits but those of rows that wait in the attempt, which does not have them any more."""

    count: int
    is_last: bool
    """Whether the subtask has no more rows."""


@event("coordlog.quota.granted", version=1)
class PermitsGranted(Payload):
    """Down: a lease."""

    count: int


@event("coordlog.quota.recalled", version=1)
class PermitsRecalled(Payload):
    """Down: the attempt gives back all unused permits."""


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


@payload("coordlog.quota.subtask_state", version=1)
class SubtaskState(Payload):
    """State of the operator in a snapshot."""

    held: int
    unused: int
    rows: list[bytes]


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
    """State of the coordinator. Only the folds of this module and snapshots create it."""

    limit: int | None = None
    spent: int = 0
    shares: Map[int, Share] = field(default_factory=Map)
    """Shares by subtask."""
    rescaled_to: int | None = None
    """Parallelism of a reset whose redelivered events still have the old subtask numbers; until an attempt starts."""

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
        asked = [(s.requested, n) for n, s in self.shares.items() if s.requested is not None]
        return [subtask for _, subtask in sorted(asked)]


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
        case Kind.RESET_TO_CHECKPOINT:
            parallelism = record.attributes.get("parallelism")
            kept = {n: s if s.is_finished else s.without_attempt() for n, s in state.shares.items()}
            rescaled_to = None if parallelism is None else int(parallelism)
            return replace(state, shares=Map(kept), rescaled_to=rescaled_to)
        case Kind.COORDINATOR_CHECKPOINTED if not state.is_streaming:
            return replace(state, is_streaming=True)
        case Kind.COORDINATORS_STARTED if counting is Counting.TRIED or not state.is_streaming:
            # Opened again: committed rows stay, and attempts begin without the permits of these.
            return replace(state, spent=state.spent + state.handed_out, shares=Map())
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


_PROJECTIONS: Final = {
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


class QuotaCoordinator(EventSourcedCoordinator[QuotaState]):
    """Grants leases in the order of the requests, and recalls unused permits if none are left."""

    def __init__(
        self, context: CoordinatorContext, limit: int, *, lease_rows: int, beyond: Beyond
    ) -> None:
        super().__init__(context)
        self._limit, self._lease_rows, self._beyond = limit, lease_rows, beyond

    def start(self) -> None:
        """Record the limit, unless the log has one."""
        if self.state.limit is None:
            self.context.record(QuotaLimit(limit=self._limit))

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Grant, recall or refuse permits."""
        self._settle()

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Do nothing: the attempt first reports the permits of its state."""

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Grant permits that the subtask does not need any more."""
        self._settle()

    def handle_coordination_request(self, request: Payload) -> Payload:
        """Raise the limit."""
        if not isinstance(request, RaiseQuota):
            raise RequestRefusedError(f"{type(request).__name__} is not answered")
        limit = self.state.limit or 0
        if self._beyond == "drop":
            raise RequestRefusedError("rows beyond this quota are dropped, and not kept for later")
        if request.limit < limit:
            raise RequestRefusedError(f"the limit is {limit}, and cannot be lowered")
        if request.limit > limit:
            self.context.record(QuotaLimit(limit=request.limit))
            self._settle()
        return read_quota(self.state, request)

    def _settle(self) -> None:
        gateways = self.context.gateways
        for subtask in self.state.waiting():
            state = self.state
            if state.left > 0 and subtask in gateways and not state.share(subtask).is_recalled:
                size = max(1, min(self._lease_rows, state.left // self._parallelism))
                gateways[subtask].send_event(PermitsGranted(count=size))
        state = self.state
        if not state.waiting() or state.left > 0:
            return
        shares = [(subtask, state.share(subtask)) for subtask in range(self._parallelism)]
        others = [(n, share) for n, share in shares if not share.is_finished]
        for subtask, share in others:
            is_recallable = share.is_known and share.has_unused and not share.is_recalled
            if is_recallable and subtask in gateways:
                gateways[subtask].send_event(PermitsRecalled())
        if self._beyond == "drop" and not any(share.has_unused for _, share in others):
            for subtask in state.waiting():
                if subtask in gateways:
                    gateways[subtask].send_event(QuotaUsedUp())

    @property
    def _parallelism(self) -> int:
        return self.context.current_parallelism()


def read_quota(state: QuotaState, _request: Payload) -> QuotaNow:
    """The answer to a `ReadQuota`."""
    return QuotaNow(
        limit=state.limit or 0, handed_out=state.handed_out, spent=state.spent, left=state.left
    )


class QuotaProvider(CoordinatorProvider):
    """Makes the coordinators of a quota; the arguments are those of `quota_operator`.

    Raises:
        OptionError: `limit` is negative, or `lease_rows` is below 1.
    """

    payload_types: tuple[type[Payload], ...] = QUOTA_PAYLOADS
    queries: Mapping[type[Payload], Query] = MappingProxyType({ReadQuota: read_quota})

    def __init__(
        self,
        operator_id: str,
        *,
        limit: int,
        lease_rows: int,
        counting: Counting,
        beyond: Beyond,
    ) -> None:
        if limit < 0:
            raise OptionError("limit", limit, "0 or more")
        if lease_rows < 1:
            raise OptionError("lease_rows", lease_rows, "at least 1")
        if beyond not in ("drop", "wait"):
            raise OptionError("beyond", beyond, "'drop' or 'wait'")
        self.operator_id = operator_id
        self.projection: OperatorProjection[Any] | None = _PROJECTIONS[counting]
        self._limit, self._lease_rows = limit, lease_rows
        self._beyond: Beyond = beyond

    def create(self, context: CoordinatorContext) -> QuotaCoordinator:
        """A new coordinator."""
        return QuotaCoordinator(
            context, self._limit, lease_rows=self._lease_rows, beyond=self._beyond
        )


Use = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Processes rows, each of which has a permit. Sent to the tasks by its name, so it is a function of a module."""


class QuotaOperator(Operator):
    """Passes each row that has a permit through `use`, and holds the others."""

    def __init__(self, use: Use | None, *, keeps_lease: bool) -> None:
        self._use, self._keeps_lease = use, keeps_lease
        self._has_asked = self._is_used_up = False

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Begin with the permits and rows of the restored checkpoint, and report the permits."""
        self._context = context
        restored = SubtaskState(held=0, unused=0, rows=[])
        if state is not None:
            restored = decode_versioned(SubtaskState, state)
        self._rows = HeldRows(restored.rows)
        self._held, self._unused = restored.held, restored.unused
        if not self._keeps_lease:
            self._held = self._unused = 0
        context.send_event(PermitsHeld(held=self._held, unused=self._unused))

    def handle_event(self, event: Payload) -> None:
        """Take a lease, give permits back, or drop all further rows."""
        match event:
            case PermitsGranted():
                self._held += event.count
                self._unused += event.count
                self._has_asked = False
            case PermitsRecalled():
                self._give_back(is_last=False)
            case _:
                assert isinstance(event, QuotaUsedUp)
                self._is_used_up = True

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows with permits; the others are held, or dropped if the quota is used up."""
        self._rows.append(batch)
        return self._permitted()

    def emit_held(self) -> Iterator[pa.RecordBatch | Waiting]:
        """Held rows that have permits now; waits while rows are left."""
        yield from self._permitted()
        if self._rows:
            yield PollStatus.WAITING

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Permits and held rows."""
        return self.final_snapshot()

    def finish(self) -> Iterable[pa.RecordBatch]:
        """No rows are held any more: give back the unused permits."""
        self._give_back(is_last=True)
        return ()

    def final_snapshot(self) -> Snapshot:
        """Permits and held rows."""
        state = SubtaskState(held=self._held, unused=self._unused, rows=self._rows.to_parts())
        return Snapshot(state=encode_versioned(state))

    def _permitted(self) -> Iterator[pa.RecordBatch]:
        while self._rows:
            if self._is_used_up:
                self._rows.clear()
            elif self._unused:
                rows = self._rows.take(self._unused)
                self._unused -= rows.num_rows
                yield rows if self._use is None else self._use(rows)
            else:
                if not self._has_asked:
                    self._context.send_event(PermitsRequested())
                    self._has_asked = True
                return

    def _give_back(self, *, is_last: bool) -> None:
        # Permits of held rows stay: two subtasks that wait would recall one permit from each other for ever.
        count = max(self._unused - len(self._rows), 0)
        self._unused -= count
        self._held -= count
        self._context.send_event(PermitsGivenBack(count=count, is_last=is_last))


def _merged(states: Sequence[bytes]) -> bytes:
    parts = [decode_versioned(SubtaskState, state) for state in states]
    return encode_versioned(
        SubtaskState(
            held=sum(part.held for part in parts),
            unused=sum(part.unused for part in parts),
            rows=[rows for part in parts for rows in part.rows],
        )
    )


def quota_operator(
    limit: int,
    *,
    counting: Counting = Counting.COMMITTED,
    beyond: Beyond = "drop",
    use: Use | None = None,
    lease_rows: int = 10_000,
    operator_id: str = "quota",
) -> OperatorSpec:
    """An operator that lets `limit` rows of all subtasks together pass, as a link of a chain.

    Args:
        limit: Number of rows. Used for a log without a limit only; `RaiseQuota` raises it.
        counting: Rows that count.
        beyond: `drop`: rows beyond the limit are dropped. `wait`: the subtasks wait until a client raises the limit.
        use: Processes rows that have permits, for example by calls of a service. None: they pass unchanged.
        lease_rows: Largest lease. A lease costs two appends; with `Counting.TRIED` a failure spends the rest of one.
        operator_id: Id of the operator.

    Raises:
        OptionError: An option is out of range.
    """
    return OperatorSpec(
        operator_id=operator_id,
        create_operator=partial(QuotaOperator, use, keeps_lease=counting is Counting.COMMITTED),
        coordinator=QuotaProvider(
            operator_id, limit=limit, lease_rows=lease_rows, counting=counting, beyond=beyond
        ),
        merge_states=_merged,
    )
