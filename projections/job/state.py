"""The state of a job by its log: immutable, sharing structure from one record to the next.

A persistent map iterates in hash order: iterate over it only through `sorted_items` or `sorted_values`.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from immutables import Map

from coordlog.projections.job.launch import LaunchInfo
from coordlog.schemas.builtin_types import Committable, OperatorState
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = [
    "AWAY",
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
"""Prefix of the keys of `JobState.launch` that no `EPOCH_STARTED` sets."""
STOP_ASKED: Final = MARK + "stop_asked"
STOPPED: Final = MARK + "stopped"
FORMER_DEAD: Final = MARK + "former_dead"
END_COMMITTED: Final = MARK + "end_committed"
OPERATORS_BELOW: Final = MARK + "operators_below."
"""Before a sequence: the operators of the epoch that ended there, if the next had others and a state of it is held."""
WRITTEN_AT: Final = MARK + "written_at."
"""Before a sequence: all those at which states were written that are known by it alone since."""
GRANTED_AT: Final = MARK + "granted_at."
"""Before a checkpoint: sequences at which its grants were written, if not all by the operators in force."""
AWAY: Final = MARK + "away."
"""Before an operator with a coordinator: its description by its last epoch, from the beginning of an epoch without it
until an epoch with it has begun its work."""
AWAY_AT: Final = MARK + "away_at."
"""Before the sequence of a batch's opening: the operators that were away then, as `AWAY` describes them."""

K = TypeVar("K", int, str, tuple[str, int], tuple[str, str])
V = TypeVar("V")


def sorted_items(mapping: Mapping[K, V]) -> list[tuple[K, V]]:
    """The items in the order of their keys: the only way to iterate over a persistent map."""
    return sorted(mapping.items(), key=itemgetter(0))


def sorted_values(mapping: Mapping[K, V]) -> list[V]:
    """The values in the order of their keys."""
    return [value for _, value in sorted_items(mapping)]


class Phase(enum.Enum):
    """Phase of a job. Its transitions are the table `projections.job.lifecycle.JOB`."""

    __hash__ = object.__hash__  # as of `Kind`: the phase is a key of a look-up for each record

    STARTING = "starting"
    """The epoch has begun; none of its coordinators was started."""
    RUNNING = "running"
    FAILING = "failing"
    """A global failure; until the next reset no event of attempts is handled."""
    ENDING = "ending"
    """Batch: every subtask has completed and the intents are recorded; only settling is left."""
    FINISHED = "finished"
    FAILED = "failed"


class DriverStop(enum.Enum):
    """How far the driver in force has been stopped."""

    NONE = "none"
    ASKED = "asked"
    """A stop was requested: its end is no failure, however it ends."""
    DONE = "done"
    """The driver has ended its work: proof on any machine that the driver is over."""


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
    """Committables handed over at one barrier that no completed checkpoint holds yet."""

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
    """Newest checkpoint that it has acked; at first the checkpoint that it was restored from."""
    handed_over: tuple[HandedOver, ...] = ()
    received: Map[int, UpEvent] = field(default_factory=Map)
    """Remembered events sent up since its barrier of the last completed checkpoint, by sequence."""
    sent: Map[int, DownEvent] = field(default_factory=Map)
    """Remembered events sent to it since the cut of the last completed checkpoint, by sequence."""
    has_forgotten: bool = False
    """Whether such events were too many and are forgotten: no local failover is possible (D5: lost events)."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """How a subtask finished."""

    attempt_number: int
    sequence: int
    states: tuple[OperatorState, ...]
    handed_over: tuple[HandedOver, ...] = ()
    """Committables handed over at barriers of checkpoints that have not completed."""
    ungranted: tuple[Committable, ...]
    """Committables after its last barrier that no completed checkpoint holds yet."""
    received: Map[int, UpEvent] = field(default_factory=Map)
    """Events sent up that no completed checkpoint covers: possible channel state."""

    def all_committables(self) -> tuple[Committable, ...]:
        """All committables that no completed checkpoint holds yet, in the order of their creation."""
        earlier = [committable for over in self.handed_over for committable in over.committables]
        return (*earlier, *self.ungranted)


@dataclass(frozen=True, kw_only=True)
class SubtaskState:
    """One parallel part of the chain."""

    subtask: int
    next_attempt_number: int = 0
    restore_from: int = NO_CHECKPOINT
    """Checkpoint that the next attempt begins from."""
    is_reset: bool = False
    """Whether no attempt has begun since the last reset; False before the first reset."""
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
    """The gateway from one coordinator to the live attempt of one subtask."""

    attempt_number: int
    closed_by: tuple[int, ...] = ()
    """Checkpoints that hold the gateway, oldest first."""
    held: tuple[HeldEvent, ...] = ()
    """Held events in send order."""
    unacked: Map[int, DownEvent] = field(default_factory=Map)
    """Un-acked events by event id, held ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A coordinator's part of a checkpoint: its place in the log, and its state."""

    sequence: int
    state: bytes | None
    projection: Any
    """Value of the operator's projection at the cut, or None if it has no projection."""


