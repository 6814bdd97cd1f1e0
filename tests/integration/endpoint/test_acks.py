"""Acks that take their time, in memory and over a real connection (clause C4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.api.operator import Operator, OperatorContext, Poll, PollStatus, SourceReader
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import CoordlogError
from coordlog.limits import CALL_TIMEOUT_S
from coordlog.log.memory import MemoryLog
from coordlog.messages import DownMessage, Marker
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.mailbox import Mailbox
from coordlog.runtime.ports import Connections
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import EnumeratorState, SplitsDiscovered
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.task.task import TaskChain, TaskIds, TaskWork, run_task
from coordlog.testing.in_memory import InMemorySurroundings
from fakes.endpoint_parts import TOKEN, wait_for

pytestmark = [pytest.mark.clause("C4"), pytest.mark.slow]

ACK_TIMEOUT_S = 0.2


@dataclass(slots=True)
class Script:
    """What the parts of the job wait for, and tell."""

    process: Callable[[], None] = lambda: None
    handle: Callable[[], None] = lambda: None
    hear: Callable[[], None] = lambda: None
    says_in: str = ""
    """The call in which the operator sends an event up: `open`, `process`, or none."""
    is_replying: bool = False
    """Whether the coordinator sends its event when it has heard that one, in place of at the attempt's start."""
    handled: threading.Event = field(default_factory=threading.Event)
    records: list[Record] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)

    def has(self, kind: Kind) -> bool:
        """Whether a record of this kind is released."""
        return any(record.kind is kind for record in list(self.records))

    def reasons(self) -> list[str | None]:
        """Why attempts have failed."""
        return [one.reason for one in list(self.records) if one.kind is Kind.ATTEMPT_FAILED]


class Coordinator(OperatorCoordinator):
    """Sends one event to each attempt."""

    gateway: SubtaskGateway

    def __init__(self, script: Script) -> None:
        self._script = script

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Send it, or later."""
        self.gateway = gateway
        if not self._script.is_replying:
            gateway.send_event(EnumeratorState(content=b"down"))

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """As the script says."""
        self._script.hear()
        if self._script.is_replying:
            self.gateway.send_event(EnumeratorState(content=b"down"))

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Nothing to keep."""
        result.complete(b"")


class Provider(CoordinatorProvider):
    """Of `Coordinator`."""

    operator_id = "operator"
    payload_types: tuple[type[Payload], ...] = (EnumeratorState,)

    def __init__(self, script: Script) -> None:
        self._script = script

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """One for each driver."""
        return Coordinator(self._script)


class OneBatch(SourceReader):
    """One batch, then nothing, for ever."""

    is_read = False

    def add_splits(self, splits: object) -> None:
        """None come."""

    def poll(self) -> Poll:
        """The batch first."""
        if self.is_read:
            return Poll(status=PollStatus.WAITING, retry_s=0.01)
        self.is_read = True
        return Poll(status=PollStatus.BATCH, batch=pa.record_batch({"a": [1]}))

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Nothing to keep."""
        return b""


class Scripted(Operator):
    """Does in each call as the script says."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Send up what the script says."""
        self._context = context
        self._say("open")

    def _say(self, call: str) -> None:
        if self._script.says_in == call:
            self._context.send_event(EnumeratorState(content=b"up"))

    def handle_event(self, event: Payload) -> None:
        """As the script says."""
        self._script.handle()
        self._script.handled.set()

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """As the script says."""
        self._say("process")
        self._script.process()
        return ()


class Tasks(InMemorySurroundings):
    """Tasks that are threads; the markers that are sent to them are kept."""

    script: Script

    def send(self, connection_id: int, message: DownMessage) -> None:
        """See `Connections`."""
        if isinstance(message, Marker):
            self.script.markers.append(message)
        super().send(connection_id, message)


