"""A bounded sequence of numbers, read in three splits by the real split coordinator, over a wire that loses events."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.operator import (
    FinishedSplit,
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    Snapshot,
    SourceReader,
)
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.schemas.source_types import RequestSplit, Split, SplitsDiscovered
from simulation.job import ScriptedError
from simulation.scenarios import Faulty
from simulation.talk import Book, NotExactlyOnceError
from simulation.world import CLEAR, World

COUNT = 100
SPLITS = (("a", 1, 34), ("b", 35, 67), ("c", 68, 100))
"""Name, first and last number of each."""
COUNTED = ("coordlog.add_splits", "coordlog.no_more_splits")
"""The events that the wire counts."""


class NumberReader(SourceReader):
    """Reads splits of numbers, one number a batch; asks for the next split at the end of one, where it is to ask."""

    def __init__(self, *, is_asking: bool) -> None:
        self._is_asking, self._has_all = is_asking, False
        self._splits: list[tuple[str, int, int, int]] = []
        """Name, first, next and last number."""
        self._context: OperatorContext | None = None

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self._context = context
        if state is not None:
            self._splits = [tuple(one) for one in json.loads(state)]

    def start(self) -> None:
        if not self._splits:
            self._ask(None)

    def _ask(self, finished_split_id: str | None) -> None:
        if self._is_asking and not self._has_all:
            assert self._context is not None, "open"
            self._context.send_event(RequestSplit(finished_split_id=finished_split_id))

    def add_splits(self, splits: Sequence[bytes]) -> None:
        for one in splits:
            name, first, last = json.loads(one)
            self._splits.append((name, first, first, last))

    def notify_no_more_splits(self) -> None:
        self._has_all = True

    def poll(self) -> Poll:
        if not self._splits:
            return Poll(status=PollStatus.END if self._has_all else PollStatus.WAITING)
        name, first, n, last = self._splits[0]
        if n <= last:
            self._splits[0] = (name, first, n + 1, last)
            batch = pa.RecordBatch.from_pydict({"n": [n]})
            return Poll(status=PollStatus.BATCH, batch=batch)
        del self._splits[0]
        if not self._splits:
            self._ask(name)
        rows = last + 1 - first
        finished = FinishedSplit(split_id=name, rows=rows, bytes_read=rows)
        return Poll(status=PollStatus.SPLIT_FINISHED, finished=finished)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return json.dumps(self._splits).encode()


@dataclass(eq=False)
class Collector(Operator):
    """Keeps all numbers; raises once, after so many, where the list has a number in it."""

    fail_after: list[int]
    got: list[int] = field(default_factory=list)

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        if state is not None:
            self.got = json.loads(state)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.got.extend(batch.column(0).to_pylist())
        if self.fail_after and len(self.got) > self.fail_after[0]:
            self.fail_after.clear()
            raise ScriptedError("scripted")
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        return Snapshot(state=json.dumps(self.got).encode())

    def final_snapshot(self) -> Snapshot:
        return self.snapshot_state(-1)


def _listing() -> SplitsDiscovered:
    splits = [Split(split_id=one[0], content=json.dumps(one).encode()) for one in SPLITS]
    return SplitsDiscovered(splits=splits, is_complete=True)


def read_numbers(
    seed: int,
    wire: Faulty,
    *,
    ack_timeout_s: float,
    is_failing: bool = False,
    assignment: Literal["pull", "static"] = "pull",
) -> World:
    """One run; every number comes out once."""
    chance = random.Random(f"{seed}/weather")
    weather = replace(
        CLEAR,
        interval_s=0.05,
        ack_timeout_s=ack_timeout_s,
        step_s=chance.choice(((0.001, 0.003), (0.005, 0.02))),
    )
    world = World(seed, weather=weather, book=Book())
    world.wire = wire
    fail_after = [COUNT // 2] if is_failing else []
    world.run(
        Chain(
            source=SourceSpec(
                operator_id="source",
                create_reader=lambda: NumberReader(is_asking=assignment == "pull"),
                coordinator=SplitCoordinatorProvider(
                    "source", discover=_listing, assignment=assignment
                ),
            ),
            operators=[
                OperatorSpec(operator_id="collect", create_operator=lambda: Collector(fail_after))
            ],
        )
    )
    assert not fail_after, "the failure really happened"
    completion = world.state.subtasks[0].completion
    assert completion is not None
    found = {one.operator_id: one.state or b"" for one in completion.states}
    got = sorted(json.loads(found["collect"]))
    if got != list(range(1, COUNT + 1)):
        raise NotExactlyOnceError(got)
    return world
