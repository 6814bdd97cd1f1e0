"""`coordlog stop`, `trigger`, `kill-attempt` and `request` on a live driver, and on one that ends meanwhile."""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from coordlog import coordinators
from coordlog.cli.exit_status import Exit
from coordlog.cli.living import driver_in
from coordlog.cli.main import main
from coordlog.errors import JobFailedError, RequestRefusedError
from coordlog.log.memory import MemoryLog
from coordlog.projections.job.state import JobState
from coordlog.runtime.driver import DriverOptions, JobDriver, JobResult, JobStatus
from coordlog.runtime.mailbox import Mailbox
from coordlog.schemas.payload import Payload, PayloadRole
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.driver.liveness import Liveness, driver_liveness
from coordlog.spark_integration.wire.token import TOKEN_VARIABLE, Token
from fakes.endpoint_parts import TOKEN, EndpointSurroundings, wait_for
from fakes.kernel_fakes import Noting, chain_of
from fakes.request_fakes import AnsweringProvider, SoMany
from histories.one_log import OneLog, savepoint_command

WAIT_S = 20.0

pytestmark = [pytest.mark.slow, pytest.mark.clause("J1")]


class LiveJob:
    """One driver of a job that never ends by itself."""

    def __init__(self, *more_types: type[Payload]) -> None:
        self.provider = AnsweringProvider()
        self.provider.payload_types += more_types
        self.log = MemoryLog("job")
        chain = chain_of(self.provider)
        self.driver = JobDriver(
            chain=chain,
            log=self.log,
            options=DriverOptions(job_id="job", parallelism=2, is_batch=False, restarts_max=0),
            surroundings=EndpointSurroundings(chain, "job", 2),
        )
        self.driver.start()
        wait_for(lambda: self.state.live_count == 2, "both attempts run")

    @property
    def state(self) -> JobState:
        assert self.driver.state is not None
        return self.driver.state

    def run(self, command: str, *arguments: str) -> Result:
        """A command, on this job."""
        return CliRunner().invoke(
            main, (command, "job", *arguments), obj=lambda _servers: OneLog(self.log)
        )

    def records(self, *kinds: Kind) -> list[Record]:
        stored = self.log.read(0, self.log.high_watermark())
        records = [entry.record() for entry in stored]
        return [record for record in records if record.kind in kinds]

    def facts(self, name: str) -> list[Record]:
        return [
            record
            for record in self.records(Kind.FACT)
            if record.payload_type == f"coordlog.{name}@1"
        ]

    def wait(self) -> JobResult:
        result = self.driver.wait(WAIT_S)
        assert result is not None, "it ends"
        return result


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveJob]:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN.text())
    live = LiveJob()
    yield live
    live.driver.end_at_once(by="the test")
    live.driver.wait(WAIT_S)


def client(command: str) -> dict[str, str]:
    """Attributes of a request of this process."""
    return {
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "command": command,
    }


def asked_by(record: Record) -> dict[str, str]:
    return {name: record.attributes.get(name, "") for name in client("")}


def test_a_stop_takes_a_checkpoint_and_its_savepoint_and_names_who_asked(job: LiveJob) -> None:
    done = job.run("stop", "--savepoint", "before-upgrade", "--json")

    assert done.exit_code == Exit.DONE, done.output
    result = job.wait()
    assert result.status is JobStatus.STOPPED
    number = result.stop_checkpoint
    assert dict(job.state.savepoints.items()) == {"before-upgrade": number}
    shown = json.loads(done.stdout)
    assert (shown["status"], shown["checkpoint"], shown["savepoints"]) == (
        "is stopped",
        number,
        ["before-upgrade"],
    )
    stop, savepoint = job.records(Kind.REQUEST)
    assert (asked_by(stop), asked_by(savepoint)) == (client("stop"), client("stop"))
    (requested,) = job.facts("stop_requested")
    asker = f"{getpass.getuser()} on {socket.gethostname()} (process {os.getpid()}, coordlog stop)"
    assert requested.reason == f"stop requested by {asker}"
    (stopped,) = job.facts("driver_stopped")
    assert stopped.reason == f"stopped by {asker}"


