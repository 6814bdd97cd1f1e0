"""The verdict on a job at a moment: whether it progresses, since when, and what it waits for.

`VerdictFold` keeps the times that a verdict needs. It is applied to the records of a log, or begun with the state of a
live driver and applied to each record that this driver releases. `verdict` is a pure function of both and a moment.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Final

from coordlog.amounts import many
from coordlog.limits import (
    LOST_TOGETHER_S,
    VERDICT_APPEND_SLOW_S,
    VERDICT_APPEND_STUCK_S,
    VERDICT_COMMIT_SLOW_S,
    VERDICT_COMMIT_STUCK_S,
    VERDICT_FAILURES,
    VERDICT_SILENCE_SLOW_S,
    VERDICT_SLOW_INTERVALS,
    VERDICT_SLOW_S,
    VERDICT_STUCK_INTERVALS,
    VERDICT_STUCK_S,
    VERDICT_SUBTASK_SLOW_S,
    VERDICT_SUBTASK_STUCK_S,
)
from coordlog.projections.job.checkpoints import restoring_subtasks
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.job.state import DriverStop, JobState, Phase, sorted_items, sorted_values
from coordlog.projections.tables.checkpoints import coordinators_of, subtasks_of
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = [
    "Thresholds",
    "Verdict",
    "VerdictFold",
    "VerdictState",
    "Waiting",
    "WaitingFor",
    "verdict_of",
]

_TRIGGERS_MIN: Final = 4
"""Triggers in one epoch from which its checkpoints count as periodic, if the log does not have the interval."""
_TRIGGERS_REMEMBERED: Final = 16
_NAMED_MAX: Final = 5
_US: Final = 1_000_000


class VerdictState(enum.Enum):
    """State of a job in a verdict."""

    NEW = "new"
    """The log has no record that counts."""
    PROGRESSING = "progressing"
    SLOW = "slow"
    """The job waits longer than usual."""
    STUCK = "stuck"
    """The job waits so long that a person should act."""
    STOPPED = "stopped"
    """Its driver was stopped in order; another one can continue."""
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether no driver works on the job, by the log."""
        return self in (VerdictState.STOPPED, VerdictState.FINISHED, VerdictState.FAILED)


