"""Slots that jobs of this process have claimed, for tasks that Spark does not know yet.

Between the check of a job's slots and the start of its stage pass seconds: the driver reads its log and takes over, and
the first task of a session starts a worker. A second job that starts meanwhile would find these slots free.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

__all__ = ["CLAIMING", "SlotClaim", "busy_slots", "claimed_slots"]

CLAIMING: Final = threading.Lock()
"""Held from the count of free slots to the claim, so that two threads do not claim the same ones."""

_claims: Final = set["SlotClaim"]()


class SlotClaim:
    """Slots of a job, from `take` until Spark counts its tasks. Call `release` at the job's end, in any case.

    Its owner holds it before `take`: else a signal right after `take` would leave slots that are never released.

    Args:
        context: Context of the session, or None with Spark Connect, whose slots are not counted.
        count: Number of slots.
        first_tag: Tag of the first task, which ends before the stage begins and needs no further slot.
    """

    def __init__(self, context: Any, count: int, *, first_tag: str) -> None:  # noqa: ANN401, a SparkContext
        self.context, self.count, self.first_tag = context, count, first_tag
        self.tag: str | None = None
        """Tag of the newest stage run, whose tasks take the slots: an earlier one may have failed unknown to Spark."""

    def take(self) -> None:
        """Claim the slots; under `CLAIMING`, after the count of free ones."""
        if self.context is not None:
            _claims.add(self)

    def release(self) -> None:
        """Give up the slots. Any thread; a second call does nothing."""
        # Without the lock: its holder may wait for a JVM that stands still, and a driver that ends must not.
        _claims.discard(self)

    def is_counted(self, active: set[int]) -> bool:
        """Whether Spark counts the tasks, or has counted them.

        Args:
            active: Ids of the stages that run.
        """
        tag, tracker = self.tag, self.context.statusTracker()
        for job_id in () if tag is None else _jobs_of(self.context, tag):
            job = tracker.getJobInfo(job_id)
            if job is not None and (job.status != "RUNNING" or active & set(job.stageIds)):
                return True
        return False


def claimed_slots(context: Any) -> int:  # noqa: ANN401, as above
    """Number of slots of a session that are claimed, for tasks that `busy_slots` does not count."""
    active = set(context.statusTracker().getActiveStageIds())
    for claim in _of(context):
        if claim.is_counted(active):
            claim.release()
    return sum(claim.count for claim in _of(context))


def busy_slots(context: Any, first_tags: Iterable[str] = ()) -> int:  # noqa: ANN401, as above
    """Number of unfinished tasks of a session, without those of these tags and the first ones of claiming jobs."""
    tracker = context.statusTracker()
    tags = {*first_tags, *(claim.first_tag for claim in _of(context))}
    passing = set[int]()
    for tag in sorted(tags):
        for job_id in _jobs_of(context, tag):
            job = tracker.getJobInfo(job_id)
            passing.update(() if job is None else job.stageIds)
    stages = [
        tracker.getStageInfo(each) for each in tracker.getActiveStageIds() if each not in passing
    ]
    # All unfinished tasks count: waiting ones run before ours, and Spark reports a task as running only some time
    # after its start.
    return sum(stage.numTasks - stage.numCompletedTasks for stage in stages if stage is not None)


def _of(context: Any) -> Sequence[SlotClaim]:  # noqa: ANN401, as above
    return [claim for claim in list(_claims) if claim.context is context]


def _jobs_of(context: Any, tag: str) -> Sequence[int]:  # noqa: ANN401, as above
    # pyspark's own tracker knows no tags.
    return list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))  # noqa: SLF001, there is no public way
