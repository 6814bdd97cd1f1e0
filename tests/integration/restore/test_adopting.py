"""A job whose cluster is lost goes on at another one: two real brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import FencedError, RestoreError, TopicError
from coordlog.log.append_protocol import Place
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.kafka import KafkaLog
from coordlog.offline.adopt import adopt
from coordlog.projections.tables.audit import audit_records
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.validity import NOTHING_COUNTED
from coordlog.testing.driven_job import HandDrivenJob
from driven_history import ALL_ROWS, DrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of
from histories.log_records import start_driver

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.clause("E9")]


def run(broker: EmbeddedBroker, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--bootstrap-servers", broker.bootstrap_servers])


@pytest.mark.tier("faults")
def test_a_job_goes_on_at_another_broker_and_every_row_comes_out_once(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    job = "moves-house"
    driven = DrivenJob(tmp_path, job, is_batch=False)
    path = tmp_path / "history.avro"
    there = KafkaLog.for_job(job, broker.bootstrap_servers, fsync=False)
    there.create()
    with embedded_broker() as other:
        here = KafkaLog.for_job(job, other.bootstrap_servers)
        try:
            driven.drive(there, kill_attempt_at=3, kill_driver_at=9, snapshot_every=60)
            assert run(broker, "export", job, str(path)).exit_code == Exit.DONE
            assert run(other, "import", str(path)).exit_code == Exit.DONE
            with pytest.raises(RestoreError, match=f"`coordlog adopt {job} --from FILE`"):
                driven.drive(here)
            # What was imported to be looked at is a part of what is adopted.
            done = run(other, "adopt", job, "--from", str(path), "--take-over")
            assert done.exit_code == Exit.DONE, done.output
            assert there.identity.cluster_id in done.stderr
            driven.drive(here, kill_attempt_at=2, snapshot_every=60)

            assert driven.rows() == ALL_ROWS
            verified = run(other, "verify", job)
            assert verified.exit_code == Exit.DONE, verified.output
            # A mirror whose first records are gone: only its offsets are other ones.
            found = [one.header for one in here.read(0, here.high_watermark())]
            newest = max(one.snapshot_offset for one in found if one is not None)
            assert newest > 0
            here.delete_below(newest)
            assert here.start_offset() == newest
            second = KafkaLog(f"{job}.log", broker.bootstrap_servers, fsync=False)
            second.delete()
            moved = run(other, "export", job, str(tmp_path / "pruned.avro"))
            assert moved.exit_code == Exit.DONE, moved.output
            back = run(broker, "adopt", job, "--from", str(tmp_path / "pruned.avro"))
            assert back.exit_code == Exit.DONE, back.output
            verified = run(broker, "verify", job)
            assert verified.exit_code == Exit.DONE, verified.output
            assert second.start_offset() == 1
            second.close()
        finally:
            here.close()
            there.close()


def mirrored(topic: str, there: EmbeddedBroker, name: str, here: EmbeddedBroker) -> None:
    """As MirrorMaker copies it: key, value, headers and time, to a topic as its broker makes one, not empty."""
    partition = TopicPartition(topic, 0)
    admin = KafkaAdminClient(bootstrap_servers=here.bootstrap_servers)
    admin.create_topics(
        {name: {"num_partitions": 1, "replication_factor": 1}},
        wait_for_metadata=True,  # pyright: ignore[reportCallIssue]  # its stubs are older
    )
    admin.close()
    consumer = KafkaConsumer(
        bootstrap_servers=there.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    producer = KafkaProducer(bootstrap_servers=here.bootstrap_servers, acks="all")
    try:
        for number in range(3):
            producer.send(name, key=None, value=b"in front %d" % number)
        consumer.assign([partition])
        last = consumer.end_offsets([partition])[partition] - 1
        for one in consumer:
            producer.send(
                name,
                key=one.key,
                value=one.value,
                headers=list(one.headers),
                partition=0,
                timestamp_ms=one.timestamp,
            )
            if one.offset == last:
                break
        producer.flush(timeout=60.0)
    finally:
        producer.close(timeout=1.0)
        consumer.close()


@pytest.mark.newer_broker("3.6")  # an older one's own settings fit
@pytest.mark.tier("faults")
def test_a_job_goes_on_from_a_topic_that_was_mirrored_to_another_broker(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    job = "mirrored"
    mirror = f"old.{job}.log"
    driven = DrivenJob(tmp_path, job, is_batch=False)
    there = KafkaLog.for_job(job, broker.bootstrap_servers, fsync=False)
    there.create()
    with embedded_broker() as other:
        here = KafkaLog.for_job(job, other.bootstrap_servers)
        copy = KafkaLog(mirror, other.bootstrap_servers, fsync=False, retention_ms=0)
        try:
            driven.drive(there, kill_attempt_at=3, kill_driver_at=9, snapshot_every=60)
            mirrored(f"{job}.log", broker, mirror, other)
            with pytest.raises(TopicError, match=r"message\.timestamp"):
                copy.open()
            copy.open_to_read()
            assert copy.high_watermark() == there.high_watermark() + 3

            missing = run(other, "adopt", job, "--from-topic", f"no.{job}.log", "--take-over")
            assert missing.exit_code == Exit.FAILED
            assert f"topic no.{job}.log: there is no such topic" in missing.stderr
            done = run(other, "adopt", job, "--from-topic", mirror, "--take-over")
            assert done.exit_code == Exit.DONE, done.output
            assert there.identity.cluster_id in done.stderr
            verified = run(other, "verify", job)
            assert verified.exit_code == Exit.DONE, verified.output
            driven.drive(here, kill_attempt_at=2, snapshot_every=60)

            assert driven.rows() == ALL_ROWS
            verified = run(other, "verify", job)
            assert verified.exit_code == Exit.DONE, verified.output
        finally:
            for one in (here, copy, there):
                one.close()


class _Cut(KafkaLog):
    """Does something before its first record is removed."""

    do: Callable[[], None]

    def delete_below(self, offset: int) -> None:
        self.do()
        super().delete_below(offset)


@pytest.mark.clause("K2")
def test_no_driver_is_in_force_beside_the_copy_of_a_pruned_history(broker: EmbeddedBroker) -> None:
    """One that has read the topic while it was empty appends before offset 0 is removed, and one after that."""
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)), options=RuntimeOptions(snapshot_every=7)
    )
    attempt = job.register(0)
    for n in range(20):
        attempt.send("source", Up(n=n))
    job.crash()
    found = [one.header for one in job.log.records]
    job.log.remove_below(
        min(one.snapshot_offset for one in found if one and one.snapshot_offset > 0)
    )
    target = _Cut("beside-a-copy.log", broker.bootstrap_servers, fsync=False)
    empty = Place(end_offset=0, counting=NOTHING_COUNTED)
    refused: list[FencedError] = []

    def begin() -> None:
        with pytest.raises(FencedError) as fenced:
            start_driver(target, "late", place=empty)
        refused.append(fenced.value)

    target.do = begin
    target.create()
    try:
        done = adopt(job.log, target, "job")
        with pytest.raises(FencedError) as later:
            start_driver(target, "later", place=empty)

        assert [(one.epoch, one.epoch_in_force) for one in refused] == [(0, 0)]
        assert (later.value.epoch, later.value.epoch_in_force) == (0, 1)
        assert (done.epoch, target.start_offset()) == (1, 1)
        stored = audit_records(target.read(1, target.high_watermark()))
        end = len(job.log.records) + 1
        assert [one.offset for one in stored if not one.counts] == [end, end + 2]
    finally:
        target.close()
