"""What many subtasks cost the driver: `python -m benchmarks.scale [--quick]`.

Registration, a checkpoint and a global failover of a job of so many subtasks, each timed until the last record of it
has counted; and the driver's resident memory for one more subtask. Simulated: a subtask answers within the call that
speaks to it, so that what is left is the driver. Connected: real tasks in a process of their own, each with its
connection to the driver's endpoint, with and without TLS. The log is in memory: what Kafka adds, `make bench` tells.
"""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
)
from coordlog.api.operator import OperatorContext, Poll, PollStatus, SourceReader
from coordlog.log.memory import MemoryLog
from coordlog.messages import AckCheckpoint, DownMessage, InjectBarrier, Register
from coordlog.projections.job.state import JobState
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.mailbox import Mailbox
from coordlog.runtime.ports import Connections, Stage
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import AttemptSnapshot, OperatorState
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind

from .measured.connected import Connected, Watch

RESULTS: Final = Path(__file__).parent / "scale.json"
_JOB: Final = "scale"
_STATE_BYTES: Final = 100
_LIMIT_S: Final = 120.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one number of subtasks came to; milliseconds are medians over the rounds, the registration is one."""

    transport: str
    subtasks: int
    registration_ms: float
    checkpoint_ms: float
    failover_ms: float
    memory_bytes: int
    """Of the driver, once all attempts live and checkpoints have completed."""


# --- the job: a source that waits ----------------------------------------------------------------------------------
class _Waiting(SourceReader):
    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Nothing is restored."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """None come."""

    def poll(self) -> Poll:
        """Nothing to read, ever."""
        return Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Some bytes."""
        return bytes(_STATE_BYTES)


class _Coordinator(OperatorCoordinator):
    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """None comes."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(bytes(_STATE_BYTES))

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Nothing is restored."""


class Provider(CoordinatorProvider):
    """Provider of a coordinator that does nothing."""

    operator_id = "source"
    payload_types: tuple[type[Payload], ...] = ()

    def __init__(self) -> None:
        self.newest: CoordinatorContext | None = None

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """See `CoordinatorProvider`."""
        self.newest = context
        return _Coordinator(context)


def chain_of(provider: Provider) -> Chain:
    """The chain of a job whose source waits for ever."""
    source = SourceSpec(operator_id="source", create_reader=_Waiting, coordinator=provider)
    return Chain(source=source, operators=[])


def _waiting_chain() -> Chain:
    """The chain as tasks build it."""
    return chain_of(Provider())


