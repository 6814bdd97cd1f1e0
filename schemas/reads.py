"""What is said of a source that queries read: requests of planners and tasks, answers, and facts."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, fact, payload, request, response
from coordlog.schemas.source_events import Split

__all__ = [
    "CommitRead",
    "EndQuery",
    "LookAtReads",
    "NextSplits",
    "PlanRead",
    "QueryEnded",
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
]


@fact("coordlog.reads_opened", version=1)
class ReadsOpened(Payload):
    """A service for queries begins; the batch reads of those before are over."""

    history: str
    """A name of chance for this history, where it has none yet: positions in it carry it."""


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
    """No read begins below this place in the order of discovery."""
    ordinals: list[int]


@request("coordlog.look_at_reads", version=1)
class LookAtReads(Payload):
    """How far the source has been found. Answered from the state, and not recorded."""

    after: int
    """Where the next batch of the stream that asks begins; -1: it does not know yet."""
    splits_max: int
    """The most splits of a batch; 0: no limit."""


@response("coordlog.reads_seen", version=1)
class ReadsSeen(Payload):
    """Where a stream's next batch may end."""

    history: str
    end: int
    """In the order of discovery, exclusive."""
    sequence: int
    """Of the record that has found the last split before `end`; -1 for none."""
    first: int
    """No read can begin below."""
    is_listed: bool
    """A listing of this service has been whole."""
    problem: str


@request("coordlog.plan_read", version=1)
class PlanRead(Payload):
    """A planner is about to read what was found from `start` to `end`, in the order of discovery."""

    read_id: str
    reader: str
    """The stream; empty for a batch read."""
    follows: str
    """The name that this stream had in the position that it begins at."""
    history: str
    """As the stream's position has it; empty for a batch read."""
    start: int
    end: int
    """Exclusive; -1: all that is found now."""
    partitions: int
    """How many tasks may read at once."""


@response("coordlog.read_planned", version=1)
class ReadPlanned(Payload):
    """What a read covers; the same however often it is planned."""

    read_id: str
    reader: str
    follows: str
    start: int
    end: int
    partitions: int


@payload("coordlog.split_read", version=1)
class SplitRead(Payload):
    """A split that a task has read to its end."""

    split_id: str
    rows: int
    bytes_read: int


@request("coordlog.next_splits", version=1)
class NextSplits(Payload):
    """A task asks for more of its partition's splits."""

    read_id: str
    partition: int
    position: int
    """How many of its splits this task has been given."""
    task_attempt_id: int
    """Spark's; unlike that of any other task of its application."""
    spark_attempt_number: int
    stage_id: int
    host: str
    pid: int
    finished: list[SplitRead]
    """Those that it has read since it asked last."""


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
    """Spark's."""
    reason: str


@fact("coordlog.query_ended", version=1)
class QueryEnded(Payload):
    """A query was ended, because another try of a task that had failed could not help."""

    stage_id: int
    """Spark's: the stage that was cancelled."""
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
