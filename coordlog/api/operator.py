"""The subtask's side of the contract: operators of a chain and source readers (clauses L2, M1 to M6).

All of an attempt's calls run on its task's main thread, in the order in which events, batches and barriers come.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa

from coordlog.schemas.payload import Payload

__all__ = [
    "FinishedSplit",
    "Operator",
    "OperatorContext",
    "Poll",
    "PollStatus",
    "SkippedSplit",
    "Snapshot",
    "SourceReader",
    "Waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What an operator hands over at a barrier, at a split's end, or when it has finished."""

    state: bytes | None = None
    """Given to `open` of an attempt that is restored from it."""
    committables: Sequence[bytes] = ()
    """Made visible when a checkpoint that holds them completes; what they name is durable already."""


class OperatorContext(Protocol):
    """What an operator or a reader may call, on the task's main thread."""

    @property
    def operator_id(self) -> str:
        """The operator."""
        ...

    @property
    def job_id(self) -> str:
        """The job."""
        ...

    @property
    def driver_id(self) -> str:
        """The driver that this attempt belongs to: part of every name that it makes (clause M5)."""
        ...

    @property
    def subtask(self) -> int:
        """The subtask's index, 0-based."""
        ...

    @property
    def attempt_number(self) -> int:
        """Never used twice for this subtask."""
        ...

    @property
    def parallelism(self) -> int:
        """How many subtasks there are."""
        ...

    @property
    def restored_checkpoint(self) -> int:
        """The checkpoint that this attempt begins from, -1 for none."""
        ...

    @property
    def is_batch(self) -> bool:
        """Whether the job runs without checkpoints."""
        ...

    def send_event(self, event: Payload) -> None:
        """Send to this operator's coordinator; returns when it is on its way, ahead of any later ack (clause D2)."""
        ...

    def check_alive(self) -> None:
        """Raise FencedAttemptError where this attempt is over. Called between batches; call it in long loops too."""
        ...


class PollStatus(enum.Enum):
    """Result of a poll."""

    BATCH = "batch"
    """Rows; poll again."""
    SPLIT_FINISHED = "split finished"
    """The end of a split, after all its rows."""
    SPLIT_SKIPPED = "split skipped"
    """A split that cannot be read, or not any further, is given up, and the job goes on without it."""
    WAITING = "waiting"
    """Nothing now: wait for an event, a barrier, or `retry_s`. Of `finish`: wait for an event."""
    END = "end"
    """No more splits will come and all are read."""


Waiting = Literal[PollStatus.WAITING]
"""The answer of a `finish` that is to be called again."""


class Operator(ABC):
    """One link of a chain: made anew for each attempt."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """First call. `state` is the restored checkpoint's, or None."""

    def handle_event(self, event: Payload) -> None:
        """An event from the coordinator; acked when this returns (clause C3)."""
        raise NotImplementedError(f"{type(self).__name__} handles no events")

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What this batch becomes, for the next operator; nothing from the last one."""

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """A barrier passes: hand over state and committables. What committables name must be durable on return."""
        return Snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint has completed."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint will not complete."""

    def flush_split(self, split_id: str) -> Iterable[pa.RecordBatch]:
        """What is left of a split, for the next operator. Called ahead of `end_of_split`."""
        return ()

    def end_of_split(self, split_id: str) -> Snapshot:
        """All rows of a split have passed: flush them. Only where no link keeps state across splits."""
        return Snapshot()

    def discard_split(self, split_id: str) -> None:
        """A split is given up: forget its rows (clause J2). Only where no link keeps state across splits.

        By default the split is ended as ever, and what that gives and hands over goes nowhere.
        """
        for _ in self.flush_split(split_id):
            pass
        self.end_of_split(split_id)

    def finish(self) -> Iterable[pa.RecordBatch | Waiting] | Waiting:
        """No more batches will come: what is left, for the next operator.

        `PollStatus.WAITING`, alone or as the last item, keeps the attempt from completing: `finish` is
        called again once an event of any link has been handled (clause M7). Barriers pass meanwhile, and a
        restore calls `finish` again, so that `snapshot_state` holds what is left by then.
        """
        return ()

    def final_snapshot(self) -> Snapshot:
        """After `finish`: the last state and committables, durable (clause I3)."""
        return Snapshot()

    def close(self) -> None:
        """Last call, once, whatever happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSplit:
    """A split that has been read to its end."""

    split_id: str
    rows: int
    """Rows that this split has given since its beginning, by this attempt or those that it was restored from."""
    bytes_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSplit:
    """A split that a reader has let go of before its end."""

    split_id: str
    rows: int
    """Rows that it has given of it, by this attempt or those that it was restored from."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The outcome of one `SourceReader.poll`."""

    status: PollStatus
    batch: pa.RecordBatch | None = None
    """With BATCH. Rows of one split only."""
    finished: FinishedSplit | None = None
    """With SPLIT_FINISHED."""
    skipped: SkippedSplit | None = None
    """With SPLIT_SKIPPED."""
    retry_s: float = 0.05
    """With WAITING: poll again after this, seconds, where nothing arrives before."""


class SourceReader(ABC):
    """The first link of a chain: reads splits, in the order in which they were added. Never blocks in `poll`."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """First call. With `state`, the splits in it are read on from where it says."""

    def skip_splits(self, split_ids: Collection[str]) -> Sequence[SkippedSplit]:
        """Let go of those of these splits that the restored state has; each once, with its rows given so far.

        Called between `open` and `start`, where splits are skipped that the state may have (clause
        J2). A reader that has none of them returns nothing.
        """
        raise NotImplementedError(
            f"{type(self).__name__} may be restored with splits that are skipped, "
            f"{min(split_ids)!r} for one, and has no `skip_splits`"
        )

    def start(self) -> None:
        """After `open`: ask for the first split, in pull mode."""

    @abstractmethod
    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Splits assigned to this attempt, in the source's own encoding."""

    @abstractmethod
    def poll(self) -> Poll:
        """The next batch, in at most a fraction of a second (clause M6)."""

    def notify_no_more_splits(self) -> None:
        """No split will be assigned any more."""

    def handle_source_event(self, event: Payload) -> None:
        """An event of the source's own."""
        raise NotImplementedError(f"{type(self).__name__} handles no events")

    def current_split(self) -> str | None:
        """The split that is being read, for the record of a failure; None where it cannot say.

        Then the first unfinished split that was added to this attempt counts as being read.
        """
        return None

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Unfinished splits and how far each has been read."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint has completed."""

    def close(self) -> None:
        """Last call, once, whatever happened."""
