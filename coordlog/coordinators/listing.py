"""Listings of a source, made on a worker: their pages, and what becomes of one that fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from coordlog.coordinators.enumerator import listing_pages
from coordlog.errors import CoordlogError, SourceError
from coordlog.limits import (
    LISTING_BACKOFF_MAX_S,
    LISTING_BACKOFF_S,
    LISTING_CALL_S,
    LISTING_TIMEOUT_S,
    PAYLOAD_BYTES_MAX,
    REASON_CHARS_MAX,
)
from coordlog.log.local.call_timeout import NotAnsweredError, answered
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_events import SplitsDiscovered
from coordlog.schemas.source_facts import ListingFailed, SplitsWithdrawn

__all__ = [
    "ListingContext",
    "ListingTries",
    "PatientListing",
    "Relisted",
    "listed_in_time",
    "listed_or_why_not",
]

R = TypeVar("R")

_US = 1_000_000
_DOUBLINGS_MAX = 30
_WITHDRAWN_BYTES = PAYLOAD_BYTES_MAX // 2
"""Of the ids in one `SplitsWithdrawn`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relisted:
    """A listing that is made while splits of an earlier one are known (clause L6)."""

    found: SplitsDiscovered
    """New splits, and known ones as they are now: of those that no reader has had, these replace what was known."""
    withdrawn: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The ids of known splits that no reader has had and that go, by the reason."""


class ListingContext(Protocol):
    """What a listing needs of its coordinator's context; `EnumeratorContext` has it."""

    @property
    def operator_id(self) -> str:
        """The source."""
        ...

    def now_us(self) -> int:
        """The turn's time."""
        ...

    def call_async(
        self,
        work: Callable[[], Payload],
        handler: Callable[[Payload | None, str | None], None],
    ) -> None:
        """Run `work` on a worker."""
        ...

    def schedule(self, delay_s: float, handler: Callable[[], None]) -> None:
        """Run `handler` later."""
        ...

    def fail_job(self, cause: BaseException | str, *, is_final: bool = False) -> None:
        """The source cannot be listed."""
        ...


class ListingTries:
    """What follows a listing that has failed: another try, or the end of the job. On the mailbox.

    A failure that may pass (a store that does not answer) costs no attempt: what was found before is
    read meanwhile, and the history has each try. One that would be the same again (a file that has
    changed), or that lasts, fails the job for good.

    Args:
        context: Of the enumerator.
        timeout_s: How long tries may fail one after the other.
    """

    def __init__(self, context: ListingContext, *, timeout_s: float = LISTING_TIMEOUT_S) -> None:
        self._context, self._timeout_s = context, timeout_s
        self._failing_since_us: int | None = None
        self._count = 0

    def succeeded(self) -> None:
        """One was whole: the next failure is a first one."""
        self._failing_since_us, self._count = None, 0

    def failed(self, failed: ListingFailed, again: Callable[[], None]) -> None:
        """Have `again` called after a pause, or fail the job."""
        now_us = self._context.now_us()
        if self._failing_since_us is None:
            self._failing_since_us = now_us
        self._count += 1
        failing_s = (now_us - self._failing_since_us) / _US
        if not failed.is_retriable:
            self.give_up(failed.problem)
        elif failing_s >= self._timeout_s:
            self.give_up(f"{failed.problem} ({self._count} tries within {failing_s:.0f} s failed)")
        else:
            pause_s = LISTING_BACKOFF_S * 2 ** min(self._count - 1, _DOUBLINGS_MAX)
            left_s = self._timeout_s - failing_s
            self._context.schedule(min(pause_s, LISTING_BACKOFF_MAX_S, left_s), again)

    def give_up(self, problem: str) -> None:
        """Fail the job for good."""
        error = SourceError(
            f"source {self._context.operator_id!r}",
            f"it cannot be listed: {problem}",
            "mend that and run the same command again",
        )
        self._context.fail_job(error, is_final=True)


