"""The faults, each a function that breaks one thing while a job runs, and mends it."""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos.child import wait_until
from chaos.driver_process import DriverProcess, Orders
from chaos.ground import Ground
from chaos.job_parts import Folders

__all__ = ["OF_ONE_BROKER", "OF_THREE_BROKERS", "ChaosError", "Fault", "Scene"]

APPEND_TIMEOUT_S = 3.0
LOG_TIMEOUT_S = 90.0
_BEGINS_S = 90.0
_ENDS_S = 60.0
_SETTLES_S = 1.0
"""After so long without a broker every answer that was on its way has been taken."""


class ChaosError(Exception):
    """What must not be."""


@dataclass(kw_only=True)
class Scene:
    """One job on its ground, while a fault is at work."""

    ground: Ground
    folders: Folders
    orders: Orders
    chance: random.Random
    drivers: list[DriverProcess] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """By which drivers have ended."""
    is_over: bool = False
    """The fault ends the job."""

    @property
    def topic(self) -> str:
        """The job's."""
        return f"{self.orders.job_id}.log"

    @property
    def driver(self) -> DriverProcess:
        """The last one."""
        return self.drivers[-1]

    @property
    def released(self) -> int:
        """How many records all drivers have released."""
        return sum(len(one.released) for one in self.drivers)

    def start(self, *, ahead_s: float = 0.0) -> DriverProcess:
        """Another driver."""
        number = len(self.drivers)
        orders = dataclasses.replace(
            self.orders, name=f"driver-{number}", makes_topic=number == 0, ahead_s=ahead_s
        )
        self.drivers.append(DriverProcess(orders))
        return self.driver

    def work(self, records: int) -> None:
        """Wait until so many more have been released, or the driver has ended."""
        wanted = self.released + records
        wait_until(
            lambda: self.released >= wanted or self.driver.has_ended, _BEGINS_S, "more is released"
        )

    def ended_with(self, statuses: set[int]) -> str:
        """The one line by which the driver ends now, by itself.

        Raises:
            ChaosError: It does not, or not so.
        """
        driver = self.driver
        if driver.wait(_ENDS_S) is None:
            raise ChaosError(f"the driver has not ended within {_ENDS_S:g} s")
        if driver.status not in statuses or not driver.error or "a fault" in driver.error:
            raise ChaosError(
                f"the driver ended with {driver.status}: {driver.error or driver.output[-2000:]}"
            )
        if "Traceback" in driver.output:
            raise ChaosError(f"the driver ended with more than one clear error: {driver.output}")
        self.errors.append(driver.error)
        return driver.error

    @contextmanager
    def nothing_released(self) -> Iterator[None]:
        """Within the block the broker is gone: nothing may be released.

        Raises:
            ChaosError: Something is.
        """
        time.sleep(_SETTLES_S)
        before = self.released
        yield
        if self.released != before:
            raise ChaosError(f"{self.released - before} records released while no broker answers")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind."""

    name: str
    act: Callable[[Scene], None]
    needs_disk: bool = False


def _kill_broker(scene: Scene) -> None:
    """While it appends."""
    scene.ground.cluster.kill(1)
    with scene.nothing_released():
        time.sleep(scene.chance.uniform(0.0, 1.0))
    scene.ground.cluster.start([1])


def _kill_broker_in_restore(scene: Scene) -> None:
    scene.driver.end()
    scene.start()
    time.sleep(scene.chance.uniform(0.0, 1.0))
    scene.ground.cluster.kill(1)
    time.sleep(scene.chance.uniform(0.0, 1.0))
    scene.ground.cluster.start([1])


def _slow_network(scene: Scene) -> None:
    assert scene.ground.proxy is not None
    scene.ground.proxy.delay_s = scene.chance.uniform(0.02, 0.3)
    time.sleep(scene.chance.uniform(1.0, 4.0))


def _cut_connections(scene: Scene) -> None:
    assert scene.ground.proxy is not None
    for _ in range(scene.chance.randint(1, 8)):
        scene.ground.proxy.cut()
        time.sleep(scene.chance.uniform(0.0, 0.3))


def _half_open(scene: Scene) -> None:
    assert scene.ground.proxy is not None
    scene.ground.proxy.half_open()
    with scene.nothing_released():
        time.sleep(scene.chance.uniform(0.2, 2 * APPEND_TIMEOUT_S))
    scene.ground.proxy.heal()


def _lower_message_bytes(scene: Scene) -> None:
    """A driver ends by what the broker refuses; the next is refused by the topic's setting."""
    ground, topic = scene.ground, scene.topic
    ground.set_topic(topic, {"max.message.bytes": "300"})
    error = scene.ended_with({1})
    if "refuses records for good" not in error:
        raise ChaosError(f"not what the broker refused: {error}")
    scene.start()
    error = scene.ended_with({1})
    if "max.message.bytes is 300" not in error:
        raise ChaosError(f"not the setting that is wrong: {error}")
    ground.set_topic(topic, {"max.message.bytes": "1048588"})


