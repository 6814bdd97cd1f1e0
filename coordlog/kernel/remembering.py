"""Decisions about remembered events: the limit of their bytes, and the results of forgetting them."""

from __future__ import annotations

from coordlog.kernel import checkpoints
from coordlog.kernel.builder import StepBuilder
from coordlog.projections.job.remembered import FORGETS, weight
from coordlog.projections.job.state import sorted_items

__all__ = ["make_room"]


def make_room(step: StepBuilder, payload: bytes) -> dict[str, str]:
    """Attributes of an event that is about to be recorded: above the limit, all events before it are forgotten.

    Pending checkpoints are aborted then, because their channel state may be among these events (D5: limit of events).
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
