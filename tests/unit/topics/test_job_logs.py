"""A pattern of topics leaves out the logs of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordlog.errors import TopicError
from coordlog.spark_integration.kafka import cluster as cluster_module
from coordlog.spark_integration.kafka.cluster import Cluster


class Topics:
    """Topics of one partition, each with the headers of its records: None if a record is none of a log."""

    def __init__(self, headers: Mapping[str, Sequence[object]], *, has_ids: bool = True) -> None:
        self.headers, self._has_ids = dict(headers), has_ids
        self.lagging = 0
        """Answers about a log that come from a broker that does not know its topic yet."""
        self.pauses: list[float] = []

    def ask(self, _doing: str, _question: object) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "error_code": 0,
                "is_internal": False,
                "topic_id": f"id of {name}" if self._has_ids else None,
                "partitions": [{"partition_index": 0}],
            }
            for name in sorted(self.headers)
        ]

    def log(self, topic: str, *_args: object, **_options: object) -> Any:  # noqa: ANN401, a part of a log
        headers = self.headers[topic]

        def read(start: int, end: int, **_options: object) -> Iterator[SimpleNamespace]:
            return (SimpleNamespace(header=header) for header in headers[start:end])

        def find() -> bool:
            self.lagging -= 1
            return self.lagging < 0

        def open_to_read() -> None:
            if not find():
                raise TopicError(topic, "there is no such topic at host:1", "check the name")

        return SimpleNamespace(
            find=find,
            open_to_read=open_to_read,
            start_offset=lambda: 0,
            high_watermark=lambda: len(headers),
            read=read,
            close=lambda: None,
        )


def cluster_of(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(Cluster, "_ask", topics.ask)
    monkeypatch.setattr(Cluster, "pause", lambda _self, seconds: topics.pauses.append(seconds))
    monkeypatch.setattr(cluster_module, "KafkaLog", topics.log)
    return Cluster(bootstrap_servers="host:1")


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_topic_behind_the_log_of_a_job_is_listed(
    monkeypatch: pytest.MonkeyPatch, *, has_ids: bool
) -> None:
    """Clusters without ids of topics give all the same one: none."""
    topics = Topics({"a": [None], "a.log": ["v1"], "a2": [None], "b.log": [None]}, has_ids=has_ids)
    cluster = cluster_of(topics, monkeypatch)

    for _ in range(2):
        assert sorted(cluster.topics([], ".*")) == ["a", "a2", "b.log"]


def test_a_log_that_has_no_record_yet_is_no_topic_of_a_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job creates its log before its Spark session: a listing between the two had it for good."""
    topics = Topics({"a": [None], "a.log": [], "b.log": []})
    cluster = cluster_of(topics, monkeypatch)
    assert sorted(cluster.topics([], ".*")) == ["a"]
    assert sorted(cluster.topics(["a.log"], ".*")) == ["a", "a.log"]

    topics.headers |= {"a.log": ["v1"], "b.log": [None]}
    assert sorted(cluster.topics([], ".*")) == ["a", "b.log"]


def test_a_log_that_a_broker_does_not_know_yet_is_no_topic_of_a_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another broker has listed it. A job that took its own log for a source would read what it appends."""
    topics = Topics({"a": [None], "a.log": ["v1"]})
    topics.lagging = 2

    assert sorted(cluster_of(topics, monkeypatch).topics([], ".*")) == ["a"]


def test_a_topic_that_is_deleted_while_it_is_listed_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = Topics({"a": [None], "a.log": [None]})
    topics.lagging = 1000

    assert sorted(cluster_of(topics, monkeypatch).topics([], ".*")) == ["a"]
    assert sum(topics.pauses) == 2.0