@pytest.mark.clause("K2")
def test_after_a_stop_the_driver_answers_no_more_and_another_may_start(
    job: LiveJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start right after the command was refused: the driver that was stopped still answered."""
    close = Mailbox.close

    def slowly(self: Mailbox) -> None:
        time.sleep(1)
        close(self)

    monkeypatch.setattr(Mailbox, "close", slowly)
    driver = driver_in(job.log, "job")
    assert driver is not None
    assert driver_liveness(driver).liveness is Liveness.LIVES

    stopped = job.run("stop", "--no-checkpoint")

    assert stopped.exit_code == Exit.DONE, stopped.output
    assert driver_liveness(driver).liveness is not Liveness.LIVES


def test_a_stop_whose_driver_does_not_close_in_time_says_so(
    job: LiveJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, close = threading.Event(), Mailbox.close

    def hangs(self: Mailbox) -> None:
        assert goes_on.wait(WAIT_S)
        close(self)

    monkeypatch.setattr(Mailbox, "close", hangs)
    try:
        late = job.run("stop", "--no-checkpoint", "--timeout", "1")
    finally:
        goes_on.set()

    assert late.exit_code == Exit.FAILED, late.output
    assert "its end is in the log, but the driver at ws://" in late.stderr
    assert "has not closed yet" in late.stderr


def test_a_job_that_was_stopped_before_is_left_as_it_is(job: LiveJob) -> None:
    assert job.run("stop", "--no-checkpoint").exit_code == Exit.DONE
    job.wait()
    end = job.log.high_watermark()

    again = job.run("stop")

    assert (again.exit_code, job.log.high_watermark()) == (Exit.DONE, end)
    assert "job job was stopped before: no driver of it runs" in again.stderr
    late = job.run("stop", "--savepoint", "x")
    assert late.exit_code == Exit.UNREACHABLE
    assert "no driver of it runs" in late.stderr
    assert "start the job, then repeat the command" in late.stderr


def test_a_job_that_has_ended_is_left_as_it_is_behind_a_command_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN.text())
    job = LiveJob()
    assert job.run("trigger").exit_code == Exit.DONE
    job.provider.made[-1].context.fail_job("the test ends it", is_final=True)
    with pytest.raises(JobFailedError):
        job.wait()
    assert savepoint_command(job.log, "kept").exit_code == Exit.DONE
    assert job.records(Kind.EPOCH_STARTED)[-1].attributes["command"] == "savepoint"

    after = job.run("stop")

    assert after.exit_code == Exit.DONE, after.output
    assert "job job has ended before: no driver of it runs" in after.stderr
    late = job.run("trigger")
    assert late.exit_code == Exit.UNREACHABLE
    assert "if it failed, start it, then repeat the command; if it finished" in late.stderr


def test_a_stop_with_a_wrong_savepoint_stops_nothing(job: LiveJob) -> None:
    refused = job.run("stop", "--savepoint", "Not A Name")

    assert refused.exit_code == Exit.USAGE
    assert "'Not A Name' is no savepoint name" in refused.stderr
    assert job.facts("stop_requested") == []
    assert not job.driver.wait(0.05)


def test_a_trigger_waits_for_the_checkpoint_that_it_began(job: LiveJob) -> None:
    done = job.run("trigger", "--json")

    assert done.exit_code == Exit.DONE, done.output
    shown = json.loads(done.stdout)
    assert (shown["checkpoint"], shown["status"]) == (1, "completed")
    assert job.state.last_checkpoint == 1
    (request,) = job.records(Kind.REQUEST)
    assert asked_by(request) == client("trigger")
    assert "checkpoint 2 of job job has completed in" in job.run("trigger").stderr
    (kept,) = [savepoint_command(job.log, "kept")]
    assert "checkpoint 2 of job job is savepoint 'kept'" in kept.stderr


def test_a_killed_attempt_is_followed_by_another_and_is_not_counted(job: LiveJob) -> None:
    done = job.run("kill-attempt", "1", "--reason", "stands still")

    assert done.exit_code == Exit.DONE, done.output
    assert "attempt 0 of subtask 1 of job job was killed, at sequence" in done.stderr
    wait_for(lambda: job.state.attempt(1, 1), "another attempt runs")
    (failed,) = job.records(Kind.ATTEMPT_FAILED)
    assert failed.subtask == 1
    assert (failed.reason or "").startswith(f"killed by {getpass.getuser()} on ")
    assert (failed.reason or "").endswith("coordlog kill-attempt): stands still")
    # No restart is allowed: a counted failure would have failed the job.
    assert job.state.attempt(0, 0) is not None
    for arguments, problem in (
        (("1", "--attempt", "0"), "attempt 0 of subtask 1 is not live: its attempt is 1"),
        (("7",), "there is no subtask 7: they are 0 to 1"),
    ):
        refused = job.run("kill-attempt", *arguments)
        assert (refused.exit_code, problem in refused.stderr) == (Exit.USAGE, True), refused.stderr


def test_a_request_is_recorded_and_its_response_is_json(job: LiveJob) -> None:
    done = job.run("request", "source", "test.how_many", '{"of": "rules"}')

    assert done.exit_code == Exit.DONE, done.output
    assert json.loads(done.stdout) == {"n": 1}
    (request,) = job.records(Kind.REQUEST)
    (response,) = job.records(Kind.RESPONSE)
    assert (asked_by(request), request.operator_id) == (client("request"), "source")
    assert f"test.so_many@1, as of sequence {response.sequence}" in done.stderr
    whole = job.run("request", "source", "test.how_many@1", "--json")
    assert json.loads(whole.stdout)["response"] == {"n": 2}
    assert job.provider.said("request") == [("request", "rules"), ("request", "")]


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (
            ("source", "test.how_few"),
            Exit.USAGE,
            "no request type 'test.how_few'; it has: test.how_many@1",
        ),
        (("source", "test.how_many", "{"), Exit.USAGE, "it is no JSON"),
        (
            ("source", "test.how_many", '{"off": ""}'),
            Exit.USAGE,
            "it has no field 'off'; its fields are: of",
        ),
        (("source", "test.how_many", '{"of": 1}'), Exit.USAGE, "of is 1; it must be a string"),
        (("sauce", "test.how_many"), Exit.FAILED, "the operators with a coordinator are: source"),
    ],
)
def test_a_wrong_request_is_refused_and_not_recorded(
    job: LiveJob, arguments: tuple[str, ...], status: Exit, problem: str
) -> None:
    refused = job.run("request", *arguments)

    assert (refused.exit_code, problem in refused.stderr) == (status, True), refused.stderr
    assert job.records(Kind.REQUEST) == []


def test_the_types_of_requests_are_listed_with_their_fields(job: LiveJob) -> None:
    assert 'test.how_many@1  of: string = ""' in job.run("request", "--list").stdout


def test_requests_of_ready_made_coordinators_are_listed_and_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN.text())
    exported = [getattr(coordinators, name) for name in coordinators.__all__]
    declared = [one.coordlog_type for one in exported if "coordlog_type" in vars(one)]
    wanted = [one for one in declared if one.role is PayloadRole.REQUEST]
    assert len(wanted) >= 4
    job = LiveJob(*(one.payload_class for one in wanted))
    job.provider.on["request"] = lambda _coordinator: SoMany(n=7)
    try:
        listed = job.run("request", "--list").stdout
        sent = job.run("request", "source", "coordlog.version.publish", '{"content": "30"}')
    finally:
        job.driver.end_at_once(by="the test")
        job.wait()
    assert [one.key for one in wanted if one.key not in listed] == []
    assert "coordlog.stop_driver" not in listed, "that is `coordlog stop`"
    assert sent.exit_code == Exit.DONE, sent.output


def test_a_refused_request_has_the_coordinators_reason(job: LiveJob) -> None:
    def refuse(_coordinator: Noting) -> None:
        raise RequestRefusedError("not on Sundays")

    job.provider.on["request"] = refuse
    refused = job.run("request", "source", "test.how_many")

    assert refused.exit_code == Exit.FAILED
    assert "request refused: not on Sundays" in refused.stderr


@pytest.mark.parametrize(
    "command",
    [("stop",), ("trigger",), ("kill-attempt", "0"), ("request", "source", "test.how_many")],
    ids=" ".join,
)
def test_a_wrong_token_reaches_no_driver_and_leaves_no_record(
    job: LiveJob, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, Token(bytes(32)).text())

    refused = job.run(command[0], *command[1:])

    assert refused.exit_code == Exit.UNREACHABLE, refused.output
    assert "no token that is here proves that it is" in refused.stderr
    assert "set COORDLOG_TOKEN to its token" in refused.stderr
    assert job.records(Kind.REQUEST) == []


def test_without_a_driver_a_request_names_the_next_step(job: LiveJob) -> None:
    job.run("stop", "--no-checkpoint")
    job.wait()
    for command in (("trigger",), ("kill-attempt", "0"), ("request", "source", "test.how_many")):
        refused = job.run(*command)
        assert refused.exit_code == Exit.UNREACHABLE
        assert "no driver of it runs: its driver" in refused.stderr
        assert "start the job, then repeat the command" in refused.stderr
