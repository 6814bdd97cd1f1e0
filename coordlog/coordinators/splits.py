"""The coordinator of a source: lists splits, assigns them, takes them back after a reset (L1 to L5: sources)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
    SubtaskGateway,
)
from coordlog.coordinators.enumerator import (
    EnumeratorContext,
    SplitEnumerator,
    give_waiting,
)
from coordlog.coordinators.listing import PatientListing, Relisted
from coordlog.errors import OptionError, SourceError
from coordlog.limits import LISTING_TIMEOUT_S
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.snapshot.splits_codec import LISTED_SPLITS, SPLITS
from coordlog.projections.splits.fold import SplitsState
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import (
    AddSplits,
    EnumeratorState,
    ListingFailed,
    ListingStarted,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
    SplitsWithdrawn,
)

__all__ = [
    "SPLIT_PAYLOADS",
    "Assignment",
    "DefaultEnumerator",
    "EnumeratorContext",
    "SplitCoordinator",
    "SplitCoordinatorProvider",
    "SplitEnumerator",
]

SPLIT_PAYLOADS: Final[tuple[type[Payload], ...]] = (
    AddSplits,
    NoMoreSplits,
    RequestSplit,
    SplitsDiscovered,
    ListingStarted,
    ListingFailed,
    EnumeratorState,
    SplitsWithdrawn,
)
"""Payload types that the fold of splits reads, for every source."""

Assignment = Literal["pull", "static"]
DiscoverAgain = Callable[
    [Sequence[Split], bytes | None, frozenset[str], frozenset[str]], SplitsDiscovered | Relisted
]
Listing = Callable[[], SplitsDiscovered | Relisted]
NoteEvent = Callable[[bytes | None, Payload], bytes | None]
NoteBack = Callable[[bytes | None, Sequence[Split]], bytes | None]
EnumeratorFactory = Callable[[EnumeratorContext, bytes | None], SplitEnumerator]


class DefaultEnumerator(SplitEnumerator):
    """Lists once per start of the job, then assigns the listed splits.

    `pull`: one split for each request, in the order of discovery, so that a slow subtask gets
    fewer. `static`: the splits are dealt out round robin, by the order of discovery, to all
    subtasks; a subtask gets the same splits again when its attempt is replaced.

    Args:
        context: Calls that the enumerator may make.
        discover: The listing of all splits; blocks, runs on a worker.
        assignment: See above.
        allow_empty: Whether a listing without splits is allowed; if not, it fails the job.
        discover_again: The listing if splits are known: the job was finished, or went back to its
            start, or had a watch before. Its arguments: the known splits, the kept state, the ids of
            the skipped splits, and the ids of the splits that no reader has had. It may return a
            split of the last group again to replace it, or withdraw it; other known splits that it
            returns are ignored, by their ids. Without it `discover`.
        note_event: New kept state, from the old one and an event of the source's own.
        note_back: New kept state, from the old one and the splits that a reader has lost: the
            source's own events about these are void.
        kept: State that the former enumerator kept.
        listing_timeout_s: Limit of the time for which attempts to list may fail one after the other,
            seconds; see `PatientListing`.
        is_bounded: Whether a listing may hang and has a time limit. False for one without I/O.
    """

    def __init__(
        self,
        context: EnumeratorContext,
        discover: Callable[[], SplitsDiscovered],
        *,
        assignment: Assignment = "pull",
        allow_empty: bool = False,
        discover_again: DiscoverAgain | None = None,
        note_event: NoteEvent | None = None,
        note_back: NoteBack | None = None,
        kept: bytes | None = None,
        listing_timeout_s: float = LISTING_TIMEOUT_S,
        is_bounded: bool = True,
    ) -> None:
        self._context, self._discover = context, discover
        self._discover_again, self._note_event, self._kept = discover_again, note_event, kept
        self._note_back = note_back
        self._assignment, self._allow_empty = assignment, allow_empty
        self._listing = PatientListing(context, timeout_s=listing_timeout_s, is_bounded=is_bounded)

    def start(self) -> None:
        """List, unless the state has a whole listing."""
        context = self._context
        if context.state.is_discovery_complete:
            return
        context.record(ListingStarted())
        state = context.state  # its splits were read, or are being read
        discover: Listing = self._discover
        again = self._discover_again
        if again is not None and state.splits:
            unread = frozenset(state.unassigned())
            discover = partial(again, state.in_order(), self._kept, state.skipped(), unread)
        self._listing.begin(lambda: partial(self._list, discover), self._listed)

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """Assign a split, unless the listing is in progress."""
        self._serve()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """Assign the splits to waiting readers."""
        if self._note_back is not None:
            self._kept = self._note_back(self._kept, splits)
        self._serve()

    def add_reader(self, subtask: int) -> None:
        """Send the reader its static splits, or again the end of the input."""
        state = self._context.state
        if not state.is_discovery_complete:
            return
        if self._assignment == "static":
            self._deal([subtask])
        elif state.reader(subtask).is_told_in_checkpoint:
            self._context.signal_no_more_splits(subtask)

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Update the kept state with `note_event`."""
        if self._note_event is None:
            super().handle_source_event(subtask, attempt_number, event)
        else:
            self._kept = self._note_event(self._kept, event)

    def snapshot_state(self) -> bytes | None:
        """The kept state: see `note_event`."""
        return self._kept

    def _list(self, discover: Listing) -> SplitsDiscovered | Relisted:
        """A complete listing. On a worker."""
        listing = discover()
        discovered = listing.discovered if isinstance(listing, Relisted) else listing
        if not discovered.is_complete:
            raise SourceError(
                f"source {self._context.operator_id!r}",
                "its listing is not complete, and this enumerator lists once",
                "give the provider an `enumerator` of your own that lists again",
            )
        return listing

    def _listed(self, page: SplitsDiscovered) -> None:
        context = self._context
        if not page.is_complete:
            return
        if not context.state.splits and not self._allow_empty:
            context.fail_job(
                SourceError(
                    f"source {context.operator_id!r}",
                    "its listing has found no splits",
                    "see that the listed place has input, or set `allow_empty`",
                ),
                is_final=True,
            )
            return
        if self._assignment == "static":
            self._deal(list(context.registered_readers()))
        else:
            self._serve()

    def _serve(self) -> None:
        """Answer the open requests, oldest first, with a split each, until no split is left."""
        context = self._context
        if not context.state.is_discovery_complete or self._assignment == "static":
            return
        for subtask in give_waiting(context):
            context.signal_no_more_splits(subtask)

    def _deal(self, subtasks: Sequence[int]) -> None:
        """Send these subtasks their unassigned splits, and the end of the input."""
        context = self._context
        state, parallelism = context.state, context.current_parallelism()
        dealt: dict[int, list[Split]] = {subtask: [] for subtask in subtasks}
        for split_id in state.unassigned():
            ordinal = state.splits.ordinal(split_id)
            owner = ordinal % parallelism
            if owner in dealt:
                dealt[owner].append(state.splits.split_at(ordinal))
        context.assign_splits(dealt)
        for subtask in sorted(dealt):
            context.signal_no_more_splits(subtask)


