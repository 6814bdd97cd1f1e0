"""The contract of a source's enumerator, which assigns splits to readers (L1: calls and context)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from coordlog.api.coordinator import CoordinatorContext, EventFuture, SubtaskGateway
from coordlog.errors import AttemptNotRunningError, TooLargeError, UsageError
from coordlog.limits import PAYLOAD_BYTES_MAX, SPLITS_AT_ONCE_MAX, SPLITS_AT_ONCE_WEIGHT
from coordlog.projections.splits.fold import Assigned, SplitsState
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.source_types import AddSplits, NoMoreSplits, Split, SplitsDiscovered

__all__ = [
    "EnumeratorContext",
    "SplitEnumerator",
    "WeightOf",
    "give_waiting",
    "listing_pages",
    "pages_of",
    "pages_of_ids",
]

WeightOf = Callable[[Split], int | None]
"""Approximate number of bytes to read for a split; None if unknown."""

SHARES: Final = 4
"""One answer to a reader has at most 1 / (readers * `SHARES`) of the waiting splits, so that readers end together."""

_PAGE_BYTES = PAYLOAD_BYTES_MAX * 3 // 4
"""Limit of the splits in one `AddSplits` or `SplitsDiscovered`; its encoding stays below `PAYLOAD_BYTES_MAX`."""


_ID_PAGE_BYTES = PAYLOAD_BYTES_MAX // 2
"""Limit of the ids in one `SplitsWithdrawn` or `KnownSplitsForgotten`."""


class EnumeratorContext:
    """Calls that an enumerator may make. Mailbox only, except `fail_job`.

    It keeps only the newest gateway to each subtask. All else, such as whether an attempt is
    alive, is read from the projection, which has this turn's own sends already.
    """

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._gateways: dict[int, SubtaskGateway] = {}

    @property
    def operator_id(self) -> str:
        """Id of the source."""
        return self._context.operator_id

    @property
    def is_batch(self) -> bool:
        """Whether the job runs without checkpoints."""
        return self._context.is_batch

    @property
    def is_redelivery(self) -> bool:
        """Whether the event being handled is delivered again by a restore (D3: exactly once)."""
        return self._context.is_redelivery

    @property
    def state(self) -> SplitsState:
        """The current state of all splits, readers and requests."""
        state: SplitsState = self._context.state
        return state

    def current_parallelism(self) -> int:
        """Number of subtasks."""
        return self._context.current_parallelism()

    def now_us(self) -> int:
        """The turn's time, microseconds since 1970, UTC: the same on a replay."""
        return self._context.now_us()

    def random(self) -> Random:
        """A generator seeded by the turn's place in the log: the same on a replay."""
        return self._context.random()

    def registered_readers(self) -> dict[int, int]:
        """The ready attempts' numbers by subtask, in the order of the subtasks.

        A reader is removed as soon as the log has its end, even before this object is notified: an
        event sent to it then would not be delivered.
        """
        state = self.state
        return {
            subtask: gateway.attempt_number
            for subtask, gateway in sorted(self._gateways.items())
            if state.reader(subtask).attempt_number == gateway.attempt_number
        }

    def waiting_readers(self) -> list[int]:
        """The registered readers with open requests, oldest request first.

        A subtask is listed once per open request.
        """
        state = self.state
        return [
            subtask
            for _, subtask in sorted(
                (request.sequence, subtask)
                for subtask in self.registered_readers()
                for request in state.reader(subtask).open_requests
            )
        ]

    def unassigned_splits(self, count: int | None = None) -> tuple[Split, ...]:
        """The first `count`, or all, of the splits not assigned, in the order of discovery."""
        return self.state.unassigned_splits(count)

    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Send splits to readers, each subtask's in the order of its sequence.

        Raises:
            UsageError: A subtask has no registered reader or was sent `signal_no_more_splits`, or a
                split is assigned already, or skipped. Nothing has been sent then.
        """
        state, readers = self.state, self.registered_readers()
        seen: set[str] = set()
        for subtask, splits in sorted(assignment.items()):
            if subtask not in readers:
                raise UsageError(
                    f"splits were assigned to subtask {subtask}, which has no registered reader: "
                    "assign to `registered_readers`, in `add_reader` at the earliest"
                )
            if splits and state.reader(subtask).no_more_sequence is not None:
                raise UsageError(
                    f"splits were assigned to subtask {subtask} after `signal_no_more_splits`: it "
                    "may have finished"
                )
            for split in splits:
                if split.split_id in state.skips:
                    raise UsageError(
                        f"split {split.split_id!r} was assigned to subtask {subtask}; it is skipped "
                        "(clause J2): assign only splits from `unassigned_splits`"
                    )
                if not state.is_unassigned(split.split_id) or split.split_id in seen:
                    raise UsageError(
                        f"split {split.split_id!r} was assigned to subtask {subtask}; it is not with "
                        "the enumerator: take it from `unassigned_splits`"
                    )
                seen.add(split.split_id)
        for subtask, splits in sorted(assignment.items()):
            for page in pages_of(splits):
                future = self._gateways[subtask].send_event(AddSplits(splits=page))
                split_ids = tuple(split.split_id for split in page)
                future.add_done_callback(partial(self._check_was_taken, split_ids))

    def signal_no_more_splits(self, subtask: int) -> None:
        """Send a reader the end of the input: no split will be assigned to it any more. Repeated calls do nothing.

        Applies to this attempt: the attempt that replaces it may be assigned splits again.

        Raises:
            UsageError: The subtask has no registered reader.
        """
        if self.state.reader(subtask).no_more_sequence is None:
            self.send_event_to_reader(subtask, NoMoreSplits())

    def send_event_to_reader(self, subtask: int, event: Payload) -> EventFuture:
        """Send an event of the source's own.

        Raises:
            UsageError: The subtask has no registered reader.
        """
        if subtask not in self.registered_readers():
            raise UsageError(
                f"an event was sent to subtask {subtask}, which has no registered reader: keep "
                "the event and send it in `add_reader`"
            )
        return self._gateways[subtask].send_event(event)

    def record(self, fact: Payload) -> None:
        """Append a fact: `SplitsDiscovered` adds splits."""
        self._context.record(fact)

    def commit(self, checkpoint_id: int, intent: Payload) -> None:
        """Append an intent, which the provider's `sink` settles once it is in the log."""
        self._context.commit(checkpoint_id, intent)

    @property
    def is_settling(self) -> bool:
        """Whether an intent of the source has no outcome yet."""
        return self._context.is_settling

    def call_async(
        self,
        work: Callable[[], Payload],
        handler: Callable[[Payload | None, str | None], None],
    ) -> None:
        """Run `work` on a worker; a `SplitsDiscovered` that it returns is applied before `handler`.

        Not part of a checkpoint: `start` must repeat a call whose result the state does not have.
        """
        self._context.call_async(work, handler)

    def schedule(self, delay_s: float, handler: Callable[[], None]) -> None:
        """Run `handler` after `delay_s` seconds; not part of a checkpoint."""
        self._context.schedule(delay_s, handler)

    def fail_job(self, cause: BaseException | str, *, is_final: bool = False) -> None:
        """Fail the job globally; `is_final` if a retry would fail in the same way. Any thread."""
        self._context.fail_job(cause, is_final=is_final)

    # Called by the coordinator that owns this object.

    def reader_is_ready(self, subtask: int, gateway: SubtaskGateway) -> None:
        """Register a reader. For the coordinator only."""
        self._gateways[subtask] = gateway

    def _check_was_taken(self, split_ids: Sequence[str], future: EventFuture) -> None:
        """Fail if a subtask completed while splits to it were in flight: they would be lost."""
        try:
            future.result()
        except AttemptNotRunningError as error:
            state = self.state
            if state.reader(error.subtask).is_completed:
                lost = [i for i in split_ids if isinstance(state.splits.place(i), Assigned)]
                if lost:
                    raise UsageError(
                        f"subtask {error.subtask} completed while split {lost[0]!r} was in flight "
                        "to it: a reader must not return END before `notify_no_more_splits`"
                    ) from error


