"""`coordlog doctor` at a real broker."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from coordlog.cli.exits import Exit
from coordlog.cli.main import main
from coordlog.log.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.testing import HandDrivenJob
from quota import quota_chain

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_a_real_broker_is_looked_at_and_a_setting_that_loses_history_is_told(
    broker: EmbeddedBroker,
) -> None:
    servers = broker.bootstrap_servers

    def doctor(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
        done = CliRunner().invoke(
            main, ["doctor", *arguments, "--json", "--bootstrap-servers", servers]
        )
        rows = [json.loads(one) for one in done.stdout.splitlines()]
        assert rows, done.output
        return done.exit_code, {one["what"]: one for one in rows}

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

        stranger = KafkaProducer(bootstrap_servers=servers, transactional_id="stranger")
        stranger.init_transactions()
        stranger.begin_transaction()
        stranger.send("patient.log", key=b"stray", value=b"x")
        stranger.commit_transaction()
        stranger.close()
        _, found = doctor()
        assert found["job patient, size"]["grade"] == "note"

        topic = ConfigResource(
            ConfigResourceType.TOPIC,
            "patient.log",
            configs={"cleanup.policy": "compact", "retention.ms": "1000"},
        )
        admin.alter_configs([topic])
        status, found = doctor("patient")
        assert status == Exit.FAILED
        assert found["topic patient.log, cleanup.policy"]["value"].startswith("compact: ")
        assert "cleanup.policy is compact" in found["log of job patient"]["value"]
    finally:
        admin.close()
        log.delete()
        log.close()
