"""What `coordlog ingest` does with what is wrong: one clear message, a status, nothing lost."""

from __future__ import annotations

import re
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.main import main
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog, list_jobs
from coordlog.schemas.codec import header_of
from coordlog.schemas.header import encode_header
from coordlog.schemas.record import Kind, Record
from histories.hand_history import unstored
from jobs.ingest_case import LIMIT_S, IngestCase, any_record_after, kind_of
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

STREAMING = ["--checkpoint-interval", "0.5"]
SLOW = 0.02
"""Seconds for a row: 80 s for one run."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for one command, in whose process Spark must not start."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))

    def never(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("Spark starts, though the job can be refused without it")

    monkeypatch.setattr("coordlog.cli.ingest.run.local_session", never)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id\n1\n2\n", encoding="utf-8")
    return tmp_path


class Refused:
    """A command that is to be refused, in this process."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder, self.servers = folder, servers
        self.job_id = f"refused-{secrets.token_hex(4)}"

    def run(self, *more: str) -> Result:
        """The command; `more` are further options."""
        arguments = ["ingest", str(self.folder / "in"), str(self.folder / "out")]
        arguments += ["--job-id", self.job_id, "--bootstrap-servers", self.servers, *more]
        return CliRunner().invoke(main, arguments)

    def log(self) -> KafkaLog:
        """The job's log."""
        return KafkaLog.for_job(self.job_id, self.servers)


@pytest.fixture
def refused(folder: Path, broker: EmbeddedBroker) -> Refused:
    return Refused(folder, broker.bootstrap_servers)


def one_line(result: Result) -> str:
    """The message; there is one, and it is one line."""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


# Refused before Spark starts


def test_an_empty_source_is_refused_and_leaves_no_log(refused: Refused) -> None:
    (refused.folder / "in" / "a.csv").unlink()

    done = refused.run()

    assert done.exit_code == 1
    assert "there is no file to read" in one_line(done)
    assert refused.job_id not in list_jobs(refused.servers)


def test_a_file_that_is_none_is_named_before_spark_starts(refused: Refused) -> None:
    (refused.folder / "in" / "b.csv").symlink_to(refused.folder / "gone.csv")

    done = refused.run()

    assert done.exit_code == 1
    assert f"{refused.folder}/in/b.csv: " in one_line(done)
    assert refused.job_id not in list_jobs(refused.servers)