class SplitCoordinator(EventSourcedCoordinator[SplitsState]):
    """Coordinator of a source: the enumerator decides, the projection `SPLITS` holds all state.

    Requests without a registered reader (redelivered by a restore, or part of the checkpoint that a
    replaced attempt begins from) stay in the projection. The enumerator gets them when the next
    attempt is ready (D3, D5: exactly once after a restore).
    """

    def __init__(self, context: CoordinatorContext, factory: EnumeratorFactory) -> None:
        super().__init__(context)
        self._factory = factory
        self._readers = EnumeratorContext(context)
        self._enumerator: SplitEnumerator | None = None

    def start(self) -> None:
        """Create the enumerator, with its kept state, and start it."""
        self._enumerator = self._factory(self._readers, self.state.enumerator_state)
        self._enumerator.start()
        self._note()

    def close(self) -> None:
        """Close the enumerator, if it was created."""
        if self._enumerator is not None:
            self._enumerator.close()

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Pass a request or another event to the enumerator."""
        if not isinstance(event, RequestSplit):
            self._started.handle_source_event(subtask, attempt_number, event)
        elif subtask in self._readers.waiting_readers():
            self._started.handle_split_request(subtask, event.finished_split_id)
        self._note()

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Register the reader; then pass the requests of its checkpoint to the enumerator."""
        self._readers.reader_is_ready(subtask, gateway)
        self._started.add_reader(subtask)
        for _ in range(self.state.reader(subtask).owed):
            if self.state.reader(subtask).owed:
                self._started.handle_split_request(subtask, None)
        self._note()

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Pass the splits that the reader has lost to the enumerator (L4: splits return)."""
        state = self.state
        back = [state.splits[split_id].split for split_id in state.reader(subtask).given_back]
        self._started.add_splits_back(back, subtask)
        self._note()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the enumerator. Fails if all subtasks have ended and splits are unassigned."""
        started = self._started
        self._check_all_read()
        started.notify_checkpoint_complete(checkpoint_id)
        self._note()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the enumerator."""
        self._started.notify_checkpoint_aborted(checkpoint_id)
        self._note()

    def _check_all_read(self) -> None:
        """Fail if all subtasks have ended and splits are unassigned: the input would seem to be read in full."""
        state = self.state
        subtasks = range(self.context.current_parallelism())
        if not all(state.reader(subtask).is_completed for subtask in subtasks):
            return
        unassigned = state.unassigned()
        if unassigned:
            raise SourceError(
                f"source {self.context.operator_id!r}",
                f"all its subtasks have ended, and {len(unassigned)} of {len(state.splits)} splits were "
                f"given to none of them, the first {unassigned[0]!r}",
                "see that the enumerator calls `signal_no_more_splits` only if no split is left",
            )

    @property
    def _started(self) -> SplitEnumerator:
        assert self._enumerator is not None, "`start` is called first"
        return self._enumerator

    def _note(self) -> None:
        """Record the enumerator's own state, if it has changed."""
        content = self._started.snapshot_state()
        if content is not None and content != self.state.enumerator_state:
            self.context.record(EnumeratorState(content=content))


