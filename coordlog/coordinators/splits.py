"""The coordinator of a source: lists splits, assigns them, takes them back after a reset (L1 to L5: sources)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, Literal

from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
    Sink,
    SubtaskGateway,
)
from coordlog.coordinators.enumerator import (
    EnumeratorContext,
    SplitEnumerator,
    WeightOf,
    give_waiting,
)
from coordlog.coordinators.listing import PatientListing, Relisted, once_settled
from coordlog.errors import OptionError, SourceError
from coordlog.limits import LISTING_TIMEOUT_S
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.snapshot.splits_codec import LISTED_SPLITS, SPLITS
from coordlog.projections.splits.fold import SplitsState
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import (
    AddSplits,
    EnumeratorState,
    KnownSplitsForgotten,
    ListingFailed,
    ListingStarted,
    NoMoreSplits,
    ReleaseSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
    SplitsReleased,
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
    KnownSplitsForgotten,
    ReleaseSplits,
    SplitsReleased,
)
"""Payload types that the fold of splits reads, for every source."""

Assignment = Literal["pull", "static"]
DiscoverAgain = Callable[
    [Sequence[Split], bytes | None, frozenset[str], frozenset[str]], SplitsDiscovered | Relisted
]
Listing = Callable[[], SplitsDiscovered | Relisted]
NoteEvent = Callable[[bytes | None, Payload], bytes | None]
NoteLostSplits = Callable[[bytes | None, Sequence[Split]], bytes | None]
EnumeratorFactory = Callable[[EnumeratorContext, bytes | None], SplitEnumerator]


class DefaultEnumerator(SplitEnumerator):
    """Lists once, then assigns the splits in the order of discovery.

    `pull`: a split for each request, or several small ones, so that a slow subtask gets fewer. `static`: all splits at
    once, round robin over the subtasks; a new attempt of a subtask gets the same splits again.

    Args:
        context: Calls that the enumerator may make.
        discover: Lists all splits; runs on a worker and may block.
        assignment: `pull` or `static`.
        allow_empty: Whether a listing without splits is allowed; if not, it fails the job.
        discover_again: Lists instead of `discover` if the log has splits: the job had finished, went
            back to its start, or ended a watch. Arguments: the known splits, the kept state, the ids
            of the skipped splits, and the ids of the unread splits, which no reader has had. The
            result may replace an unread split by one with the same id, or withdraw it; other known
            ids in it are ignored.
        note_event: Computes the new kept state from the old one and an event of the source's own.
        note_lost_splits: Computes the new kept state from the old one and the splits that a reader
            has lost; events of the source about these splits do not count any more.
        kept: Kept state of the former enumerator, or None.
        listing_timeout_s: Longest time in seconds for which listings may fail in a row; see
            `PatientListing`.
        is_bounded: Whether a listing has a time limit. False for one without I/O, which cannot hang.
        weight_of: Weight of a split, for `pull`: small splits are assigned several at once. None: one by one.
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
        note_lost_splits: NoteLostSplits | None = None,
        kept: bytes | None = None,
        listing_timeout_s: float = LISTING_TIMEOUT_S,
        is_bounded: bool = True,
        weight_of: WeightOf | None = None,
    ) -> None:
        self._context, self._discover, self._weight_of = context, discover, weight_of
        self._discover_again, self._note_event, self._kept = discover_again, note_event, kept
        self._note_lost_splits = note_lost_splits
        self._assignment, self._allow_empty = assignment, allow_empty
        self._listing = PatientListing(context, timeout_s=listing_timeout_s, is_bounded=is_bounded)

    def start(self) -> None:
        """List, unless the log has a complete listing."""
        if not self._context.state.is_discovery_complete:
            once_settled(self._context, self._begin)

    def _begin(self) -> None:
        context = self._context
        context.record(ListingStarted())
        state = context.state  # its splits were read, or are being read
        discover: Listing = self._discover
        again = self._discover_again
        if again is not None and (state.splits or self._kept is not None):
            unread = frozenset(state.unassigned())
            discover = partial(again, state.in_order(), self._kept, state.skipped(), unread)
        self._listing.begin(lambda: partial(self._list, discover, state), self._on_listed)

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """Assign a split. During a listing the request waits."""
        self._serve()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """Assign the returned splits to waiting readers."""
        if self._note_lost_splits is not None:
            self._kept = self._note_lost_splits(self._kept, splits)
        self._serve()

    def add_reader(self, subtask: int) -> None:
        """Send the reader its static splits, or repeat the end of the input."""
        state = self._context.state
        if not state.is_discovery_complete:
            return
        if self._assignment == "static":
            self._deal([subtask])
        elif state.reader(subtask).has_no_more_in_checkpoint:
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

    def _list(self, discover: Listing, state: SplitsState) -> SplitsDiscovered | Relisted:
        """List; fail if the listing is not complete. Runs on a worker.

        Splits that are known in `state` and do not wait are left out of a listing of all splits: it does not change
        them, and the tables of a pruned log would show them as waiting. A `Relisted` has none of these.
        """
        listing = discover()
        discovered = listing.discovered if isinstance(listing, Relisted) else listing
        if not discovered.is_complete:
            raise SourceError(
                f"source {self._context.operator_id!r}",
                "its listing is not complete, and the default enumerator lists only once",
                "pass the provider an `enumerator` that lists again",
            )
        if isinstance(listing, Relisted):
            return listing
        fresh = [
            split
            for split in listing.splits
            if split.split_id not in state.splits or state.is_unassigned(split.split_id)
        ]
        return replace(listing, splits=fresh)

    def _on_listed(self, page: SplitsDiscovered) -> None:
        context = self._context
        if not page.is_complete:
            return
        # A source that keeps something has had splits, which may all be released.
        if not context.state.splits and not self._allow_empty and self._kept is None:
            context.fail_job(
                SourceError(
                    f"source {context.operator_id!r}",
                    "its listing has found no splits",
                    "check that the listed path has input, or set `allow_empty`",
                ),
                is_final=True,
            )
            return
        if self._assignment == "static":
            self._deal(list(context.registered_readers()))
        else:
            self._serve()

    def _serve(self) -> None:
        """Answer the open requests, oldest first, until no split is left."""
        context = self._context
        if not context.state.is_discovery_complete or self._assignment == "static":
            return
        for subtask in give_waiting(context, self._weight_of):
            context.signal_no_more_splits(subtask)

    def _deal(self, subtasks: Sequence[int]) -> None:
        """Send these subtasks their unassigned splits, and the end of the input."""
        context = self._context
        state, parallelism = context.state, context.current_parallelism()
        dealt: dict[int, list[Split]] = {subtask: [] for subtask in subtasks}
        for split_id in state.unassigned():
            ordinal = state.splits.ordinal(split_id)
            owner = _owner_of(ordinal, state, parallelism)
            if owner in dealt:
                dealt[owner].append(state.splits.split_at(ordinal))
        context.assign_splits(dealt)
        for subtask in sorted(dealt):
            context.signal_no_more_splits(subtask)


