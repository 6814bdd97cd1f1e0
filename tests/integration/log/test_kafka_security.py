"""A broker that asks for certificates and passwords: the ways in, and what is said of each wrong one."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from chaos.proxy import Proxy
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import AccessError, SourceError
from coordlog.export import write_exported
from coordlog.log.copy import to_append
from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.log.kafka import KafkaLog, list_jobs
from coordlog.secret_fields import KEY_VARIABLE
from coordlog.spark_integration.kafka.source import KafkaSource
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import NotingProvider, chain_of
from histories.hand_history import batch_history
from jobs.secret_job import SECRETS, secret_log
from servers.secured_broker import PASSWORD, SecuredBroker, secured_broker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

JOB = "guarded"
TOPIC = f"{JOB}.log"
RIGHTS = ("Describe", "DescribeConfigs", "Read", "Write")
BOUND_S = 20.0
"""How long an error may take on a loaded machine; alone it is a second."""

WAYS = [
    ("SSL", ""),
    *itertools.product(("SASL_SSL", "SASL_PLAINTEXT"), ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """With the log of a job, and `ann`, who may write and read it."""
    with secured_broker(tmp_path_factory.mktemp("keys")) as one:
        one.add_user("ann")
        for right in RIGHTS:
            one.allow("ann", right, TOPIC)
        log = KafkaLog.for_job(JOB, one.at("PLAINTEXT"))
        log.create()
        append(log, batch_history(JOB).records)
        log.close()
        yield one


def append(log: KafkaLog, records: list[UnstoredRecord]) -> None:
    writer = log.writer()
    writer.append(records, timeout_s=BOUND_S)
    writer.close(timeout_s=2.0)


def all_of(log: KafkaLog) -> list[StoredRecord]:
    return list(log.read(log.start_offset(), log.high_watermark()))


def run(variables: Mapping[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env=dict(variables))


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_each_way_in_writes_and_reads(door: SecuredBroker, listener: str, mechanism: str) -> None:
    more = {"sasl_mechanism": mechanism} if mechanism else {}
    security = door.security(listener, "ann", **more)
    with_servers = door.at(listener)
    log = KafkaLog.for_job(JOB, with_servers, security=security)
    one = UnstoredRecord(
        key=b"k", value=f"{listener} {mechanism}".encode(), header=b"", timestamp_us=0
    )
    append(log, [one])
    assert all_of(log)[-1].value == one.value
    assert list_jobs(with_servers, security=security) == (JOB,)
    log.close()


def test_a_command_reads_over_tls_with_a_password(door: SecuredBroker) -> None:
    result = run(
        door.variables("SASL_SSL", "ann"),
        "jobs",
        "--names",
        "--bootstrap-servers",
        door.at("SASL_SSL"),
    )
    assert (result.exit_code, result.stdout) == (Exit.DONE, f"{JOB}\n")


Wrong = tuple[str, str, Callable[[SecuredBroker], dict[str, str]], str, str]

WRONG: list[Wrong] = [
    (
        "SASL_SSL",
        "localhost",
        lambda door: door.variables("SASL_SSL", "ann", sasl_password=f"{PASSWORD}x"),
        "does not accept user 'ann' with its password by SCRAM-SHA-512",
        "COORDLOG_KAFKA_SASL_PASSWORD",
    ),
    (
        "SASL_PLAINTEXT",
        "localhost",
        lambda door: door.variables(
            "SASL_PLAINTEXT", "ann", sasl_password=f"{PASSWORD}x", sasl_mechanism="PLAIN"
        ),
        "does not accept user 'ann' with its password by PLAIN",
        "COORDLOG_KAFKA_SASL_USERNAME",
    ),
    (
        "SASL_SSL",
        "localhost",
        lambda door: door.variables("SASL_SSL", "bob"),
        "does not accept user 'bob'",
        "COORDLOG_KAFKA_SASL_USERNAME",
    ),
    (
        "SSL",
        "localhost",
        lambda door: door.variables("SSL", ssl_cafile=str(door.certificates.stranger)),
        "the broker's certificate is not trusted (unable to get local issuer certificate)",
        "COORDLOG_KAFKA_SSL_CAFILE",
    ),
    (
        "SASL_SSL",
        "127.0.0.1",
        lambda door: door.variables("SASL_SSL", "ann"),
        "the broker's certificate is not for the name '127.0.0.1'",
        "COORDLOG_KAFKA_SSL_CHECK_HOSTNAME",
    ),
    (
        "SSL",
        "localhost",
        lambda _door: {},
        "the broker speaks TLS at localhost:",
        "set it to SSL",
    ),
    (
        "SASL_SSL",
        "localhost",
        lambda door: door.variables("SASL_PLAINTEXT", "ann"),
        "the broker speaks TLS at localhost:",
        "or to SASL_SSL",
    ),
    (
        "PLAINTEXT",
        "localhost",
        lambda door: door.variables("SSL"),
        "the broker speaks no TLS at localhost:",
        "COORDLOG_KAFKA_PROTOCOL to PLAINTEXT",
    ),
    (
        "PLAINTEXT",
        "localhost",
        lambda door: door.variables("SASL_PLAINTEXT", "ann"),
        "asks no client at localhost:",
        "COORDLOG_KAFKA_PROTOCOL",
    ),
    (
        "SASL_PLAINTEXT",
        "localhost",
        lambda _door: {},
        "it asks for a password",
        "COORDLOG_KAFKA_PROTOCOL to SASL_PLAINTEXT",
    ),
    (
        "SASL_SSL",
        "localhost",
        lambda door: door.variables("SSL"),
        "ends each connection after its TLS handshake",
        "SASL_SSL where it asks for a password",
    ),
]


@pytest.mark.parametrize(
    ("listener", "host", "variables", "problem", "next_step"),
    WRONG,
    ids=[
        "wrong-password",
        "wrong-password-plain",
        "unknown-user",
        "untrusted-certificate",
        "other-name",
        "plain-to-tls",
        "sasl-plain-to-tls",
        "tls-to-plain",
        "sasl-where-none-is-asked",
        "none-where-sasl-is-asked",
        "tls-without-sasl",
    ],
)
def test_a_wrong_way_in_is_one_clear_error_soon(
    door: SecuredBroker,
    listener: str,
    host: str,
    variables: Callable[[SecuredBroker], dict[str, str]],
    problem: str,
    next_step: str,
) -> None:
    began = time.monotonic()
    result = run(variables(door), "history", JOB, "--bootstrap-servers", door.at(listener, host))
    assert time.monotonic() - began < BOUND_S
    assert result.exit_code == Exit.REFUSED, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert problem in result.stderr
    assert next_step in result.stderr
    assert PASSWORD not in result.output


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT"])
def test_connections_that_ended_as_the_broker_started_refuse_nobody(
    door: SecuredBroker, listener: str
) -> None:
    with Proxy() as starting:
        starting.target_port, starting.left_to_end = door.ports[listener], 5
        servers = f"localhost:{starting.port}"
        user = "ann" if listener.startswith("SASL") else ""
        log = KafkaLog.for_job(JOB, servers, security=door.security(listener, user))
        with closing(log):
            assert log.find()
        assert starting.left_to_end == 0, "no connection was ended"


ASKING: dict[str, tuple[str, ...]] = {
    "jobs": (),
    "health": (JOB,),
    "report": (JOB, "-o", "-"),
    "tail": (JOB, "--no-follow"),
    "stop": (JOB,),
    "trigger": (JOB,),
    "kill-attempt": (JOB, "0"),
    "request": (JOB, "source", "some.type", "{{}}"),
    "history": (JOB,),
    "attempts": (JOB,),
    "splits": (JOB,),
    "reads": (JOB,),
    "checkpoints": (JOB,),
    "events": (JOB,),
    "commits": (JOB,),
    "failures": (JOB,),
    "epochs": (JOB,),
    "checkpoint": (JOB,),
    "savepoint": (JOB, "good"),
    "fork": ("another", f"{JOB}@1"),
    "state": (JOB,),
    "verify": (JOB,),
    "explain": (JOB, "--checkpoint", "1"),
    "diff": (JOB,),
    "payloads": (JOB,),
    "skip": (JOB, "--split", "a"),
    "export": (JOB, "{folder}/out.avro"),
    "import": ("{file}", "--as", "imported"),
    "adopt": ("job", "--from", "{file}", "--take-over"),
    "doctor": (JOB,),
    "prune": (JOB, "--yes"),
    "delete": (JOB, "--yes"),
}
"""What each command that asks a broker is given; `ingest` has a test of its own, and pages of `web` show it."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history that holds: what is adopted is checked before the broker is asked."""
    file = tmp_path_factory.mktemp("exported") / "history.avro"
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    job.crash()
    write_exported(job.log, "job", file)
    return file


