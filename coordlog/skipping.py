"""A skip for a job that no driver drives: appended in a reign of its own, as a driver would begin one (clause J2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from coordlog.errors import SkipError
from coordlog.kernel.building import KernelConfig, StepBuilder
from coordlog.log.appender import Patience
from coordlog.log.port import Log
from coordlog.projections.job import JobProjection
from coordlog.projections.state import JobState, Phase
from coordlog.reigns import PLAIN_TYPES, begin_reign, plain_rebuild
from coordlog.restore import Rebuild, check_identity
from coordlog.runtime import to_unstored
from coordlog.schemas.builtin import EventSkipped, SplitSkipped
from coordlog.schemas.record import Kind, Record

__all__ = ["append_skip", "read_job"]


def read_job(log: Log, job_id: str) -> Rebuild:
    """What the log says of a job, without its operators: their projections are left out.

    Raises:
        SkipError: It says nothing, or the job has ended, or is about to.
        RecordError: A record that counts cannot be read.
        RestoreError: The log is a copy.
    """
    made = plain_rebuild(log)
    state = made.state
    if state.epoch == -1:
        raise SkipError(job_id, "its log has no record that counts", "run the job first")
    check_identity(job_id, state, log.identity)
    _check_goes_on(job_id, state)
    return made


def _check_goes_on(job_id: str, state: JobState) -> None:
    if state.phase in (Phase.FINISHED, Phase.ENDING):
        raise SkipError(
            job_id, f"it is {state.phase.value}", "nothing of it is read or handled any more"
        )


def append_skip(
    log: Log,
    made: Rebuild,
    fact: SplitSkipped | EventSkipped,
    *,
    operator_id: str,
    subtask: int | None = None,
    why: str,
    patience: Patience | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> int:
    """Take over from a driver that is gone, and append the fact; its sequence.

    The caller has seen that no driver lives and that there is such a split or event. The next
    driver takes over from this reign as from any other.

    Args:
        log: The job's.
        made: By `read_job`.
        fact: What is skipped.
        operator_id: Whose split or event.
        subtask: The event's.
        why: For the record.
        patience: Default: the limits, and the machine's clock.
        now_us: The time, microseconds since 1970, UTC.

    Raises:
        SkipError: The job has ended meanwhile.
        FencedError: Another driver was first.
        LogError: The log.
    """
    appender = begin_reign(log, made, command="skip", patience=patience, now_us=now_us)
    try:
        _check_goes_on(made.state.job_id, made.state)
        records = _turn(made.state, fact, operator_id, subtask, why, now_us())
        newest = made.newest_snapshot.offset
        appender.append([to_unstored(one, snapshot_offset=newest) for one in records])
    finally:
        appender.close()
    return records[-1].sequence or 0


def _turn(
    state: JobState,
    fact: SplitSkipped | EventSkipped,
    operator_id: str,
    subtask: int | None,
    why: str,
    now_us: int,
) -> list[Record]:
    """The fact, its type before it where that is new."""
    config = KernelConfig(
        projection=JobProjection(PLAIN_TYPES, {}),
        operators=state.operators,
        is_batch=state.is_batch,
        keeps_finished_splits=False,
    )
    step = StepBuilder(config=config, state=state, now_us=max(now_us, state.timestamp_us))
    step.add(Kind.FACT, operator_id=operator_id, subtask=subtask, reason=why, value=fact)
    last = len(step.records) - 1
    return [replace(one, turn_remaining=last - n) for n, one in enumerate(step.records)]
