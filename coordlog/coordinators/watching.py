"""An enumerator of a source that goes on growing: looks again and again, until there is an end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from coordlog.coordinators.enumerator import (
    EnumeratorContext,
    SplitEnumerator,
    give_waiting,
)
from coordlog.coordinators.listing import PatientListing, Relisted
from coordlog.coordinators.splits import NoteBack, NoteEvent
from coordlog.limits import LISTING_TIMEOUT_S
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_events import Split, SplitsDiscovered

__all__ = ["SplitWatch", "WatchingEnumerator"]

_log = logging.getLogger(__name__)

Relist = Callable[[Sequence[Split], frozenset[str], frozenset[str]], Relisted]
"""What the splits are now that wait at the start: of all that is known, what is skipped, and what waits."""


class SplitWatch(Protocol):
    """Looks for splits outside. Made for one enumerator."""

    def look(self, known: Sequence[Split], skipped: frozenset[str]) -> SplitsDiscovered:
        """What has come beside `known`, in the order in which it is to be assigned. On a worker.

        `known` is in the order of discovery, and makes each split when it is asked for.

        Waits until something has, for a bounded time: what it returns is appended, found or not.
        With `is_complete` nothing more will come, and it is not called again. Splits of `known`
        that it returns again change nothing. What is `skipped`, by id, is not read, whatever
        becomes of it.
        """
        ...

    def close(self) -> None:
        """Make a `look` that waits return. Any thread."""
        ...


class WatchingEnumerator(SplitEnumerator):
    """Gives out what has been found, one split for each request, and looks on meanwhile.

    What was found is in the log before it is assigned, and nothing else is remembered: after a
    restore the watch is told what the checkpoint knows, and finds the rest again. A look that fails
    is repeated for a bounded time, while readers go on: see `PatientListing`. With `relist`, what
    waits at the start is listed anew before any of it is given out: options may have changed since.
    """

    def __init__(
        self,
        context: EnumeratorContext,
        watch: SplitWatch,
        *,
        listing_timeout_s: float = LISTING_TIMEOUT_S,
        note_event: NoteEvent | None = None,
        note_back: NoteBack | None = None,
        kept: bytes | None = None,
        relist: Relist | None = None,
    ) -> None:
        self._context, self._watch = context, watch
        self._relist, self._is_relisting = relist, False
        self._note_event, self._note_back, self._kept = note_event, note_back, kept
        self._listing = PatientListing(context, timeout_s=listing_timeout_s)

    def start(self) -> None:
        """Look, unless the log says that nothing more will come."""
        if self._context.state.is_discovery_complete:
            _log.info(
                "operator=%s: its listing has ended; only what is left is read",
                self._context.operator_id,
            )
            return
        state = self._context.state
        unread = frozenset(state.unassigned())
        if self._relist is None or not unread:
            self._look_on()
            return
        relist = partial(self._relist, state.in_order(), state.skipped(), unread)
        self._is_relisting = True
        self._listing.begin(lambda: relist, self._relisted)

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """Answer it, or let it wait for the next find."""
        self._serve()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """Give them to those who wait."""
        if self._note_back is not None:
            self._kept = self._note_back(self._kept, splits)
        self._serve()

    def add_reader(self, subtask: int) -> None:
        """Tell it what its subtask is owed without being asked."""
        state = self._context.state
        if state.is_discovery_complete and state.reader(subtask).is_told_in_checkpoint:
            self._context.signal_no_more_splits(subtask)

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Keep what the source makes of it: it is of a time without a watch, and delivered again."""
        if self._note_event is not None:
            self._kept = self._note_event(self._kept, event)

    def snapshot_state(self) -> bytes | None:
        """What is kept of the source's own events, of a time without a watch too."""
        return self._kept

    def close(self) -> None:
        """Let a worker that waits go."""
        self._watch.close()

    def _look_on(self) -> None:
        self._listing.begin(self._look, self._looked)

    def _look(self) -> Callable[[], SplitsDiscovered]:
        state = self._context.state
        return lambda: self._watch.look(state.in_order(), state.skipped())

    def _relisted(self, found: SplitsDiscovered) -> None:
        if self._listing.is_exhausted:
            self._is_relisting = False
            self._look_on()
            self._serve()

    def _looked(self, found: SplitsDiscovered) -> None:
        if self._listing.is_exhausted and not found.is_complete:
            self._look_on()
        self._serve()

    def _serve(self) -> None:
        """Answer the open requests, oldest first: a split each, as far as they go."""
        context = self._context
        if self._is_relisting:
            return
        left = give_waiting(context)
        if context.state.is_discovery_complete:
            for subtask in left:
                context.signal_no_more_splits(subtask)
