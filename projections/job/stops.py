"""The stop of a driver: the wish, and the end that follows it; facts of its epoch, and no failures of anything."""

from __future__ import annotations

from typing import Final

from coordlog.projections.job.state import STOP_ASKED, STOPPED
from coordlog.schemas.builtin_types import DriverStopped, StopRequested
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record

__all__ = ["is_driver_stopped", "mark_of_stop"]

_DONE: Final = payload_type_of(DriverStopped).key.partition("@")[0] + "@"
_ASKED: Final = payload_type_of(StopRequested).key.partition("@")[0] + "@"


def is_driver_stopped(record: Record) -> bool:
    """Whether the driver of the record's epoch does nothing any more after it."""
    return record.kind is Kind.FACT and (record.payload_type or "").startswith(_DONE)


def mark_of_stop(record: Record) -> str | None:
    """Mark that a stop leaves in the job's state: asked for, or done; None if the record is neither."""
    if is_driver_stopped(record):
        return STOPPED
    is_asked = record.kind is Kind.FACT and (record.payload_type or "").startswith(_ASKED)
    return STOP_ASKED if is_asked else None
