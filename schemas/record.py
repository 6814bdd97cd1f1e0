"""A record: the envelope of every value in the log, and its kinds."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

__all__ = [
    "ALSO_ACKED",
    "BATCH_COMPLETE",
    "NO_CHECKPOINT",
    "ROWS_WITH",
    "SKIPPED_BY",
    "JobMode",
    "Kind",
    "Notified",
    "Record",
    "RestoredBy",
    "acked_events",
    "driver_key",
    "record_key",
]

NO_CHECKPOINT: Final = -1
"""The virtual empty checkpoint before all others."""

BATCH_COMPLETE: Final = NO_CHECKPOINT
"""Number of the final complete notification of a batch job, sent once (H1: complete notifications)."""

ALSO_ACKED: Final = "also_acked"
"""On `EVENT_ACKED`: ids of further events that it acks, behind `event_id`, separated by commas."""

SKIPPED_BY: Final = "skipped"
"""On a record of a skipped event: sequence of the skip that it uses."""

ROWS_WITH: Final = "rows_with"
"""Attribute of a `SPLIT_FINISHED` in batch: id of the split whose committables hold the rows too. Its record is in the
same turn, and later."""

_NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})


class Kind(enum.Enum):
    """Kind of a record. The order is that of the schema: append new kinds at the end."""

    __hash__ = object.__hash__  # there is one of each; `Enum` hashes the name, in Python

    EPOCH_STARTED = "EPOCH_STARTED"
    TYPE_REGISTERED = "TYPE_REGISTERED"
    COORDINATORS_STARTED = "COORDINATORS_STARTED"
    RESET_TO_CHECKPOINT = "RESET_TO_CHECKPOINT"
    EVENT_REDELIVERED = "EVENT_REDELIVERED"
    ATTEMPT_STARTED = "ATTEMPT_STARTED"
    EVENT_TO_SUBTASK = "EVENT_TO_SUBTASK"
    EVENT_TO_COORDINATOR = "EVENT_TO_COORDINATOR"
    EVENT_ACKED = "EVENT_ACKED"
    EVENT_FAILED = "EVENT_FAILED"
    CHECKPOINT_TRIGGERED = "CHECKPOINT_TRIGGERED"
    COORDINATOR_CHECKPOINTED = "COORDINATOR_CHECKPOINTED"
    BARRIER_INJECTED = "BARRIER_INJECTED"
    CHECKPOINT_ACKED = "CHECKPOINT_ACKED"
    CHECKPOINT_COMPLETED = "CHECKPOINT_COMPLETED"
    CHECKPOINT_ABORTED = "CHECKPOINT_ABORTED"
    COORDINATOR_NOTIFIED = "COORDINATOR_NOTIFIED"
    COMMIT_INTENT = "COMMIT_INTENT"
    COMMIT_OUTCOME = "COMMIT_OUTCOME"
    ATTEMPT_FAILED = "ATTEMPT_FAILED"
    SUBTASK_RESET = "SUBTASK_RESET"
    GLOBAL_FAILURE = "GLOBAL_FAILURE"
    SPLIT_FINISHED = "SPLIT_FINISHED"
    SUBTASK_COMPLETED = "SUBTASK_COMPLETED"
    FACT = "FACT"
    REQUEST = "REQUEST"
    RESPONSE = "RESPONSE"
    SNAPSHOT = "SNAPSHOT"
    JOB_FAILED = "JOB_FAILED"
    JOB_FINISHED = "JOB_FINISHED"


class JobMode(enum.StrEnum):
    """Attribute `mode` of an `EPOCH_STARTED`."""

    STREAMING = "streaming"
    BATCH = "batch"


class RestoredBy(enum.StrEnum):
    """Attribute `restore` of `COORDINATORS_STARTED` and `RESET_TO_CHECKPOINT`: the way in which coordinators began."""

    START = "start"
    RESUME = "resume"
    ROLLBACK = "rollback"
    """A new driver went back to a checkpoint."""
    FAILOVER = "failover"
    """The same driver went back to a checkpoint, after a global failure."""
    AGAIN = "again"
    """A finished job was opened again."""
    CONCLUDE = "conclude"
    """All subtasks of a batch job had completed: operators with committables are notified again."""


class Notified(enum.StrEnum):
    """Attribute `what` of `COORDINATOR_NOTIFIED`: the outcome of the checkpoint."""

    COMPLETE = "complete"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One value in the log. Fields that a kind does not use are None."""

    epoch: int
    """Epoch that wrote it."""
    driver_id: str
    """Id of the driver process that wrote it."""
    sequence: int | None
    """Place among the records that count, without gaps over the life of the job; None on `EPOCH_STARTED`."""
    turn_remaining: int = 0
    """Number of records of the same turn that follow."""
    kind: Kind
    timestamp_us: int
    """Time of the turn in microseconds since 1970, UTC."""
    job_id: str
    operator_id: str | None = None
    subtask: int | None = None
    attempt_number: int | None = None
    checkpoint_id: int | None = None
    event_id: int | None = None
    """Id of an event: unique in the job for an event down, counted by the attempt for an event up."""
    last_barrier: int | None = None
    """Last barrier that the attempt had passed when it sent this; only on records from attempts."""
    cause: int | None = None
    """Sequence of the record to which this record responds."""
    payload_type: str | None = None
    """Name and version of the payload's type, as in `rules.update@1`, or None if the payload is opaque bytes."""
    payload: bytes | None = None
    reason: str | None = None
    attributes: Mapping[str, str] = field(default_factory=lambda: _NO_ATTRIBUTES)


def acked_events(record: Record) -> tuple[int, ...]:
    """Ids of the events that an `EVENT_ACKED` acks, in the order in which its attempt has handled them."""
    assert record.event_id is not None, "an ack names an event"
    also = record.attributes.get(ALSO_ACKED)
    if also is None:
        return (record.event_id,)
    return (record.event_id, *map(int, also.split(",")))


def driver_key(job_id: str, epoch: int) -> str:
    """Kafka key of records of the driver itself, as in `ingest/epoch/2`."""
    return f"{job_id}/epoch/{epoch}"


def record_key(record: Record) -> str:
    """The Kafka key of a record: its execution attempt, as in `ingest/3/0`, else its driver's epoch."""
    if record.subtask is None or record.attempt_number is None:
        return driver_key(record.job_id, record.epoch)
    return f"{record.job_id}/{record.subtask}/{record.attempt_number}"
