"""The tables of events, commits, failures and epochs: of a job that had all kinds of trouble, and by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from click.testing import CliRunner

from coordlog.cli.main import main
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit, audit_records
from coordlog.projections.tables.checkpoints import checkpoints
from coordlog.projections.tables.commits import commits
from coordlog.projections.tables.epochs import epochs
from coordlog.projections.tables.events import events
from coordlog.projections.tables.failures import failures
from coordlog.schemas.builtin_types import AttemptSnapshot
from coordlog.schemas.record import Kind, Record
from driven_history import RECORDED_JOB, recorded_history
from histories.hand_history import BEGAN_US, SINK, SOURCE, HandHistory, streaming_history
from histories.one_log import OneLog


def recorded() -> MemoryLog:
    log = MemoryLog(f"{RECORDED_JOB}.log")
    log.store(*recorded_history())
    return log


def counted(one: MemoryLog) -> list[Record]:
    return [each.record for each in audit_records(one.records) if each.counts and each.record]


def by_hand(history: HandHistory) -> list[Record]:
    log = MemoryLog("by-hand.log")
    log.store(*history.records)
    return counted(log)


def shown(command: str, *arguments: str) -> list[str]:
    logs = OneLog(recorded(), RECORDED_JOB)
    result = CliRunner().invoke(
        main, (command, RECORDED_JOB, *arguments), obj=lambda _servers: logs
    )
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def kinds(records: Iterable[Record]) -> Counter[Kind]:
    return Counter(one.kind for one in records)


def test_every_event_is_told_once_with_its_end() -> None:
    records = counted(recorded())
    rows = list(events(records))

    assert Counter(one.status.value for one in rows) == {
        "handled": kinds(records)[Kind.EVENT_TO_COORDINATOR],
        "acked": kinds(records)[Kind.EVENT_ACKED],
        "failed": kinds(records)[Kind.EVENT_FAILED],
    }
    by_sequence = {one.sequence: one for one in records}
    for one in rows:
        sent = by_sequence[one.sequence]
        assert (one.subtask, one.attempt_number) == (sent.subtask, sent.attempt_number)
        assert one.sent_us == sent.timestamp_us
        assert one.payload_bytes == len(sent.payload or b"")
        assert (one.milliseconds is not None) == (one.status.value == "acked")


def test_an_event_on_its_way_one_that_was_never_sent_and_a_skipped_one() -> None:
    one = HandHistory()
    one.epoch()
    one.turn(one.started((0, 0), -1, 0))
    one.turn(one.assigned((0, 0), 0, "a"))
    one.turn(one.assigned((0, 0), 1, "b"))
    one.turn(one.acked((0, 0), 0))
    skip = {"skipped": "true"}
    acked = one.record(
        Kind.EVENT_ACKED, (0, 0), operator_id=SOURCE, event_id=1, reason="skip", attributes=skip
    )
    one.turn(acked)
    never = {"never_sent": "true"}
    one.turn(
        one.record(
            Kind.EVENT_FAILED, (1, 0), operator_id=SOURCE, event_id=2, reason="x", attributes=never
        )
    )
    one.turn(one.assigned((0, 0), 3, "c"))
    one.turn(one.record(Kind.EVENT_REDELIVERED, (0, 0), operator_id=SOURCE, event_id=7, cause=4))

    rows = [
        (row.event_id, row.direction.value, row.status.value, row.milliseconds, row.reason)
        for row in events(by_hand(one))
    ]
    assert rows == [
        (0, "down", "acked", 2.0, None),
        (1, "down", "skipped", None, "skip"),
        (2, "down", "failed", None, "x"),
        (7, "up", "redelivered", None, None),
        (3, "down", "sent", None, None),
    ]


def test_a_commit_that_another_driver_settles_says_so() -> None:
    rows = commits(counted(recorded()))

    assert [(one.checkpoint_id, one.epoch, one.settled_epoch) for one in rows] == [
        *((1, 0, 0), (3, 0, 1)),
        *((4, 1, 1), (5, 1, 1), (6, 1, 1)),
    ]
    assert all(one.milliseconds is not None for one in rows)


def test_a_commit_is_open_until_it_is_settled_and_counts_its_tries() -> None:
    one = HandHistory()
    one.epoch()
    cause = one.turn(one.record(Kind.COMMIT_INTENT, operator_id=SINK, checkpoint_id=3))
    one.turn(
        one.record(
            Kind.COMMIT_OUTCOME,
            operator_id=SINK,
            checkpoint_id=3,
            cause=cause,
            reason="disk full",
            attributes={"settled": "false"},
        )
    )

    (row,) = commits(by_hand(one))
    assert (row.status.value, row.failed_tries, row.reason) == ("open", 1, "disk full")
    assert row.milliseconds is None


def test_failures_say_what_they_went_back_to_and_when_it_went_on() -> None:
    rows = failures(counted(recorded()))

    assert [
        (one.scope.value, one.subtask, one.attempt_number, one.reset_to, one.is_with_job)
        for one in rows
    ] == [
        ("attempt", 1, 0, 1, False),
        ("attempt", 0, 0, 1, False),
        ("global", None, None, 1, False),
        ("attempt", 0, 1, 1, True),
        ("attempt", 1, 1, 1, True),
        ("attempt", 0, 2, 3, True),
        ("attempt", 1, 2, 3, True),
    ]
    assert all(one.milliseconds is not None and one.milliseconds > 0 for one in rows)


def test_a_failure_that_is_not_reset_yet_and_one_for_good() -> None:
    one = HandHistory()
    one.epoch()
    one.turn(one.started((0, 0), -1, 0), one.started((1, 0), -1, 1))
    one.turn(one.failed((0, 0), "boom"), one.reset_subtask(0, -1))
    one.turn(one.failed((1, 0), "bang"))
    one.turn(one.started((1, 1), -1, 2))
    one.turn(one.record(Kind.JOB_FAILED, reason="enough"))

    assert [
        (row.scope.value, row.subtask, row.reset_to, row.restarted_us)
        for row in failures(by_hand(one))
    ] == [("attempt", 0, -1, None), ("attempt", 1, None, None), ("job", None, None, None)]


def test_epochs_say_how_each_began_and_ended() -> None:
    records = counted(recorded())
    rows = epochs(records)

    assert [
        (one.parallelism, one.restored_by, one.restored_from, one.end.value, one.failovers_global)
        for one in rows
    ] == [(2, "start", None, "replaced", 1), (3, "rollback", 3, "finished", 0)]
    assert sum(one.record_count for one in rows) == len(records)
    assert [one.attempts_started for one in rows] == [6, 3]


def test_a_checkpoint_says_what_each_attempt_handed_over_and_when() -> None:
    rows = checkpoints(counted(recorded()))

    assert [(one.acks, one.state_bytes) for one in rows] == [
        *((2, 836), (1, 418), (2, 836), (3, 1254), (3, 1256), (0, 0))
    ]
    first = rows[0]
    assert first.cut_us is not None
    assert [(one.subtask, one.attempt_number) for one in first.acked] == [(1, 0), (0, 0)]
    for one in first.acked:
        assert one.barrier_us is not None
        assert first.cut_us <= one.barrier_us < one.acked_us


def test_what_a_coordinator_hands_over_is_counted_too() -> None:
    one = HandHistory()
    one.epoch()
    one.turn(one.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 1))
    state = AttemptSnapshot(states=[], committables=[])
    cut = one.record(
        Kind.COORDINATOR_CHECKPOINTED, operator_id=SOURCE, checkpoint_id=1, value=state
    )
    one.turn(cut)

    (row,) = checkpoints(by_hand(one))
    assert (row.coordinator_bytes, row.state_bytes) == (2, 2), "two empty lists"


def test_a_split_says_when_it_was_committed() -> None:
    found = audit(recorded().records)
    settled = {one.checkpoint_id: one.settled_us for one in found.commits}

    assert [one.committed_us for one in found.splits] == [
        settled[one.checkpoint_id or 0] for one in found.splits
    ]


def test_a_split_that_needs_no_commit_is_committed_with_its_checkpoint() -> None:
    found = audit(_stored(streaming_history()))

    by_id = {one.split_id: one for one in found.splits}
    assert by_id["s0"].committed_us == BEGAN_US + 16_000, "the outcome of checkpoint 1"
    assert by_id["s5"].committed_us is None


def _stored(history: HandHistory) -> tuple[StoredRecord, ...]:
    log = MemoryLog("ingest.log")
    log.store(*history.records)
    return log.records


def test_one_of_a_thing_has_no_plural() -> None:
    log = MemoryLog("ingest.log")
    log.store(*streaming_history().records[:1])
    logs = OneLog(log, "ingest")
    result = CliRunner().invoke(main, ("epochs", "ingest"), obj=lambda _servers: logs)
    assert result.stdout.splitlines()[-1] == "1 epoch: 1 open."


def test_the_commands_show_the_tables() -> None:
    assert shown("events")[-1].endswith("handled.")
    assert shown("commits")[-1] == "5 commits: 5 settled."
    assert shown("failures")[-1] == "7 failures: 6 attempt, 1 global."
    assert shown("epochs")[-1] == "2 epochs: 1 finished, 1 replaced."
    for command, count in (("commits", 5), ("failures", 7), ("epochs", 2)):
        assert len([json.loads(one) for one in shown(command, "--json")]) == count
    assert {json.loads(one)["status"] for one in shown("events", "--json")} == {
        *("acked", "failed", "handled")
    }
