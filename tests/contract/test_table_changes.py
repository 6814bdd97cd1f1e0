"""Each change of a table by another program, at each moment: exact rows, or a refusal that adds none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import QueryBuilder

from coordlog.errors import SinkError
from coordlog.spark_integration.files.payloads import StagedFile
from data.table_changes import DELTA_CHANGES, ICEBERG_CHANGES, SCHEMA
from data.table_places import DeltaPlace, IcebergPlace, Place
from data.table_steps import intent, staged

pytestmark = [pytest.mark.tier("matrix"), pytest.mark.clause("H3")]

CHANGES = [
    *((DeltaPlace, name, change) for name, change in DELTA_CHANGES.items()),
    *((IcebergPlace, name, change) for name, change in ICEBERG_CHANGES.items()),
]


def batch(*numbers: int) -> pa.RecordBatch:
    nested = [{"x": number, "y": f"y{number}"} for number in numbers]
    columns = [
        list(numbers),
        [f"w{number % 2}" for number in numbers],
        [number * 3 for number in numbers],
        nested,
        [[value] for value in nested],
        [[("k", value)] for value in nested],
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def numbers_in(place: Place) -> Counter[Any]:
    """The rows by `i`, the same for each reader of the format; nothing of a table that is gone."""
    try:
        numbers = Counter(place.table().to_pydict().get("i", []))
    except Exception as error:
        if "does not exist" in str(error):
            return Counter()
        raise
    if isinstance(place, DeltaPlace):
        query = QueryBuilder().register("t", place.loaded()).execute("SELECT * FROM t")
        assert Counter(pa.table(query.read_all()).to_pydict()["i"]) == numbers
    return numbers


def is_accepted(do: Callable[[], object]) -> bool:
    try:
        do()
    except SinkError:
        return False
    return True


class DiedError(BaseException):
    """The driver dies here."""


@pytest.mark.parametrize("partition_by", [[], ["w"]], ids=["whole", "partitioned"])
@pytest.mark.parametrize("moment", ["before the file", "waiting", "committing", "committed"])
@pytest.mark.parametrize(
    ("make", "change"),
    [
        pytest.param(make, change, id=f"{make.__name__[:-5].lower()}: {name}")
        for make, name, change in CHANGES
    ],
)
def test_a_table_that_another_program_changes_keeps_exact_rows(
    make: Callable[[Path], Place],
    change: Callable[[Place], object],
    moment: str,
    partition_by: list[str],
    tmp_path: Path,
) -> None:
    place = make(tmp_path / "t")
    place.make(SCHEMA, partition_by)
    place.sink().settle(intent(staged(place, batch(0, 1))))
    left: list[Counter[Any]] = []

    def changing() -> None:
        if not left:
            change(place)
            left.append(numbers_in(place))

    def at(step: str) -> None:
        if moment == "committing" and step in {"after footers", "after manifests"}:
            changing()
        if moment == "committed" and step.startswith("after commit") and not left:
            raise DiedError

    def write() -> None:
        files.extend(staged(place, batch(2, 3), attempt_number=1))

    def settle() -> None:
        place.sink().settle(intent(files, number=1), at=at)

    files: list[StagedFile] = []
    if moment == "before the file":
        changing()
        if not is_accepted(write):
            assert numbers_in(place) == left[0]
            return
    else:
        write()
    if moment == "waiting":
        changing()
    if moment == "committed":
        with pytest.raises(DiedError):
            settle()
        changing()
    is_settled = is_accepted(settle)

    added = [2, 3] if is_settled and moment != "committed" else []
    assert numbers_in(place) == left[0] + Counter(added)
