"""Checkpoints that callers trigger. Each is queued until it may start, and has a handle on which the caller waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from coordlog.errors import CheckpointFailedError, UsageError
from coordlog.kernel.checkpoints import can_trigger
from coordlog.projections.job.state import JobState
from coordlog.schemas.record import Kind, Record

__all__ = ["CheckpointHandle", "Triggers"]

_DRIVER_ENDED = "its driver has ended"


class CheckpointHandle:
    """A checkpoint that a caller has triggered. Any thread.

    It begins as soon as one may start (clause F8: not during a restore or another trigger, and only if each unfinished
    subtask has an attempt). If a periodic checkpoint begins first, the handle is resolved by that one.
    """

    def __init__(self, job_id: str, is_mailbox: Callable[[], bool]) -> None:
        self._job_id, self._is_mailbox = job_id, is_mailbox
        self._done = threading.Event()
        self._failure: str | None = None
        self.checkpoint_id: int | None = None
        """Id of the checkpoint, or None before its beginning is in the log."""

    @property
    def is_done(self) -> bool:
        """Whether the checkpoint has completed or failed."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the log has the completed checkpoint; returns its id, or None after `timeout_s` seconds.

        Raises:
            CheckpointFailedError: It was aborted, or its driver ended first.
            UsageError: Called inside a coordinator's callback: no checkpoint completes before the callback returns.
        """
        if self._is_mailbox():
            raise UsageError(
                "`wait` was called inside a callback, and no checkpoint completes before that returns: "
                "wait on another thread, or act in `notify_checkpoint_complete`"
            )
        if not self._done.wait(timeout_s):
            return None
        if self._failure is not None:
            number = self.checkpoint_id
            checkpoint = (
                "a checkpoint that never began" if number is None else f"checkpoint {number}"
            )
            raise CheckpointFailedError(self._job_id, checkpoint, self._failure)
        return self.checkpoint_id

    def resolve(self, failure: str | None = None) -> None:
        """Resolve the handle: the checkpoint has completed, or failed. Called by the driver, once."""
        self._failure = failure
        self._done.set()


class Triggers:
    """Handles of one driver. `add` and `end` on any thread, the other methods on the mailbox.

    Args:
        trigger: Triggers a checkpoint, if one may start.
        state: The state that the driver begins with.
        is_overlap: Whether a checkpoint may start while another is pending.
    """

    def __init__(self, trigger: Callable[[], object], state: JobState, *, is_overlap: bool) -> None:
        self._trigger, self._is_overlap = trigger, is_overlap
        self._next_id = state.next_checkpoint_id
        self._waiting: list[CheckpointHandle] = []
        self._by_checkpoint: dict[int, list[CheckpointHandle]] = {}
        self._lock = threading.Lock()
        self._open: set[CheckpointHandle] = set()
        self._is_over = False

    def add(self, handle: CheckpointHandle) -> None:
        """Register a handle, which `end` resolves at the latest. The caller must then call `queue` on the mailbox."""
        with self._lock:
            if not self._is_over:
                self._open.add(handle)
                return
        handle.resolve(_DRIVER_ENDED)

    def queue(self, handle: CheckpointHandle, state: JobState) -> None:
        """Queue a handle for the next checkpoint that is triggered."""
        self._waiting.append(handle)
        self.watch(state)

    def watch(self, state: JobState) -> None:
        """Trigger a checkpoint if a handle waits for one and it may start. After each input."""
        if state.next_checkpoint_id != self._next_id:
            self._next_id = state.next_checkpoint_id
            if self._waiting:
                self._by_checkpoint[self._next_id - 1] = self._waiting
                self._waiting = []
        if self._waiting and can_trigger(state, is_overlap_allowed=self._is_overlap):
            self._trigger()

    def released(self, records: Iterable[Record]) -> None:
        """Resolve the handles of checkpoints that have ended by these records, which the log has."""
        if not self._by_checkpoint:
            return
        for record in records:
            checkpoint_id = record.checkpoint_id
            if checkpoint_id not in self._by_checkpoint:
                continue
            match record.kind:
                case Kind.CHECKPOINT_TRIGGERED:
                    for handle in self._by_checkpoint[checkpoint_id]:
                        handle.checkpoint_id = checkpoint_id
                case Kind.CHECKPOINT_COMPLETED:
                    self._resolve(checkpoint_id, None)
                case Kind.CHECKPOINT_ABORTED:
                    self._resolve(checkpoint_id, record.reason)
                case _:
                    pass

    def _resolve(self, checkpoint_id: int, failure: str | None) -> None:
        for handle in self._by_checkpoint.pop(checkpoint_id, ()):
            with self._lock:
                self._open.discard(handle)
            handle.resolve(failure)

    def end(self) -> None:
        """Resolve all open handles as failed: the driver ends, and their checkpoints will not complete."""
        with self._lock:
            self._is_over = True
            handles, self._open = self._open, set()
        for handle in handles:
            handle.resolve(_DRIVER_ENDED)
