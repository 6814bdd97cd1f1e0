"""The contract of a source's enumerator (clause L1): who gets which split, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random

from coordlog.api.coordinator import CoordinatorContext, EventFuture, SubtaskGateway
from coordlog.errors import AttemptNotRunningError, TooLargeError, UsageError
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.projections.splits.fold import Assigned, SplitsState
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.source_events import AddSplits, NoMoreSplits, Split, SplitsDiscovered

__all__ = [
    "EnumeratorContext",
    "SplitEnumerator",
    "give_waiting",
    "listing_pages",
    "pages_of",
]

_PAGE_BYTES = PAYLOAD_BYTES_MAX * 3 // 4
"""Of one `AddSplits` or `SplitsDiscovered`, so that its encoding stays below the limit."""


class EnumeratorContext:
    """What an enumerator may call. Mailbox only, `fail_job` apart.

    It keeps nothing but the newest gateway to each subtask; whether its attempt lives, and all
    else, is read from the projection, where this turn's own sends already are.
    """

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._gateways: dict[int, SubtaskGateway] = {}

    @property
    def operator_id(self) -> str:
        """The source."""
        return self._context.operator_id

    @property
    def is_batch(self) -> bool:
        """Whether the job runs without checkpoints."""
        return self._context.is_batch

    @property
    def is_redelivery(self) -> bool:
        """Whether the event being handled is delivered again by a restore (clause D3)."""
        return self._context.is_redelivery

    @property
    def state(self) -> SplitsState:
        """Where every split is, as of now."""
        state: SplitsState = self._context.state
        return state

    def current_parallelism(self) -> int:
        """How many subtasks there are."""
        return self._context.current_parallelism()

    def now_us(self) -> int:
        """The turn's time, microseconds since 1970, UTC: the same on a replay."""
        return self._context.now_us()

    def random(self) -> Random:
        """Chance seeded by the turn's place in the log: the same on a replay."""
        return self._context.random()

    def registered_readers(self) -> dict[int, int]:
        """The ready attempts' numbers by subtask, in the order of the subtasks.

        A reader is gone from the moment at which the log has its end, although this object has not
        been told yet: what was sent to it then would reach nobody.
        """
        state = self.state
        return {
            subtask: gateway.attempt_number
            for subtask, gateway in sorted(self._gateways.items())
            if state.reader(subtask).attempt_number == gateway.attempt_number
        }

    def waiting_readers(self) -> list[int]:
        """The registered readers whose requests nothing answers, oldest request first.

        A subtask stands here once for each of its requests.
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
        """Send splits to readers, each subtask's in the order given.

        Raises:
            UsageError: A subtask has no registered reader or has been told that no splits will
                come, or a split is not with the enumerator. Nothing has been sent then.
        """
        state, readers = self.state, self.registered_readers()
        seen: set[str] = set()
        for subtask, splits in sorted(assignment.items()):
            if subtask not in readers:
                raise UsageError(
                    f"splits were assigned to subtask {subtask}, which has no registered reader: "
                    "assign to `registered_readers`, in `add_reader` at the earliest"
                )
            if splits and state.reader(subtask).told_no_more is not None:
                raise UsageError(
                    f"splits were assigned to subtask {subtask} after `signal_no_more_splits`: it "
                    "may have finished"
                )
            for one in splits:
                if one.split_id in state.skips:
                    raise UsageError(
                        f"split {one.split_id!r} was assigned to subtask {subtask}; it is skipped "
                        "(clause J2): take what is assigned from `unassigned_splits`"
                    )
                if not state.is_unassigned(one.split_id) or one.split_id in seen:
                    raise UsageError(
                        f"split {one.split_id!r} was assigned to subtask {subtask}; it is not with "
                        "the enumerator: take it from `unassigned_splits`"
                    )
                seen.add(one.split_id)
        for subtask, splits in sorted(assignment.items()):
            for page in pages_of(splits):
                future = self._gateways[subtask].send_event(AddSplits(splits=page))
                names = tuple(one.split_id for one in page)
                future.add_done_callback(partial(self._check_was_taken, names))

    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that no split will be assigned to it any more; once, however often called.

        It holds for this attempt: a replaced one may be assigned splits again.

        Raises:
            UsageError: The subtask has no registered reader.
        """
        if self.state.reader(subtask).told_no_more is None:
            self.send_event_to_reader(subtask, NoMoreSplits())

    def send_event_to_reader(self, subtask: int, event: Payload) -> EventFuture:
        """Send an event of the source's own.

        Raises:
            UsageError: The subtask has no registered reader.
        """
        if subtask not in self.registered_readers():
            raise UsageError(
                f"an event was sent to subtask {subtask}, which has no registered reader: keep "
                "what is owed and send it in `add_reader`"
            )
        return self._gateways[subtask].send_event(event)

    def record(self, fact: Payload) -> None:
        """Append a fact: `SplitsDiscovered` adds splits."""
        self._context.record(fact)

    def call_async(
        self,
        work: Callable[[], Payload],
        handler: Callable[[Payload | None, str | None], None],
    ) -> None:
        """Run `work` on a worker; a `SplitsDiscovered` that it returns is applied before `handler`.

        Not part of a checkpoint: `start` begins again what the state still waits for.
        """
        self._context.call_async(work, handler)

    def schedule(self, delay_s: float, handler: Callable[[], None]) -> None:
        """Run `handler` after `delay_s` seconds; not part of a checkpoint."""
        self._context.schedule(delay_s, handler)

    def fail_job(self, cause: BaseException | str, *, is_final: bool = False) -> None:
        """Fail the job globally; for good, where trying again would find the same. Any thread."""
        self._context.fail_job(cause, is_final=is_final)

    # What the coordinator that owns this does with it.

    def reader_is_ready(self, subtask: int, gateway: SubtaskGateway) -> None:
        """Register a reader. For the coordinator only."""
        self._gateways[subtask] = gateway

    def _check_was_taken(self, names: Sequence[str], future: EventFuture) -> None:
        """A subtask that completes with splits on their way to it would lose them: fail instead."""
        try:
            future.result()
        except AttemptNotRunningError as error:
            state = self.state
            if state.reader(error.subtask).is_completed:
                lost = [one for one in names if isinstance(state.splits.place(one), Assigned)]
                if lost:
                    raise UsageError(
                        f"subtask {error.subtask} completed while split {lost[0]!r} was on its way "
                        "to it: a reader must not say END before `notify_no_more_splits`"
                    ) from error


