"""Events and checkpoints of a job on a real broker, with real connections: `python -m benchmarks.events [--quick]`.

The subtasks are threads of a second process. Each round first times one fsynced append alone and one round trip on
the loopback device alone, on the same machine at the same moment: figures are given as multiples of these.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import click
from rich.console import Console

from coordlog.log.append_protocol import Place
from coordlog.log.appender import Appender, take_over
from coordlog.log.kafka import KafkaLog
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.schemas.validity import NOTHING_COUNTED

from .command import broker, broker_option, output_option
from .measured.connected import Connected, Watch
from .measured.events_job import SOURCE, Burst, Measured, RoundTrips, events_chain, tasks_chain
from .measured.records import JOB, encoded, epoch_started
from .results import Row, show, write

__all__ = ["EVENTS_FULL", "EVENTS_QUICK", "EventsPlan", "measure_events"]

RESULTS: Final = Path(__file__).parent / "events.json"
_LIMIT_S: Final = 120.0
_ECHO_BYTES: Final = 256
_APPENDS: Final = 30
"""Appends, and round trips on the loopback device, that a round times alone."""
_RECORDS_PER_ROUND_TRIP: Final = 3
"""The event down, its ack, the event up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPlan:
    """How much is measured."""

    rounds: int
    subtasks: tuple[int, ...]
    """Numbers of subtasks at which checkpoints are timed."""
    events_subtasks_max: int
    """Largest of them at which round trips are counted too."""
    single: int
    """Round trips with one outstanding, a round."""
    outstanding: int
    round_trips: int
    """Round trips with that many outstanding, a round."""
    burst: int
    """Events up, a round."""
    checkpoints: int
    """Checkpoints without held events, and as many with them, a round."""


EVENTS_FULL: Final = EventsPlan(
    rounds=5,
    subtasks=(1, 4, 16, 64, 256),
    events_subtasks_max=64,
    single=200,
    outstanding=1024,
    round_trips=6_144,
    burst=8_192,
    checkpoints=20,
)
EVENTS_QUICK: Final = EventsPlan(
    rounds=2,
    subtasks=(1, 16, 64),
    events_subtasks_max=64,
    single=100,
    outstanding=1024,
    round_trips=4_096,
    burst=4_096,
    checkpoints=10,
)
EVENTS_SHORT: Final = EventsPlan(
    rounds=1,
    subtasks=(1, 2),
    events_subtasks_max=2,
    single=5,
    outstanding=16,
    round_trips=64,
    burst=64,
    checkpoints=2,
)
"""For a test that all of it runs, not how fast."""


@dataclass(slots=True, eq=False)
class _Samples:
    """The rounds of one number of subtasks; milliseconds, or events a second."""

    append_ms: list[float] = field(default_factory=list)
    loopback_ms: list[float] = field(default_factory=list)
    group_rate: list[float] = field(default_factory=list)
    """Records a second of the log alone, in groups of 1000."""
    single_p50: list[float] = field(default_factory=list)
    single_p99: list[float] = field(default_factory=list)
    round_trips: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    """CPU of the driver's process for one of these round trips, all threads."""
    up: list[float] = field(default_factory=list)
    checkpoint: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)

    @property
    def base_ms(self) -> tuple[float, ...]:
        """One append and one loopback round trip, a round."""
        pairs = zip(self.append_ms, self.loopback_ms, strict=True)
        return tuple(append + loopback for append, loopback in pairs)


def measure_events(bootstrap_servers: str, plan: EventsPlan) -> list[Row]:
    """The figures of events and checkpoints, by the number of subtasks."""
    samples: dict[int, _Samples] = {subtasks: _Samples() for subtasks in plan.subtasks}
    with _bare_log(bootstrap_servers) as appender, _echo() as echo:
        for subtasks in plan.subtasks:
            with _running(bootstrap_servers, subtasks) as job:
                for number in range(-1, plan.rounds):
                    # The first round warms up, and is left out.
                    into = samples[subtasks] if number >= 0 else _Samples()
                    _take_bases(appender, echo, into)
                    if subtasks <= plan.events_subtasks_max:
                        job.time_events(plan, into)
                    job.time_checkpoints(plan.checkpoints, into)
    return [*_base_rows(samples[plan.subtasks[0]]), *_rows(samples, plan)]


