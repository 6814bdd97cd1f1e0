"""A topic whose settings are unfit for a log, at a real broker: it is read, and refused where it would be changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kafka.admin import KafkaAdminClient, NewPartitions

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import TopicError
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.testing import HandDrivenJob
from jobs.quota import quota_chain
from servers.topic_settings import change_settings

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

JOB = "locked-in"


def test_after_max_message_bytes_is_lowered_a_log_is_read_and_not_changed(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--bootstrap-servers", servers])

    log = KafkaLog.for_job(JOB, servers)
    log.create()
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        job = HandDrivenJob(quota_chain(), job_id=JOB, log=log)  # type: ignore[arg-type]
        job.register_all()
        job.crash()
        change_settings(admin, f"{JOB}.log", {"max.message.bytes": "300"})
        end = log.high_watermark()

        for reading in (
            ("history", JOB),
            ("state", JOB),
            ("verify", JOB),
            ("export", JOB, str(tmp_path / "out.avro")),
        ):
            done = run(*reading)
            assert done.exit_code == Exit.DONE, done.output
        for changing in (
            ("skip", JOB, "--split", "a", "--take-over"),
            ("savepoint", JOB, "good", "--take-over"),
            ("prune", JOB, "--yes", "--take-over"),
        ):
            refused = run(*changing)
            assert refused.exit_code == Exit.FAILED, refused.output
            assert "max.message.bytes is 300" in refused.stderr
            assert f"--entity-name {JOB}.log --add-config max.message.bytes=" in refused.stderr
        assert (log.start_offset(), log.high_watermark()) == (0, end)
        gone = run("delete", JOB, "--yes")
        assert gone.exit_code == Exit.DONE, gone.output
    finally:
        admin.close()
        log.delete()
        log.close()


def test_a_topic_with_three_partitions_is_deleted_with_take_over(broker: EmbeddedBroker) -> None:
    """A driver may still write to its first partition, so the command does not decide this by itself."""
    servers = broker.bootstrap_servers

    def run(*arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(main, [*arguments, "--bootstrap-servers", servers], input=answer)

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics(
            {"wide.log": {"num_partitions": 3, "replication_factor": 1}},
            wait_for_metadata=True,  # pyright: ignore[reportCallIssue]  # its stubs are older
        )
    finally:
        admin.close()

    refused = run("delete", "wide", "--yes")
    assert refused.exit_code == Exit.USAGE, refused.output
    assert "it has 3 partitions" in refused.stderr
    assert "`coordlog delete wide --take-over` removes the topic" in refused.stderr
    kept = run("delete", "wide", "--take-over", answer="n\n")
    assert "cannot be read: it has 3 partitions" in kept.output
    gone = run("delete", "wide", "--take-over", answer="y\n")
    assert gone.exit_code == Exit.DONE, gone.output
    assert "wide" not in run("jobs", "--names").stdout.split()


def test_a_log_to_which_partitions_were_added_is_moved_to_a_topic_of_one(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Kafka removes no partitions; the history is whole in the first."""
    servers, name, copy = broker.bootstrap_servers, "widened", str(tmp_path / "log.avro")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--bootstrap-servers", servers])

    log = KafkaLog.for_job(name, servers)
    log.create()
    job = HandDrivenJob(quota_chain(), job_id=name, log=log)  # type: ignore[arg-type]
    job.register_all()
    job.crash()
    end = log.high_watermark()
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_partitions({log.topic: NewPartitions(total_count=3)})
    admin.close()
    with pytest.raises(TopicError, match=r"it has 3 partitions.*`coordlog export JOB FILE`"):
        log.open()

    for command in (
        ("verify", name),
        ("export", name, copy),
        ("delete", name, "--yes"),
        ("adopt", name, "--from", copy, "--take-over"),
    ):
        done = run(*command)
        assert done.exit_code == Exit.DONE, (command, done.output, done.stderr)
    log.open()
    assert log.high_watermark() > end
    again = HandDrivenJob(quota_chain(), job_id=name, log=log)  # type: ignore[arg-type]
    again.register_all()
    log.delete()
    log.close()
