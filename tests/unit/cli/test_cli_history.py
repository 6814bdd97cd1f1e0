"""The commands that read a history, on logs in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit, exit_of
from coordlog.cli.log_access import Logs, no_such_job
from coordlog.cli.main import main
from coordlog.errors import (
    DriverAliveError,
    FencedError,
    JobFailedError,
    LogUnavailableError,
    OptionError,
    TopicError,
)
from coordlog.log.interface import Log
from coordlog.log.local.environment_errors import BrokerError
from coordlog.log.memory import MemoryLog
from coordlog.schemas.record import Kind
from histories.hand_history import HandHistory, batch_history, streaming_history, unstored


class FakeLogs:
    """Logs in memory."""

    def __init__(self, *histories: HandHistory) -> None:
        self.logs: dict[str, MemoryLog] = {}
        self.closed = 0
        for one in histories:
            log = self.logs[one.job_id] = MemoryLog(f"{one.job_id}.log")
            log.store(*one.records)

    @property
    def where(self) -> str:
        """In messages."""
        return "memory"

    def jobs(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(sorted(self.logs))

    def open(self, job_id: str) -> Log:
        """One of them."""
        if job_id not in self.logs:
            raise no_such_job(job_id, self.where, self.jobs())
        return self.logs[job_id]

    def delete(self, job_id: str) -> None:
        """One less."""
        del self.logs[job_id]


LOGS = FakeLogs(streaming_history(), batch_history())


def run(*arguments: str, logs: Logs = LOGS, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, obj=lambda _servers: logs, input=answer)


def lines(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def objects(*arguments: str) -> list[dict[str, object]]:
    return [json.loads(one) for one in lines(*arguments, "--json")]


# history


def test_the_history_is_a_line_for_each_record_below_a_heading_and_the_day() -> None:
    shown = lines("history", "nightly")

    assert len(shown) == 2 + len(batch_history().records)
    assert shown[0].split() == [
        *("OFFSET", "SEQ", "TIME", "(UTC)", "EP", "KIND", "OPERATOR", "ATTEMPT", "CKPT"),
        "WHAT",
    ]
    assert shown[1] == "-- 2023-11-14"
    assert shown[2].split() == ["0", "22:13:20.001", "0", "EPOCH_STARTED"]
    assert shown[4].split()[:8] == [
        *("2", "1", "22:13:20.003", "0", "ATTEMPT_STARTED", "0/0", "-1"),
        "host=worker-1",
    ]


def test_a_line_shows_the_decoded_payload_and_the_reason() -> None:
    (assigned, *_) = lines("history", "nightly", "--kind", "EVENT_TO_SUBTASK")[2:]
    (failed, *_) = lines("history", "nightly", "--kind", "attempt_failed")[2:]

    assert assigned.endswith(
        "event 0  add_splits@1  "
        "splits: [{split_id: a, content: 0x01}, {split_id: b, content: 0x01}]"
    )
    assert failed.endswith("because killed")


def test_the_state_of_a_plain_coordinator_is_text_if_it_is_text() -> None:
    stated = HandHistory(job_id="stated")
    stated.epoch()
    for number, state in enumerate((b'{\n  "hot": 12\n}', bytes(range(256)), b"\x02\xff", b"")):
        step = stated.of_checkpoint(Kind.COORDINATOR_CHECKPOINTED, number)
        stated.turn(replace(step, payload=state))

    arguments = ("history", "stated", "--kind", "COORDINATOR_CHECKPOINTED")
    shown = run(*arguments, logs=FakeLogs(stated)).stdout.splitlines()[2:]

    assert [one.partition(f" {number}  ")[2] for number, one in enumerate(shown)] == [
        '{ "hot": 12 }',
        "0x000102030405060708090a0b… (256 bytes)",
        "0x02ff",
        "0x",
    ]
    as_json = run(*arguments, "--json", logs=FakeLogs(stated)).stdout.splitlines()
    assert json.loads(as_json[0])["payload_hex"] == b'{\n  "hot": 12\n}'.hex()


def test_a_void_record_is_marked_with_the_reason() -> None:
    marked = [one for one in lines("history", "ingest") if "[void: " in one]

    assert [one[one.index("[") + 1 : one.index("]")] for one in marked] == [
        "void: its sequence is not the next one",
        "void: not a record of this log's format",
        "void: a newer epoch cut its turn off",
        "void: its epoch is not in force",
    ]
    assert "value 0x006761726261" in marked[1]


@pytest.mark.parametrize(
    ("filters", "offsets"),
    [
        (("--kind", "SUBTASK_RESET"), [8]),
        (("--kind", "SUBTASK_RESET", "--kind", "ATTEMPT_FAILED"), [7, 8, 11]),
        (("--subtask", "0", "--attempt", "1"), [9, 10, 11]),
        (("--checkpoint", "-1", "--from-offset", "13"), [13, 19, 20, 21]),
        (("--epoch", "7"), []),
        (("--limit", "2", "--from-offset", "3"), [3, 4]),
    ],
)
def test_filters_choose_records(filters: tuple[str, ...], offsets: list[int]) -> None:
    assert [one["offset"] for one in objects("history", "nightly", *filters)] == offsets


def test_json_has_everything() -> None:
    assert objects("history", "nightly", "--kind", "SPLIT_FINISHED", "--limit", "1") == [
        {
            "offset": 6,
            "counts": True,
            "void": None,
            "key": "nightly/0/0",
            "timestamp": "2023-11-14T22:13:20.005000Z",
            "job_id": "nightly",
            "epoch": 0,
            "driver_id": "driver-0",
            "sequence": 5,
            "turn_remaining": 0,
            "kind": "SPLIT_FINISHED",
            "operator_id": "source",
            "subtask": 0,
            "attempt_number": 0,
            "checkpoint_id": None,
            "event_id": None,
            "last_barrier": -1,
            "cause": None,
            "payload_type": "coordlog.split_finished@1",
            "payload": {"split_id": "a", "rows": 5, "bytes_read": 5, "committables": []},
            "reason": None,
            "attributes": {"kept": "true"},
        }
    ]


def test_another_programs_record_is_json_too() -> None:
    (foreign,) = [one for one in objects("history", "ingest") if "value_hex" in one]

    assert foreign["key"] == "0xff6e6f626f6479"
    assert foreign["value_hex"] == b"\x00garbage".hex()
    assert foreign["counts"] is False


# The tables


def test_attempts_are_a_table_and_a_sum() -> None:
    shown = lines("attempts", "ingest")

    assert shown[0].split()[:3] == ["ATTEMPT", "EPOCH", "RUN"]
    assert shown[1].split() == [
        *("0/0", "0", "0", "0", "worker-1:100", "22:13:20.004", "19", "ms", "-1", "fenced", "2/3"),
        *("170", "0/2/0", "1", "1", "its", "driver,", "of", "epoch", "0,", "is", "gone"),
    ]
    assert shown[-1] == (
        "7 attempts of 2 subtasks: 1 completed, 3 failed, 2 fenced, 1 running. "
        "62 records, 4 do not count."
    )


def test_attempts_as_json_have_times_in_iso_8601() -> None:
    first = objects("attempts", "nightly")[0]

    assert first["started_at"] == "2023-11-14T22:13:20.003000Z"
    assert first["status"] == "failed"
    assert first["resets"] == [-1]


def test_splits_say_what_was_thrown_away() -> None:
    shown = lines("splits", "ingest", "--thrown-away")

    assert [one.split()[0] for one in shown[1:-1] if one.startswith("s")] == [
        *("s1", "s2", "s3", "s4")
    ]
    assert any("0/0 back to 1, part: its driver, of epoch 0, is gone" in one for one in shown)
    assert shown[-1].startswith("6 splits, thrown away 7 times (2 in whole, 5 in part): ")


def test_checkpoints_say_what_became_of_them() -> None:
    shown = lines("checkpoints", "ingest")

    assert shown[2].split() == [
        *("2", "1", "aborted", "22:13:20.031", "1", "ms", "0", "0", "not", "whole", "in", "time")
    ]
    assert shown[-1].startswith("4 checkpoints: 1 aborted, 3 completed.")


# jobs, delete


def test_jobs_are_listed_one_a_line() -> None:
    assert lines("jobs", "--names") == ["ingest", "nightly"]


def test_names_are_listed_where_json_is_set_for_all_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COORDLOG_JSON", "1")
    assert lines("jobs", "--names") == ["ingest", "nightly"]
    assert run("jobs", "--names", "--json").exit_code == 2


def test_a_job_that_does_not_exist_is_named_with_those_that_do() -> None:
    for command in ("history", "attempts", "splits", "checkpoints", "delete"):
        result = run(command, "ingset")

        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr == (
            "error: topic ingset.log: there is no job 'ingset' at memory; "
            "the jobs there are ingest, nightly\n"
        )


def test_delete_asks_first_and_says_what_goes() -> None:
    logs = FakeLogs(batch_history())

    refused = run("delete", "nightly", logs=logs, answer="n\n")

    assert refused.exit_code == 1
    assert "has 23 records, the last of 2023-11-14T22:13:20.017000Z, in epoch 0" in refused.output
    assert logs.jobs() == ("nightly",)
    assert run("delete", "nightly", logs=logs, answer="y\n").exit_code == 0
    assert logs.jobs() == ()


def test_delete_with_yes_does_not_ask() -> None:
    logs = FakeLogs(batch_history())

    result = run("delete", "nightly", "--yes", logs=logs)

    assert (result.exit_code, result.stdout) == (0, "")
    assert logs.jobs() == ()


def test_delete_asks_again_whether_a_driver_lives_once_it_has_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that begins while the question stands would go on, with its log gone under it."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    made = batch_history()
    logs = FakeLogs(made)

    def answered(*_question: object, **_options: object) -> bool:
        began = replace(made.record(Kind.EPOCH_STARTED), epoch=1, sequence=None)
        attributes = {**began.attributes, "endpoint": "ws://127.0.0.1:1"}
        logs.logs["nightly"].store(unstored(replace(began, attributes=attributes)))
        return True

    monkeypatch.setattr(click, "confirm", answered)
    late = run("delete", "nightly", logs=logs)

    assert late.exit_code == 3
    assert "(driver-0, epoch 1, at ws://127.0.0.1:1) lives: nothing answers there" in late.stderr
    assert logs.jobs() == ("nightly",)


@pytest.mark.parametrize("is_made_again", [True, False], ids=["made again", "grown"])
def test_delete_checks_again_for_a_new_epoch_after_the_driver_query(
    is_made_again: bool,  # noqa: FBT001, a parameter
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asking one that does not answer takes seconds, and this process may stand still meanwhile."""
    made = batch_history()
    logs, asked = FakeLogs(made), 0
    log = logs.logs["nightly"]

    def ask(*_about: object, **_options: object) -> None:
        nonlocal asked
        asked += 1
        if asked < 2:
            return
        if is_made_again:
            log.recreate()
            log.store(*made.records)
        began = replace(made.record(Kind.EPOCH_STARTED), epoch=1, sequence=None)
        log.store(*([] if is_made_again else [unstored(began)]))

    monkeypatch.setattr("coordlog.cli.commands.repair.delete.refuse_live_driver", ask)
    late = run("delete", "nightly", "--yes", logs=logs)

    assert (late.exit_code, asked) == (2, 2)
    seen = "its topic was replaced" if is_made_again else "has grown from 23 records to 24"
    assert seen in late.stderr
    assert "try again" in late.stderr
    assert logs.jobs() == ("nightly",)
    assert run("delete", "nightly", "--yes", "--take-over", logs=logs).exit_code == 0


