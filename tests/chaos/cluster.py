"""Real brokers on this machine, one or three: each is killed and started again by itself, on its data and port."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coordlog.log.broker import limits as broker_limits
from coordlog.log.broker.folder import new_cluster_id
from coordlog.log.broker.process import (
    StartedBroker,
    StartOptions,
    end_guard,
    is_free,
    kill_broker,
    start_broker,
    stop_broker,
)
from coordlog.log.local.processes import is_alive, send_signal

__all__ = ["Cluster"]

_HOST = "127.0.0.1"
_STOP_S = 5.0
"""The last of them has nobody to hand over to, and waits."""


class Cluster:
    """Brokers 1, 2, 3 …, each a controller too; `stop` always. Not for several threads at once.

    `advertised` is the port at which clients, and the others, are to reach each, where it is not its own.
    """

    def __init__(
        self, root: Path, count: int, *, advertised: Mapping[int, int] | None = None
    ) -> None:
        self._root, self._advertised = root, advertised or {}
        ports = _free_ports(2 * count)
        self._ports = dict(zip(range(1, count + 1), ports[:count], strict=True))
        self._controllers = dict(zip(range(1, count + 1), ports[count:], strict=True))
        self._cluster_id = new_cluster_id()
        self._running: dict[int, StartedBroker] = {}

    @property
    def numbers(self) -> list[int]:
        """Of all brokers."""
        return sorted(self._ports)

    @property
    def running(self) -> list[int]:
        """Of those that run."""
        return sorted(self._running)

    def port(self, number: int) -> int:
        """Where a broker listens."""
        return self._ports[number]

    def is_alive(self, number: int) -> bool:
        """Whether its process is there."""
        return number in self._running and is_alive(self._running[number].state.java)

    def signal(self, number: int, signal_number: int) -> None:
        """Send a broker's process a signal."""
        send_signal(self._running[number].state.java, signal_number)

    @property
    def bootstrap_servers(self) -> str:
        """All of them."""
        return ",".join(f"{_HOST}:{self._seen(number)}" for number in self.numbers)

    def folder(self, number: int) -> Path:
        """Where all lies that a broker keeps."""
        return self._root / str(number)

    def start(self, numbers: Iterable[int]) -> None:
        """Start these, together: none answers before a majority is there."""
        wanted = [one for one in numbers if one not in self._running]
        with ThreadPoolExecutor(max(1, len(wanted))) as pool:
            for number, started in zip(wanted, pool.map(self._start, wanted), strict=True):
                self._running[number] = started

    def kill(self, number: int) -> None:
        """By SIGKILL."""
        one = self._running.pop(number)
        kill_broker(one.state)
        assert one.guard is not None
        end_guard(one.guard)

    def stop(self) -> None:
        """All of them."""
        for number in self.running:
            one = self._running.pop(number)
            stop_broker(one.state, limit_s=_STOP_S)
            assert one.guard is not None
            end_guard(one.guard)

    def _seen(self, number: int) -> int:
        return self._advertised.get(number, self._ports[number])

    def _start(self, number: int) -> StartedBroker:
        port, controller = self._ports[number], self._controllers[number]
        seen = self._seen(number)
        voters = ",".join(f"{n}@{_HOST}:{self._controllers[n]}" for n in self.numbers)
        return start_broker(
            self.folder(number),
            StartOptions(
                port=port,
                port_is_fixed=True,
                settings={
                    "node.id": str(number),
                    "controller.quorum.voters": voters,
                    "listeners": f"PLAINTEXT://{_HOST}:{port},CONTROLLER://{_HOST}:{controller}",
                    "advertised.listeners": f"PLAINTEXT://{_HOST}:{seen}",
                },
                follow=True,
                cluster_id=self._cluster_id,
            ),
        )


def _free_ports(count: int) -> list[int]:
    candidates = random.sample(broker_limits.PORTS, len(broker_limits.PORTS))
    found: list[int] = []
    for port in candidates:
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports")
