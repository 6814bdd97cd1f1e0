"""A new driver on an old log: rollback, resume, redelivery, refusals (clauses D3, E4 to E6, E9, H1, I1, K5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from coordlog.errors import (
    OptionError,
    PrunedMeanwhileError,
    RecordError,
    RestoreError,
    SinkError,
)
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import Rollback
from coordlog.log.copy import to_append
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.offline.epoch import read_records
from coordlog.projections.job.state import Phase
from coordlog.restore.rebuild import check_complete, projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions, to_unstored
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import (
    HANDLED,
    FakeSink,
    Noted,
    Noting,
    NotingProvider,
    OtherUp,
    Up,
    chain_of,
    delivered,
    inside,
    kinds,
    log_of,
    send_down,
)


def crashed_with_channel_state(provider: NotingProvider) -> HandDrivenJob:
    """Checkpoint 1 has completed; event 2 crossed its cut, event 3 came after its barrier."""
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    attempt.send("source", Up(n=1))
    job.trigger()
    attempt.send("source", Up(n=2))
    attempt.ack_checkpoint(1, states={"source": b"one"})
    attempt.send("source", Up(n=3))
    job.crash()
    provider.calls.clear()
    return job


@pytest.mark.clause("D3")
@pytest.mark.clause("E6")
@pytest.mark.clause("A2")
def test_a_rollback_resets_redelivers_and_completes_before_any_attempt() -> None:
    """Were event 2 not redelivered, neither state would have it: it crossed the cut."""
    provider = NotingProvider()
    old = crashed_with_channel_state(provider)
    job = HandDrivenJob(old.chain, log=old.log)

    assert job.mode == "rollback"
    assert provider.calls == [
        ("create",),
        ("restore", 1, b"state of 1"),
        ("start",),
        ("event", 0, 0, 2, "again"),
        ("complete", 1),
    ]
    attempt = job.register(0)
    assert attempt.accepted.restored_checkpoint == 1
    assert [one.state for one in attempt.accepted.states] == [b"one"]
    (again,) = job.history(Kind.EVENT_REDELIVERED)
    (_, crossed, _) = job.history(Kind.EVENT_TO_COORDINATOR)
    assert (again.cause, again.subtask, again.attempt_number) == (crossed.sequence, 0, 0)


@pytest.mark.fault("X12")
@pytest.mark.clause("D3")
@pytest.mark.clause("K5")
def test_redeliveries_are_repeated_after_a_crash_before_a_checkpoint() -> None:
    provider = NotingProvider()
    old = crashed_with_channel_state(provider)
    for _ in range(2):
        provider.calls.clear()
        old = HandDrivenJob(old.chain, log=old.log)
        assert old.trigger() is None
        old.crash()

    assert provider.said("event", "complete") == [("event", 0, 0, 2, "again"), ("complete", 1)]


@pytest.mark.clause("D3")
def test_a_resume_redelivers_nothing_for_the_folded_state_has_it() -> None:
    provider = NotingProvider(projection=HANDLED)
    old = crashed_with_channel_state(provider)
    job = HandDrivenJob(old.chain, log=old.log, restore="resume")

    assert job.mode == "resume"
    assert provider.calls == [
        ("create",),
        ("start",),
        ("complete", 1),
        ("failed", 0, 0),
        ("reset", 0, 1),
    ]
    assert job.runtime.state.projections["source"] == (1, 2, 3)


@pytest.mark.clause("D3")
def test_a_rollback_of_an_event_sourced_coordinator_goes_back_to_its_cut() -> None:
    provider = NotingProvider(projection=HANDLED)
    old = crashed_with_channel_state(provider)
    job = HandDrivenJob(old.chain, log=old.log)

    assert job.runtime.state.projections["source"] == (1, 2)


@pytest.mark.clause("B2")
def test_a_resume_resets_a_subtask_without_attempts_and_none_twice() -> None:
    provider = NotingProvider(projection=HANDLED)
    job = HandDrivenJob(chain_of(provider), parallelism=3, is_batch=True)
    job.register(0).lose()
    job.register(1)
    job.crash()
    provider.calls.clear()
    job = HandDrivenJob(job.chain, parallelism=3, is_batch=True, log=job.log)

    assert job.mode == "resume"
    assert provider.calls == [
        ("create",),
        ("start",),
        ("failed", 1, 0),
        ("reset", 1, -1),
        ("reset", 2, -1),
    ]


@pytest.mark.clause("E3")
@pytest.mark.clause("I1")
def test_a_batch_resume_does_not_run_a_finished_subtask_again() -> None:
    provider = NotingProvider(projection=HANDLED)
    job = HandDrivenJob(chain_of(provider), parallelism=2, is_batch=True)
    first, _ = job.register_all()
    first.complete()
    job.crash()
    job = HandDrivenJob(job.chain, parallelism=2, is_batch=True, log=job.log)

    assert job.mode == "resume"
    assert sorted(job.runtime.state.subtasks[n].completion is None for n in (0, 1)) == [False, True]
    (again,) = job.register_all()
    assert (again.subtask, again.accepted.attempt_number) == (1, 1)


@pytest.mark.clause("I1")
def test_a_rollback_reruns_a_finished_subtask_not_in_the_checkpoint() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=3)
    first, second, third = job.register_all()
    first.complete()
    job.trigger()
    second.ack_checkpoint(1, states={"source": b"two"})
    third.ack_checkpoint(1)
    second.complete()
    job.crash()
    job = HandDrivenJob(job.chain, parallelism=3, log=job.log)

    again = job.register_all()
    assert [one.subtask for one in again] == [1, 2]
    assert [one.state for one in again[0].accepted.states] == [b"two"]


@pytest.mark.clause("E5")
@pytest.mark.clause("E4")
def test_a_restore_ignores_pending_and_aborted_checkpoints() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1)
    job.trigger()
    attempt.lose()
    job.register(0)
    job.trigger()
    job.crash()
    provider.calls.clear()
    job = HandDrivenJob(job.chain, log=job.log)

    assert provider.said("restore", "aborted") == [("restore", 1, b"state of 1")]
    assert job.history(Kind.CHECKPOINT_ABORTED)[-1].checkpoint_id == 3


@pytest.mark.clause("H1")
@pytest.mark.clause("E6")
@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_a_completion_that_nobody_was_told_is_told_by_the_next_driver(restore: str) -> None:
    provider = NotingProvider(projection=HANDLED)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    job.is_held = True
    attempt.ack_checkpoint(1)
    job.appender.append(job.runtime.turns.take_group())
    job.crash()
    assert kinds(job.history())[-1] == "CHECKPOINT_COMPLETED"
    assert provider.said("complete") == []
    HandDrivenJob(job.chain, log=job.log, restore=restore)

    assert provider.said("complete") == [("complete", 1)]


@pytest.mark.clause("E6")
def test_an_open_intent_is_settled_before_the_stage_starts() -> None:
    sink = FakeSink()
    provider = NotingProvider(sink=sink)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.is_work_held = True
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    assert len(job.history(Kind.COMMIT_INTENT)) == 1
    job.crash()
    sink.failures = 1
    job = HandDrivenJob(job.chain, log=job.log)
    assert job.stage.submitted == []
    assert job.trigger() is None
    job.advance(5)

    assert sink.settled == [("a",)]
    assert job.stage.submitted == [1]
    assert len(job.history(Kind.COMMIT_INTENT)) == 1


@pytest.mark.clause("E9")
@pytest.mark.parametrize(
    "change",
    ["mode", "operator", "type schema", "type missing"],
)
def test_a_job_that_does_not_fit_is_refused_before_anything_is_appended(change: str) -> None:
    provider = NotingProvider()
    old = crashed_with_channel_state(provider)
    before = old.log.high_watermark()
    others = {
        "operator": NotingProvider("reader"),
        "type schema": NotingProvider(payload_types=(OtherUp,)),
        "type missing": NotingProvider(payload_types=()),
    }
    chain = chain_of(others.get(change, provider))

    with pytest.raises((RestoreError, RecordError)) as raised:
        HandDrivenJob(
            chain,
            log=old.log,
            is_batch=change == "mode",
        )

    assert old.log.high_watermark() == before
    said = {
        "mode": "mode is streaming in the log and batch here",
        "operator": "the state of operator 'source' is part of checkpoint 1 in the log and of no operator",
        "type schema": "payload type test.up@1 has schema",
        "type missing": "payload type test.up@1 is not one of this job's",
    }
    assert said[change] in str(raised.value)


def test_a_resume_that_cannot_be_had_is_refused_with_the_reason() -> None:
    provider = NotingProvider()
    old = crashed_with_channel_state(provider)

    with pytest.raises(OptionError, match="the coordinators of source are not event-sourced"):
        HandDrivenJob(old.chain, log=old.log, restore="resume")


@pytest.mark.clause("K5")
def test_a_turn_that_a_crash_cut_off_counts_for_nothing() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    inside(attempt, provider, send_down(provider, 0, 1))
    before = job.runtime.state.next_sequence
    job.is_held = True
    attempt.lose()
    group = job.runtime.turns.take_group()
    assert len(group) == 3
    job.log.writer().append(group[:2], timeout_s=1)
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)

    first = next(one for one in job.history() if one.sequence == before)
    assert (first.epoch, first.kind) == (1, Kind.EVENT_FAILED)
    assert job.runtime.state.subtasks[0].next_attempt_number == 1
    (ended,) = job.history(Kind.ATTEMPT_FAILED)
    assert ended.reason == "its driver is gone"


@pytest.mark.may_fail("connection lost")
def test_a_failed_job_rolls_back_with_a_fresh_count() -> None:
    provider = NotingProvider(projection=HANDLED)
    job = HandDrivenJob(chain_of(provider))
    for _ in range(11):
        job.register(0).lose()
    assert job.runtime.state.phase is Phase.FAILED
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)

    assert job.mode == "rollback"
    assert job.runtime.state.failures_us == ()
    assert job.register(0).accepted.attempt_number == 11


def test_after_a_finished_job_nothing_is_started_nor_appended() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), is_batch=True)
    job.register(0).complete()
    assert job.runtime.state.phase is Phase.FINISHED
    job.crash()
    again = HandDrivenJob(job.chain, is_batch=True, log=job.log)

    assert again.mode == "finished"
    assert again.stage.submitted == []


@pytest.mark.may_fail("no reason")
def test_a_failure_whose_reset_its_driver_did_not_live_to_see_is_counted() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "no reason"))
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)

    assert len(job.runtime.state.failures_us) == 1, "and not its end a second time"
    job.crash()
    assert len(HandDrivenJob(job.chain, log=job.log).runtime.state.failures_us) == 2


@pytest.mark.fault("X10")
@pytest.mark.clause("F3")
def test_after_a_restore_nothing_sent_before_is_sent_or_waited_for_again() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1)
    inside(attempt, provider, send_down(provider, 0, 1))
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)
    again = job.register(0)
    assert job.trigger() == 2

    assert delivered(job, again) == ["|2"]


# --- a log without a history ------------------------------------------------------------------------------------------
@pytest.mark.clause("E9")
def test_a_log_in_which_records_stand_and_none_counts_is_no_new_job_s() -> None:
    """A topic that was made again, say, into which a driver of before has still appended."""
    old = crashed_with_channel_state(NotingProvider())
    log = log_of(old.log.records[-3:])

    with pytest.raises(RestoreError) as raised:
        HandDrivenJob(old.chain, log=log)
    assert "the first record that counts is none of the 3 below offset 3 in the log" in str(
        raised.value
    )
    assert "then `coordlog delete job`" in str(raised.value)
    assert log.high_watermark() == 3


@pytest.mark.clause("E9")
def test_a_compacted_log_is_refused_and_its_deletion_not_advised() -> None:
    """Compaction keeps the last record of each key at its offset, and removes the `EPOCH_STARTED`."""

    class CompactedLog(MemoryLog):
        def read(
            self, from_offset: int, to_offset: int, *, stall_s: float | None = None
        ) -> Iterator[StoredRecord]:
            stored = super().read(from_offset, to_offset, stall_s=stall_s)
            return (record for record in stored if record.offset >= 3)

    old = crashed_with_channel_state(NotingProvider())
    log = CompactedLog("compacted")
    log.store(*map(to_append, old.log.records[:5]))

    with pytest.raises(RestoreError, match="none of the 2 below offset 5 in the log") as raised:
        HandDrivenJob(old.chain, log=log)
    assert "the others were removed, by compaction" in str(raised.value)
    assert "coordlog delete" not in str(raised.value)


@pytest.mark.clause("K2")
def test_a_driver_that_died_at_its_first_record_leaves_a_usable_log() -> None:
    old = crashed_with_channel_state(NotingProvider())
    first, *_ = old.log.records
    for copies in (1, 3):
        assert HandDrivenJob(old.chain, log=log_of([first] * copies)).mode == "start"


@pytest.mark.clause("E9")
@pytest.mark.parametrize("count", [1, 2])
def test_a_copy_that_was_cut_off_is_no_new_job_s(count: int) -> None:
    old = crashed_with_channel_state(NotingProvider())
    log = log_of(old.log.records[2 : 2 + count])

    with pytest.raises(RestoreError, match=f"none of the {count} below offset {count} in the log"):
        HandDrivenJob(old.chain, log=log, from_checkpoint=1)


@pytest.mark.clause("E9")
def test_a_new_job_checks_its_sinks_for_files_of_an_earlier_history() -> None:
    class Used(FakeSink):
        def refuse_earlier_output(self, job_id: str) -> None:
            raise SinkError("there", f"job {job_id} has been here", "give another place")

    log = MemoryLog("new")
    with pytest.raises(SinkError, match="job job has been here"):
        HandDrivenJob(chain_of(NotingProvider(sink=Used())), log=log)
    assert log.high_watermark() == 0


@pytest.mark.clause("E9")
def test_a_log_that_is_pruned_while_it_is_read_is_told_as_that() -> None:
    class Pruned(MemoryLog):
        def start_offset(self) -> int:
            start = super().start_offset()
            self.remove_below(5)
            return start

    log = Pruned("prefix")
    old = crashed_with_channel_state(NotingProvider())
    for one in old.log.records:
        log.store(to_append(one))

    with pytest.raises(PrunedMeanwhileError, match=r"at offset 0 when .* at offset 5 now"):
        rebuild(log, old.chain, projection_of(old.chain))
    with pytest.raises(RestoreError, match="retention has removed history"):
        rebuild(log, old.chain, projection_of(old.chain))


@pytest.mark.clause("A6")
def test_neither_call_async_nor_schedule_survives_a_driver() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    heard: list[str] = []
    job.is_work_held = True

    def ask(coordinator: Noting) -> None:
        coordinator.context.call_async(lambda: Noted(text="x"), lambda *_: heard.append("result"))
        coordinator.context.schedule(10.0, lambda: heard.append("timer"))

    inside(attempt, provider, ask)
    job.crash()
    again = HandDrivenJob(job.chain, log=job.log, clock=job.clock)
    again.register(0)
    again.advance(60)

    assert heard == []
    assert not again.works
    assert again.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("E5")
def test_a_restore_never_takes_a_checkpoint_of_an_abandoned_branch() -> None:
    def retaining(config: KernelConfig) -> KernelConfig:
        return replace(config, retained_checkpoints=3)

    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), configure=retaining)
    attempt = job.register(0)
    for n in (1, 2, 3):
        job.trigger()
        attempt.ack_checkpoint(n)
    job.run(lambda: job.runtime.handle(Rollback(checkpoint_id=1, is_failover=False)))
    job.crash()
    provider.calls.clear()
    job = HandDrivenJob(job.chain, log=job.log, configure=retaining)

    assert provider.said("restore", "complete") == [("restore", 1, b"state of 1"), ("complete", 1)]
    attempt = job.register(0)
    assert attempt.accepted.restored_checkpoint == 1
    assert job.trigger() == 4
    attempt.ack_checkpoint(4)
    job.crash()
    provider.calls.clear()
    HandDrivenJob(job.chain, log=job.log, configure=retaining)
    assert provider.said("restore") == [("restore", 4, b"state of 4")]


@pytest.mark.clause("E9")
def test_a_log_without_its_beginning_is_refused_before_any_append() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    job.crash()
    job.log.remove_below(2)
    before = job.log.high_watermark()

    with pytest.raises(RestoreError, match="at offset 0, and the log starts at 2"):
        HandDrivenJob(job.chain, log=job.log)
    assert job.log.high_watermark() == before


def _with_checkpoints(count: int, *, snapshot_every: int | None = None) -> HandDrivenJob:
    job = HandDrivenJob(
        chain_of(NotingProvider()), options=RuntimeOptions(snapshot_every=snapshot_every)
    )
    attempt = job.register(0)
    for _ in range(count):
        checkpoint_id = job.trigger()
        assert checkpoint_id is not None
        attempt.ack_checkpoint(checkpoint_id)
    job.crash()
    return job


def _without(log: MemoryLog, first: int, end: int) -> MemoryLog:
    return log_of(one for one in log.records if not first <= one.offset < end)


@pytest.mark.clause("E9")
@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("first", [30, 31, 32, 33, 34, 35])
def test_a_log_that_has_lost_records_before_others_is_refused(first: int, count: int) -> None:
    job = _with_checkpoints(250)
    log = _without(job.log, first, first + count)
    end = log.high_watermark()
    with pytest.raises(RestoreError, match=r"void, .* records between them are lost"):
        HandDrivenJob(job.chain, log=log)
    with pytest.raises(RestoreError, match=r"void, .* records between them are lost"):
        check_complete("job", read_records(log))
    assert log.high_watermark() == end


@pytest.mark.clause("E9")
def test_a_record_of_another_job_does_not_hide_that_records_are_lost() -> None:
    job = _with_checkpoints(250)
    log = _without(job.log, 30, 60)
    other = replace(job.log.records[-1].record(), job_id="other", epoch=9, sequence=99_999)
    log.store(to_unstored(other))
    with pytest.raises(RestoreError, match=r"void, .* records between them are lost"):
        check_complete("job", read_records(log))


@pytest.mark.clause("E9")
def test_a_log_that_has_lost_the_beginning_of_an_epoch_is_refused() -> None:
    job = _with_checkpoints(2)
    began = job.log.high_watermark()
    HandDrivenJob(job.chain, log=job.log).crash()
    with pytest.raises(RestoreError, match="of epoch 1 in the log and void"):
        HandDrivenJob(job.chain, log=_without(job.log, began, began + 1))


@pytest.mark.clause("K4")
def test_void_records_that_may_be_of_one_append_are_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = _with_checkpoints(5)
    log = _without(job.log, 30, 31)
    again = HandDrivenJob(job.chain, log=log)
    assert again.runtime.state.epoch == 1
    assert "an append was cut off, or the log has lost records" in caplog.text

    caplog.clear()
    again.crash()
    HandDrivenJob(job.chain, log=log)
    assert not caplog.text


@pytest.mark.clause("E9")
def test_lost_records_below_the_snapshot_of_a_restore_refuse_nothing() -> None:
    job = _with_checkpoints(250, snapshot_every=100)
    first = next(one.offset for one in job.log.records if one.offset >= 30)
    copy = MemoryLog("job")
    # The place of the lost record holds one that is no record of the log: offsets stay.
    copy.store(
        *(
            to_append(one)._replace(header=b"other") if one.offset == first else to_append(one)
            for one in job.log.records
        )
    )
    again = HandDrivenJob(job.chain, log=copy)
    assert again.runtime.state.last_checkpoint == job.runtime.state.last_checkpoint
