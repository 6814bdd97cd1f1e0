"""Every execution attempt of a job: where it ran, what it did, how it ended.

A fold of the records that count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.job.state import AttemptState, DriverStop, JobState, sorted_values
from coordlog.projections.tables.payload_json import Fields, PayloadReader
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record, acked_events

__all__ = [
    "ADD_SPLITS",
    "AttemptEnd",
    "AttemptFold",
    "AttemptRow",
    "attempts",
    "gone_reason",
    "split_ids",
]

ADD_SPLITS: Final = "coordlog.add_splits@"
"""Prefix of an assignment's payload type, before its version."""


class AttemptEnd(enum.Enum):
    """How an attempt ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    """Its subtask completed in this attempt."""
    FAILED = "failed"
    """Failed by itself, by a decision of its driver, or with its job."""
    FENCED = "fenced"
    """Was running when the epoch of its driver ended."""
    STOPPED = "stopped"
    """Ended by an orderly stop of its driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One execution attempt."""

    subtask: int
    attempt_number: int
    epoch: int
    driver_id: str
    stage_run: int | None
    spark_task_attempt_id: int | None
    spark_attempt_number: int | None
    host: str | None
    pid: int | None
    restored_from: int
    """Checkpoint that the attempt began from, -1 for none."""
    started_us: int | None
    """Microseconds since 1970, UTC, or None if a prune has removed its first record: its counts are partial then."""
    end: AttemptEnd
    ended_us: int | None
    """Time of the end; if the driver was killed, that of the last record of its epoch."""
    reason: str | None
    """Reason of the end; None if the attempt runs or has completed."""
    splits_assigned: int
    splits_finished: int
    rows: int
    """Rows of the splits that the attempt finished, also of those thrown away later."""
    events_up: int
    events_down: int
    events_acked: int
    events_failed: int
    checkpoints_acked: int
    resets: tuple[int, ...]
    """Checkpoint of each reset of the subtask, local or global, before a newer attempt began; -1
    is the start."""


@dataclass(slots=True, kw_only=True)
class _Attempt:
    started: Record
    started_us: int | None
    end: AttemptEnd = AttemptEnd.RUNNING
    ended_us: int | None = None
    reason: str | None = None
    splits_assigned: int = 0
    splits_finished: int = 0
    rows: int = 0
    counts: dict[Kind, int] = field(default_factory=dict)
    resets: list[int] = field(default_factory=list)

    def finish(self, end: AttemptEnd, ended_us: int, reason: str | None) -> None:
        """Set the end, if there is none yet: later records only repeat it."""
        if self.end is AttemptEnd.RUNNING:
            self.end, self.ended_us, self.reason = end, ended_us, reason


def attempts(records: Iterable[Record]) -> tuple[AttemptRow, ...]:
    """The attempts of a job, by subtask and attempt number.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    reader, fold = PayloadReader(), AttemptFold()
    for record in records:
        fold.apply(record, reader.read(record))
    return fold.rows()


def split_ids(fields: Fields | None) -> list[str]:
    """Ids of the splits in a payload such as `AddSplits` or `SplitsDiscovered`."""
    splits = () if fields is None else fields.get("splits")
    if not isinstance(splits, Sequence):
        return []
    return [
        str(split["split_id"])
        for split in splits
        if isinstance(split, dict) and "split_id" in split
    ]


def gone_reason(epoch: int) -> str:
    """Reason of the end of an attempt whose epoch was replaced by a newer one."""
    return f"its driver, of epoch {epoch}, is gone"


