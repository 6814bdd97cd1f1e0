"""Observation of one driver: its released turns become samples, spans and events, on a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from coordlog.limits import TELEMETRY_CLOSE_S, TELEMETRY_TURNS_MAX
from coordlog.projections.inspection.verdict import Thresholds, Verdict
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.job.state import JobState
from coordlog.projections.telemetry.lineage import LineageFold, RunEvent
from coordlog.projections.telemetry.metrics import (
    APPEND,
    DROPPED,
    HEALTHY,
    Instrument,
    MeasureFold,
    Pulse,
    Sample,
    gauges_of,
)
from coordlog.projections.telemetry.spans import Span, SpanFold
from coordlog.schemas.record import Record
from coordlog.telemetry.health import Health, health_of
from coordlog.telemetry.worker import BoundedWorker

__all__ = ["Observer", "Reporter"]

_log = logging.getLogger(__name__)

_US: Final = 1_000_000


class Reporter(Protocol):
    """Adapter of one library. Its methods but `end` are called on one thread at a time."""

    @property
    def takes_spans(self) -> bool:
        """Whether it reports spans; otherwise `report` may get none."""
        ...

    @property
    def takes_events(self) -> bool:
        """Whether it reports events; otherwise `report` may get none."""
        ...

    def begin(self, job_id: str, gauges: Callable[[], list[Sample]]) -> None:
        """Begin a job; `gauges` may be called on any thread from now on."""
        ...

    def report(
        self, samples: Sequence[Sample], spans: Sequence[Span], events: Sequence[RunEvent]
    ) -> None:
        """Report the additions of some turns, with one sample for each counter and its labels."""
        ...

    def end(self, timeout_s: float) -> None:
        """Send the rest within the time limit. Called once, last, on another thread."""
        ...


class _Released(NamedTuple):
    """A turn in force. A tuple, because one is made for each turn."""

    records: Sequence[Record]
    append_s: float | None
    state: JobState | None
    """State after it, if turns before it were dropped. Else None, so that old states are freed at once."""


class Observer:
    """Implements `coordlog.runtime.ports.Observer`.

    Its reporters may be slow or fail: the driver neither waits nor fails. If more turns wait than
    `TELEMETRY_TURNS_MAX`, further ones are dropped and counted; gauges and health stay correct.
    """

    def __init__(self, reporters: Sequence[Reporter], thresholds: Thresholds | None = None) -> None:
        self._reporters = tuple(reporters)
        self._lock = threading.Lock()
        self._thresholds = thresholds or Thresholds()
        self._verdicts = VerdictFold(thresholds=self._thresholds)
        self._measures, self._spans, self._lineage = MeasureFold(), SpanFold(), LineageFold()
        self._state: JobState | None = None
        self._pulse: Callable[[], Pulse] | None = None
        self._worker: BoundedWorker[_Released] | None = None
        self._is_gap = False
        self._dropped_seen = 0
        self._failed: set[Reporter] = set()
        """Reporters with a logged error: further errors are not logged."""
        self._has_ended = self._has_spans = self._has_events = False

    # --- for the driver -----------------------------------------------------------------------------------------------
    def begin(self, state: JobState, pulse: Callable[[], Pulse]) -> None:
        """See `Observer` of the runtime."""
        self._state, self._pulse = state, pulse
        self._verdicts.begin(state)
        self._measures.begin(state)
        self._spans.begin(state.job_id, state.epoch, state.timestamp_us)
        for reporter in self._reporters:
            reporter.begin(state.job_id, self.gauges)
        self._has_spans = any(reporter.takes_spans for reporter in self._reporters)
        self._has_events = any(reporter.takes_events for reporter in self._reporters)
        self._report([], [], self._lineage.begin(state))
        self._worker = BoundedWorker("telemetry", self._handle, TELEMETRY_TURNS_MAX)

    def released(self, records: Sequence[Record], state: JobState, append_s: float | None) -> None:
        """See `Observer` of the runtime."""
        self._state = state
        if self._worker is not None:
            released = _Released(records, append_s, state if self._is_gap else None)
            self._is_gap = not self._worker.offer(released)

    def end(self) -> None:
        """See `Observer` of the runtime."""
        if self._has_ended:
            return
        self._has_ended = True
        until_s = time.monotonic() + TELEMETRY_CLOSE_S
        if self._worker is not None:
            self._worker.end(TELEMETRY_CLOSE_S)
        threads = [
            threading.Thread(target=self._end, args=(reporter, until_s), daemon=True)
            for reporter in self._reporters
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(
                max(0.1, until_s - time.monotonic())
            )  # an exporter may try again for longer

    def _end(self, reporter: Reporter, until_s: float) -> None:
        try:
            reporter.end(max(0.1, until_s - time.monotonic()))
        except Exception:  # noqa: BLE001, as in `_report`
            _log.warning("the end of %s failed", type(reporter).__name__, exc_info=True)

    # --- for the endpoint and the reporters: any thread ---------------------------------------------------------------
    def gauges(self) -> list[Sample]:
        """The gauges now; none before `begin`."""
        state, pulse = self._state, self._pulse
        if state is None or pulse is None:
            return []
        with self._lock:
            samples = list(gauges_of(state, self._measures, pulse()))
        return [*samples, Sample(HEALTHY, int(self.health().is_healthy))]

    def health(self) -> Health:
        """Health of the job now."""
        return health_of(self.verdict())

    def verdict(self) -> Verdict | None:
        """Verdict on the job now, or None before `begin`."""
        if self._pulse is None:
            return None
        pulse = self._pulse()
        since_us = None
        if pulse.append_pending_s:
            since_us = pulse.now_us - round(pulse.append_pending_s * _US)
        with self._lock:
            return self._verdicts.verdict(pulse.now_us, append_since_us=since_us)

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _handle(self, turns: Sequence[_Released]) -> None:
        """Fold turns, and report their additions."""
        samples: list[Sample] = []
        spans: list[Span] = []
        events: list[RunEvent] = []
        for released in turns:
            if released.append_s is not None:
                samples.append(Sample(APPEND, released.append_s))
            with self._lock:
                samples.extend(self._measured(released))
            if self._has_spans:
                for record in released.records:
                    spans.extend(self._spans.apply(record))
            if self._has_events:
                for record in released.records:
                    events.extend(self._lineage.apply(record))
        samples.extend(self._dropped())
        self._report(_merged(samples), spans, events)

    def _measured(self, released: _Released) -> list[Sample]:
        """Samples of a turn. The verdict's fold takes in its records, or after a gap the state that follows."""
        if released.state is not None:
            self._verdicts = VerdictFold(thresholds=self._thresholds)
            self._verdicts.begin(released.state)
        else:
            for record in released.records:
                self._verdicts.apply(record)
        return [sample for record in released.records for sample in self._measures.apply(record)]

    def _dropped(self) -> list[Sample]:
        """The turns that were dropped since the last call."""
        assert self._worker is not None, "begun"
        count = self._worker.dropped - self._dropped_seen
        if not count:
            return []
        self._dropped_seen += count
        return [Sample(DROPPED, count)]

    def _report(
        self, samples: Sequence[Sample], spans: Sequence[Span], events: Sequence[RunEvent]
    ) -> None:
        for reporter in self._reporters:
            try:
                reporter.report(samples, spans, events)
            except Exception:  # noqa: BLE001, a report may fail; the job, and the other reports, must not
                if reporter not in self._failed:
                    self._failed.add(reporter)
                    name = type(reporter).__name__
                    _log.warning("%s failed; further errors are not logged", name, exc_info=True)


def _merged(samples: Sequence[Sample]) -> list[Sample]:
    """The samples, with one for each counter and its labels: each costs a call of a library."""
    counted: dict[tuple[str, tuple[str, ...]], Sample] = {}
    merged: list[Sample] = []
    for sample in samples:
        metric, value, labels = sample
        if metric.instrument is not Instrument.COUNTER:
            merged.append(sample)
            continue
        key = (metric.name, labels)
        before = counted.get(key)
        counted[key] = sample if before is None else Sample(metric, before.value + value, labels)
    return [*merged, *counted.values()]
