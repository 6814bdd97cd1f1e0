"""A history of 100,000 records and 1,000 subtasks, written by hand: failures, checkpoints, splits read twice."""

from __future__ import annotations

from collections.abc import Iterator

from coordlog.schemas.builtin_types import AttemptRef, CheckpointTriggered
from coordlog.schemas.record import Kind
from histories.hand_history import HandHistory, discovery

__all__ = ["LANES", "RECORDS", "large_history"]

LANES = 1_000
RECORDS = 100_000
_SPLITS_PER_ROUND = 2
_FAILING_EVERY = 37


class _Large(HandHistory):
    """A hand history with 2 ms between turns, of which some are long."""

    def __init__(self) -> None:
        super().__init__("large")
        self.attempts = {(subtask, 0) for subtask in range(LANES)}
        self.numbers = dict.fromkeys(range(LANES), 0)
        self.splits = self.events = self.checkpoints = 0
        self.held: dict[int, list[str]] = {}

    def attempt(self, subtask: int) -> tuple[int, int]:
        """The live attempt of a subtask."""
        return subtask, self.numbers[subtask]

    def discover(self) -> Iterator[str]:
        """Splits for one round."""
        names = [f"part-{self.splits + n:06}.csv" for n in range(LANES * _SPLITS_PER_ROUND)]
        self.splits += len(names)
        for begin in range(0, len(names), 500):
            self.turn(discovery(self, *names[begin : begin + 500]))
        return iter(names)

    def round(self) -> None:
        """Each subtask reads its splits; then a checkpoint, and sometimes failures."""
        names = self.discover()
        for subtask in range(LANES):
            attempt = self.attempt(subtask)
            mine = [next(names) for _ in range(_SPLITS_PER_ROUND)]
            self.turn(self.assigned(attempt, self.events, *mine))
            self.turn(self.acked(attempt, self.events))
            self.events += 1
            for name in mine:
                self.turn(self.finished(attempt, name, 1_000, self.checkpoints or -1))
        for subtask in range(self.checkpoints % _FAILING_EVERY, LANES, _FAILING_EVERY):
            number = self.checkpoints or -1
            gone = self.failed(self.attempt(subtask), f"killed by signal 9 on worker-{subtask}")
            self.turn(gone, self.reset_subtask(subtask, number))
            self.numbers[subtask] += 1
            self.turn(self.started(self.attempt(subtask), number, self.numbers[subtask]))
        self.whole_checkpoint()

    def whole_checkpoint(self) -> None:
        """A checkpoint of all subtasks, each with its barrier and its ack."""
        self.checkpoints += 1
        number = self.checkpoints
        attempts = [self.attempt(subtask) for subtask in range(LANES)]
        value = CheckpointTriggered(
            attempts=[AttemptRef(subtask=s, attempt_number=n) for s, n in attempts],
            finished_subtasks=[],
        )
        self.turn(self.record(Kind.CHECKPOINT_TRIGGERED, checkpoint_id=number, value=value))
        self.turn(self.of_checkpoint(Kind.COORDINATOR_CHECKPOINTED, number))
        barriers = [self.of_checkpoint(Kind.BARRIER_INJECTED, number, a) for a in attempts]
        self.turn(*barriers)
        for attempt in attempts:
            self.turn(self.of_checkpoint(Kind.CHECKPOINT_ACKED, number, attempt))
        self.turn(self.of_checkpoint(Kind.CHECKPOINT_COMPLETED, number))
        self.commit(number)


def large_history() -> HandHistory:
    """At least `RECORDS` records: rounds of work, with a pause in the middle and a second driver after it."""
    history = _Large()
    history.epoch()
    history.turn(history.record(Kind.COORDINATORS_STARTED, attributes={"restore": "start"}))
    for subtask in range(LANES):
        history.turn(history.started((subtask, 0), -1, subtask))
    while len(history.records) < RECORDS:
        history.round()
    return history
