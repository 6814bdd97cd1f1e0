"""What stands around the kernel in its small world: a coordinator and subtasks, as values.

The coordinator keeps no state beside the fold (`machine_fakes.Counts`): it numbers its events per
subtask, tells of what a failover has lost, and commits what a checkpoint allows. A subtask works
through rows 1, 2, 3 …; it tells of each and writes it to its open file.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import (
    Action,
    CompleteCheckpoint,
    FromAttempt,
    GiveCommit,
    Input,
    RecordFact,
    SendEvent,
    WorkDone,
)
from coordlog.kernel.outputs import (
    AcceptAttempt,
    Call,
    CallAttemptReady,
    CallCheckpoint,
    CallComplete,
    CallHandler,
    CallSubtaskReset,
    DeliverEvent,
    Effect,
    FenceAttempt,
    InjectBarrier,
)
from coordlog.kernel.step import act, step
from coordlog.messages import AckCheckpoint, AckEvent, AttemptMessage, Complete
from coordlog.messages import SendEvent as SendRow
from coordlog.projections.job.state import DownEvent, JobState, UpEvent, sorted_items
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT
from fakes.machine_fakes import Count, Kept, Made, Row, Rows, Undone, Work, kept_in

__all__ = [
    "Message",
    "Sim",
    "count_of",
    "cut_of",
    "input_of",
    "kept_of",
    "make_event",
    "names_in",
    "number_in",
    "passes",
    "stores",
    "takes",
    "turn",
    "works",
]

OPERATOR = "source"
_CUT_FROM = 1000
"""The handlers' numbers: below it a subtask to make an event for, from it on a checkpoint to cut."""


# --- the coordinator -----------------------------------------------------------------------------
@cache
def encoded(kind: type[Payload], n: int) -> tuple[str, bytes]:
    """Type and bytes of a `Row` or a `Work`."""
    value = Row(n=n) if kind is Row else Work(n=n)
    declared = payload_type_of(value)
    return declared.key, declared.encode(value)


@cache
def number_in(payload: bytes, kind: type[Payload] = Work) -> int:
    """Which event or row it is."""
    value = payload_type_of(kind).decode(payload)
    assert isinstance(value, (Row, Work))
    return value.n


@cache
def names_in(payload: bytes) -> tuple[tuple[int, int], ...]:
    """The rows of an intent, as subtask and number."""
    value = payload_type_of(Rows).decode(payload)
    assert isinstance(value, Rows)
    return _rows_of(value.names)


@cache
def rows_in(content: bytes) -> tuple[tuple[int, int], ...]:
    """The rows of a committable."""
    return _rows_of(json.loads(content))


def _rows_of(names: list[str]) -> tuple[tuple[int, int], ...]:
    return tuple((int(s), int(n)) for s, n in (name.split("/") for name in names))


def count_of(job: JobState, subtask: int) -> Count:
    """What the coordinator knows of one subtask."""
    counts: tuple[Count, ...] = job.projections[OPERATOR]
    return counts[subtask]


def make_event(subtask: int) -> WorkDone:
    """It is time to make an event for that subtask."""
    return _handler(subtask)


def cut_of(checkpoint_id: int) -> WorkDone:
    """It is time to complete its part of that checkpoint."""
    return _handler(_CUT_FROM + checkpoint_id)


def _handler(number: int) -> WorkDone:
    return WorkDone(
        operator_id=OPERATOR, generation=0, turn_sequence=0, call_number=number, is_timer=True
    )


def _fact(value: Payload) -> RecordFact:
    declared = payload_type_of(value)
    return RecordFact(
        operator_id=OPERATOR, payload_type=declared.key, payload=declared.encode(value)
    )


def _send_owed(job: Callable[[], JobState], subtask: int) -> Iterator[Action]:
    attempt = job().subtasks[subtask].attempt
    if attempt is None:
        return
    for n in count_of(job(), subtask).owed:
        key, payload = encoded(Work, n)
        yield SendEvent(
            operator_id=OPERATOR,
            subtask=subtask,
            attempt_number=attempt.attempt_number,
            payload_type=key,
            payload=payload,
            is_loss_tolerant=False,
        )


