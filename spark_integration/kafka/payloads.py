"""What a Kafka source says in the log: splits, a reader's state, what a listing has found."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, event, fact, payload
from coordlog.schemas.source_types import Split

__all__ = [
    "UNBOUNDED",
    "KafkaEnumeratorState",
    "KafkaListing",
    "KafkaReaderState",
    "KafkaSplit",
    "KafkaSplitProgress",
    "KafkaSplitsReturned",
]

UNBOUNDED = -1
"""The `end` of a split without an end."""


@payload("coordlog.kafka_split", version=1)
class KafkaSplit(Payload):
    """A partition of a topic, from one offset to another."""

    split_id: str
    topic: str
    topic_id: str
    """UUID of the topic, empty if the cluster has none. Another id is another topic."""
    partition: int
    start: int
    """First offset, inclusive."""
    end: int
    """End, exclusive; -1 if the split has no end."""


@payload("coordlog.kafka_split_progress", version=1)
class KafkaSplitProgress(Payload):
    """How far a reader has come in one split."""

    split: KafkaSplit
    position: int
    """Next offset: every record below it has been emitted to the chain, or left out."""
    leader_epoch: int
    """Number of the leader that has stored the record before `position`; -1 if unknown."""
    rows: int
    """Number of records emitted to the chain."""
    rejected: int
    """Number of bad records that were left out, and emitted as rejects if there is a place for them."""
    bytes_read: int


@payload("coordlog.kafka_reader_state", version=1)
class KafkaReaderState(Payload):
    """A reader's unfinished splits, in the order in which they were added."""

    parallelism: int
    """Parallelism of the job in which these splits were assigned."""
    splits: list[KafkaSplitProgress]
    to_give_up: list[str]
    """Ids of the splits that the reader is to end at their positions and return."""


@fact("coordlog.kafka_listing", version=1)
class KafkaListing(Payload):
    """What a look at the cluster has found that was not known."""

    splits: list[Split]
    is_whole: bool
    """False: another listing follows at once, with more splits."""
    problem: str = ""
    """Problem that must end the job; empty if there is none."""
    where: str = ""
    next_step: str = ""


@event("coordlog.kafka_splits_returned", version=1)
class KafkaSplitsReturned(Payload):
    """What is left of splits that a reader gives up, because there are more subtasks now than before."""

    splits: list[Split]


@payload("coordlog.kafka_enumerator_state", version=1)
class KafkaEnumeratorState(Payload):
    """What the enumerator keeps beside the splits."""

    has_listed: bool
    """True: a listing has been whole, and later partitions are read from their beginning."""
