"""Metrics of a job: their one table, the samples that a record adds, and gauges of a state.

Counters and histograms are of one driver: they begin at 0 with its epoch, as those of a process do. Names follow the
semantic conventions of OpenTelemetry; in Prometheus' text they have underscores, the unit and `_total`.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.state import JobState, Phase, sorted_values
from coordlog.projections.tables.attempts import split_ids
from coordlog.projections.tables.payload_json import Fields, PayloadReader
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record, acked_events

__all__ = [
    "APPEND",
    "BUCKETS_S",
    "DROPPED",
    "HEALTHY",
    "JOB_LABEL",
    "METRICS",
    "Instrument",
    "MeasureFold",
    "Metric",
    "Pulse",
    "Sample",
    "gauges_of",
    "prometheus_label",
    "prometheus_name",
]

_DISCOVERED: Final = "coordlog.splits_discovered@"
_SKIPPED: Final = "coordlog.split_skipped@"
_SENT_MAX: Final = 100_000
"""Number of un-acked events with a remembered time; of more, only the newest have one."""


class Instrument(enum.Enum):
    """Kind of a metric."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of a job."""

    name: str
    instrument: Instrument
    unit: str
    """Unit by UCUM; in braces what is counted."""
    text: str
    labels: tuple[str, ...] = ()
    """Attributes besides `coordlog.job.id`."""


class Sample(NamedTuple):
    """An addition to a counter, a value of a histogram, or the value of a gauge."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    """Values of the metric's labels, in their order."""


def _counter(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, instrument=Instrument.COUNTER, unit=unit, text=text, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, instrument=Instrument.HISTOGRAM, unit="s", text=text, labels=labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, instrument=Instrument.GAUGE, unit=unit, text=text, labels=labels)


RECORDS: Final = _counter(
    "coordlog.records", "{record}", "Records in force.", "coordlog.record.kind"
)
APPEND: Final = _histogram("coordlog.append.duration", "Time of an append of a group of turns.")
CHECKPOINTS: Final = _counter(
    "coordlog.checkpoints", "{checkpoint}", "Ended checkpoints.", "coordlog.checkpoint.outcome"
)
CHECKPOINT: Final = _histogram(
    "coordlog.checkpoint.duration",
    "Time from a checkpoint's trigger to its end.",
    "coordlog.checkpoint.outcome",
)
ATTEMPTS_STARTED: Final = _counter(
    "coordlog.attempts.started", "{attempt}", "Attempts that have begun."
)
ATTEMPTS: Final = _counter(
    "coordlog.attempts", "{attempt}", "Ended attempts.", "coordlog.attempt.outcome"
)
FAILOVERS: Final = _counter(
    "coordlog.failovers",
    "{failover}",
    "Failures: of an attempt (local), or of the whole job (global).",
    "coordlog.failover.scope",
)
SPLITS_DISCOVERED: Final = _counter(
    "coordlog.splits.discovered", "{split}", "Splits that listings have found."
)
SPLITS_FINISHED: Final = _counter(
    "coordlog.splits.finished", "{split}", "Splits read to their end; again if work was lost."
)
SPLITS_SKIPPED: Final = _counter("coordlog.splits.skipped", "{split}", "Skipped splits.")
ROWS_READ: Final = _counter(
    "coordlog.rows.read", "{row}", "Rows of the splits read to their end; again if work was lost."
)
ROWS_PUBLISHED: Final = _counter(
    "coordlog.rows.published", "{row}", "Rows that commits have made visible."
)
BYTES_PUBLISHED: Final = _counter(
    "coordlog.published.size", "By", "Bytes of files that commits have made visible."
)
FILES_PUBLISHED: Final = _counter(
    "coordlog.files.published", "{file}", "Files that commits have made visible."
)
COMMITS: Final = _counter(
    "coordlog.commits",
    "{try}",
    "Tries to carry out an intent: settled, or failed and to be repeated.",
    "coordlog.commit.outcome",
)
COMMIT: Final = _histogram("coordlog.commit.duration", "Time from an intent to its outcome.")
EVENTS: Final = _counter(
    "coordlog.events", "{event}", "Operator events sent.", "coordlog.event.direction"
)
EVENT_ACK: Final = _histogram(
    "coordlog.event.ack.duration", "Time from the send of an event to a subtask to its ack."
)
EPOCH: Final = _gauge("coordlog.epoch", "1", "Epoch of the driver.")
PHASE: Final = _gauge("coordlog.phase", "1", "1 for the job's phase.", "coordlog.job.phase")
LAST_CHECKPOINT: Final = _gauge(
    "coordlog.checkpoint.last", "1", "Id of the last completed checkpoint; -1 before the first."
)
CHECKPOINT_AGE: Final = _gauge(
    "coordlog.checkpoint.age",
    "s",
    "Time since the last completed checkpoint of this driver, or its beginning.",
)
PENDING: Final = _gauge("coordlog.checkpoint.pending", "{checkpoint}", "Checkpoints in progress.")
LIVE: Final = _gauge("coordlog.attempts.live", "{attempt}", "Running attempts.")
PARALLELISM: Final = _gauge("coordlog.subtasks", "{subtask}", "Subtasks of the job.")
INTENTS: Final = _gauge("coordlog.commits.open", "{commit}", "Intents without an outcome.")
INTENT_AGE: Final = _gauge(
    "coordlog.commit.open.age",
    "s",
    "Age of the oldest intent without an outcome, from this driver's beginning at most; 0 without one.",
)
HELD: Final = _gauge("coordlog.events.held", "{event}", "Events that wait for checkpoints.")
UNACKED: Final = _gauge(
    "coordlog.events.unacked", "{event}", "Events without an ack, held ones too."
)
MAILBOX: Final = _gauge("coordlog.mailbox.messages", "{message}", "Messages that wait for a turn.")
TURNS: Final = _gauge("coordlog.turns.unreleased", "{turn}", "Turns that wait for the log.")
APPEND_PENDING: Final = _gauge(
    "coordlog.append.pending", "s", "Time for which the append in flight has waited; 0 without one."
)
HEALTHY: Final = _gauge("coordlog.healthy", "1", "1 if /healthz responds with 200, else 0.")
DROPPED: Final = _counter(
    "coordlog.telemetry.dropped",
    "{turn}",
    "Turns that are missing in counters, histograms, traces and lineage, because a queue was full.",
)

