"""Steps of a job that writes to a table, by hand; each place of a table as a fixture."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from coordlog.api.operator import Operator, Snapshot
from coordlog.errors import SinkError
from coordlog.schemas.payload import payload_type_of
from coordlog.spark_integration.files.payloads import CommitToTable, StagedFile
from coordlog.spark_integration.files.tables.sink import TableSink
from data.table_places import (
    JOB,
    DeltaInBucket,
    DeltaPlace,
    IcebergByRest,
    IcebergInBucket,
    IcebergPlace,
    Place,
)
from fakes.chain_fakes import FakeContext
from servers.rest_catalog import RunningCatalog
from servers.s3_server import S3Server

__all__ = [
    "SAVED",
    "MakePlace",
    "files_of",
    "intent",
    "new_place",
    "opened",
    "place",
    "places_of",
    "refusal",
    "rows",
    "staged",
    "stepping",
    "write",
]

SAVED = Counter([0, 10, 1, 11])
"""Rows of the two files of `staged`."""


MakePlace = Callable[[], Place]


LATER = pytest.mark.tier("matrix")


@pytest.fixture(
    params=[
        IcebergPlace,
        DeltaPlace,
        pytest.param(IcebergInBucket, marks=LATER),
        pytest.param(DeltaInBucket, marks=LATER),
        pytest.param(IcebergByRest, marks=LATER),
    ],
    ids=["iceberg", "delta", "iceberg-s3", "delta-s3", "iceberg-rest"],
)
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    numbers = itertools.count()
    if request.param in (IcebergInBucket, DeltaInBucket):
        server: S3Server = request.getfixturevalue("s3_store")
        return lambda: request.param(tmp_path / f"place-{next(numbers)}", server)
    if request.param is IcebergByRest:
        catalog: RunningCatalog = request.getfixturevalue("rest_catalog")
        return lambda: IcebergByRest(tmp_path / f"place-{next(numbers)}", catalog)
    return lambda: request.param(tmp_path / f"place-{next(numbers)}")


@pytest.fixture
def place(new_place: MakePlace) -> Place:
    return new_place()


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"i": pa.array(values, pa.int64())})


def opened(sink: TableSink, **context: str | int) -> Operator:
    writer = sink.spec().create_operator()
    writer.open(FakeContext(**{"job_id": JOB, **context}), None)  # type: ignore[arg-type]
    return writer


def files_of(*snapshots: Snapshot) -> list[StagedFile]:
    kind = payload_type_of(StagedFile)
    return [
        cast("StagedFile", kind.decode(one))
        for snapshot in snapshots
        for one in snapshot.committables
    ]


def write(writer: Operator, batch: pa.RecordBatch) -> None:
    list(writer.process(batch))
    writer.final_snapshot()


def intent(files: list[StagedFile], *, number: int = 0, part: int = 0) -> CommitToTable:
    return CommitToTable(checkpoint_id=7 + number, number=number, part=part, epoch=3, files=files)


def staged(place: Place, *batches: pa.RecordBatch, **context: str | int) -> list[StagedFile]:
    """A file of each batch; without batches two files of two rows each."""
    writer = opened(place.sink(), **context)
    snapshots: list[Snapshot] = []
    for i, batch in enumerate(batches or (rows(0, 10), rows(1, 11))):
        list(writer.process(batch))
        snapshots.append(writer.snapshot_state(i))
    writer.close()
    return files_of(*snapshots)


def refusal(do: Callable[[], object]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        do()
    assert caught.value.next_step
    return caught.value


def places_of(place: Place) -> list[str]:
    passed: list[str] = []
    files = staged(place)
    place.sink().settle(intent(files), at=passed.append)
    return passed


def stepping(do: Callable[[], object], *, at_place: int) -> Callable[[str], None]:
    """Calls `do` when the place of this number is reached."""
    passed = itertools.count()

    def at(_place: str) -> None:
        if next(passed) == at_place:
            do()

    return at
