"""Traces of histories that are written out here; and what an observer makes of states and gaps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from coordlog.log.interface import StoredRecord
from coordlog.projections.job.state import JobState
from coordlog.projections.telemetry.lineage import RunEvent
from coordlog.projections.telemetry.metrics import Pulse, Sample
from coordlog.projections.telemetry.spans import Span, SpanFold, spans
from coordlog.schemas.record import Kind, Record
from coordlog.telemetry.observer import Observer
from histories.hand_history import BEGAN_US, SINK, HandHistory

WAIT_S = 10.0
MS = 1000


def records_of(history: HandHistory) -> list[Record]:
    return [
        StoredRecord(offset, one.key, one.value, one.header, one.timestamp_us // MS).record()
        for offset, one in enumerate(history.records)
    ]


def checkpoint(
    history: HandHistory, number: int, *attempts: tuple[int, int], ends: Kind | None
) -> None:
    history.turn(history.record(Kind.CHECKPOINT_TRIGGERED, checkpoint_id=number))
    history.turn(
        history.record(Kind.COORDINATOR_CHECKPOINTED, checkpoint_id=number, operator_id=SINK)
    )
    for attempt in attempts:
        history.turn(history.record(Kind.BARRIER_INJECTED, attempt, checkpoint_id=number))
    for attempt in attempts:
        history.turn(history.record(Kind.CHECKPOINT_ACKED, attempt, checkpoint_id=number))
    if ends is not None:
        history.turn(history.record(ends, checkpoint_id=number, reason="it took too long"))


def begun(parallelism: int = 2) -> HandHistory:
    history = HandHistory()
    history.epoch()
    for subtask in range(parallelism):
        history.turn(history.started((subtask, 0), -1, subtask))
    return history


def lines(found: Sequence[Span]) -> list[tuple[str, int, int, str | None]]:
    """Name, start and length in milliseconds, and error of each span."""
    return [
        (s.name, (s.start_us - BEGAN_US) // MS, (s.end_us - s.start_us) // MS, s.error)
        for s in found
    ]


def test_ids_stay_the_same_for_ever() -> None:
    """Traces of a log that were exported once must not appear twice: so these numbers never change."""
    history = begun(1)
    checkpoint(history, 7, (0, 0), ends=Kind.CHECKPOINT_COMPLETED)

    found = spans(records_of(history))

    assert [(s.name, f"{s.trace_id:032x}", f"{s.span_id:016x}") for s in found] == IDS


# By b2sum, of the texts that projections/telemetry/spans.py joins: printf 'ingest\0000\000restore\0000' | b2sum -l 128
IDS = [
    ("restore", "d04c3873a9712479a98c17ebe9a2c796", "842cc0c2b2a186e4"),
    ("attempt start", "d04c3873a9712479a98c17ebe9a2c796", "6cd866b7b7b6e0fa"),
    ("checkpoint", "6a0a7928ddee46e418db2a205fe91b62", "f5192e6b882fee54"),
    ("checkpoint cut", "6a0a7928ddee46e418db2a205fe91b62", "6da2f3e02395d987"),
    ("checkpoint ack", "6a0a7928ddee46e418db2a205fe91b62", "a828b641cc905701"),
]


def test_a_checkpoint_is_a_root_with_its_cuts_acks_and_commits() -> None:
    history = begun()
    checkpoint(history, 1, (0, 0), (1, 0), ends=Kind.CHECKPOINT_COMPLETED)
    intent = history.turn(history.record(Kind.COMMIT_INTENT, operator_id=SINK, checkpoint_id=1))
    outcome = history.record(Kind.COMMIT_OUTCOME, operator_id=SINK, checkpoint_id=1, cause=intent)
    history.turn(outcome)
    history.turn(replace(outcome, attributes={"settled": "true"}))

    found = [span for span in spans(records_of(history)) if span.name.startswith("c")]

    assert lines(found) == [
        ("checkpoint", 4, 6, None),
        ("checkpoint cut", 4, 1, None),
        ("checkpoint ack", 6, 2, None),
        ("checkpoint ack", 7, 2, None),
        ("commit", 11, 2, None),
    ]
    root, *children = found
    assert root.parent_id is None
    assert {child.parent_id for child in children} == {root.span_id}
    assert {span.trace_id for span in found} == {root.trace_id}
    assert len({span.span_id for span in found}) == 5
    assert root.attributes == {
        "coordlog.job.id": "ingest",
        "coordlog.epoch": 0,
        "coordlog.checkpoint.id": 1,
        "coordlog.checkpoint.outcome": "completed",
    }
    assert children[-1].attributes["coordlog.commit.failed_tries"] == 1


def test_an_aborted_checkpoint_is_an_error_with_the_reason() -> None:
    history = begun()
    checkpoint(history, 1, (0, 0), ends=Kind.CHECKPOINT_ABORTED)

    [root] = [span for span in spans(records_of(history)) if span.name == "checkpoint"]

    assert root.error == "it took too long"
    assert root.attributes["coordlog.checkpoint.outcome"] == "aborted"


def test_a_local_failover_lasts_until_the_subtask_has_an_attempt() -> None:
    history = begun()
    history.turn(
        history.failed((1, 0), "its process has ended"),
        history.record(Kind.SUBTASK_RESET, subtask=1, checkpoint_id=-1),
    )
    history.now_us += 40 * MS
    history.turn(history.started((1, 1), -1, 9))

    [root] = [span for span in spans(records_of(history)) if span.name == "failover"]

    assert lines([root]) == [("failover", 4, 41, None)]
    assert root.attributes["coordlog.failover.scope"] == "local"
    assert root.attributes["coordlog.subtask"] == 1


def test_a_global_failover_has_the_start_of_each_subtask() -> None:
    history = begun()
    history.turn(
        history.record(Kind.GLOBAL_FAILURE, reason="a coordinator raised"),
        history.failed((0, 0), "with its job"),
        history.failed((1, 0), "with its job"),
    )
    history.turn(history.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=-1))
    history.turn(history.started((1, 1), -1, 9))
    history.turn(history.started((0, 1), -1, 10))

    found = [span for span in spans(records_of(history)) if span.trace_id != 0][3:]

    assert lines(found) == [
        ("failover", 4, 2, None),
        ("attempt start", 5, 1, None),
        ("attempt start", 5, 2, None),
    ]
    assert found[0].attributes["coordlog.checkpoint.id"] == -1
    assert [span.attributes.get("coordlog.subtask") for span in found] == [None, 1, 0]


def test_a_failed_job_ends_its_failover_with_the_reason() -> None:
    history = begun(1)
    history.turn(history.record(Kind.GLOBAL_FAILURE, reason="first"))
    history.turn(history.record(Kind.JOB_FAILED, reason="too many failures"))

    found = spans(records_of(history))

    assert lines(found)[-1] == ("failover", 3, 1, "too many failures")


def test_a_killed_driver_leaves_its_open_spans_to_the_next_epoch() -> None:
    history = begun(1)
    checkpoint(history, 1, (0, 0), ends=None)
    history.epoch()
    history.turn(history.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=-1))
    history.turn(history.started((0, 1), -1, 9))

    found = spans(records_of(history))

    assert lines(found)[2:] == [
        ("checkpoint", 3, 3, "its driver has ended"),
        ("checkpoint cut", 3, 1, None),
        ("checkpoint ack", 5, 1, None),
        ("restore", 7, 2, None),
        ("attempt start", 8, 1, None),
    ]
    traces = {span.name: span.trace_id for span in found if span.parent_id is None}
    assert len(traces.keys() & {"restore", "checkpoint"}) == 2
    assert len({span.trace_id for span in found}) == 3, "each epoch has a restore of its own"


def test_a_commit_that_an_earlier_driver_left_is_part_of_the_restore() -> None:
    history = begun(1)
    checkpoint(history, 1, (0, 0), ends=Kind.CHECKPOINT_COMPLETED)
    intent = history.turn(history.record(Kind.COMMIT_INTENT, operator_id=SINK, checkpoint_id=1))
    history.epoch()
    history.turn(
        history.record(
            Kind.COMMIT_OUTCOME, operator_id=SINK, cause=intent, attributes={"settled": "true"}
        )
    )
    history.turn(history.started((0, 1), 1, 9))

    root, *children = spans(records_of(history))[-3:]

    assert root.name == "restore"
    assert [child.name for child in children] == ["commit", "attempt start"]
    assert {child.parent_id for child in children} == {root.span_id}


def test_a_driver_that_begins_with_its_state_makes_the_same_spans() -> None:
    """A live driver sees no `EPOCH_STARTED`; its fold begins with the state after it."""
    history = begun(1)
    checkpoint(history, 1, (0, 0), ends=Kind.CHECKPOINT_COMPLETED)
    first, *rest = records_of(history)
    live = SpanFold()

    live.begin(first.job_id, first.epoch, first.timestamp_us)

    assert [span for record in rest for span in live.apply(record)] == spans([first, *rest])


def test_a_pruned_log_has_the_traces_from_its_next_epoch_on() -> None:
    history = begun(1)
    checkpoint(history, 1, (0, 0), ends=Kind.CHECKPOINT_COMPLETED)

    assert spans(records_of(history)[1:]) == []


# --- the observer -----------------------------------------------------------------------------------------------------
class Noting:
    """A reporter that can be held at its first turn."""

    takes_spans = takes_events = False

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self.samples: list[Sample] = []

    def begin(self, job_id: str, gauges: Callable[[], list[Sample]]) -> None:
        self.gauges = gauges

    def report(
        self, samples: Sequence[Sample], spans: Sequence[Span], events: Sequence[RunEvent]
    ) -> None:
        if samples:
            self.entered.set()
            assert self.release.wait(WAIT_S)
        self.samples.extend(samples)

    def end(self, timeout_s: float) -> None:
        pass

    def total(self, name: str) -> float:
        return sum(sample.value for sample in self.samples if sample.metric.name == name)


def state_at(now_us: int) -> JobState:
    return JobState(job_id="ingest", epoch=0, driver_id="driver-0", timestamp_us=now_us)


def test_an_append_that_waits_makes_the_job_unhealthy_with_the_reason() -> None:
    pulse = Pulse(now_us=BEGAN_US + 61_000_000, append_pending_s=61.0)
    observer = Observer([])
    observer.begin(state_at(BEGAN_US), lambda: pulse)

    health = observer.health()
    observer.end()

    assert not health.is_healthy
    assert health.reason == "the log has not acknowledged an append"
    assert [s.value for s in observer.gauges() if s.metric.name == "coordlog.healthy"] == [0]


def test_dropped_turns_are_counted_and_health_continues_from_a_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordlog.telemetry.observer.TELEMETRY_TURNS_MAX", 1)
    history = begun(1)
    records = records_of(history)
    noting = Noting()
    observer = Observer([noting])
    moment = Pulse(now_us=BEGAN_US)
    observer.begin(state_at(BEGAN_US), lambda: moment)

    observer.released([records[1]], state_at(BEGAN_US + 1), 0.01)
    assert noting.entered.wait(WAIT_S)
    for number in range(2, 6):  # the first of these waits, the others are dropped
        observer.released([records[1]], state_at(BEGAN_US + number), None)
    noting.release.set()
    waited = threading.Event()
    for _ in range(1000):
        if noting.total("coordlog.records") == 2:
            break
        waited.wait(0.01)
    observer.released([records[1]], state_at(BEGAN_US + 7_000_000), None)
    observer.end()

    assert noting.total("coordlog.records") == 3
    assert noting.total("coordlog.telemetry.dropped") == 3
    verdict = observer.verdict()
    assert verdict is not None
    assert observer._verdicts._waits.last_us == BEGAN_US + 7_000_000, "begun anew after the gap"