class WaitingFor(enum.Enum):
    """Kind of thing that a job waits for."""

    DRIVER = "driver"
    """The start of its driver, or the answer of a driver that is gone."""
    SUBTASK = "subtask"
    """Attempts of subtasks that have none."""
    CHECKPOINT = "checkpoint"
    APPEND = "append"
    """Records that the driver has appended, and the log has not acknowledged."""
    COMMIT = "commit"
    RECORD = "record"
    """Any record at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One thing that a job waits for."""

    kind: WaitingFor
    since_us: int
    """Begin of the wait; microseconds since 1970, UTC."""
    checkpoint_id: int | None = None
    subtasks: tuple[int, ...] = ()
    """Subtasks without an attempt, or without an ack of the checkpoint; ascending."""
    operators: tuple[str, ...] = ()
    """Operators without a cut, or whose commit has no outcome."""
    sequence: int | None = None
    """Sequence of the intent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a job at a moment."""

    state: VerdictState
    since_us: int
    """Begin of the state; microseconds since 1970, UTC. Of a slow or stuck job, the time of a threshold."""
    reason: str
    """One sentence for people, without its full stop."""
    waiting_for: tuple[Waiting, ...] = ()
    """All that the job waits for at the moment, the longest wait first."""

    def lasts_ms(self, now_us: int) -> float:
        """Milliseconds from the begin of the state to a moment, 0 or more."""
        return max(0, now_us - self.since_us) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Waits from which a job is slow, and stuck. Seconds, unless their name says otherwise."""

    slow_intervals: float = VERDICT_SLOW_INTERVALS
    """Checkpoint intervals without a completed checkpoint; never less than `slow_s`."""
    stuck_intervals: float = VERDICT_STUCK_INTERVALS
    """As `slow_intervals`; never less than `stuck_s`."""
    slow_s: float = VERDICT_SLOW_S
    stuck_s: float = VERDICT_STUCK_S
    subtask_slow_s: float = VERDICT_SUBTASK_SLOW_S
    subtask_stuck_s: float = VERDICT_SUBTASK_STUCK_S
    append_slow_s: float = VERDICT_APPEND_SLOW_S
    append_stuck_s: float = VERDICT_APPEND_STUCK_S
    commit_slow_s: float = VERDICT_COMMIT_SLOW_S
    commit_stuck_s: float = VERDICT_COMMIT_STUCK_S
    silence_slow_s: float = VERDICT_SILENCE_SLOW_S
    """Time without any record, if the job has no checkpoint interval."""
    failures: int = VERDICT_FAILURES
    """Failures without a completed checkpoint between them from which a job is slow; those of 2 s count as one."""


@dataclass(slots=True, kw_only=True)
class _Pending:
    triggered_us: int
    subtasks: dict[int, None]
    operators: dict[str, None]


@dataclass(slots=True, kw_only=True)
class _Intent:
    intended_us: int
    operator_id: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Symptom:
    since_us: int
    slow_s: float
    stuck_s: float | None
    """Seconds after which the job is stuck, or None if this never makes it stuck."""
    waiting: Callable[[], Waiting]
    words: Callable[[], str]

    @property
    def slow_us(self) -> int:
        return self.since_us + round(self.slow_s * _US)

    @property
    def stuck_us(self) -> int | None:
        return None if self.stuck_s is None else self.since_us + round(self.stuck_s * _US)


@dataclass(slots=True, kw_only=True)
class VerdictFold:
    """The fold behind verdicts.

    `apply` takes each record that counts, in log order; `verdict` may be called at any time, on the same thread. Its
    memory grows with subtasks, pending checkpoints and open intents, and with checkpoints once subtasks have completed.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    _job_id: str = ""
    _end: VerdictState | None = VerdictState.NEW
    _end_reason: str = ""
    _ended_us: int = 0
    _epoch: int = -1
    _is_batch: bool = False
    _is_started: bool = False
    """Whether the coordinators of the epoch have started."""
    _interval_s: float | None = None
    _began_us: int = 0
    """Time of the last start or reset of the whole job."""
    _began_words: str = ""
    _last_us: int = 0
    _completed_us: int | None = None
    _last_checkpoint: int = NO_CHECKPOINT
    _triggers: deque[int] = field(default_factory=lambda: deque(maxlen=_TRIGGERS_REMEMBERED))
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _intents: dict[int, _Intent] = field(default_factory=dict)
    _parallelism: int = 0
    _operators: tuple[str, ...] = ()
    _missing: dict[int, int] = field(default_factory=dict)
    """Time since when a subtask that has not completed has no attempt; the longest missing first."""
    _live: dict[int, int] = field(default_factory=dict)
    """Number of the live attempt, by subtask."""
    _done: frozenset[int] = frozenset()
    _done_at: dict[int, tuple[int, frozenset[int]]] = field(default_factory=dict)
    """Parallelism and completed subtasks at each completed checkpoint at which any was completed."""
    _failed_us: list[int] = field(default_factory=list)
    """Times of the failures since the last completed checkpoint: the first ones, as many as make the job slow."""
    _failures: int = 0
    _counted_us: int = 0
    """Time of the last counted failure."""
    _last_failure: str = ""

    def begin(self, state: JobState) -> None:
        """Begin with a state: that of a live driver, or that with which a pruned log begins.

        A state has no times of intents and attempts: their waits begin with the time of its last record.
        """
        now_us = state.timestamp_us
        self._job_id, self._epoch, self._is_batch = state.job_id, state.epoch, state.is_batch
        self._parallelism, self._operators = state.parallelism, state.operators
        self._interval_s = state.launch_info.checkpoint_interval_s
        self._last_us = self._began_us = now_us
        self._began_words = f"epoch {state.epoch} is in force"
        self._last_checkpoint = state.last_checkpoint
        self._is_started = state.phase is not Phase.STARTING
        ends = {Phase.FINISHED: VerdictState.FINISHED, Phase.FAILED: VerdictState.FAILED}
        stopped = VerdictState.STOPPED if state.driver_stop is DriverStop.DONE else None
        self._end = ends.get(state.phase, stopped) if state.epoch >= 0 else VerdictState.NEW
        self._end_reason = state.reasons[0] if state.reasons else ""
        self._ended_us = now_us
        for checkpoint in sorted_values(state.pending):
            self._pending[checkpoint.checkpoint_id] = _Pending(
                triggered_us=checkpoint.triggered_us,
                subtasks=dict.fromkeys(checkpoint.missing_subtasks),
                operators=dict.fromkeys(checkpoint.missing_coordinators(state.operators)),
            )
        for sequence, intent in sorted_items(state.intents):
            self._intents[sequence] = _Intent(
                intended_us=now_us,
                operator_id=intent.operator_id,
                checkpoint_id=intent.checkpoint_id,
            )
        self._done = frozenset(
            number for number, subtask in sorted_items(state.subtasks) if subtask.completion
        )
        for number, completed in sorted_items(state.completed):
            done = frozenset(subtask for subtask, _ in sorted_items(completed.finished))
            self._done_at[number] = (completed.parallelism, done)
        for number, subtask in sorted_items(state.subtasks):
            attempt = subtask.attempt
            if attempt is not None and attempt.epoch == state.epoch:
                self._live[number] = attempt.attempt_number
        self._all_missing(now_us)

    def apply(self, record: Record) -> None:
        """Apply one record."""
        self._last_us = record.timestamp_us
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
                self._over(VerdictState.FINISHED, record, "all work of the job is done")
            case Kind.JOB_FAILED:
                self._over(VerdictState.FAILED, record, reason_in_words(record) or "")
            case Kind.FACT if is_driver_stopped(record):
                self._over(VerdictState.STOPPED, record, record.reason or "its driver was stopped")
            case _:
                self._of_checkpoint(record)

    def verdict(
        self,
        now_us: int | None = None,
        *,
        append_since_us: int | None = None,
        driver_answers: bool | None = None,
    ) -> Verdict:
        """The verdict at a moment.

        Args:
            now_us: The moment; microseconds since 1970, UTC. None: the time of the last record.
            append_since_us: Time of the oldest append that the log has not acknowledged, which only its driver knows.
            driver_answers: Whether the driver answers, if the caller has checked.
        """
        now_us = self._last_us if now_us is None else now_us
        if self._end is not None:
            return Verdict(state=self._end, since_us=self._ended_us, reason=self._end_reason)
        symptoms = list(self._symptoms(now_us, append_since_us))
        waiting = tuple(sorted((s.waiting() for s in symptoms), key=attrgetter("since_us")))
        if driver_answers is False:
            gone = Waiting(kind=WaitingFor.DRIVER, since_us=self._last_us)
            return Verdict(
                state=VerdictState.STUCK,
                since_us=self._last_us,
                reason="no driver answers, and the last one was not stopped in order",
                waiting_for=(gone, *waiting),
            )
        state, since_us, worst = self._state(symptoms, now_us)
        if state is VerdictState.PROGRESSING:
            reason = self._progress_words()
        else:
            reason = self._failure_words() if worst is None else worst.words()
        return Verdict(state=state, since_us=since_us, reason=reason, waiting_for=waiting)

    def state(self, now_us: int | None = None) -> VerdictState:
        """The state of `verdict` at a moment, without its words: quick enough for each record of a log."""
        now_us = self._last_us if now_us is None else now_us
        if self._end is not None:
            return self._end
        return self._state(list(self._symptoms(now_us, None)), now_us)[0]

    def _state(
        self, symptoms: list[_Symptom], now_us: int
    ) -> tuple[VerdictState, int, _Symptom | None]:
        """State, its begin, and the symptom that decides it; None if failures do, or if the job progresses."""
        stuck = [s for s in symptoms if s.stuck_us is not None and s.stuck_us <= now_us]
        if stuck:
            worst = min(stuck, key=lambda s: s.stuck_us or 0)
            return VerdictState.STUCK, worst.stuck_us or 0, worst
        slow = min(
            (s for s in symptoms if s.slow_us <= now_us), key=attrgetter("slow_us"), default=None
        )
        if self._failures >= self.thresholds.failures:
            failed_us = self._failed_us[-1]
            if slow is None or failed_us <= slow.slow_us:
                return VerdictState.SLOW, failed_us, None
        if slow is not None:
            return VerdictState.SLOW, slow.slow_us, slow
        return VerdictState.PROGRESSING, self._began_us, None

    def _progress_words(self) -> str:
        if self._last_checkpoint != NO_CHECKPOINT and self._completed_us is not None:
            return f"checkpoint {self._last_checkpoint} is the last completed one"
        return self._began_words

    def _symptoms(self, now_us: int, append_since_us: int | None) -> Iterator[_Symptom]:
        limits = self.thresholds
        if append_since_us is not None:
            yield _Symptom(
                since_us=append_since_us,
                slow_s=limits.append_slow_s,
                stuck_s=limits.append_stuck_s,
                waiting=lambda: Waiting(kind=WaitingFor.APPEND, since_us=append_since_us),
                words=lambda: "the log has not acknowledged an append",
            )
        if not self._is_started:
            yield _Symptom(
                since_us=self._began_us,
                slow_s=limits.subtask_slow_s,
                stuck_s=limits.subtask_stuck_s,
                waiting=lambda: Waiting(kind=WaitingFor.DRIVER, since_us=self._began_us),
                words=lambda: f"the driver of epoch {self._epoch} has not started its coordinators",
            )
            return
        # A batch job may have more subtasks than there are slots.
        if self._missing and not (self._is_batch and self._live):
            yield _Symptom(
                since_us=next(iter(self._missing.values())),
                slow_s=limits.subtask_slow_s,
                stuck_s=limits.subtask_stuck_s,
                waiting=self._missing_attempts,
                words=self._missing_words,
            )
        yield from self._checkpoint_symptoms(now_us)
        for sequence, intent in self._intents.items():
            yield _Symptom(
                since_us=intent.intended_us,
                slow_s=limits.commit_slow_s,
                stuck_s=limits.commit_stuck_s,
                waiting=partial(_commit, sequence, intent),
                words=partial(_commit_words, intent),
            )

    def _missing_attempts(self) -> Waiting:
        since_us, subtasks = next(iter(self._missing.values())), tuple(sorted(self._missing))
        return Waiting(kind=WaitingFor.SUBTASK, since_us=since_us, subtasks=subtasks)

    def _missing_words(self) -> str:
        subtasks = tuple(sorted(self._missing))
        return f"{_subtasks(subtasks)} {'has' if len(subtasks) == 1 else 'have'} no attempt"

    def _checkpoint_symptoms(self, now_us: int) -> Iterator[_Symptom]:
        """An overdue checkpoint; without an interval, silence."""
        limits, interval_s = self.thresholds, self._interval()
        completed_us = self._began_us if self._completed_us is None else self._completed_us
        base_us = max(completed_us, self._began_us)
        number, pending = next(iter(self._pending.items()), (None, None))
        expected_s = limits.slow_s if interval_s is None else interval_s
        slow_s = max(limits.slow_s, limits.slow_intervals * expected_s)
        stuck_s = max(limits.stuck_s, limits.stuck_intervals * expected_s)
        if number is not None and pending is not None:
            # Checkpoints that are aborted again and again make a job slow too: since the last completed one.
            yield _Symptom(
                since_us=pending.triggered_us if interval_s is None else base_us,
                slow_s=slow_s,
                stuck_s=stuck_s,
                waiting=partial(_checkpoint, number, pending),
                words=lambda: f"checkpoint {number} waits for {_missing_parts(pending)}",
            )
        elif interval_s is not None and now_us - base_us > interval_s * _US:
            yield _Symptom(
                since_us=base_us,
                slow_s=slow_s,
                stuck_s=stuck_s,
                waiting=lambda: Waiting(kind=WaitingFor.CHECKPOINT, since_us=base_us),
                words=lambda: "no checkpoint has completed and none is pending",
            )
        if interval_s is None and now_us - self._last_us > limits.silence_slow_s * _US:
            yield _Symptom(
                since_us=self._last_us,
                slow_s=limits.silence_slow_s,
                stuck_s=None,
                waiting=lambda: Waiting(kind=WaitingFor.RECORD, since_us=self._last_us),
                words=lambda: "no record has been appended",
            )

    def _failure_words(self) -> str:
        times = many(self._failures, "time")
        words = f"the job has failed {times} since its last completed checkpoint"
        reason = self._last_failure.partition("\n")[0]
        return f"{words}, last because of: {reason}" if reason else words

    def _interval(self) -> float | None:
        """Seconds between checkpoints: as recorded, else the median of the last triggers, else None."""
        if self._interval_s is not None or self._is_batch or len(self._triggers) < _TRIGGERS_MIN:
            return self._interval_s
        times = list(self._triggers)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return median(gaps) / _US

    def _epoch_started(self, record: Record) -> None:
        launch = LaunchInfo(record.attributes)
        if record.job_id != self._job_id:  # forked: commits of the first job are not this job's
            self._intents.clear()
        self._job_id, self._epoch = record.job_id, record.epoch
        if launch.is_command:  # no driver: an end stays as it is
            if self._end is VerdictState.NEW:
                self._over(VerdictState.STOPPED, record, "no driver has opened the job")
            return
        if self._end in (VerdictState.NEW, VerdictState.STOPPED):
            self._end = None
        parallelism = record.attributes.get("parallelism", "")
        self._parallelism = int(parallelism) if parallelism.isdecimal() else 0
        self._operators = coordinators_of(record)
        self._is_batch = record.attributes.get("mode") == "batch"
        self._interval_s = launch.checkpoint_interval_s
        self._triggers.clear()
        self._live.clear()
        self._is_started = False
        self._began_us, self._began_words = record.timestamp_us, f"epoch {record.epoch} began"
        self._all_missing(record.timestamp_us)

    def _start(self, record: Record, words: str) -> None:
        self._end, self._is_started = None, True
        self._began_us, self._began_words = record.timestamp_us, words
        if record.attributes.get("restore") == "again":
            self._done = frozenset()
        self._all_missing(record.timestamp_us)

    def _reset(self, record: Record) -> None:
        number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
        old, done = self._done_at.get(number, (self._parallelism, frozenset()))
        self._done = frozenset(
            subtask
            for subtask in range(self._parallelism)
            if done.issuperset(restoring := restoring_subtasks(old, self._parallelism, subtask))
            and restoring
        )
        self._pending.clear()
        self._live.clear()
        self._missing.clear()
        self._last_checkpoint = number
        place = "its start" if number == NO_CHECKPOINT else f"checkpoint {number}"
        self._start(record, f"the job went back to {place}")

    def _all_missing(self, since_us: int) -> None:
        missing = [
            (self._missing.get(subtask, since_us), subtask)
            for subtask in range(self._parallelism)
            if subtask not in self._done and subtask not in self._live
        ]
        self._missing = {subtask: missing_us for missing_us, subtask in sorted(missing)}

    def _attempt(self, record: Record) -> None:
        subtask, attempt_number = record.subtask, record.attempt_number
        if subtask is None or attempt_number is None:
            return
        if record.kind is Kind.ATTEMPT_STARTED:
            self._live[subtask] = attempt_number
            self._missing.pop(subtask, None)
            return
        is_live = self._live.get(subtask) == attempt_number
        if is_live:
            del self._live[subtask]
        if record.kind is Kind.SUBTASK_COMPLETED:
            self._done |= {subtask}
            self._missing.pop(subtask, None)
            for pending in self._pending.values():
                pending.subtasks.pop(subtask, None)
        elif is_live and self._end is None:
            self._missing[subtask] = record.timestamp_us
            self._failed(record)

    def _failed(self, record: Record) -> None:
        now_us = record.timestamp_us
        self._last_failure = reason_in_words(record) or ""
        if self._failures and now_us - self._counted_us < LOST_TOGETHER_S * _US:
            return  # lost together, as with an executor
        self._counted_us = now_us
        self._failures += 1
        if len(self._failed_us) < self.thresholds.failures:
            self._failed_us.append(now_us)

    def _over(self, end: VerdictState, record: Record, reason: str) -> None:
        self._end, self._end_reason, self._ended_us = end, reason, record.timestamp_us
        self._pending.clear()

    def _of_checkpoint(self, record: Record) -> None:
        number = record.checkpoint_id
        if number is None:
            return
        pending = self._pending.get(number)
        match record.kind:
            case Kind.CHECKPOINT_TRIGGERED:
                self._triggers.append(record.timestamp_us)
                self._pending[number] = _Pending(
                    triggered_us=record.timestamp_us,
                    subtasks=dict.fromkeys(subtasks_of(record)),
                    operators=dict.fromkeys(self._operators),
                )
            case Kind.COORDINATOR_CHECKPOINTED if pending is not None:
                pending.operators.pop(record.operator_id or "", None)
            case Kind.CHECKPOINT_ACKED if pending is not None and record.subtask is not None:
                pending.subtasks.pop(record.subtask, None)
            case Kind.CHECKPOINT_ABORTED:
                self._pending.pop(number, None)
            case Kind.CHECKPOINT_COMPLETED:
                self._pending.pop(number, None)
                self._completed_us, self._last_checkpoint = record.timestamp_us, number
                if self._done:
                    self._done_at[number] = (self._parallelism, self._done)
                self._failed_us.clear()
                self._failures = 0
            case Kind.COMMIT_INTENT if record.sequence is not None:
                self._intents[record.sequence] = _Intent(
                    intended_us=record.timestamp_us,
                    operator_id=record.operator_id or "",
                    checkpoint_id=number,
                )
            case Kind.COMMIT_OUTCOME if record.attributes.get("settled") == "true":
                self._intents.pop(-1 if record.cause is None else record.cause, None)
            case _:
                pass


