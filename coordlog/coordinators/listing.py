"""Listings of a source: run on a worker, divided into pages, and tried again after failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from coordlog.coordinators.enumerator import listing_pages, pages_of_ids
from coordlog.errors import CoordlogError, SourceError
from coordlog.limits import (
    LISTING_BACKOFF_MAX_S,
    LISTING_BACKOFF_S,
    LISTING_CALL_S,
    LISTING_TIMEOUT_S,
    REASON_CHARS_MAX,
)
from coordlog.log.local.call_timeout import NotAnsweredError, answered
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import ListingFailed, SplitsDiscovered, SplitsWithdrawn

__all__ = [
    "ListingContext",
    "ListingTries",
    "PatientListing",
    "Relisted",
    "SettlingContext",
    "listed_in_time",
    "listed_or_why_not",
    "once_settled",
]

R = TypeVar("R")

_DOUBLINGS_MAX = 30
_SETTLED_S = 1.0
"""Seconds between two looks whether intents are settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relisted:
    """Result of a listing with more than new splits (clause L6)."""

    discovered: SplitsDiscovered
    """New splits, and current versions of known splits that no reader has had, which replace the known ones."""
    withdrawn: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Ids of known splits that are withdrawn, by the reason. No reader has had them."""
    facts: Sequence[Payload] = ()
    """Facts of the source's own and `KnownSplitsForgotten`, which are recorded in this order, before all else."""


class SettlingContext(Protocol):
    """The part of a coordinator's context that `once_settled` needs; `EnumeratorContext` has it."""

    @property
    def is_settling(self) -> bool:
        """Whether an intent of the source has no outcome yet."""
        ...

    def schedule(self, delay_s: float, handler: Callable[[], None]) -> None:
        """Run `handler` later."""
        ...


class ListingContext(Protocol):
    """The part of a coordinator's context that a listing needs; `EnumeratorContext` has it."""

    @property
    def operator_id(self) -> str:
        """Id of the source."""
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
        """Fail the job: the source cannot be listed."""
        ...


@dataclass(slots=True, eq=False)
class _Outage:
    """Tries that have failed, without a success between."""

    count: int = 0
    is_too_long: bool = False
    again: Callable[[], None] | None = None
    """The next try, if it is to begin after a pause."""

    def begin_next(self) -> None:
        """Begin the next try, unless it has begun."""
        again, self.again = self.again, None
        if again is not None:
            again()


class ListingTries:
    """Reaction to a failed listing: another try, or the end of the job. On the mailbox.

    After a transient failure (a store that does not answer) the listing is tried again, while attempts read the
    known splits. A permanent failure (a file that has changed), or a transient one that lasts longer than `timeout_s`,
    fails the job without a restart. A timer measures this time, and no clock that may jump.

    Args:
        context: Context of the enumerator.
        timeout_s: Longest time from the first failed try to the last, if none succeeds between.
    """

    def __init__(self, context: ListingContext, *, timeout_s: float = LISTING_TIMEOUT_S) -> None:
        self._context, self._timeout_s = context, timeout_s
        self._outage: _Outage | None = None

    def succeeded(self) -> None:
        """A listing has succeeded: the next failure counts as the first."""
        self._outage = None

    def failed(self, failure: ListingFailed, again: Callable[[], None]) -> None:
        """Schedule `again` after a pause, or fail the job."""
        if not failure.is_retriable:
            self.give_up(failure.problem)
            return
        outage = self._outage or self._begin_outage()
        outage.count += 1
        if outage.is_too_long:
            tries = f"{outage.count} tries within {self._timeout_s:.0f} s failed"
            self.give_up(f"{failure.problem} ({tries})")
            return
        pause_s = LISTING_BACKOFF_S * 2 ** min(outage.count - 1, _DOUBLINGS_MAX)
        outage.again = again
        self._context.schedule(min(pause_s, LISTING_BACKOFF_MAX_S), outage.begin_next)

    def _begin_outage(self) -> _Outage:
        outage = self._outage = _Outage(is_too_long=self._timeout_s <= 0)

        def end() -> None:
            outage.is_too_long = True
            outage.begin_next()

        if not outage.is_too_long:
            self._context.schedule(self._timeout_s, end)
        return outage

    def give_up(self, problem: str) -> None:
        """Fail the job without a restart."""
        error = SourceError(
            f"source {self._context.operator_id!r}",
            f"it cannot be listed: {problem}",
            "fix this, then run the same command again",
        )
        self._context.fail_job(error, is_final=True)