class AttemptFold:
    """The fold behind `attempts`.

    `apply` takes each record that counts, in log order; `rows` may be called at any time.
    """

    def __init__(self) -> None:
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._newest: dict[int, _Attempt] = {}
        self._last_us = 0
        """Time of the previous record: end of an epoch that recorded no end."""

    def begin(self, state: JobState) -> None:
        """Begin with the live attempts in the state at the first record of a pruned log."""
        is_over = state.is_over or state.driver_stop is DriverStop.DONE
        for subtask in sorted_values(state.subtasks):
            attempt = subtask.attempt
            if attempt is None or attempt.epoch != state.epoch or is_over:
                continue  # it was over before
            begun = _Attempt(started=_started(attempt, state.job_id), started_us=None)
            self._attempts[attempt.subtask, attempt.attempt_number] = begun
            self._newest[attempt.subtask] = begun
        self._last_us = state.timestamp_us

    def row_of(self, subtask: int, attempt_number: int) -> AttemptRow | None:
        """The row of an attempt, or None if no record has started that attempt."""
        known = self._attempts.get((subtask, attempt_number))
        return None if known is None else _row(known)

    def rows(self) -> tuple[AttemptRow, ...]:
        """All attempts so far, by subtask and attempt number."""
        return tuple(_row(self._attempts[key]) for key in sorted(self._attempts))

    def apply(self, record: Record, fields: Fields | None) -> None:
        """Apply one record and its decoded payload."""
        if record.subtask is None:
            self._job_wide(record)
        elif record.kind is Kind.SUBTASK_RESET:
            if record.subtask in self._newest:
                self._newest[record.subtask].resets.append(_checkpoint(record))
        elif record.attempt_number is not None:
            self._of_attempt(record, (record.subtask, record.attempt_number), fields)
        self._last_us = record.timestamp_us

    def _job_wide(self, record: Record) -> None:
        match record.kind:
            case Kind.EPOCH_STARTED:
                for attempt in self._attempts.values():
                    # Not the time of this record: the attempt was over before the next driver.
                    attempt.finish(
                        AttemptEnd.FENCED, self._last_us, gone_reason(attempt.started.epoch)
                    )
            case Kind.RESET_TO_CHECKPOINT:
                for attempt in self._attempts.values():
                    attempt.finish(AttemptEnd.FAILED, record.timestamp_us, "global failover")
                for attempt in self._newest.values():
                    attempt.resets.append(_checkpoint(record))
            case Kind.JOB_FAILED:
                for attempt in self._attempts.values():
                    attempt.finish(AttemptEnd.FAILED, record.timestamp_us, "the job has failed")
            case Kind.FACT if is_driver_stopped(record):
                for attempt in self._attempts.values():
                    attempt.finish(AttemptEnd.STOPPED, record.timestamp_us, record.reason)
            case _:
                pass

    def _of_attempt(self, record: Record, key: tuple[int, int], fields: Fields | None) -> None:
        if record.kind is Kind.ATTEMPT_STARTED:
            started = _Attempt(started=record, started_us=record.timestamp_us)
            self._attempts[key] = self._newest[key[0]] = started
            return
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        count = len(acked_events(record)) if record.kind is Kind.EVENT_ACKED else 1
        attempt.counts[record.kind] = attempt.counts.get(record.kind, 0) + count
        match record.kind:
            case Kind.SUBTASK_COMPLETED:
                attempt.finish(AttemptEnd.COMPLETED, record.timestamp_us, None)
            case Kind.ATTEMPT_FAILED:
                attempt.finish(AttemptEnd.FAILED, record.timestamp_us, reason_in_words(record))
            case Kind.EVENT_TO_SUBTASK if (record.payload_type or "").startswith(ADD_SPLITS):
                attempt.splits_assigned += len(split_ids(fields))
            case Kind.SPLIT_FINISHED:
                attempt.splits_finished += 1
                rows = 0 if fields is None else fields.get("rows")
                attempt.rows += rows if isinstance(rows, int) else 0
            case _:
                pass


def _started(attempt: AttemptState, job_id: str) -> Record:
    """The `ATTEMPT_STARTED` of a live attempt, as far as its state shows it: without host, process and time."""
    return Record(
        epoch=attempt.epoch,
        driver_id=attempt.driver_id,
        sequence=attempt.started_sequence,
        kind=Kind.ATTEMPT_STARTED,
        timestamp_us=0,
        job_id=job_id,
        subtask=attempt.subtask,
        attempt_number=attempt.attempt_number,
        checkpoint_id=attempt.restored_checkpoint,
        attributes={
            "stage_run": str(attempt.stage_run),
            "spark_task_attempt_id": str(attempt.task_attempt_id),
        },
    )


def _checkpoint(record: Record) -> int:
    return NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id


def _number(record: Record, name: str) -> int | None:
    text = record.attributes.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() else None


def _row(attempt: _Attempt) -> AttemptRow:
    started, counts = attempt.started, attempt.counts
    assert started.subtask is not None
    assert started.attempt_number is not None
    return AttemptRow(
        subtask=started.subtask,
        attempt_number=started.attempt_number,
        epoch=started.epoch,
        driver_id=started.driver_id,
        stage_run=_number(started, "stage_run"),
        spark_task_attempt_id=_number(started, "spark_task_attempt_id"),
        spark_attempt_number=_number(started, "spark_attempt_number"),
        host=started.attributes.get("host"),
        pid=_number(started, "pid"),
        restored_from=_checkpoint(started),
        started_us=attempt.started_us,
        end=attempt.end,
        ended_us=attempt.ended_us,
        reason=attempt.reason,
        splits_assigned=attempt.splits_assigned,
        splits_finished=attempt.splits_finished,
        rows=attempt.rows,
        events_up=counts.get(Kind.EVENT_TO_COORDINATOR, 0),
        events_down=counts.get(Kind.EVENT_TO_SUBTASK, 0),
        events_acked=counts.get(Kind.EVENT_ACKED, 0),
        events_failed=counts.get(Kind.EVENT_FAILED, 0),
        checkpoints_acked=counts.get(Kind.CHECKPOINT_ACKED, 0),
        resets=tuple(attempt.resets),
    )
