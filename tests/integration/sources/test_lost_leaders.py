"""A topic of one replica on three brokers, of which one is killed: the others answer, and its partition is gone."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from chaos.cluster import Cluster
from coordlog.errors import SourceError
from coordlog.spark_integration.kafka import leaders as leaders_module
from data.kafka_topics import ReadOut, listed, opened, read, topics_at

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_a_partition_on_a_killed_broker_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders_module, "KAFKA_QUIET_S", 1.0)
    monkeypatch.setattr(leaders_module, "KAFKA_TIMEOUT_S", 5.0)
    cluster = Cluster(tmp_path, 3)
    try:
        cluster.start(cluster.numbers)
        with topics_at(cluster.bootstrap_servers) as topics:
            placed = {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": {0: [1], 1: [2]},
            }
            topics.admin.create_topics({"t": placed})
            topics.admin.wait_for_topics(["t"], timeout_ms=30_000)
            for partition in range(2):
                topics.fill("t", partition, ["v"] * 10)
            source = topics.source("t", bounded=True)
            with closing(opened(source, listed(source).splits)) as reader:
                cluster.kill(2)
                out, began = ReadOut(), time.monotonic()
                with pytest.raises(SourceError) as caught:
                    read(reader, out, limit_s=200.0)
        assert [place for place in out.places if place[0] == 0] == [(0, n) for n in range(10)]
        assert "t/1 at " in caught.value.where
        assert time.monotonic() - began >= 5.0
    finally:
        cluster.stop()