# --- subtasks that are simulated -----------------------------------------------------------------------------------
class Simulated:
    """`Surroundings`, `Connections` and `Stage` whose subtasks answer at once."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism, self._ids = parallelism, count(1)
        self._mailbox: Mailbox | None = None
        self._driver_id = ""
        self._live: list[int] = []

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        self._driver_id, self._mailbox = driver_id, mailbox
        return "memory"

    def took_over(self) -> None:
        """See `Surroundings`."""

    def connections(self) -> Connections:
        """See `Surroundings`."""
        return self

    def stage(self) -> Stage:
        """See `Surroundings`."""
        return self

    def is_driver_alive(self, state: JobState) -> bool:
        """Nobody else is there."""
        return False

    def end(self) -> None:
        """See `Surroundings`."""

    def send(self, connection_id: int, message: DownMessage) -> None:
        """Ack a barrier; take note of nothing else."""
        if isinstance(message, InjectBarrier):
            states = [OperatorState(operator_id="source", state=bytes(_STATE_BYTES))]
            self._to.arrived(
                connection_id,
                AckCheckpoint(
                    checkpoint_id=message.checkpoint_id,
                    last_barrier=message.checkpoint_id,
                    snapshot=AttemptSnapshot(states=states, committables=[]),
                ),
            )

    def close(self, connection_id: int) -> None:
        """See `Connections`."""

    def released(self, connection_id: int, message_count: int) -> None:
        """See `Connections`."""

    def submit(self, stage_run: int) -> None:
        """All subtasks register."""
        self._live = [next(self._ids) for _ in range(self._parallelism)]
        for subtask, connection_id in enumerate(self._live):
            self._to.arrived(connection_id, _register(self._driver_id, subtask, stage_run))

    def cancel(self, stage_run: int, reason: str) -> None:
        """All are gone."""
        for connection_id in self._live:
            self._to.connection_lost(connection_id, reason)
        self._live = []
        self._to.stage_ended(stage_run, reason)

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """See `Stage`."""

    @property
    def _to(self) -> Mailbox:
        assert self._mailbox is not None, "begun"
        return self._mailbox


def _register(driver_id: str, subtask: int, stage_run: int) -> Register:
    return Register(
        driver_id=driver_id,
        subtask=subtask,
        stage_run=stage_run,
        task_attempt_id=subtask,
        spark_attempt_number=0,
        host="simulated",
        pid=0,
    )


# --- measuring -----------------------------------------------------------------------------------------------------
def _measure(transport: str, subtasks: int, rounds: int) -> Figures:
    provider, watch = Provider(), Watch()
    surroundings: Simulated | Connected = (
        Simulated(subtasks)
        if transport == "simulated"
        else Connected(_JOB, subtasks, _waiting_chain, is_encrypted=transport == "connected, TLS")
    )
    driver = JobDriver(
        chain=chain_of(provider),
        log=MemoryLog(_JOB),
        options=DriverOptions(
            job_id=_JOB,
            parallelism=subtasks,
            is_batch=False,
            restarts_max=1000,
            restart_backoff_s=0.0,
            runtime=RuntimeOptions(checkpoint_interval_s=None, snapshot_every=None),
        ),
        surroundings=surroundings,
        on_released=watch.released,
    )

    def fail() -> None:
        assert provider.newest is not None, "started"
        provider.newest.fail_job("a global failover, to be timed")

    def checkpoint() -> float:
        return watch.timed_ms(Kind.CHECKPOINT_COMPLETED, 1, driver.trigger_checkpoint)

    registration_ms = watch.timed_ms(Kind.ATTEMPT_STARTED, subtasks, driver.start)
    checkpoints = [checkpoint() for _ in range(rounds)]
    memory_bytes = _resident_bytes()
    failovers = [watch.timed_ms(Kind.ATTEMPT_STARTED, subtasks, fail) for _ in range(rounds)]
    driver.stop(with_checkpoint=False)
    driver.wait(_LIMIT_S)
    return Figures(
        transport=transport,
        subtasks=subtasks,
        registration_ms=registration_ms,
        checkpoint_ms=median(checkpoints),
        failover_ms=median(failovers),
        memory_bytes=memory_bytes,
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * _PAGE_BYTES


def _measured_alone(transport: str, subtasks: int, rounds: int) -> Figures:
    """In a process of its own, so that its memory is that of one job."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_send_measured, args=(its, transport, subtasks, rounds))
    process.start()
    its.close()
    try:
        return Figures(**ours.recv())
    finally:
        process.join(_LIMIT_S)


def _send_measured(channel: Connection, transport: str, subtasks: int, rounds: int) -> None:
    channel.send(asdict(_measure(transport, subtasks, rounds)))


@click.command()
@click.option("--quick", is_flag=True, help="Two rounds: less exact.")
@click.option(
    "--simulated", default="64,256", show_default=True, help="Numbers of simulated subtasks."
)
def main(*, quick: bool, simulated: str) -> None:
    """Time registration, checkpoint and failover by the number of subtasks, and weigh one."""
    rounds, console = 2 if quick else 9, Console(width=110)
    table = Table(title="the driver by the number of subtasks")
    for title in ("subtasks", "", "registration", "checkpoint", "global failover", "for each"):
        table.add_column(title, justify="left" if not title else "right")
    rows: list[dict[str, object]] = []
    for transport, numbers in (
        ("simulated", tuple(map(int, simulated.split(",")))),
        ("connected", (64,)),
        ("connected, TLS", (64,)),
    ):
        alone = _measured_alone(transport, 1, rounds)
        for subtasks in numbers:
            found = _measured_alone(transport, subtasks, rounds)
            each = (found.memory_bytes - alone.memory_bytes) / (subtasks - 1)
            table.add_row(
                str(subtasks),
                transport,
                *(
                    f"{one:,.0f} ms"
                    for one in (found.registration_ms, found.checkpoint_ms, found.failover_ms)
                ),
                f"{each / 1024:,.0f} KiB",
            )
            rows.append({**asdict(found), "memory_bytes_each": each})
    console.print(table)
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()}
    text = json.dumps({"quick": quick, "machine": machine, "rows": rows}, indent=2)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    console.print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