class SplitCoordinatorProvider(CoordinatorProvider):
    """Makes a source's coordinators.

    Whether a finished split stays finished in batch (L4: splits return) depends on the whole chain, not
    on the source: each `SPLIT_FINISHED` records it.

    Args:
        operator_id: Id of the source.
        discover: Lists all splits, once; see `DefaultEnumerator`.
        note_event: With `discover`: new kept state after an event of the source's own.
        note_back: With `discover`: new kept state after a reader has lost splits.
        enumerator: Instead of `discover`: creates the source's own enumerator, from its context and
            the former enumerator's `snapshot_state`, or None.
        keeps_listed: With `enumerator`: whether listed splits stay known if the job goes back to a
            checkpoint, so that none is lost if a new listing lacks it (L6: no split is lost). The
            enumerator then starts with unassigned splits. Always so with `discover`.
        assignment: With `discover`: `pull`, or `static`, round robin.
        allow_empty: With `discover`: whether a listing without splits is allowed.
        discover_again: With `discover`: the listing if splits are known; see `DefaultEnumerator`.
        payload_types: Events and facts of the source's own.
        listing_timeout_s: With `discover`: limit of the time for which attempts to list may fail one
            after the other, seconds; then the job fails.

    Raises:
        OptionError: Not exactly one of `discover` and `enumerator`, or an unknown assignment.
    """

    projection: OperatorProjection[Any] | None = SPLITS

    def __init__(
        self,
        operator_id: str,
        *,
        discover: Callable[[], SplitsDiscovered] | None = None,
        note_event: NoteEvent | None = None,
        note_back: NoteBack | None = None,
        enumerator: EnumeratorFactory | None = None,
        keeps_listed: bool = False,
        assignment: Assignment = "pull",
        allow_empty: bool = False,
        discover_again: DiscoverAgain | None = None,
        payload_types: Sequence[type[Payload]] = (),
        listing_timeout_s: float = LISTING_TIMEOUT_S,
    ) -> None:
        if (discover is None) == (enumerator is None):
            raise OptionError("discover", discover, "given, or `enumerator` in its place")
        if assignment not in ("pull", "static"):
            raise OptionError("assignment", assignment, "'pull' or 'static'")
        self.operator_id = operator_id
        self.payload_types = (*SPLIT_PAYLOADS, *payload_types)
        self._discover, self._enumerator = discover, enumerator
        if discover is not None or keeps_listed:
            self.projection = LISTED_SPLITS
        self._note_event, self._note_back = note_event, note_back
        self._assignment: Assignment = assignment
        self._allow_empty, self._discover_again = allow_empty, discover_again
        self._listing_timeout_s = listing_timeout_s

    def create(self, context: CoordinatorContext) -> SplitCoordinator:
        """A new coordinator."""
        return SplitCoordinator(context, self._enumerator or self._default)

    def _default(self, context: EnumeratorContext, kept: bytes | None) -> DefaultEnumerator:
        assert self._discover is not None, "the options were checked at creation"
        return DefaultEnumerator(
            context,
            self._discover,
            assignment=self._assignment,
            allow_empty=self._allow_empty,
            discover_again=self._discover_again,
            note_event=self._note_event,
            note_back=self._note_back,
            kept=kept,
            listing_timeout_s=self._listing_timeout_s,
        )
