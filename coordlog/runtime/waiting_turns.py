"""Turns that wait for the log: the groups in which they are appended, and their release in order."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from coordlog.limits import (
    APPEND_LINGER_S,
    GROUP_BYTES_MAX,
    GROUP_RECORDS_MAX,
    UNRELEASED_TURNS_MAX,
)
from coordlog.log.interface import UnstoredRecord
from coordlog.payloads.offload import DriverPayloads, HeldPayload
from coordlog.runtime.timers import Clock
from coordlog.runtime.turns import Turn

__all__ = ["WaitingTurns"]


class WaitingTurns:
    """Queue of the turns that are not released yet. All methods but the times of appends are called on the mailbox.

    At most one group is in flight: whole turns from the front of the queue, in one append.

    Args:
        clock: Clock of the runtime.
        payloads: Payloads that wait for the same appends.
        append_stall_s: Time after which an append counts as stalled, in seconds.
    """

    def __init__(self, clock: Clock, payloads: DriverPayloads, *, append_stall_s: float) -> None:
        self._clock, self._payloads, self._append_stall_s = clock, payloads, append_stall_s
        self._turns = deque[Turn]()
        self._append_due_s: float | None = None
        self._in_flight = 0
        """Number of turns in the group in flight."""
        self._in_flight_since_s = self._stalled_s = 0.0

    def __len__(self) -> int:
        """Number of turns that wait for the log."""
        return len(self._turns)

    @property
    def newest(self) -> Turn:
        """The last turn in the queue, which is not empty."""
        return self._turns[-1]

    @property
    def is_full(self) -> bool:
        """Whether too many turns or payload bytes wait: then only acknowledgements should be handled."""
        return len(self._turns) >= UNRELEASED_TURNS_MAX or self._payloads.is_full

    def add(self, turn: Turn) -> None:
        """Queue a turn; its append is due now if its release has an effect, else after a moment."""
        self._turns.append(turn)
        if turn.is_waited_for:
            self._append_due_s = 0.0
        elif self._append_due_s is None:
            self._append_due_s = self._clock.monotonic_s() + APPEND_LINGER_S

    # --- appends --------------------------------------------------------------------------------
    @property
    def append_due_s(self) -> float | None:
        """Time on the monotonic clock of the next append; None during an append, or if no turn waits.

        Turns whose release has no effect, such as acks, wait a moment for others: each append costs the log the same.
        """
        if self._in_flight or self._append_due_s is None:
            return None
        return 0.0 if self.is_full else self._append_due_s

    def take_group(self) -> list[UnstoredRecord]:
        """Records of the next append: whole turns, in order. Empty during an append, or if no turn waits."""
        if self._in_flight:
            return []
        # Before `_in_flight`, for other threads.
        self._in_flight_since_s = self._clock.monotonic_s()
        group: list[UnstoredRecord] = []
        size = 0
        self._append_due_s = None
        for turn in self._turns:
            turn_bytes = sum(record.size_bytes for record in turn.unstored)
            turn_bytes += sum(payload.address.length for payload in turn.payloads)
            is_full = (
                len(group) + len(turn.unstored) > GROUP_RECORDS_MAX
                or size + turn_bytes > GROUP_BYTES_MAX
            )
            if group and is_full:
                self._append_due_s = 0.0
                break
            group.extend(turn.unstored)
            size += turn_bytes
            self._in_flight += 1
        if not group:
            self._in_flight = 0
        return group

    def group_payloads(self) -> list[HeldPayload]:
        """Payloads to store before the group in flight is appended."""
        turns = itertools.islice(self._turns, self._in_flight)
        return [payload for turn in turns for payload in turn.payloads]

    def take_acknowledged(self, offsets: Sequence[int]) -> list[Turn]:
        """Take the turns of the group in flight from the queue: their records count, at these offsets."""
        self._stalled_s = self.stalled_s()
        turns = [self._turns.popleft() for _ in range(self._in_flight)]
        assert len(offsets) == sum(len(turn.unstored) for turn in turns), (
            "one offset for each record"
        )
        self._in_flight = 0
        return turns

    def take_ready(self) -> Turn | None:
        """Take the first turn from the queue if it has no records and no append is in flight; else None."""
        if not self._turns or self._in_flight or self._turns[0].unstored:
            return None
        return self._turns.popleft()

    # --- times of appends -------------------------------------------------------------------------
    def append_pending_s(self) -> float:
        """Time for which the append in flight has waited, in seconds; 0 without one. Any thread."""
        if not self._in_flight:
            return 0.0
        return max(0.0, self._clock.monotonic_s() - self._in_flight_since_s)

    def stalled_s(self) -> float:
        """Total time, in seconds, for which appends have waited beyond `append_stall_s`. Any thread."""
        return self._stalled_s + max(0.0, self.append_pending_s() - self._append_stall_s)
