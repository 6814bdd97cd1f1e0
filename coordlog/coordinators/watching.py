"""The enumerator of a growing source: lists again and again until the listing is complete."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from coordlog.coordinators.enumerator import (
    EnumeratorContext,
    SplitEnumerator,
    WeightOf,
    give_waiting,
)
from coordlog.coordinators.listing import PatientListing, Relisted, once_settled
from coordlog.coordinators.splits import NoteEvent, NoteLostSplits
from coordlog.limits import LISTING_TIMEOUT_S
from coordlog.projections.splits.fold import SplitsState
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import (
    EnumeratorState,
    ReleaseSplits,
    Split,
    SplitsDiscovered,
)

__all__ = ["SplitWatch", "WatchingEnumerator"]

_log = logging.getLogger(__name__)

Relist = Callable[[Sequence[Split], frozenset[str], frozenset[str]], Relisted]
"""New listing of the unassigned splits at a start. Arguments: known splits, skipped ids, unassigned ids."""


Release = Callable[[SplitsState, int], Sequence[Payload]]
"""Intents for the input of splits of which a completed checkpoint has every row, and before them facts to record.
Arguments: the state, the checkpoint."""


class SplitWatch(Protocol):
    """Listing of an outside place for new splits. Created for one enumerator."""

    def look(self, known: Sequence[Split], skipped: frozenset[str]) -> SplitsDiscovered | Relisted:
        """The splits that are not in `known`, in the order of their assignment, and facts. On a worker.

        Waits for a new split for a bounded time; an empty result is recorded too. After a result with
        `is_complete` it is not called again. Splits of `known` that it returns again are ignored.

        Args:
            known: The known splits, in the order of discovery; each is created on access.
            skipped: Ids of splits that are never read.
        """
        ...

    def close(self) -> None:
        """Make a waiting `look` return. Any thread."""
        ...


class WatchingEnumerator(SplitEnumerator):
    """Assigns the listed splits at request, small ones several at once, and continues to list meanwhile.

    A split is in the log before it is assigned, and there is no other state: after a restore the
    watch gets the checkpoint's splits as `known`, and lists the others again. A listing that fails
    is repeated for a bounded time, while readers continue: see `PatientListing`. With `relist`, the
    unassigned splits are listed anew at a start before any is assigned: options may have changed. With `release`, the
    input of committed splits is released after each checkpoint.
    """

    def __init__(
        self,
        context: EnumeratorContext,
        watch: SplitWatch,
        *,
        listing_timeout_s: float = LISTING_TIMEOUT_S,
        note_event: NoteEvent | None = None,
        note_lost_splits: NoteLostSplits | None = None,
        note_fact: NoteEvent | None = None,
        kept: bytes | None = None,
        relist: Relist | None = None,
        weight_of: WeightOf | None = None,
        release: Release | None = None,
    ) -> None:
        self._weight_of, self._release = weight_of, release
        self._context, self._watch = context, watch
        self._relist, self._is_relisting = relist, False
        self._note_event, self._note_lost_splits, self._kept = note_event, note_lost_splits, kept
        self._note_fact = note_fact
        self._listing = PatientListing(context, timeout_s=listing_timeout_s)

    def start(self) -> None:
        """Begin to list, unless the log has the end of the listing."""
        if self._context.state.is_discovery_complete:
            _log.info(
                "operator=%s: its listing has ended; only the remaining splits are read",
                self._context.operator_id,
            )
            return
        self._is_relisting = self._relist is not None
        if self._release is None:
            once_settled(self._context, self._begin)
        else:
            self._begin()  # its watch tolerates new input of a name that is being released

    def _begin(self) -> None:
        state = self._context.state
        unread = frozenset(state.unassigned())
        if self._relist is None or not unread:
            self._is_relisting = False
            self._list_again()
            return
        relist = partial(self._relist, state.in_order(), state.skipped(), unread)
        self._listing.begin(lambda: relist, self._relisted)

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """Assign a split, or leave the request open until there is one."""
        self._serve()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """Assign the splits to waiting readers."""
        if self._note_lost_splits is not None:
            self._kept = self._note_lost_splits(self._kept, splits)
        self._serve()

    def add_reader(self, subtask: int) -> None:
        """Send the reader the end of the input again if its checkpoint holds it."""
        state = self._context.state
        if state.is_discovery_complete and state.reader(subtask).has_no_more_in_checkpoint:
            self._context.signal_no_more_splits(subtask)

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Update the kept state: the event is from before the watch, and is redelivered."""
        if self._note_event is not None:
            self._kept = self._note_event(self._kept, event)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit the intents to release the input of splits that the checkpoint has."""
        if self._release is not None and checkpoint_id >= 0:
            for payload in self._release(self._context.state, checkpoint_id):
                if isinstance(payload, ReleaseSplits):
                    self._context.commit(checkpoint_id, payload)
                else:
                    self._context.record(payload)
                    self._noted(payload)

    def snapshot_state(self) -> bytes | None:
        """The kept state of the source's own events, including those from before the watch."""
        return self._kept

    def close(self) -> None:
        """Release a worker that waits for new splits."""
        self._watch.close()

    def _list_again(self) -> None:
        self._listing.begin(self._look, self._looked, self._noted)

    def _look(self) -> Callable[[], SplitsDiscovered | Relisted]:
        state = self._context.state
        return lambda: self._watch.look(state.in_order(), state.skipped())

    def _noted(self, fact: Payload) -> None:
        """Record the state after a fact of a listing: the next listing may only then rely on it."""
        if self._note_fact is not None:
            before = self._kept
            self._kept = self._note_fact(before, fact)
            if self._kept is not None and self._kept != before:
                self._context.record(EnumeratorState(content=self._kept))

    def _relisted(self, _page: SplitsDiscovered) -> None:
        if self._listing.is_exhausted:
            self._is_relisting = False
            self._list_again()
            self._serve()

    def _looked(self, page: SplitsDiscovered) -> None:
        if self._listing.is_exhausted and not page.is_complete:
            self._list_again()
        self._serve()

    def _serve(self) -> None:
        """Answer the open requests, oldest first, until no split is left."""
        context = self._context
        if self._is_relisting:
            return
        unserved = give_waiting(context, self._weight_of)
        if context.state.is_discovery_complete:
            for subtask in unserved:
                context.signal_no_more_splits(subtask)
