"""Every failure of a job: its scope and reason, the checkpoint of its reset, and the restart.

A fold of the records that count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.job.state import DriverStop, JobState, sorted_values
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = ["FailureFold", "FailureRow", "FailureScope", "failures", "survived_failures"]


class FailureScope(enum.Enum):
    """How much of a job failed."""

    ATTEMPT = "attempt"
    """One execution attempt: by itself, or with the whole job."""
    GLOBAL = "global"
    """The whole job, which goes back to a checkpoint."""
    JOB = "job"
    """The whole job, for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """One failure."""

    sequence: int
    epoch: int
    scope: FailureScope
    operator_id: str | None
    subtask: int | None
    attempt_number: int | None
    failed_us: int
    """Microseconds since 1970, UTC."""
    reason: str
    reset_us: int | None = None
    """Time of the reset, or None if there is none so far."""
    reset_to: int | None = None
    """Checkpoint of the reset; -1 is the start."""
    is_with_job: bool = False
    """Whether an attempt was reset because its whole job went back."""
    restarted_us: int | None = None
    """Start of the subtask's next attempt; after a global failure, of the next attempt of any."""

    @property
    def milliseconds(self) -> float | None:
        """Time from the failure to the next attempt, or None if there is none so far."""
        return None if self.restarted_us is None else (self.restarted_us - self.failed_us) / 1000


_SCOPES = {
    Kind.ATTEMPT_FAILED: FailureScope.ATTEMPT,
    Kind.GLOBAL_FAILURE: FailureScope.GLOBAL,
    Kind.JOB_FAILED: FailureScope.JOB,
}


_WITH_JOB = frozenset({Kind.RESET_TO_CHECKPOINT, Kind.JOB_FINISHED})
"""If a turn has one of these, its attempts failed with the whole job, and not by themselves."""

_SPLIT_CHARS = 300


def survived_failures(turn: Sequence[Record]) -> list[tuple[Record, str, str]]:
    """Failures in the records of one turn after which the job goes on, each with a clause for people and its cause.

    A cause is the first line of a reason. Attempts that end with the whole job, or with another attempt, are left out.
    """
    kinds = {record.kind for record in turn}
    if kinds.isdisjoint(_SCOPES) or Kind.JOB_FAILED in kinds:
        return []
    survived: list[tuple[Record, str, str]] = []
    for record in turn:
        cause = (record.reason or "no cause is recorded").partition("\n")[0]
        if record.kind is Kind.GLOBAL_FAILURE:
            failure = "the whole job failed, and goes back to its last checkpoint"
            survived.append((record, failure, cause))
        elif record.kind is not Kind.ATTEMPT_FAILED or kinds & _WITH_JOB:
            continue
        elif "with_another" not in record.attributes:
            split = record.attributes.get("split_id", "")
            place = f" at split {on_one_line(split, _SPLIT_CHARS)}" if split else ""
            attempt = f"attempt {record.attempt_number} of subtask {record.subtask}"
            survived.append((record, f"{attempt} failed{place}, and is replaced", cause))
    return survived


def failures(records: Iterable[Record]) -> tuple[FailureRow, ...]:
    """The failures of a job, in log order.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    fold = FailureFold()
    for record in records:
        fold.apply(record)
    return fold.rows()


class FailureFold:
    """The fold behind `failures`.

    `apply` takes each record that counts, in log order; `rows` may be called at any time.
    """

    def __init__(self) -> None:
        self._failures: list[FailureRow] = []
        self._without_reset: list[int] = []
        self._without_restart: list[int] = []
        self._live: set[tuple[int | None, int | None]] = set()
        self._stopped: set[tuple[int | None, int | None]] = set()
        """Attempts live when their driver was stopped: later records of their end are no failures."""

    def begin(self, state: JobState) -> None:
        """Begin with the attempts in the state at the first record of a pruned log."""
        live = (subtask.attempt for subtask in sorted_values(state.subtasks))
        self._live = {(item.subtask, item.attempt_number) for item in live if item is not None}
        # An epoch of a command keeps the attempts of a driver that was stopped before it.
        is_command = state.launch_info.is_command and not state.is_former_dead
        if state.driver_stop is DriverStop.DONE or is_command:
            self._stopped = set(self._live)

    def rows(self) -> tuple[FailureRow, ...]:
        """All failures so far, in log order."""
        return tuple(self._failures)

    def apply(self, record: Record) -> None:
        """Apply one record."""
        scope = _SCOPES.get(record.kind)
        attempt = (record.subtask, record.attempt_number)
        if record.kind is Kind.ATTEMPT_STARTED:
            self._live.add(attempt)
        elif record.kind in (Kind.ATTEMPT_FAILED, Kind.SUBTASK_COMPLETED):
            self._live.discard(attempt)
        if is_driver_stopped(record):
            self._stopped = set(self._live)
        elif scope is not None and attempt not in self._stopped:
            self._failed(record, scope)
        elif record.kind in (Kind.SUBTASK_RESET, Kind.RESET_TO_CHECKPOINT):
            self._reset(record)
        elif record.kind is Kind.ATTEMPT_STARTED:
            self._restarted(record)

    def _failed(self, record: Record, scope: FailureScope) -> None:
        if scope is not FailureScope.JOB:
            self._without_reset.append(len(self._failures))
            self._without_restart.append(len(self._failures))
        self._failures.append(
            FailureRow(
                sequence=-1 if record.sequence is None else record.sequence,
                epoch=record.epoch,
                scope=scope,
                operator_id=record.operator_id,
                subtask=record.subtask,
                attempt_number=record.attempt_number,
                failed_us=record.timestamp_us,
                reason=reason_in_words(record) or "",
            )
        )

    def _reset(self, record: Record) -> None:
        is_global = record.kind is Kind.RESET_TO_CHECKPOINT
        remaining: list[int] = []
        for place in self._without_reset:
            failure = self._failures[place]
            is_attempt = failure.scope is FailureScope.ATTEMPT
            if not is_global and not (is_attempt and failure.subtask == record.subtask):
                remaining.append(place)
                continue
            number = record.checkpoint_id
            self._failures[place] = replace(
                failure,
                reset_us=record.timestamp_us,
                reset_to=NO_CHECKPOINT if number is None else number,
                is_with_job=is_global and is_attempt,
            )
        self._without_reset = remaining

    def _restarted(self, record: Record) -> None:
        remaining: list[int] = []
        for place in self._without_restart:
            failure = self._failures[place]
            is_affected = failure.scope is FailureScope.GLOBAL or failure.subtask == record.subtask
            if is_affected and failure.reset_us is not None:
                self._failures[place] = replace(failure, restarted_us=record.timestamp_us)
            else:
                remaining.append(place)
        self._without_restart = remaining
