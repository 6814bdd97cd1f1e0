"""Whole runs of small jobs, of several kinds, written by hand: what sweeps over crashes and folds go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordlog.schemas.record import Kind
from histories.sweep_worlds import CountingWorld, SplitWorld, World

__all__ = ["RUNS", "Run"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A kind of run: how its world is made, and what happens before it finishes."""

    make: Callable[..., World]
    steps: str
    shows: dict[Kind, int]
    """How many records of these kinds the history has at least: what the run is about."""
    attributes: tuple[str, ...] = ()
    """Attributes that some record must have."""
    pending_at_once: int = 1
    """Checkpoints, at most."""
    modes: tuple[str, ...]
    """In which a later driver may go on."""

    def recorded(self) -> World:
        """The whole run, to its end."""
        world = self.make()
        world.play(*[step.strip() for step in self.steps.split(",")])
        world.finish()
        return world


def counting(**options: Any) -> Callable[..., CountingWorld]:  # noqa: ANN401, options of a world
    return lambda **more: CountingWorld(**options, **more)


def splits(**options: Any) -> Callable[..., SplitWorld]:  # noqa: ANN401, options of a world
    return lambda **more: SplitWorld(**options, **more)


EVENTS = """
    register 0, register 1, row 0, make 0, make 1, answer 0, take 1,
    trigger, row 1, make 1, cut, make 0, work 0, say 0, say 1, answer 1, take 0, take 1, say 1,
    row 1, say 0, answer 0, make 1, take 1
"""
"""Events both ways across the cut of checkpoint 1, held ones among them, and some after it."""

RUNS = {
    "a user's coordinator": Run(
        make=counting(),
        steps=EVENTS + ", trigger, cut",
        shows={
            Kind.EVENT_TO_COORDINATOR: 4,
            Kind.EVENT_TO_SUBTASK: 4,
            Kind.CHECKPOINT_COMPLETED: 2,
            Kind.COMMIT_OUTCOME: 2,
        },
        attributes=("held_by",),
        modes=("rollback",),
    ),
    "an event-sourced one": Run(
        make=counting(is_folded=True),
        steps=EVENTS + ", lose 1, register 1, trigger, cut, answer 0, take 1",
        shows={Kind.EVENT_TO_SUBTASK: 4, Kind.SUBTASK_RESET: 1, Kind.CHECKPOINT_COMPLETED: 2},
        attributes=("held_by",),
        modes=("rollback", "resume"),
    ),
    "overlapping checkpoints": Run(
        make=counting(is_folded=True, is_overlapping=True),
        steps="""
            register 0, register 1, row 0, make 0, trigger, row 1, cut, make 1, answer 0,
            trigger, row 0, cut, make 1, make 0, answer 0, row 1, answer 1, answer 1,
            answer 0, answer 0, trigger, cut, answer 1
        """,
        shows={Kind.CHECKPOINT_TRIGGERED: 3, Kind.CHECKPOINT_COMPLETED: 3},
        pending_at_once=2,
        attributes=("held_by",),
        modes=("rollback", "resume"),
    ),
    "failovers": Run(
        make=counting(),
        steps=EVENTS
        + """, lose 1, register 1, trigger, row 0, cut, make 1, lose 1, register 1, answer 1,
            fail, register 0, register 1, row 0, fail, register 1""",
        shows={
            Kind.SUBTASK_RESET: 2,
            Kind.GLOBAL_FAILURE: 2,
            Kind.RESET_TO_CHECKPOINT: 2,
            Kind.EVENT_FAILED: 2,
            Kind.CHECKPOINT_ABORTED: 1,
            Kind.EVENT_REDELIVERED: 2,
        },
        modes=("rollback",),
    ),
    "a take-over": Run(
        make=counting(is_folded=True),
        steps=EVENTS + ", cut_off 1, take_over, register 1, row 1",
        shows={Kind.EPOCH_STARTED: 2, Kind.RESET_TO_CHECKPOINT: 1, Kind.EVENT_REDELIVERED: 1},
        modes=("rollback", "resume"),
    ),
    "acks of several events at once": Run(
        make=counting(is_folded=True),
        steps="""
            register 0, register 1, make 0, make 0, make 1, row 0, take 0, take 0, work 0,
            trigger, make 0, make 1, say_together 0, take 1, row 1, say_together 1,
            take 0, take 1, say_together 0, say_together 1, make 1, take 1, take 1, take 1,
            say_together 1, lose 1, register 1, take 1, take 1, work 1, say_together 1, trigger
        """,
        shows={
            Kind.EVENT_TO_SUBTASK: 6,
            Kind.EVENT_ACKED: 4,
            Kind.CHECKPOINT_COMPLETED: 2,
            Kind.SUBTASK_RESET: 1,
        },
        attributes=("also_acked", "held_by"),
        modes=("rollback", "resume"),
    ),
    "splits and commits": Run(
        make=splits(),
        steps="""
            register 0, register 1, ask 0, ask 1, take 0, read 0, take 1, trigger, ask 0, read 1,
            take 0, take 1, take 0, lose 0, register 0, take 0, trigger, ask 1, take 0, take 1,
            cut_off 1, take_over, register 0
        """,
        shows={
            Kind.SPLIT_FINISHED: 5,
            Kind.CHECKPOINT_COMPLETED: 2,
            Kind.COMMIT_OUTCOME: 2,
            Kind.SUBTASK_RESET: 1,
            Kind.EPOCH_STARTED: 2,
        },
        modes=("rollback", "resume"),
    ),
    "batch with kept splits": Run(
        make=splits(is_batch=True, is_kept=True),
        steps="""
            register 0, register 1, ask 0, take 0, read 0, ask 1, take 1, ask 0, take 0, lose 0,
            register 0, read 1, fail, register 0, register 1, ask 0, take 0, read 0, ask 1,
            cut_off 1, take_over, register 0
        """,
        shows={Kind.SPLIT_FINISHED: 5, Kind.SUBTASK_RESET: 1, Kind.EPOCH_STARTED: 2},
        attributes=("kept",),
        pending_at_once=0,
        modes=("rollback", "resume"),
    ),
    "batch with splits that end together": Run(
        make=splits(is_batch=True, is_kept=True),
        steps="""
            register 0, register 1, ask 0, take 0, ask 0, take 0, ask 1, take 1, read_together 0,
            ask 0, take 0, ask 0, take 0, lose 0, register 0, ask 0, take 0, ask 1, take 1,
            read_together 1, cut_off 0, take_over, register 0, register 1, ask 0, take 0
        """,
        shows={Kind.SPLIT_FINISHED: 5, Kind.SUBTASK_RESET: 1, Kind.EPOCH_STARTED: 2},
        attributes=("kept", "rows_with"),
        pending_at_once=0,
        modes=("rollback", "resume"),
    ),
    "batch without kept splits": Run(
        make=splits(is_batch=True),
        steps="""
            register 0, ask 0, take 0, read 0, ask 0, take 0, lose 0, register 0, register 1,
            ask 1, take 1
        """,
        shows={Kind.SPLIT_FINISHED: 6, Kind.SUBTASK_RESET: 1},
        pending_at_once=0,
        modes=("rollback", "resume"),
    ),
}
