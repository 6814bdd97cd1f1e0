"""State of brokers and topics, for a diagnosis. Leaves no change behind."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kafka import KafkaProducer, errors
from kafka.structs import TopicPartition

from coordlog.log.kafka.admin_compat import cluster_of, settings_of
from coordlog.log.kafka.client import Connection, Questions, made
from coordlog.log.kafka.security import Security

__all__ = ["BrokerFacts", "Disk", "TopicFacts", "clock_ahead_s", "examine"]

_CONNECT_S: Final = 10.0
_NO_NAME: Final = "(all topics)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A folder of a broker's."""

    broker: int
    folder: str
    total_bytes: int
    """-1 if the broker is too old to report it."""
    usable_bytes: int
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic."""

    name: str
    partition_count: int
    replication: int
    in_sync: int
    settings: Mapping[str, str]
    size_bytes: int
    """Size of one replica on disk."""
    open_transactions: tuple[str, ...]
    """Texts, each with a producer's id and the first offset of its transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """A cluster, and the requested topics."""

    bootstrap_servers: str
    """Address of the queries, for commands that are shown to the user."""
    cluster_id: str
    versions: Mapping[int, str]
    """Lowest possible release of each broker by its id, from the protocols that it supports."""
    disks: tuple[Disk, ...]
    topics: tuple[TopicFacts, ...]
    """The topics, in the requested order."""
    protocol: str = "PLAINTEXT"
    """Security protocol of the queries."""


def examine(
    bootstrap_servers: str,
    topics: tuple[str, ...],
    *,
    security: Security,
    connect_timeout_s: float = _CONNECT_S,
) -> BrokerFacts:
    """Query the brokers.

    Raises:
        LogUnavailableError: No answer within `connect_timeout_s`.
        TopicError: This user may not query them.
    """
    connection = Connection(
        topic=_NO_NAME,
        bootstrap_servers=bootstrap_servers,
        security=security,
        connect_timeout_s=connect_timeout_s,
    )
    questions = Questions(connection)
    try:
        facts = questions.ask(
            "looking at it", lambda admin: _facts(admin, bootstrap_servers, topics)
        )
    finally:
        questions.close()
    return replace(facts, protocol=security.protocol)


def _facts(
    admin: Any,  # noqa: ANN401, the client has no types
    bootstrap_servers: str,
    topics: tuple[str, ...],
) -> BrokerFacts:
    cluster = cluster_of(admin)
    brokers = [broker["node_id"] for broker in cluster["brokers"]]
    folders = [
        (described["broker"], folder)
        for described in admin.describe_log_dirs()
        for folder in described["log_dirs"]
    ]
    sizes: dict[str, int] = {}
    for _, folder in folders:
        for topic in folder["topics"]:
            size = sum(partition["partition_size"] for partition in topic["partitions"])
            sizes[topic["name"]] = max(size, sizes.get(topic["name"], 0))
    return BrokerFacts(
        bootstrap_servers=bootstrap_servers,
        cluster_id=str(cluster["cluster_id"]),
        versions={broker: _version(admin, broker) for broker in brokers},
        disks=tuple(
            Disk(
                broker=broker,
                folder=folder["log_dir"],
                total_bytes=folder.get("total_bytes", -1),
                usable_bytes=folder.get("usable_bytes", -1),
                error_code=folder["error_code"],
            )
            for broker, folder in folders
        ),
        topics=tuple(_topic(admin, name, sizes.get(name, 0)) for name in topics),
    )


def _version(admin: Any, broker: int) -> str:  # noqa: ANN401
    try:
        versions = admin.get_broker_version_data(broker)
    except errors.KafkaError:
        return ""
    return ".".join(map(str, versions.broker_version))


def _topic(admin: Any, name: str, size: int) -> TopicFacts:  # noqa: ANN401
    described = admin.describe_topics([name])[0]
    if described["error_code"] != 0 or not described["partitions"]:
        raise errors.for_code(described["error_code"] or errors.LeaderNotAvailableError.errno)(name)
    partition = described["partitions"][0]
    producers = admin.describe_producers([TopicPartition(name, 0)])
    return TopicFacts(
        name=name,
        partition_count=len(described["partitions"]),
        replication=len(partition["replica_nodes"]),
        in_sync=len(partition["isr_nodes"]),
        settings=settings_of(admin, name),
        size_bytes=size,
        open_transactions=tuple(
            f"producer {producer.producer_id} since offset {producer.current_transaction_start_offset}"
            for state in producers.values()
            for producer in state.active_producers
            if producer.current_transaction_start_offset >= 0
        ),
    )


def clock_ahead_s(bootstrap_servers: str, *, security: Security) -> float:
    """Seconds by which a broker's clock is ahead of this machine's; measured with a topic that is created and removed.

    Raises:
        LogUnavailableError: No answer in time.
        TopicError: This user may not create a topic.
    """
    topic = f"coordlog-clock-{secrets.token_hex(6)}"
    connection = Connection(
        topic=topic,
        bootstrap_servers=bootstrap_servers,
        security=security,
        connect_timeout_s=_CONNECT_S,
    )
    questions = Questions(connection)
    wanted = {
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": {"message.timestamp.type": "LogAppendTime"},
    }

    def ask(admin: Any) -> float:  # noqa: ANN401
        admin.create_topics({topic: wanted})
        try:
            admin.wait_for_topics([topic], timeout_ms=int(_CONNECT_S * 1000))
            producer = made(KafkaProducer, connection.options(_CONNECT_S))
            try:
                producer.send(topic, value=b"warm").get(timeout=_CONNECT_S)
                before = time.time()
                stored = producer.send(topic, value=b"now").get(timeout=_CONNECT_S)
                return float(stored.timestamp / 1000 - (before + time.time()) / 2)
            finally:
                producer.close(timeout=1.0)
        finally:
            admin.delete_topics([topic])

    try:
        return questions.ask("asking its time", ask)
    finally:
        questions.close()
