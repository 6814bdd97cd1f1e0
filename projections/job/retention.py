"""Which completed checkpoints the job state still has all of."""

from __future__ import annotations

from coordlog.projections.job.state import JobState

__all__ = ["why_not_retained"]


def why_not_retained(state: JobState, checkpoint_id: int) -> str | None:
    """Why the job state has nothing of a checkpoint any more, or never had; None where it has all of it."""
    if checkpoint_id in state.completed:
        return None
    if not 0 < checkpoint_id < state.next_checkpoint_id:
        return f"none that there has been: the next one is {state.next_checkpoint_id}"
    if checkpoint_id in state.pending:
        return "not completed"
    return "not retained: it was aborted or abandoned, or newer ones have taken its place"
