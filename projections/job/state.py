"""What a job's log says of the job: immutable, sharing structure from one record to the next.

A persistent map iterates in hash order: nothing here is iterated over but through `sorted_items`, `sorted_values`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from immutables import Map

from coordlog.schemas.builtin_types import Committable, OperatorState
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = [
    "END_COMMITTED",
    "FORMER_DEAD",
    "MARK",
    "STOPPED",
    "STOP_ASKED",
    "Abandoned",
    "AttemptState",
    "CompletedCheckpoint",
    "Completion",
    "Cut",
    "DownEvent",
    "DriverStop",
    "FinishedPart",
    "GatewayState",
    "Granted",
    "HandedOver",
    "HeldEvent",
    "JobState",
    "KeptSplit",
    "OpenIntent",
    "PendingCheckpoint",
    "Phase",
    "SkippedEvent",
    "SkippedSplit",
    "SubtaskState",
    "UpEvent",
    "sorted_items",
    "sorted_values",
]

MARK: Final = "fold."
"""Begins the keys of `JobState.launch` that no `EPOCH_STARTED` sets."""
STOP_ASKED: Final = MARK + "stop_asked"
STOPPED: Final = MARK + "stopped"
FORMER_DEAD: Final = MARK + "former_dead"
END_COMMITTED: Final = MARK + "end_committed"

K = TypeVar("K", int, str, tuple[str, int], tuple[str, str])
V = TypeVar("V")


def sorted_items(mapping: Mapping[K, V]) -> list[tuple[K, V]]:
    """The items in the order of their keys: the only way to iterate over a persistent map."""
    return sorted(mapping.items(), key=itemgetter(0))


def sorted_values(mapping: Mapping[K, V]) -> list[V]:
    """The values in the order of their keys."""
    return [value for _, value in sorted_items(mapping)]


class Phase(enum.Enum):
    """Where a job stands. `projections.lifecycles.JOB` says what leads where."""

    __hash__ = object.__hash__  # as of `Kind`: each record asks for what the phase allows

    STARTING = "starting"
    """An epoch has begun; no coordinator has been started in it."""
    RUNNING = "running"
    FAILING = "failing"
    """A global failure; until the next reset nothing from attempts is handled."""
    ENDING = "ending"
    """Batch: every subtask has completed and the intents are given; only settling is left."""
    FINISHED = "finished"
    FAILED = "failed"


class DriverStop(enum.Enum):
    """How far the driver in force has been stopped."""

    NONE = "none"
    ASKED = "asked"
    """It was told to stop: its end is wanted, in whatever way it comes."""
    DONE = "done"
    """It does nothing any more: a proof on any machine that it is over."""


class UpEvent(NamedTuple):
    """An event that an attempt has sent to a coordinator. A tuple: there is one for each event."""

    sequence: int
    operator_id: str
    subtask: int
    attempt_number: int
    event_id: int
    last_barrier: int
    payload_type: str
    payload: bytes


class DownEvent(NamedTuple):
    """An event that a coordinator has sent to an attempt. A tuple: there is one for each event."""

    sequence: int
    operator_id: str
    subtask: int
    attempt_number: int
    event_id: int
    payload_type: str
    payload: bytes
    is_loss_tolerant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """What an attempt handed over at one barrier and no completed checkpoint holds yet."""

    checkpoint_id: int
    committables: tuple[Committable, ...]


@dataclass(frozen=True, kw_only=True)
class AttemptState:
    """A live execution attempt."""

    subtask: int
    attempt_number: int
    epoch: int
    driver_id: str
    stage_run: int
    task_attempt_id: int
    started_sequence: int
    restored_checkpoint: int
    last_barrier: int
    """The newest checkpoint that it has acked; at first the one that it was restored from."""
    handed_over: tuple[HandedOver, ...] = ()
    received: Map[int, UpEvent] = field(default_factory=Map)
    """By sequence: what it has sent up since its barrier of the last completed checkpoint, as far as remembered."""
    sent: Map[int, DownEvent] = field(default_factory=Map)
    """By sequence: what it has been sent since the cut of the last completed checkpoint, as far as remembered."""
    has_forgotten: bool = False
    """Whether such events were too many and are forgotten: its failover cannot be a local one (clause D5)."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """How a subtask finished."""

    attempt_number: int
    sequence: int
    states: tuple[OperatorState, ...]
    handed_over: tuple[HandedOver, ...] = ()
    """What it handed over at barriers of checkpoints that have not completed."""
    ungranted: tuple[Committable, ...]
    """What it made after its last barrier and no completed checkpoint holds yet."""
    received: Map[int, UpEvent] = field(default_factory=Map)
    """What the attempt had sent up and no completed checkpoint covers: channel state, perhaps."""

    def all_committables(self) -> tuple[Committable, ...]:
        """Everything that no completed checkpoint holds yet, in the order in which it was made."""
        earlier = [one for over in self.handed_over for one in over.committables]
        return (*earlier, *self.ungranted)


@dataclass(frozen=True, kw_only=True)
class SubtaskState:
    """One parallel part of the chain."""

    subtask: int
    next_attempt_number: int = 0
    restore_from: int = NO_CHECKPOINT
    """What the next attempt begins from."""
    is_reset: bool = False
    """No attempt has begun since it was last reset; False before the first one."""
    newest_task: tuple[int, int, int] = (-1, -1, -1)
    """(epoch, stage run, taskAttemptId) of the newest task that became an attempt (B4, B7)."""
    attempt: AttemptState | None = None
    completion: Completion | None = None


@dataclass(frozen=True, kw_only=True)
class HeldEvent:
    """An event that waits for checkpoints."""

    event: DownEvent
    held_by: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GatewayState:
    """The way from one coordinator to the live attempt of one subtask."""

    attempt_number: int
    closed_by: tuple[int, ...] = ()
    """The checkpoints that hold it, oldest first."""
    held: tuple[HeldEvent, ...] = ()
    """In send order."""
    unacked: Map[int, DownEvent] = field(default_factory=Map)
    """By event id, held ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A coordinator's part of a checkpoint: its place in the log, and its state."""

    sequence: int
    state: bytes | None
    projection: Any
    """The value of the operator's projection there; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that is neither completed nor aborted."""

    checkpoint_id: int
    triggered_sequence: int
    triggered_us: int
    attempts: Map[int, int]
    """Attempt number by subtask: whom it waits for."""
    finished: tuple[int, ...]
    """Subtasks that had finished before it, or finish before their barrier."""
    cuts: Map[str, Cut] = field(default_factory=Map)
    waiting: Map[int, None] = field(default_factory=Map)
    """Event ids sent before a cut and not acked."""
    is_injected: bool = False
    acks: Map[int, tuple[OperatorState, ...]] = field(default_factory=Map)
    """States by subtask."""

    def missing_coordinators(self, operators: tuple[str, ...]) -> tuple[str, ...]:
        """Of these operators those whose coordinator has not made its cut, in their order."""
        return tuple(one for one in operators if one not in self.cuts)

    @property
    def missing_subtasks(self) -> tuple[int, ...]:
        """The subtasks that have neither acked it nor finished, ascending."""
        return tuple(one for one, _ in sorted_items(self.attempts) if one not in self.acks)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPart:
    """A finished subtask in a completed checkpoint."""

    attempt_number: int
    sequence: int
    states: tuple[OperatorState, ...]