METRICS: Final = (
    RECORDS,
    APPEND,
    CHECKPOINTS,
    CHECKPOINT,
    ATTEMPTS_STARTED,
    ATTEMPTS,
    FAILOVERS,
    SPLITS_DISCOVERED,
    SPLITS_FINISHED,
    SPLITS_SKIPPED,
    ROWS_READ,
    ROWS_PUBLISHED,
    BYTES_PUBLISHED,
    FILES_PUBLISHED,
    COMMITS,
    COMMIT,
    EVENTS,
    EVENT_ACK,
    EPOCH,
    PHASE,
    LAST_CHECKPOINT,
    CHECKPOINT_AGE,
    PENDING,
    LIVE,
    PARALLELISM,
    INTENTS,
    INTENT_AGE,
    HELD,
    UNACKED,
    MAILBOX,
    TURNS,
    APPEND_PENDING,
    HEALTHY,
    DROPPED,
)
"""All metrics, in the order of the docs."""

JOB_LABEL: Final = "coordlog.job.id"
"""Label of every metric."""

BUCKETS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""Upper bounds of the histograms' buckets, in seconds."""

_UNITS: Final = {"s": "_seconds", "By": "_bytes"}


def prometheus_name(metric: Metric) -> str:
    """Name in Prometheus' text, without `_bucket`, `_sum` and `_count` of a histogram."""
    name = metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")
    return name + "_total" if metric.instrument is Instrument.COUNTER else name


def prometheus_label(label: str) -> str:
    """Name of a label in Prometheus' text."""
    return label.replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Values of the driver's process at one moment, which no record has."""

    now_us: int
    """Microseconds since 1970, UTC."""
    mailbox_messages: int = 0
    unreleased_turns: int = 0
    append_pending_s: float = 0.0
    """Time for which the append in flight has waited; 0 without one."""


