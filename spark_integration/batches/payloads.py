"""Payloads of committed batches: requests, intents, outcomes."""

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
    """Part of a batch for one sink: enough to make it visible, and to check whether it is."""

    sink: str
    """Name of the sink in the job."""
    rows: int
    """Number of rows, or -1 if not counted."""
    files: list[StagedFile]
    """Files that get their final names; none if the sink has no files."""
    details: dict[str, str]
    """Further values of the sink, by its own names. No secrets."""


@payload("coordlog.part_outcome", version=1)
class PartOutcome(Payload):
    """Outcome of a part."""

    sink: str
    is_done: bool
    """False if the sink has nothing of the part, which is staged again when Spark replays the batch."""
    rows: int
    """Number of rows, or -1 if not counted."""
    details: dict[str, str]


@request("coordlog.commit_batch", version=1)
class CommitBatch(Payload):
    """Request to make this batch visible; its staged data are durable."""

    query_id: str
    """Id of the streaming query, from its checkpoint, or of the batch write."""
    batch_id: int
    is_write: bool
    """Whether it is a batch write, which has no query; its batch id may be any."""
    instead_of: str
    """Older query that this one may replace; empty for none."""
    driver_id: str
    """Driver for which the parts are staged; parts staged for another driver may have been swept."""
    parts: list[BatchPart]
    """Parts to commit. Empty: only the progress is returned, of a batch write at all sinks, else at those of its
    parts."""
    ranges: str = ""
    """Fingerprint of the positions at which the batch's sources end; empty if unknown."""


@response("coordlog.batch_standing", version=1)
class BatchStanding(Payload):
    """Progress of a batch once the request is in the log."""

    is_open: bool
    """Whether an intent has no outcome yet: send the request again."""
    is_done: bool
    done_sinks: list[str]
    """Sinks that have their part, if not all have; of a batch write the others may never get one."""


@payload("coordlog.batch_intent", version=1)
class BatchIntent(Payload):
    """An intent: these parts of a batch become visible."""

    query_id: str
    batch_id: int
    is_write: bool
    parts: list[BatchPart]
    ranges: str = ""
    """As in `CommitBatch`."""
    number: int = 0
    """Number of the intent, above those of all earlier ones; by the driver's clock in microseconds, so that it is also
    above those of a log that was lost."""
    place: int = 0
    """Place among the open intents of the job: the lowest one that no other had when it was recorded."""
    epoch: int = 0
    """Epoch of the driver that recorded it."""


@payload("coordlog.batch_outcome", version=1)
class BatchOutcome(Payload):
    """The outcome of an intent: one of each sink's part."""

    query_id: str
    batch_id: int
    is_write: bool
    parts: list[PartOutcome]
