"""The rules that the protocol and the checkpoints stand on, each with a double that leaves it out.

A double replaces the one function that holds the rule and does the rest of its work. What a search
says without a rule is what the rule is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from coordlog.kernel import attempts, checkpoints
from coordlog.kernel import commits as settling
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import AttemptRegistered
from coordlog.kernel.outputs import AcceptAttempt, Settle
from coordlog.log import append_protocol as protocol
from coordlog.log.append_protocol import DriverState
from coordlog.projections.job import checkpoints as checkpoint_records
from coordlog.projections.job import fold as job
from coordlog.projections.job.state import (
    AttemptState,
    DownEvent,
    GatewayState,
    Granted,
    JobState,
    PendingCheckpoint,
    UpEvent,
    sorted_items,
    sorted_values,
)
from coordlog.schemas import validity as counting
from coordlog.schemas.builtin_types import AttemptSnapshot
from coordlog.schemas.evolution import evolve
from coordlog.schemas.header import Header
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import Counting, Verdict
from exhaustive.kernel_world import Budget, KernelWorld
from exhaustive.protocol_world import ProtocolWorld

__all__ = ["KERNEL_RULES", "PROTOCOL_RULES", "Rule"]

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule, and the smallest world in which its loss is seen."""

    drop: Callable[[Patch], None]
    """Replace what holds it, until the patch is undone."""
    world: Callable[[], Any]
    """Made after the rule has been dropped."""
    breaks: tuple[str, ...]
    """How the fault that is found may begin."""


# --- the log's protocol ----------------------------------------------------------------------------
def _count_as(patch: Patch, double: Callable[[Counting, Header | None], Any]) -> None:
    patch.setattr(counting, "count", double)
    patch.setattr(protocol, "count", double)


def _fits(state: Counting, header: Header, sequence: int) -> tuple[Counting, Verdict]:
    """A record that is taken at `sequence`."""
    after = sequence + 1
    if header.turn_remaining == 0:
        return Counting(state.epoch, after, after), Verdict.COMPLETES
    return Counting(state.epoch, after, state.turn_began), Verdict.FITS


def _without_exact_epoch(patch: Patch) -> None:
    real = counting.count

    def double(state: Counting, header: Header | None) -> tuple[Counting, Verdict]:
        is_newer = header is not None and header.is_epoch_started and header.epoch >= state.epoch
        if header is None or not is_newer:
            return real(state, header)
        return Counting(header.epoch, state.turn_began, state.turn_began), Verdict.EPOCH

    _count_as(patch, double)


def _without_epoch_in_force(patch: Patch) -> None:
    real = counting.count

    def double(state: Counting, header: Header | None) -> tuple[Counting, Verdict]:
        if header is None or header.is_epoch_started:
            return real(state, header)
        return real(state, header._replace(epoch=state.epoch))

    _count_as(patch, double)


def _without_sequence(patch: Patch) -> None:
    real = counting.count

    def double(state: Counting, header: Header | None) -> tuple[Counting, Verdict]:
        is_plain = header is not None and not header.is_epoch_started
        if header is None or not is_plain or header.epoch != state.epoch:
            return real(state, header)
        return _fits(state, header, state.next_sequence)

    _count_as(patch, double)


def _without_whole_turns(patch: Patch) -> None:
    real = counting.count

    def double(state: Counting, header: Header | None) -> tuple[Counting, Verdict]:
        if header is None or header.is_epoch_started:
            return real(state, header)
        return real(state, header._replace(turn_remaining=0))

    _count_as(patch, double)


def _without_take_over_reads_back(patch: Patch) -> None:
    real = protocol._decided

    def double(state: DriverState) -> DriverState:
        if state.goal is protocol._Goal.TAKE_OVER and state.is_acknowledged:
            return replace(state, step=protocol._Step.REST)
        return real(state)

    patch.setattr(protocol, "_decided", double)


def _without_check_offsets(patch: Patch) -> None:
    real = protocol.acknowledged

    def double(state: DriverState, offsets: Sequence[int]) -> DriverState:
        is_first = state.goal is protocol._Goal.APPEND and not state.counted_at
        return protocol._group_next(state, tuple(offsets)) if is_first else real(state, offsets)

    patch.setattr(protocol, "acknowledged", double)