class SplitEnumerator(ABC):
    """Decides which subtask gets which split. Made anew per epoch and per global reset.

    All calls run on the mailbox, each inside a turn. What it knows of splits, readers and requests
    is in `context.state`; what it keeps beside that is in `snapshot_state`.
    """

    def start(self) -> None:
        """Begin. Called again after a resume and after a reset: look at the state first."""

    @abstractmethod
    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """A registered reader asks for a split.

        Answer now with `assign_splits` or `signal_no_more_splits`, or later: until then it is among
        `waiting_readers`. Requests of readers that are gone are handed over when the next attempt
        is ready, if that attempt's checkpoint holds them; `finished_split_id` is None then.
        """

    @abstractmethod
    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """A reader has been reset; `splits` are with the enumerator again, oldest first.

        Called even where there are none. The subtask's next reader is ready later.
        """

    def add_reader(self, subtask: int) -> None:
        """An attempt is ready; its open requests are handed over after this."""

    def snapshot_state(self) -> bytes | None:
        """What this keeps beside `context.state`, or None where that is nothing.

        Called after each call of this object; what has changed is recorded, and is given to the
        factory of the next object.
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
        """Free what is held. On a worker, once."""


def pages_of(splits: Sequence[Split]) -> Iterator[list[Split]]:
    """The splits in lists that each fit a record, in order.

    Raises:
        TooLargeError: One split alone does not fit.
    """
    declared = payload_type_of(SplitsDiscovered)
    page: list[Split] = []
    page_bytes = 0
    for one in splits:
        size_bytes = len(one.split_id.encode()) + len(one.content) + 16
        if size_bytes > _PAGE_BYTES:
            raise TooLargeError(
                f"split {one.split_id!r} in a {declared.key}", size_bytes, _PAGE_BYTES
            )
        if page and page_bytes + size_bytes > _PAGE_BYTES:
            yield page
            page, page_bytes = [], 0
        page.append(one)
        page_bytes += size_bytes
    if page:
        yield page


def listing_pages(found: SplitsDiscovered) -> deque[SplitsDiscovered]:
    """Pages of a listing, in order, at least one, each of which fits a record; the last one is its end, if it has one.

    Raises:
        TooLargeError: One split alone does not fit.
    """
    pages = list(pages_of(found.splits)) or [[]]
    last = len(pages) - 1
    return deque(
        SplitsDiscovered(splits=page, is_complete=found.is_complete and number == last)
        for number, page in enumerate(pages)
    )


def give_waiting(context: EnumeratorContext) -> Sequence[int]:
    """Answer the open requests, oldest first: a split each; the subtasks for whom there is none."""
    waiting = context.waiting_readers()
    splits = context.unassigned_splits(len(waiting))
    for subtask, split in zip(waiting, splits, strict=False):
        context.assign_splits({subtask: [split]})
    return waiting[len(splits) :]