def _wrong_clock(scene: Scene) -> None:
    """One driver's clock is two hours ahead or behind; the next one's is right."""
    scene.driver.end()
    scene.start(ahead_s=scene.chance.choice((7200.0, -7200.0)))
    scene.work(scene.chance.randint(10, 60))
    scene.driver.end()


def _crash_machine(scene: Scene) -> None:
    """What the broker's disk had not been given is gone."""
    ground, driver = scene.ground, scene.driver
    assert ground.disk is not None
    driver.signal(signal.SIGSTOP)
    ground.cluster.signal(1, signal.SIGSTOP)
    copied = ground.disk.copy()
    ground.cluster.kill(1)
    ground.disk.put_in_place(copied)
    if scene.chance.random() < 0.5:
        driver.end()  # it was on the same machine
    driver.signal(signal.SIGCONT)
    ground.cluster.start([1])


def _fill_disk(scene: Scene) -> None:
    ground = scene.ground
    assert ground.disk is not None
    ground.disk.fill()
    time.sleep(scene.chance.uniform(1.0, 4.0))
    ground.disk.free()
    # It ends itself when its only folder has failed; where it has not noticed, it goes on.
    time.sleep(_SETTLES_S)
    if not ground.cluster.is_alive(1):
        ground.cluster.kill(1)
        ground.cluster.start([1])


def _delete_topic(scene: Scene) -> None:
    scene.ground.delete_topic(scene.topic)
    scene.ended_with({1})
    scene.start()
    error = scene.ended_with({1})
    if "there is no such topic" not in error:
        raise ChaosError(f"not that the topic is missing: {error}")
    scene.is_over = True


def _kill_driver(scene: Scene) -> None:
    scene.driver.end()


def _move_leader(scene: Scene) -> None:
    scene.ground.move_leader(scene.topic)


def _kill_leader(scene: Scene) -> None:
    number = scene.ground.leader(scene.topic)
    scene.ground.cluster.kill(number)
    time.sleep(scene.chance.uniform(0.0, 8.0))
    scene.ground.cluster.start([number])


def _kill_any(scene: Scene) -> None:
    number = scene.chance.choice(scene.ground.cluster.numbers)
    scene.ground.cluster.kill(number)
    time.sleep(scene.chance.uniform(0.0, 8.0))
    scene.ground.cluster.start([number])


def _kill_two(scene: Scene) -> None:
    numbers = scene.chance.sample(scene.ground.cluster.numbers, 2)
    for number in numbers:
        scene.ground.cluster.kill(number)
    with scene.nothing_released():
        time.sleep(scene.chance.uniform(0.5, 4.0))
    scene.ground.cluster.start(numbers)


OF_ONE_BROKER = (
    Fault("broker killed during appends", _kill_broker),
    Fault("broker killed during a restore", _kill_broker_in_restore),
    Fault("slow network", _slow_network),
    Fault("connections cut", _cut_connections),
    Fault("connections half-open", _half_open),
    Fault("max.message.bytes lowered", _lower_message_bytes),
    Fault("driver's clock two hours off", _wrong_clock),
    Fault("machine crash", _crash_machine, needs_disk=True),
    Fault("disk full", _fill_disk, needs_disk=True),
    Fault("topic deleted", _delete_topic),
    Fault("driver killed", _kill_driver),
)
OF_THREE_BROKERS = (
    Fault("leader moved", _move_leader),
    Fault("leader killed", _kill_leader),
    Fault("a broker killed", _kill_any),
    Fault("two of three down and back", _kill_two),
)


def orders_of(job_id: str, servers: str, root: Path) -> Orders:
    """A driver's, but for its name."""
    return Orders(
        name="",
        root=str(root),
        job_id=job_id,
        bootstrap_servers=servers,
        batch_s=0.05,
        log_timeout_s=LOG_TIMEOUT_S,
        append_timeout_s=APPEND_TIMEOUT_S,
        take_over=True,
    )
