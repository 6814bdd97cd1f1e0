"""Crashes a scripted job after every record of its log, restores it, finishes it, and checks the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from coordlog.api.chain import Chain
from coordlog.errors import OptionError
from coordlog.log.copy import to_append
from coordlog.log.memory import MemoryLog
from coordlog.restore.rebuild import RestoreMode
from coordlog.testing.driven_job import FakeClock, HandDrivenJob, MayFail

__all__ = ["CrashSweepError", "SweepResult", "crash_sweep", "sweep"]

_MODES: Final = (RestoreMode.ROLLBACK, RestoreMode.RESUME)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Number of crashes that were tried."""

    crash_count: int
    """Restored jobs that were finished and checked."""
    not_resumable_count: int
    """Crashes after which this job can only be rolled back, not resumed."""


class CrashSweepError(AssertionError):
    """`finish` or `check` failed after a crash; `__cause__` is their error."""

    def __init__(self, record_count: int, restore: str) -> None:
        super().__init__(record_count, restore)
        self.record_count, self.restore = record_count, restore

    def __str__(self) -> str:
        return (
            f"crashed after {self.record_count} records and restored by {self.restore}: "
            f"{type(self.__cause__).__name__}: {self.__cause__}"
        )


def crash_sweep(
    make_chain: Callable[[], Chain],
    script: Callable[[HandDrivenJob], None],
    finish: Callable[[HandDrivenJob], None],
    check: Callable[[HandDrivenJob], None],
    *,
    parallelism: int = 1,
    is_batch: bool = False,
    modes: Sequence[str] = _MODES,
    may_fail: MayFail | None = None,
) -> SweepResult:
    """Crash after each record of the scripted job, also in the middle of a turn.

    Args:
        make_chain: Factory of a new chain for each driver, as each process has its own.
        script: Drives the first job, from its start.
        finish: Drives a restored job to its end; registers its attempts first.
        check: Raises if the outcome is wrong. Called after each `finish`, and for a log of a finished job.
        parallelism: Number of subtasks.
        is_batch: Whether the job runs without checkpoints.
        modes: Ways to restore: `rollback`, `resume` or both. `resume` is skipped for a job whose
            coordinators are not event-sourced.
        may_fail: See `HandDrivenJob`.

    Raises:
        CrashSweepError: After the first crash with a wrong outcome; its cause is the error.
    """
    first = HandDrivenJob(
        make_chain(), parallelism=parallelism, is_batch=is_batch, may_fail=may_fail
    )
    script(first)

    def come_to_the_end(log: MemoryLog, restore: str) -> int:
        try:
            job = HandDrivenJob(
                make_chain(),
                parallelism=parallelism,
                is_batch=is_batch,
                log=log,
                clock=FakeClock(first.clock.seconds),
                restore=restore,
                may_fail=may_fail,
            )
        except OptionError:
            if restore != RestoreMode.RESUME:
                raise
            return 0
        if job.mode is not RestoreMode.FINISHED:
            finish(job)
        check(job)
        return 1

    return sweep(first.log, come_to_the_end, modes=modes)


def sweep(
    log: MemoryLog,
    come_to_the_end: Callable[[MemoryLog, str], int],
    *,
    modes: Sequence[str] = _MODES,
    min_records: int = 1,
) -> SweepResult:
    """Cut a log after each record, and restore a job from each copy in each mode.

    Args:
        log: Log of the whole job.
        come_to_the_end: Restores a job from a copy in a mode, finishes it and raises if the outcome is wrong.
            Returns the number of jobs that it has checked, 0 if the job cannot be resumed.
        modes: Ways to restore.
        min_records: Number of records of the shortest copy.

    Raises:
        CrashSweepError: After the first crash with a wrong outcome; its cause is the error.
    """
    stored = list(log.read(0, log.high_watermark()))
    crashes = not_resumable = 0
    for count in range(min_records, len(stored) + 1):
        for restore in modes:
            copy = MemoryLog(log.identity.name)
            copy.store(*map(to_append, stored[:count]))
            try:
                checked = come_to_the_end(copy, restore)
            except Exception as error:
                raise CrashSweepError(count, restore) from error
            crashes += checked
            not_resumable += checked == 0
    return SweepResult(crash_count=crashes, not_resumable_count=not_resumable)