def test_every_command_that_asks_a_broker_is_among_those_that_are_tried() -> None:
    context = click.Context(main)
    asking = {
        name
        for name in main.list_commands(context)
        if any(one.name == "bootstrap_servers" for one in _command(context, name).params)
    }
    assert asking == {*ASKING, "ingest", "web"}


def _command(context: click.Context, name: str) -> click.Command:
    found = main.get_command(context, name)
    assert found is not None
    return found


@pytest.mark.parametrize("command", ASKING)
def test_every_command_says_so(
    door: SecuredBroker, exported: Path, tmp_path: Path, command: str
) -> None:
    wrong = f"{PASSWORD}x"
    variables = door.variables("SASL_SSL", "ann", sasl_password=wrong)
    given = [one.format(file=exported, folder=tmp_path) for one in ASKING[command]]
    result = run(variables, command, *given, "--bootstrap-servers", door.at("SASL_SSL"))
    assert result.exit_code == Exit.REFUSED, result.output
    said = result.stderr
    if command == "doctor":  # it is one of its findings, behind those of this machine
        assert said == ""
        said = result.stdout.partition("wrong ")[2]
    else:
        assert result.stdout == ""
        assert len(said.splitlines()) == 1, said
    assert "does not accept user 'ann'" in said
    assert "COORDLOG_KAFKA_SASL_PASSWORD" in said
    assert wrong not in result.output
    assert not list(tmp_path.iterdir())


