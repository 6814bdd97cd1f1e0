"""`coordlog report`: its files and their formats, on a log in memory and on an exported one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from coordlog.cli.commands.look.report import size_of_split
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.history import History
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import Audit, audit
from coordlog.report.chrome_trace import chrome_trace
from coordlog.schemas.record import Kind
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.source.split_bytes import encode_split
from driven_history import recorded_history
from histories.hand_history import streaming_history
from histories.one_log import OneLog
from histories.report_facts import document_of, log_of

RECORDED = Path(__file__).parents[2] / "golden" / "audited-history.avro"


@pytest.fixture
def log() -> MemoryLog:
    return log_of(recorded_history(), "flights")


def report(log: MemoryLog, *options: str) -> Result:
    return CliRunner().invoke(
        main, ("report", "flights", *options), obj=lambda _servers: OneLog(log, "flights")
    )


def test_a_report_is_one_file_and_is_not_replaced_unless_forced(
    log: MemoryLog, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    result = report(log, "-o", str(file))

    assert result.exit_code == Exit.DONE, result.output
    assert f"wrote 191 records of job flights to {file}" in result.stderr
    text = file.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "Content-Security-Policy" in text
    assert report(log, "-o", str(file)).exit_code == Exit.USAGE
    assert report(log, "-o", str(file), "--force").exit_code == Exit.DONE


def test_the_page_refers_to_nothing_outside_its_file(log: MemoryLog, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report(log, "-o", str(file))
    text = file.read_text("utf-8")

    assert "src=" not in text.replace("src={", "")
    assert "@import" not in text
    assert "url(" not in text


def test_an_exported_file_is_judged_at_its_last_record(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = CliRunner().invoke(
        main, ("report", str(RECORDED), "-o", str(file), "--format", "json")
    )

    assert result.exit_code == Exit.DONE, result.output
    facts = json.loads(file.read_text("utf-8"))
    assert facts["job"] == "flights"
    assert facts["moment_t"] == facts["last_t"]
    assert len(facts["records"]["off"]) == 193


def test_json_on_the_standard_output_is_the_document(log: MemoryLog) -> None:
    result = report(log, "-o", "-", "--format", "json")

    assert result.exit_code == Exit.DONE, result.output
    assert json.loads(result.stdout)["counts"] == {"records": 191, "void": 2}


def test_splits_of_files_have_the_bytes_that_are_to_be_read(log: MemoryLog) -> None:
    sizes = document_of(log, "flights", size_of=len).facts["splits"]

    assert isinstance(sizes, dict)
    assert sizes["bytes"] == [len(content) for content in contents_of_splits(log)]


def contents_of_splits(log: MemoryLog) -> list[bytes]:
    discovered = [
        record.fields["splits"]
        for record in History(log).records()
        if record.record is not None
        and record.record.kind is Kind.FACT
        and (record.record.payload_type or "").startswith("coordlog.splits_discovered@")
        and record.fields is not None
    ]
    return [
        cast("bytes", split["content"])
        for splits in discovered
        for split in cast("list[Any]", splits)
    ]


def test_the_size_of_a_part_of_a_file_is_its_share() -> None:
    split = FileSplit(
        split_id="a#1",
        path="a",
        size_bytes=1001,
        mark="",
        real_path="a",
        parts=2,
        listed_by="run",
        start=500,
        end=1001,
        arrow_schema=b"",
    )

    assert size_of_split(encode_split(split)) == 500
    assert size_of_split(encode_split(dataclasses.replace(split, size_bytes=-1))) is None
    assert size_of_split(b"no split") is None


def slices(events: list[Any], process: int) -> list[Any]:
    return [event for event in events if event["ph"] == "X" and event["pid"] == process]


def test_a_trace_has_a_slice_for_each_attempt_and_split(log: MemoryLog) -> None:
    tables: Audit = audit(log.records)
    events: Any = chrome_trace(document_of(log, "flights"))["traceEvents"]
    of_subtasks = slices(events, 2)
    attempts = [event for event in of_subtasks if event["name"].startswith("attempt ")]

    assert {(event["tid"], event["name"]): event["args"]["end"] for event in attempts} == {
        (row.subtask + 1, f"attempt {row.attempt_number}"): row.end.value for row in tables.attempts
    }
    for row in tables.attempts:
        (event,) = [
            event
            for event in attempts
            if (event["tid"], event["name"]) == (row.subtask + 1, f"attempt {row.attempt_number}")
        ]
        assert row.ended_us is not None
        assert row.started_us is not None
        assert event["dur"] == row.ended_us - row.started_us
    assert {event["name"] for event in of_subtasks} >= {row.split_id for row in tables.splits}
    assert [event["name"] for event in slices(events, 1)] == ["epoch 0", "epoch 1"]


def test_each_asynchronous_slice_of_a_trace_begins_and_ends(log: MemoryLog) -> None:
    events: Any = chrome_trace(document_of(log, "flights"))["traceEvents"]
    begun = [(e["cat"], e["id"], e["name"]) for e in events if e["ph"] == "b"]
    ended = [(e["cat"], e["id"], e["name"]) for e in events if e["ph"] == "e"]

    assert sorted(begun) == sorted(ended)
    assert len([name for name in begun if name[2].startswith("checkpoint ")]) == 6
    assert {event["ph"] for event in events} == {"M", "X", "b", "e", "i"}


def test_the_verdict_is_that_of_health_if_the_driver_is_gone() -> None:
    logs = OneLog(log_of(streaming_history().records), "ingest")
    health, made = (
        CliRunner().invoke(main, (name, "ingest", *options), obj=lambda _servers: logs)
        for name, options in (("health", ["--json"]), ("report", ["--format", "json", "-o", "-"]))
    )
    judged, facts = json.loads(health.stdout), json.loads(made.stdout)
    verdicts, texts = facts["verdicts"], facts["texts"]
    last = texts[verdicts["state"][-1]], texts[verdicts["reason"][-1]]

    assert last == (judged["state"], judged["reason"])
    assert "no driver answers" in last[1]
