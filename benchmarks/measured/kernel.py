"""The kernel alone, without log, clock or thread: what an event costs, and what deciding adds to applying.

An event is three steps: it arrives, the coordinator answers it with another, and that one is acked. State is
immutable, so that each round begins at the very same state. Times are CPU times: nothing here waits. Python's cycle
collector visits as seldom as while a driver runs.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from benchmarks.results import Row
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import (
    AttemptRegistered,
    FromAttempt,
    SendEvent,
    Start,
)
from coordlog.kernel.step import act, step
from coordlog.messages import AckEvent, Register
from coordlog.messages import SendEvent as SendReport
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState
from coordlog.restore.rebuild import projection_of
from coordlog.runtime.life.collector import begin_slower_collector, end_slower_collector
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record

from .made_history import Order, Report, benchmark_chain

__all__ = ["measure_kernel"]

SUBTASKS: Final = (1, 16, 256, 4096)
_OPERATOR: Final = "source"
_NOW_US: Final = 1_700_000_000_000_000
_STEPS_PER_EVENT: Final = 3

_REPORT, _ORDER = payload_type_of(Report), payload_type_of(Order)
_REPORT_BYTES: Final = _REPORT.encode(Report(number=1, text="x" * 80))
_ORDER_BYTES: Final = _ORDER.encode(Order(number=1, text="x" * 80))


def measure_kernel(event_count: int, rounds: int) -> list[Row]:
    """The cost of an event by the number of subtasks, and steps/s beside building and applying alone."""
    begin_slower_collector()
    try:
        return _measured(event_count, rounds)
    finally:
        end_slower_collector()


def _measured(event_count: int, rounds: int) -> list[Row]:
    config = KernelConfig(
        projection=projection_of(benchmark_chain()),
        operators=(_OPERATOR,),
        is_batch=False,
        keeps_finished_splits=False,
    )
    started = {subtasks: _started(config, subtasks) for subtasks in SUBTASKS}
    costs: dict[int, list[float]] = {subtasks: [] for subtasks in SUBTASKS}
    deciding: list[float] = []
    applying: list[float] = []
    records = _events(config, started[SUBTASKS[1]], event_count)
    for _ in range(rounds):
        for subtasks, state in started.items():
            spent_s = _spent_s(_run_events, config, state, event_count)
            costs[subtasks].append(spent_s / event_count * 1e6)
        spent_s = costs[SUBTASKS[1]][-1] * event_count / 1e6
        deciding.append(event_count * _STEPS_PER_EVENT / spent_s)
        spent_s = _spent_s(_build_and_apply, config.projection, started[SUBTASKS[1]], records)
        applying.append(len(records) / spent_s)
    return [*_cost_rows(costs), _ratio_row(deciding, applying)]


def _cost_rows(costs: dict[int, list[float]]) -> list[Row]:
    alone = costs[SUBTASKS[0]]
    rows = [
        Row(
            name=f"kernel, {subtasks} subtasks",
            unit="µs/event",
            ours=tuple(costs[subtasks]),
            raw=tuple(alone),
            raw_is="the same at 1 subtask",
            better="lower",
            target=1.1 if subtasks == SUBTASKS[-1] else None,
        )
        for subtasks in SUBTASKS[1:]
    ]
    by_cost = sorted(SUBTASKS, key=lambda subtasks: median(costs[subtasks]))
    dearest = Row(
        name=f"kernel, dearest of {'/'.join(map(str, SUBTASKS))} subtasks",
        unit="µs/event",
        ours=tuple(costs[by_cost[-1]]),
        raw=tuple(costs[by_cost[0]]),
        raw_is="the cheapest of them",
        better="lower",
        target=1.2,
    )
    return [*rows, dearest]


def _ratio_row(deciding: Sequence[float], applying: Sequence[float]) -> Row:
    return Row(
        name="kernel (decide, build, apply)",
        unit="steps/s",
        ours=tuple(deciding),
        raw=tuple(applying),
        raw_is="a plain loop that builds and applies the same records",
        better="higher",
        target=0.3,
    )


def _spent_s(run: Callable[..., object], *given: object) -> float:
    gc.collect()
    began = time.process_time()
    run(*given)
    return time.process_time() - began


def _started(config: KernelConfig, subtasks: int) -> JobState:
    """A job all of whose attempts are ready, after one event, so that all types are registered."""
    operators = [{"id": _OPERATOR, "version": 1, "coordinated": True}]
    state = config.projection.apply(
        config.projection.initial(),
        Record(
            epoch=0,
            driver_id="benchmark",
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=_NOW_US,
            job_id="bench",
            attributes={
                "parallelism": str(subtasks),
                "mode": "streaming",
                "operators": json.dumps(operators),
            },
        ),
    )
    state = step(config, state, Start(), _NOW_US).state
    for subtask in range(subtasks):
        task = Register(
            driver_id="benchmark",
            subtask=subtask,
            stage_run=0,
            task_attempt_id=subtask,
            spark_attempt_number=0,
            host="memory",
            pid=0,
        )
        given = AttemptRegistered(connection_id=subtask, message=task)
        state = step(config, state, given, _NOW_US).state
    return _run_events(config, state, 1)


def _events(config: KernelConfig, state: JobState, count: int) -> list[Record]:
    """The records that so many events make."""
    records: list[Record] = []
    _run_events(config, state, count, records)
    return records


def _run_events(
    config: KernelConfig, state: JobState, count: int, kept: list[Record] | None = None
) -> JobState:
    """Events from one subtask after the other, each answered, each answer acked."""
    subtasks, first = state.parallelism, state.next_event_id
    for number in range(count):
        subtask = number % subtasks
        report = SendReport(
            operator_id=_OPERATOR,
            event_id=number,
            last_barrier=-1,
            payload_type=_REPORT.key,
            payload=_REPORT_BYTES,
        )
        answer = SendEvent(
            operator_id=_OPERATOR,
            subtask=subtask,
            attempt_number=0,
            payload_type=_ORDER.key,
            payload=_ORDER_BYTES,
            is_loss_tolerant=False,
        )
        ack = AckEvent(operator_id=_OPERATOR, event_id=first + number, last_barrier=-1)
        arrived = FromAttempt(subtask=subtask, attempt_number=0, message=report)
        acked = FromAttempt(subtask=subtask, attempt_number=0, message=ack)
        steps = [step(config, state, arrived, _NOW_US)]
        steps.append(act(config, steps[-1].state, answer, _NOW_US))
        steps.append(step(config, steps[-1].state, acked, _NOW_US))
        state = steps[-1].state
        if kept is not None:
            kept += [record for one in steps for record in one.records]
    return state


def _build_and_apply(
    projection: JobProjection, state: JobState, records: Sequence[Record]
) -> JobState:
    """What is left of the above without the deciding: each record made anew, and applied."""
    for one in records:
        record = Record(
            epoch=one.epoch,
            driver_id=one.driver_id,
            sequence=state.next_sequence,
            kind=one.kind,
            timestamp_us=one.timestamp_us,
            job_id=one.job_id,
            operator_id=one.operator_id,
            subtask=one.subtask,
            attempt_number=one.attempt_number,
            checkpoint_id=one.checkpoint_id,
            event_id=one.event_id,
            last_barrier=one.last_barrier,
            cause=one.cause,
            payload_type=one.payload_type,
            payload=one.payload,
            reason=one.reason,
            attributes=one.attributes,
        )
        state = projection.apply(state, record)
    return state
