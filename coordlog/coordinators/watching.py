"""An enumerator of a source that goes on growing: looks again and again, until there is an end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from coordlog.schemas.payload import Payload
from coordlog.schemas.source_events import Split, SplitsDiscovered

from .enumerator import (
    EnumeratorContext,
    SplitEnumerator,
    give_waiting,
    listing_pages,
    not_listed,
)

__all__ = ["SplitWatch", "WatchingEnumerator"]

_log = logging.getLogger(__name__)


class SplitWatch(Protocol):
    """Looks for splits outside. Made for one enumerator."""

    def look(self, known: Sequence[Split]) -> SplitsDiscovered:
        """What has come beside `known`, in the order in which it is to be assigned. On a worker.

        Waits until something has, for a bounded time: what it returns is appended, found or not.
        With `is_complete` nothing more will come, and it is not called again. Splits of `known`
        that it returns again change nothing.
        """
        ...

    def close(self) -> None:
        """Make a `look` that waits return. Any thread."""
        ...


class WatchingEnumerator(SplitEnumerator):
    """Gives out what has been found, one split for each request, and looks on meanwhile.

    What was found is in the log before it is assigned, and nothing else is remembered: after a
    restore the watch is told what the checkpoint knows, and finds the rest again.
    """

    def __init__(self, context: EnumeratorContext, watch: SplitWatch) -> None:
        self._context, self._watch = context, watch
        self._pages: deque[SplitsDiscovered] = deque()

    def start(self) -> None:
        """Look, unless the log says that nothing more will come."""
        if self._context.state.is_discovery_complete:
            _log.info(
                "operator=%s: its listing has ended; only what is left is read",
                self._context.operator_id,
            )
            return
        self._look_on()

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """Answer it, or let it wait for the next find."""
        self._serve()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """Give them to those who wait."""
        self._serve()

    def add_reader(self, subtask: int) -> None:
        """Tell it what its subtask is owed without being asked."""
        state = self._context.state
        if state.is_discovery_complete and state.reader(subtask).is_told_in_checkpoint:
            self._context.signal_no_more_splits(subtask)

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Nothing: such an event is of a time without a watch, and delivered again."""

    def close(self) -> None:
        """Let a worker that waits go."""
        self._watch.close()

    def _look_on(self) -> None:
        known = self._context.state.splits
        self._context.call_async(
            # A worker makes the list: a persistent map may be read by any thread.
            lambda: self._look([one.split for _, one in sorted(known.items())]),
            self._looked,
        )

    def _look(self, known: Sequence[Split]) -> SplitsDiscovered:
        """The first page of what was found. On a worker; the other pages follow, a turn each."""
        found = self._watch.look(known)
        self._pages = listing_pages(found)
        return self._pages.popleft()

    def _looked(self, result: Payload | None, error: str | None) -> None:
        context = self._context
        if error is not None:
            context.fail_job(not_listed(context, error))
            return
        assert isinstance(result, SplitsDiscovered), "`_look` returns no other type"
        if self._pages:
            context.call_async(self._pages.popleft, self._looked)
        elif not result.is_complete:
            self._look_on()
        self._serve()

    def _serve(self) -> None:
        """Answer the open requests, oldest first: a split each, as far as they go."""
        context = self._context
        left = give_waiting(context)
        if context.state.is_discovery_complete:
            for subtask in left:
                context.signal_no_more_splits(subtask)
