"""The end of queries that no retry can fix: a stage is cancelled with the reason, a plan is not run any more."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from coordlog.errors import RequestRefusedError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CANCEL_WAIT_S", "PlanSeal", "end_stage", "end_stages", "is_same_again"]

_log = logging.getLogger(__name__)

CANCEL_WAIT_S: Final = 3.0
"""Seconds that a task with a final failure waits to be cancelled, before Spark counts it as another try."""

_OF_THIS_FILE: Final = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)


def is_same_again(error: BaseException) -> bool:
    """Whether a retry of the task would fail in the same way: the content is at fault, or the read has ended.

    An error of the file system or the network (an OSError with a number, not about a single file) may not
    happen at the next try, nor may an error of another kind.
    """
    if isinstance(error, RequestRefusedError):
        return True
    if not isinstance(error, SourceError) or error.retriable:
        return False
    cause = error.__cause__
    return not isinstance(cause, OSError) or cause.errno is None or isinstance(cause, _OF_THIS_FILE)


def end_stage(spark: SparkSession, stage_id: int, reason: str) -> None:
    """Cancel a stage, and with it the query, whose error shows the reason; no effect on a stage that has ended."""
    context: Any = spark.sparkContext
    context._jsc.sc().cancelStage(stage_id, reason)  # noqa: SLF001, the only call with a reason
    _log.info("stage_id=%d is cancelled: %s", stage_id, reason)


def end_stages(spark: SparkSession, stage_ids: Collection[int], reason: str) -> None:
    """Cancel those of the stages that run now."""
    for stage_id in spark.sparkContext.statusTracker().getActiveStageIds():
        if stage_id in stage_ids:
            end_stage(spark, stage_id, reason)


class PlanSeal:
    """A broadcast variable without content, which each plan made with a registered format refers to.

    Once it is destroyed, Spark itself refuses to send such a plan to tasks, at once: the tasks would all fail, because
    their service has ended, and Spark would try each as often as the session does.
    Without effect in the processes to which Spark sends the format's class.
    """

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._broadcast = None if spark is None else spark.sparkContext.broadcast(b"")

    def __reduce__(self) -> tuple[type[PlanSeal], tuple[()]]:
        """A seal without a broadcast variable; Spark notes that the class refers to the variable."""
        if self._broadcast is not None:
            self._broadcast.__reduce__()
        return PlanSeal, ()

    def destroy(self, reason: str) -> None:
        """Let Spark refuse the plans, with the reason in its error."""
        if self._broadcast is None:
            return
        self._broadcast.destroy()
        variable: Any = self._broadcast._jbroadcast  # noqa: SLF001, the only access
        for field in variable.getClass().getSuperclass().getDeclaredFields():
            if field.getName().endswith(
                "_destroySite"
            ):  # Spark's error shows it, as the place of the call
                field.setAccessible(True)
                field.set(variable, reason)