def test_delete_refuses_where_nobody_can_tell_whether_a_driver_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    made = HandHistory("nightly")
    began = replace(made.record(Kind.EPOCH_STARTED), epoch=0, sequence=None)
    made.epoch_number = 0
    made.records.append(unstored(replace(began, attributes={"endpoint": "ws://127.0.0.1:1"})))
    logs = FakeLogs(made)

    blind = run("delete", "nightly", "--yes", logs=logs)
    assert blind.exit_code == 3
    assert "epoch 0, at ws://127.0.0.1:1) lives: nothing answers there" in blind.stderr
    logs.logs["nightly"].remove_below(1)
    logs.logs["nightly"].store(unstored(made.record(Kind.COORDINATORS_STARTED)))
    lost = run("delete", "nightly", "--yes", logs=logs)
    assert lost.exit_code == 2
    assert (
        "does not show whether a driver of it runs: record at offset 1: the log begins here"
        in lost.stderr
    )
    assert run("delete", "nightly", "--yes", "--take-over", logs=logs).exit_code == 0
    assert logs.jobs() == ()


@pytest.mark.parametrize("is_topics_copy", [False, True], ids=["another job's", "another topic's"])
def test_delete_of_a_copy_asks_no_driver_of_the_log_that_it_is_a_copy_of(
    is_topics_copy: bool,  # noqa: FBT001, a parameter
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fork that was cut off holds the other job's history alone: no driver drives that log."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    made = HandHistory("nightly" if is_topics_copy else "other")
    began = replace(made.record(Kind.EPOCH_STARTED), epoch=0, sequence=None)
    made.epoch_number = 0
    attributes = {"endpoint": "ws://127.0.0.1:1"}
    if is_topics_copy:
        attributes |= {"cluster_id": "the old cluster", "topic_id": "its topic"}
    made.records.append(unstored(replace(began, attributes=attributes)))
    made.job_id = "nightly"
    logs = FakeLogs(made)

    result = run("delete", "nightly", "--yes", logs=logs)

    assert result.exit_code == 0, result.output
    assert logs.jobs() == ()


# The edge


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OptionError("job_id", "A", "lower case"), 2),
        (DriverAliveError("ingest", 1, "d", "127.0.0.1:1"), 3),
        (FencedError("ingest", 1, 2, "d"), 4),
        (LogUnavailableError("ingest.log", "reading", 10.0), 5),
        (BrokerError("it does not start", "look at its log"), 5),
        (TopicError("ingest.log", "bad", "mend it"), 1),
        (JobFailedError("ingest", ("boom",)), 1),
        (OSError(28, "No space left on device"), 6),
    ],
)
def test_each_error_has_its_status(error: Exception, status: int) -> None:
    assert exit_of(error) == status


