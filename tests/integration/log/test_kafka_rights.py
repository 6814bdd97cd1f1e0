"""The least rights: with those of docs/security.md a driver and each command work, and with one less they say which."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import AccessError
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.record import Kind
from coordlog.spark_integration.files.source.source import FileSource
from jobs.file_pipeline import ALL_ROWS, FILES, KilledError, Pipeline, at, kill_driver
from servers.secured_broker import SecuredBroker, secured_broker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

JOB = "guarded"
BOUND_S = 20.0
"""How long an append may take on a loaded machine."""

PREFIX = "team-a."
RULED = f"{PREFIX}job.log"


def rights_in_docs() -> dict[str, tuple[str, ...]]:
    """Who needs what, as docs/security.md says."""
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| ((?:`[A-Z]\w+`(?:, )?)+) \|$", page, re.MULTILINE)
    return {who: tuple(re.findall(r"`(\w+)`", rights)) for who, rights in rows}


DRIVER, READER, DOCTOR = (
    rights_in_docs()[one] for one in ("driver", "command line", "`coordlog doctor`")
)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """With a topic outside of the prefix, and `ann`, who has no rights."""
    with secured_broker(tmp_path_factory.mktemp("keys")) as one:
        one.add_user("ann")
        one.make_topic(f"{JOB}.log")
        yield one


@pytest.fixture(scope="module")
def ruled(door: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> SecuredBroker:
    """With a topic made beforehand, users with the rights of the docs, and a job that has run."""
    door.make_topic(RULED)
    for user, rights in (("driver", DRIVER), ("reader", READER), ("doctor", DOCTOR)):
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


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))


def log_of(door: SecuredBroker, user: str, job_id: str = "job") -> KafkaLog:
    return KafkaLog.for_job(
        job_id,
        door.at("SASL_SSL"),
        topic_prefix=PREFIX,
        security=door.security("SASL_SSL", user),
    )


def asked(door: SecuredBroker, user: str, *arguments: str, prefix: str = PREFIX) -> Result:
    where = ("--bootstrap-servers", door.at("SASL_SSL"), "--topic-prefix", prefix)
    return CliRunner().invoke(main, [*arguments, *where], env=door.variables("SASL_SSL", user))


@pytest.mark.tier("matrix")
def test_the_rights_of_the_docs_are_enough_to_run_a_job_and_to_look_at_it(
    ruled: SecuredBroker,
) -> None:
    assert asked(ruled, "reader", "jobs", "--names").stdout == "job\n"
    for user, command in (
        *(("reader", one) for one in ("history", "attempts", "verify")),
        ("doctor", "doctor"),
    ):
        result = asked(ruled, user, command, "job")
        assert result.exit_code == Exit.DONE, result.output
        assert result.stdout


def lacking(
    door: SecuredBroker, user: str, right: str, topic: str, *arguments: str, prefix: str = PREFIX
) -> tuple[int, str]:
    """How a command ends without that one right."""
    door.forbid(user, right, topic)
    # What Read brings with it goes with it, and is asked for first.
    if right == "Read":
        door.allow(user, "Describe", topic)
    try:
        result = asked(door, user, *arguments, prefix=prefix)
    finally:
        door.allow(user, right, topic)
    return result.exit_code, result.stderr


@pytest.mark.tier("matrix")
def test_the_documented_rights_suffice_for_a_savepoint_and_a_fork(
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
        ("keeper", other): "`coordlog savepoint` where no driver lives",
        ("founder", other): "`coordlog fork`, on the other job's topic",
        ("founder", new): "`coordlog fork`, on the new job's topic",
    }
    for user in ("keeper", "founder"):
        ruled.add_user(user)
    for (user, topic), who in needed.items():
        for right in rights[who]:
            ruled.allow(user, right, topic)
    keep = ("savepoint", "other", "good", "--checkpoint", str(number))
    fork = ("fork", "new-one", "other@good")

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
        status, said = lacking(ruled, "founder", right, topic, *fork)
        assert status == Exit.REFUSED
        assert named(said, right, topic, "founder"), said
    begun = asked(ruled, "founder", *fork)
    assert begun.exit_code == Exit.DONE, begun.output
    released = asked(ruled, "keeper", "savepoint", "other", "good", "--release")
    assert released.exit_code == Exit.DONE, released.output


def test_a_job_of_another_prefix_is_another_job(ruled: SecuredBroker) -> None:
    given = ["jobs", "--names", "--bootstrap-servers", ruled.at("PLAINTEXT")]
    result = CliRunner().invoke(main, given)
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
    writer = log.writer()
    one = UnstoredRecord(key=b"", value=b"", header=b"", timestamp_us=0)
    writer.append([one], timeout_s=BOUND_S)
    writer.close(timeout_s=2.0)
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


# each command that changes something, with the rights of its row and no others

ELSEWHERE = "team-b."
"""Another prefix: a job that is adopted there has another topic, at the same broker."""


IN_TURN = ("Create", "DescribeConfigs", "Write", "Read", "Delete")
"""A copy that cannot be read back, or made as short as its source, is whole: it needs no right to write any more."""


def least(
    door: SecuredBroker,
    user: str,
    row: str,
    topic: str,
    *arguments: str,
    prefix: str = PREFIX,
    without: str = "",
) -> Result:
    """How a command ends with the rights of its row, after each of them has been seen to be needed.

    `without` is a right whose lack refuses nothing.
    """
    rights = rights_in_docs()[row]
    door.add_user(user)
    for right in rights:
        door.allow(user, right, topic)
    for right in sorted(rights, key=IN_TURN.index):
        if right != without:
            status, said = lacking(door, user, right, topic, *arguments, prefix=prefix)
            assert status == Exit.REFUSED, (right, said)
            assert named(said, right, topic, user), said
            assert len(said.splitlines()) == 1 or right == "Delete", said
    return asked(door, user, *arguments, prefix=prefix)


def killed(door: SecuredBroker, folder: Path, job_id: str, *, after: int) -> Pipeline:
    """A streaming job with snapshots whose driver, the administrator's, is killed after so many splits."""
    pipeline = Pipeline(folder, is_batch=False, transform=unchanged)
    pipeline.job_id = job_id
    with contextlib.closing(administrators(door, job_id)) as log:
        log.create()
        pipeline.on_broker = log
        with pytest.raises(KilledError):
            pipeline.drive(at(Kind.SPLIT_FINISHED, after, kill_driver))
    return pipeline


