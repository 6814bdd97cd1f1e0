"""An exact limit on the rows of all subtasks together, by permits that are leased to subtasks and returned.

A row needs a permit. A subtask without permits requests a lease, and reads no more rows until it has one. If no
permits are left the coordinator recalls the unused ones of other subtasks; only if there are none, no row passes any
more. So exactly as many rows pass as the limit permits, if there are as many.

Two ways to count, over failures:

- `Counting.COMMITTED`: the permits of thrown-away rows return with the checkpoint, so that the committed output has
  exactly `limit` rows. After a local failover the permits of the lost attempt stay handed out until its successor has
  reported those that the rows before its checkpoint have used; the others return, because the lost attempt may have
  given them back since. With another parallelism the permits of removed subtasks are with the subtasks that get their
  states.
- `Counting.TRIED`: all permits of a lost attempt are spent, also unused ones, so that at most `limit` rows are
  processed over all tries, thrown-away ones included: for calls of a paid service. A failure costs at most the leases
  that are handed out then.

In batch both hold too; there a failed attempt begins from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

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
from coordlog.coordinators.quota_state import (
    QUOTA_PAYLOADS,
    QUOTA_PROJECTIONS,
    Counting,
    PermitsGivenBack,
    PermitsGranted,
    PermitsHeld,
    PermitsRecalled,
    PermitsRequested,
    QuotaLimit,
    QuotaState,
    QuotaUsedUp,
    RaiseQuota,
    ReadQuota,
    read_quota,
)
from coordlog.errors import OptionError, RequestRefusedError
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.schemas.payload import Payload, decode_versioned, encode_versioned, payload

__all__ = ["Beyond", "QuotaCoordinator", "QuotaOperator", "QuotaProvider", "Use", "quota_operator"]

Beyond = Literal["drop", "wait"]


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
        self.projection: OperatorProjection[Any] | None = QUOTA_PROJECTIONS[counting]
        self._limit, self._lease_rows = limit, lease_rows
        self._beyond: Beyond = beyond

    def create(self, context: CoordinatorContext) -> QuotaCoordinator:
        """A new coordinator."""
        return QuotaCoordinator(
            context, self._limit, lease_rows=self._lease_rows, beyond=self._beyond
        )


@payload("coordlog.quota.subtask_state", version=1)
class SubtaskState(Payload):
    """State of the operator in a snapshot."""

    held: int
    unused: int
    rows: list[bytes]


Use = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Processes rows, each of which has a permit. Sent to the tasks by its name, so it is a function of a module."""


class QuotaOperator(Operator):
    """Passes each row that has a permit through `use`, and holds the others."""

    def __init__(self, use: Use | None, *, keeps_lease: bool) -> None:
        self._use, self._keeps_lease = use, keeps_lease
        self._has_asked = self._is_used_up = False

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Begin with the used permits and the rows of the restored checkpoint, and report the permits."""
        self._context = context
        restored = SubtaskState(held=0, unused=0, rows=[])
        if state is not None:
            restored = decode_versioned(SubtaskState, state)
        self._rows = HeldRows(restored.rows)
        # Unused ones may be another subtask's by now: the lost attempt may have given them back after the checkpoint.
        self._held, self._unused = restored.held - restored.unused, 0
        if not self._keeps_lease:
            self._held = 0
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
        # Permits of held rows stay: otherwise two waiting subtasks would recall one permit from each other without end.
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
