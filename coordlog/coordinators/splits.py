"""The coordinator of a source: finds splits, assigns them, takes them back (clauses L1 to L5)."""

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
from coordlog.schemas.source_events import (
    AddSplits,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
)
from coordlog.schemas.source_facts import (
    EnumeratorState,
    ListingFailed,
    ListingStarted,
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
"""What the fold of a source's splits is told in, whichever the source."""

Assignment = Literal["pull", "static"]
DiscoverAgain = Callable[
    [Sequence[Split], bytes | None, frozenset[str], frozenset[str]], SplitsDiscovered | Relisted
]
Listing = Callable[[], SplitsDiscovered | Relisted]
NoteEvent = Callable[[bytes | None, Payload], bytes | None]
NoteBack = Callable[[bytes | None, Sequence[Split]], bytes | None]
EnumeratorFactory = Callable[[EnumeratorContext, bytes | None], SplitEnumerator]


class DefaultEnumerator(SplitEnumerator):
    """Lists once for each opening of the job, then gives out what was listed.

    `pull`: one split for each request, in the order of discovery, so that a slow subtask gets
    fewer. `static`: the splits are dealt out round robin, by the order of discovery, to all
    subtasks; a subtask's splits go to it again when its attempt is replaced.

    Args:
        context: What this may call.
        discover: The listing; blocks, runs on a worker. All splits there are.
        assignment: See above.
        allow_empty: Whether a listing without splits is an input like any other.
        discover_again: The listing if splits are known: the job is opened again after its end, went
            back to its start, or was watched before. It is given them, what is kept, the ids of
            those that are skipped, and of those that no reader has had. Of these it says what they
            are now, or fails, or leaves them as they are; of the others what it finds is passed
            over, by their ids. Without it `discover`.
        note_event: What is kept after an event of the source's own, of what was kept before it.
        note_back: What is kept after a reader has lost splits, of what was kept before: the source's
            own events on these are void.
        kept: What the enumerator before this one has kept.
        listing_timeout_s: How long tries to list may fail one after the other; see `PatientListing`.
        is_bounded: False for a listing that asks nothing outside, and so cannot hang.
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
        state = context.state  # what is left in it was read, or is being read
        discover: Listing = self._discover
        again = self._discover_again
        if again is not None and state.splits:
            unread = frozenset(state.unassigned())
            discover = partial(again, state.in_order(), self._kept, state.skipped(), unread)
        self._listing.begin(lambda: partial(self._list, discover), self._listed)

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """Answer it, unless the listing is not there yet."""
        self._serve()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """Give them to those who wait."""
        if self._note_back is not None:
            self._kept = self._note_back(self._kept, splits)
        self._serve()

    def add_reader(self, subtask: int) -> None:
        """Tell it what its subtask is owed without being asked."""
        state = self._context.state
        if not state.is_discovery_complete:
            return
        if self._assignment == "static":
            self._deal([subtask])
        elif state.reader(subtask).is_told_in_checkpoint:
            self._context.signal_no_more_splits(subtask)

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Keep what the source makes of it."""
        if self._note_event is None:
            super().handle_source_event(subtask, attempt_number, event)
        else:
            self._kept = self._note_event(self._kept, event)

    def snapshot_state(self) -> bytes | None:
        """What is kept of the source's own events."""
        return self._kept

    def _list(self, discover: Listing) -> SplitsDiscovered | Relisted:
        """All of it. On a worker."""
        listing = discover()
        found = listing.found if isinstance(listing, Relisted) else listing
        if not found.is_complete:
            raise SourceError(
                f"source {self._context.operator_id!r}",
                "its listing is not complete, and this enumerator lists once",
                "give the provider an `enumerator` of your own that lists again",
            )
        return listing

    def _listed(self, result: SplitsDiscovered) -> None:
        context = self._context
        if not result.is_complete:
            return
        if not context.state.splits and not self._allow_empty:
            context.fail_job(
                SourceError(
                    f"source {context.operator_id!r}",
                    "its listing has found no splits",
                    "see that there is input where it looks, or set `allow_empty`",
                ),
                is_final=True,
            )
            return
        if self._assignment == "static":
            self._deal(list(context.registered_readers()))
        else:
            self._serve()

    def _serve(self) -> None:
        """Answer the open requests, oldest first: a split each, as far as they go."""
        context = self._context
        if not context.state.is_discovery_complete or self._assignment == "static":
            return
        for subtask in give_waiting(context):
            context.signal_no_more_splits(subtask)

    def _deal(self, subtasks: Sequence[int]) -> None:
        """Give these subtasks all of theirs that are not assigned, and say that this is all."""
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
    """Serves a source: an enumerator decides; the projection `SPLITS` is all that is remembered.

    Requests that come while there is no reader to answer (redelivered by a restore, or part of the
    checkpoint that a replaced attempt begins from) stay in the projection and are handed to the
    enumerator when the next attempt is ready (clauses D3, D5).
    """

    def __init__(self, context: CoordinatorContext, factory: EnumeratorFactory) -> None:
        super().__init__(context)
        self._factory = factory
        self._readers = EnumeratorContext(context)
        self._enumerator: SplitEnumerator | None = None

    def start(self) -> None:
        """Make the enumerator, with what it kept, and start it."""
        self._enumerator = self._factory(self._readers, self.state.enumerator_state)
        self._enumerator.start()
        self._note()

    def close(self) -> None:
        """Close the enumerator, if it was made."""
        if self._enumerator is not None:
            self._enumerator.close()

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Hand a request or another event to the enumerator."""
        if not isinstance(event, RequestSplit):
            self._started.handle_source_event(subtask, attempt_number, event)
        elif subtask in self._readers.waiting_readers():
            self._started.handle_split_request(subtask, event.finished_split_id)
        self._note()

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Register the reader; then hand over the requests that its checkpoint holds."""
        self._readers.reader_is_ready(subtask, gateway)
        self._started.add_reader(subtask)
        for _ in range(self.state.reader(subtask).owed):
            if self.state.reader(subtask).owed:
                self._started.handle_split_request(subtask, None)
        self._note()

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Tell the enumerator what the projection has given back (clause L4)."""
        state = self.state
        back = [state.splits[one].split for one in state.reader(subtask).given_back]
        self._started.add_splits_back(back, subtask)
        self._note()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the enumerator; refused where all subtasks have ended without some of the splits."""
        started = self._started
        self._check_all_read()
        started.notify_checkpoint_complete(checkpoint_id)
        self._note()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the enumerator."""
        self._started.notify_checkpoint_aborted(checkpoint_id)
        self._note()

    def _check_all_read(self) -> None:
        """A job that ends without some of its splits would look like one that has read them."""
        state = self.state
        subtasks = range(self.context.current_parallelism())
        if not all(state.reader(one).is_completed for one in subtasks):
            return
        left = state.unassigned()
        if left:
            raise SourceError(
                f"source {self.context.operator_id!r}",
                f"all its subtasks have ended, and {len(left)} of {len(state.splits)} splits were "
                f"given to none of them, the first {left[0]!r}",
                "see that the enumerator says `signal_no_more_splits` only where nothing is left",
            )

    @property
    def _started(self) -> SplitEnumerator:
        assert self._enumerator is not None, "`start` comes first"
        return self._enumerator

    def _note(self) -> None:
        """Record what the enumerator keeps itself, where that has changed."""
        content = self._started.snapshot_state()
        if content is not None and content != self.state.enumerator_state:
            self.context.record(EnumeratorState(content=content))


class SplitCoordinatorProvider(CoordinatorProvider):
    """Makes a source's coordinators.

    Which finished splits stay finished in batch (clause L4) is the whole chain's matter, not the
    source's: the log says it on each `SPLIT_FINISHED`.

    Args:
        operator_id: The source's.
        discover: Lists all splits, once; see `DefaultEnumerator`.
        note_event: With `discover`: what is kept of events of the source's own.
        note_back: With `discover`: what is kept of them after a reader has lost splits.
        enumerator: Makes an enumerator of the source's own, instead of `discover`: from its context
            and what the one before kept in `snapshot_state`, or None.
        keeps_listed: With `enumerator`: whether what was listed stays known when the job goes back
            to a checkpoint, so that nothing is forgotten because it is not found again (clause L6);
            with `discover` it is so. The enumerator then finds waiting splits when it starts.
        assignment: With `discover`: `pull`, or `static`, round robin.
        allow_empty: With `discover`: whether a listing without splits is no failure.
        discover_again: With `discover`: lists where splits are known; see `DefaultEnumerator`.
        payload_types: Events and facts of the source's own.
        listing_timeout_s: With `discover`: how long tries to list may fail one after the other
            before the job fails, seconds.

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
        assert self._discover is not None, "the options were looked at when this was made"
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