class PatientListing:
    """A listing that comes page by page, and is tried again where it fails. On the mailbox.

    Args:
        context: Of the enumerator.
        timeout_s: How long tries may fail one after the other.
        is_bounded: Whether one may hang, and is left behind after `LISTING_CALL_S`.
    """

    def __init__(
        self,
        context: ListingContext,
        *,
        timeout_s: float = LISTING_TIMEOUT_S,
        is_bounded: bool = True,
    ) -> None:
        self._context, self._tries = context, ListingTries(context, timeout_s=timeout_s)
        self._is_bounded = is_bounded
        self._pages: deque[SplitsDiscovered | SplitsWithdrawn] = deque()

    def begin(
        self,
        look: Callable[[], Callable[[], SplitsDiscovered | Relisted]],
        found: Callable[[SplitsDiscovered], None],
    ) -> None:
        """List once.

        Args:
            look: Called before each try: what a worker is to do then.
            found: Called with each page, in the turn that has it in the log.
        """
        work = look()

        def handle(result: Payload | None, error: str | None) -> None:
            if isinstance(result, (SplitsDiscovered, SplitsWithdrawn)):
                self._tries.succeeded()
                if self._pages:
                    self._context.call_async(self._pages.popleft, handle)
                if isinstance(result, SplitsDiscovered):
                    found(result)
            elif isinstance(result, ListingFailed):
                self._tries.failed(result, lambda: self.begin(look, found))
            else:
                self._tries.give_up(error or "it gave nothing")

        self._context.call_async(lambda: listed_or_why_not(lambda: self._first_page(work)), handle)

    @property
    def is_exhausted(self) -> bool:
        """Whether no page of the listing is left."""
        return not self._pages

    def _first_page(
        self, work: Callable[[], SplitsDiscovered | Relisted]
    ) -> SplitsDiscovered | SplitsWithdrawn:
        """On a worker; the other pages follow, a turn each. One that hangs is not tried again beside itself."""
        if self._is_bounded:
            found = listed_in_time(self._context.operator_id, lambda: _pages(work()))
        else:
            found = _pages(work())
        self._pages = found
        return self._pages.popleft()


def _pages(
    listing: SplitsDiscovered | Relisted,
) -> deque[SplitsDiscovered | SplitsWithdrawn]:
    """Pages of a listing, in order, at least one, each of which fits a record; the last one is its end, if it has one.

    Splits are withdrawn behind the splits that replace them, and before the end of the listing.
    """
    if isinstance(listing, SplitsDiscovered):
        listing = Relisted(found=listing)
    found = listing.found
    if not listing.withdrawn:
        return deque(listing_pages(found))
    first = SplitsDiscovered(splits=found.splits, is_complete=False)
    last = SplitsDiscovered(splits=[], is_complete=found.is_complete)
    pages: deque[SplitsDiscovered | SplitsWithdrawn] = deque(listing_pages(first))
    for why, names in sorted(listing.withdrawn.items()):
        pages.extend(SplitsWithdrawn(split_ids=page, why=why) for page in _pages_of_names(names))
    pages.append(last)
    return pages


def _pages_of_names(names: Sequence[str]) -> list[list[str]]:
    pages: list[list[str]] = []
    left_bytes = 0
    for name in names:
        size_bytes = len(name.encode()) + 8
        if not pages or size_bytes > left_bytes:
            pages.append([])
            left_bytes = _WITHDRAWN_BYTES
        pages[-1].append(name)
        left_bytes -= size_bytes
    return pages


def listed_in_time(source: str, work: Callable[[], R]) -> R:
    """What `work` returns or raises, which asks a place that may never answer.

    Raises:
        SourceError: It has not come back within `LISTING_CALL_S`; it is left behind on its thread.
    """
    try:
        return answered(work, LISTING_CALL_S)
    except NotAnsweredError as error:
        raise SourceError(
            f"source {source!r}",
            f"its listing has not come back within {LISTING_CALL_S:g} s",
            "see that the place that it lists answers, then run the same command again",
        ) from error


def listed_or_why_not(work: Callable[[], Payload]) -> Payload:
    """What `work` returns, or a `ListingFailed` for what it raises. On a worker."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001, clause A6: it enters as a record
        # Of this package's own errors those that say so; of others nobody knows.
        is_retriable = not isinstance(error, CoordlogError) or error.retriable
        problem = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        return ListingFailed(problem=problem, is_retriable=is_retriable)
