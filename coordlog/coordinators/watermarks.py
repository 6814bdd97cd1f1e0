"""Alignment of event time: no subtask is further ahead of the slowest than a maximum drift.

Each subtask reports its watermark: the latest event time of its rows, including the next row that waits. A row passes
if its time is at most the lowest watermark of all subtasks plus the drift; else the subtask reads nothing until the
others have come nearer. The watermark includes the row that waits, so the subtask with the earliest row always
goes on, also over a gap in all inputs. A subtask without rows for a while is idle, and does not hold the others; nor
does one that has finished. Over failures:

- local failover: the others stop at their bound until the new attempt has reported a watermark or is idle, and get the
  bound that follows from it, which may be an earlier one;
- global failover, restore and rescaling: no row passes before all attempts have reported, from their states;
- batch: the same; a failed attempt begins without a watermark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from immutables import Map

from coordlog.api.chain import OperatorSpec
from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
)
from coordlog.api.operator import Operator, OperatorContext, PollStatus, Snapshot, Waiting
from coordlog.coordinators.held_rows import HeldRows
from coordlog.errors import OptionError, UsageError
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload, decode_versioned, encode_versioned, event, payload
from coordlog.schemas.record import Kind, Record

__all__ = [
    "AdvanceTo",
    "InputEnded",
    "InputIdle",
    "SubtaskTime",
    "WatermarkCoordinator",
    "WatermarkOperator",
    "WatermarkProvider",
    "WatermarkReached",
    "WatermarksState",
    "watermark_operator",
]

_REPORTS_PER_DRIFT: Final = 8
"""Reports of a subtask while its watermark advances by one drift: each is an append."""


@event("coordlog.watermark.reached", version=1)
class WatermarkReached(Payload):
    """Up: the latest event time of the subtask's rows, including the next row; microseconds since 1970."""

    time_us: int


@event("coordlog.watermark.idle", version=1)
class InputIdle(Payload):
    """Up: the subtask has had no rows for a while."""


@event("coordlog.watermark.ended", version=1)
class InputEnded(Payload):
    """Up: the subtask has no more rows."""


@event("coordlog.watermark.advance", version=1)
class AdvanceTo(Payload):
    """Down: rows up to this event time may pass; microseconds since 1970, inclusive."""

    time_us: int


@payload("coordlog.watermark.subtask_state", version=1)
class SubtaskTime(Payload):
    """State of the operator in a snapshot."""

    watermark_us: int | None = None
    rows: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTime:
    """The coordinator's view of one subtask."""

    watermark_us: int | None = None
    """None before the first report of an attempt."""
    is_idle: bool = False
    is_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarksState:
    """State of the coordinator. Only `_fold` and snapshots create it."""

    allowed_us: int | None = None
    """Latest event time that may pass; None until all attempts have reported a watermark or are idle."""
    inputs: Map[int, InputTime] = field(default_factory=Map)
    """Views by subtask."""


def _fold(state: WatermarksState, record: Record, value: Payload | None) -> WatermarksState:
    """The state after one more record."""
    match record.kind:
        case Kind.EVENT_TO_SUBTASK if isinstance(value, AdvanceTo):
            return replace(state, allowed_us=value.time_us)
        case Kind.EVENT_TO_COORDINATOR:
            match value:
                case WatermarkReached():
                    view = InputTime(watermark_us=value.time_us)
                case InputIdle():
                    view = InputTime(is_idle=True)
                case InputEnded():
                    view = InputTime(is_ended=True)
                case _:
                    return state
        case Kind.ATTEMPT_STARTED:
            view, state = InputTime(), replace(state, allowed_us=None)
        case Kind.SUBTASK_RESET:
            view = InputTime()
        case Kind.RESET_TO_CHECKPOINT:
            parallelism = int(record.attributes.get("parallelism", 0)) or len(state.inputs) + 1
            goes_on = {n % parallelism for n, view in state.inputs.items() if not view.is_ended}
            ended = {n: view for n, view in state.inputs.items() if n not in goes_on}
            return replace(state, inputs=Map(ended), allowed_us=None)
        case Kind.COORDINATORS_STARTED:
            return WatermarksState()  # opened again: no subtask has ended
        case _:
            return state
    return replace(state, inputs=state.inputs.set(record.subtask or 0, view))