# --- the bases -------------------------------------------------------------------------------------------------------
@contextmanager
def _bare_log(bootstrap_servers: str) -> Generator[Appender]:
    """An appender of a log of its own."""
    log = KafkaLog.for_job(f"{JOB}-{uuid.uuid4().hex[:8]}", bootstrap_servers)
    log.create()
    appender = take_over(
        log,
        job_id=JOB,
        place=Place(end_offset=0, counting=NOTHING_COUNTED),
        make_epoch_started=epoch_started,
        reading=lambda _record: None,
    )
    try:
        yield appender
    finally:
        appender.close()
        log.delete()
        log.close()


@contextmanager
def _echo() -> Generator[socket.socket]:
    """A connection over the loopback device to a thread that returns each byte."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := connection.recv(_ECHO_BYTES):
                    connection.sendall(data)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with socket.create_connection(listening.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection
        thread.join(_LIMIT_S)


def _take_bases(appender: Appender, echo: socket.socket, into: _Samples) -> None:
    records = encoded(appender.epoch, appender.counting.next_sequence, _APPENDS)
    times = []
    for record in records:
        began_s = time.perf_counter()
        appender.append((record,))
        times.append(time.perf_counter() - began_s)
    into.append_ms.append(1e3 * median(times))
    times = []
    for _ in range(_APPENDS):
        began_s = time.perf_counter()
        echo.sendall(bytes(_ECHO_BYTES))
        unread = _ECHO_BYTES
        while unread:
            unread -= len(echo.recv(unread))
        times.append(time.perf_counter() - began_s)
    into.loopback_ms.append(1e3 * median(times))
    group = encoded(appender.epoch, appender.counting.next_sequence, 1_000)
    began_s = time.perf_counter()
    appender.append(group)
    into.group_rate.append(len(group) / (time.perf_counter() - began_s))


# --- the job ---------------------------------------------------------------------------------------------------------
class _Running:
    """A job whose attempts are all ready."""

    def __init__(self, driver: JobDriver, measured: Measured) -> None:
        self._driver, self._measured = driver, measured

    def time_events(self, plan: EventsPlan, into: _Samples) -> None:
        """Round trips, one and many at a time, and events up."""
        measured = self._measured
        self._run(RoundTrips(count=plan.single, outstanding=1))
        cuts = quantiles(measured.round_trip_s, n=100)
        into.single_p50.append(1e3 * cuts[49])
        into.single_p99.append(1e3 * cuts[98])
        cpu_s = time.process_time()
        self._run(RoundTrips(count=plan.round_trips, outstanding=plan.outstanding))
        cpu_s = time.process_time() - cpu_s
        into.cpu_us.append(1e6 * cpu_s / plan.round_trips)
        # From the moment on at which all of the first ones have come back.
        into.round_trips.append(_rate(measured.handled_s[plan.outstanding - 1 :]))
        self._run(Burst(count=plan.burst))
        into.up.append(_rate(measured.handled_s))

    def _run(self, order: Payload) -> None:
        self._driver.request(SOURCE, order)
        if not self._measured.done.wait(_LIMIT_S):
            raise TimeoutError(f"{order} was not done within {_LIMIT_S:g} s")

    def time_checkpoints(self, count: int, into: _Samples) -> None:
        """Checkpoints without other load, then the same with an event for each subtask inside the cut.

        The next of these is triggered after the acks: a checkpoint waits for the events before its own cut too.
        """
        into.checkpoint.append(1e3 * median(self._checkpoint() for _ in range(count)))
        measured = self._measured
        measured.held_s.clear()
        measured.is_holding = True
        for _ in range(count):
            self._checkpoint()
            if not measured.all_acked.wait(_LIMIT_S):
                raise TimeoutError(f"events of a cut were not acked within {_LIMIT_S:g} s")
        measured.is_holding = False
        into.held.append(1e3 * median(measured.held_s))

    def _checkpoint(self) -> float:
        """Seconds from the trigger until the checkpoint is completed in the log."""
        began_s = time.perf_counter()
        if self._driver.trigger_checkpoint().wait(_LIMIT_S) is None:
            raise TimeoutError(f"no checkpoint completed within {_LIMIT_S:g} s")
        return time.perf_counter() - began_s


@contextmanager
def _running(bootstrap_servers: str, subtasks: int) -> Generator[_Running]:
    job_id = f"events-{uuid.uuid4().hex[:8]}"
    log = KafkaLog.for_job(job_id, bootstrap_servers)
    log.create()
    measured, watch = Measured(), Watch()
    driver = JobDriver(
        chain=events_chain(measured),
        log=log,
        options=DriverOptions(
            job_id=job_id,
            parallelism=subtasks,
            is_batch=False,
            runtime=RuntimeOptions(snapshot_every=None),
        ),
        surroundings=Connected(job_id, subtasks, tasks_chain),
        on_released=watch.released,
    )
    try:
        watch.timed_ms(Kind.ATTEMPT_STARTED, subtasks, driver.start)
        yield _Running(driver, measured)
        driver.stop(with_checkpoint=False)
        driver.wait(_LIMIT_S)
    finally:
        driver.close()
        log.delete()
        log.close()


def _rate(times_s: Sequence[float]) -> float:
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])


# --- the table -------------------------------------------------------------------------------------------------------
def _base_rows(samples: _Samples) -> list[Row]:
    return [
        Row(
            name="one append, fsync, beside one loopback round trip",
            unit="ms",
            ours=tuple(samples.append_ms),
            raw=tuple(samples.loopback_ms),
            raw_is="256 bytes there and back between two threads",
            better="lower",
            target=None,
        )
    ]


def _rows(samples: dict[int, _Samples], plan: EventsPlan) -> list[Row]:
    rows: list[Row] = []
    alone = samples[plan.subtasks[0]]
    for subtasks, found in samples.items():
        at = f"{subtasks} subtask{'s' if subtasks > 1 else ''}"
        based = "one append and one loopback round trip"
        if found.round_trips:
            rows += [
                _row(f"round trip, p50, {at}", "ms", found.single_p50, found.base_ms, based, 1.3),
                _row(f"round trip, p99, {at}", "ms", found.single_p99, found.base_ms, based),
                _rate_row(
                    f"round trips, {plan.outstanding} outstanding, {at}",
                    found.round_trips,
                    alone.round_trips if found is not alone else _third(found.group_rate),
                    "the same at 1 subtask" if found is not alone else "their records, appended",
                    0.8 if found is not alone else None,
                ),
                _row(
                    f"driver's CPU for one of these, {at}",
                    "µs",
                    found.cpu_us,
                    alone.cpu_us,
                    "the same at 1 subtask",
                ),
                _rate_row(f"events up, {at}", found.up, found.group_rate, "plain appends"),
            ]
        rows += [
            _row(f"checkpoint, p50, {at}", "ms", found.checkpoint, found.base_ms, based),
            _row(f"event inside the cut, p50, {at}", "ms", found.held, found.base_ms, based),
        ]
    return rows


def _third(rates: Sequence[float]) -> list[float]:
    return [rate / _RECORDS_PER_ROUND_TRIP for rate in rates]


def _row(
    name: str,
    unit: str,
    ours: Sequence[float],
    raw: Sequence[float],
    raw_is: str,
    target: float | None = None,
) -> Row:
    return Row(
        name=name,
        unit=unit,
        ours=tuple(ours),
        raw=tuple(raw),
        raw_is=raw_is,
        better="lower",
        target=target,
    )


def _rate_row(
    name: str, ours: Sequence[float], raw: Sequence[float], raw_is: str, target: float | None = None
) -> Row:
    return Row(
        name=name,
        unit="/s",
        ours=tuple(ours),
        raw=tuple(raw),
        raw_is=raw_is,
        better="higher",
        target=target,
    )


@click.command()
@click.option("--quick", is_flag=True, help="Two rounds at three sizes: a minute, and less exact.")
@click.option("--short", is_flag=True, help="One round of few events: shows that all of it runs.")
@broker_option
@output_option(RESULTS)
def main(*, quick: bool, short: bool, bootstrap_servers: str | None, output: Path) -> None:
    """Time round trips, events up and checkpoints of a job with real connections and a real log."""
    console = Console(width=110)
    plan = EVENTS_SHORT if short else EVENTS_QUICK if quick else EVENTS_FULL
    with broker(bootstrap_servers) as servers:
        rows = measure_events(servers, plan)
    show(rows, console, "events and checkpoints")
    write(rows, output, quick=quick or short)
    console.print(f"written to {output}")


if __name__ == "__main__":
    main()