def _numbers(events: tuple[UpEvent, ...] | tuple[DownEvent, ...]) -> list[int]:
    return [number_in(one.payload, Row if isinstance(one, UpEvent) else Work) for one in events]


def _actions(call: Call, job: Callable[[], JobState], *, is_cut_at_once: bool) -> Iterator[Action]:
    """What the coordinator's code does when it is called; `job` gives the state as it then is."""
    match call:
        case CallAttemptReady():
            yield from _send_owed(job, call.subtask)
        case CallSubtaskReset() if call.lost_up or call.lost_down:
            up, down = _numbers(call.lost_up), _numbers(call.lost_down)
            yield _fact(Undone(subtask=call.subtask, up=up, down=down))
        case CallCheckpoint() if is_cut_at_once:
            yield _cut(call.checkpoint_id)
        case CallHandler() if call.call_number >= _CUT_FROM:
            yield _cut(call.call_number - _CUT_FROM)
        case CallHandler():
            subtask = call.call_number
            yield _fact(Made(subtask=subtask, n=count_of(job(), subtask).made + 1))
            yield from _send_owed(job, subtask)
        case CallComplete():
            names = [
                name
                for granted_by, grants in sorted_items(job().granted)
                if granted_by <= call.checkpoint_id
                for one in grants
                for name in json.loads(one.content)
            ]
            if names:
                declared = payload_type_of(Rows)
                yield GiveCommit(
                    operator_id=OPERATOR,
                    checkpoint_id=call.checkpoint_id,
                    payload_type=declared.key,
                    payload=declared.encode(Rows(names=names)),
                )
        case _:
            pass


def _cut(checkpoint_id: int) -> CompleteCheckpoint:
    return CompleteCheckpoint(operator_id=OPERATOR, checkpoint_id=checkpoint_id, state=None)


def turn(
    config: KernelConfig, job: JobState, given: Input, *, is_cut_at_once: bool
) -> tuple[JobState, list[Effect]]:
    """One turn by the real kernel: its input, the calls, and all that they do. At a time of 0."""
    made = step(config, job, given, 0)
    job, effects, calls = made.state, list(made.effects), deque(made.calls)

    def now() -> JobState:
        return job

    while calls:
        for action in _actions(calls.popleft(), now, is_cut_at_once=is_cut_at_once):
            done = act(config, job, action, 0)
            job = done.state
            effects += done.effects
            calls += done.calls
    return job, effects


# --- a subtask -----------------------------------------------------------------------------------
class Message(NamedTuple):
    """On an attempt's connection, either way."""

    kind: str
    """Up: `row`, `ack`, `passed`, `completed`. Down: `event`, `barrier`."""
    number: int
    """Of the row, the event or the checkpoint."""
    barrier: int = NO_CHECKPOINT
    """The last one passed, on what goes up."""
    event_id: int = 0
    kept: Kept = Kept()
    open_rows: tuple[int, ...] = ()


class Sim(NamedTuple):
    """An attempt as its task has it."""

    attempt_number: int
    rows: int
    got: tuple[int, ...]
    barrier: int
    open_rows: tuple[int, ...] = ()
    storing: tuple[Message, ...] = ()
    up: tuple[Message, ...] = ()
    down: tuple[Message, ...] = ()
    row_count: int = 0
    """Events sent up: the attempt's own count."""
    is_over: bool = False
    """It has sent its completion, and waits."""


@cache
def kept_of(state: bytes | None) -> Kept:
    """What a snapshot says."""
    if state is None:
        return Kept()
    rows, got = json.loads(state)
    return Kept(rows, tuple(got))


