"""Events between a source's coordinator and its readers, and facts that the coordinator records."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, event, fact, payload

__all__ = [
    "AddSplits",
    "EnumeratorState",
    "ListingFailed",
    "ListingStarted",
    "NoMoreSplits",
    "RequestSplit",
    "Split",
    "SplitsDiscovered",
    "SplitsWithdrawn",
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


@fact("coordlog.splits_withdrawn", version=1)
class SplitsWithdrawn(Payload):
    """Splits of an earlier listing that a later one has replaced or left out, before any row of them was read."""

    split_ids: list[str]
    why: str
