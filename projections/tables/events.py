"""Every operator event of a job: when it was sent, and when it was acked or why it failed.

A fold of the records that count. A job may have any number of events, so a row is returned as soon
as its event is settled, and only events in flight are kept.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from coordlog.projections.job.state import JobState, sorted_items, sorted_values
from coordlog.schemas.payload_address import content_length
from coordlog.schemas.record import SKIPPED_BY, Kind, Record, acked_events

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
    """In flight to its subtask."""
    ACKED = "acked"
    """Its attempt has processed it."""
    FAILED = "failed"
    """Its attempt will never process it."""
    HANDLED = "handled"
    """Handled by its coordinator, at its place in the log."""
    REDELIVERED = "redelivered"
    """Handled again, after a restore: a row besides the first one."""
    SKIPPED = "skipped"
    """Neither delivered nor handled (J2: skip poison)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event, one way."""

    sequence: int
    """Sequence of the record that sent the event, or redelivered it."""
    direction: EventDirection
    operator_id: str
    subtask: int
    attempt_number: int
    event_id: int
    """Id of the event. Down: unique in the job. Up: the attempt's own count."""
    event_type: str | None
    payload_bytes: int
    """Length of the payload as stored; 0 if the event is handled again."""
    sent_us: int | None
    """Microseconds since 1970, UTC, or None if its attempt was over before, or a prune has removed the record."""
    ended_us: int | None
    """Time of the ack or the failure; of an event up, time of its handling."""
    status: EventStatus
    reason: str | None
    """Reason of the failure or the skip."""
    held_by: str | None
    """Checkpoints that held the event when it was sent, separated by commas."""

    @property
    def milliseconds(self) -> float | None:
        """Time from sending to ack, or None if the event was not acked."""
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

    `apply` takes each record that counts, in log order, and returns the events that it settles;
    `rows` returns the events in flight.
    """

    def __init__(self) -> None:
        self._sent: dict[int, EventRow] = {}

    def begin(self, state: JobState) -> None:
        """Begin with the events in flight in the state at the first record of a pruned log."""
        for _, gateway in sorted_items(state.gateways):
            for event in sorted_values(gateway.unacked):
                self._sent[event.event_id] = EventRow(
                    sequence=event.sequence,
                    direction=EventDirection.DOWN,
                    operator_id=event.operator_id,
                    subtask=event.subtask,
                    attempt_number=event.attempt_number,
                    event_id=event.event_id,
                    event_type=event.payload_type,
                    payload_bytes=content_length(event.payload),
                    sent_us=None,
                    ended_us=None,
                    status=EventStatus.SENT,
                    reason=None,
                    held_by=None,
                )

    def rows(self) -> tuple[EventRow, ...]:
        """The events down that are neither acked nor failed, by id."""
        return tuple(self._sent[key] for key in sorted(self._sent))

    def apply(self, record: Record) -> tuple[EventRow, ...]:
        """Apply one record; returns the events that it settles."""
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
                return tuple(
                    row
                    for event_id in acked_events(record)
                    for row in self._settled(record, event_id, EventStatus.ACKED)
                )
            case Kind.EVENT_FAILED:
                if record.attributes.get("never_sent") == "true":
                    row = _row(record, EventDirection.DOWN, EventStatus.FAILED)
                    return (replace(row, sent_us=None, ended_us=record.timestamp_us),)
                return self._settled(record, record.event_id, EventStatus.FAILED)
            case _:
                return ()

    def _settled(
        self, record: Record, event_id: int | None, status: EventStatus
    ) -> tuple[EventRow, ...]:
        sent = None if event_id is None else self._sent.pop(event_id, None)
        if sent is None:
            return ()  # this version cannot read the snapshot with which the log begins
        if SKIPPED_BY in record.attributes:
            status = EventStatus.SKIPPED
        ended = replace(sent, status=status, ended_us=record.timestamp_us, reason=record.reason)
        return (ended,)


def _up(record: Record, status: EventStatus) -> EventRow:
    if SKIPPED_BY in record.attributes:
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
