"""`coordlog doctor` at a real broker."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing import HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of
from jobs.quota import quota_chain
from servers.topic_settings import change_settings

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def doctor_at(servers: str, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status, and the findings by what was looked at."""
    done = CliRunner().invoke(
        main, ["doctor", *arguments, "--json", "--bootstrap-servers", servers]
    )
    rows = [json.loads(one) for one in done.stdout.splitlines()]
    assert rows, done.output
    return done.exit_code, {one["subject"]: one for one in rows}


def test_a_setting_of_a_real_broker_that_loses_history_is_reported(
    broker: EmbeddedBroker,
) -> None:
    servers = broker.bootstrap_servers
    doctor = partial(doctor_at, servers)
    log = KafkaLog.for_job("patient", servers)
    log.create()
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        job = HandDrivenJob(quota_chain(), job_id="patient", log=log)  # type: ignore[arg-type]
        job.register_all()
        job.crash()
        _, found = doctor("patient")
        assert found["clock"]["grade"] == "ok"
        assert found["broker 1"]["value"].startswith("Kafka 4")
        assert found["topic patient.log, settings"]["grade"] == "ok"
        assert found["job patient, prune"]["value"] == "would free nothing: it has no snapshot"
        assert found["job patient, retention"]["grade"] == "ok"
        assert not [one for one in admin.list_topics() if "clock" in one]
        prefixed = KafkaLog.for_job("patient", servers, topic_prefix="team.")
        prefixed.create()
        try:
            _, found = doctor("--topic-prefix", "team.")
            assert found["topic team.patient.log, settings"]["grade"] == "ok"
        finally:
            prefixed.delete()
            prefixed.close()

        change_settings(admin, "patient.log", {"cleanup.policy": "compact", "retention.ms": "1000"})
        status, found = doctor("patient")
        assert status == Exit.FAILED
        assert found["topic patient.log, cleanup.policy"]["value"].startswith("compact: ")
        assert "log of job patient" not in found, "it is read whatever its settings are"
    finally:
        admin.close()
        log.delete()
        log.close()


def test_a_transaction_that_is_left_open_is_told_with_its_producer(broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    what = "topic hangs.log, open transaction"
    log = KafkaLog.for_job("hangs", servers)
    log.create()
    stranger = KafkaProducer(bootstrap_servers=servers, transactional_id="stranger")
    try:
        job = HandDrivenJob(quota_chain(), job_id="hangs", log=log)  # type: ignore[arg-type]
        job.register_all()
        job.crash()
        stranger.init_transactions()
        stranger.begin_transaction()
        stranger.send("hangs.log", key=b"stray", value=b"x")
        stranger.commit_transaction()
        _, found = doctor_at(servers)
        assert what not in found
        assert found["job hangs, size"]["grade"] == "note"

        stranger.begin_transaction()
        began = stranger.send("hangs.log", value=b"x").get(timeout=20.0).offset
        status, found = doctor_at(servers)
        assert status == Exit.FAILED
        assert found[what]["grade"] == "wrong"
        producer = stranger._transaction_manager.producer_id_and_epoch  # pyright: ignore[reportAttributeAccessIssue]
        assert found[what]["value"].startswith(
            f"producer {producer.producer_id} since offset {began};"
        )
        assert "kafka-transactions.sh abort" in found[what]["next_step"]

        stranger.abort_transaction()
        _, found = doctor_at(servers)
        assert what not in found
    finally:
        stranger.close(timeout=5.0)
        log.delete()
        log.close()


def test_doctor_warns_before_retention_removes_records_a_restart_needs(
    broker: EmbeddedBroker,
) -> None:
    servers = broker.bootstrap_servers
    log = KafkaLog.for_job("ages", servers)
    log.create()
    admin = KafkaAdminClient(bootstrap_servers=servers)

    def doctor(retention_ms: int) -> tuple[int, dict[str, dict[str, str]]]:
        change_settings(admin, log.topic, {"retention.ms": str(retention_ms)})
        return doctor_at(servers)

    try:
        job = HandDrivenJob(
            chain_of(NotingProvider(projection=HANDLED)),
            job_id="ages",
            log=log,  # type: ignore[arg-type]
            options=RuntimeOptions(snapshot_every=5),
        )
        attempt = job.register(0)
        for n in range(12):
            attempt.send("source", Up(n=n))
        job.crash()
        stored = list(log.read(0, log.high_watermark()))
        (*_, snapshot) = [one for one in stored if one.record().kind is Kind.SNAPSHOT]
        age_ms = int(time.time() * 1000) - snapshot.timestamp_ms

        _, found = doctor(3 * age_ms)
        assert found["job ages, retention"]["grade"] == "ok"
        assert (
            f"its newest snapshot, at offset {snapshot.offset}"
            in (found["job ages, retention"]["value"])
        )
        assert "lose nothing" not in found["topic ages.log, settings"]["value"]
        status, found = doctor(age_ms * 3 // 2)
        assert status == Exit.FAILED
        assert found["job ages, retention"]["grade"] == "warning"
        assert "--add-config retention.ms=-1" in found["job ages, retention"]["next_step"]
    finally:
        admin.close()
        log.delete()
        log.close()