def _without_fold_the_gap(patch: Patch) -> None:
    real = protocol.acknowledged

    def double(state: DriverState, offsets: Sequence[int]) -> DriverState:
        after = real(state, offsets)
        is_gap = after.step is protocol._Step.READ and state.goal is protocol._Goal.APPEND
        return replace(after, step=protocol._Step.FENCED) if is_gap else after

    patch.setattr(protocol, "acknowledged", double)


def _without_asking(patch: Patch) -> None:
    def double(state: DriverState) -> DriverState:
        return replace(state, step=protocol._Step.REST, counted_at=(0,) * len(state.group))

    patch.setattr(protocol, "outcome_unknown", double)


def _world(
    *turns: tuple[int, ...], unknowns: int = 0, kills: int = 0
) -> Callable[[], ProtocolWorld]:
    return lambda: ProtocolWorld(turns=turns, unknowns=unknowns, kills=kills)


PROTOCOL_RULES: Final[Mapping[str, Rule]] = {
    "exact epoch": Rule(
        drop=_without_exact_epoch,
        world=_world((1,), (1,), unknowns=1),
        breaks=("kept", "no self", "go on", "once"),
    ),
    "epoch in force": Rule(
        drop=_without_epoch_in_force, world=_world((2,), (1,)), breaks=("kept", "once", "whole")
    ),
    "sequence": Rule(drop=_without_sequence, world=_world((1,), unknowns=1), breaks=("once",)),
    "whole turns": Rule(drop=_without_whole_turns, world=_world((2,)), breaks=("whole",)),
    "take-over reads back": Rule(
        drop=_without_take_over_reads_back, world=_world((1,), (1,)), breaks=("kept", "once")
    ),
    "check offsets": Rule(drop=_without_check_offsets, world=_world((1,), (1,)), breaks=("kept",)),
    "fold the gap": Rule(
        drop=_without_fold_the_gap, world=_world((1,), unknowns=1), breaks=("no self",)
    ),
    "an unknown outcome is looked at": Rule(
        drop=_without_asking, world=_world((1,), unknowns=1), breaks=("kept",)
    ),
}


# --- checkpoints and failovers ---------------------------------------------------------------------
def _without_redelivery(patch: Patch) -> None:
    patch.setattr(checkpoint_records, "channel_state", lambda _state, _pending: ())


def _without_before_barrier(patch: Patch) -> None:
    def double(state: JobState, pending: PendingCheckpoint) -> tuple[UpEvent, ...]:
        events: list[UpEvent] = []
        for number, _ in sorted_items(pending.attempts):
            attempt = state.subtasks[number].attempt
            for sequence, one in [] if attempt is None else sorted_items(attempt.received):
                if sequence > pending.cuts[one.operator_id].sequence:
                    events.append(one)
        return tuple(events)

    patch.setattr(checkpoint_records, "channel_state", double)


def _without_restored_barrier(patch: Patch) -> None:
    real = attempts._start_attempt

    def double(step: StepBuilder, given: AttemptRegistered) -> None:
        real(step, given)
        for n, effect in enumerate(step.effects):
            if isinstance(effect, AcceptAttempt):
                step.effects[n] = replace(effect, restored_checkpoint=-1)

    patch.setattr(attempts, "_start_attempt", double)


def _without_closing(patch: Patch) -> None:
    real = checkpoint_records.coordinator_checkpointed

    def double(state: JobState, record: Record) -> JobState:
        return evolve(real(state, record), gateways=state.gateways)

    _apply_as(patch, Kind.COORDINATOR_CHECKPOINTED, double)


def _apply_as(patch: Patch, kind: Kind, double: Callable[[JobState, Record], JobState]) -> None:
    patch.setitem(job._PLAIN, kind, double)


def _without_waiting(patch: Patch) -> None:
    def double(state: JobState, pending: PendingCheckpoint) -> bool:
        return len(pending.cuts) == len(state.operators)

    patch.setattr(checkpoints, "_is_cut", double)


