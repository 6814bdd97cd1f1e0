"""A recorded history of each ready-made coordinator runs through its code again, with the same records (clause K7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import pytest

from coordlog.api.chain import OperatorSpec
from coordlog.coordinators import (
    Counting,
    Iteration,
    Sketch,
    Statistic,
    Version,
    quota_operator,
    rounds_operator,
    rules_operator,
    schema_change_operator,
    statistics_operator,
    watermark_operator,
)
from coordlog.testing import HandDrivenJob, replay
from jobs.row_jobs import Subtask, checkpoint, keep, register, run_out, settle

INPUTS: Final = [[*range(8)], [*range(2, 10)]]


class Rows:
    """The number of rows."""

    def __init__(self, content: bytes | None) -> None:
        self.count = int(content or 0)

    def update(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows

    def to_bytes(self) -> bytes:
        return str(self.count).encode()


class RowCount(Statistic):
    """The number of rows of all subtasks."""

    def create(self, content: bytes | None) -> Sketch:
        return Rows(content)

    def merge(self, contents: Sequence[bytes]) -> bytes:
        return str(sum(int(content) for content in contents)).encode()

    def describe(self, content: bytes) -> str:
        return content.decode()


class Total(Iteration):
    """The number of rows of all subtasks."""

    def contribute(self, rows: Sequence[pa.RecordBatch], model: bytes) -> bytes:
        return json.dumps(sum(batch.num_rows for batch in rows)).encode()

    def combine(self, model: bytes, contributions: Sequence[bytes]) -> tuple[bytes, bool]:
        total = json.dumps(sum(int(part) for part in contributions)).encode()
        return total, total == model

    def emit(self, rows: Sequence[pa.RecordBatch], model: bytes) -> Sequence[pa.RecordBatch]:
        return rows


def unchanged(batch: pa.RecordBatch, _version: Version) -> pa.RecordBatch:
    return batch


def nothing(_version: Version) -> None:
    """The outside has every schema."""


LINKS: Final = {
    "rules": partial(rules_operator, unchanged, initial="1"),
    "quota": partial(quota_operator, 9, lease_rows=2),
    "tries": partial(quota_operator, 9, counting=Counting.TRIED, lease_rows=2),
    "watermarks": partial(watermark_operator, "n", max_drift=timedelta(microseconds=3)),
    "rounds": partial(rounds_operator, Total()),
    "statistics": partial(statistics_operator, RowCount()),
    "schema": partial(schema_change_operator, unchanged, nothing, initial="1"),
}


@pytest.mark.clause("K7")
@pytest.mark.parametrize("name", list(LINKS))
def test_a_history_with_failures_replays_to_the_same_records(name: str) -> None:
    def link() -> OperatorSpec:
        return LINKS[name]()

    job = HandDrivenJob(keep(link()), parallelism=2)
    subtasks = register(job, INPUTS)
    settle(subtasks)
    for one in subtasks:
        one.step()
    checkpoint(job, subtasks)
    for one in subtasks:
        one.step()
    subtasks[0].fail()
    subtasks[0] = Subtask(job, 0, INPUTS[0])
    settle(subtasks)
    run_out(job, subtasks)
    job.crash()
    assert replay(job.log, keep(link())).turn_count > 15
