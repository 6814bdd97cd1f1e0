"""Where the readings of a job's log begin, and that all of them see the same turns."""

from __future__ import annotations

import pytest

from coordlog.cli.exit_status import Exit, exit_of
from coordlog.errors import OutOfRangeError, PrunedMeanwhileError, RecordError
from coordlog.history import History
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.prune_plan import plan_prune
from coordlog.projections.snapshot.codec import SnapshotCodec, state_before
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of


def worked() -> HandDrivenJob:
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=7)
    )
    attempt = job.register(0)
    for n in range(8):
        attempt.send("source", Up(n=n))
        checkpoint_id = job.trigger()
        assert checkpoint_id is not None
        attempt.ack_checkpoint(checkpoint_id, states={"source": b"state"})
    return job


def pruned() -> tuple[HandDrivenJob, int]:
    """A job with a pruned log, and its first offset."""
    job = worked()
    plan = plan_prune(History(job.log).stored())
    assert plan.begins_with is not None
    job.log.delete_below(plan.begins_with.offset)
    return job, plan.begins_with.offset


def test_a_whole_history_begins_at_offset_0_with_an_empty_state() -> None:
    beginning = History(worked().log).beginning()
    assert (beginning.offset, beginning.snapshot) == (0, None)
    assert state_before(beginning).epoch == -1


def test_a_pruned_history_begins_with_its_snapshot() -> None:
    job, start = pruned()
    beginning = History(job.log).beginning()
    assert beginning.snapshot is not None
    assert (beginning.offset, beginning.snapshot.kind) == (start, Kind.SNAPSHOT)
    assert state_before(beginning).next_sequence == beginning.counting.next_sequence


def test_all_readings_of_a_pruned_history_show_the_same_records() -> None:
    job, start = pruned()
    history = History(job.log)
    offsets = [one.offset for one in history.records() if one.counts]
    assert offsets[0] == start
    assert [one.entry.offset for one in history.judged()[1] if one.counts] == offsets
    assert [one.offset for turn in history.turns() for one in turn.entries] == offsets
    made = rebuild(job.log, job.chain, projection_of(job.chain), is_whole=True)
    assert made.record_count == len(offsets)


def test_a_history_that_retention_has_cut_is_refused_by_its_first_offset() -> None:
    log = worked().log
    log.remove_below(3)
    history = History(log)
    for reading in (history.records, history.judged, history.turns):
        with pytest.raises(RecordError, match="the log begins here, and not with a SNAPSHOT"):
            list(reading())


def test_a_history_without_any_record_left_is_refused() -> None:
    log = worked().log
    log.remove_below(log.high_watermark())
    with pytest.raises(OutOfRangeError):
        History(log).beginning()
    assert History(MemoryLog("new")).beginning().offset == 0


def test_a_prune_during_a_reading_is_reported_as_such() -> None:
    job = worked()
    history = History(job.log)
    plan = plan_prune(history.stored())
    assert plan.begins_with is not None
    job.log.delete_below(plan.begins_with.offset)
    said = r"pruned meanwhile; run the same command again"
    with pytest.raises(PrunedMeanwhileError, match=said) as raised:
        list(history.records())
    assert exit_of(raised.value) is Exit.UNREACHABLE, "the status that a supervisor starts again"
    assert next(History(job.log).records()).offset == plan.begins_with.offset


def test_a_lost_tail_is_not_reported_as_a_prune() -> None:
    job = worked()
    history = History(job.log)
    job.log.lose_from(5)
    with pytest.raises(OutOfRangeError) as raised:
        list(history.stored())
    assert not isinstance(raised.value, PrunedMeanwhileError)


def test_a_reading_of_all_starts_from_a_snapshot_only_in_a_pruned_history() -> None:
    whole, (job, start) = worked(), pruned()
    codec = SnapshotCodec(projection_of(job.chain))
    assert History(whole.log).search(codec, is_whole=True).snapshot is None
    newest = History(whole.log).search(codec).snapshot
    assert newest is not None
    assert newest.beginning.offset > 0
    first = History(job.log).search(codec, is_whole=True).snapshot
    assert first is not None
    assert first.beginning.offset == start


def test_progress_is_reported_before_each_record() -> None:
    log = worked().log
    seen: list[int] = []
    for one in History(log, seen.append).stored():
        assert seen[-1] == one.offset
    assert seen == list(range(log.high_watermark()))
