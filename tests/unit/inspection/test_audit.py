"""The tables that a history adds up to, on histories written by hand, with values by hand."""

from __future__ import annotations

import pytest

from coordlog.errors import RecordError
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.attempts import AttemptEnd, AttemptRow
from coordlog.projections.tables.audit import Audit, AuditRecord, audit, audit_records
from coordlog.projections.tables.checkpoints import CheckpointStatus
from coordlog.projections.tables.commits import CommitStatus
from coordlog.projections.tables.payload_json import on_one_line, to_json
from coordlog.projections.tables.splits import SplitPlace, SplitRow
from coordlog.schemas.builtin_types import AttemptSnapshot, Committable
from coordlog.schemas.record import Kind
from histories.hand_history import (
    BEGAN_US,
    HandHistory,
    batch_history,
    discovery,
    skipping_history,
    streaming_history,
)


def records_of(history: HandHistory) -> list[AuditRecord]:
    log = MemoryLog()
    log.store(*history.records)
    return list(audit_records(log.records))


def audit_of(history: HandHistory) -> Audit:
    log = MemoryLog()
    log.store(*history.records)
    return audit(log.records)


def ends(rows: tuple[AttemptRow, ...]) -> list[tuple[str, str, str | None, tuple[int, ...]]]:
    return [
        (f"{one.subtask}/{one.attempt_number}", one.end.value, one.reason, one.resets)
        for one in rows
    ]


# Attempts


def test_each_attempt_has_its_end_its_reason_and_its_resets() -> None:
    assert ends(audit_of(streaming_history()).attempts) == [
        ("0/0", "fenced", "its driver, of epoch 0, is gone", (1,)),
        ("0/1", "failed", "global failover", (3,)),
        ("0/2", "running", None, ()),
        ("1/0", "failed", "boom", (1,)),
        ("1/1", "fenced", "its driver, of epoch 0, is gone", (1,)),
        ("1/2", "failed", "global failover", (3,)),
        ("1/3", "completed", None, ()),
    ]


def test_a_batch_jobs_resets_name_minus_one() -> None:
    assert ends(audit_of(batch_history()).attempts) == [
        ("0/0", "failed", "killed", (-1,)),
        ("0/1", "failed", "global failover", (-1,)),
        ("0/2", "completed", None, ()),
    ]


def test_an_attempt_says_where_it_ran_and_what_it_did() -> None:
    first = audit_of(streaming_history()).attempts[0]

    assert first == AttemptRow(
        subtask=0,
        attempt_number=0,
        epoch=0,
        driver_id="driver-0",
        stage_run=0,
        spark_task_attempt_id=0,
        spark_attempt_number=0,
        host="worker-1",
        pid=100,
        restored_from=-1,
        started_us=BEGAN_US + 4_000,
        end=AttemptEnd.FENCED,
        ended_us=BEGAN_US + 23_000,
        reason="its driver, of epoch 0, is gone",
        splits_assigned=3,
        splits_finished=2,
        rows=170,
        events_up=0,
        events_down=2,
        events_acked=1,
        events_failed=0,
        checkpoints_acked=1,
        resets=(1,),
    )


def test_an_attempt_of_a_killed_driver_ends_at_its_epochs_last_record() -> None:
    """The pause until the next driver is no part of its life."""
    one = HandHistory()
    one.epoch()
    one.turn(one.started((0, 0), -1, 0))
    killed_us = one.now_us
    one.now_us += 3 * 86_400_000_000
    one.epoch()

    (row,) = audit_of(one).attempts
    assert (row.end, row.ended_us) == (AttemptEnd.FENCED, killed_us)


def test_two_resets_before_the_next_attempt_are_both_its_own() -> None:
    one = HandHistory()
    one.epoch()
    one.turn(one.started((0, 0), -1, 0))
    one.turn(one.failed((0, 0), "boom"), one.reset_subtask(0, -1))
    one.turn(one.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=-1))
    one.turn(one.started((0, 1), -1, 1))

    assert ends(audit_of(one).attempts) == [
        ("0/0", "failed", "boom", (-1, -1)),
        ("0/1", "running", None, ()),
    ]


def test_a_failed_job_ends_its_attempts() -> None:
    one = HandHistory()
    one.epoch()
    one.turn(one.started((0, 0), -1, 0))
    one.turn(one.record(Kind.JOB_FAILED, reason="too often"))
    one.epoch()

    assert ends(audit_of(one).attempts) == [("0/0", "failed", "the job has failed", ())]