def _losing(patch: Patch, *, is_up: bool = True, is_down: bool = True) -> None:
    real = attempts._lost_events

    def double(
        state: JobState, attempt: AttemptState
    ) -> tuple[tuple[UpEvent, ...], tuple[DownEvent, ...]]:
        up, down = real(state, attempt)
        return (up if is_up else ()), (down if is_down else ())

    patch.setattr(attempts, "_lost_events", double)


def _without_undoing(patch: Patch) -> None:
    _losing(patch, is_up=False)


def _without_sending_again(patch: Patch) -> None:
    _losing(patch, is_down=False)


def _without_own_hold(patch: Patch) -> None:
    def double(gateway: GatewayState, _checkpoint_id: int) -> GatewayState:
        return evolve(gateway, closed_by=(), held=())

    patch.setattr(checkpoint_records, "_opened", double)


def _without_late_committables(patch: Patch) -> None:
    real = checkpoint_records.checkpoint_acked

    def double(state: JobState, record: Record, value: AttemptSnapshot) -> JobState:
        is_late = record.checkpoint_id not in state.pending
        return real(state, record, replace(value, committables=[]) if is_late else value)

    def acked(state: JobState, record: Record, value: Payload | None) -> JobState:
        assert isinstance(value, AttemptSnapshot)
        return double(state, record, value)

    patch.setitem(job._TYPED, Kind.CHECKPOINT_ACKED, acked)


def _without_giving_up(patch: Patch) -> None:
    real = job._PLAIN[Kind.ATTEMPT_FAILED]

    def double(state: JobState, record: Record) -> JobState:
        attempt = state.subtasks[record.subtask or 0].attempt
        state = real(state, record)
        kept = [] if attempt is None else [c for h in attempt.handed_over for c in h.committables]
        if not kept or attempt is None:
            return state
        grants = tuple(
            Granted(
                operator_id=one.operator_id,
                subtask=attempt.subtask,
                attempt_number=attempt.attempt_number,
                split_id=None,
                content=one.content,
            )
            for one in kept
        )
        # With whatever completes next.
        return evolve(state, granted=state.granted.set(state.next_checkpoint_id, grants))

    _apply_as(patch, Kind.ATTEMPT_FAILED, double)


def _without_attempt_of_ack(patch: Patch) -> None:
    def double(state: JobState, subtask: int, attempt_number: int) -> AttemptState | None:
        return state.subtasks[subtask].attempt

    patch.setattr(JobState, "attempt", double)


def _without_pending_cuts(patch: Patch) -> None:
    patch.setattr(checkpoint_records, "_oldest_cuts_above", lambda _state, _checkpoint_id: {})


def _without_completion_as_ack(patch: Patch) -> None:
    real = job._TYPED[Kind.SUBTASK_COMPLETED]

    def double(state: JobState, record: Record, value: Payload | None) -> JobState:
        return evolve(real(state, record, value), pending=state.pending)

    patch.setitem(job._TYPED, Kind.SUBTASK_COMPLETED, double)


def _without_aborts(patch: Patch) -> None:
    patch.setattr(checkpoints, "abort", lambda *_args, **_options: None)


def _without_stale(patch: Patch) -> None:
    patch.setattr(job, "_stale", lambda _state: ())


def _without_settling_again(patch: Patch) -> None:
    patch.setattr(settling, "settle_open", lambda _step: None)


def _without_order_of_commits(patch: Patch) -> None:
    def double(state: JobState) -> list[Settle]:
        return [settling._settle(one) for one in sorted_values(state.intents)]

    patch.setattr(settling, "to_settle", double)


def _without_telling_again(patch: Patch) -> None:
    real = checkpoint_records.reset_to_checkpoint

    def double(state: JobState, record: Record, initial: Any) -> JobState:  # noqa: ANN401
        return evolve(real(state, record, initial), owed_complete=None, is_restore_owed=False)

    patch.setattr(checkpoint_records, "reset_to_checkpoint", double)


def _without_all_live(patch: Patch) -> None:
    real = checkpoints.can_trigger

    def double(state: JobState, *, is_overlap_allowed: bool) -> bool:
        live = state.parallelism - state.finished_count
        return real(evolve(state, live_count=live), is_overlap_allowed=is_overlap_allowed)

    patch.setattr(checkpoints, "can_trigger", double)


