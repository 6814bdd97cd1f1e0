"""The subtask's side of an execution attempt: its messages to the driver and its reactions (clauses M1 to M6).

No socket, no thread, no clock: the owner of the connection fills an inbox and sends the messages of an outbox.
"""

from __future__ import annotations

import enum
import queue
import resource
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol, assert_never

from coordlog.api.chain import Chain
from coordlog.api.operator import (
    FinishedSplit,
    Operator,
    OperatorContext,
    PollStatus,
    SkippedSplit,
    SourceReader,
)
from coordlog.causes import chain_of_causes, encodable, final_of, is_of_destination
from coordlog.errors import ClosedError, FencedAttemptError, UsageError, WrongThreadError
from coordlog.limits import REASON_CHARS_MAX, SPLITS_AT_ONCE_MAX, SPLITS_AT_ONCE_WEIGHT
from coordlog.messages import (
    Accepted,
    AckCheckpoint,
    AckEvent,
    AlreadyFinished,
    CheckpointAborted,
    CheckpointCompleted,
    Complete,
    DeliverEvent,
    DownMessage,
    EndOfSplit,
    Fail,
    Fenced,
    FinishSplit,
    InjectBarrier,
    Marker,
    Refused,
    SendEvent,
    SkipSplit,
    UpMessage,
)
from coordlog.payloads.offload import NO_STORE, AttemptPayloads, PayloadOptions
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.task.operator_chain import OpenChain, Place

__all__ = ["AttemptRunner", "Inbox", "StepOutcome", "StepStatus"]

_SEND_ADVICE: Final = "let the thread put its results into a queue, and send them in `process`, `emit_held` or `finish`"
_WAIT_S: Final = 0.25
"""Time that `run` waits for a message before it checks again whether the attempt is over."""


class Inbox(Protocol):
    """Messages of the driver that the attempt has not handled yet: a `queue.Queue` or `queue.SimpleQueue`."""

    def get(self, block: bool = True, timeout: float | None = None) -> DownMessage:  # noqa: FBT001, FBT002, as queues have it
        """The next message. Raises queue.Empty if none comes in time."""
        ...


class StepStatus(enum.Enum):
    """Kind of a step's outcome."""

    BATCH = "batch"
    """A batch has passed the chain."""
    SPLIT_FINISHED = "split finished"
    """The end of a split has passed the chain, or it was skipped; the message to the driver was sent."""
    WAITING = "waiting"
    """Nothing to read: wait for a message, or `retry_s`."""
    COMPLETED = "completed"
    """`Complete` was sent: wait for the driver's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The outcome of one `AttemptRunner.step`."""

    status: StepStatus
    retry_s: float = 0.0
    """With WAITING: seconds after which to step again if no message comes before."""


class _Context:
    """See `OperatorContext`."""

    def __init__(self, runner: AttemptRunner, operator_id: str, *, is_coordinated: bool) -> None:
        self._runner, self._operator_id = runner, operator_id
        self._is_coordinated = is_coordinated

    @property
    def operator_id(self) -> str:
        return self._operator_id

    @property
    def job_id(self) -> str:
        return self._runner.job_id

    @property
    def driver_id(self) -> str:
        return self._runner.accepted.driver_id

    @property
    def subtask(self) -> int:
        return self._runner.subtask

    @property
    def attempt_number(self) -> int:
        return self._runner.accepted.attempt_number

    @property
    def parallelism(self) -> int:
        return self._runner.accepted.parallelism

    @property
    def restored_checkpoint(self) -> int:
        return self._runner.accepted.restored_checkpoint

    @property
    def is_batch(self) -> bool:
        return self._runner.accepted.is_batch

    def send_event(self, event: Payload) -> None:
        if not self._is_coordinated:
            raise UsageError(
                f"operator {self._operator_id!r} has no coordinator that could be sent "
                f"{payload_type_of(event).key}: set `coordinator` in its spec"
            )
        self._runner.send_event(self._operator_id, event)

    def check_alive(self) -> None:
        self._runner.check_alive()


