"""The subtask's side of the contract: operators of a chain and source readers (clauses L2, M1 to M6).

All of an attempt's calls run on its task's main thread, in the order in which events, batches and barriers arrive.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

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
    """State and committables of an operator at a barrier, at a split's end, or after its last batch."""

    state: bytes | None = None
    """State that `open` of an attempt restored from this snapshot gets."""
    committables: Sequence[bytes] = ()
    """Made visible when a checkpoint that holds them completes; the data that they name is durable already."""


class OperatorContext(Protocol):
    """Calls that an operator or a reader may make, on the task's main thread."""

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
        """The driver that this attempt belongs to: a part of every name that the attempt creates (clause M5)."""
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
        """Number of subtasks."""
        ...

    @property
    def restored_checkpoint(self) -> int:
        """The checkpoint that this attempt begins from, -1 if none."""
        ...

    @property
    def is_batch(self) -> bool:
        """Whether the job runs without checkpoints."""
        ...

    def send_event(self, event: Payload) -> None:
        """Send to this operator's coordinator; returns once the event is queued, ahead of any later ack (clause D2).

        Raises:
            WrongThreadError: Called on another thread; the attempt fails.
        """
        ...

    def check_alive(self) -> None:
        """Raise FencedAttemptError if this attempt has ended. Called between batches; call it in long loops too."""
        ...


class PollStatus(enum.Enum):
    """Result of a poll."""

    BATCH = "batch"
    """Rows; poll again."""
    SPLIT_FINISHED = "split finished"
    """The end of a split, after all its rows."""
    SPLIT_SKIPPED = "split skipped"
    """A split that cannot be read, or not to its end, is abandoned, and the job continues without it."""
    WAITING = "waiting"
    """Nothing now: wait for an event, a barrier, or `retry_s`. As a result of `finish`: wait for an event."""
    END = "end"
    """No more splits will come, and all that were added have ended: otherwise it is refused."""


Waiting = Literal[PollStatus.WAITING]
"""Result of a `finish` that has to be called again."""


class Operator(ABC):
    """One link of a chain: a new object for each attempt."""

    emits_own_memory: ClassVar[bool] = False
    """Whether nothing writes again to the memory of an emitted batch. If False, the chain copies the batch."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """First call. `state` is the restored checkpoint's, or None."""

    def handle_event(self, event: Payload) -> None:
        """An event from the coordinator; acked when this returns (clause C3)."""
        raise NotImplementedError(f"{type(self).__name__} handles no events")

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Batches for the next operator, made from this batch; none from the last operator."""

    def emit_held(self) -> Iterable[pa.RecordBatch | Waiting] | Waiting:
        """Rows that the operator has held, for the next operator. Called before each poll of the reader.

        `PollStatus.WAITING`, alone or as the last item, keeps the reader from being polled: no operator of the
        attempt gets rows, and `emit_held` is called again after the next message of the driver, or after a moment.
        Events and barriers are handled meanwhile (clause M8), so that `snapshot_state` must hold the rows that are
        left by then. Called last operator to first, up to the first that waits.
        """
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """State and committables at a barrier. The data that committables name must be durable on return."""
        return Snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint has completed."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint will not complete."""

    def flush_split(self, split_id: str) -> Iterable[pa.RecordBatch]:
        """The remaining rows of a split, for the next operator. Called ahead of `end_of_split`."""
        return ()

    def end_of_split(self, split_id: str) -> Snapshot:
        """All rows of a split have passed: flush them. Only called if no link keeps state across splits.

        If all links have `OperatorSpec.groups_splits`, called once for several small splits, with the last one's id.
        """
        return Snapshot()

    def takes_more_splits(self) -> bool:
        """Whether the rows of the next small split may be handed over with those since the last `end_of_split`.

        Called behind a split whose `end_of_split` may wait (`OperatorSpec.groups_splits`). False: it does not wait.
        """
        return True

    def discard_split(self, split_id: str) -> None:
        """A split is abandoned: forget its rows (clause J2: skips survive resets). Only if no link keeps state.

        The default ends the split with `flush_split` and `end_of_split`, and drops their results.
        """
        for _ in self.flush_split(split_id):
            pass
        self.end_of_split(split_id)

    def left_out(self, split_id: str) -> int:
        """Rows of a split that the operator has left out as bad since the split's beginning, once; 0 in most operators.

        Called at the end of the split, behind its last rows, or when it is abandoned. The rows count as the reader's
        bad rows in the history, and not as good ones.
        """
        return 0

    def finish(self) -> Iterable[pa.RecordBatch | Waiting] | Waiting:
        """The remaining batches, for the next operator, after the last `process`.

        `PollStatus.WAITING`, alone or as the last item, keeps the attempt from completing: `finish` is
        called again once an event of any link has been handled (clause M7). Barriers pass meanwhile, and a
        restore calls `finish` again, so that `snapshot_state` must hold the rows that are left by then. They also pass
        after the last rows of an operator, while one behind it waits: so forget rows that `finish` has returned.
        """
        return ()

    def final_snapshot(self) -> Snapshot:
        """The last state and committables, after `finish`; durable on return (clause I3)."""
        return Snapshot()

    def close(self) -> None:
        """Last call, once, also after a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSplit:
    """A split that has been read to its end."""

    split_id: str
    rows: int
    """Rows read of the split since its beginning, by this attempt and those that it was restored from."""
    bytes_read: int
    rejected: int = 0
    """Rows of the split that were left out as bad, and are not among `rows`."""
    has_next: bool = False
    """Whether a further small split is at hand, and will not be skipped once rows of it were emitted.

    Then the chain may hand over the rows of both together (`OperatorSpec.groups_splits`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSplit:
    """A split that a reader has abandoned before its end."""

    split_id: str
    rows: int
    """Rows read of the split, by this attempt and those that it was restored from."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The outcome of one `SourceReader.poll`. A part of another status would be dropped, so it is refused."""

    status: PollStatus
    batch: pa.RecordBatch | None = None
    """With BATCH. Rows of one split only."""
    rejects: pa.RecordBatch | None = None
    """With BATCH. Batch for the source's followers, which the chain gets before `batch`; no barrier is between them."""
    finished: FinishedSplit | None = None
    """With SPLIT_FINISHED."""
    skipped: SkippedSplit | None = None
    """With SPLIT_SKIPPED."""
    retry_s: float = 0.05
    """With WAITING: seconds until the next poll, if nothing arrives before."""


class SourceReader(ABC):
    """The first link of a chain: reads splits, in the order in which they were added. Never blocks in `poll`."""

    emits_own_memory: ClassVar[bool] = False
    """As of `Operator`."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """First call. With `state`, each of its splits is read on from its recorded position."""

    def skip_splits(self, split_ids: Collection[str]) -> Sequence[SkippedSplit]:
        """Abandon those of these splits that the restored state has; each is returned once, with its rows so far.

        Called between `open` and `start`, if splits are skipped that the state may have (clause J2: skips
        survive resets). A reader that has none of them returns nothing.
        """
        raise NotImplementedError(
            f"{type(self).__name__} may be restored with splits that are skipped, "
            f"{min(split_ids)!r} for one, and has no `skip_splits`"
        )

    def start(self) -> None:
        """After `open`: request the first split, in pull mode."""

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
        """The split that is being read, for the record of a failure; None if unknown.

        If None, the first unfinished split that was added to this attempt counts as being read.
        """
        return None

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Unfinished splits and the position in each."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint has completed."""

    def close(self) -> None:
        """Last call, once, also after a failure."""
