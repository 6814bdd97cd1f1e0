"""A chain for tests of the stage; its classes travel by value, as those of a notebook do."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

import json
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import CoordinatorContext, CoordinatorProvider, OperatorCoordinator
from coordlog.api.operator import (
    FinishedSplit,
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    SourceReader,
)
from coordlog.schemas.payload import Payload, event
from coordlog.schemas.source_types import AddSplits, NoMoreSplits

__all__ = ["CHAIN", "Counted", "Started"]


@event("test.started", version=1)
class Started(Payload):
    """The threads of a task's process when its attempt began."""

    threads: list[str]


@event("test.counted", version=1)
class Counted(Payload):
    """The rows of a batch that has passed."""

    rows: int


class Rows(SourceReader):
    """Reads splits like {"id": "a", "rows": 3}: a batch of so many rows each."""

    def __init__(self) -> None:
        self.splits: list[Any] = []
        self.is_at_end = False

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.context = context

    def start(self) -> None:
        names = sorted(one.name for one in threading.enumerate())
        self.context.send_event(Started(threads=names))

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self.splits.extend(json.loads(one) for one in splits)

    def notify_no_more_splits(self) -> None:
        self.is_at_end = True

    def poll(self) -> Poll:
        if not self.splits:
            status = PollStatus.END if self.is_at_end else PollStatus.WAITING
            return Poll(status=status)
        if "raise" in self.splits[0]:
            raise ZeroDivisionError(self.splits[0]["raise"])
        rows = self.splits[0].get("rows", 0)
        if rows:
            self.splits[0]["rows"] = 0
            batch = pa.RecordBatch.from_pydict({"n": list(range(rows))})
            return Poll(status=PollStatus.BATCH, batch=batch)
        done = FinishedSplit(split_id=self.splits.pop(0)["id"], rows=rows, bytes_read=0)
        return Poll(status=PollStatus.SPLIT_FINISHED, finished=done)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b""


class Count(Operator):
    """Tells its coordinator how many rows have come."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.context = context

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.context.send_event(Counted(rows=batch.num_rows))
        return ()


class Unpicklable(CoordinatorProvider):
    """A provider that could not travel to a task."""

    def __init__(self, operator_id: str, *types: type[Payload]) -> None:
        self.operator_id, self.payload_types = operator_id, types
        self.lock = threading.Lock()

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        raise AssertionError("there is no driver here")


def _chain() -> Chain:
    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=Rows,
            coordinator=Unpicklable("source", AddSplits, NoMoreSplits, Started),
        ),
        operators=[
            OperatorSpec(
                operator_id="count",
                create_operator=Count,
                coordinator=Unpicklable("count", Counted),
            )
        ],
    )


CHAIN: Final = _chain()
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