class SplitEnumerator(ABC):
    """Assigns splits to subtasks. Created anew per epoch and per global reset.

    All calls run on the mailbox, each inside a turn. The state of splits, readers and requests is
    in `context.state`; any further state must be in `snapshot_state`.
    """

    def start(self) -> None:
        """Begin. Also called after a resume and after a reset: check the state first."""

    @abstractmethod
    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """A registered reader requests a split.

        Answer now or later with `assign_splits` or `signal_no_more_splits`; until then the reader is in
        `waiting_readers`. The request of a lost reader arrives when the next attempt is ready, if
        that attempt's checkpoint holds it; `finished_split_id` is None then.
        """

    @abstractmethod
    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """A reader has been reset; `splits` are unassigned again, oldest first.

        Called even if `splits` is empty. The subtask's next reader is ready later.
        """

    def add_reader(self, subtask: int) -> None:
        """An attempt is ready; its open requests follow this call."""

    def snapshot_state(self) -> bytes | None:
        """State that the enumerator keeps besides `context.state`, or None if it keeps none.

        Called after each call of this object. A changed state is recorded, and passed to the factory
        of the next enumerator.
        """
        return None

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """An event of the source's own, from a reader."""
        raise NotImplementedError(f"{type(self).__name__} handles no events of readers")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint has completed; -1 at a batch job's end."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint will not complete."""

    def close(self) -> None:
        """Free all resources. On a worker, once."""


