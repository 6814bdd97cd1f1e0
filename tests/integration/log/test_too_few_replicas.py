"""A log on three brokers, of which one is killed: too few replicas are in sync for an append."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from chaos.cluster import Cluster
from coordlog.errors import LogUnavailableError
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog
from servers.topic_settings import change_settings

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TRIES = 3
WAIT_S = 60.0


def in_sync(admin: KafkaAdminClient, topic: str) -> list[int]:
    """Brokers that have all records of the topic, as one of them knows."""
    (partition,) = admin.describe_topics([topic])[0]["partitions"]
    return list(partition["isr_nodes"])


def test_each_refused_append_names_the_replicas(tmp_path: Path) -> None:
    """Also an append of a new producer, which by itself reports only a timeout."""
    cluster = Cluster(tmp_path, 3)
    try:
        cluster.start(cluster.numbers)
        log = KafkaLog.for_job("j", cluster.bootstrap_servers)
        log.create()
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
            change_settings(admin, log.topic, {"min.insync.replicas": "3"})
            cluster.kill(2)
            until = time.monotonic() + WAIT_S
            while 2 in in_sync(admin, log.topic):
                assert time.monotonic() < until, f"not noticed within {WAIT_S} s"
                time.sleep(0.2)
        record = UnstoredRecord(key=b"k", value=b"v", header=b"", timestamp_us=0)
        for _ in range(TRIES):
            writer = log.writer()
            with pytest.raises(LogUnavailableError) as caught:
                writer.append([record], timeout_s=6.0)
            writer.close(timeout_s=1.0)
            assert "NotEnoughReplicasError" in str(caught.value)
            assert "min.insync.replicas" in str(caught.value)
        log.close()
    finally:
        cluster.stop()