class ConnectedTasks(Tasks):
    """Tasks that are threads, each with a real connection to a real endpoint."""

    endpoint: Endpoint

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        super().begin(driver_id, mailbox)
        self.endpoint = Endpoint(
            job_id="job", driver_id=driver_id, token=TOKEN, arrivals=mailbox, heartbeat_s=0.1
        )
        return self.endpoint.start()

    def connections(self) -> Connections:
        """See `Surroundings`."""
        return self

    def send(self, connection_id: int, message: DownMessage) -> None:
        """See `Connections`."""
        if isinstance(message, Marker):
            self.script.markers.append(message)
        self.endpoint.send(connection_id, message)

    def close(self, connection_id: int) -> None:
        """See `Connections`."""
        self.endpoint.close(connection_id)

    def released(self, connection_id: int, message_count: int) -> None:
        """See `Connections`."""
        self.endpoint.released(connection_id, message_count)

    def _run_attempt(self, stage_run: int, subtask: int, failures: int) -> bool:
        with self._lock:
            task_attempt_id = next(self._tasks)
        work = TaskWork(
            job_id="job",
            driver_id=self._driver_id,
            stage_run=stage_run,
            endpoint=self.endpoint.address,
            token=TOKEN,
            chain=TaskChain.of(self._chain),
            heartbeat_s=0.1,
            call_timeout_s=self._call_timeout_s,
        )
        ids = TaskIds(
            subtask=subtask, task_attempt_id=task_attempt_id, spark_attempt_number=failures
        )
        try:
            run_task(work, ids)
        except CoordlogError:
            return False
        return True

    def end(self) -> None:
        """See `Surroundings`."""
        self._is_over = True
        self.endpoint.stop()
        super().end()


@contextmanager
def running(
    world: type[Tasks], script: Script, *, call_timeout_s: float = CALL_TIMEOUT_S
) -> Iterator[JobDriver]:
    """The job, under a driver."""
    chain = Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=OneBatch,
            coordinator=SplitCoordinatorProvider(
                "source",
                discover=lambda: SplitsDiscovered(splits=[], is_complete=True),
                allow_empty=True,
            ),
        ),
        operators=[
            OperatorSpec(
                operator_id="operator",
                create_operator=lambda: Scripted(script),
                coordinator=Provider(script),
            )
        ],
    )
    surroundings = world(chain, "job", 1, call_timeout_s=call_timeout_s)
    surroundings.script = script
    driver = JobDriver(
        chain=chain,
        log=MemoryLog("job"),
        options=DriverOptions(
            job_id="job",
            parallelism=1,
            is_batch=False,
            runtime=RuntimeOptions(ack_timeout_s=ACK_TIMEOUT_S),
        ),
        surroundings=surroundings,
        on_released=script.records.extend,
    )
    driver.start()
    try:
        yield driver
    finally:
        driver.end_at_once(by="the test")
        driver.wait()


def _nothing() -> SplitsDiscovered:
    return SplitsDiscovered(splits=[], is_complete=True)


def _wait(event: threading.Event) -> None:
    assert event.wait(20)


WORLDS = pytest.mark.parametrize("world", [Tasks, ConnectedTasks])


@WORLDS
def test_an_ack_that_waits_in_the_drivers_own_queue_is_not_missing(world: type[Tasks]) -> None:
    script = Script(says_in="open")

    def hear() -> None:
        # The mailbox is here until the event is handled, and well beyond the timeout: its ack waits behind this.
        assert script.handled.wait(20)
        threading.Event().wait(2 * ACK_TIMEOUT_S)

    script.hear = hear
    with running(world, script):
        wait_for(
            lambda: script.has(Kind.EVENT_ACKED) or script.reasons(), "the ack counts, or is missed"
        )

    assert script.reasons() == []


@WORLDS
def test_an_attempt_inside_one_long_call_does_not_miss_an_ack(world: type[Tasks]) -> None:
    is_released = threading.Event()
    script = Script(
        says_in="process",
        is_replying=True,
        process=lambda: _wait(is_released),
    )
    with running(world, script):
        try:
            wait_for(lambda: script.markers or script.reasons(), "the timeout passes")
            assert script.reasons() == []
        finally:
            is_released.set()
        wait_for(lambda: script.has(Kind.EVENT_ACKED), "the ack counts")

    assert script.reasons() == []


@WORLDS
def test_a_handler_that_never_returns_fails_at_the_call_timeout_by_event(
    world: type[Tasks],
) -> None:
    is_released = threading.Event()
    script = Script(handle=lambda: _wait(is_released))
    with running(world, script, call_timeout_s=0.5):
        try:
            wait_for(script.reasons, "the attempt fails")
        finally:
            is_released.set()

    said = str(script.reasons()[0]).partition("\n")[0]
    assert said.startswith("handle_event of operator 'operator' raised TimeoutError: it has not")
    assert said.endswith("(with event 0)")