def test_a_full_disk_is_found_behind_another_error() -> None:
    error = JobFailedError("ingest", ("boom",))
    error.__cause__ = OSError(28, "No space left on device")

    assert exit_of(error) is Exit.NO_SPACE


class _Raising(FakeLogs):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def jobs(self) -> tuple[str, ...]:
        raise self.error


def test_an_error_is_one_message_and_no_traceback() -> None:
    result = run("jobs", logs=_Raising(LogUnavailableError("a.log", "listing jobs", 10.0)))

    assert result.exit_code == 5
    assert result.stdout == ""
    assert result.stderr.startswith("error: the log a.log did not answer for 10.0 s")
    assert len(result.stderr.splitlines()) == 1


def test_a_fault_of_ours_says_so_and_debug_shows_where() -> None:
    logs = _Raising(KeyError("offset"))

    result = run("jobs", logs=logs)

    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "this is a fault of coordlog: KeyError" in result.stderr
    assert isinstance(run("--debug", "jobs", logs=logs).exception, KeyError)


def test_an_interrupt_is_130() -> None:
    result = run("jobs", logs=_Raising(KeyboardInterrupt()))

    assert (result.exit_code, result.stderr) == (130, "stopped\n")


def test_a_wrong_option_is_2() -> None:
    assert run("history", "nightly", "--kind", "NOTHING").exit_code == 2
    assert run("no-such-command").exit_code == 2


