"""A real job's history to rebuild from: events both ways, acks and checkpoints, made by the real kernel in memory."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from collections.abc import Sequence

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.api.operator import Poll, PollStatus, SourceReader
from coordlog.log.interface import UnstoredRecord
from coordlog.schemas.payload import Payload, event
from coordlog.testing import HandDrivenJob

__all__ = ["Order", "Report", "benchmark_chain", "make_history"]

_SUBTASKS = 16
_EVENTS_PER_CHECKPOINT = 1_000


@event("benchmark.report", version=1)
class Report(Payload):
    """What a subtask says."""

    number: int
    text: str


@event("benchmark.order", version=1)
class Order(Payload):
    """What it is answered."""

    number: int
    text: str


class _Coordinator(OperatorCoordinator):
    def __init__(self) -> None:
        self._gateways: dict[int, SubtaskGateway] = {}

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        assert isinstance(event, Report)
        self._gateways[subtask].send_event(Order(number=event.number, text=event.text))

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        self._gateways[subtask] = gateway

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(bytes(100))

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Nothing is restored."""


class _Provider(CoordinatorProvider):
    operator_id = "source"
    payload_types: tuple[type[Payload], ...] = (Report, Order)

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        return _Coordinator()


class _NoReader(SourceReader):
    """Never made: the attempts are driven by hand."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Nothing."""

    def poll(self) -> Poll:
        """The end."""
        return Poll(status=PollStatus.END)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Nothing."""
        return b""


def benchmark_chain() -> Chain:
    """A source alone, whose coordinator answers each report with an order."""
    return Chain(
        source=SourceSpec(operator_id="source", create_reader=_NoReader, coordinator=_Provider()),
        operators=[],
    )


def make_history(record_count: int) -> list[UnstoredRecord]:
    """At least so many records of one epoch: events up and down, acks, now and then a checkpoint or a snapshot."""
    job = HandDrivenJob(benchmark_chain(), parallelism=_SUBTASKS, job_id="bench")
    attempts = job.register_all()
    number = 0
    while job.log.high_watermark() < record_count:
        attempt = attempts[number % _SUBTASKS]
        attempt.send("source", Report(number=number, text="x" * 80))
        attempt.ack("source", number)
        number += 1
        if number % _EVENTS_PER_CHECKPOINT == 0:
            checkpoint_id = job.trigger()
            assert checkpoint_id is not None, "nothing is pending"
            for one in attempts:
                one.ack_checkpoint(checkpoint_id, states={"source": bytes(100)})
                one.inbox.clear()
    job.crash()
    return [
        UnstoredRecord(
            key=one.key or b"",
            value=one.value or b"",
            header=one.header_bytes or b"",
            timestamp_us=one.timestamp_ms * 1000,
        )
        for one in job.log.read(0, job.log.high_watermark())
    ]
