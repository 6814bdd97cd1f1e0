"""Tasks in processes of their own, whose first rows reach a table at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.synchronize import Barrier

import pyarrow as pa

from coordlog.api.operator import Operator, Snapshot
from data.table_places import JOB
from fakes.chain_fakes import FakeContext

__all__ = ["first_rows", "meet"]

_meetings: list[Barrier] = []


def meet(meeting: Barrier) -> None:
    """Of each process: where its tasks wait for those of the others."""
    _meetings.append(meeting)


def first_rows(make: Callable[[], Operator], subtask: int) -> Snapshot:
    """Write one row, with the subtask's number as `i`."""
    writer = make()
    writer.open(FakeContext(job_id=JOB, subtask=subtask), None)
    _meetings[0].wait(timeout=60.0)
    list(writer.process(pa.record_batch({"i": pa.array([subtask], pa.int64())})))
    snapshot = writer.snapshot_state(0)
    writer.close()
    return snapshot