# Splits


def thrown(rows: tuple[SplitRow, ...]) -> dict[str, list[str]]:
    return {
        row.split_id: [
            f"{one.subtask}/{one.attempt_number} to {one.checkpoint_id}"
            f" {'whole' if one.is_whole else 'part'} {'finished' if one.was_finished else 'open'}"
            f" reread {one.reread_by}: {one.reason}"
            for one in row.thrown_away
        ]
        for row in rows
    }


def test_what_was_thrown_away_names_who_lost_it_why_and_who_read_it_again() -> None:
    gone = "its driver, of epoch 0, is gone"

    assert thrown(audit_of(streaming_history()).splits) == {
        "s0": [],
        "s1": [f"0/0 to 1 part finished reread (0, 1): {gone}"],
        "s2": [
            "1/0 to 1 part finished reread (1, 1): boom",
            f"1/1 to 1 part finished reread (1, 2): {gone}",
        ],
        "s3": [
            "1/0 to 1 whole open reread (0, 0): boom",
            f"0/0 to 1 whole open reread (1, 2): {gone}",
            "1/2 to 3 part open reread (1, 3): global failover",
        ],
        "s4": ["0/1 to 3 part open reread (0, 2): global failover"],
        "s5": [],
    }


def test_a_split_that_is_kept_survives_a_local_reset_and_no_global_one() -> None:
    assert thrown(audit_of(batch_history()).splits) == {
        "a": ["0/0 to -1 whole finished reread (0, 2): killed"],
        "b": [
            "0/0 to -1 whole open reread (0, 1): killed",
            "0/1 to -1 whole open reread (0, 2): global failover",
        ],
    }


def places(rows: tuple[SplitRow, ...]) -> list[tuple[str, SplitPlace, object, object, object]]:
    return [(one.split_id, one.place, one.finished_by, one.rows, one.checkpoint_id) for one in rows]


def test_each_split_is_in_one_place_and_says_which_checkpoint_holds_it() -> None:
    assert places(audit_of(streaming_history()).splits) == [
        ("s0", SplitPlace.COMMITTED, (0, 0), 100, 1),
        ("s1", SplitPlace.COMMITTED, (0, 1), 70, 3),
        ("s2", SplitPlace.COMMITTED, (1, 2), 50, 3),
        ("s3", SplitPlace.COMMITTED, (1, 3), 20, 4),
        ("s4", SplitPlace.COMMITTED, (0, 2), 10, 4),
        ("s5", SplitPlace.WAITING, None, None, None),
    ]


def test_a_batch_jobs_splits_are_committed_at_minus_one() -> None:
    assert places(audit_of(batch_history()).splits) == [
        ("a", SplitPlace.COMMITTED, (0, 2), 5, -1),
        ("b", SplitPlace.COMMITTED, (0, 2), 7, -1),
    ]


def test_an_unfinished_commit_leaves_its_splits_in_the_checkpoint() -> None:
    history = batch_history()
    del history.records[-2:]  # the outcome, and the end

    assert {one.place for one in audit_of(history).splits} == {SplitPlace.IN_CHECKPOINT}


@pytest.mark.parametrize(
    ("committables", "place"),
    [
        ([], SplitPlace.COMMITTED),
        ([Committable(operator_id="sink", content=b"f")], SplitPlace.IN_CHECKPOINT),
    ],
    ids=["nothing-to-commit", "something-to-commit"],
)
def test_a_checkpoint_that_allows_no_commit_has_committed_what_it_holds(
    committables: list[Committable], place: SplitPlace
) -> None:
    one = HandHistory()
    one.epoch()
    one.turn(discovery(one, "a"))
    one.turn(one.started((0, 0), -1, 0))
    one.turn(one.assigned((0, 0), 0, "a"))
    one.turn(one.finished((0, 0), "a", 5, -1))
    one.turn(one.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 1))
    snapshot = AttemptSnapshot(states=[], committables=committables)
    one.turn(one.record(Kind.CHECKPOINT_ACKED, (0, 0), checkpoint_id=1, value=snapshot))
    one.turn(one.of_checkpoint(Kind.CHECKPOINT_COMPLETED, 1))

    assert [row.place for row in audit_of(one).splits] == [place]
    one.commit(1)
    assert [row.place for row in audit_of(one).splits] == [SplitPlace.COMMITTED]


