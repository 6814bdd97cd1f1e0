"""What a Kafka source says in the log: splits, a reader's state, what a listing has found."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, event, fact, payload
from coordlog.schemas.source_events import Split

__all__ = [
    "UNBOUNDED",
    "FirstKafkaReaderState",
    "KafkaEnumeratorState",
    "KafkaListing",
    "KafkaReaderState",
    "KafkaSplit",
    "KafkaSplitProgress",
    "KafkaSplitsReturned",
]

UNBOUNDED = -1
"""The `end` of a split that has none."""


@payload("coordlog.kafka_split", version=1)
class KafkaSplit(Payload):
    """A partition of a topic, from one offset to another."""

    split_id: str
    topic: str
    topic_id: str
    """As the cluster has it, a UUID: another one is another topic; empty where it has none."""
    partition: int
    start: int
    """The first offset, inclusive."""
    end: int
    """Exclusive; -1: it has no end."""


@payload("coordlog.kafka_split_progress", version=1)
class KafkaSplitProgress(Payload):
    """How far a reader has come in one split."""

    split: KafkaSplit
    position: int
    """The offset that is read next: every record below it has been given to the chain."""
    rows: int
    bytes_read: int


@payload("coordlog.kafka_reader_state", version=2)
class KafkaReaderState(Payload):
    """A reader's unfinished splits, in the order in which they were added."""

    parallelism: int
    """Of the job that these splits were dealt out in."""
    splits: list[KafkaSplitProgress]
    to_give_up: list[str]
    """The ids of those that are not read on: the reader has yet to end them where they are."""


@payload("coordlog.kafka_reader_state", version=1)
class FirstKafkaReaderState(Payload):
    """As histories of the first version have it."""

    parallelism: int
    splits: list[KafkaSplitProgress]


@fact("coordlog.kafka_listing", version=1)
class KafkaListing(Payload):
    """What a look at the cluster has found that was not known."""

    splits: list[Split]
    is_whole: bool
    """False: there is more, and another look follows at once."""
    problem: str = ""
    """What must end the job; empty: nothing."""
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
    """A listing has been whole: what is found from now on is new, and read from its beginning."""
