"""The open chain of one execution attempt: its links are created and opened, and each call has a place.

The driver's protocol is in `attempt.py`. An error is reported once, with its place, and raised on unchanged (clause
M3: it fails this attempt).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.operator import (
    FinishedSplit,
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    SkippedSplit,
    Snapshot,
    SourceReader,
    Waiting,
)
from coordlog.errors import FencedAttemptError, OperatorMisfitError, TooLargeError, UsageError
from coordlog.limits import RECORD_BYTES_MAX
from coordlog.log.local.fork_guard import ForkGuard
from coordlog.messages import DeliverEvent
from coordlog.payloads.offload import NO_STORE, AttemptPayloads
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    Committable,
    OperatorState,
    SplitFinished,
)
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.payload_address import address_in, plain
from coordlog.schemas.source_types import AddSplits, NoMoreSplits
from coordlog.task.author_faults import check_handover, check_poll, check_state
from coordlog.task.own_rows import own_rows

__all__ = ["AttemptPort", "OpenChain", "Place"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place in a chain at which an error was raised."""

    operator_id: str
    callback: str
    split_id: str | None = None
    """Split that was being read, if any."""
    event_id: int | None = None
    """Event that was being handled, if any."""


class AttemptPort(Protocol):
    """The attempt, as far as its chain needs it."""

    def check_alive(self) -> None:
        """Raise FencedAttemptError if the attempt is over."""
        ...

    def context(self, operator_id: str, *, is_coordinated: bool) -> OperatorContext:
        """Context for the opening of a link."""
        ...

    def failed(self, place: Place, error: BaseException) -> None:
        """Report the error of a call, which is raised on after this. Only the first report is used."""
        ...


@dataclass(slots=True, eq=False)
class _Link:
    """A created link; exactly one of `reader` and `operator` is set."""

    operator_id: str
    reader: SourceReader | None = None
    operator: Operator | None = None


