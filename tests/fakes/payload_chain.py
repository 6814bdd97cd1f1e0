"""A chain that sends megabytes both ways and has them in its states, for threads and for Spark's tasks."""

# No `from __future__ import annotations` here: events are declared below.
# What their methods do is their contract's to say.

import hashlib
import sys
import threading
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark import cloudpickle

from coordlog.api.chain import OperatorSpec, SourceSpec
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
)
from coordlog.schemas.payload import Payload, event
from coordlog.schemas.source_types import AddSplits, NoMoreSplits

__all__ = ["MODEL", "Heard", "digest", "links"]

MODEL = bytes(range(256)) * 16 * 1024
"""4 MiB: more than a message of a connection, or a record, takes."""


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
        return b""


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
    def __init__(self, heard: Heard, content: bytes = b"") -> None:
        self.heard, self.content = heard, content

    def start(self) -> None:
        """Nothing is to be done."""

    def close(self) -> None:
        """Nothing is held."""

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        gateway.send_event(Model(content=self.content))

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
        self.heard, self.content = heard, MODEL

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        return Trainer(self.heard, self.content)


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


def links(heard: Heard) -> tuple[SourceSpec, OperatorSpec]:
    """The chain; its coordinators note in `heard`."""
    return (
        SourceSpec(operator_id="source", create_reader=Endless, coordinator=Idling()),
        OperatorSpec(operator_id="scorer", create_operator=Scorer, coordinator=Training(heard)),
    )
