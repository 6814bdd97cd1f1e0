"""A history read by Spark's own Kafka source, over TLS with a password, by a user who may only read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coordlog.log.kafka import KafkaLog
from coordlog.spark_integration.history_frames.frames import history
from histories.hand_history import batch_history
from jobs.kafka_session import spark_with_kafka
from servers.secured_broker import PASSWORD, secured_broker

__all__ = ["spark_with_kafka"]

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.kafka_source,
    pytest.mark.slow,
    pytest.mark.spark,
]

JOB = "guarded"


def test_spark_reads_a_history_with_the_same_options_and_shows_no_password(
    spark_with_kafka: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = batch_history(JOB).records
    with secured_broker(tmp_path, plain_users=("bob",)) as door:
        log = KafkaLog.for_job(JOB, door.at("PLAINTEXT"))
        log.create()
        writer = log.writer()
        writer.append(records, timeout_s=20.0)
        writer.close(timeout_s=2.0)
        log.close()
        door.add_user("ann")
        for user in ("ann", "bob"):
            door.allow(user, "Read", log.topic)

        scram = door.security("SASL_SSL", "ann")
        rows = history(spark_with_kafka, JOB, bootstrap_servers=door.at("SASL_SSL"), security=scram)
        assert rows.count() == len(records)
        rows.explain(extended=True)

        plain = door.security("SASL_PLAINTEXT", "bob", sasl_mechanism="PLAIN")
        for listener, security in (("SASL_PLAINTEXT", plain), ("SSL", door.security("SSL"))):
            rows = history(
                spark_with_kafka, JOB, bootstrap_servers=door.at(listener), security=security
            )
            assert rows.count() == len(records)
    out, err = capfd.readouterr()
    assert "== Physical Plan ==" in out, "the plan is looked at"
    assert PASSWORD not in out + err