@dataclass(frozen=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that is neither completed nor aborted."""

    checkpoint_id: int
    triggered_sequence: int
    triggered_us: int
    attempts: Map[int, int]
    """Number of each attempt whose ack it waits for, by subtask."""
    finished: tuple[int, ...]
    """Subtasks that finished before the trigger, or before their barrier."""
    cuts: Map[str, Cut] = field(default_factory=Map)
    waiting: Map[int, None] = field(default_factory=Map)
    """Ids of the events sent before a cut and not acked."""
    is_injected: bool = False
    acks: Map[int, tuple[OperatorState, ...]] = field(default_factory=Map)
    """States by subtask."""

    def missing_coordinators(self, operators: tuple[str, ...]) -> tuple[str, ...]:
        """Operators whose coordinator has not made its cut, in the order of `operators`."""
        return tuple(operator_id for operator_id in operators if operator_id not in self.cuts)

    @property
    def missing_subtasks(self) -> tuple[int, ...]:
        """Subtasks that have neither acked it nor finished, ascending."""
        return tuple(number for number, _ in sorted_items(self.attempts) if number not in self.acks)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPart:
    """A finished subtask in a completed checkpoint."""

    attempt_number: int
    sequence: int
    states: tuple[OperatorState, ...]


class Abandoned(NamedTuple):
    """Checkpoints that are not ancestors of a branch: numbers above `above`, up to `through` inclusive."""

    above: int
    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """All that a restore from a checkpoint needs."""

    checkpoint_id: int
    sequence: int
    """Sequence of its `CHECKPOINT_COMPLETED`."""
    parallelism: int
    cuts: Map[str, Cut]
    states: Map[int, tuple[OperatorState, ...]]
    finished: Map[int, FinishedPart]
    in_flight: tuple[UpEvent, ...]
    """Channel state of the cut, in log order."""
    abandoned: tuple[Abandoned, ...] = ()
    """Lower checkpoints that are not its ancestors, ascending."""
    destinations: Map[str, str] = field(default_factory=Map)
    """Destination by operator id, if declared: its committables are for that destination."""


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
    """A split that is not read, or not any further (J2: skip poison)."""

    operator_id: str
    split_id: str
    reason: str
    sequence: int
    """Sequence of the newest record of the skip."""
    rows: int | None
    """Rows of the split that stay, by that record; later resets do not change the number."""
    last_barrier: int | None
    """Last barrier of the attempt that recorded the skip, or None if a command did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedEvent:
    """An operator event that is neither delivered nor handled any more (J2: skip poison)."""

    operator_id: str
    subtask: int
    event_type: str
    reason: str
    sequence: int
    """Sequence of the record of the skip."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The whole state of a job. Only `JobProjection.apply` and snapshots create it."""

    job_id: str = ""
    epoch: int = -1
    driver_id: str = ""
    launch: Map[str, str] = field(default_factory=Map)
    """Attributes of the `EPOCH_STARTED` in force, and marks of the fold: keys with the prefix `MARK`."""
    begun_from: str = ""
    """Original job and checkpoint, as `ingest@7`, if the job was forked; else empty."""
    begun_places: Map[tuple[str, str], None] = field(default_factory=Map)
    """Operator id and destination (empty if undeclared) of the original job; this job may not write there."""
    is_another_jobs: bool = False
    """Whether attempts and other parts are still of the original job: until the first reset of this job."""
    next_sequence: int = 0
    timestamp_us: int = 0
    """Time of the last record."""
    phase: Phase = Phase.STARTING
    resumed_phase: Phase | None = None
    """Phase of the job when this epoch began, or None in the first epoch."""
    is_batch: bool = False
    parallelism: int = 0
    operators: tuple[str, ...] = ()
    """Operators that have coordinators, in the order of the chain."""
    former_operators: tuple[str, ...] = ()
    """Operators that had coordinators in earlier epochs: their events fail with the attempt (E8: removed operators)."""
    types: Map[str, str] = field(default_factory=Map)
    """Fingerprints by type key."""
    schemas: Map[str, str] = field(default_factory=Map)
    """Registered schemas by type key, as JSON: a log that begins with a snapshot needs them."""
    subtasks: Map[int, SubtaskState] = field(default_factory=Map)
    """Subtasks by number; after an `EPOCH_STARTED` with another parallelism the old ones, until the reset."""
    retired: Map[int, SubtaskState] = field(default_factory=Map)
    """Subtasks of an earlier, higher parallelism: no attempt number is used twice (B7: unique attempt numbers)."""
    finished_count: int = 0
    live_count: int = 0
    stale: tuple[int, ...] = ()
    """Subtasks that a resume must reset, ascending: neither finished nor reset already."""
    gateways: Map[tuple[str, int], GatewayState] = field(default_factory=Map)
    remembered_bytes: int = 0
    """Weight of the events that all subtasks remember."""
    next_event_id: int = 0
    pending: Map[int, PendingCheckpoint] = field(default_factory=Map)
    completed: Map[int, CompletedCheckpoint] = field(default_factory=Map)
    savepoints: Map[str, int] = field(default_factory=Map)
    """Completed checkpoints that stay until they are released, by name. No reset changes them."""
    last_checkpoint: int = NO_CHECKPOINT
    """Highest completed checkpoint of the current branch (E5: branches)."""
    abandoned: tuple[Abandoned, ...] = ()
    """Checkpoints that are not ancestors of the current branch, ascending: one range more with each reset."""
    next_checkpoint_id: int = 1
    aborts_in_a_row: int = 0
    timeouts_in_a_row: int = 0
    granted: Map[int, tuple[Granted, ...]] = field(default_factory=Map)
    """Committables that no intent covers yet, by checkpoint."""
    set_aside: Map[int, tuple[Granted, ...]] = field(default_factory=Map)
    """Committables of other branches, by checkpoint: savepoints there will allow them again."""
    intents: Map[int, OpenIntent] = field(default_factory=Map)
    """Intents without an outcome, by sequence."""
    last_intents: Map[tuple[str, str], int] = field(default_factory=Map)
    """Highest checkpoint with an intent, by operator id and destination (empty if undeclared; E6: no second commit)."""
    kept_splits: Map[tuple[str, str], KeptSplit] = field(default_factory=Map)
    owed_redeliveries: tuple[UpEvent, ...] = ()
    owed_complete: int | None = None
    """Completed checkpoint whose notification the current coordinator objects have not received."""
    is_restore_owed: bool = False
    """Whether the notification of `owed_complete` must precede ready attempts (E6: restore order)."""
    failures_us: tuple[int, ...] = ()
    """Times of the failovers that the restart policy counts."""
    failure_sequence: int = -1
    """Sequence of the record of the newest counted failover, -1 before the first."""
    reasons: tuple[str, ...] = ()
    """Reasons of the newest failures, newest first."""
    poison: Map[str, int] = field(default_factory=Map)
    """Consecutive failures by event or split, as in `split_id:part-3` or `event:RATE@1/9f…`."""
    skipped_splits: Map[tuple[str, str], SkippedSplit] = field(default_factory=Map)
    """Skipped splits by operator id and split id. No reset changes them."""
    skipped_events: Map[str, SkippedEvent] = field(default_factory=Map)
    """Skips of events, in force and used, by the keys that `projections.job.skips.event_key` describes."""
    projections: Map[str, Any] = field(default_factory=Map)
    """States of event-sourced coordinators, by operator id."""
    opening: Map[str, Any] | None = None
    """`projections` when the job was last opened again: the virtual empty checkpoint holds them then."""

    @property
    def launch_info(self) -> LaunchInfo:
        """Launch facts of the epoch in force: job, log and driver."""
        return LaunchInfo(self.launch)

    def operators_at(self, sequence: int) -> str:
        """Operators, as in `EPOCH_STARTED`, of the epoch that wrote a state which the job state holds.

        Args:
            sequence: Sequence of the checkpoint's completion, or of the end of the subtask, that has the state.
        """
        ends = [end for end in self.operators_below if end > sequence]
        return self.operators_below[min(ends)] if ends else self.launch.get("operators", "[]")

    @property
    def last_operators(self) -> str:
        """Operators, as in `EPOCH_STARTED`, of the last epoch with a turn: one that died before has written nothing."""
        return self.operators_at(self.next_sequence - 1) if self.next_sequence else "[]"

    @property
    def operators_below(self) -> Mapping[int, str]:
        """Operators of former epochs, by the sequence at which the next epoch began with others."""
        return {
            int(name.removeprefix(OPERATORS_BELOW)): operators
            for name, operators in sorted_items(self.launch)
            if name.startswith(OPERATORS_BELOW) and name.removeprefix(OPERATORS_BELOW).isdecimal()
        }

    @property
    def away(self) -> Mapping[str, str]:
        """Operators that no epoch at work has had since, each as its last epoch describes it in `EPOCH_STARTED`."""
        return {
            name.removeprefix(AWAY): description
            for name, description in sorted_items(self.launch)
            if name.startswith(AWAY)
        }

    def away_at(self, sequence: int) -> str:
        """Operators, as in `EPOCH_STARTED`, that were away at the opening of a batch with this sequence."""
        return self.launch.get(f"{AWAY_AT}{sequence}", "[]")

    def written_at(self, sequences: Iterable[int]) -> tuple[int, ...]:
        """Sequences at which states were written that are known by these, ascending.

        States of several ends are known by one sequence after a merge of finished subtasks, or an opening again.
        """
        marks = [
            self.launch.get(f"{WRITTEN_AT}{sequence}", str(sequence)) for sequence in sequences
        ]
        texts = {text for mark in marks for text in mark.split() if text.isdecimal()}
        return tuple(sorted(int(text) for text in texts))

    def granted_at(self, checkpoint_id: int) -> tuple[int, ...]:
        """Sequences at which the grants of a checkpoint were written; empty if all by the operators in force."""
        texts = self.launch.get(f"{GRANTED_AT}{checkpoint_id}", "").split()
        return tuple(int(text) for text in texts if text.isdecimal())

    def ends_of_writers(self, sequences: Iterable[int]) -> tuple[int, ...]:
        """Last sequences of the former epochs with other operators that wrote what has these sequences, ascending."""
        ends = sorted(self.operators_below)
        places = {bisect_right(ends, sequence) for sequence in sequences} if ends else ()
        return tuple(ends[place] - 1 for place in sorted(places) if place < len(ends))

    @property
    def driver_stop(self) -> DriverStop:
        """Whether a stop of the driver in force was requested, or is done."""
        if STOPPED in self.launch:
            return DriverStop.DONE
        return DriverStop.ASKED if STOP_ASKED in self.launch else DriverStop.NONE

    @property
    def is_former_dead(self) -> bool:
        """Whether the last earlier driver that made a turn ended without a requested stop.

        False if the user took over its job, or goes back to an older checkpoint.
        """
        return FORMER_DEAD in self.launch

    @property
    def is_end_committed(self) -> bool:
        """Whether an intent of a batch job's end is recorded: no reset follows (I3: batch commit)."""
        return END_COMMITTED in self.launch

    @property
    def is_restoring(self) -> bool:
        """Whether coordinators have not yet received all events and notifications before the first attempt."""
        return bool(self.owed_redeliveries) or self.is_restore_owed

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.phase in (Phase.FINISHED, Phase.FAILED)

    def attempt(self, subtask: int, attempt_number: int) -> AttemptState | None:
        """The state of an attempt, or None if it is not live."""
        state = self.subtasks.get(subtask)
        if state is None or state.attempt is None:
            return None
        return state.attempt if state.attempt.attempt_number == attempt_number else None

    def finished_in(self, checkpoint_id: int) -> int:
        """Number of finished subtasks in a completed checkpoint of the current parallelism, else 0."""
        checkpoint = self.completed.get(checkpoint_id)
        if checkpoint is None or checkpoint.parallelism != self.parallelism:
            return 0
        return len(checkpoint.finished)
