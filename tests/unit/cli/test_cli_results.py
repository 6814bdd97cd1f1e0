"""Commands that act: with `--json` each prints one object with what was done, and its sentence as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from coordlog.cli.commands.machine import broker as broker_command
from coordlog.cli.config.names import commands_below
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.log.broker.shared import StopOutcome
from coordlog.log.interface import Log
from coordlog.log.memory import MemoryLog
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up
from fakes.kernel_fakes import chain_of as noting_chain
from fakes.split_fakes import ask, chain_of, pull_of

WITHOUT: dict[str, str] = {
    "ingest": "its lines are progress; `jobs --json` has the result",
    "report": "--format json",
    "web": "serves until it is ended",
    "jars": "its output is one value for a program",
    "completion": "its output is a script",
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)


class Logs:
    """Logs in memory, by job."""

    where = "memory"

    def __init__(self, **logs: MemoryLog) -> None:
        self.logs = logs

    def jobs(self) -> tuple[str, ...]:
        return tuple(sorted(self.logs))

    def open(self, job_id: str) -> Log:
        return self.logs[job_id]

    def open_to_write(self, job_id: str) -> Log:
        return self.logs[job_id]

    def create(self, job_id: str) -> MemoryLog:
        return self.logs.setdefault(job_id, MemoryLog(job_id))

    def topic_of(self, job_id: str) -> str:
        return f"{job_id}.log"

    def delete(self, job_id: str) -> None:
        del self.logs[job_id]


def done(logs: Logs, *arguments: str) -> dict[str, Any]:
    """The object that the command prints; without `--json` its standard output is empty."""
    result = CliRunner().invoke(main, (*arguments, "--json"), obj=lambda _servers: logs)
    assert result.exit_code == Exit.DONE, result.output
    assert result.stderr, "the sentence for a person is there too"
    (line,) = result.stdout.splitlines()
    value: dict[str, Any] = json.loads(line)
    return value


def worked() -> MemoryLog:
    job = HandDrivenJob(
        noting_chain(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=7)
    )
    attempt = job.register(0)
    for n in range(4):
        attempt.send("source", Up(n=n))
        checkpoint_id = job.trigger()
        assert checkpoint_id is not None
        attempt.ack_checkpoint(checkpoint_id, states={"source": b"state"})
    job.crash()
    return job.log


def test_every_command_has_json_but_those_with_a_reason() -> None:
    context = click.Context(main, info_name="coordlog")
    lacking = {
        path[0]
        for path, command in commands_below(main, (), context)
        if path
        and not isinstance(command, click.Group)
        and not any("--json" in option.opts for option in command.params)
    }
    assert lacking == set(WITHOUT)


def test_a_savepoint_has_its_checkpoint_and_the_sequence_of_its_record() -> None:
    logs = Logs(job=worked())
    taken = done(logs, "savepoint", "job", "first", "--checkpoint", "3")
    assert taken == {
        "job_id": "job",
        "status": "taken",
        "sequence": taken["sequence"],
        "checkpoint": 3,
        "savepoint": "first",
    }
    assert taken["sequence"] > 0
    again = done(logs, "savepoint", "job", "first", "--checkpoint", "3")
    assert (again["status"], again["sequence"]) == ("was taken before", None)
    assert done(logs, "savepoint", "job", "first", "--release")["status"] == "released"


def test_a_refused_savepoint_prints_no_object_and_keeps_its_status() -> None:
    logs = Logs(job=worked())
    arguments = ("savepoint", "job", "first", "--checkpoint", "99", "--json")
    refused = CliRunner().invoke(main, arguments, obj=lambda _servers: logs)

    assert (refused.exit_code, refused.stdout) == (Exit.USAGE, "")
    assert "checkpoint 99" in refused.stderr


def test_a_skip_has_the_split_and_the_sequence_of_its_record() -> None:
    job = HandDrivenJob(chain_of(pull_of("a", "b")))
    ask(job.register(0))
    job.crash()
    logs = Logs(job=job.log)

    skipped = done(logs, "skip", "job", "--split", "a")
    assert (skipped["status"], skipped["split_id"]) == ("skipped", "a")
    assert skipped["event_sequence"] is None
    assert skipped["sequence"] > 0
    again = done(logs, "skip", "job", "--split", "a")
    assert (again["status"], again["sequence"]) == ("was skipped before", None)


def test_a_fork_has_its_origin_and_the_number_of_copied_records() -> None:
    logs = Logs(job=worked())
    begun = done(logs, "fork", "other", "job@2")
    assert begun == {
        "job_id": "other",
        "status": "begun",
        "from_job_id": "job",
        "checkpoint": 2,
        "record_count": logs.logs["other"].high_watermark() - 1,
        "unsettled_checkpoints": [],
    }
    assert done(logs, "fork", "other", "job@2")["status"] == "was begun before"


def test_an_export_an_import_and_an_adoption_have_their_counts(tmp_path: Path) -> None:
    logs, elsewhere = Logs(job=worked()), Logs()
    count = logs.logs["job"].high_watermark()
    file = tmp_path / "job.avro"
    assert done(logs, "export", "job", str(file)) == {
        "job_id": "job",
        "status": "exported",
        "file": str(file),
        "record_count": count,
        "is_redacted": False,
    }
    spans = done(logs, "export", "job", str(tmp_path / "traces.json"), "--otlp")
    assert (spans["status"], spans["span_count"] > 0) == ("exported", True)
    assert done(elsewhere, "import", str(file), "--as", "shown") == {
        "job_id": "shown",
        "status": "imported",
        "where": "memory",
        "record_count": count,
    }
    adopt = ("adopt", "job", "--from", str(file), "--take-over")
    adopted, again = done(elsewhere, *adopt), done(elsewhere, *adopt)
    assert (adopted["status"], adopted["record_count"]) == ("adopted", count)
    assert adopted["from_topic_id"] == logs.logs["job"].identity.topic_id
    assert (again["status"], again["next_epoch"]) == ("was adopted before", adopted["next_epoch"])


def test_a_prune_has_the_first_offset_of_the_log_and_its_archive(tmp_path: Path) -> None:
    logs, archive = Logs(job=worked()), tmp_path / "removed.avro"
    pruned = done(logs, "prune", "job", "--yes", "--archive", str(archive), "--take-over")

    start = logs.logs["job"].start_offset()
    assert start > 0
    assert (pruned["status"], pruned["start_offset"]) == ("pruned", start)
    assert (pruned["record_count"], pruned["archive"]) == (start, str(archive))
    again = done(logs, "prune", "job", "--yes", "--take-over")
    assert (again["status"], again["start_offset"]) == ("nothing to remove", start)


def test_the_prompt_of_a_prune_is_not_on_the_standard_output() -> None:
    logs = Logs(job=worked())
    arguments = ("prune", "job", "--take-over", "--json")
    asked = CliRunner().invoke(main, arguments, obj=lambda _servers: logs, input="n\n")

    assert asked.exit_code == Exit.FAILED
    assert asked.stdout == ""
    assert "Archive and remove them?" in asked.stderr


def test_a_deletion_has_the_number_of_its_payloads(tmp_path: Path) -> None:
    logs = Logs(job=worked())
    deleted = done(logs, "delete", "job", "--yes", "--take-over")
    assert (deleted["job_id"], deleted["status"], deleted["payload_count"]) == ("job", "deleted", 0)
    assert logs.jobs() == ()

    store = tmp_path / "store"
    arguments = ("delete", "job", "--all-payloads", "--payload-store", store.as_uri(), "--yes")
    left = done(logs, *arguments)
    assert (left["status"], left["payload_count"]) == ("payloads deleted", 0)


@pytest.mark.parametrize("outcome", list(StopOutcome))
def test_a_stop_of_the_broker_has_its_outcome(
    outcome: StopOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_command, "stop_shared", lambda: outcome)
    stopped = CliRunner().invoke(main, ["broker", "stop", "--json"])
    assert json.loads(stopped.stdout) == {"status": outcome.value}


def test_the_status_of_a_broker_that_does_not_run_is_json_with_status_one() -> None:
    shown = CliRunner().invoke(main, ["broker", "status", "--json"])
    assert shown.exit_code == Exit.FAILED
    assert json.loads(shown.stdout)["status"] == "not running"


def test_a_cleared_cache_has_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_CACHE", str(tmp_path / "cache"))
    jar = tmp_path / "cache" / "jars" / "broker-0a1b" / "kafka.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"x" * 1000)

    first, second = (
        json.loads(CliRunner().invoke(main, ["cache", "clear", "--yes", "--json"]).stdout)
        for _ in range(2)
    )
    assert (first["status"], first["byte_count"]) == ("cleared", 1000)
    assert (second["status"], second["removed"]) == ("nothing to remove", [])
