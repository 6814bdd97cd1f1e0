"""Where a chaos round takes place: brokers, before each a proxy, below each a disk."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.structs import TopicPartition

from chaos.child import wait_until
from chaos.cluster import Cluster
from chaos.disk import NoDiskError, SmallDisk
from chaos.proxy import Proxy

__all__ = ["Ground", "single_broker", "three_brokers"]

_ANSWERS_S = 60.0
_PAUSE_S = 0.2


@dataclass(kw_only=True)
class Ground:
    """What can be broken."""

    cluster: Cluster
    proxies: Mapping[int, Proxy]
    """By the broker's number."""
    disks: Mapping[int, SmallDisk]
    """Also by it; empty where this user may not mount any."""
    why_no_disk: str = ""

    @property
    def servers(self) -> str:
        """For clients."""
        return self.cluster.bootstrap_servers

    def heal(self) -> None:
        """As at first: whatever a fault has left."""
        for proxy in self.proxies.values():
            proxy.heal()
        for disk in self.disks.values():
            disk.free()
        for number in self.cluster.running:
            if not self.cluster.is_alive(number):
                self.cluster.kill(number)
        self.cluster.start(self.cluster.numbers)

    def set_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change settings of a topic."""
        with self.admin() as admin:
            admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(settings))]
            )

    def delete_topic(self, topic: str) -> None:
        """With all that is in it."""
        with self.admin() as admin:
            admin.delete_topics([topic])

    def leader(self, topic: str) -> int:
        """The number of the broker that leads the topic's partition."""
        with self.admin() as admin:
            return int(admin.describe_topics([topic])[0]["partitions"][0]["leader_id"])

    def move_leader(self, topic: str, *, to: int | None = None) -> None:
        """Another of its replicas leads from now on, or `to`, where it does not yet."""
        leader = self.leader(topic)
        if leader == to:
            return
        order = sorted(self.cluster.numbers, key=lambda n: (n != to, n == leader, n))
        partition = TopicPartition(topic, 0)
        with self.admin() as admin:
            admin.alter_partition_reassignments({partition: order})
            wait_until(
                lambda: not admin.list_partition_reassignments([partition]), _ANSWERS_S, "moved"
            )

            def has_moved() -> bool:
                # It is refused until the order is known, and the new leader has all that counts.
                time.sleep(_PAUSE_S)
                admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
                return self.leader(topic) == order[0]

            wait_until(has_moved, _ANSWERS_S, f"{order[0]} leads, no more {leader}")

    @contextlib.contextmanager
    def admin(self) -> Generator[Any, None, None]:
        """A client for the block."""
        admin = KafkaAdminClient(
            bootstrap_servers=self.servers.split(","), reconnect_backoff_max_ms=500
        )
        try:
            yield admin
        finally:
            admin.close()


@contextlib.contextmanager
def single_broker() -> Generator[Ground, None, None]:
    """One broker."""
    with _ground(1) as ground:
        yield ground


@contextlib.contextmanager
def three_brokers() -> Generator[Ground, None, None]:
    """Three brokers; a job's topic has three replicas, of which two must have a record."""
    with _ground(3) as ground:
        yield ground


@contextlib.contextmanager
def _ground(count: int) -> Generator[Ground, None, None]:
    """Brokers behind proxies, through which they copy from each other too; on small disks, where this user may."""
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="coordlog-chaos-", ignore_cleanup_errors=True)
        root, numbers = Path(stack.enter_context(folder)), range(1, count + 1)
        disks: dict[int, SmallDisk] = {}
        why = ""
        try:
            for number in numbers:
                disks[number] = SmallDisk(root, str(number))
                stack.callback(disks[number].close)
        except NoDiskError as error:
            why = str(error)
        proxies = {number: stack.enter_context(Proxy()) for number in numbers}
        advertised = {number: proxy.port for number, proxy in proxies.items()}
        cluster = Cluster(root, count, advertised=advertised)
        for number, proxy in proxies.items():
            proxy.target_port = cluster.port(number)
        stack.callback(cluster.stop)
        cluster.start(cluster.numbers)
        yield Ground(cluster=cluster, proxies=proxies, disks=disks, why_no_disk=why)