class AttemptRunner:
    """One execution attempt of a chain. On one thread, the main thread of the task.

    `run` does all of it. By hand: `open`; then `handle` for each message, and `step`, repeated until `is_released`;
    `close` in any case, last. If one of these raises, the attempt has ended: only `close` may follow.

    Args:
        chain: Chain of the job.
        accepted: The driver's answer to the registration of this task.
        job_id: Id of the job.
        subtask: Subtask for which the task has registered.
        outbox: Sends a message to the driver, in the order of the calls; may block while the driver is slow.
        why_over: Returns the reason why the attempt is over (its connection or lease is lost), or None. Called
            before each batch, so it must be cheap.
        payloads: Options of the job's large payloads.
        flush: Returns after all messages of `outbox` have left this process. Called at the end of each split: the
            driver must know it, even if the process is killed in the next split.
    """

    def __init__(
        self,
        chain: Chain,
        accepted: Accepted,
        *,
        job_id: str,
        subtask: int,
        outbox: Callable[[UpMessage], None],
        why_over: Callable[[], str | None],
        payloads: PayloadOptions = NO_STORE,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.accepted, self.job_id, self.subtask = accepted, job_id, subtask
        self.last_barrier = accepted.restored_checkpoint
        """Checkpoint of the last barrier that the chain has passed; at first the restored checkpoint."""
        self.is_completed = False
        """Whether `Complete` was sent."""
        self.is_released = False
        """Whether the driver has answered that the task may end well."""
        self._payloads = AttemptPayloads(
            payloads,
            accepted.epoch,
            accepted.driver_id,
            is_over=lambda: self._why_over() is not None,
        )
        chain = chain.opening(self._payloads.open)
        self._types = chain.payload_types
        self._outbox, self._why_over, self._flush = outbox, why_over, flush
        self._event_count = 0
        self._pass_count = 0
        """Number of messages and steps so far."""
        self._is_silent = False
        self._thread_id = threading.get_ident()
        """Thread of all calls of the chain."""
        self._is_finishing = False
        """Whether the reader has reported its end."""
        self._is_finish_due = False
        """Whether an event was handled since `finish` last waited: then it is called again."""
        self._flushes_splits = accepted.is_batch and not chain.keeps_state_across_splits
        """Whether splits are flushed at their end, and not only at barriers."""
        self._groups_splits = self._flushes_splits and chain.groups_splits
        self._grouped: list[FinishedSplit] = []
        """Ended splits, oldest first, whose rows are handed over with those of a later one."""
        self._is_inside_split = False
        """Whether rows have passed since the last end of a split."""
        states: dict[str, list[bytes]] = {}
        for part in accepted.states:
            if part.state is not None:
                states.setdefault(part.operator_id, []).append(part.state)
        self._chain = OpenChain(
            chain,
            states,
            self,
            accepted.skipped_splits,
            self._payloads,
            is_batch=accepted.is_batch,
        )

    def run(self, inbox: Inbox) -> None:
        """Run the attempt to its end; returns once its completion, or that of the job, is in the log.

        `why_over` is called several times a second, even while the attempt waits for a message. So the owner of
        `inbox` does nothing if the connection ends.

        Raises:
            FencedAttemptError: The attempt is over; its driver has ended it, or is gone.
            Exception: Error of a call of the chain, or of its result; a `Fail` was sent to the driver.
        """
        try:
            self.open()
            while not self.is_released:
                self._drain(inbox)
                if self.is_released:
                    break
                outcome = self.step()
                if outcome.status is StepStatus.WAITING:
                    self._wait(inbox, min(outcome.retry_s, _WAIT_S))
                elif outcome.status is StepStatus.COMPLETED:
                    self._wait(inbox, _WAIT_S)
        except BaseException as error:
            if self._chain.last_call is not None and not isinstance(error, FencedAttemptError):
                # Its result was wrong: an error in the call itself was reported there, and is not again.
                self.failed(self._chain.last_call, error)
            self.close(error)
            raise
        self.close()

    def open(self) -> None:
        """Create and open each link, then start the reader."""
        self._thread_id = threading.get_ident()
        for split in self._chain.open():
            self._send_skipped(split, split.rows)

    def handle(self, message: DownMessage) -> None:
        """Handle a message of the driver, at once.

        Raises:
            FencedAttemptError: The driver has fenced the attempt.
            Exception: Error of a call of the chain.
        """
        self._pass_count += 1
        match message:
            case Fenced():
                if not message.is_finished:
                    raise self._fenced(message.reason)
                self.is_released = True
            case Accepted() | AlreadyFinished() | Refused():
                raise AssertionError(f"{type(message).__name__} answers a registration only")
            case Marker():
                if (
                    not self.is_completed
                ):  # the driver has failed all events without an ack at `Complete`
                    self._outbox(message)
            case DeliverEvent() | InjectBarrier() | CheckpointCompleted() | CheckpointAborted():
                if not self.is_completed:  # `Complete` counts as the ack of later barriers
                    self.check_alive()
                    self._handle(message)
            case _:
                assert_never(message)

    def step(self) -> StepOutcome:
        """Poll the reader once and pass its result down the chain; after its end, finish and complete.

        If an operator holds rows and waits, the reader is not polled (clause M8: operators may pause the reader).

        Raises:
            FencedAttemptError: The attempt is over.
            Exception: Error of a call of the chain.
        """
        self._pass_count += 1
        self.check_alive()
        if self.is_completed:
            return StepOutcome(status=StepStatus.COMPLETED)
        if not self._chain.emit_held():
            return StepOutcome(status=StepStatus.WAITING, retry_s=_WAIT_S)
        if self._is_finishing:
            if self._is_finish_due:
                return self._finish()
            return StepOutcome(status=StepStatus.WAITING, retry_s=_WAIT_S)
        poll = self._chain.poll()
        match poll.status:
            case PollStatus.BATCH:
                assert poll.batch is not None, "`poll` has checked it"
                self._is_inside_split = True
                if poll.rejects is not None:
                    self._chain.process(poll.rejects)
                # A source passes on no batch without rows, except for the rejects before it.
                if poll.batch.num_rows or poll.rejects is None:
                    self._chain.process(poll.batch)
                return StepOutcome(status=StepStatus.BATCH)
            case PollStatus.SPLIT_FINISHED:
                assert poll.finished is not None, "`poll` has checked it"
                self._end_split(poll.finished)
                return StepOutcome(status=StepStatus.SPLIT_FINISHED)
            case PollStatus.SPLIT_SKIPPED:
                assert poll.skipped is not None, "`poll` has checked it"
                if self._grouped and self._is_inside_split:
                    self._chain.refuse_skip(poll.skipped)
                self._hand_over_group()
                self._is_inside_split = False
                rows = self._chain.skip_split(poll.skipped, is_flushed=self._flushes_splits)
                self._send_skipped(poll.skipped, rows)
                self._flush()
                return StepOutcome(status=StepStatus.SPLIT_FINISHED)
            case PollStatus.WAITING:
                if not self._is_inside_split:
                    self._hand_over_group()
                return StepOutcome(status=StepStatus.WAITING, retry_s=poll.retry_s)
            case PollStatus.END:
                self._hand_over_group()
                return self._finish()
            case _:
                assert_never(poll.status)

    def _end_split(self, finished: FinishedSplit) -> None:
        """Report the end of a split; in batch, small splits that follow one another are reported together."""
        self._is_inside_split = False
        if self._flushes_splits:
            self._chain.flush_split(finished.split_id)
        if left_out := self._chain.left_out(finished.split_id):
            finished = replace(
                finished, rows=finished.rows - left_out, rejected=finished.rejected + left_out
            )
        self._chain.stop_tracking(finished.split_id)
        self._grouped.append(finished)
        if (
            not self._groups_splits
            or not finished.has_next
            or len(self._grouped) >= SPLITS_AT_ONCE_MAX
            or sum(each.bytes_read for each in self._grouped) >= SPLITS_AT_ONCE_WEIGHT
            or not self._chain.takes_more_splits()
        ):
            self._hand_over_group()

    def _hand_over_group(self) -> None:
        """Report the ends of the splits whose rows have all passed, if any. Only between two splits."""
        if not self._grouped:
            return
        *before, last = self._grouped
        self._grouped = []
        self._outbox(
            FinishSplit(
                operator_id=self._chain.source_id,
                last_barrier=self.last_barrier,
                finished=self._chain.end_split(last, is_handed_over=self._flushes_splits),
                rejected=last.rejected,
                before=tuple(
                    EndOfSplit(
                        split_id=each.split_id,
                        rows=each.rows,
                        bytes_read=each.bytes_read,
                        rejected=each.rejected,
                    )
                    for each in before
                ),
            )
        )
        self._flush()

    def _finish(self) -> StepOutcome:
        """Complete, or wait if an operator waits for an event (clause M7: `finish` may wait)."""
        self._is_finishing, self._is_finish_due = True, False
        snapshot = self._chain.finish()
        if snapshot is None:
            self._is_finish_due = self._chain.is_finish_held
            return StepOutcome(status=StepStatus.WAITING, retry_s=_WAIT_S)
        self.check_alive()
        self.is_completed = self._is_silent = True
        self._outbox(Complete(last_barrier=self.last_barrier, snapshot=snapshot))
        return StepOutcome(status=StepStatus.COMPLETED)

    def _send_skipped(self, skipped: SkippedSplit, rows: int) -> None:
        self._outbox(
            SkipSplit(
                operator_id=self._chain.source_id,
                last_barrier=self.last_barrier,
                split_id=skipped.split_id,
                rows=rows,
                reason=encodable(skipped.reason)[:REASON_CHARS_MAX],
            )
        )

    def close(self, failure: BaseException | None = None) -> None:
        """Close each link that was created, once, in any case; a second call does nothing.

        Args:
            failure: Error that has ended the attempt; errors of `close` are added to it as notes.

        Raises:
            Exception: Error of a link's `close`, if there is neither a failure nor a released completion.
        """
        self._is_silent = self._is_silent or failure is not None
        self._chain.close(failure, is_completed=self.is_released)
        self._is_silent = True

    def send_event(self, operator_id: str, event: Payload) -> None:
        """See `OperatorContext.send_event`."""
        if self._is_silent:
            raise ClosedError(f"attempt {self.accepted.attempt_number} of subtask {self.subtask}")
        self._refuse_other_thread(operator_id)
        declared = self._types.of(event)
        encoded = declared.encode(event)
        sealed = self._payloads.seal(f"a {declared.key}", declared.key, encoded)
        event_id, self._event_count = self._event_count, self._event_count + 1
        self._outbox(
            SendEvent(
                operator_id=operator_id,
                event_id=event_id,
                last_barrier=self.last_barrier,
                payload_type=declared.key,
                payload=sealed,
            )
        )

    def _refuse_other_thread(self, operator_id: str) -> None:
        """Fail the attempt if an event is sent on another thread than that of the calls (clause M1: one thread).

        The event could fall between the operator's snapshot and its barrier. Then it would count as sent before the
        barrier, and after a restore the operator, whose state does not have it, would send it again.

        Raises:
            WrongThreadError: Another thread has called.
        """
        current = threading.current_thread()
        if current.ident == self._thread_id:
            return
        error = WrongThreadError("context.send_event", current.name, _SEND_ADVICE)
        # The thread may drop the error, so it fails the attempt here.
        self.failed(Place(operator_id=operator_id, callback="send_event"), error)
        raise error

    def check_alive(self) -> None:
        """Raise FencedAttemptError if the attempt is over."""
        reason = self._why_over()
        if reason is not None:
            raise self._fenced(reason)

    def context(self, operator_id: str, *, is_coordinated: bool) -> OperatorContext:
        """See `AttemptPort.context`."""
        return _Context(self, operator_id, is_coordinated=is_coordinated)

    @property
    def source_id(self) -> str:
        """The source's operator id."""
        return self._chain.source_id

    def link(self, operator_id: str) -> Operator | SourceReader:
        """The open reader or operator of this id, for tests."""
        return self._chain.link(operator_id)

    @property
    def calling(self) -> tuple[Place, int] | None:
        """The call of the chain in progress, with its number, or None; any thread."""
        place = self._chain.calling
        return None if place is None else (place, self._chain.call_count)

    @property
    def progress(self) -> int:
        """Number of messages, steps and calls so far. It rises unless the main thread hangs; any thread."""
        return self._pass_count + self._chain.call_count

    def report_hanging_call(self, place: Place, seconds: float, stack: str) -> None:
        """Report to the driver a call that does not return; the driver kills the task. On any thread.

        Raises:
            FencedAttemptError: The attempt is over already.
        """
        # The error is last, as in a traceback.
        reason = (
            f"{stack}TimeoutError: it has not returned for {seconds:.0f} s: raise `call_timeout_s` "
            "if it needs longer, or pass fewer rows at once (`batch_rows`)"
        )
        self._outbox(
            Fail(
                operator_id=place.operator_id,
                callback=place.callback,
                reason=reason[-REASON_CHARS_MAX:],
                split_id=place.split_id,
                event_id=place.event_id,
            )
        )

    def failed(self, place: Place, error: BaseException) -> None:
        """See `AttemptPort.failed`: sends one `Fail` to the driver, as the last message."""
        if self._is_silent:
            return
        self._is_silent = True
        final = final_of(error)
        message = Fail(
            operator_id=place.operator_id,
            callback=place.callback,
            reason=encodable(_reason_of(error))[-REASON_CHARS_MAX:],
            # With a split, the driver advises to skip it, unless the failure is final. That is wrong if the
            # destination is at fault.
            split_id=place.split_id if final or not is_of_destination(error) else None,
            event_id=place.event_id,
            final=final,
        )
        try:
            self._outbox(message)
        except Exception as unsent:  # noqa: BLE001, the chain's own error matters more: added to it as a note
            error.add_note(
                f"and the message to the driver failed: {type(unsent).__name__}: {unsent}"
            )

    def _handle(
        self, message: DeliverEvent | InjectBarrier | CheckpointCompleted | CheckpointAborted
    ) -> None:
        match message:
            case DeliverEvent():
                self._chain.deliver(message)
                self._is_finish_due = True
                self._outbox(
                    AckEvent(
                        operator_id=message.operator_id,
                        event_id=message.event_id,
                        last_barrier=self.last_barrier,
                    )
                )
            case InjectBarrier(checkpoint_id=checkpoint_id):
                if checkpoint_id <= self.last_barrier:
                    return
                snapshot = self._chain.snapshot(checkpoint_id)
                # Set after the snapshot: events that `snapshot_state` has sent belong before the barrier.
                self.last_barrier = checkpoint_id
                self._outbox(
                    AckCheckpoint(
                        checkpoint_id=checkpoint_id, last_barrier=checkpoint_id, snapshot=snapshot
                    )
                )
            case CheckpointCompleted():
                self._chain.notify_completed(message.checkpoint_id)
            case CheckpointAborted():
                self._chain.notify_aborted(message.checkpoint_id)
            case _:
                assert_never(message)

    def _fenced(self, reason: str) -> FencedAttemptError:
        return FencedAttemptError(self.subtask, self.accepted.attempt_number, reason)

    def _drain(self, inbox: Inbox) -> None:
        while not self.is_released:
            try:
                message = inbox.get(block=False)
            except queue.Empty:
                return
            self.handle(message)

    def _wait(self, inbox: Inbox, wait_s: float) -> None:
        if wait_s <= 0:
            return
        try:
            message = inbox.get(timeout=wait_s)
        except queue.Empty:
            return
        self.handle(message)


def _reason_of(error: BaseException) -> str:
    """Traceback of an error, whose last line is the error; of a MemoryError, with the memory figures."""
    text = "".join(traceback.format_exception(error))
    if not any(isinstance(cause, MemoryError) for cause in chain_of_causes(error)):
        return text
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_unlimited = limit_bytes == resource.RLIM_INFINITY
    limit = "no limit" if is_unlimited else f"a limit of {limit_bytes >> 20:,} MiB"
    return (
        f"{text.rstrip()} (no memory is left: the process has used up to {peak_mib:,} MiB, with {limit} "
        "of address space: raise `spark.executor.pyspark.memory`, or pass fewer rows at once with "
        "`batch_rows`)\n"
    )
