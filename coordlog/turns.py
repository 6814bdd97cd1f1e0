"""One turn of a driver, the record as a log takes it, and the runtime's own limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coordlog.kernel.outputs import Effect
from coordlog.limits import (
    ACK_TIMEOUT_S,
    CHECKPOINT_TIMEOUT_S,
    REGISTRATION_TIMEOUT_S,
    SNAPSHOT_EVERY_RECORDS,
)
from coordlog.log.port import UnstoredRecord
from coordlog.projections.state import JobState
from coordlog.schemas.codec import encode_record, header_of
from coordlog.schemas.header import encode_header
from coordlog.schemas.record import Record, record_key

from .payloads import HeldPayload

__all__ = ["RuntimeOptions", "Turn", "to_unstored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """The runtime's own limits; the kernel's are in its config."""

    checkpoint_interval_s: float | None = None
    """None: no periodic checkpoints."""
    checkpoint_timeout_s: float = CHECKPOINT_TIMEOUT_S
    ack_timeout_s: float = ACK_TIMEOUT_S
    registration_timeout_s: float = REGISTRATION_TIMEOUT_S
    snapshot_every: int | None = SNAPSHOT_EVERY_RECORDS
    """Records that count from one snapshot to the next; None for no snapshots."""
    append_stall_s: float = 1.0
    """An append that takes longer is a log that does not acknowledge: acks' time stands still."""


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """One turn, from its input to its release. Its records are in the state already."""

    sequence: int
    now_us: int
    records: list[Record] = field(default_factory=list)
    effects: list[Effect | Callable[[], None]] = field(default_factory=list)
    unstored: Sequence[UnstoredRecord] = ()
    watched: Sequence[int] = ()
    """Those of its records whose offsets the snapshots need."""
    after: JobState
    """The state at its end."""
    call_count: int = 0
    connection_id: int | None = None
    """Whose message it answers: it may be read on once this turn is released."""
    payloads: Sequence[HeldPayload] = ()
    """What its records may address: stored before they are appended."""


def to_unstored(record: Record, *, snapshot_offset: int = -1) -> UnstoredRecord:
    """The record as a log takes it."""
    return UnstoredRecord(
        key=record_key(record).encode(),
        value=encode_record(record),
        header=encode_header(header_of(record, snapshot_offset=snapshot_offset)),
        timestamp_us=record.timestamp_us,
    )