def pages_of(splits: Sequence[Split]) -> Iterator[list[Split]]:
    """The splits in order, in lists that each one record can hold.

    Raises:
        TooLargeError: A split exceeds a record alone.
    """
    declared = payload_type_of(SplitsDiscovered)
    page: list[Split] = []
    page_bytes = 0
    for split in splits:
        size_bytes = len(split.split_id.encode()) + len(split.content) + 16
        if size_bytes > _PAGE_BYTES:
            raise TooLargeError(
                f"split {split.split_id!r} in a {declared.key}", size_bytes, _PAGE_BYTES
            )
        if page and page_bytes + size_bytes > _PAGE_BYTES:
            yield page
            page, page_bytes = [], 0
        page.append(split)
        page_bytes += size_bytes
    if page:
        yield page


def listing_pages(listing: SplitsDiscovered) -> deque[SplitsDiscovered]:
    """Pages of a listing, in order, at least one, each within a record. Only the last one may be `is_complete`.

    Raises:
        TooLargeError: A split exceeds a record alone.
        UsageError: Two different splits have one id: the log names work by it, so that only one would be read.
    """
    by_id: dict[str, Split] = {}
    for split in listing.splits:
        if by_id.setdefault(split.split_id, split) != split:
            raise UsageError(
                f"the listing has two different splits with the id {split.split_id!r}, and only one would be read: "
                "give each split an id of its own"
            )
    pages = list(pages_of(listing.splits)) or [[]]
    last = len(pages) - 1
    return deque(
        SplitsDiscovered(splits=page, is_complete=listing.is_complete and number == last)
        for number, page in enumerate(pages)
    )


def give_waiting(context: EnumeratorContext, weight_of: WeightOf | None = None) -> Sequence[int]:
    """Answer the open requests, oldest first; returns the subtasks that got no split.

    Args:
        context: The enumerator's context.
        weight_of: Weight of a split. With it one answer has several splits if they are small, because an answer
            costs an append; without it each has one.
    """
    unserved: list[int] = []
    for subtask in context.waiting_readers():
        if not context.state.reader(subtask).owed:
            continue  # several splits at once close several requests
        splits = _next_splits(context, weight_of)
        if splits:
            context.assign_splits({subtask: splits})
        else:
            unserved.append(subtask)
    return unserved


def _next_splits(context: EnumeratorContext, weight_of: WeightOf | None) -> Sequence[Split]:
    """The next splits for one reader, in the order of discovery; empty if none is left."""
    state = context.state
    left = state.splits.end - state.fresh_from + len(state.passed_over)
    allowed = min(SPLITS_AT_ONCE_MAX, left // (context.current_parallelism() * SHARES))
    # In batch a reader reports the ends of small splits together, so that it is not known which one of several has
    # killed a process. Those of a lost reader are assigned one by one: the next loss names the split.
    is_again = context.is_batch and bool(state.passed_over)
    if weight_of is None or is_again or allowed <= 1:
        return context.unassigned_splits(1)
    taken: list[Split] = []
    total = 0
    for split in context.unassigned_splits(allowed):
        weight = weight_of(split)
        total += SPLITS_AT_ONCE_WEIGHT if weight is None else weight
        if taken and total > SPLITS_AT_ONCE_WEIGHT:
            break
        taken.append(split)
        if total >= SPLITS_AT_ONCE_WEIGHT:
            break
    return next(pages_of(taken), [])


def pages_of_ids(split_ids: Sequence[str]) -> list[list[str]]:
    """The ids in order, in lists that each one record can hold."""
    pages: list[list[str]] = []
    free_bytes = 0
    for split_id in split_ids:
        size_bytes = len(split_id.encode()) + 8
        if not pages or size_bytes > free_bytes:
            pages.append([])
            free_bytes = _ID_PAGE_BYTES
        pages[-1].append(split_id)
        free_bytes -= size_bytes
    return pages