_COUNTED: Final = {kind: Sample(RECORDS, 1, (kind.value,)) for kind in Kind}
_MEASURED: Final = frozenset(
    {
        Kind.ATTEMPT_FAILED,
        Kind.ATTEMPT_STARTED,
        Kind.CHECKPOINT_ABORTED,
        Kind.CHECKPOINT_COMPLETED,
        Kind.CHECKPOINT_TRIGGERED,
        Kind.COMMIT_INTENT,
        Kind.COMMIT_OUTCOME,
        Kind.EPOCH_STARTED,
        Kind.EVENT_ACKED,
        Kind.EVENT_FAILED,
        Kind.EVENT_TO_COORDINATOR,
        Kind.EVENT_TO_SUBTASK,
        Kind.FACT,
        Kind.GLOBAL_FAILURE,
        Kind.SPLIT_FINISHED,
        Kind.SUBTASK_COMPLETED,
        Kind.TYPE_REGISTERED,
    }
)
"""Kinds of records that add more than their number."""


class MeasureFold:
    """Samples of counters and histograms; `apply` takes each record that counts, in log order."""

    def __init__(self) -> None:
        self._reader = PayloadReader()
        self._triggered_us: dict[int, int] = {}
        """Time of the trigger of each checkpoint in progress."""
        self._intended_us: dict[int, int] = {}
        """Time of each intent of this driver without an outcome, by sequence."""
        self._sent_us: OrderedDict[int, int] = OrderedDict()
        """Time of each event to a subtask without an ack, by event id."""
        self._live: dict[int, int] = {}
        """Number of the live attempt, by subtask."""
        self.last_completed_us = 0
        """Time of the last completed checkpoint, or of the driver's beginning."""
        self.began_us = 0

    def begin(self, state: JobState) -> None:
        """Begin with the state of a driver that has taken over."""
        self._reader.begin(state.schemas)
        self.last_completed_us = self.began_us = state.timestamp_us

    @property
    def intended_us(self) -> Mapping[int, int]:
        """Time of each open intent of this driver, by sequence."""
        return self._intended_us

    def apply(self, record: Record) -> list[Sample]:
        """Apply a record; returns its samples."""
        counted = _COUNTED[record.kind]
        return [counted, *self._samples(record)] if record.kind in _MEASURED else [counted]

    def _samples(self, record: Record) -> Iterator[Sample]:
        match record.kind:
            case Kind.TYPE_REGISTERED:
                self._reader.learn(record)
            case Kind.EPOCH_STARTED:
                self.last_completed_us = self.began_us = record.timestamp_us
            case Kind.CHECKPOINT_TRIGGERED if record.checkpoint_id is not None:
                self._triggered_us[record.checkpoint_id] = record.timestamp_us
            case Kind.CHECKPOINT_COMPLETED | Kind.CHECKPOINT_ABORTED:
                yield from self._checkpoint(record)
            case Kind.ATTEMPT_STARTED | Kind.ATTEMPT_FAILED | Kind.SUBTASK_COMPLETED:
                yield from self._attempt(record)
            case Kind.GLOBAL_FAILURE:
                self._live.clear()  # they end with their job
                yield Sample(FAILOVERS, 1, ("global",))
            case Kind.EVENT_TO_SUBTASK | Kind.EVENT_TO_COORDINATOR:
                yield self._event(record)
            case Kind.EVENT_ACKED | Kind.EVENT_FAILED:
                yield from self._acked(record)
            case Kind.SPLIT_FINISHED:
                yield Sample(SPLITS_FINISHED, 1)
                yield Sample(ROWS_READ, _number(self._fields(record), "rows"))
            case Kind.COMMIT_INTENT if record.sequence is not None:
                self._intended_us[record.sequence] = record.timestamp_us
            case Kind.COMMIT_OUTCOME:
                yield from self._outcome(record)
            case Kind.FACT:
                yield from self._fact(record)
            case _:
                pass

    def _fields(self, record: Record) -> Fields:
        return self._reader.peek(record) or {}

    def _checkpoint(self, record: Record) -> Iterator[Sample]:
        is_completed = record.kind is Kind.CHECKPOINT_COMPLETED
        outcome = ("completed" if is_completed else "aborted",)
        yield Sample(CHECKPOINTS, 1, outcome)
        since_us = self._triggered_us.pop(record.checkpoint_id or NO_CHECKPOINT, None)
        if since_us is not None:
            yield Sample(CHECKPOINT, (record.timestamp_us - since_us) / 1e6, outcome)
        if is_completed:
            self.last_completed_us = record.timestamp_us

    def _attempt(self, record: Record) -> Iterator[Sample]:
        subtask, attempt_number = record.subtask, record.attempt_number
        if subtask is None or attempt_number is None:
            return
        if record.kind is Kind.ATTEMPT_STARTED:
            self._live[subtask] = attempt_number
            yield Sample(ATTEMPTS_STARTED, 1)
            return
        is_live = self._live.get(subtask) == attempt_number
        if is_live:
            del self._live[subtask]
        if record.kind is Kind.SUBTASK_COMPLETED:
            yield Sample(ATTEMPTS, 1, ("completed",))
        elif is_live:
            yield Sample(ATTEMPTS, 1, ("failed",))
            yield Sample(FAILOVERS, 1, ("local",))
        else:
            yield Sample(ATTEMPTS, 1, ("lost",))  # it has ended with its driver or its whole job

    def _event(self, record: Record) -> Sample:
        if record.kind is Kind.EVENT_TO_COORDINATOR:
            return Sample(EVENTS, 1, ("to_coordinator",))
        if record.event_id is not None:
            self._sent_us[record.event_id] = record.timestamp_us
            if len(self._sent_us) > _SENT_MAX:
                self._sent_us.popitem(last=False)
        return Sample(EVENTS, 1, ("to_subtask",))

    def _acked(self, record: Record) -> Iterator[Sample]:
        if record.event_id is None:
            return
        if record.kind is Kind.EVENT_FAILED:
            self._sent_us.pop(record.event_id, None)
            return
        for event_id in acked_events(record):
            sent_us = self._sent_us.pop(event_id, None)
            if sent_us is not None:
                yield Sample(EVENT_ACK, (record.timestamp_us - sent_us) / 1e6)

    def _outcome(self, record: Record) -> Iterator[Sample]:
        if record.attributes.get("settled") != "true":
            yield Sample(COMMITS, 1, ("failed",))
            return
        yield Sample(COMMITS, 1, ("settled",))
        since_us = self._intended_us.pop(-1 if record.cause is None else record.cause, None)
        if since_us is not None:
            yield Sample(COMMIT, (record.timestamp_us - since_us) / 1e6)
        fields = self._fields(record)
        yield Sample(ROWS_PUBLISHED, _number(fields, "rows"))
        yield Sample(FILES_PUBLISHED, _number(fields, "file_count"))
        yield Sample(BYTES_PUBLISHED, _number(fields, "size_bytes"))

    def _fact(self, record: Record) -> Iterator[Sample]:
        name = record.payload_type or ""
        if is_driver_stopped(record):
            self._live.clear()  # their end is no failure
        elif record.attributes.get("closed") == "true":
            return
        elif name.startswith(_DISCOVERED):
            yield Sample(SPLITS_DISCOVERED, len(list(split_ids(self._fields(record)))))
        elif name.startswith(_SKIPPED):
            yield Sample(SPLITS_SKIPPED, 1)