def verdict_of(
    state: JobState,
    now_us: int,
    thresholds: Thresholds | None = None,
    *,
    append_since_us: int | None = None,
    driver_answers: bool | None = None,
) -> Verdict:
    """The verdict on a state alone, as in `VerdictFold.begin`; other arguments are those of `VerdictFold.verdict`."""
    fold = VerdictFold(thresholds=thresholds or Thresholds())
    fold.begin(state)
    return fold.verdict(now_us, append_since_us=append_since_us, driver_answers=driver_answers)


def _commit(sequence: int, intent: _Intent) -> Waiting:
    return Waiting(
        kind=WaitingFor.COMMIT,
        since_us=intent.intended_us,
        checkpoint_id=intent.checkpoint_id,
        operators=(intent.operator_id,),
        sequence=sequence,
    )


def _commit_words(intent: _Intent) -> str:
    is_end = intent.checkpoint_id == NO_CHECKPOINT
    place = "the end of the job" if is_end else f"checkpoint {intent.checkpoint_id}"
    return f"the commit of {intent.operator_id!r} for {place} has no outcome"


def _checkpoint(number: int, pending: _Pending) -> Waiting:
    return Waiting(
        kind=WaitingFor.CHECKPOINT,
        since_us=pending.triggered_us,
        checkpoint_id=number,
        subtasks=tuple(sorted(pending.subtasks)),
        operators=tuple(pending.operators),
    )


def _missing_parts(pending: _Pending) -> str:
    parts: list[str] = []
    if pending.operators:
        operators = tuple(pending.operators)
        parts.append(f"{'the cut' if len(operators) == 1 else 'cuts'} of {_named(operators)}")
    if pending.subtasks:
        acks = "the ack" if len(pending.subtasks) == 1 else "acks"
        parts.append(f"{acks} of {_subtasks(tuple(sorted(pending.subtasks)))}")
    return " and ".join(parts) or "its completion"


def _subtasks(subtasks: tuple[int, ...]) -> str:
    return f"subtask{'' if len(subtasks) == 1 else 's'} {_named(subtasks)}"


def _named(names: tuple[int, ...] | tuple[str, ...]) -> str:
    shown = ", ".join(map(str, names[:_NAMED_MAX]))
    more = len(names) - _NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
