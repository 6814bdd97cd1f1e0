"""A job that exchanges more events than its driver remembers, with the real driver and attempts (clause D5)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import CoordinatorContext, CoordinatorProvider, OperatorCoordinator
from coordlog.api.operator import Operator, OperatorContext, Poll, PollStatus, SourceReader
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.limits import REMEMBERED_EVENTS_BYTES_MAX
from coordlog.log.memory import MemoryLog
from coordlog.projections.job.remembered import FORGETS, weight
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import EnumeratorState, SplitsDiscovered
from coordlog.testing.in_memory import InMemorySurroundings

EVENT_BYTES = 250_000
EVENTS = 400
"""Three times what is remembered."""


class Reader(SourceReader):
    """So many rows, one at a time, and the end."""

    def __init__(self, *, ends: bool) -> None:
        self._rows: Iterator[int] = iter(range(EVENTS))
        self._ends = ends

    def add_splits(self, splits: object) -> None:
        """None come."""

    def poll(self) -> Poll:
        """The next row."""
        row = next(self._rows, None)
        if row is None:
            return Poll(status=PollStatus.END if self._ends else PollStatus.WAITING)
        batch = pa.record_batch({"n": pa.array([row], pa.int64())})
        return Poll(status=PollStatus.BATCH, batch=batch)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Not asked for before the end."""
        return b""


class Telling(Operator):
    """Sends an event for each row."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Begin."""
        self._context = context

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """One event, its row's number in front."""
        number = batch.column(0)[0].as_py()
        self._context.send_event(
            EnumeratorState(content=number.to_bytes(4, "big") + bytes(EVENT_BYTES))
        )
        return ()


@dataclass(slots=True)
class Heard:
    """What the newest coordinator object has handled."""

    numbers: list[int] = field(default_factory=list)
    objects: int = 0
    local_resets: int = 0


class Coordinator(OperatorCoordinator):
    """Notes the numbers; a local failover would have to take them back."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        heard.numbers.clear()
        heard.objects += 1

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """One more."""
        assert isinstance(event, EnumeratorState)
        self._heard.numbers.append(int.from_bytes(event.content[:4], "big"))

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Not here: it would be told a part only."""
        self._heard.local_resets += 1


class Provider(CoordinatorProvider):
    """Of `Coordinator`."""

    operator_id = "telling"
    payload_types: tuple[type[Payload], ...] = (EnumeratorState,)

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """One for each reset."""
        return Coordinator(self._heard)


@pytest.mark.clause("D5")
@pytest.mark.slow
@pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "stream-without-interval"])
def test_memory_is_bounded_without_checkpoints_and_no_event_is_doubled(*, is_batch: bool) -> None:
    heard = Heard()
    attempts = itertools.count()
    chain = Chain(
        source=SourceSpec(
            operator_id="source",
            # The first attempt never ends, so that the kill always finds it alive.
            create_reader=lambda: Reader(ends=next(attempts) > 0),
            coordinator=SplitCoordinatorProvider(
                "source",
                discover=lambda: SplitsDiscovered(splits=[], is_complete=True),
                allow_empty=True,
            ),
        ),
        operators=[
            OperatorSpec(
                operator_id="telling", create_operator=Telling, coordinator=Provider(heard)
            )
        ],
    )
    log, surroundings = MemoryLog("job"), InMemorySurroundings(chain, "job", 1)
    is_killed, forgotten = threading.Event(), threading.Event()

    def look(records: Sequence[Record]) -> None:
        if any(FORGETS in one.attributes for one in records):
            forgotten.set()
        if forgotten.is_set() and not is_killed.is_set():
            is_killed.set()
            surroundings.kill(0)

    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job",
            parallelism=1,
            is_batch=is_batch,
            runtime=RuntimeOptions(checkpoint_interval_s=None, snapshot_every=None),
        ),
        surroundings=surroundings,
        on_released=look,
    )
    driver.start()
    try:
        result = driver.wait(60)
    finally:
        driver.end_at_once(by="the test")

    assert result is not None
    assert result.status is JobStatus.FINISHED
    assert heard.numbers == list(range(EVENTS))
    assert (heard.objects, heard.local_resets) == (2, 0)
    made = rebuild(log, chain, projection_of(chain), is_whole=True)
    kinds = [one.record().kind for one in log.records]
    assert kinds.count(Kind.GLOBAL_FAILURE) == 1
    assert made.state.remembered_bytes == 0
    remembered, most = 0, 0
    for one in log.records:
        record = one.record()
        if record.kind is Kind.EVENT_TO_COORDINATOR:
            is_first = FORGETS in record.attributes
            remembered = (0 if is_first else remembered) + weight(record.payload or b"")
            most = max(most, remembered)
        elif record.kind is Kind.RESET_TO_CHECKPOINT:
            remembered = 0
    assert most <= REMEMBERED_EVENTS_BYTES_MAX
