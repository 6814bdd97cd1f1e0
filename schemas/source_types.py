"""Events between a source's coordinator and its readers, and facts that the coordinator records."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, event, fact, payload

__all__ = [
    "LASTING",
    "AddSplits",
    "EnumeratorState",
    "KnownSplitsForgotten",
    "LastingState",
    "ListingFailed",
    "ListingStarted",
    "NoMoreSplits",
    "ReleaseSplits",
    "ReleasedInput",
    "RequestSplit",
    "Split",
    "SplitsDiscovered",
    "SplitsReleased",
    "SplitsWithdrawn",
    "UnreleasedSplit",
]


@payload("coordlog.split", version=1)
class Split(Payload):
    """A unit of input. `content` is the source's own encoding of where it is."""

    split_id: str
    content: bytes


@fact("coordlog.splits_discovered", version=1)
class SplitsDiscovered(Payload):
    """Splits that a listing has found, in the order in which they are to be assigned."""

    splits: list[Split]
    is_complete: bool
    """Whether no further splits will be found."""


@event("coordlog.request_split", version=1)
class RequestSplit(Payload):
    """A reader asks for another split (pull)."""

    finished_split_id: str | None = None


@event("coordlog.add_splits", version=1)
class AddSplits(Payload):
    """Splits for this reader."""

    splits: list[Split]


@event("coordlog.no_more_splits", version=1)
class NoMoreSplits(Payload):
    """No split will be assigned to this reader any more."""


@fact("coordlog.listing_started", version=1)
class ListingStarted(Payload):
    """A listing begins; what is left of one that its driver could not end is forgotten."""


@fact("coordlog.listing_failed", version=1)
class ListingFailed(Payload):
    """A source could not be listed."""

    problem: str
    is_retriable: bool
    """Whether a retry may succeed; else the job fails."""


@fact("coordlog.enumerator_state", version=1)
class EnumeratorState(Payload):
    """What an enumerator keeps beside the splits, in its own encoding."""

    content: bytes


@payload("coordlog.lasting_state", version=1)
class LastingState(Payload):
    """The content of an `EnumeratorState` of which a reset undoes only a part; it begins with `LASTING`."""

    lasting: bytes
    """What no reset undoes."""
    content: bytes | None


LASTING = b"\xffcoordlog.lasting_state\x01"
"""Bytes before a `LastingState`: no other state of an enumerator begins with them."""


@fact("coordlog.splits_withdrawn", version=1)
class SplitsWithdrawn(Payload):
    """Splits of an earlier listing that a later one has replaced or left out, before any row of them was read."""

    split_ids: list[str]
    why: str


@fact("coordlog.known_splits_forgotten", version=1)
class KnownSplitsForgotten(Payload):
    """Splits that are known no more: a completed checkpoint has every row of them, and the state stays small."""

    split_ids: list[str]
    why: str


@payload("coordlog.released_input", version=1)
class ReleasedInput(Payload):
    """The input of some splits, such as a file, all rows of which are committed."""

    split_ids: list[str]
    """All splits of this input."""
    content: bytes
    """The source's own encoding of what it is."""


@payload("coordlog.release_splits", version=1)
class ReleaseSplits(Payload):
    """An intent of a source: the effect on the input of committed splits. The other operators' commits come first."""

    effect: str
    discovered_below: int
    """As in `SplitsReleased`."""
    inputs: list[ReleasedInput]


@payload("coordlog.unreleased_split", version=1)
class UnreleasedSplit(Payload):
    """A split of committed rows whose input was left as it is."""

    split_id: str
    problem: str


@payload("coordlog.splits_released", version=1)
class SplitsReleased(Payload):
    """The outcome of an effect on the input of committed splits: the released ones are known no more."""

    split_ids: list[str]
    discovered_below: int
    """Ordinal from which on splits of these ids are others, which were discovered after the effect was recorded."""
    unreleased: list[UnreleasedSplit]