_WATERMARKS: Final = OperatorProjection(
    name="coordlog.watermarks",
    version=1,
    initial=WatermarksState(),
    apply=_fold,
    codec=DerivedCodec(WatermarksState),
    reads=(WatermarkReached, InputIdle, InputEnded, AdvanceTo),
)


class WatermarkCoordinator(EventSourcedCoordinator[WatermarksState]):
    """Lets all subtasks advance to the lowest watermark plus the drift."""

    def __init__(self, context: CoordinatorContext, max_drift_us: int) -> None:
        super().__init__(context)
        self._max_drift_us = max_drift_us

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Advance, if the lowest watermark permits it."""
        gateways, known = self.context.gateways, list[int]()
        finished = self.context.finished_subtasks
        for number in range(self.context.current_parallelism()):
            view = self.state.inputs.get(number, InputTime())
            if view.is_ended or number in finished:
                continue
            if number not in gateways:
                return  # a redelivered report is that of an attempt that is over
            if view.watermark_us is not None:
                known.append(view.watermark_us)
            elif not view.is_idle:
                return
        if known and min(known) + self._max_drift_us != self.state.allowed_us:
            for gateway in gateways.values():
                gateway.send_event(AdvanceTo(time_us=min(known) + self._max_drift_us))


class WatermarkProvider(CoordinatorProvider):
    """Makes the coordinators. Raises OptionError if `max_drift_us` is not positive."""

    payload_types: tuple[type[Payload], ...] = (
        WatermarkReached,
        InputIdle,
        InputEnded,
        AdvanceTo,
    )
    projection: OperatorProjection[Any] | None = _WATERMARKS

    def __init__(self, operator_id: str, max_drift_us: int) -> None:
        if max_drift_us < 1:
            raise OptionError("max_drift", f"{max_drift_us} us", "above 0")
        self.operator_id, self._max_drift_us = operator_id, max_drift_us

    def create(self, context: CoordinatorContext) -> WatermarkCoordinator:
        """A new coordinator."""
        return WatermarkCoordinator(context, self._max_drift_us)


class WatermarkOperator(Operator):
    """Passes rows up to the bound, in their order, and holds the others.

    Args:
        time_column: Column with the event time of each row.
        max_drift_us: Largest lead, microseconds.
        idle_s: Seconds without rows after which the subtask is idle.
        clock: Monotonic clock, seconds.
    """

    def __init__(
        self,
        time_column: str,
        max_drift_us: int,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._time_column, self._idle_s, self._clock = time_column, idle_s, clock
        self._step_us = max(max_drift_us // _REPORTS_PER_DRIFT, 1)

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Begin with the rows and the watermark of the restored checkpoint, and report the watermark."""
        self._context = context
        restored = SubtaskTime(rows=[])
        if state is not None:
            restored = decode_versioned(SubtaskTime, state)
        self._rows = HeldRows(restored.rows)
        self._watermark_us = restored.watermark_us
        self._allowed_us: int | None = None
        self._reported_us: int | None = None
        self._is_idle = False
        self._empty_s: float | None = None
        """Time of the first call of `emit_held` without rows since the last row."""
        self._asked_s = 0.0
        """Time of the last such call."""
        self._report(is_exact=True)

    def handle_event(self, event: Payload) -> None:
        """Set the bound."""
        assert isinstance(event, AdvanceTo)
        self._allowed_us = event.time_us

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows up to the bound; the others are held."""
        self._is_idle, self._empty_s = False, None
        self._rows.append(batch)
        return self._passing()

    def emit_held(self) -> Iterator[pa.RecordBatch | Waiting]:
        """Held rows that may pass now; waits while rows are left. Reports that the subtask is idle."""
        yield from self._passing()
        if self._rows:
            self._empty_s = None
            yield PollStatus.WAITING
        elif not self._is_idle:
            self._report_idle()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Watermark and held rows."""
        return self.final_snapshot()

    def finish(self) -> Iterable[pa.RecordBatch]:
        """No rows are held any more: report the end."""
        self._context.send_event(InputEnded())
        return ()

    def final_snapshot(self) -> Snapshot:
        """Watermark and held rows."""
        state = SubtaskTime(watermark_us=self._watermark_us, rows=self._rows.to_parts())
        return Snapshot(state=encode_versioned(state))

    def _passing(self) -> Iterator[pa.RecordBatch]:
        while self._rows:
            times = self._times(self._rows.first())
            count = len(times)
            if self._allowed_us is None:
                count = 0
            else:
                is_late = pc.call_function("greater", [times, self._allowed_us])
                first = pc.index(is_late, True).as_py()
                count = count if first < 0 else first
            self._advance(pc.call_function("max", [times.slice(0, count + 1)]).as_py())
            if count:
                yield self._rows.take(count)
            if count < len(times):
                self._report(is_exact=True)
                return
        self._report(is_exact=False)

    def _report_idle(self) -> None:
        """Report that the subtask is idle, if the reader was polled in vain at the end of the idle time.

        Without that poll the operators behind may have held up the reader, and not its input.
        """
        now_s = self._clock()
        if self._empty_s is None:
            self._empty_s = now_s
        elif self._asked_s - self._empty_s > self._idle_s:
            self._is_idle, self._reported_us = True, None
            self._context.send_event(InputIdle())
        self._asked_s = now_s

    def _advance(self, time_us: int | None) -> None:
        if time_us is not None and (self._watermark_us is None or time_us > self._watermark_us):
            self._watermark_us = time_us

    def _report(self, *, is_exact: bool) -> None:
        """Report the watermark, if it has advanced by a step; `is_exact`: if it has advanced at all."""
        watermark, reported = self._watermark_us, self._reported_us
        if watermark is None or self._is_idle:
            return
        if reported is not None and watermark - reported < (1 if is_exact else self._step_us):
            return
        self._reported_us = watermark
        self._context.send_event(WatermarkReached(time_us=watermark))

    def _times(self, batch: pa.RecordBatch) -> pa.Int64Array:
        """Event times of the rows, microseconds since 1970; null for a row without one, which always passes."""
        column = batch.column(self._time_column)
        if pa.types.is_timestamp(column.type):
            column = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False)
            return pc.cast(column, pa.int64())
        if not pa.types.is_int64(column.type):
            raise UsageError(
                f"the event times in column {self._time_column!r} are of type {column.type}: "
                "use timestamps, or int64 as microseconds since 1970"
            )
        return column


