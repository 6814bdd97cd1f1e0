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
_HOLDS_S = 60.0
_WORKS_ON = 10
"""Records, without the broker that is away."""
_LONG_HISTORY = 200
"""In records: the step in a long reading comes in each restore of it."""


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
    cut_bytes: int = 0
    """Of the job's log, that a broker's disk had not been given when its machine crashed."""

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

    def start(
        self, *, ahead_s: float = 0.0, pause_at: tuple[str, int] | None = None
    ) -> DriverProcess:
        """Another driver."""
        number = len(self.drivers)
        orders = dataclasses.replace(
            self.orders,
            name=f"driver-{number}",
            makes_topic=number == 0,
            ahead_s=ahead_s,
            pause_at=pause_at,
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
    has_snapshots: bool = True
    """Whether the job's drivers take any."""


def _kill_broker(scene: Scene) -> None:
    """While it appends."""
    scene.ground.cluster.kill(1)
    with scene.nothing_released():
        time.sleep(scene.chance.uniform(0.0, 1.0))
    scene.ground.cluster.start([1])


def _kill_broker_in_restore(scene: Scene) -> None:
    """The driver stands still in the midst of its reading: of what is left it has a fraction."""
    cluster = scene.ground.cluster
    scene.work(_LONG_HISTORY - scene.released)
    scene.driver.end()
    number = scene.ground.leader(scene.topic)
    driver = scene.start(pause_at=("in a long reading", 1))
    wait_until(lambda: driver.is_stopped or driver.has_ended, _BEGINS_S, "the driver restores")
    if not driver.is_stopped:
        raise ChaosError(f"the driver ended before it restored: {driver.error or driver.output}")
    cluster.kill(number)
    before = _readings(driver)
    driver.signal(signal.SIGCONT)
    time.sleep(_SETTLES_S + scene.chance.uniform(0.0, 2.0))
    if not cluster.running and _readings(driver) != before:
        raise ChaosError("the driver has read all that it needs although no broker runs")
    cluster.start([number])


def _readings(driver: DriverProcess) -> int:
    """How many it has done, each to its end."""
    return sum("read" in one for one in driver.notes)


def _slow_network(scene: Scene) -> None:
    for proxy in scene.ground.proxies.values():
        proxy.delay_s = scene.chance.uniform(0.02, 0.3)
    time.sleep(scene.chance.uniform(1.0, 4.0))


def _cut_connections(scene: Scene) -> None:
    for _ in range(scene.chance.randint(1, 8)):
        for proxy in scene.ground.proxies.values():
            proxy.cut()
        time.sleep(scene.chance.uniform(0.0, 0.3))


def _half_open(scene: Scene) -> None:
    for proxy in scene.ground.proxies.values():
        proxy.half_open()
    with scene.nothing_released():
        time.sleep(scene.chance.uniform(0.2, 2 * APPEND_TIMEOUT_S))
    for proxy in scene.ground.proxies.values():
        proxy.heal()


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
    """What the only broker's disk had not been given is gone."""
    driver = scene.driver
    driver.signal(signal.SIGSTOP)
    _cut_back(scene, 1)
    if scene.chance.random() < 0.5:
        driver.end()  # it was on the same machine
    driver.signal(signal.SIGCONT)
    scene.ground.cluster.start([1])


def _crash_leader(scene: Scene) -> None:
    """One of three machines; the job goes on by the two others, or waits until they know."""
    _crash_replica(scene, scene.ground.leader(scene.topic))


def _crash_follower(scene: Scene) -> None:
    leader = scene.ground.leader(scene.topic)
    others = [one for one in scene.ground.cluster.numbers if one != leader]
    _crash_replica(scene, scene.chance.choice(others))


def _crash_replica(scene: Scene, number: int) -> None:
    """It comes back with less than it had acknowledged, and in half of the rounds leads at the end."""
    _cut_back(scene, number)
    time.sleep(scene.chance.choice((0.0, scene.chance.uniform(0.0, 8.0))))
    scene.ground.cluster.start([number])
    if scene.chance.random() < 0.5:
        scene.ground.move_leader(scene.topic, to=number)


def _cut_back(scene: Scene, number: int) -> None:
    """A broker is gone, and what its disk had not been given."""
    cluster, disk = scene.ground.cluster, scene.ground.disks[number]
    cluster.signal(number, signal.SIGSTOP)
    before = _log_bytes(scene, number)
    copied = disk.copy()
    cluster.kill(number)
    disk.put_in_place(copied)
    scene.cut_bytes += before - _log_bytes(scene, number)


def _log_bytes(scene: Scene, number: int) -> int:
    """How long the job's log is in a broker's files."""
    folder = scene.ground.cluster.folder(number) / "data" / f"{scene.topic}-0"
    return sum(one.stat().st_size for one in folder.glob("*.log"))


def _fill_disk(scene: Scene) -> None:
    """The leader's. Alone it acknowledges nothing until there is room; of three another one leads."""
    ground, cluster = scene.ground, scene.ground.cluster
    number = ground.leader(scene.topic)
    disk = ground.disks[number]
    disk.fill()
    if not disk.is_full:
        raise ChaosError(f"broker {number}'s disk is not full")
    # It ends itself when its only folder has failed.
    wait_until(lambda: not cluster.is_alive(number), _HOLDS_S, "the broker fails by its full disk")
    if len(cluster.numbers) == 1:
        with scene.nothing_released():
            time.sleep(scene.chance.uniform(0.0, 3.0))
    else:
        scene.work(_WORKS_ON)
    disk.free()
    cluster.kill(number)
    cluster.start([number])


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


_ON_EITHER = (
    Fault("broker killed during a restore", _kill_broker_in_restore, has_snapshots=False),
    Fault("slow network", _slow_network),
    Fault("connections cut", _cut_connections),
    Fault("connections half-open", _half_open),
    Fault("max.message.bytes lowered", _lower_message_bytes),
    Fault("driver's clock two hours off", _wrong_clock),
    Fault("disk full", _fill_disk, needs_disk=True),
    Fault("topic deleted", _delete_topic),
    Fault("driver killed", _kill_driver),
)
OF_ONE_BROKER = (
    Fault("machine crash", _crash_machine, needs_disk=True),
    Fault("broker killed during appends", _kill_broker),
    *_ON_EITHER,
)
OF_THREE_BROKERS = (
    Fault("leader moved", _move_leader),
    Fault("leader killed", _kill_leader),
    Fault("a broker killed", _kill_any),
    Fault("two of three down and back", _kill_two),
    Fault("machine crash of the leader", _crash_leader, needs_disk=True),
    Fault("machine crash of a follower", _crash_follower, needs_disk=True),
    *_ON_EITHER,
)


def orders_of(job_id: str, servers: str, root: Path, *, has_snapshots: bool) -> Orders:
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
        has_snapshots=has_snapshots,
    )
