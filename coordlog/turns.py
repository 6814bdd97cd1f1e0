"""A turn as a driver holds it, from its input to its release, and its records as a log takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coordlog.kernel.outputs import Effect
from coordlog.log.port import UnstoredRecord
from coordlog.projections.state import JobState
from coordlog.schemas.codec import encode_record, header_of
from coordlog.schemas.header import encode_header
from coordlog.schemas.record import Record, record_key

from .payloads import HeldPayload

__all__ = ["Turn", "to_unstored"]


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