def administrators(door: SecuredBroker, job_id: str, prefix: str = PREFIX) -> KafkaLog:
    return KafkaLog.for_job(job_id, door.at("PLAINTEXT"), topic_prefix=prefix)


def test_a_split_is_skipped_with_the_rights_of_the_docs_and_no_fewer(
    ruled: SecuredBroker, tmp_path: Path
) -> None:
    pipeline = killed(ruled, tmp_path, "stuck", after=3)
    skip = ("skip", "stuck", "--split", str(pipeline.folder / "023.csv"), "--take-over")
    row = "`coordlog skip` where no driver lives"
    done = least(ruled, "skipper", row, f"{PREFIX}stuck.log", *skip)
    assert done.exit_code == Exit.DONE, done.output
    again = asked(ruled, "skipper", *skip)
    assert "is skipped already" in again.stderr


@pytest.mark.tier("matrix")
def test_prune_and_copy_need_exactly_the_documented_rights(
    ruled: SecuredBroker, tmp_path: Path
) -> None:
    topic, prune = f"{PREFIX}long.log", ("prune", "long", "--yes", "--take-over")
    killed(ruled, tmp_path, "long", after=FILES - 2)
    with contextlib.closing(administrators(ruled, "long")) as log:
        end = log.high_watermark()
        done = least(ruled, "shortener", "`coordlog prune`", topic, *prune)
        assert done.exit_code == Exit.DONE, done.output
        assert 0 < log.start_offset() < end == log.high_watermark()
    copies_are_made_of_a_pruned_history(ruled, tmp_path / "pruned.avro")


def copies_are_made_of_a_pruned_history(door: SecuredBroker, file: Path) -> None:
    for right in READER:
        door.allow("reader", right, f"{PREFIX}long.log")
    exported = asked(door, "reader", "export", "long", str(file))
    assert exported.exit_code == Exit.DONE, exported.output
    row = "the same, of a history that was pruned"
    for user, job, command in (
        ("copier", "shown-pruned", ("import", str(file), "--as", "shown-pruned")),
        ("mover", "long", ("adopt", "long", "--from", str(file), "--take-over")),
    ):
        topic = f"{ELSEWHERE}{job}.log"
        done = least(door, user, row, topic, *command, prefix=ELSEWHERE)
        assert done.exit_code == Exit.DONE, done.output


@pytest.mark.tier("matrix")
def test_adopt_import_and_delete_need_exactly_the_documented_rights(
    ruled: SecuredBroker, tmp_path: Path
) -> None:
    file = tmp_path / "job.avro"
    exported = asked(ruled, "reader", "export", "job", str(file))
    assert exported.exit_code == Exit.DONE, exported.output
    row = "`coordlog adopt`, `coordlog import`"
    for user, job, command in (
        ("importer", "mirror", ("import", str(file), "--as", "mirror")),
        ("adopter", "job", ("adopt", "job", "--from", str(file))),
    ):
        topic = f"{ELSEWHERE}{job}.log"
        done = least(ruled, user, row, topic, *command, prefix=ELSEWHERE)
        assert done.exit_code == Exit.DONE, done.output

    # From a topic: what the page says of that one below the table.
    mirror, third = f"{ELSEWHERE}mirror.log", "team-c."
    ruled.add_user("settler")
    for topic, rights in ((mirror, READER), (f"{third}job.log", rights_in_docs()[row])):
        for right in rights:
            ruled.allow("settler", right, topic)
    command = ("adopt", "job", "--from-topic", mirror)
    for right in READER:
        status, said = lacking(ruled, "settler", right, mirror, *command, prefix=third)
        assert (status, named(said, right, mirror, "settler")) == (Exit.REFUSED, True), said
    done = asked(ruled, "settler", *command, prefix=third)
    assert done.exit_code == Exit.DONE, done.output

    delete = ("delete", "job", "--yes")
    done = least(
        ruled, "remover", "`coordlog delete`", f"{ELSEWHERE}job.log", *delete, prefix=ELSEWHERE
    )
    assert done.exit_code == Exit.DONE, done.output
    with contextlib.closing(administrators(ruled, "job", ELSEWHERE)) as log:
        assert not log.find()