class OpenChain:
    """Links of one attempt. One thread.

    Call `open` first, then the other methods in any order (no rows after the first `finish`), then `close` in any
    case. After a method has raised only `close` may follow.
    """

    def __init__(
        self,
        chain: Chain,
        states: Mapping[str, Sequence[bytes]],
        attempt: AttemptPort,
        skipped_splits: Collection[str] = (),
        payloads: AttemptPayloads | None = None,
        *,
        is_batch: bool = False,
    ) -> None:
        self._is_batch = is_batch
        self._chain, self._states, self._attempt = chain, states, attempt
        self._payloads = payloads or AttemptPayloads(NO_STORE, -1, "")
        self._skipped_splits = tuple(skipped_splits)
        self.calling: Place | None = None
        """Place of the call in progress, or None. Any thread may read it."""
        self.last_call: Place | None = None
        """Place of the newest call, or None before the first."""
        self.call_count = 0
        """Number of calls so far."""
        self._links: list[_Link] = []
        self._holding: list[tuple[int, Operator]] = []
        """Operators with an `emit_held` of their own, with their places, last to first."""
        self._is_closed = False
        self._fork_guard = ForkGuard()
        self._finished_count = 1
        """Number of links that have finished: the source, then operator by operator."""
        self.is_finish_held = False
        """Whether an operator holds rows of the `finish` in front of it, and waits."""
        self._added: deque[str] = deque()
        """Splits that were added to this attempt and have not ended; those of a restored state are unknown."""
        self._is_restored = bool(states.get(chain.source.operator_id))

    @property
    def source_id(self) -> str:
        """The source's operator id."""
        return self._chain.source.operator_id

    # Beginning and end

    def open(self) -> Sequence[SkippedSplit]:
        """Create and open each link, last to first: a producer of rows after their consumer. Then start the reader.

        Returns:
            Skipped splits that the reader's state had, and that it has released.
        """
        for spec in reversed(self._chain.links):
            link = _Link(spec.operator_id)
            with self._calling(link, "create"):
                if isinstance(spec, SourceSpec):
                    link.reader = spec.create_reader()
                else:
                    link.operator = spec.create_operator()
            self._links.insert(0, link)
            context = self._attempt.context(
                link.operator_id, is_coordinated=spec.coordinator is not None
            )
            with self._calling(link, "restore"):
                states = self._payloads.open_all(self._states.get(link.operator_id, ()))
            state = states[0] if states else None
            if len(states) > 1:
                assert spec.merge_states is not None, "a restore without it was refused (clause E7)"
                with self._calling(link, "merge_states"):
                    state = spec.merge_states(states)
            with self._calling(link, "open"):
                if link.operator and spec.coordinator and spec.coordinator.sink:
                    is_flushed = self._is_batch and not self._chain.keeps_state_across_splits
                    check_handover(link.operator, is_batch=self._is_batch, is_flushed=is_flushed)
                (link.reader or _operator(link)).open(context, state)
        self._holding = [
            (place, link.operator)
            for place, link in reversed(list(enumerate(self._links)))
            if link.operator and type(link.operator).emit_held is not Operator.emit_held
        ]
        released: Sequence[SkippedSplit] = ()
        if self._skipped_splits and self._states.get(self.source_id):
            with self._calling(self._links[0], "skip_splits"):
                released = tuple(self._reader.skip_splits(self._skipped_splits))
        for split in released:
            self.left_out(split.split_id)
        with self._calling(self._links[0], "start"):
            self._reader.start()
        return released

    def finish(self) -> AttemptSnapshot | None:
        """Finish each operator, first to last, after the last batch; then take the last snapshots.

        The last rows of an operator pass the operators behind it before those finish.

        Returns:
            The last snapshots, or None if an operator waits for an event (clause M7): call it again then; or, if
            `is_finish_held`, once `emit_held` is true.
        """
        self.is_finish_held = False
        while self._finished_count < len(self._links):
            operator = _operator(self._links[self._finished_count])
            is_waiting, has_rows = self._emit(self._finished_count, "finish", operator.finish)
            if is_waiting:
                return None
            self._finished_count += 1
            if has_rows and not self.emit_held():
                self.is_finish_held = True
                return None
        snapshot = AttemptSnapshot(states=[], committables=[])
        for link in self._links[1:]:
            with self._calling(link, "final_snapshot"):
                _collect(link, self._sealed(_operator(link).final_snapshot()), snapshot)
        self._check_size("its last snapshot", "final_snapshot", snapshot)
        return snapshot

    def emit_held(self, first: int = 0) -> bool:
        """Pass on the rows that unfinished operators hold, last to first: no rows reach an operator that waits.

        Args:
            first: Place of the first operator that is called.

        Returns:
            Whether no operator waits (clause M8): only then the reader may be polled, or an operator finished.
        """
        for place, operator in self._holding:
            if place < max(first, self._finished_count):
                continue
            is_waiting, has_rows = self._emit(place, "emit_held", operator.emit_held)
            if is_waiting or (has_rows and not self.emit_held(place + 1)):
                return False  # an operator behind may hold the rows, and wait
        return True

    def _emit(
        self,
        place: int,
        callback: str,
        emit: Callable[[], Iterable[pa.RecordBatch | Waiting] | Waiting],
    ) -> tuple[bool, bool]:
        """Pass on the rows that the operator at `place` emits. Returns whether it waits, and whether it had rows."""
        is_waiting = has_rows = False

        def rows() -> Iterator[pa.RecordBatch]:
            nonlocal is_waiting, has_rows
            result = emit()
            for item in (result,) if result is PollStatus.WAITING else result:
                if item is PollStatus.WAITING:
                    is_waiting = True
                    return
                has_rows = True
                yield item

        self._pass_on(place, callback, rows)
        return is_waiting, has_rows

    def close(self, failure: BaseException | None, *, is_completed: bool) -> None:
        """Close each link that was created, once, first to last; a second call does nothing.

        Args:
            failure: Error that has ended the attempt; errors of `close` are added to it as notes.
            is_completed: Whether the completion is in the log: then errors are only logged as warnings.

        Raises:
            Exception: First error of a `close`, if there is neither a failure nor a completion.
        """
        if self._is_closed:
            return
        self._is_closed = True
        first: Exception | None = None
        for link in self._links:
            try:
                (link.reader or _operator(link)).close()
            except Exception as error:  # noqa: BLE001, each link is closed; raised or noted below
                problem = (
                    f"then `close` of {link.operator_id!r} raised {type(error).__name__}: {error}"
                )
                if failure is not None:
                    failure.add_note(problem)
                elif is_completed:
                    _log.warning("the subtask has completed; %s", problem)
                else:
                    failure = first = error
                    self._attempt.failed(
                        Place(operator_id=link.operator_id, callback="close"), error
                    )
        if first is not None:
            raise first

    # Rows

    def poll(self) -> Poll:
        """Poll the reader. Raises UsageError if the poll does not have the parts of its status."""
        with self._calling(self._links[0], "poll", is_reading=True):
            poll = self._reader.poll()
            check_poll(poll, self._added)
        return poll

    def process(self, batch: pa.RecordBatch) -> None:
        """Pass a batch of the reader down the chain."""
        if len(self._links) > 1:
            process = _operator(self._links[1]).process
            rows = batch if self._reader.emits_own_memory else own_rows(batch)
            self._pass_on(1, "process", process, rows, is_reading=True)

    def flush_split(self, split_id: str) -> None:
        """Pass on the rows that links hold of a split, first to last. After its last batch."""
        for place, link in enumerate(self._links[1:], start=1):
            flush = _operator(link).flush_split
            self._pass_on(place, "flush_split", flush, split_id, is_reading=True)

    def takes_more_splits(self) -> bool:
        """Whether every link takes rows of another split before its next `end_of_split`. Between two splits."""
        for link in self._links[1:]:
            with self._calling(link, "takes_more_splits", is_reading=True):
                if not _operator(link).takes_more_splits():
                    return False
        return True

    def end_split(self, finished: FinishedSplit, *, is_handed_over: bool) -> SplitFinished:
        """End of a split, as the driver gets it.

        Args:
            finished: The finished split.
            is_handed_over: Whether each link, first to last, hands over the committables with the rows since the last
                such call. Else they follow at the next barrier, or with the completion.
        """
        split_id = finished.split_id
        handed_over = AttemptSnapshot(states=[], committables=[])
        if is_handed_over:
            for link in self._links[1:]:
                with self._calling(link, "end_of_split", is_reading=True):
                    _collect(link, _operator(link).end_of_split(split_id), handed_over)
        message = SplitFinished(
            split_id=split_id,
            rows=finished.rows,
            bytes_read=finished.bytes_read,
            committables=handed_over.committables,
        )
        self._check_size(f"the result of split {split_id!r}", "end_of_split", message)
        return message

    def left_out(self, split_id: str) -> int:
        """Rows of a split that operators have left out as bad; once, at its end or when it is abandoned."""
        count = 0
        for link in self._links[1:]:
            operator = _operator(link)
            if type(operator).left_out is not Operator.left_out:
                with self._calling(link, "left_out"):
                    count += operator.left_out(split_id)
        return count

    def refuse_skip(self, skipped: SkippedSplit) -> None:
        """Fail the attempt: rows of the skipped split are among those of splits before it.

        Raises:
            UsageError: Always.
        """
        with self._calling(self._links[0], "poll", is_reading=True):
            raise UsageError(
                f"`poll` skipped split {skipped.split_id!r} after rows of it, and the split before had `has_next`: "
                "set `has_next` only if the next split is not skipped after its first rows"
            )

    def skip_split(self, skipped: SkippedSplit, *, is_flushed: bool) -> int:
        """Number of rows that stay of a split that the reader abandons.

        Args:
            skipped: The abandoned split.
            is_flushed: Whether splits are flushed one by one: then each link drops the rows of this split. Else they
                are among those of other splits, and the emitted ones stay.
        """
        split_id = skipped.split_id
        if is_flushed:
            for link in self._links[1:]:
                with self._calling(link, "discard_split", is_reading=True):
                    _operator(link).discard_split(split_id)
        self.left_out(split_id)
        self.stop_tracking(split_id)
        return 0 if is_flushed else skipped.rows

    def stop_tracking(self, split_id: str) -> None:
        """Forget a split that is not being read any more."""
        if split_id in self._added:
            self._added.remove(split_id)

    def _pass_on(
        self,
        place: int,
        callback: str,
        call: Callable[..., Iterable[pa.RecordBatch]],
        *arguments: object,
        is_reading: bool = False,
    ) -> None:
        """Make one call of the operator at `place`; pass each batch on before the next is produced."""
        with self._calling(self._links[place], callback, is_reading=is_reading):
            for batch in call(*arguments):
                if not isinstance(batch, pa.RecordBatch):
                    # Here: the next operator would be named as the one at fault.
                    raise OperatorMisfitError(
                        f"`{callback}` gave a {type(batch).__name__}; it must give record batches: `yield batch`, or "
                        "a list of them"
                    )
                if place + 1 == len(self._links):
                    raise OperatorMisfitError(
                        f"`{callback}` of the last operator gave a batch, and no operator after it "
                        "takes the rows: end the chain with a sink"
                    )
                self._attempt.check_alive()
                below = _operator(self._links[place + 1])
                rows = batch if _operator(self._links[place]).emits_own_memory else own_rows(batch)
                self._pass_on(place + 1, "process", below.process, rows, is_reading=is_reading)

    # Events and barriers

    def deliver(self, message: DeliverEvent) -> None:
        """Call the handler of an event: that of its operator, or of the reader."""
        link = self._link(message.operator_id)
        callback = "handle_event" if link.reader is None else "handle_source_event"
        with self._calling(link, callback, event_id=message.event_id):
            event = self._chain.payload_types.decode(message.payload_type, message.payload)
            if link.reader is None:
                _operator(link).handle_event(event)
            elif isinstance(event, AddSplits):
                link.reader.add_splits([split.content for split in event.splits])
                self._added.extend(split.split_id for split in event.splits)
            elif isinstance(event, NoMoreSplits):
                link.reader.notify_no_more_splits()
            else:
                link.reader.handle_source_event(event)

    def snapshot(self, checkpoint_id: int) -> AttemptSnapshot:
        """States and committables of all links at a barrier, first to last (clause M2: between two batches)."""
        snapshot = AttemptSnapshot(states=[], committables=[])
        for link in self._links:
            with self._calling(link, "snapshot_state"):
                if link.reader is not None:
                    state = _bytes("its state", link.reader.snapshot_state(checkpoint_id))
                    part = Snapshot(state=state)
                else:
                    part = _operator(link).snapshot_state(checkpoint_id)
                check_state(link.reader or _operator(link), part.state)
                _collect(link, self._sealed(part), snapshot)
        self._check_size(f"its snapshot for checkpoint {checkpoint_id}", "snapshot_state", snapshot)
        return snapshot

    def notify_completed(self, checkpoint_id: int) -> None:
        """Notify all links of a completed checkpoint."""
        for link in self._links:
            with self._calling(link, "notify_checkpoint_complete"):
                (link.reader or _operator(link)).notify_checkpoint_complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Notify the operators of an aborted checkpoint."""
        for link in self._links[1:]:
            with self._calling(link, "notify_checkpoint_aborted"):
                _operator(link).notify_checkpoint_aborted(checkpoint_id)

    # Failures

    @contextmanager
    def _calling(
        self,
        link: _Link,
        callback: str,
        *,
        event_id: int | None = None,
        is_reading: bool = False,
    ) -> Generator[None, None, None]:
        """Set `calling` during a call, and report its error to the attempt."""
        self._fork_guard.end_copy()  # the operator before may have forked and passed rows on
        before = self.calling
        self.calling = self.last_call = Place(
            operator_id=link.operator_id,
            callback=callback,
            split_id=self._first_added() if is_reading else None,
            event_id=event_id,
        )
        self.call_count += 1
        try:
            yield
        except FencedAttemptError:
            raise  # not an error of the chain
        except BaseException as error:
            self._fork_guard.end_copy()
            place = Place(
                operator_id=link.operator_id,
                callback=callback,
                split_id=self._split_being_read() if is_reading else None,
                event_id=event_id,
            )
            self._attempt.failed(place, error)
            raise
        finally:
            self._fork_guard.end_copy()
            self.calling = before

    def _split_being_read(self) -> str | None:
        with suppress(Exception):  # the reader may be the failed part
            split_id = self._reader.current_split()
            if split_id is not None:
                return split_id
        return self._first_added()

    def _first_added(self) -> str | None:
        """The split that is being read, or None if it is unknown. Readers read splits in the order of addition."""
        return self._added[0] if self._added and not self._is_restored else None

    def _sealed(self, snapshot: Snapshot) -> Snapshot:
        """Snapshot whose state is in the payload store if it is large."""
        if not isinstance(snapshot.state, bytes):
            return snapshot  # no state, or one that `_collect` refuses
        sealed = self._payloads.seal("its state", None, snapshot.state, inline_max=RECORD_BYTES_MAX)
        return replace(snapshot, state=sealed)

    def _check_size(
        self, what: str, callback: str, message: AttemptSnapshot | SplitFinished
    ) -> None:
        """Fail the attempt in the name of the link with the largest part, if the message is too large (clause K6).

        If only the sum of the states is too large, the largest go to the payload store.
        """
        if isinstance(message, AttemptSnapshot):
            self._store_largest(message)
        size_bytes = _size_of(message)
        if size_bytes <= RECORD_BYTES_MAX:
            return
        sizes = dict.fromkeys((link.operator_id for link in self._links), 0)
        if isinstance(message, AttemptSnapshot):
            for state in message.states:
                sizes[state.operator_id] += len(state.state or b"")
        for committable in message.committables:
            sizes[committable.operator_id] += len(committable.content)
        largest = max(self._links, key=lambda link: sizes[link.operator_id])
        with self._calling(largest, callback):
            share = f"{sizes[largest.operator_id]} bytes of it from {largest.operator_id!r},"
            raise TooLargeError(f"{what}, {share}", size_bytes, RECORD_BYTES_MAX)

    def _store_largest(self, message: AttemptSnapshot) -> None:
        by_size = sorted(
            range(len(message.states)), key=lambda n: -len(message.states[n].state or b"")
        )
        for place in by_size:
            state = message.states[place].state
            if state is None or not self._payloads.can_store:
                return
            if _size_of(message) <= RECORD_BYTES_MAX or address_in(state) is not None:
                continue
            part = message.states[place]
            with self._calling(self._link(part.operator_id), "snapshot_state"):
                message.states[place] = replace(part, state=self._payloads.store(plain(state)))

    # Links

    def link(self, operator_id: str) -> Operator | SourceReader:
        """The reader or the operator of a link."""
        link = self._link(operator_id)
        return link.reader or _operator(link)

    @property
    def _reader(self) -> SourceReader:
        reader = self._links[0].reader
        assert reader is not None, "the first link is the source"
        return reader

    def _link(self, operator_id: str) -> _Link:
        for link in self._links:
            if link.operator_id == operator_id:
                return link
        raise AssertionError(
            f"an event for operator {operator_id!r}, which the chain does not have"
        )


def _size_of(message: Payload) -> int:
    return len(payload_type_of(message).encode(message))


def _operator(link: _Link) -> Operator:
    assert link.operator is not None, "every link but the first is an operator"
    return link.operator


def _collect(link: _Link, snapshot: Snapshot, into: AttemptSnapshot) -> None:
    """Add the snapshot of a link; values that are not bytes are refused here, while the link can be named."""
    if snapshot.state is not None:
        state = _bytes("its state", snapshot.state)
        into.states.append(OperatorState(operator_id=link.operator_id, state=state))
    for committable in snapshot.committables:
        content = _bytes("a committable", committable)
        into.committables.append(Committable(operator_id=link.operator_id, content=content))


def _bytes(what: str, value: object) -> bytes:
    if not isinstance(value, bytes):
        raise UsageError(f"{what} is {type(value).__name__}, not bytes")
    return value
