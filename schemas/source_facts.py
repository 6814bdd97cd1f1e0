"""Facts that a source's coordinator records for itself."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, fact

__all__ = ["EnumeratorState", "ListingFailed", "ListingStarted", "SplitsWithdrawn"]


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
