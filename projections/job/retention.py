"""Checks whether the job state retains a completed checkpoint."""

from __future__ import annotations

from coordlog.projections.job.state import JobState

__all__ = ["why_not_retained"]


def why_not_retained(state: JobState, checkpoint_id: int) -> str | None:
    """Reason if the job state does not retain a checkpoint, else None."""
    if checkpoint_id in state.completed:
        return None
    if not 0 < checkpoint_id < state.next_checkpoint_id:
        return f"none that there has been: the next one is {state.next_checkpoint_id}"
    if checkpoint_id in state.pending:
        return "not completed"
    return "not retained: it was aborted or abandoned, or newer ones have taken its place"
