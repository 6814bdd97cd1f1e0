"""Verdicts on a job at a moment, by records that are written out here; moments are in seconds after the first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.codeless_fold import PlainFold
from coordlog.projections.inspection.verdict import Thresholds, Verdict, VerdictState, WaitingFor
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import audit_records
from coordlog.schemas.builtin_types import AttemptRef, CheckpointTriggered, DriverStopped
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from driven_history import recorded_history
from fakes.kernel_fakes import NotingProvider, chain_of

OPERATORS = '[{"id": "source", "coordinated": true}, {"id": "sink", "coordinated": true}]'
THRESHOLDS = Thresholds()


@dataclass
class Job:
    """Applies records to a verdict fold, each at a time in seconds."""

    parallelism: int = 2
    mode: str = "streaming"
    interval_s: str | None = "10"
    fold: VerdictFold = field(default_factory=VerdictFold)
    epoch_number: int = -1
    sequence: int = 0

    def epoch(self, at_s: float, **attributes: str) -> None:
        self.epoch_number += 1
        known = {"parallelism": str(self.parallelism), "mode": self.mode, "operators": OPERATORS}
        if self.interval_s is not None:
            known["checkpoint_interval_s"] = self.interval_s
        self.apply(at_s, Kind.EPOCH_STARTED, attributes=known | attributes)

    def started(self, at_s: float = 0) -> None:
        """The epoch, its coordinators, and an attempt of each subtask."""
        self.epoch(at_s)
        self.apply(at_s, Kind.COORDINATORS_STARTED)
        for subtask in range(self.parallelism):
            self.apply(at_s, Kind.ATTEMPT_STARTED, subtask=subtask, attempt_number=0)

    def apply(self, at_s: float, kind: Kind, **values: object) -> None:
        record = Record(
            epoch=self.epoch_number,
            driver_id=f"driver-{self.epoch_number}",
            sequence=self.sequence,
            kind=kind,
            timestamp_us=us(at_s),
            job_id="ingest",
        )
        self.fold.apply(replace(record, **values))  # type: ignore[arg-type]
        self.sequence += 1

    def triggered(self, at_s: float, number: int) -> None:
        attempts = [AttemptRef(subtask=n, attempt_number=0) for n in range(self.parallelism)]
        value = CheckpointTriggered(attempts=attempts, finished_subtasks=[])
        declared = payload_type_of(value)
        self.apply(
            at_s,
            Kind.CHECKPOINT_TRIGGERED,
            checkpoint_id=number,
            payload_type=declared.key,
            payload=declared.encode(value),
        )

    def checkpoint(self, at_s: float, number: int) -> None:
        self.triggered(at_s, number)
        self.apply(at_s, Kind.CHECKPOINT_COMPLETED, checkpoint_id=number)

    def at(self, seconds: float, **others: object) -> Verdict:
        return self.fold.verdict(us(seconds), **others)  # type: ignore[arg-type]


def verdict_of(state: JobState, now_us: int) -> Verdict:
    fold = VerdictFold()
    fold.begin(state)
    return fold.verdict(now_us)


def us(seconds: float) -> int:
    return 1_700_000_000_000_000 + round(seconds * 1_000_000)


def test_a_log_without_records_is_a_new_job() -> None:
    assert VerdictFold().verdict().state is VerdictState.NEW


def test_a_job_between_two_checkpoints_progresses_and_waits_for_nothing() -> None:
    job = Job()
    job.started()
    job.checkpoint(10, 1)
    verdict = job.at(19)

    assert verdict.state is VerdictState.PROGRESSING
    assert verdict.reason == "checkpoint 1 is the last completed one"
    assert verdict.since_us == us(0)
    assert verdict.waiting_for == ()


def test_a_job_without_a_checkpoint_for_three_intervals_is_slow() -> None:
    job = Job()
    job.started()
    job.checkpoint(10, 1)

    assert job.at(39.9).state is VerdictState.PROGRESSING
    slow = job.at(40)
    assert (slow.state, slow.since_us) == (VerdictState.SLOW, us(40))
    assert slow.reason == "no checkpoint has completed and none is pending"


def test_a_stuck_checkpoint_names_the_cuts_and_acks_that_are_missing() -> None:
    job = Job(parallelism=8)
    job.started()
    job.checkpoint(10, 1)
    job.triggered(20, 2)
    job.apply(20, Kind.COORDINATOR_CHECKPOINTED, checkpoint_id=2, operator_id="source")
    job.apply(21, Kind.CHECKPOINT_ACKED, checkpoint_id=2, subtask=0, attempt_number=0)
    stuck = job.at(110)

    assert (stuck.state, stuck.since_us) == (VerdictState.STUCK, us(110))
    assert stuck.reason == (
        "checkpoint 2 waits for the cut of sink and acks of subtasks 1, 2, 3, 4, 5 and 2 more"
    )
    (waiting,) = stuck.waiting_for
    assert (waiting.kind, waiting.checkpoint_id) == (WaitingFor.CHECKPOINT, 2)
    assert waiting.since_us == us(20)
    assert waiting.subtasks == (1, 2, 3, 4, 5, 6, 7)
    assert waiting.operators == ("sink",)


def test_checkpoints_that_are_aborted_again_and_again_make_a_job_stuck() -> None:
    job = Job()
    job.started()
    for number in range(1, 12):
        job.triggered(number * 10, number)
        job.apply(number * 10 + 9, Kind.CHECKPOINT_ABORTED, checkpoint_id=number)
    job.triggered(120, 12)

    assert job.at(121).state is VerdictState.STUCK


def test_an_interval_that_is_not_recorded_is_the_median_of_the_triggers() -> None:
    job = Job(interval_s=None)
    job.started()
    for number in range(1, 6):
        job.checkpoint(number * 100, number)

    assert job.at(500 + 299).state is VerdictState.PROGRESSING
    assert job.at(500 + 300).state is VerdictState.SLOW
    assert job.at(500 + 1000).state is VerdictState.STUCK


def test_three_checkpoints_on_demand_are_not_periodic() -> None:
    job = Job(interval_s=None)
    job.started()
    for number in range(1, 4):
        job.checkpoint(number, number)

    assert job.at(500).state is VerdictState.PROGRESSING
    silent = job.at(604)
    assert silent.state is VerdictState.SLOW
    assert [waiting.kind for waiting in silent.waiting_for] == [WaitingFor.RECORD]
    assert job.at(100_000).state is VerdictState.SLOW


def test_a_short_interval_makes_no_job_slow_within_ten_seconds() -> None:
    job = Job(interval_s="0.05")
    job.started()
    job.checkpoint(1, 1)

    assert job.at(10.9).state is VerdictState.PROGRESSING
    assert job.at(11).state is VerdictState.SLOW
    assert job.at(61).state is VerdictState.STUCK


def test_a_subtask_without_an_attempt_is_waited_for() -> None:
    job = Job()
    job.started()
    job.apply(5, Kind.ATTEMPT_FAILED, subtask=1, attempt_number=0, reason="killed")
    job.checkpoint(20, 1)
    waiting = job.at(25).waiting_for[0]

    assert (waiting.kind, waiting.subtasks, waiting.since_us) == (
        WaitingFor.SUBTASK,
        (1,),
        us(5),
    )
    slow = job.at(36)
    assert (slow.state, slow.reason) == (VerdictState.SLOW, "subtask 1 has no attempt")
    job.apply(37, Kind.ATTEMPT_STARTED, subtask=1, attempt_number=1)
    assert job.at(38).state is VerdictState.PROGRESSING


def test_a_completed_subtask_is_waited_for_only_after_a_reset() -> None:
    job = Job()
    job.started()
    job.checkpoint(10, 1)
    job.apply(11, Kind.SUBTASK_COMPLETED, subtask=1, attempt_number=0)
    job.checkpoint(12, 2)
    job.apply(13, Kind.RESET_TO_CHECKPOINT, checkpoint_id=2)
    assert job.at(14).waiting_for[0].subtasks == (0,)

    job.apply(15, Kind.RESET_TO_CHECKPOINT, checkpoint_id=1)
    assert job.at(16).waiting_for[0].subtasks == (0, 1)


def test_a_batch_job_waits_for_subtasks_only_if_none_has_an_attempt() -> None:
    job = Job(mode="batch", interval_s=None)
    job.epoch(0)
    job.apply(0, Kind.COORDINATORS_STARTED)
    assert job.at(1).waiting_for[0].subtasks == (0, 1)

    job.apply(2, Kind.ATTEMPT_STARTED, subtask=0, attempt_number=0)
    assert job.at(590).waiting_for == ()


def test_a_commit_without_an_outcome_makes_a_job_slow_then_stuck() -> None:
    job = Job(interval_s="100")
    job.started()
    job.checkpoint(10, 1)
    job.apply(10, Kind.COMMIT_INTENT, operator_id="sink", checkpoint_id=1, sequence=77)
    job.apply(20, Kind.COMMIT_OUTCOME, checkpoint_id=1, cause=77, attributes={"settled": "false"})
    slow = job.at(70)

    assert (slow.state, slow.since_us) == (VerdictState.SLOW, us(70))
    assert slow.reason == "the commit of 'sink' for checkpoint 1 has no outcome"
    (waiting,) = slow.waiting_for
    assert (waiting.kind, waiting.sequence) == (WaitingFor.COMMIT, 77)
    job.apply(71, Kind.COMMIT_OUTCOME, checkpoint_id=1, cause=77, attributes={"settled": "true"})
    assert job.at(72).state is VerdictState.PROGRESSING


def test_an_append_that_is_not_acknowledged_makes_a_job_slow_then_stuck() -> None:
    job = Job()
    job.started()

    assert job.at(9, append_since_us=us(0)).state is VerdictState.PROGRESSING
    slow = job.at(10, append_since_us=us(0))
    assert (slow.state, slow.reason) == (
        VerdictState.SLOW,
        "the log has not acknowledged an append",
    )
    assert job.at(60, append_since_us=us(0)).state is VerdictState.STUCK


def test_a_driver_that_does_not_answer_makes_a_job_stuck_at_once() -> None:
    job = Job()
    job.started()

    assert job.at(1, driver_answers=True).state is VerdictState.PROGRESSING
    stuck = job.at(1, driver_answers=False)
    assert (stuck.state, stuck.since_us) == (VerdictState.STUCK, us(0))
    assert stuck.waiting_for[0].kind is WaitingFor.DRIVER


def test_an_epoch_whose_coordinators_do_not_start_is_waited_for() -> None:
    job = Job()
    job.epoch(0)

    assert job.at(29).waiting_for[0].kind is WaitingFor.DRIVER
    assert job.at(30).state is VerdictState.SLOW


def test_three_failures_without_a_checkpoint_between_them_make_a_job_slow() -> None:
    job = Job()
    job.started()
    for number in range(3):
        at_s = 3 * number
        job.apply(at_s, Kind.GLOBAL_FAILURE, reason=f"boom {number}\ntraceback")
        job.apply(at_s, Kind.RESET_TO_CHECKPOINT, checkpoint_id=-1)
        for subtask in range(2):
            job.apply(at_s, Kind.ATTEMPT_STARTED, subtask=subtask, attempt_number=number + 1)
    slow = job.at(7)

    assert (slow.state, slow.since_us) == (VerdictState.SLOW, us(6))
    assert slow.reason == (
        "the job has failed 3 times since its last completed checkpoint, last because of: boom 2"
    )
    job.checkpoint(8, 1)
    assert job.at(9).state is VerdictState.PROGRESSING


def test_attempts_that_are_lost_together_count_as_one_failure() -> None:
    job = Job(parallelism=8)
    job.started()
    for subtask in range(8):
        job.apply(5 + subtask / 10, Kind.ATTEMPT_FAILED, subtask=subtask, attempt_number=0)

    assert job.at(6).state is VerdictState.PROGRESSING


@pytest.mark.parametrize(
    ("kind", "state"),
    [(Kind.JOB_FINISHED, VerdictState.FINISHED), (Kind.JOB_FAILED, VerdictState.FAILED)],
)
def test_an_ended_job_stays_ended_whatever_time_it_is(kind: Kind, state: VerdictState) -> None:
    job = Job()
    job.started()
    job.apply(5, kind, reason="boom")
    verdict = job.at(1_000_000)

    assert (verdict.state, verdict.since_us) == (state, us(5))
    assert state.is_over
    job.epoch(6, command="skip")
    assert job.at(7).state is state
    job.epoch(8)
    job.apply(9, Kind.COORDINATORS_STARTED, attributes={"restore": "again"})
    assert job.at(10).state is VerdictState.PROGRESSING


def test_a_stopped_job_is_stopped_until_the_next_driver_begins() -> None:
    job = Job()
    job.started()
    declared = payload_type_of(DriverStopped)
    value = declared.encode(DriverStopped(by="SIGTERM"))
    job.apply(5, Kind.FACT, payload_type=declared.key, payload=value, reason="SIGTERM")

    assert job.at(500).state is VerdictState.STOPPED
    job.epoch(501)
    assert job.at(502).state is VerdictState.PROGRESSING


def test_the_verdict_on_a_folded_state_is_that_on_its_records() -> None:
    log, fold, plain = MemoryLog(), VerdictFold(), PlainFold()
    log.store(*recorded_history())
    for entry in audit_records(log.records):
        record = plain.apply(entry)
        if record is None:
            continue
        fold.apply(record)
        by_state, by_records = verdict_of(plain.state, record.timestamp_us), fold.verdict()
        if by_records.state is not VerdictState.SLOW:  # a state has no times of failures
            assert by_state.state is by_records.state
        assert {
            (w.kind, w.checkpoint_id, w.subtasks, w.operators) for w in by_state.waiting_for
        } == {(w.kind, w.checkpoint_id, w.subtasks, w.operators) for w in by_records.waiting_for}


def test_a_live_driver_s_state_has_the_pending_checkpoint() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    job.trigger()
    state = job.runtime.state
    pending = state.pending[1]
    verdict = verdict_of(state, pending.triggered_us + 1_000_000 * 700)

    assert verdict.state is VerdictState.STUCK
    assert verdict.waiting_for[0].checkpoint_id == 1


def test_a_log_ahead_of_the_clock_does_not_pass_for_progress() -> None:
    """Its waits are below zero until the clock has caught up."""
    job = Job()
    job.started(at_s=86_400)
    job.checkpoint(86_410, 1)

    assert job.at(86_400).reason == "checkpoint 1 is the last completed one"
    reason = job.at(100).reason
    assert reason.startswith("its last record is 86,310 s ahead of this machine's clock: until")