def gauges_of(state: JobState, fold: MeasureFold, pulse: Pulse) -> Iterator[Sample]:
    """The gauges of a running job, except its health.

    Args:
        state: State after the last turn in force.
        fold: Fold of the records up to this state.
        pulse: Values of the driver's process.
    """
    yield Sample(EPOCH, state.epoch)
    for phase in Phase:
        yield Sample(PHASE, int(state.phase is phase), (phase.value,))
    yield Sample(LAST_CHECKPOINT, state.last_checkpoint)
    yield Sample(CHECKPOINT_AGE, max(0, pulse.now_us - fold.last_completed_us) / 1e6)
    yield Sample(PENDING, len(state.pending))
    yield Sample(LIVE, state.live_count)
    yield Sample(PARALLELISM, state.parallelism)
    yield Sample(INTENTS, len(state.intents))
    since_us = min(
        (fold.intended_us.get(key, fold.began_us) for key in state.intents), default=pulse.now_us
    )
    yield Sample(INTENT_AGE, max(0, pulse.now_us - since_us) / 1e6)
    gateways = sorted_values(state.gateways)
    yield Sample(HELD, sum(len(gateway.held) for gateway in gateways))
    yield Sample(UNACKED, sum(len(gateway.unacked) for gateway in gateways))
    yield Sample(MAILBOX, pulse.mailbox_messages)
    yield Sample(TURNS, pulse.unreleased_turns)
    yield Sample(APPEND_PENDING, pulse.append_pending_s)


def _number(fields: Fields, name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