def test_help_names_every_command_and_the_statuses() -> None:
    result = run("--help")

    for name in ("history", "attempts", "splits", "checkpoints", "jobs", "delete", "broker"):
        assert f"  {name} " in result.output
    assert "5 the log cannot be reached" in " ".join(result.output.split())


def test_every_command_that_is_there_can_be_loaded() -> None:
    context = click.Context(main)
    for name in (
        "history",
        "attempts",
        "splits",
        "reads",
        "checkpoints",
        "jobs",
        "delete",
        "broker",
        "jars",
    ):
        command = main.get_command(context, name)
        assert isinstance(command, click.Command)


def test_help_of_a_reading_command_imports_neither_spark_nor_kafka() -> None:
    program = (
        "import sys\n"
        "from coordlog.cli.main import main\n"
        "main(['history', '--help'], standalone_mode=False)\n"
        "print([one for one in ('pyspark', 'kafka', 'pandas') if one in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_has_gone_ends_it_quietly() -> None:
    program = _MANY + (
        "from coordlog.cli.main import main\n"
        "main(['history', 'ingest', '--json'], obj=lambda _: Logs)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


_MANY = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from histories.hand_history import HandHistory
from coordlog.log.memory import MemoryLog
history = HandHistory()
history.epoch()
for number in range(3000):
    history.turn(history.started((0, number), -1, number))
class Logs:
    where = "memory"
    @staticmethod
    def open(job_id):
        log = MemoryLog()
        log.store(*history.records)
        return log
"""
