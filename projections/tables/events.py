"""Every operator event of a job: when it was sent, and when it was acked or why it failed.

A fold of the records that count. A job may have any number of events, so that a row is given as
soon as its event is settled, and only those that are on their way are kept.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from coordlog.schemas.payload_address import content_length
from coordlog.schemas.record import Kind, Record

__all__ = ["EventDirection", "EventFold", "EventRow", "EventStatus", "events"]


class EventDirection(enum.Enum):
    """Which way an event goes."""

    DOWN = "down"
    """From a coordinator to a subtask."""
    UP = "up"
    """From a subtask to a coordinator."""


class EventStatus(enum.Enum):
    """What became of an event."""

    SENT = "sent"
    """On its way down."""
    ACKED = "acked"
    """Its attempt has processed it."""
    FAILED = "failed"
    """Its attempt never will."""
    HANDLED = "handled"
    """By its coordinator, at its place in the log."""
    REDELIVERED = "redelivered"
    """Handled again, after a restore: a row besides the first one."""
    SKIPPED = "skipped"
    """Neither delivered nor handled (clause J2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event, one way."""

    sequence: int
    """Of the record that sent it, or that handed it over again."""
    direction: EventDirection
    operator_id: str
    subtask: int
    attempt_number: int
    event_id: int
    """Of an event down: job-wide, never used twice. Of one up: the attempt's own count."""
    event_type: str | None
    payload_bytes: int
    """As long as it is where it is kept; 0 of one that is handled again."""
    sent_us: int | None
    """Microseconds since 1970, UTC. None where its attempt was over before."""
    ended_us: int | None
    """When it was acked or had failed; of one up when it was handled."""
    status: EventStatus
    reason: str | None
    """Why it failed, or is skipped."""
    held_by: str | None
    """The checkpoints that held it when it was sent, with commas between them."""

    @property
    def milliseconds(self) -> float | None:
        """From its sending to its ack; None where it was not acked."""
        if self.status is not EventStatus.ACKED or self.sent_us is None or self.ended_us is None:
            return None
        return (self.ended_us - self.sent_us) / 1000


def events(records: Iterable[Record]) -> Iterator[EventRow]:
    """The events of a job: settled ones in the order in which they were settled, then the others.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    fold = EventFold()
    for record in records:
        yield from fold.apply(record)
    yield from fold.rows()


class EventFold:
    """The fold behind `events`.

    `apply` takes each record that counts, in log order, and gives what it settles; `rows` has what
    is on its way.
    """

    def __init__(self) -> None:
        self._sent: dict[int, EventRow] = {}

    def rows(self) -> tuple[EventRow, ...]:
        """The events down that are neither acked nor failed, by id."""
        return tuple(self._sent[key] for key in sorted(self._sent))

    def apply(self, record: Record) -> tuple[EventRow, ...]:
        """One more record."""
        match record.kind:
            case Kind.EVENT_TO_SUBTASK:
                row = _row(record, EventDirection.DOWN, EventStatus.SENT)
                self._sent[row.event_id] = row
                return ()
            case Kind.EVENT_TO_COORDINATOR:
                return (_up(record, EventStatus.HANDLED),)
            case Kind.EVENT_REDELIVERED:
                return (_up(record, EventStatus.REDELIVERED),)
            case Kind.EVENT_ACKED:
                return self._settled(record, EventStatus.ACKED)
            case Kind.EVENT_FAILED:
                if record.attributes.get("never_sent") == "true":
                    row = _row(record, EventDirection.DOWN, EventStatus.FAILED)
                    return (replace(row, sent_us=None, ended_us=record.timestamp_us),)
                return self._settled(record, EventStatus.FAILED)
            case _:
                return ()

    def _settled(self, record: Record, status: EventStatus) -> tuple[EventRow, ...]:
        sent = None if record.event_id is None else self._sent.pop(record.event_id, None)
        if sent is None:
            return ()  # it was sent before the snapshot with which the log begins
        if record.attributes.get("skipped") == "true":
            status = EventStatus.SKIPPED
        ended = replace(sent, status=status, ended_us=record.timestamp_us, reason=record.reason)
        return (ended,)


def _up(record: Record, status: EventStatus) -> EventRow:
    if record.attributes.get("skipped") == "true":
        status = EventStatus.SKIPPED
    row = _row(record, EventDirection.UP, status)
    return replace(row, ended_us=record.timestamp_us, reason=record.reason)


def _row(record: Record, direction: EventDirection, status: EventStatus) -> EventRow:
    assert record.subtask is not None
    assert record.attempt_number is not None
    assert record.event_id is not None
    return EventRow(
        sequence=-1 if record.sequence is None else record.sequence,
        direction=direction,
        operator_id=record.operator_id or "",
        subtask=record.subtask,
        attempt_number=record.attempt_number,
        event_id=record.event_id,
        event_type=record.payload_type,
        payload_bytes=content_length(record.payload),
        sent_us=record.timestamp_us,
        ended_us=None,
        status=status,
        reason=record.reason,
        held_by=record.attributes.get("held_by"),
    )