class PatientListing:
    """A listing whose pages are recorded one by one, a turn each, and which is tried again if it fails. On the mailbox.

    Args:
        context: Context of the enumerator.
        timeout_s: Longest time from the first failed try to the last, if none succeeds between.
        is_bounded: Whether a listing is abandoned after `LISTING_CALL_S`, because the listed place may never answer.
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
        self._pages: deque[Payload] = deque()

    def begin(
        self,
        prepare: Callable[[], Callable[[], SplitsDiscovered | Relisted]],
        on_page: Callable[[SplitsDiscovered], None],
        on_fact: Callable[[Payload], None] | None = None,
    ) -> None:
        """List once.

        Args:
            prepare: Called before each try, on the mailbox. Returns the function that lists, which runs on a worker.
            on_page: Called with each page of discovered splits, in the turn that records the page.
            on_fact: Called with each fact of the source's own, in the turn that records it.
        """
        work = prepare()

        def handle(result: Payload | None, error: str | None) -> None:
            if isinstance(result, ListingFailed):
                self._tries.failed(result, lambda: self.begin(prepare, on_page, on_fact))
            elif result is None:
                self._tries.give_up(error or "the listing returned nothing")
            else:
                self._tries.succeeded()
                if self._pages:
                    self._context.call_async(self._pages.popleft, handle)
                if isinstance(result, SplitsDiscovered):
                    on_page(result)
                elif on_fact is not None:
                    on_fact(result)

        self._context.call_async(lambda: listed_or_why_not(lambda: self._first_page(work)), handle)

    @property
    def is_exhausted(self) -> bool:
        """Whether the listing has no further pages."""
        return not self._pages

    def _first_page(self, work: Callable[[], SplitsDiscovered | Relisted]) -> Payload:
        """List, keep the pages for the turns to come, and return the first. On a worker.

        The next listing begins only after this one has ended or was abandoned.
        """
        if self._is_bounded:
            self._pages = listed_in_time(self._context.operator_id, lambda: _pages(work()))
        else:
            self._pages = _pages(work())
        return self._pages.popleft()


def once_settled(context: SettlingContext, begin: Callable[[], None]) -> None:
    """Begin the first listing of a coordinator that releases nothing itself, once nothing is being released any more.

    A former driver may have left the intent to release input. Until its outcome is in the log, the split of the
    released input is known, and new input of that name would count as a change of it.
    """
    if context.is_settling:
        context.schedule(_SETTLED_S, partial(once_settled, context, begin))
    else:
        begin()


def _pages(listing: SplitsDiscovered | Relisted) -> deque[Payload]:
    """Pages of a listing, in order: at least one, each small enough for a record. Only the last may be `is_complete`.

    Withdrawn splits come after the splits that replace them, and before the end of the listing.
    """
    if isinstance(listing, SplitsDiscovered):
        listing = Relisted(discovered=listing)
    discovered = listing.discovered
    pages: deque[Payload] = deque(listing.facts)
    if not listing.withdrawn:
        pages.extend(listing_pages(discovered))
        return pages
    first = SplitsDiscovered(splits=discovered.splits, is_complete=False)
    last = SplitsDiscovered(splits=[], is_complete=discovered.is_complete)
    pages.extend(listing_pages(first))
    for why, split_ids in sorted(listing.withdrawn.items()):
        pages.extend(SplitsWithdrawn(split_ids=page, why=why) for page in pages_of_ids(split_ids))
    pages.append(last)
    return pages


def listed_in_time(source: str, work: Callable[[], R]) -> R:
    """Result of `work`, a listing of a place that may never answer.

    Raises:
        SourceError: `work` has not ended within `LISTING_CALL_S`. It continues on a thread of its own,
            and its result is ignored.
    """
    try:
        return answered(work, LISTING_CALL_S)
    except NotAnsweredError as error:
        raise SourceError(
            f"source {source!r}",
            f"its listing has not returned within {LISTING_CALL_S:g} s",
            "check that the listed place answers, then run the same command again",
        ) from error


def listed_or_why_not(work: Callable[[], Payload]) -> Payload:
    """Result of `work`, or a `ListingFailed` with its error. On a worker."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001, clause A6: the error is recorded
        # Only errors of this package have the attribute `retriable`; after any other error the listing is tried again.
        is_retriable = not isinstance(error, CoordlogError) or error.retriable
        problem = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        return ListingFailed(problem=problem, is_retriable=is_retriable)
