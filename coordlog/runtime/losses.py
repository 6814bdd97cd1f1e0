"""Attempts that are lost with their connections: common causes, and the split that was being read."""

from __future__ import annotations

from coordlog.api.chain import SourceSpec
from coordlog.kernel.inputs import AttemptLost
from coordlog.limits import LOST_TOGETHER_S
from coordlog.projections.job.state import JobState, sorted_values
from coordlog.projections.splits.fold import Assigned, SplitsState

__all__ = ["Losses", "lost_connection"]


class Losses:
    """Groups lost attempts by a common cause: attempts of one machine that are lost together. On the mailbox.

    A killed Spark worker ends the other workers of its executor, and a machine ends all of its processes. Only the
    first of them can be blamed on the split that it read. The restart policy goes by time and needs no groups.
    """

    def __init__(self) -> None:
        self._count = 0
        self._begun: dict[int, tuple[str, int]] = {}
        """Machine of the attempt, and position in the order of calls, by connection."""
        self._broke: dict[str, tuple[float, int]] = {}
        """Time in seconds and position in the order of calls of the first loss, by machine."""

    def began(self, connection_id: int, host: str) -> None:
        """Note that a connection's attempt runs on `host`."""
        self._count += 1
        self._begun[connection_id] = host, self._count

    def ended(self, connection_id: int) -> None:
        """Forget the lost connection of an attempt that was over before."""
        self._begun.pop(connection_id, None)

    def broke(self, connection_id: int, now_s: float) -> bool:
        """Note the lost connection of a live attempt. Returns whether it was lost together with another one."""
        self._count += 1
        host, begun = self._begun.pop(connection_id, ("", self._count))
        first_s, place = self._broke.get(host, (0.0, -1))
        if begun < place and now_s - first_s <= LOST_TOGETHER_S:
            return True
        self._broke[host] = now_s, self._count
        return False


def lost_connection(
    state: JobState, source: SourceSpec, key: tuple[int, int], reason: str, *, is_with_another: bool
) -> AttemptLost:
    """Input of the kernel for an attempt whose connection is lost (clause B8: it ends the attempt).

    The lost process could not report its split. So it is derived: the only delivered split, or the first of several
    if the source reads them in order. A loss together with another one names no split.

    Args:
        state: State before the loss.
        source: Source of the job.
        key: Subtask and attempt number.
        reason: Reason of the loss, in words.
        is_with_another: Whether it was lost together with another one, see `Losses`.
    """
    subtask, attempt_number = key
    return AttemptLost(
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        split_id=None if is_with_another else _read_last(state, source, subtask),
        is_with_another=is_with_another,
    )


def _read_last(state: JobState, source: SourceSpec, subtask: int) -> str | None:
    """Split that a subtask was reading; None if it had none, or several of a source without an order."""
    splits = state.projections.get(source.operator_id)
    if not isinstance(splits, SplitsState):
        return None
    places = {split_id: splits.splits.place(split_id) for split_id in splits.reader(subtask).splits}
    assigned = {
        split_id: place.sequence
        for split_id, place in places.items()
        if isinstance(place, Assigned)
    }
    gateway = state.gateways.get((source.operator_id, subtask))
    in_flight = set[int]()
    if gateway is not None:
        in_flight = {event.sequence for event in sorted_values(gateway.unacked)}
    # A split that was assigned while another was being read, such as a returned split, has no ack yet.
    acked = [split_id for split_id, sequence in assigned.items() if sequence not in in_flight]
    candidates = acked or list(assigned)
    is_known = len(candidates) == 1 or (bool(candidates) and source.reads_in_order)
    return candidates[0] if is_known else None