def _owner_of(ordinal: int, state: SplitsState, parallelism: int) -> int:
    """The subtask that a split is dealt to: by its ordinal, or the next one that has not finished.

    A subtask has finished before a split is dealt only after a return to a checkpoint, for splits found since.
    """
    first = ordinal % parallelism
    in_turn = chain(range(first, parallelism), range(first))
    return next((one for one in in_turn if not state.reader(one).is_completed), first)


class SplitCoordinator(EventSourcedCoordinator[SplitsState]):
    """Coordinator of a source: the enumerator decides, the projection `SPLITS` holds all state.

    A restore may bring back requests before their reader has registered. They stay in the projection
    until the reader's next attempt is ready (D3, D5: exactly once after a restore).
    """

    def __init__(self, context: CoordinatorContext, factory: EnumeratorFactory) -> None:
        super().__init__(context)
        self._factory = factory
        self._readers = EnumeratorContext(context)
        self._enumerator: SplitEnumerator | None = None

    def start(self) -> None:
        """Create the enumerator from its kept state, and start it."""
        self._enumerator = self._factory(self._readers, self.state.enumerator_state)
        self._enumerator.start()
        self._record_state()

    def close(self) -> None:
        """Close the enumerator, if any."""
        if self._enumerator is not None:
            self._enumerator.close()

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Pass a request or another event to the enumerator."""
        if not isinstance(event, RequestSplit):
            self._started.handle_source_event(subtask, attempt_number, event)
        elif subtask in self._readers.waiting_readers():
            self._started.handle_split_request(subtask, event.finished_split_id)
        self._record_state()

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Register the reader, then pass its open requests of the checkpoint to the enumerator."""
        self._readers.reader_is_ready(subtask, gateway)
        self._started.add_reader(subtask)
        for _ in range(self.state.reader(subtask).owed):
            if self.state.reader(subtask).owed:  # an answer to one request may close the others
                self._started.handle_split_request(subtask, None)
        self._record_state()

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Pass the splits that the reader has lost to the enumerator (L4: splits return)."""
        state = self.state
        back = [state.splits[split_id].split for split_id in state.reader(subtask).given_back]
        self._started.add_splits_back(back, subtask)
        self._record_state()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the enumerator. Fails if all subtasks have ended and splits are unassigned."""
        started = self._started
        self._check_all_read()
        started.notify_checkpoint_complete(checkpoint_id)
        self._record_state()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the enumerator."""
        self._started.notify_checkpoint_aborted(checkpoint_id)
        self._record_state()

    def _check_all_read(self) -> None:
        """Fail if all subtasks have ended and splits are unassigned: the job would finish without reading these."""
        state = self.state
        subtasks = range(self.context.current_parallelism())
        if not all(state.reader(subtask).is_completed for subtask in subtasks):
            return
        unassigned = state.unassigned()
        if unassigned:
            raise SourceError(
                f"source {self.context.operator_id!r}",
                f"all its subtasks have ended, and {len(unassigned)} of {len(state.splits)} splits are "
                f"unassigned, the first {unassigned[0]!r}",
                "call `signal_no_more_splits` in the enumerator only if no split is left",
            )

    @property
    def _started(self) -> SplitEnumerator:
        assert self._enumerator is not None, "`start` is called first"
        return self._enumerator

    def _record_state(self) -> None:
        """Record the enumerator's kept state, if it has changed."""
        content = self._started.snapshot_state()
        if content is not None and content != self.state.enumerator_state:
            self.context.record(EnumeratorState(content=content))


