"""Payloads of several megabytes through a `Job` with real tasks and a real broker, and a restart."""

# No `from __future__ import annotations` here: events are declared below.

import hashlib
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from coordlog.chain import OperatorSpec, SourceSpec
from coordlog.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.driver import JobStatus
from coordlog.log.embedded import embedded_broker
from coordlog.log.kafka import KafkaLog
from coordlog.log.payload_store import PayloadStore
from coordlog.schemas.payload import Payload, event
from coordlog.schemas.source_events import AddSplits, NoMoreSplits
from coordlog.spark_integration import Job
from coordlog.subtask import (
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    Snapshot,
    SourceReader,
)

from .kafka_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

MODEL = bytes(range(256)) * 16 * 1024
"""4 MiB: more than a message of a connection, or a record, takes."""
WAIT_S = 120.0


@event("test.model", version=1)
class Model(Payload):
    """Coordinator to subtask."""

    content: bytes


@event("test.report", version=1)
class Report(Payload):
    """Subtask to coordinator: what it was restored with, what it got, and bulk."""

    restored: str
    got: str
    bulk: bytes


@event("test.end", version=1)
class End(Payload):
    """The subtask may end."""


def digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


class Endless(SourceReader):
    """Reads nothing until it is told that there is no more."""

    def __init__(self) -> None:
        self.is_over = False

    def add_splits(self, splits: Sequence[bytes]) -> None:
        raise AssertionError(splits)

    def handle_source_event(self, event: Payload) -> None:
        self.is_over = True

    def poll(self) -> Poll:
        return Poll(status=PollStatus.END if self.is_over else PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b"reader"


class Scorer(Operator):
    """Keeps the model that it was sent, and reports with bulk of its own."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.context, self.model = context, state
        self.restored = digest(state)

    def handle_event(self, event: Payload) -> None:
        assert isinstance(event, Model)
        self.model = event.content
        self.context.send_event(
            Report(restored=self.restored, got=digest(self.model), bulk=self.model[::-1])
        )

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        return Snapshot(state=self.model)


class Heard:
    """What the coordinators of one driver were told."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.restored: list[bytes | None] = []
        self.completed = threading.Event()


class Trainer(OperatorCoordinator):
    def __init__(self, heard: Heard) -> None:
        self.heard = heard

    def start(self) -> None:
        """Nothing is to be done."""

    def close(self) -> None:
        """Nothing is held."""

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        gateway.send_event(Model(content=MODEL))

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        """Seen in the history."""

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Nothing is kept of one."""

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        assert isinstance(event, Report)
        self.heard.reports.append(event)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(MODEL + b"of the coordinator")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self.heard.reports:
            self.heard.completed.set()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The next one comes."""

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self.heard.restored.append(state)


class Training(CoordinatorProvider):
    operator_id = "scorer"
    payload_types: tuple[type[Payload], ...] = (Model, Report)

    def __init__(self, heard: Heard) -> None:
        self.heard = heard

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        return Trainer(self.heard)


class Idle(Trainer):
    """The source's: has nothing to say."""

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Nothing is sent."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(b"")


class Idling(CoordinatorProvider):
    operator_id = "source"
    payload_types: tuple[type[Payload], ...] = (AddSplits, NoMoreSplits, End)

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        return Idle(Heard())


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def job_on(log: KafkaLog, heard: Heard, **options: object) -> Job:
    return Job(
        job_id=log.topic.removesuffix(".log"),
        log=log,
        operators=[
            SourceSpec(operator_id="source", create_reader=Endless, coordinator=Idling()),
            OperatorSpec(operator_id="scorer", create_operator=Scorer, coordinator=Training(heard)),
        ],
        parallelism=1,
        checkpoint_interval_s=0.2,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return shared_session()


@pytest.fixture
def log() -> Iterator[KafkaLog]:
    with embedded_broker() as broker:
        log = KafkaLog.for_job("payloads", broker.bootstrap_servers, fsync=False)
        with closing(log):
            log.create()
            yield log


def test_megabytes_go_both_ways_into_a_checkpoint_and_out_of_it_after_a_restart(
    session: SparkSession, log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    first = Heard()
    job = job_on(log, first)
    job.start(session)
    try:
        assert first.completed.wait(WAIT_S), "a checkpoint with the model in it"
    finally:
        job.stop(with_checkpoint=True)
    result = job.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED
    (report,) = first.reports
    assert (report.restored, report.got, report.bulk) == ("", digest(MODEL), MODEL[::-1])
    stored = list(log.read(0, log.high_watermark()))
    assert max(len(one.value or b"") for one in stored) < 10_000
    kept = PayloadStore(str(tmp_path / "payloads"), job.job_id).listed()
    assert len(kept) == 4, (
        "the event each way, the state, the coordinator's; again each is the same"
    )

    second = Heard()
    again = job_on(log, second)
    again.start(session)
    try:
        assert second.completed.wait(WAIT_S)
    finally:
        again.stop(with_checkpoint=False)
    again.wait(WAIT_S)
    assert second.restored == [MODEL + b"of the coordinator"]
    assert [one.restored for one in second.reports] == [digest(MODEL)]
