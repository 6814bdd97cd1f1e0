"""What committed batches say in the log: requests, intents, outcomes."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, payload, request, response
from coordlog.spark_integration.files.payloads import StagedFile

__all__ = [
    "BatchIntent",
    "BatchOutcome",
    "BatchPart",
    "BatchStanding",
    "CommitBatch",
    "PartOutcome",
]


@payload("coordlog.batch_part", version=1)
class BatchPart(Payload):
    """What one sink has of a batch: enough to make it visible, and to find out whether it is."""

    sink: str
    """Its name in the job."""
    rows: int
    """-1 where nobody has counted them."""
    files: list[StagedFile]
    """Those that get their final names; none where the sink has no files."""
    details: dict[str, str]
    """What else the sink needs, by names of its own. No secrets."""


@payload("coordlog.part_outcome", version=1)
class PartOutcome(Payload):
    """What has become of a part."""

    sink: str
    is_done: bool
    """False: the sink has nothing of it, and the batch gives it again when Spark replays it."""
    rows: int
    """-1 where nobody has counted them."""
    details: dict[str, str]


@request("coordlog.commit_batch", version=1)
class CommitBatch(Payload):
    """Make this batch visible; what its sinks have staged is there to stay."""

    query_id: str
    """Of the streaming query, from its checkpoint; of a batch write its id."""
    batch_id: int
    is_write: bool
    """A batch write: it has no query, and its id may be any."""
    instead_of: str
    """The older query whose place this one may take; empty for none."""
    driver_id: str
    """For which driver its parts are staged; what was staged for another one may be swept by now."""
    parts: list[BatchPart]
    """Empty: only how it stands is asked; a batch write with all sinks then, else with those of its parts."""
    ranges: str = ""
    """Fingerprint of where the batch's sources end; empty if it is not known."""


@response("coordlog.batch_standing", version=1)
class BatchStanding(Payload):
    """How a batch stands once the request is in the log."""

    is_open: bool
    """An intent has no outcome yet: ask again."""
    is_done: bool
    done_sinks: list[str]
    """Those that have their part, where others do not; others may never get a part of a batch write."""


@payload("coordlog.batch_intent", version=1)
class BatchIntent(Payload):
    """An intent: these parts of a batch become visible."""

    query_id: str
    batch_id: int
    is_write: bool
    parts: list[BatchPart]
    ranges: str = ""
    """As in `CommitBatch`."""


@payload("coordlog.batch_outcome", version=1)
class BatchOutcome(Payload):
    """The outcome: what each sink says of its part."""

    query_id: str
    batch_id: int
    is_write: bool
    parts: list[PartOutcome]
