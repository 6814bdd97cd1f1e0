"""A chain whose operators wait at the end of input for their coordinator's decision (clause M7)."""

from __future__ import annotations

from collections.abc import Iterable
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
from coordlog.api.operator import (
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    Snapshot,
    SourceReader,
    Waiting,
)
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import EnumeratorState, SplitsDiscovered
from coordlog.testing.in_memory import InMemorySurroundings

pytestmark = [pytest.mark.clause("M7"), pytest.mark.slow]

SUBTASKS = 2
ROWS = 5
QUOTA = 7


class Coordinator(OperatorCoordinator):
    """Shares a quota out once all subtasks have asked, and a checkpoint has completed since."""

    def __init__(self, *, needs_checkpoint: bool) -> None:
        self._needs_checkpoint = needs_checkpoint
        self._gateways: dict[int, SubtaskGateway] = {}
        self._asking: set[int] = set()
        self._is_shared = False

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Keep the way."""
        self._gateways[subtask] = gateway

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """It has asked."""
        self._asking.add(subtask)
        if not self._needs_checkpoint:
            self._share()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """In streaming a barrier has passed all subtasks while they waited."""
        self._share()

    def _share(self) -> None:
        if len(self._asking) < SUBTASKS or self._is_shared:
            return
        self._is_shared = True
        left = QUOTA
        for subtask in sorted(self._asking):
            share = min(left, ROWS)
            left -= share
            self._gateways[subtask].send_event(EnumeratorState(content=bytes([share])))

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Nothing fails here, so that nothing is restored."""
        result.complete(b"")


class Provider(CoordinatorProvider):
    """Of `Coordinator`."""

    operator_id = "quota"
    payload_types: tuple[type[Payload], ...] = (EnumeratorState,)

    def __init__(self, *, needs_checkpoint: bool) -> None:
        self._needs_checkpoint = needs_checkpoint

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """One for each driver."""
        return Coordinator(needs_checkpoint=self._needs_checkpoint)


class Reader(SourceReader):
    """`ROWS` rows, and the end."""

    is_read = False

    def add_splits(self, splits: object) -> None:
        """None come."""

    def poll(self) -> Poll:
        """Rows first."""
        if self.is_read:
            return Poll(status=PollStatus.END)
        self.is_read = True
        return Poll(
            status=PollStatus.BATCH, batch=pa.record_batch({"n": pa.array(range(ROWS), pa.int64())})
        )

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Nothing to keep."""
        return b""


@dataclass(slots=True)
class Kept:
    """The rows that came out."""

    rows: list[int] = field(default_factory=list)


class Held(Operator):
    """Holds all rows until it knows how many may pass."""

    _quota: int | None = None
    _has_asked = False

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Nothing held yet."""
        self._context, self._batches = context, list[pa.RecordBatch]()

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Hold it."""
        self._batches.append(batch)
        return ()

    def handle_event(self, event: Payload) -> None:
        """The quota."""
        assert isinstance(event, EnumeratorState)
        self._quota = event.content[0]

    def finish(self) -> Iterable[pa.RecordBatch | Waiting] | Waiting:
        """As docs/write-your-own-operator.md has it."""
        if not self._has_asked:
            self._context.send_event(EnumeratorState(content=b"how many?"))
            self._has_asked = True
        if self._quota is None:
            return PollStatus.WAITING
        return [self._batches[0].slice(0, self._quota)]


class Sink(Operator):
    """Keeps the rows."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep them."""
        self._kept.rows += batch.column(0).to_pylist()
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Nothing to keep."""
        return Snapshot()


@pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "streaming"])
def test_a_quota_that_is_shared_out_at_the_end_of_input_is_exact(*, is_batch: bool) -> None:
    kept = Kept()
    records: list[Record] = []
    chain = Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=Reader,
            coordinator=SplitCoordinatorProvider(
                "source",
                discover=lambda: SplitsDiscovered(splits=[], is_complete=True),
                allow_empty=True,
            ),
        ),
        operators=[
            OperatorSpec(
                operator_id="quota",
                create_operator=Held,
                coordinator=Provider(needs_checkpoint=not is_batch),
            ),
            OperatorSpec(operator_id="sink", create_operator=lambda: Sink(kept)),
        ],
    )
    driver = JobDriver(
        chain=chain,
        log=MemoryLog("job"),
        options=DriverOptions(
            job_id="job",
            parallelism=SUBTASKS,
            is_batch=is_batch,
            runtime=RuntimeOptions(checkpoint_interval_s=None if is_batch else 0.1),
        ),
        surroundings=InMemorySurroundings(chain, "job", SUBTASKS),
        on_released=records.extend,
    )

    driver.start()
    try:
        result = driver.wait(60)
    finally:
        driver.end_at_once(by="the test")

    assert result is not None
    assert result.status is JobStatus.FINISHED
    assert sorted(kept.rows) == [0, 0, 1, 1, 2, 3, 4]
    assert not [one for one in records if one.kind is Kind.ATTEMPT_FAILED]