def _merged(states: Sequence[bytes]) -> bytes:
    """State of several subtasks in one: rows of all, the time of the slowest."""
    parts = [decode_versioned(SubtaskTime, state) for state in states]
    watermarks = [part.watermark_us for part in parts if part.watermark_us is not None]
    return encode_versioned(
        SubtaskTime(
            watermark_us=min(watermarks, default=None),
            rows=[rows for part in parts for rows in part.rows],
        )
    )


def watermark_operator(
    time_column: str,
    *,
    max_drift: timedelta,
    idle_s: float = 10.0,
    operator_id: str = "watermarks",
) -> OperatorSpec:
    """An operator that keeps the event times of all subtasks within a drift, as a link of a chain.

    Args:
        time_column: Column with the event time of each row: timestamps, or int64 as microseconds since 1970.
        max_drift: Largest lead of a row before the slowest subtask.
        idle_s: Seconds without rows after which a subtask does not hold the others any more.
        operator_id: Id of the operator.

    Raises:
        OptionError: `max_drift` is not positive.
    """
    max_drift_us = max_drift // timedelta(microseconds=1)
    return OperatorSpec(
        operator_id=operator_id,
        create_operator=partial(WatermarkOperator, time_column, max_drift_us, idle_s),
        coordinator=WatermarkProvider(operator_id, max_drift_us),
        merge_states=_merged,
    )