def works(sim: Sim) -> Sim:
    """It works on a row: tells of it, and writes it."""
    row = sim.rows + 1
    message = Message("row", row, sim.barrier, sim.row_count)
    return sim._replace(
        rows=row,
        open_rows=(*sim.open_rows, row),
        up=(*sim.up, message),
        row_count=sim.row_count + 1,
    )


def takes(sim: Sim) -> Sim:
    """It takes the next message of its driver: handles an event, or passes a barrier."""
    message, sim = sim.down[0], sim._replace(down=sim.down[1:])
    if message.kind == "event":
        ack = Message("ack", message.number, sim.barrier, message.event_id)
        return sim._replace(got=(*sim.got, message.number), up=(*sim.up, ack))
    return passes(sim, message.number)


def passes(sim: Sim, checkpoint_id: int) -> Sim:
    """It passes a barrier; its snapshot is stored, and acked, some time later."""
    kept = Kept(sim.rows, sim.got)
    message = Message("passed", checkpoint_id, checkpoint_id, 0, kept, sim.open_rows)
    return sim._replace(barrier=checkpoint_id, open_rows=(), storing=(*sim.storing, message))


def stores(sim: Sim) -> Sim:
    """Its oldest snapshot is stored."""
    return sim._replace(up=(*sim.up, sim.storing[0]), storing=sim.storing[1:])


def completes(sim: Sim) -> Sim:
    """It has come to its end."""
    kept = Kept(sim.rows, sim.got)
    message = Message("completed", 0, sim.barrier, 0, kept, sim.open_rows)
    return sim._replace(up=(*sim.up, message), is_over=True)


def input_of(subtask: int, attempt_number: int, message: Message) -> Input:
    """A message as the kernel is given it."""
    return FromAttempt(
        subtask=subtask, attempt_number=attempt_number, message=_up_message(subtask, message)
    )


def _up_message(subtask: int, message: Message) -> AttemptMessage:
    match message.kind:
        case "row":
            key, payload = encoded(Row, message.number)
            return SendRow(
                operator_id=OPERATOR,
                event_id=message.event_id,
                last_barrier=message.barrier,
                payload_type=key,
                payload=payload,
            )
        case "ack":
            return AckEvent(
                operator_id=OPERATOR, event_id=message.event_id, last_barrier=message.barrier
            )
        case "passed":
            return AckCheckpoint(
                checkpoint_id=message.number,
                last_barrier=message.barrier,
                snapshot=message.kept.snapshot(subtask, list(message.open_rows)),
            )
        case _:
            return Complete(
                last_barrier=message.barrier,
                snapshot=message.kept.snapshot(subtask, list(message.open_rows)),
            )


def told(sims: tuple[Sim | None, ...], effect: Effect) -> tuple[Sim | None, ...]:
    """The attempts after an effect that concerns one; the message is on its way."""

    def put(subtask: int, sim: Sim | None) -> tuple[Sim | None, ...]:
        return (*sims[:subtask], sim, *sims[subtask + 1 :])

    match effect:
        case AcceptAttempt():
            kept = kept_in(effect.states)
            sim = Sim(effect.attempt_number, kept.rows, kept.got, effect.restored_checkpoint)
            return put(effect.subtask, sim)
        case DeliverEvent(event=event):
            sim_of_event = sims[event.subtask]
            if sim_of_event is None or sim_of_event.attempt_number != event.attempt_number:
                return sims
            message = Message("event", number_in(event.payload), event_id=event.event_id)
            return put(event.subtask, sim_of_event._replace(down=(*sim_of_event.down, message)))
        case InjectBarrier():
            at = sims[effect.subtask]
            if at is None or at.attempt_number != effect.attempt_number:
                return sims
            barrier = Message("barrier", effect.checkpoint_id)
            return put(effect.subtask, at._replace(down=(*at.down, barrier)))
        case FenceAttempt():
            at = sims[effect.subtask]
            is_its = at is not None and at.attempt_number == effect.attempt_number
            return put(effect.subtask, None) if is_its else sims
        case _:
            return sims
