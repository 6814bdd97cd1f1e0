"""Payloads for a source that queries read: requests of planners and tasks, responses, and facts."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, fact, payload, request, response
from coordlog.schemas.source_types import Split

__all__ = [
    "CommitRead",
    "EndQuery",
    "NextSplits",
    "PlanRead",
    "QueryEnded",
    "QueryReads",
    "ReadCommitted",
    "ReadFailed",
    "ReadFailureNoted",
    "ReadPlanned",
    "ReaderGivenUp",
    "ReadsOpened",
    "ReadsProblem",
    "ReadsSeen",
    "SplitRead",
    "SplitsForgotten",
    "SplitsGiven",
    "is_position",
]


@fact("coordlog.reads_opened", version=1)
class ReadsOpened(Payload):
    """A service for queries begins; the batch reads of those before are over."""

    history: str
    """Random name for this history, if it has none yet; positions in the history contain it."""


@fact("coordlog.reads_problem", version=1)
class ReadsProblem(Payload):
    """The source cannot be listed any more; queries are told, until the service is started again."""

    problem: str


@fact("coordlog.reader_given_up", version=1)
class ReaderGivenUp(Payload):
    """A stream will not go on: it keeps nothing from being forgotten any more."""

    reader: str


@fact("coordlog.splits_forgotten", version=1)
class SplitsForgotten(Payload):
    """No query reads these any more, and later ones stand for them: what they hold is not kept."""

    first: int
    """Lowest place in the order of discovery at which a read may begin."""
    ordinals: list[int]


@request("coordlog.query_reads", version=1)
class QueryReads(Payload):
    """How far the source has been found. Answered from the state, and not recorded."""

    after: int
    """Start of the stream's next batch; -1 if the stream has none yet."""
    splits_max: int
    """Limit of the splits of a batch; 0 for no limit."""


@response("coordlog.reads_seen", version=1)
class ReadsSeen(Payload):
    """Where a stream's next batch may end."""

    history: str
    end: int
    """End in the order of discovery, exclusive."""
    sequence: int
    """Sequence of the discovery of the last split before `end`; -1 if there is none."""
    first: int
    """Lowest place at which a read may begin."""
    is_listed: bool
    """Whether a listing of this service was complete."""
    problem: str


@request("coordlog.plan_read", version=1)
class PlanRead(Payload):
    """A planner is about to read what was found from `start` to `end`, in the order of discovery."""

    read_id: str
    reader: str
    """Name of the stream; empty for a batch read."""
    follows: str
    """Name of the stream in the position at which it begins."""
    history: str
    """Name of the history in the stream's position; empty for a batch read."""
    start: int
    end: int
    """End of the range, exclusive; -1 for all splits discovered so far."""
    partitions: int
    """Number of tasks that may read at once."""


@response("coordlog.read_planned", version=1)
class ReadPlanned(Payload):
    """What a read covers; the same however often it is planned."""

    read_id: str
    reader: str
    follows: str
    start: int
    end: int
    partitions: int


def is_position(*, start: int, end: int, reader: str, follows: str) -> bool:
    """Whether this is a position that Spark shows when it starts a query again, and no batch.

    For such a position Spark plans an empty range that ends there, although the batch up to it may not have run. An
    empty range at 0 is a batch: the first one of a stream.
    """
    return 0 < start == end and follows == reader


@payload("coordlog.split_read", version=1)
class SplitRead(Payload):
    """A split that a task has read to its end."""

    split_id: str
    rows: int
    rejected: int
    """Rows of the split that were left out as bad, and are not among `rows`."""
    bytes_read: int


@request("coordlog.next_splits", version=1)
class NextSplits(Payload):
    """A task asks for more of its partition's splits."""

    read_id: str
    partition: int
    position: int
    """Number of the partition's splits that this task has received."""
    task_attempt_id: int
    """Spark's id of the task, unique in its application."""
    spark_attempt_number: int
    stage_id: int
    host: str
    pid: int
    finished: list[SplitRead]
    """Splits that the task has read since its last request."""


@response("coordlog.splits_given", version=1)
class SplitsGiven(Payload):
    """The partition's splits from `position` on, as far as they were given or are now; none: that was all."""

    read_id: str
    partition: int
    position: int
    splits: list[Split]


@request("coordlog.read_failed", version=1)
class ReadFailed(Payload):
    """A task's reader has raised; Spark will try again, or not."""

    read_id: str
    partition: int
    task_attempt_id: int
    split_id: str
    reason: str


@response("coordlog.read_failure_noted", version=1)
class ReadFailureNoted(Payload):
    """It is in the history."""


@request("coordlog.end_query", version=1)
class EndQuery(Payload):
    """A task has failed in a way that another try would repeat: its query is to end."""

    stage_id: int
    """Spark's id of the stage."""
    reason: str


@fact("coordlog.query_ended", version=1)
class QueryEnded(Payload):
    """A query was ended, because another try of a task that had failed could not help."""

    stage_id: int
    """Spark's id of the cancelled stage."""
    reason: str


@request("coordlog.commit_read", version=1)
class CommitRead(Payload):
    """A stream will not read again what was found before `end`."""

    reader: str
    history: str
    end: int


@response("coordlog.read_committed", version=1)
class ReadCommitted(Payload):
    """That is in the log."""

    reader: str
    end: int
