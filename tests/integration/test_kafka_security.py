"""A broker that asks for certificates and passwords: the ways in, and what is said of each wrong one."""

from __future__ import annotations

import itertools
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exits import Exit
from coordlog.cli.main import main
from coordlog.driver import JobStatus
from coordlog.errors import AccessError, SourceError
from coordlog.log.kafka import KafkaLog, list_jobs
from coordlog.log.port import StoredRecord, UnstoredRecord
from coordlog.secret_fields import KEY_VARIABLE
from coordlog.spark_integration.files.source import FileSource
from coordlog.spark_integration.kafka.source import KafkaSource
from file_pipeline import ALL_ROWS, Pipeline
from hand_history import batch_history
from secret_job import SECRETS, secret_log
from secured_broker import PASSWORD, SecuredBroker, secured_broker

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
        door.variables("SASL_SSL", "ann"), "jobs", "--bootstrap-servers", door.at("SASL_SSL")
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
        "asks nobody at localhost:",
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs",),
        ("attempts", JOB),
        ("splits", JOB),
        ("checkpoints", JOB),
        ("state", JOB),
        ("verify", JOB),
        ("explain", JOB, "--checkpoint", "1"),
        ("diff", JOB),
        ("skip", JOB, "--split", "a"),
        ("delete", JOB, "--yes"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_says_so(door: SecuredBroker, arguments: tuple[str, ...]) -> None:
    variables = door.variables("SASL_SSL", "ann", sasl_password="wrong")
    result = run(variables, *arguments, "--bootstrap-servers", door.at("SASL_SSL"))
    assert result.exit_code == Exit.REFUSED, result.output
    assert "does not accept user 'ann'" in result.stderr


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
    records = [
        UnstoredRecord(
            key=one.key or b"",
            value=one.value or b"",
            header=one.header_bytes or b"",
            timestamp_us=one.timestamp_ms * 1000,
        )
        for one in secret_log().records
    ]
    append(log, records)
    files = list((door.broker.folder / "data").rglob("secretive.log-0/*.log"))
    content = b"".join(one.read_bytes() for one in files)
    log.delete()
    log.close()
    assert b"of the attempt" in content, "the right files are looked at"
    assert not any(one.encode() in content for one in SECRETS)


# rights

PREFIX = "team-a."
RULED = f"{PREFIX}job.log"


def rights_in_docs() -> dict[str, tuple[str, ...]]:
    """Who needs what, as docs/security.md says."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| ((?:`[A-Z]\w+`(?:, )?)+) \|$", page, re.MULTILINE)
    return {who: tuple(re.findall(r"`(\w+)`", rights)) for who, rights in rows}


DRIVER, READER = (rights_in_docs()[one] for one in ("driver", "command line"))


@pytest.fixture(scope="module")
def ruled(door: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> SecuredBroker:
    """With a topic made beforehand, users with the rights of the docs, and a job that has run."""
    door.make_topic(RULED)
    for user, rights in (("driver", DRIVER), ("reader", READER)):
        door.add_user(user)
        for right in rights:
            door.allow(user, right, RULED)
    pipeline = Pipeline(tmp_path_factory.mktemp("job"), is_batch=True, transform=unchanged)
    pipeline.on_broker = log_of(door, "driver")
    pipeline.on_broker.create()
    result = pipeline.drive()
    assert (result.status, pipeline.committed()) == (JobStatus.FINISHED, ALL_ROWS)
    pipeline.on_broker.close()
    return door


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def log_of(door: SecuredBroker, user: str, job_id: str = "job") -> KafkaLog:
    return KafkaLog.for_job(
        job_id,
        door.at("SASL_SSL"),
        topic_prefix=PREFIX,
        security=door.security("SASL_SSL", user),
    )


def asked(door: SecuredBroker, user: str, *arguments: str) -> Result:
    return run(
        door.variables("SASL_SSL", user),
        *arguments,
        *("--bootstrap-servers", door.at("SASL_SSL"), "--topic-prefix", PREFIX),
    )


def test_the_rights_of_the_docs_are_enough_to_run_a_job_and_to_look_at_it(
    ruled: SecuredBroker,
) -> None:
    assert asked(ruled, "reader", "jobs").stdout == "job\n"
    for command in ("history", "attempts", "verify", "doctor"):
        result = asked(ruled, "reader", command, "job")
        assert result.exit_code == Exit.DONE, result.output
        assert result.stdout


def lacking(
    door: SecuredBroker, user: str, right: str, topic: str, *arguments: str
) -> tuple[int, str]:
    """How a command ends without that one right."""
    door.forbid(user, right, topic)
    # What Read brings with it goes with it, and is asked for first.
    if right == "Read":
        door.allow(user, "Describe", topic)
    try:
        result = asked(door, user, *arguments)
    finally:
        door.allow(user, right, topic)
    return result.exit_code, result.stderr


def test_the_rights_of_the_docs_are_enough_to_keep_a_checkpoint_and_to_begin_from_it(
    ruled: SecuredBroker, tmp_path: Path
) -> None:
    """And no fewer are: a log whose job has come to its end, as its checkpoints stay."""
    other, new, rights = f"{PREFIX}other.log", f"{PREFIX}new-one.log", rights_in_docs()
    ruled.make_topic(other)
    for right in DRIVER:
        ruled.allow("driver", right, other)
    pipeline = Pipeline(tmp_path, is_batch=False, transform=unchanged)
    pipeline.job_id, pipeline.on_broker = "other", log_of(ruled, "driver", "other")
    number = pipeline.drive().last_checkpoint
    pipeline.on_broker.close()
    needed = {
        ("keeper", other): "`coordlog checkpoint --keep` and `--release` where no driver lives",
        ("founder", other): "`coordlog begin`, on the other job's topic",
        ("founder", new): "`coordlog begin`, on the new job's topic",
    }
    for user in ("keeper", "founder"):
        ruled.add_user(user)
    for (user, topic), who in needed.items():
        for right in rights[who]:
            ruled.allow(user, right, topic)
    keep = ("checkpoint", "other", "--keep", "good", str(number))
    begin = ("begin", "new-one", "other@good")

    for right in rights[needed["keeper", other]]:
        status, said = lacking(ruled, "keeper", right, other, *keep)
        assert status == Exit.REFUSED
        assert named(said, right, other, "keeper"), said
    kept = asked(ruled, "keeper", *keep)
    assert kept.exit_code == Exit.DONE, kept.output

    for topic, right in [
        *((other, one) for one in rights[needed["founder", other]]),
        (new, "Create"),
    ]:
        status, said = lacking(ruled, "founder", right, topic, *begin)
        assert status == Exit.REFUSED
        assert named(said, right, topic, "founder"), said
    begun = asked(ruled, "founder", *begin)
    assert begun.exit_code == Exit.DONE, begun.output


def test_a_job_of_another_prefix_is_another_job(ruled: SecuredBroker) -> None:
    result = run({}, "jobs", "--bootstrap-servers", ruled.at("PLAINTEXT"))
    assert result.stdout == f"{JOB}\n"


def named(error: str, right: str, topic: str, user: str) -> bool:
    """Whether the operation, the topic and what to add are named."""
    return (
        f"does not allow User:{user} the operation {right} on topic {topic}" in error
        and f"--allow-principal User:{user} --operation {right} --topic {topic}" in error
    )


@pytest.mark.parametrize("right", DRIVER)
def test_a_right_that_a_driver_lacks_is_named(
    ruled: SecuredBroker, tmp_path: Path, right: str
) -> None:
    ruled.forbid("driver", right, RULED)
    pipeline = Pipeline(tmp_path, is_batch=True, transform=unchanged)
    pipeline.source = FileSource(pipeline.folder, batch_rows=10, allow_other_path=True)
    pipeline.write_to(pipeline.out)
    pipeline.on_broker = log_of(ruled, "driver")
    try:
        with pytest.raises(AccessError) as caught:
            pipeline.drive(again=True)
    finally:
        pipeline.on_broker.close()
        ruled.allow("driver", right, RULED)
    assert named(str(caught.value), right, RULED, "driver"), caught.value


@pytest.mark.parametrize("right", READER)
def test_a_right_that_a_command_lacks_is_named(ruled: SecuredBroker, right: str) -> None:
    status, said = lacking(ruled, "reader", right, RULED, "history", "job")
    assert status == Exit.REFUSED
    assert named(said, right, RULED, "reader"), said


def test_a_topic_that_the_user_may_not_see_is_not_said_to_be_missing(ruled: SecuredBroker) -> None:
    result = asked(ruled, "ann", "history", "job")
    assert result.exit_code == Exit.REFUSED
    assert named(result.stderr, "Describe", RULED, "ann"), result.stderr


def test_who_may_not_make_a_topic_is_told_the_command_that_does(ruled: SecuredBroker) -> None:
    topic = f"{PREFIX}new.log"
    ruled.allow("driver", "Read", topic)
    log = log_of(ruled, "driver", "new")
    with pytest.raises(AccessError) as caught:
        log.create()
    assert named(str(caught.value), "Create", topic, "driver")
    assert f"kafka-topics.sh --bootstrap-server {ruled.at('SASL_SSL')} --create" in str(
        caught.value
    )
    for right in ("Create", "DescribeConfigs"):
        ruled.allow("driver", right, topic)
    log.create()
    ruled.allow("driver", "Write", topic)
    append(log, [UnstoredRecord(key=b"", value=b"", header=b"", timestamp_us=0)])
    with pytest.raises(AccessError) as caught:
        log.delete_below(1)
    assert named(str(caught.value), "Delete", topic, "driver")
    with pytest.raises(AccessError) as caught:
        log.delete()
    assert named(str(caught.value), "Delete", topic, "driver")
    ruled.allow("driver", "Delete", topic)
    log.delete_below(1)
    assert log.start_offset() == 1
    log.delete()
    log.close()