class SplitCoordinatorProvider(CoordinatorProvider):
    """Creates the coordinators of a source.

    Args:
        operator_id: Id of the source.
        discover: Lists all splits. This and `assignment`, `allow_empty`, `discover_again`, `note_event`,
            `note_lost_splits`, `listing_timeout_s` and `weight_of` are options of `DefaultEnumerator`; see there.
        enumerator: Instead of `discover`: creates the source's own enumerator from its context and
            the former enumerator's `snapshot_state`, or None.
        keeps_listed: With `enumerator`: whether listed splits stay known if the job goes back to a
            checkpoint, even if a new listing lacks them (L6: no split is lost). The enumerator may
            then start with unassigned splits. With `discover` they always stay known.
        payload_types: Events and facts of the source's own.
        release: Settles the intents to release the input of committed splits, which an `enumerator` commits.

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
        note_lost_splits: NoteLostSplits | None = None,
        enumerator: EnumeratorFactory | None = None,
        keeps_listed: bool = False,
        assignment: Assignment = "pull",
        allow_empty: bool = False,
        discover_again: DiscoverAgain | None = None,
        payload_types: Sequence[type[Payload]] = (),
        listing_timeout_s: float = LISTING_TIMEOUT_S,
        weight_of: WeightOf | None = None,
        release: Sink | None = None,
    ) -> None:
        if (discover is None) == (enumerator is None):
            raise OptionError("discover", discover, "set, or `enumerator` instead, not both")
        if assignment not in ("pull", "static"):
            raise OptionError("assignment", assignment, "'pull' or 'static'")
        self.operator_id = operator_id
        self.sink, self.releases_input = release, release is not None
        self.payload_types = (*SPLIT_PAYLOADS, *payload_types)
        self._discover, self._enumerator = discover, enumerator
        if discover is not None or keeps_listed:
            self.projection = LISTED_SPLITS
        self._note_event, self._note_lost_splits = note_event, note_lost_splits
        self._assignment: Assignment = assignment
        self._allow_empty, self._discover_again = allow_empty, discover_again
        self._listing_timeout_s, self._weight_of = listing_timeout_s, weight_of

    def create(self, context: CoordinatorContext) -> SplitCoordinator:
        """Create a coordinator with the enumerator of the options."""
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
            note_lost_splits=self._note_lost_splits,
            kept=kept,
            listing_timeout_s=self._listing_timeout_s,
            weight_of=self._weight_of,
        )
