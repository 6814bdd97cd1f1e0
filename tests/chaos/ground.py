"""Where a chaos round takes place: brokers, the proxy before the only one, the disk below it."""

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
from chaos.cluster import Cluster, running_cluster
from chaos.disk import NoDiskError, SmallDisk
from chaos.proxy import Proxy

__all__ = ["Ground", "single_broker", "three_brokers"]

_ANSWERS_S = 60.0
_PAUSE_S = 0.2


@dataclass(kw_only=True)
class Ground:
    """What can be broken."""

    cluster: Cluster
    proxy: Proxy | None = None
    disk: SmallDisk | None = None
    why_no_disk: str = ""

    @property
    def servers(self) -> str:
        """For clients."""
        return self.cluster.bootstrap_servers

    def heal(self) -> None:
        """As at first: whatever a fault has left."""
        if self.proxy is not None:
            self.proxy.heal()
        if self.disk is not None:
            self.disk.free()
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

    def move_leader(self, topic: str) -> None:
        """Another of its replicas leads from now on."""
        leader = self.leader(topic)
        order = sorted(self.cluster.numbers, key=lambda number: (number == leader, number))
        partition = TopicPartition(topic, 0)
        with self.admin() as admin:
            admin.alter_partition_reassignments({partition: order})
            wait_until(
                lambda: not admin.list_partition_reassignments([partition]), _ANSWERS_S, "moved"
            )
            time.sleep(_PAUSE_S)  # between two looks: the order is known a moment later
            admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
        wait_until(lambda: self.leader(topic) != leader, _ANSWERS_S, f"{leader} leads no more")

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
    """One broker behind a proxy; on a small disk, where this user may mount one."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(_folder()))
        disk, why = None, ""
        try:
            disk = SmallDisk(root)
            stack.callback(disk.close)
        except NoDiskError as error:
            why = str(error)
        proxy = stack.enter_context(Proxy())
        data = root / "data" if disk is None else disk.path
        cluster = stack.enter_context(running_cluster(data, 1, advertised=proxy.port))
        proxy.target_port = cluster.port(1)
        yield Ground(cluster=cluster, proxy=proxy, disk=disk, why_no_disk=why)


@contextlib.contextmanager
def three_brokers() -> Generator[Ground, None, None]:
    """Three brokers; a job's topic has three replicas, of which two must have a record."""
    with _folder() as root, running_cluster(Path(root), 3) as cluster:
        yield Ground(cluster=cluster)


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="coordlog-chaos-", ignore_cleanup_errors=True)
