"""The stop of a driver: the request, and the end that follows; facts of its epoch, not failures."""

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
    """Whether the record is the end of the work of its driver."""
    return record.kind is Kind.FACT and (record.payload_type or "").startswith(_DONE)


def mark_of_stop(record: Record) -> str | None:
    """Mark of a stop in the job's state, requested or done, or None if the record is neither."""
    if is_driver_stopped(record):
        return STOPPED
    is_asked = record.kind is Kind.FACT and (record.payload_type or "").startswith(_ASKED)
    return STOP_ASKED if is_asked else None