def test_ingest_says_so_before_spark_starts(door: SecuredBroker, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("a\n1\n")
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("coordlog")), "ingest"),
            *(str(tmp_path / "in"), str(tmp_path / "out")),
            *("--bootstrap-servers", door.at("SASL_SSL")),
        ],
        env={
            **os.environ,
            **door.variables("SASL_SSL", "ann", sasl_password=f"{PASSWORD}x"),
            "COORDLOG_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == Exit.REFUSED, done.stderr
    assert "does not accept user 'ann'" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


def test_writer_reader_and_source_say_so_too(door: SecuredBroker) -> None:
    wrong = door.security("SASL_SSL", "ann", sasl_password="wrong")
    good = KafkaLog.for_job(JOB, door.at("SASL_SSL"), security=door.security("SASL_SSL", "ann"))
    log = KafkaLog.for_job(JOB, door.at("SASL_SSL"), security=wrong)
    with pytest.raises(AccessError, match="does not accept user 'ann'"):
        append(log, [UnstoredRecord(key=b"", value=b"", header=b"", timestamp_us=0)])
    with pytest.raises(AccessError, match="does not accept user 'ann'"):
        log.high_watermark()
    source = KafkaSource([TOPIC], bootstrap_servers=door.at("SASL_SSL"), security=wrong)
    with pytest.raises(SourceError, match="does not accept user 'ann'"):
        source.check()
    good.close()


def test_no_password_is_in_a_log_line_or_a_record(
    door: SecuredBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    security = door.security("SASL_PLAINTEXT", "ann", sasl_mechanism="PLAIN")
    log = KafkaLog.for_job(JOB, door.at("SASL_PLAINTEXT"), security=security)
    append(log, [UnstoredRecord(key=b"", value=b"", header=b"", timestamp_us=0)])
    found = all_of(log)
    log.close()
    assert "Connected" in caplog.text, "the client's lines are looked at"
    assert PASSWORD not in caplog.text
    assert not any(PASSWORD.encode() in (one.value or b"") for one in found)


def test_secret_fields_are_in_no_file_of_the_broker(
    door: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "ab" * 64)
    log = KafkaLog.for_job("secretive", door.at("PLAINTEXT"))
    log.create()
    records = [to_append(one) for one in secret_log().records]
    append(log, records)
    files = list((door.broker.folder / "data").rglob("secretive.log-0/*.log"))
    content = b"".join(one.read_bytes() for one in files)
    log.delete()
    log.close()
    assert b"of the attempt" in content, "the right files are looked at"
    assert not any(one.encode() in content for one in SECRETS)
