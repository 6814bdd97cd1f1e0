"""Crashes a scripted job after every record of its log, restores it, finishes it, and looks at the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from coordlog.api.chain import Chain
from coordlog.errors import OptionError
from coordlog.log.copy import to_append
from coordlog.log.memory import MemoryLog
from coordlog.testing.driven_job import FakeClock, HandDrivenJob, MayFail

__all__ = ["CrashSweepError", "SweepResult", "crash_sweep"]

_MODES: Final = ("rollback", "resume")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """How much was tried."""

    crash_count: int
    """Restored jobs that were finished and checked."""
    not_resumable_count: int
    """Places from which this job can be rolled back only."""


class CrashSweepError(AssertionError):
    """The check, or the way to it, failed after one crash; the cause says how."""

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
    """Crash after each record of what `script` does, turns cut in the middle included.

    Args:
        make_chain: A new chain for each driver, as each process has its own.
        script: Drives the first job, from its start.
        finish: Drives a restored one from wherever it is; registers its attempts first.
        check: Raises where the outcome is not right. Called after each `finish`, and where the log has ended.
        parallelism: How many subtasks.
        is_batch: Without checkpoints.
        modes: How to restore: `rollback`, `resume` or both. A job whose coordinators are not
            event-sourced cannot be resumed, and is not.
        may_fail: See `HandDrivenJob`.

    Raises:
        CrashSweepError: After the first crash that goes wrong; the cause is what was raised.
    """
    first = HandDrivenJob(
        make_chain(), parallelism=parallelism, is_batch=is_batch, may_fail=may_fail
    )
    script(first)
    stored = list(first.log.read(0, first.log.high_watermark()))
    crashes = not_resumable = 0
    for count in range(1, len(stored) + 1):
        for restore in modes:
            log = MemoryLog(first.log.identity.name)
            log.store(*map(to_append, stored[:count]))
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
                if restore != "resume":
                    raise
                not_resumable += 1
                continue
            try:
                if job.mode != "finished":
                    finish(job)
                check(job)
            except Exception as error:
                raise CrashSweepError(count, restore) from error
            crashes += 1
    return SweepResult(crash_count=crashes, not_resumable_count=not_resumable)
