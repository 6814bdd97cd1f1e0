"""What other programs do to the partitions of a table while files wait for their commit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.table.update import SetCurrentSchemaUpdate

from data.table_places import DeltaPlace, IcebergPlace, Place
from data.table_steps import intent, new_place, place, refusal, rows, staged
from servers.rest_catalog import rest_catalog
from servers.s3_server import s3_server, s3_store

__all__ = ["new_place", "place", "rest_catalog", "s3_server", "s3_store"]


def test_changed_partitions_stop_the_commit_until_they_are_put_back(
    place: Place,
) -> None:
    place.make(pa.schema([("i", pa.int64()), ("s", pa.string())]))
    files = staged(place, pa.record_batch({"i": [1, 2], "s": ["x", None]}))
    place.partition("s")
    pauses: list[float] = []
    error = refusal(lambda: place.sink(pause=pauses.append).settle(intent(files)))
    assert "its partitions were changed since" in error.problem
    assert pauses == []
    later = staged(place, pa.record_batch({"i": [3], "s": ["z"]}), attempt_number=1)
    place.partition()
    place.sink().settle(intent(files))
    place.partition("s")
    place.sink().settle(intent(later, number=1))

    assert place.rows() == Counter([*place.kept_by_partitioning([1, 2]), 3])


def test_numbers_with_nan_are_in_no_partition_that_came_meanwhile(tmp_path: Path) -> None:
    """The bounds of a file do not show NaN: all its numbers seem to be the same."""
    place = IcebergPlace(tmp_path / "t")
    place.make(pa.schema([("i", pa.int64()), ("f", pa.float64())]))
    files = staged(place, pa.record_batch({"i": [1, 2], "f": [1.5, float("nan")]}))
    sink = place.sink()
    place.partition("f")
    error = refusal(lambda: sink.settle(intent(files)))
    assert "its partitions were changed since" in error.problem
    place.partition()
    place.sink().settle(intent(files))

    assert place.rows() == Counter([1, 2])


@pytest.mark.parametrize("others", [[], ["i"], ["i", "w"]], ids=["none", "another", "it again"])
def test_a_partition_that_version_1_has_dropped_counts_for_none(
    tmp_path: Path, others: list[str]
) -> None:
    place = IcebergPlace(tmp_path / "t")
    place.catalog.create_namespace("ns")
    columns = pa.schema([("i", pa.int64()), ("w", pa.string())])
    place.catalog.create_table("ns.t", columns, properties={"format-version": "1"})
    place.partition("w")
    place.partition()
    with place.catalog.load_table("ns.t").update_spec() as update:
        for other in others:
            update.add_identity(other)
    batch = pa.record_batch({"i": [0, 1], "w": ["x", None]})
    place.sink().settle(intent(staged(place, batch)))

    assert place.table().sort_by("i").to_pylist() == batch.to_pylist()
    assert place.numbers_of("w", "x") == [0]
    assert place.files_for("i", 1) == 1


def version_of(tmp_path: Path, version: str) -> IcebergPlace:
    """A table of columns `i` and `w` of a version of the format, partitioned by `w`."""
    place = IcebergPlace(tmp_path / "t")
    place.catalog.create_namespace("ns")
    columns = pa.schema([("i", pa.int64()), ("w", pa.string())])
    place.catalog.create_table("ns.t", columns, properties={"format-version": version})
    place.partition("w")
    return place


def test_manifests_of_a_dropped_partition_column_are_not_merged(tmp_path: Path) -> None:
    """The library would write them again without the type of the partition, and no reader would open them."""
    place = version_of(tmp_path, "2")
    for i in range(2):
        batch = pa.record_batch({"i": [i], "w": pa.nulls(1, pa.string())})
        place.sink().settle(intent(staged(place, batch, attempt_number=i), number=i))
    place.partition()
    place.drop_column("w")
    with place.catalog.load_table("ns.t").transaction() as change:
        change.set_properties(
            {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
        )
    place.sink().settle(intent(staged(place, rows(2), attempt_number=2), number=2))

    assert place.rows() == Counter([0, 1, 2])


def test_a_dropped_partition_of_a_dropped_column_stops_the_commit(tmp_path: Path) -> None:
    """Version 1 keeps the partition, and the library would write it without a type."""
    place = version_of(tmp_path, "1")
    place.partition()
    files, sink = staged(place, pa.record_batch({"i": [1], "w": ["x"]})), place.sink()
    place.drop_column("w")
    for refused in (place.sink, lambda: sink.settle(intent(files))):
        assert "dropped partition 'w' was dropped too" in refusal(refused).problem
    former = SetCurrentSchemaUpdate.model_validate({"schema-id": 0})
    place.catalog.commit_table(place.catalog.load_table("ns.t"), (), (former,))
    place.sink().settle(intent(files))

    assert place.table().to_pylist() == [{"i": 1, "w": "x"}]


@pytest.mark.parametrize(
    ("kind", "value", "now"),
    [
        (pa.string(), "x", pa.field("s", pa.int64())),
        (pa.string(), "01", pa.field("s", pa.int64())),
        (pa.string(), None, pa.field("s", pa.string(), nullable=False)),
        (pa.int64(), 300, pa.field("s", pa.int8())),
        (pa.bool_(), True, pa.field("s", pa.int32())),
    ],
    ids=["text", "zeros", "null", "narrower", "boolean"],
)
def test_a_partition_that_got_another_type_stops_the_commit(
    tmp_path: Path, kind: pa.DataType, value: object, now: pa.Field
) -> None:
    """No reader would open a table with such a value."""
    place = DeltaPlace(tmp_path / "t")
    number, former = pa.field("i", pa.int64()), pa.field("s", kind)

    def become(column: pa.Field) -> None:
        write_deltalake(
            place.loaded(),
            pa.schema([number, column]).empty_table(),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=["s"],
        )

    place.make(pa.schema([number, former]), ["s"])
    batch = pa.record_batch({"i": pa.array([1], pa.int64()), "s": pa.array([value], kind)})
    files, sink = staged(place, batch), place.sink()
    become(now)
    error = refusal(lambda: sink.settle(intent(files)))
    assert f"they are by s of {now.type}" in error.problem
    assert place.rows() == Counter()
    become(former)
    place.sink().settle(intent(files))

    assert place.table().to_pylist() == [{"i": 1, "s": value}]