@pytest.mark.parametrize("is_global", [False, True])
def test_committables_that_a_reset_undoes_hold_no_later_checkpoint_back(*, is_global: bool) -> None:
    one = HandHistory()
    one.epoch()
    one.turn(discovery(one, "a"))
    one.turn(one.started((0, 0), -1, 0))
    one.turn(one.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 1))
    file = Committable(operator_id="sink", content=b"f")
    snapshot = AttemptSnapshot(states=[], committables=[file])
    one.turn(one.record(Kind.CHECKPOINT_ACKED, (0, 0), checkpoint_id=1, value=snapshot))
    one.turn(one.of_checkpoint(Kind.CHECKPOINT_ABORTED, 1))
    reset = one.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=-1)
    one.turn(one.failed((0, 0), "killed"), reset if is_global else one.reset_subtask(0, -1))
    one.turn(one.started((0, 1), -1, 1))
    one.turn(one.assigned((0, 1), 0, "a"))
    one.turn(one.finished((0, 1), "a", 0, -1))
    one.checkpoint(2, (0, 1))

    assert places(audit_of(one).splits) == [("a", SplitPlace.COMMITTED, (0, 1), 0, 2)]


def test_an_intent_of_the_first_job_is_not_open_in_its_fork() -> None:
    one = HandHistory()
    one.epoch()
    one.turn(discovery(one, "a", "b"))
    one.turn(one.started((0, 0), -1, 0))
    one.checkpoint(1, (0, 0))
    one.turn(one.record(Kind.COMMIT_INTENT, operator_id="sink", checkpoint_id=1))
    one.turn(one.assigned((0, 0), 0, "a"))
    one.turn(one.finished((0, 0), "a", 5, 1))
    one.checkpoint(2, (0, 0))
    one.job_id = "fork"
    one.epoch()
    reset = one.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=2)
    one.turn(one.failed((0, 0), "its driver is gone"), reset)
    one.turn(one.started((0, 1), 2, 1))
    one.turn(one.assigned((0, 1), 1, "b"))
    one.turn(one.finished((0, 1), "b", 7, 2))
    one.checkpoint(3, (0, 1))
    one.commit(3)

    found = audit_of(one)
    assert [(row.checkpoint_id, row.status) for row in found.commits] == [(3, CommitStatus.SETTLED)]
    assert places(found.splits) == [
        ("a", SplitPlace.COMMITTED, (0, 0), 5, 2),
        ("b", SplitPlace.COMMITTED, (0, 1), 7, 3),
    ]


def test_an_intent_of_the_first_job_holds_no_checkpoint_of_its_fork_back() -> None:
    one = HandHistory()
    one.epoch()
    one.turn(discovery(one, "a"))
    one.turn(one.started((0, 0), -1, 0))
    one.checkpoint(1, (0, 0))
    one.turn(one.record(Kind.COMMIT_INTENT, operator_id="sink", checkpoint_id=1))
    one.job_id = "fork"
    one.epoch()
    reset = one.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=1)
    one.turn(one.failed((0, 0), "its driver is gone"), reset)
    one.turn(one.started((0, 1), 1, 1))
    one.turn(one.assigned((0, 1), 1, "a"))
    one.turn(one.finished((0, 1), "a", 0, 1))
    one.checkpoint(2, (0, 1))

    assert places(audit_of(one).splits) == [("a", SplitPlace.COMMITTED, (0, 1), 0, 2)]


def test_assignments_are_told_in_log_order() -> None:
    rows = {one.split_id: one for one in audit_of(streaming_history()).splits}

    assert [(one.subtask, one.attempt_number) for one in rows["s3"].assignments] == [
        (1, 0),
        (0, 0),
        (1, 2),
    ]
    assert rows["s3"].discovered_us == BEGAN_US + 3_000


# Checkpoints


def test_each_checkpoint_says_what_became_of_it() -> None:
    rows = audit_of(streaming_history()).checkpoints

    assert [(one.checkpoint_id, one.status, one.acks, one.milliseconds) for one in rows] == [
        (1, CheckpointStatus.COMPLETED, 2, 4.0),
        (2, CheckpointStatus.ABORTED, 0, 1.0),
        (3, CheckpointStatus.COMPLETED, 2, 4.0),
        (4, CheckpointStatus.COMPLETED, 1, 3.0),
    ]
    assert rows[1].reason == "not whole in time"