class Abandoned(NamedTuple):
    """Checkpoints that a branch has not come from: those above one number, through another."""

    above: int
    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """All that a restore from a checkpoint needs."""

    checkpoint_id: int
    sequence: int
    """Of its `CHECKPOINT_COMPLETED`."""
    parallelism: int
    cuts: Map[str, Cut]
    states: Map[int, tuple[OperatorState, ...]]
    finished: Map[int, FinishedPart]
    in_flight: tuple[UpEvent, ...]
    """The cut's channel state, in log order."""
    abandoned: tuple[Abandoned, ...] = ()
    """Those below it that it has not come from, ascending."""
    destinations: Map[str, str] = field(default_factory=Map)
    """Where each operator that tells it wrote: what it allows to commit is for that place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A committable that a completed checkpoint, or a batch job's end, allows to be committed."""

    operator_id: str
    subtask: int
    attempt_number: int
    split_id: str | None
    content: bytes


@dataclass(frozen=True, kw_only=True)
class OpenIntent:
    """An intent without an outcome."""

    sequence: int
    operator_id: str
    checkpoint_id: int
    payload_type: str
    payload: bytes
    failed_tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSplit:
    """A finished split of a batch job whose rows are all in committables."""

    operator_id: str
    split_id: str
    subtask: int
    attempt_number: int
    sequence: int
    committables: tuple[Committable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSplit:
    """A split that is not read, or not any further (clause J2)."""

    operator_id: str
    split_id: str
    reason: str
    sequence: int
    """Of the newest record that says so."""
    rows: int | None
    """Its rows that stay, as that record has it; what a reset has thrown away since is not in it."""
    last_barrier: int | None
    """The last barrier that the attempt which said so had passed; None where a command skipped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedEvent:
    """An operator event that is delivered and handled no more (clause J2)."""

    operator_id: str
    subtask: int
    event_type: str
    reason: str
    sequence: int
    """Of the record that says so."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The whole of it. Made by `JobProjection.apply`, and by nothing else."""

    job_id: str = ""
    epoch: int = -1
    driver_id: str = ""
    launch: Map[str, str] = field(default_factory=Map)
    """The attributes of the `EPOCH_STARTED` in force, and marks of the fold: keys that begin with `MARK`."""
    begun_from: str = ""
    """The other job and its checkpoint, as `ingest@7`, where the log begins with that one's history."""
    begun_places: Map[tuple[str, str], None] = field(default_factory=Map)
    """Operator id and destination, empty where none is told: where that job writes, and this one may not."""
    is_another_jobs: bool = False
    """Whether attempts and all else are that job's still: until the first reset of this one."""
    next_sequence: int = 0
    timestamp_us: int = 0
    """Of the last record."""
    phase: Phase = Phase.STARTING
    resumed_phase: Phase | None = None
    """What the job was in when this epoch began; None in the first."""
    is_batch: bool = False
    parallelism: int = 0
    operators: tuple[str, ...] = ()
    """The operators that have coordinators, in the order of the chain."""
    former_operators: tuple[str, ...] = ()
    """Those that had, before this epoch: what they sent to an attempt fails with it (clause E8)."""
    types: Map[str, str] = field(default_factory=Map)
    """Fingerprints by type key."""
    schemas: Map[str, str] = field(default_factory=Map)
    """The registered schemas by type key, as JSON: a log that begins with a snapshot needs them."""
    subtasks: Map[int, SubtaskState] = field(default_factory=Map)
    """After an `EPOCH_STARTED` with another parallelism those of the old one, until the reset."""
    retired: Map[int, SubtaskState] = field(default_factory=Map)
    """Subtasks of a higher parallelism before: no attempt number is used twice (clause B7)."""
    finished_count: int = 0
    live_count: int = 0
    stale: tuple[int, ...] = ()
    """Subtasks that a resume must reset, in order: neither finished nor reset already."""
    gateways: Map[tuple[str, int], GatewayState] = field(default_factory=Map)
    remembered_bytes: int = 0
    """Weight of the events that all subtasks remember."""
    next_event_id: int = 0
    pending: Map[int, PendingCheckpoint] = field(default_factory=Map)
    completed: Map[int, CompletedCheckpoint] = field(default_factory=Map)
    kept: Map[str, int] = field(default_factory=Map)
    """By name: completed checkpoints that stay until they are let go. No reset puts them back."""
    last_checkpoint: int = NO_CHECKPOINT
    """The highest that completed on the current branch (clause E5)."""
    abandoned: tuple[Abandoned, ...] = ()
    """Those that the current branch has not come from, ascending: one more with each going back."""
    next_checkpoint_id: int = 1
    aborts_in_a_row: int = 0
    timeouts_in_a_row: int = 0
    granted: Map[int, tuple[Granted, ...]] = field(default_factory=Map)
    """By checkpoint: the committables that no intent covers yet."""
    set_aside: Map[int, tuple[Granted, ...]] = field(default_factory=Map)
    """The same, of other branches: what checkpoints that are kept there will allow again."""
    intents: Map[int, OpenIntent] = field(default_factory=Map)
    """By sequence: those without an outcome."""
    last_intents: Map[tuple[str, str], int] = field(default_factory=Map)
    """By operator id and destination, empty where none is told: the highest checkpoint with an intent there (E6)."""
    kept_splits: Map[tuple[str, str], KeptSplit] = field(default_factory=Map)
    owed_redeliveries: tuple[UpEvent, ...] = ()
    owed_complete: int | None = None
    """A completed checkpoint that today's coordinator objects have not been told of."""
    is_restore_owed: bool = False
    """Whether `owed_complete` stands before attempts may be ready (clause E6)."""
    failures_us: tuple[int, ...] = ()
    """Times of the failovers that the restart policy counts."""
    reasons: tuple[str, ...] = ()
    """The newest failures' reasons, newest first."""
    poison: Map[str, int] = field(default_factory=Map)
    """Failures in a row by event or split, as in `split_id:part-3` or `event:RATE@1/9f…`."""
    skipped_splits: Map[tuple[str, str], SkippedSplit] = field(default_factory=Map)
    """By operator id and split id. No reset puts them back."""
    skipped_events: Map[str, SkippedEvent] = field(default_factory=Map)
    """By `projections.skips.event_key`. No reset puts them back."""
    projections: Map[str, Any] = field(default_factory=Map)
    """By operator id: the states of event-sourced coordinators."""
    opening: Map[str, Any] | None = None
    """These, where the job was last opened again: what the virtual empty checkpoint holds then."""

    @property
    def driver_stop(self) -> DriverStop:
        """Whether the driver in force was told to stop, and has."""
        if STOPPED in self.launch:
            return DriverStop.DONE
        return DriverStop.ASKED if STOP_ASKED in self.launch else DriverStop.NONE

    @property
    def is_former_dead(self) -> bool:
        """Whether the last driver before it that made a turn ended without being told to.

        No if the user has taken its place, or goes back to an older checkpoint.
        """
        return FORMER_DEAD in self.launch

    @property
    def is_end_committed(self) -> bool:
        """Whether an intent of a batch job's end is given: no reset follows from then on (clause I3)."""
        return END_COMMITTED in self.launch

    @property
    def is_restoring(self) -> bool:
        """Whether coordinators are still owed what precedes the first attempt."""
        return bool(self.owed_redeliveries) or self.is_restore_owed

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.phase in (Phase.FINISHED, Phase.FAILED)

    def attempt(self, subtask: int, attempt_number: int) -> AttemptState | None:
        """That attempt, if it is live."""
        state = self.subtasks.get(subtask)
        if state is None or state.attempt is None:
            return None
        return state.attempt if state.attempt.attempt_number == attempt_number else None

    def finished_in(self, checkpoint_id: int) -> int:
        """How many subtasks a completed checkpoint of today's parallelism holds as finished."""
        checkpoint = self.completed.get(checkpoint_id)
        if checkpoint is None or checkpoint.parallelism != self.parallelism:
            return 0
        return len(checkpoint.finished)