def _kernel(
    budget: Budget, *, is_overlapping: bool = False, is_cut_at_once: bool = False
) -> Callable[[], KernelWorld]:
    return lambda: KernelWorld(
        budget=budget, is_overlapping=is_overlapping, is_cut_at_once=is_cut_at_once, parallelism=1
    )


KERNEL_RULES: Final[Mapping[str, Rule]] = {
    "what crossed the cut is delivered again": Rule(
        drop=_without_redelivery,
        world=_kernel(Budget(rows=1, checkpoints=1, take_overs=1)),
        breaks=("up",),
    ),
    "only what was sent before the barrier is": Rule(
        drop=_without_before_barrier,
        world=_kernel(Budget(rows=1, checkpoints=1, take_overs=1)),
        breaks=("up",),
    ),
    "an attempt begins with the barrier that it was restored from": Rule(
        drop=_without_restored_barrier,
        world=_kernel(Budget(rows=1, checkpoints=1, failures=2)),
        breaks=("up",),
    ),
    "the cut closes the gateways": Rule(
        drop=_without_closing,
        world=_kernel(Budget(events=2, checkpoints=1, take_overs=1)),
        breaks=("down",),
    ),
    "the barrier waits for the acks": Rule(
        drop=_without_waiting,
        world=_kernel(Budget(events=1, checkpoints=2, take_overs=1), is_overlapping=True),
        breaks=("down",),
    ),
    "what a failover loses upwards is undone": Rule(
        drop=_without_undoing, world=_kernel(Budget(rows=1, failures=1)), breaks=("up",)
    ),
    "what a failover loses downwards is sent again": Rule(
        drop=_without_sending_again, world=_kernel(Budget(events=1, failures=1)), breaks=("down",)
    ),
    "a checkpoint opens what it alone has closed": Rule(
        drop=_without_own_hold,
        world=_kernel(Budget(events=2, checkpoints=2, take_overs=1, aborts=1), is_overlapping=True),
        breaks=("down", "state"),
    ),
    "an abort takes no committable away": Rule(
        drop=_without_late_committables,
        world=_kernel(Budget(rows=1, checkpoints=2, aborts=1)),
        breaks=("rows",),
    ),
    "a failed attempt's committables are given up": Rule(
        drop=_without_giving_up,
        world=_kernel(Budget(rows=1, checkpoints=2, aborts=1, failures=1)),
        breaks=("rows",),
    ),
    "what an attempt that is over has sent is refused": Rule(
        drop=_without_attempt_of_ack,
        world=_kernel(Budget(rows=1, failures=1)),
        breaks=("up", "state"),
    ),
    "what crossed a pending checkpoint's cut outlives an older one's completion": Rule(
        drop=_without_pending_cuts,
        world=_kernel(Budget(rows=1, checkpoints=2, take_overs=1), is_overlapping=True),
        breaks=("up",),
    ),
    "a completion counts as barrier and ack": Rule(
        drop=_without_completion_as_ack,
        world=_kernel(Budget(checkpoints=1, completions=1)),
        breaks=("state", "go on"),
    ),
    "a failover aborts what is pending": Rule(
        drop=_without_aborts,
        world=_kernel(Budget(checkpoints=1, failures=1)),
        breaks=("state", "go on"),
    ),
    "a resume fails what the dead driver had": Rule(
        drop=_without_stale, world=_kernel(Budget(take_overs=1)), breaks=("go on",)
    ),
    "an open intent is settled by the next driver": Rule(
        drop=_without_settling_again,
        world=_kernel(Budget(rows=1, checkpoints=1, take_overs=1)),
        breaks=("go on",),
    ),
    "intents are settled in the order of their checkpoints": Rule(
        drop=_without_order_of_commits,
        world=_kernel(Budget(rows=2, checkpoints=2)),
        breaks=("order",),
    ),
    "after a reset coordinators hear of the completion again": Rule(
        drop=_without_telling_again,
        world=_kernel(Budget(rows=1, checkpoints=1, take_overs=1)),
        breaks=("rows",),
    ),
    "a checkpoint begins only where every subtask has its attempt": Rule(
        drop=_without_all_live,
        world=_kernel(Budget(rows=1, checkpoints=1, failures=1)),
        breaks=("a move from here raises",),
    ),
}