def test_a_checkpoint_above_a_reset_is_abandoned() -> None:
    one = HandHistory()
    one.epoch()
    one.checkpoint(1)
    one.checkpoint(2)
    one.turn(one.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=1))

    assert [(row.status, row.reason) for row in audit_of(one).checkpoints] == [
        (CheckpointStatus.COMPLETED, None),
        (CheckpointStatus.ABANDONED, "the job went back to checkpoint 1"),
    ]


# What counts, and what payloads say


def test_void_records_are_shown_with_the_reason_and_change_no_table() -> None:
    void = [one.why_not for one in records_of(streaming_history()) if not one.counts]

    assert void == [
        "void: its sequence is not the next one",
        "void: not a record of this log's format",
        "void: a newer epoch cut its turn off",
        "void: its epoch is not in force",
    ]
    whole = audit_of(streaming_history())
    assert whole.void_count == 4
    assert whole.record_count + whole.void_count == len(streaming_history().records)


def test_an_unfinished_turn_at_the_end_does_not_count_yet() -> None:
    history = HandHistory()
    history.epoch()
    history.void(history.started((0, 0), -1, 0), epoch=0, sequence=0, remaining=1)

    last = records_of(history)[-1]

    assert last.why_not == "not finished: the rest of its turn is not in the log"
    assert audit_of(history).attempts == ()


def test_payloads_are_decoded_by_the_schemas_in_the_log() -> None:
    assigned = next(
        one
        for one in records_of(batch_history())
        if one.record is not None and one.record.kind is Kind.EVENT_TO_SUBTASK
    )

    assert to_json(assigned.fields) == {
        "splits": [{"split_id": "a", "content": "0x01"}, {"split_id": "b", "content": "0x01"}]
    }
    assert on_one_line(assigned.fields, 200) == (
        "splits: [{split_id: a, content: 0x01}, {split_id: b, content: 0x01}]"
    )
    assert on_one_line(assigned.fields, 20) == "splits: [{split_id:…"


def test_a_line_shows_nothing_that_a_terminal_would_obey() -> None:
    assert on_one_line({"text": "a\n\x1b[2Jb"}, 100) == "text: a  [2Jb"


def test_a_log_whose_beginning_is_gone_is_refused() -> None:
    log = MemoryLog()
    log.store(*batch_history().records)
    log.remove_below(3)

    with pytest.raises(RecordError, match="offset 3: the log begins here, and not with a SNAPSHOT"):
        audit(log.records)


def test_counting_begins_at_a_snapshot() -> None:
    history = HandHistory()
    history.epoch()
    history.turn(history.started((0, 0), -1, 0))
    history.turn(history.record(Kind.SNAPSHOT))
    history.turn(history.started((0, 1), -1, 1))
    log = MemoryLog()
    log.store(*history.records)
    log.remove_below(2)

    assert ends(audit(log.records).attempts) == [("0/1", "running", None, ())]


def test_a_record_that_counts_and_cannot_be_read_is_named() -> None:
    history = batch_history()
    good = history.records[3]
    damaged = type(good)(key=good.key, value=b"\x01", header=good.header, timestamp_us=0)
    history.records[3] = damaged

    with pytest.raises(RecordError, match="record at offset 3: its value is damaged"):
        audit_of(history)
    assert records_of(history)[3].problem is not None


@pytest.mark.clause("J2")
def test_a_skipped_split_stays_skipped_with_its_last_readers_row_count() -> None:
    found = {one.split_id: one for one in audit_of(skipping_history()).splits}

    shown = {
        name: (one.place, one.rows, one.checkpoint_id, one.skipped_because)
        for name, one in found.items()
    }
    assert shown == {
        "s0": (SplitPlace.SKIPPED, 30, 1, "bad row"),
        "s1": (SplitPlace.COMMITTED, 70, 2, None),
        "s2": (SplitPlace.SKIPPED, 5, 2, "cut off"),
        "s3": (SplitPlace.ASSIGNED, None, None, None),
        "s4": (SplitPlace.SKIPPED, None, None, "not wanted"),
    }
    (lost,) = found["s2"].thrown_away
    assert (lost.is_whole, lost.was_finished, lost.reread_by) == (False, False, (1, 1))
    assert [one.is_whole for one in found["s3"].thrown_away] == [True, False]