def cut_parquet(folder: Path) -> None:
    pq.write_table(pa.table({"id": list(range(1000))}), folder / "b.parquet")
    whole = (folder / "b.parquet").read_bytes()
    (folder / "b.parquet").write_bytes(whole[: len(whole) // 2])


def half_a_line(folder: Path) -> None:
    (folder / "b.jsonl").write_text('{"id": 1}\n{"id": 2, "na', encoding="utf-8")


def a_field_too_many(folder: Path) -> None:
    (folder / "b.csv").write_text("id\n3\n4,5\n", encoding="utf-8")


def another_schema(folder: Path) -> None:
    (folder / "b.csv").write_text("id,name\n3,x\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("file_format", "make", "says"),
    [
        ("parquet", cut_parquet, r"b\.parquet: .*Parquet \(\d+ bytes\)"),
        ("jsonl", half_a_line, r"b\.jsonl: .*line 2"),
        ("csv", a_field_too_many, r"b\.csv: row 3 .* has 2 fields where 1 are expected"),
        ("csv", another_schema, r"b\.csv: .*has 'name' .*--schemas each"),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_an_unreadable_file_is_named_before_spark_starts_without_a_log(
    refused: Refused, file_format: str, make: Callable[[Path], None], says: str
) -> None:
    if file_format != "csv":
        (refused.folder / "in" / "a.csv").unlink()
    make(refused.folder / "in")

    done = refused.run("--format", file_format)

    assert done.exit_code == 1
    assert re.search(says, one_line(done)), done.stderr
    assert refused.job_id not in list_jobs(refused.servers)


def test_a_url_with_credentials_is_wrong_usage_and_is_shown_nowhere(refused: Refused) -> None:
    arguments = ["ingest", "s3://key:geheim@bucket/x", str(refused.folder / "out")]
    done = CliRunner().invoke(main, [*arguments, "--bootstrap-servers", refused.servers])

    assert done.exit_code == 2
    assert "credentials" in one_line(done)
    assert "geheim" not in done.output
    written = [one for one in (refused.folder / "home").rglob("*") if one.is_file()]
    assert not any(b"geheim" in one.read_bytes() for one in written)


def test_a_destination_with_too_little_space_is_status_6_and_no_job_begins(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = "coordlog.spark_integration.files.sink.destination.DESTINATION_FREE_BYTES_MIN"
    monkeypatch.setattr(needed, 1 << 60)

    done = refused.run()

    assert done.exit_code == 6
    assert re.search(r"\[errno 28\] [\d,]+ bytes are free there, of which [\d,]+", one_line(done))
    assert "free some space there" in done.stderr
    assert refused.job_id not in list_jobs(refused.servers)


def test_a_destination_that_is_not_ours_is_left_as_it_is(refused: Refused) -> None:
    foreign = refused.folder / "out" / "precious.parquet"
    foreign.parent.mkdir()
    foreign.write_bytes(b"somebody's")

    done = refused.run()

    assert done.exit_code == 1
    assert "a destination that is not ours" in one_line(done)
    assert "precious.parquet" in done.stderr
    assert foreign.read_bytes() == b"somebody's"
    assert [path.name for path in foreign.parent.iterdir()] == ["precious.parquet"]


def test_a_broker_that_is_not_there_is_named_with_the_seconds_waited(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        servers = f"127.0.0.1:{taken.getsockname()[1]}"
        done = Refused(folder, servers).run("--log-timeout", "1")

    assert done.exit_code == 5
    assert servers in one_line(done)
    assert re.search(r"did not answer for \d+\.\d s", done.stderr)


def test_a_record_that_this_version_cannot_read_is_named_by_its_offset(refused: Refused) -> None:
    log = refused.log()
    log.create()
    record = epoch_started(refused.job_id)
    header = encode_header(header_of(record)._replace(fingerprint=0x0BAD))
    append(log, unstored(record)._replace(header=header))

    done = refused.run()

    assert done.exit_code == 3
    assert "record at offset 0: " in one_line(done)
    assert "with the version of coordlog that wrote it" in done.stderr
    assert log.high_watermark() == 1
    log.close()


def epoch_started(job_id: str, **attributes: str) -> Record:
    """The first record of a job, whose driver says this of itself."""
    return Record(
        epoch=0,
        driver_id="driver-0",
        sequence=None,
        kind=Kind.EPOCH_STARTED,
        timestamp_us=1_700_000_000_000_000,
        job_id=job_id,
        attributes=attributes,
    )


def append(log: KafkaLog, one: UnstoredRecord) -> None:
    writer = log.writer()
    writer.append([one], timeout_s=10.0)
    writer.close(timeout_s=2.0)


def test_a_job_that_began_otherwise_is_refused_with_both_values(refused: Refused) -> None:
    log = refused.log()
    log.create()
    begun = epoch_started(refused.job_id, mode="batch", parallelism="4", operators="[]")
    append(log, unstored(begun))

    done = refused.run()

    assert done.exit_code == 3
    assert "mode is batch in the log and streaming here" in one_line(done)
    assert log.high_watermark() == 1
    log.close()


# On Spark


def check_stopped(case: IngestCase, status: int, expected: int) -> None:
    """The last run has ended with that status, with nothing of it left, and no row doubled."""
    assert status == expected, case.runs[-1].lines
    assert case.runs[-1].group() == []
    case.check_partial()


def errors_of(case: IngestCase) -> list[str]:
    return [line for line in case.runs[-1].lines if line.startswith("error: ")]


@pytest.fixture
def streaming(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[IngestCase]:
    case = IngestCase(folder=tmp_path, servers=broker.bootstrap_servers, arguments=STREAMING)
    yield case
    case.clear()


@pytest.mark.any_spark
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.kill
def test_a_job_that_failed_goes_on_once_its_cause_is_mended(streaming: IngestCase) -> None:
    """First the transform eats all memory, so that the kernel kills its worker; then a file cannot be read."""
    broken = streaming.source / "part-33.csv"
    alone = ("--parallelism", "1", "--restarts-max", "2")
    run = streaming.start(*alone, TEST_TRANSFORM_FAILS="killed")
    check_stopped(streaming, run.wait(LIMIT_S), 1)
    (message,) = errors_of(streaming)
    where = rf"failed in attempt \d+ of subtask \d, which read split '{broken}': it broke: "
    assert re.search(where, message)
    assert "killed by signal 9" in message
    assert "the memory that Spark's settings leave to its workers" in message
    assert f"coordlog skip {streaming.job_id} --split {broken}" in message
    assert message.count("it broke") == 1, "each cause is told once"
    shown = [line for line in run.lines if line.startswith("attempt ")]
    (cause,) = [line for line in shown if "it broke" in line]
    assert f"failed at split {broken}, and is replaced: it broke: " in cause
    assert f"coordlog failures {streaming.job_id}" in cause

    whole = broken.read_bytes()
    broken.write_bytes(whole.replace(b"\n6650,", b"\n66\xff0,"))
    run = streaming.start("--restarts-max", "2")
    check_stopped(streaming, run.wait(LIMIT_S), 1)
    (message,) = errors_of(streaming)
    assert "part-33.csv" in message

    broken.write_bytes(whole)
    streaming.finish()
    streaming.check_whole()


@pytest.mark.any_spark
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.kill
def test_ctrl_c_stops_with_a_checkpoint_and_a_broker_may_go_and_come(tmp_path: Path) -> None:
    with embedded_broker() as own:
        case = IngestCase(folder=tmp_path, servers=own.bootstrap_servers, arguments=STREAMING)
        try:
            run = case.start()
            case.follower().wait_for(
                kind_of(Kind.CHECKPOINT_COMPLETED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
            )
            run.signal(signal.SIGINT)
            check_stopped(case, run.wait(LIMIT_S), 130)
            assert any(line.startswith("stopped after checkpoint") for line in run.lines)
            assert case.rows_out(), "the last checkpoint's rows are published"

            run = case.start()
            follower = case.follower()
            follower.catch_up()
            follower.wait_for(
                kind_of(Kind.CHECKPOINT_COMPLETED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
            )
            own.kill()
            run.wait_for_line("the log does not answer", LIMIT_S)
            own.restart()
            assert run.wait(LIMIT_S) == 0, run.lines
            assert any(line.startswith("the log answers again") for line in run.lines)
            case.check_whole()
        finally:
            case.clear()


@pytest.mark.any_spark
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.kill
def test_a_batch_job_that_was_stopped_or_lost_its_broker_resumes(tmp_path: Path) -> None:
    with embedded_broker() as own:
        case = IngestCase(folder=tmp_path, servers=own.bootstrap_servers, arguments=["--batch"])
        try:
            run = case.start()
            follower = case.follower()
            follower.wait_for(
                kind_of(Kind.SPLIT_FINISHED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
            )
            run.signal(signal.SIGTERM)
            check_stopped(case, run.wait(LIMIT_S), 143)
            assert any("are finished and stay so; run the same" in line for line in run.lines)
            assert not case.rows_out(), "in batch nothing is visible before the end"

            follower.catch_up()
            run = case.start("--log-timeout", "3")
            follower.wait_for(
                kind_of(Kind.SPLIT_FINISHED), is_over=lambda: run.has_ended, limit_s=LIMIT_S
            )
            own.kill()
            check_stopped(case, run.wait(LIMIT_S), 5)
            (message,) = errors_of(case)
            assert "did not answer for" in message

            own.restart()
            last = case.finish()
            assert any(line.startswith("restored by resume with") for line in last.lines)
            found = case.check_whole()
            assert {one.epoch for one in found.attempts} == {0, 1, 2}
            again = case.finish()
            assert any("nothing was changed" in line for line in again.lines)
        finally:
            case.clear()


@pytest.mark.any_spark
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.kill
def test_a_job_that_a_live_driver_holds_is_refused_unless_it_is_taken(
    tmp_path: Path, broker: EmbeddedBroker
) -> None:
    """The first driver is slow, so that it still works when the third has started Spark."""
    streaming = IngestCase(
        folder=tmp_path,
        servers=broker.bootstrap_servers,
        arguments=STREAMING,
        seconds_per_row=SLOW,
    )
    try:
        refuse_and_take_over(streaming)
    finally:
        streaming.clear()


def refuse_and_take_over(streaming: IngestCase) -> None:
    first = streaming.start()
    follower = streaming.follower()
    follower.wait_for(any_record_after(0), is_over=lambda: first.has_ended, limit_s=LIMIT_S)

    second = streaming.start()
    assert second.wait(LIMIT_S) == 3, second.lines
    (message,) = errors_of(streaming)
    assert "is driven by a live driver" in message
    assert "--take-over" in message
    assert not any("starting Spark" in line for line in second.lines)
    assert not first.has_ended

    streaming.seconds_per_row = 0.0
    streaming.write_transform()
    streaming.finish("--take-over")
    assert first.wait(LIMIT_S) == 4, first.lines
    assert any("it has taken over, this one ends" in line for line in first.lines)
    streaming.check_whole()
