"""The waits of a job by its records: the times and the open parts from which a verdict follows."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from coordlog.limits import LOST_TOGETHER_S
from coordlog.projections.inspection.verdict import VerdictState
from coordlog.projections.job.checkpoints import restoring_subtasks
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.job.state import DriverStop, JobState, Phase, sorted_items, sorted_values
from coordlog.projections.tables.checkpoints import coordinators_of, subtasks_of
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = ["Intent", "Pending", "WaitFold"]

_TRIGGERS_MIN: Final = 4
"""Triggers in one epoch from which its checkpoints count as periodic, if the log does not have the interval."""
_TRIGGERS_REMEMBERED: Final = 16
_US: Final = 1_000_000

_END_REASONS: Final = {
    VerdictState.FINISHED: "all work of the job is done",
    VerdictState.STOPPED: "its driver was stopped",
}


@dataclass(slots=True, kw_only=True)
class Pending:
    """A pending checkpoint, with the subtasks and operators that have not delivered their parts."""

    triggered_us: int
    subtasks: dict[int, None]
    operators: dict[str, None]


@dataclass(slots=True, kw_only=True)
class Intent:
    """An intent without a settled outcome."""

    intended_us: int
    operator_id: str
    checkpoint_id: int


@dataclass(slots=True, kw_only=True)
class WaitFold:
    """A mutable fold: `apply` takes each record that counts, in log order.

    Its memory grows with subtasks, pending checkpoints and open intents, and with checkpoints once subtasks have
    completed.
    """

    failures_kept: int
    """Maximum length of `failed_us`."""
    job_id: str = ""
    end: VerdictState | None = VerdictState.NEW
    end_reason: str = ""
    ended_us: int = 0
    epoch: int = -1
    is_batch: bool = False
    is_started: bool = False
    """Whether the coordinators of the epoch have started."""
    interval_s: float | None = None
    began_us: int = 0
    """Time of the last start or reset of the whole job."""
    began_words: str = ""
    last_us: int = 0
    completed_us: int | None = None
    last_checkpoint: int = NO_CHECKPOINT
    triggers: deque[int] = field(default_factory=lambda: deque(maxlen=_TRIGGERS_REMEMBERED))
    pending: dict[int, Pending] = field(default_factory=dict)
    intents: dict[int, Intent] = field(default_factory=dict)
    parallelism: int = 0
    operators: tuple[str, ...] = ()
    missing: dict[int, int] = field(default_factory=dict)
    """Time from which a subtask that has not completed is without an attempt, by subtask; ascending."""
    live: dict[int, int] = field(default_factory=dict)
    """Number of the live attempt, by subtask."""
    done: frozenset[int] = frozenset()
    done_at: dict[int, tuple[int, frozenset[int]]] = field(default_factory=dict)
    """Parallelism and completed subtasks, by completed checkpoint; only checkpoints with completed subtasks."""
    failed_us: list[int] = field(default_factory=list)
    """Times of the first failures since the last completed checkpoint."""
    failures: int = 0
    counted_us: int = 0
    """Time of the last counted failure."""
    last_failure: str = ""

    def begin(self, state: JobState) -> None:
        """Begin with a state: that of a live driver, or that with which a pruned log begins.

        A state has no times of intents and attempts: their waits begin with the time of its last record.
        """
        now_us = state.timestamp_us
        self.job_id, self.epoch, self.is_batch = state.job_id, state.epoch, state.is_batch
        self.parallelism, self.operators = state.parallelism, state.operators
        self.interval_s = state.launch_info.checkpoint_interval_s
        self.last_us = self.began_us = now_us
        self.began_words = f"epoch {state.epoch} is in force"
        self.last_checkpoint = state.last_checkpoint
        self.is_started = state.phase is not Phase.STARTING
        ends = {Phase.FINISHED: VerdictState.FINISHED, Phase.FAILED: VerdictState.FAILED}
        stopped = VerdictState.STOPPED if state.driver_stop is DriverStop.DONE else None
        self.end = ends.get(state.phase, stopped) if state.epoch >= 0 else VerdictState.NEW
        of_end = "" if self.end is None else _END_REASONS.get(self.end, "")
        self.end_reason = state.reasons[0] if state.reasons else of_end
        self.ended_us = now_us
        for checkpoint in sorted_values(state.pending):
            self.pending[checkpoint.checkpoint_id] = Pending(
                triggered_us=checkpoint.triggered_us,
                subtasks=dict.fromkeys(checkpoint.missing_subtasks),
                operators=dict.fromkeys(checkpoint.missing_coordinators(state.operators)),
            )
        for sequence, intent in sorted_items(state.intents):
            self.intents[sequence] = Intent(
                intended_us=now_us,
                operator_id=intent.operator_id,
                checkpoint_id=intent.checkpoint_id,
            )
        self.done = frozenset(
            number for number, subtask in sorted_items(state.subtasks) if subtask.completion
        )
        for number, completed in sorted_items(state.completed):
            done = frozenset(subtask for subtask, _ in sorted_items(completed.finished))
            self.done_at[number] = (completed.parallelism, done)
        for number, subtask in sorted_items(state.subtasks):
            attempt = subtask.attempt
            if attempt is not None and attempt.epoch == state.epoch:
                self.live[number] = attempt.attempt_number
        self._all_missing(now_us)

    def apply(self, record: Record) -> None:
        """Apply one record."""
        self.last_us = record.timestamp_us
        match record.kind:
            case Kind.EPOCH_STARTED:
                self._epoch_started(record)
            case Kind.COORDINATORS_STARTED:
                self._start(record, f"epoch {record.epoch} began")
            case Kind.RESET_TO_CHECKPOINT:
                self._reset(record)
            case Kind.ATTEMPT_STARTED | Kind.ATTEMPT_FAILED | Kind.SUBTASK_COMPLETED:
                self._attempt(record)
            case Kind.GLOBAL_FAILURE:
                self._failed(record)
            case Kind.JOB_FINISHED:
                self._over(VerdictState.FINISHED, record, _END_REASONS[VerdictState.FINISHED])
            case Kind.JOB_FAILED:
                self._over(VerdictState.FAILED, record, reason_in_words(record) or "")
            case Kind.FACT if is_driver_stopped(record):
                reason = record.reason or _END_REASONS[VerdictState.STOPPED]
                self._over(VerdictState.STOPPED, record, reason)
            case _:
                self._of_checkpoint(record)

    def interval(self) -> float | None:
        """Seconds between checkpoints: as recorded, else the median of the last triggers, else None."""
        if self.interval_s is not None or self.is_batch or len(self.triggers) < _TRIGGERS_MIN:
            return self.interval_s
        times = list(self.triggers)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return median(gaps) / _US

    def _epoch_started(self, record: Record) -> None:
        launch = LaunchInfo(record.attributes)
        if record.job_id != self.job_id:  # forked: commits of the first job are not this job's
            self.intents.clear()
        self.job_id, self.epoch = record.job_id, record.epoch
        if launch.is_command:  # no driver: an end stays as it is
            if self.end is VerdictState.NEW:
                self._over(VerdictState.STOPPED, record, "no driver has opened the job")
            return
        if self.end in (VerdictState.NEW, VerdictState.STOPPED):
            self.end = None
        self.parallelism = launch.parallelism
        self.operators = coordinators_of(record)
        self.is_batch = record.attributes.get("mode") == "batch"
        self.interval_s = launch.checkpoint_interval_s
        self.triggers.clear()
        self.live.clear()
        self.is_started = False
        self.began_us, self.began_words = record.timestamp_us, f"epoch {record.epoch} began"
        self._all_missing(record.timestamp_us)

    def _start(self, record: Record, words: str) -> None:
        self.end, self.is_started = None, True
        self.began_us, self.began_words = record.timestamp_us, words
        if record.attributes.get("restore") == "again":
            self.done = frozenset()
        self._all_missing(record.timestamp_us)

    def _reset(self, record: Record) -> None:
        number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
        old, done = self.done_at.get(number, (self.parallelism, frozenset()))
        self.done = frozenset(
            subtask
            for subtask in range(self.parallelism)
            if done.issuperset(restoring := restoring_subtasks(old, self.parallelism, subtask))
            and restoring
        )
        self.pending.clear()
        self.live.clear()
        self.missing.clear()
        self.last_checkpoint = number
        place = "its start" if number == NO_CHECKPOINT else f"checkpoint {number}"
        self._start(record, f"the job went back to {place}")

    def _all_missing(self, since_us: int) -> None:
        missing = [
            (self.missing.get(subtask, since_us), subtask)
            for subtask in range(self.parallelism)
            if subtask not in self.done and subtask not in self.live
        ]
        self.missing = {subtask: missing_us for missing_us, subtask in sorted(missing)}

    def _attempt(self, record: Record) -> None:
        subtask, attempt_number = record.subtask, record.attempt_number
        if subtask is None or attempt_number is None:
            return
        if record.kind is Kind.ATTEMPT_STARTED:
            self.live[subtask] = attempt_number
            self.missing.pop(subtask, None)
            return
        is_live = self.live.get(subtask) == attempt_number
        if is_live:
            del self.live[subtask]
        if record.kind is Kind.SUBTASK_COMPLETED:
            self.done |= {subtask}
            self.missing.pop(subtask, None)
            for pending in self.pending.values():
                pending.subtasks.pop(subtask, None)
        elif is_live and self.end is None:
            self.missing[subtask] = record.timestamp_us
            self._failed(record)

    def _failed(self, record: Record) -> None:
        now_us = record.timestamp_us
        self.last_failure = reason_in_words(record) or ""
        if self.failures and now_us - self.counted_us < LOST_TOGETHER_S * _US:
            return  # lost together, as with an executor
        self.counted_us = now_us
        self.failures += 1
        if len(self.failed_us) < self.failures_kept:
            self.failed_us.append(now_us)

    def _over(self, end: VerdictState, record: Record, reason: str) -> None:
        self.end, self.end_reason, self.ended_us = end, reason, record.timestamp_us
        self.pending.clear()

    def _of_checkpoint(self, record: Record) -> None:
        number = record.checkpoint_id
        if number is None:
            return
        pending = self.pending.get(number)
        match record.kind:
            case Kind.CHECKPOINT_TRIGGERED:
                self.triggers.append(record.timestamp_us)
                self.pending[number] = Pending(
                    triggered_us=record.timestamp_us,
                    subtasks=dict.fromkeys(subtasks_of(record)),
                    operators=dict.fromkeys(self.operators),
                )
            case Kind.COORDINATOR_CHECKPOINTED if pending is not None:
                pending.operators.pop(record.operator_id or "", None)
            case Kind.CHECKPOINT_ACKED if pending is not None and record.subtask is not None:
                pending.subtasks.pop(record.subtask, None)
            case Kind.CHECKPOINT_ABORTED:
                self.pending.pop(number, None)
            case Kind.CHECKPOINT_COMPLETED:
                self.pending.pop(number, None)
                self.completed_us, self.last_checkpoint = record.timestamp_us, number
                if self.done:
                    self.done_at[number] = (self.parallelism, self.done)
                self.failed_us.clear()
                self.failures = 0
            case Kind.COMMIT_INTENT if record.sequence is not None:
                self.intents[record.sequence] = Intent(
                    intended_us=record.timestamp_us,
                    operator_id=record.operator_id or "",
                    checkpoint_id=number,
                )
            case Kind.COMMIT_OUTCOME if record.attributes.get("settled") == "true":
                self.intents.pop(-1 if record.cause is None else record.cause, None)
            case _:
                pass
