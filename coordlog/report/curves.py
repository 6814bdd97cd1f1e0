"""Facts of a report over time: how long events take, how many wait, how late the log's own times are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import AuditRecord
from coordlog.projections.tables.events import EventFold, EventStatus
from coordlog.report.columns import Table, Texts
from coordlog.report.places import Places
from coordlog.schemas.record import Kind, Record

__all__ = ["CurveFacts", "quantile"]

PARTS_MAX: Final = 400
"""Number of parts into which the time of a curve is divided: as many as a screen shows."""
_SLOWEST: Final = 3
"""Number of events that are listed for each part."""
_LAG_MS: Final = 2
"""If a record's time differs from its log's by this much, the log has times of its own."""


class _Sample(NamedTuple):
    offset: int
    timestamp_us: int
    ms: float


class _Event(NamedTuple):
    sequence: int
    subtask: int
    status: EventStatus


@dataclass(slots=True)
class _Part:
    last: _Sample
    values: list[float] = field(default_factory=list)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values, sorted ascending, that at least this share of them does not exceed."""
    rank = max(0, -int(-share * len(values) // 1) - 1)
    return values[min(rank, len(values) - 1)]


class CurveFacts:
    """Latencies and waiting events. `apply` takes each record that counts, in log order."""

    def __init__(self, places: Places, texts: Texts) -> None:
        self._places, self._texts = places, texts
        self._fold = EventFold()
        self._samples: list[_Sample] = []
        self._events: list[_Event] = []
        self._waiting: list[tuple[int, int, int]] = []
        """Time, and number of un-acked and of held events from then on."""
        self._unacked = 0
        self._held: dict[int, tuple[int | None, set[int]]] = {}
        """Subtask, and checkpoints that hold the event, by event id."""
        self._lags: list[_Sample] = []

    def begin(self, state: JobState) -> None:
        """Begin with the state at the first record of a pruned log."""
        self._fold.begin(state)
        self._unacked = len(self._fold.rows())

    def apply(self, entry: AuditRecord, record: Record, _row: int) -> None:
        """Apply one record."""
        before = (self._unacked, len(self._held))
        now_us = record.timestamp_us
        lag_ms = entry.timestamp_ms - now_us // 1000
        if lag_ms >= _LAG_MS and record.turn_remaining == 0:
            self._lags.append(_Sample(entry.offset, now_us, float(lag_ms)))
        match record.kind:
            case Kind.EVENT_TO_SUBTASK:
                self._unacked += 1
                held_by = record.attributes.get("held_by", "")
                numbers = {int(text) for text in held_by.split(",") if text.isdecimal()}
                if numbers and record.event_id is not None:
                    self._held[record.event_id] = (record.subtask, numbers)
            case Kind.BARRIER_INJECTED | Kind.CHECKPOINT_ABORTED:
                self._release(record.checkpoint_id, record.subtask)
            case Kind.RESET_TO_CHECKPOINT:
                self._held.clear()
            case _:
                pass
        for event in self._fold.apply(record):
            if event.event_id in self._held and record.kind is Kind.EVENT_FAILED:
                del self._held[event.event_id]
            if record.kind in (Kind.EVENT_ACKED, Kind.EVENT_FAILED) and event.sent_us is not None:
                self._unacked = max(0, self._unacked - 1)
            if event.milliseconds is not None:
                self._samples.append(_Sample(entry.offset, now_us, event.milliseconds))
                self._events.append(_Event(event.sequence, event.subtask, event.status))
        after = (self._unacked, len(self._held))
        if after != before:
            self._waiting.append((now_us, *after))

    def _release(self, number: int | None, subtask: int | None) -> None:
        """Release the events that a checkpoint holds: those to a subtask that has the barrier, or all."""
        for event_id, (of_subtask, numbers) in list(self._held.items()):
            if subtask is None or of_subtask == subtask:
                numbers.discard(-1 if number is None else number)
                if not numbers:
                    del self._held[event_id]

    def tables(self) -> Iterator[tuple[str, Table]]:
        """The tables."""
        yield "events", self._slowest()
        latency = Table("off", "t", "count", "p50", "p99", "max", "unacked", "held")
        waiting = iter(self._waiting)
        pending, level = next(waiting, None), (0, 0)
        for part in _parts(self._samples):
            while pending is not None and pending[0] <= part.last.timestamp_us:
                level, pending = pending[1:], next(waiting, None)
            latency.add(*self._row(part), *level)
        yield "latency", latency
        appends = Table("off", "t", "count", "p50", "p99", "max")
        for part in _parts(self._lags):
            appends.add(*self._row(part))
        yield "appends", appends

    def _row(self, part: _Part) -> tuple[int, int | None, int, float, float, float]:
        values = sorted(part.values)
        return (
            part.last.offset,
            self._places.since(part.last.timestamp_us),
            len(values),
            round(quantile(values, 0.5), 3),
            round(quantile(values, 0.99), 3),
            round(values[-1], 3),
        )

    def _slowest(self) -> Table:
        table = Table("off", "t", "end_off", "end_t", "sub", "ms", "status")
        shown: list[int] = []
        numbered = [
            _Sample(number, sample.timestamp_us, sample.ms)
            for number, sample in enumerate(self._samples)
        ]
        for samples in _grouped(numbered):
            slowest = sorted(samples, key=lambda sample: -sample.ms)[:_SLOWEST]
            shown.extend(sample.offset for sample in slowest)
        for number in sorted(shown):
            sample, event = self._samples[number], self._events[number]
            table.add(
                self._places.offset(event.sequence),
                self._places.time(event.sequence),
                sample.offset,
                self._places.since(sample.timestamp_us),
                event.subtask,
                sample.ms,
                self._texts.number(event.status.value),
            )
        return table


def _parts(samples: Iterable[_Sample]) -> Iterator[_Part]:
    for group in _grouped(list(samples)):
        yield _Part(group[-1], [sample.ms for sample in group])


def _grouped(samples: Sequence[_Sample]) -> Iterator[list[_Sample]]:
    """Samples in log order, in at most `PARTS_MAX` parts of equal time; parts without any are left out."""
    if not samples:
        return
    first = samples[0].timestamp_us
    width = max(1, -(-(samples[-1].timestamp_us - first + 1) // PARTS_MAX))
    group: list[_Sample] = []
    for sample in samples:
        if (
            group
            and (sample.timestamp_us - first) // width != (group[-1].timestamp_us - first) // width
        ):
            yield group
            group = []
        group.append(sample)
    yield group
