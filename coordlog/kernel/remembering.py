"""Decisions about remembered events: how many there may be, and what follows from those that are forgotten."""

from __future__ import annotations

from coordlog.kernel import checkpoints
from coordlog.kernel import failover as failures
from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import FailGlobally
from coordlog.projections.job.remembered import FORGETS, weight
from coordlog.projections.job.state import AttemptState, sorted_items

__all__ = ["fail_without_events", "make_room"]


def make_room(step: StepBuilder, payload: bytes) -> dict[str, str]:
    """Attributes of an event that is about to be recorded: if it is one too many, all before it are forgotten.

    A pending checkpoint may have its channel state among them, so that it is aborted (clause D5).
    """
    limit = step.config.remembered_bytes_max
    if step.state.remembered_bytes + weight(payload) <= limit or not step.state.remembered_bytes:
        return {}
    for checkpoint_id, _ in sorted_items(step.state.pending):
        checkpoints.abort(
            step,
            checkpoint_id,
            f"the events since the last completed checkpoint have more than {limit} bytes, and are "
            "forgotten",
        )
    return {FORGETS: "true"}


def fail_without_events(step: StepBuilder, attempt: AttemptState, reason: str) -> None:
    """Fail globally in place of a local failover: nobody can say any more which events it loses (clause D5)."""
    last = step.state.last_checkpoint
    step.calls.clear()  # as at every global failover, the old objects hear nothing more but `close`
    failures.fail_globally(
        step,
        FailGlobally(
            reason=f"attempt {attempt.attempt_number} of subtask {attempt.subtask} failed: {reason}; "
            f"all subtasks go back to checkpoint {last}, because the events since then had more than "
            f"{step.config.remembered_bytes_max} bytes and are forgotten",
            subtask=attempt.subtask,
        ),
    )
