"""The document of a report: at every offset, its facts are those of the folds over the log up to there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.explain import explain_event
from coordlog.projections.tables.audit import Audit, audit, audit_records
from coordlog.report.columns import Table, Texts
from coordlog.report.curves import quantile
from coordlog.report.outcomes import cause_of
from coordlog.report.time_tables import idle_times
from coordlog.schemas.record import Kind
from driven_history import recorded_history
from histories.hand_history import HandHistory, batch_history, skipping_history, streaming_history
from histories.report_facts import Facts, document_of, log_of

HISTORIES: dict[str, Callable[[], Sequence[UnstoredRecord]]] = {
    "streaming": lambda: streaming_history().records,
    "batch": lambda: batch_history().records,
    "skipping": lambda: skipping_history().records,
    "recorded": recorded_history,
}

EARLY = ("in checkpoint", "committed")


def ends_of_turns(log: MemoryLog) -> list[int]:
    """Offsets of the last record of each turn: a turn counts as a whole."""
    return [
        entry.offset
        for entry in audit_records(log.records)
        if entry.counts and entry.record is not None and entry.record.turn_remaining == 0
    ]


def tables_at(log: MemoryLog, offset: int) -> Audit:
    return audit(log.read(0, offset + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", HISTORIES)
def test_the_facts_up_to_an_offset_are_the_tables_of_the_log_up_to_it(name: str) -> None:
    log = log_of(HISTORIES[name]())
    facts = Facts(document_of(log))
    offsets = ends_of_turns(log)
    assert len(offsets) > 10

    for offset in offsets:
        tables = tables_at(log, offset)
        assert facts.attempts(offset) == {
            (row.subtask, row.attempt_number): row.end.value for row in tables.attempts
        }, offset
        assert facts.checkpoints(offset) == {
            row.checkpoint_id: (row.status.value, row.acks) for row in tables.checkpoints
        }, offset
        assert facts.commits(offset) == {
            row.sequence: row.status.value == "settled" for row in tables.commits
        }, offset
        assert facts.epochs(offset) == {row.epoch: row.end.value for row in tables.epochs}, offset
        assert facts.failures(offset) == [
            (row.scope.value, row.reset_to, row.restarted_us is not None) for row in tables.failures
        ], offset
        places = {row.split_id: row.place.value for row in tables.splits}
        if name in ("streaming", "batch"):
            # Their commits have no committables: until the intent, the fold takes the splits for committed.
            shown = facts.splits(offset)
            waiting = {key for key in shown if (shown[key], places[key]) == EARLY}
            places |= dict.fromkeys(waiting, "in checkpoint")
        assert facts.splits(offset) == places, offset
        assert facts.lost(offset) == {
            row.split_id: [lost.is_whole for lost in row.thrown_away]
            for row in tables.splits
            if row.thrown_away
        }, offset


def test_the_document_is_json_and_each_table_has_columns_of_one_length() -> None:
    made = document_of(log_of(streaming_history().records))
    facts = json.loads(json.dumps(made.facts, allow_nan=False))
    tables = [
        value for value in facts.values() if isinstance(value, dict) and "records" not in value
    ]

    assert len(tables) >= 20
    for table in tables:
        assert len({len(column) for column in table.values()}) == 1
    assert facts["format"] == 1
    assert facts["counts"] == {"records": 62, "void": 4}


def test_records_have_their_words_verdicts_and_causes() -> None:
    log = log_of(streaming_history().records)
    facts = Facts(document_of(log))
    records = facts.records
    entries = list(audit_records(log.records))

    assert records["off"] == [entry.offset for entry in entries]
    assert [verdict == 0 for verdict in records["valid"]] == [entry.counts for entry in entries]
    outcome = next(
        row
        for row, kind in enumerate(records["kind"])
        if facts.facts["kinds"][kind] == "COMMIT_OUTCOME"
    )
    cause = records["cause"][outcome]
    assert facts.facts["kinds"][records["kind"][cause]] == "COMMIT_INTENT"
    sent = next(
        entry for entry in entries if entry.record and entry.record.kind is Kind.EVENT_TO_SUBTASK
    )
    assert sent.record is not None
    assert sent.record.sequence is not None
    explained = explain_event(log.records, sent.record.sequence)
    words = {step.offset: step.words for step in explained.steps}
    assert words.items() <= dict(zip(records["off"], records["words"], strict=True)).items()


def test_late_records_of_a_fenced_driver_are_listed() -> None:
    facts = Facts(document_of(log_of(streaming_history().records)))

    assert [(row["epoch"], facts.text(row["kind"])) for row in facts.rows("late")] == [
        (0, "EVENT_ACKED"),
        (0, "SPLIT_FINISHED"),
    ]


def test_a_pruned_log_is_said_to_be_partial() -> None:
    whole = document_of(log_of(streaming_history().records))

    assert whole.facts["is_partial"] is False


def test_an_empty_log_has_a_document() -> None:
    facts = Facts(document_of(MemoryLog("empty")))

    assert facts.facts["t0"] is None
    assert facts.rows("attempts") == []
    assert facts.rows("verdicts") == []


def test_an_epoch_ends_with_its_last_record_and_not_with_the_next_epoch() -> None:
    log = log_of(streaming_history().records)
    shown = Facts(document_of(log)).rows("epochs")
    rows = audit(log.records).epochs

    assert [row["end_t"] - row["t"] for row in shown[:-1]] == [
        row.last_us - (row.started_us or 0) for row in rows[:-1]
    ]
    assert shown[0]["end_t"] < shown[1]["t"]


def test_the_output_files_of_an_intent_are_those_of_its_attempts() -> None:
    facts = Facts(document_of(log_of(recorded_history())))
    files = facts.rows("files")

    assert len(files) == 12
    assert sum(file["rows"] for file in files) == 480
    assert {(file["sub"], file["att"]) for file in files} >= {
        (row["sub"], row["att"]) for row in facts.rows("holds") if row["thrown_off"] is None
    }


def test_a_moment_after_the_last_record_shows_what_is_waited_for() -> None:
    history = HandHistory()
    history.epoch()
    history.turn(history.record(Kind.COORDINATORS_STARTED))
    history.turn(history.started((0, 0), -1, 0))
    history.turn(history.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 1))
    late_us = history.now_us + 3_600_000_000
    facts = Facts(document_of(log_of(history.records), moment_us=late_us))
    last = facts.rows("verdicts")[-1]

    assert facts.text(last["state"]) == "stuck"
    assert last["off"] == 3
    assert [facts.text(row["kind"]) for row in facts.rows("waiting")] == ["checkpoint", "record"]


def test_a_wait_between_two_records_changes_the_verdict_and_back() -> None:
    history = HandHistory()
    history.epoch()
    history.turn(history.record(Kind.COORDINATORS_STARTED))
    history.turn(history.started((0, 0), -1, 0))
    history.turn(history.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 1))
    history.now_us += 3_600_000_000
    history.turn(history.of_checkpoint(Kind.CHECKPOINT_COMPLETED, 1))
    facts = Facts(document_of(log_of(history.records)))

    states = [(facts.text(row["state"]), row["off"]) for row in facts.rows("verdicts")]
    assert states[-2:] == [("stuck", 3), ("progressing", 4)]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("killed by signal 9 on worker-17", "killed by signal # on worker-#"),
        ("boom\nTraceback", "boom"),
        ("driver 62c53f55dc451193 is gone", "driver # is gone"),
        ("", "no reason recorded"),
    ],
)
def test_failures_of_one_kind_have_one_cause(reason: str, cause: str) -> None:
    assert cause_of(reason) == cause


def test_idle_times_are_those_that_are_long_beside_the_rest() -> None:
    second = 1_000_000

    assert idle_times([]) == []
    assert idle_times([n * second for n in range(100)]) == []
    busy = [n * second // 10 for n in range(100)]
    later = [3600 * second + t for t in busy]
    assert idle_times([*busy, *later]) == [(busy[-1], later[0])]


def test_quantiles_are_values_of_the_list() -> None:
    values = [float(n) for n in range(1, 101)]

    assert quantile(values, 0.5) == 50
    assert quantile(values, 0.99) == 99
    assert quantile([7.0], 0.99) == 7


def test_a_table_has_its_values_by_column_and_texts_are_numbered_once() -> None:
    table, texts = Table("a", "b"), Texts()

    assert table.add(1, texts.number("x")) == 0
    assert table.add(2, texts.number("x")) == 1
    table.put(1, "a", 3)
    assert table.json() == {"a": [1, 3], "b": [0, 0]}
    assert texts.number(None) is None
    assert texts.json() == ["x"]
