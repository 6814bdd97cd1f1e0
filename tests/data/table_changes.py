"""What other programs do to a table while a job writes to it, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import IntegerType, LongType, StringType

from data.table_places import DeltaPlace, IcebergPlace

__all__ = ["DELTA_CHANGES", "ICEBERG_CHANGES", "SCHEMA"]

_DeltaChange = Callable[[DeltaPlace], object]
_IcebergChange = Callable[[IcebergPlace], object]

_STRUCT: Final = pa.struct([("x", pa.int32()), ("y", pa.string())])
SCHEMA: Final = pa.schema(
    [
        ("i", pa.int64()),
        ("w", pa.string()),
        ("a", pa.int32()),
        ("s", _STRUCT),
        ("l", pa.list_(_STRUCT)),
        ("m", pa.map_(pa.string(), _STRUCT)),
    ]
)
_STRUCTS: Final = {
    "further field": pa.struct([*_STRUCT, pa.field("z", pa.int64())]),
    "fewer fields": pa.struct([_STRUCT.field("y")]),
    "fields in another order": pa.struct([_STRUCT.field("y"), _STRUCT.field("x")]),
    "a field of another type": pa.struct([pa.field("x", pa.int64()), _STRUCT.field("y")]),
}


def _replaced(name: str, kind: pa.DataType) -> pa.Schema:
    return SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, kind))


def _written_over(schema: pa.Schema, partition_by: Sequence[str] | None = None) -> _DeltaChange:
    """The rows again in other columns, or none if those do not take them."""

    def change(place: DeltaPlace) -> None:
        rows = place.table().to_pylist()
        try:
            table = pa.Table.from_pylist(rows, schema)
        except pa.ArrowException:
            table = schema.empty_table()
        columns = place.loaded().metadata().partition_columns
        write_deltalake(
            place.loaded(),
            table,
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=list(columns if partition_by is None else partition_by) or None,
        )

    return change


def _with_properties(**properties: str) -> _DeltaChange:
    settings = {f"delta.{name}": value for name, value in properties.items()}
    return lambda place: place.loaded().alter.set_table_properties(
        settings, raise_if_not_exists=False
    )


def _merged(place: DeltaPlace) -> None:
    rows = pa.table({"i": [0], "a": pa.array([99], pa.int32())})
    merger = place.loaded().merge(rows, "t.i = s.i", source_alias="s", target_alias="t")
    merger.when_matched_update({"a": "s.a"}).execute()


def _vacuumed(place: DeltaPlace) -> None:
    place.loaded().vacuum(0, dry_run=False, enforce_retention_duration=False)


_LISTS: Final = {f"list: {name}": ("l", pa.list_(kind)) for name, kind in _STRUCTS.items()}
_MAPS: Final = {
    f"map: {name}": ("m", pa.map_(pa.string(), kind)) for name, kind in _STRUCTS.items()
}
_NESTED: Final = {f"struct: {name}": ("s", kind) for name, kind in _STRUCTS.items()}

DELTA_CHANGES: Final[Mapping[str, _DeltaChange]] = {
    "a further column": _written_over(SCHEMA.append(pa.field("n", pa.string()))),
    "a column less": _written_over(SCHEMA.remove(2)),
    "columns in another order": _written_over(pa.schema(list(reversed(SCHEMA)))),
    "a column of another type": _written_over(_replaced("a", pa.int64())),
    "a column of another name": _written_over(
        SCHEMA.set(2, pa.field("b", pa.int32())),
    ),
    "a partition of another type": _written_over(_replaced("w", pa.int64())),
    "partitioned by text": _written_over(SCHEMA, ["w"]),
    "partitioned by nothing": _written_over(SCHEMA, []),
    "partitioned by a number": _written_over(SCHEMA, ["a"]),
    "partitioned by both": _written_over(SCHEMA, ["w", "a"]),
    **{
        name: _written_over(_replaced(*nested))
        for name, nested in (_NESTED | _LISTS | _MAPS).items()
    },
    "append only": _with_properties(appendOnly="true"),
    "change data feed": _with_properties(enableChangeDataFeed="true"),
    "no statistics": _with_properties(dataSkippingNumIndexedCols="0"),
    "a checkpoint each time": _with_properties(checkpointInterval="1"),
    "a constraint": lambda place: place.loaded().alter.add_constraint({"c": "i >= 0"}),
    "compacted": lambda place: place.loaded().optimize.compact(),
    "sorted": lambda place: place.loaded().optimize.z_order(["i"]),
    "a checkpoint": lambda place: place.loaded().create_checkpoint(),
    "vacuumed": _vacuumed,
    "a row deleted": lambda place: place.loaded().delete("i = 0"),
    "all deleted": lambda place: place.loaded().delete(),
    "a row updated": lambda place: place.loaded().update({"a": "7"}, predicate="i = 0"),
    "merged": _merged,
    "restored": lambda place: place.loaded().restore(0),
    "replaced": lambda place: DeltaTable.create(place.root, schema=SCHEMA, mode="overwrite"),
    "made again": DeltaPlace.replace,
}


def _of_schema(update: Callable[[UpdateSchema], object]) -> _IcebergChange:
    def change(place: IcebergPlace) -> None:
        table = place.catalog.load_table(place.name)
        with table.update_schema(allow_incompatible_changes=True) as updating:
            update(updating)

    return change


def _added_again(place: IcebergPlace) -> None:
    place.drop_column("a")
    _of_schema(lambda update: update.add_column("a", IntegerType()))(place)


def _by(transform: Any, column: str) -> _IcebergChange:  # noqa: ANN401, any of them
    def change(place: IcebergPlace) -> None:
        with place.catalog.load_table(place.name).update_spec() as update:
            update.add_field(column, transform, "p")

    return change


def _with(**properties: str) -> _IcebergChange:
    settings = {
        name.replace("__", "-").replace("_", "."): value for name, value in properties.items()
    }

    def change(place: IcebergPlace) -> None:
        with place.catalog.load_table(place.name).transaction() as transaction:
            transaction.set_properties(settings)

    return change


def _changes_within(name: str, path: tuple[str, ...]) -> dict[str, _IcebergChange]:
    x, z = (*path, "x"), (*path, "z")
    return {
        f"{name}: further field": _of_schema(lambda to: to.add_column(z, LongType())),
        f"{name}: fewer fields": _of_schema(lambda to: to.delete_column(x)),
        f"{name}: another name": _of_schema(lambda to: to.rename_column(x, "q")),
        f"{name}: another type": _of_schema(lambda to: to.update_column(x, field_type=LongType())),
    }


ICEBERG_CHANGES: Final[Mapping[str, _IcebergChange]] = {
    "a further column": _of_schema(lambda to: to.add_column("n", StringType())),
    "a column less": lambda place: place.drop_column("a"),
    "a column added again": _added_again,
    "columns in another order": _of_schema(lambda to: to.move_first("m")),
    "a column of another type": _of_schema(lambda to: to.update_column("a", field_type=LongType())),
    "a column of another name": _of_schema(lambda to: to.rename_column("a", "b")),
    "a column without nulls": _of_schema(lambda to: to.update_column("w", required=True)),
    "partitioned by text": lambda place: place.partition("w"),
    "partitioned by nothing": lambda place: place.partition(),
    "partitioned by a number": lambda place: place.partition("a"),
    "partitioned by both": lambda place: place.partition("w", "a"),
    "partitioned by buckets": _by(BucketTransform(4), "i"),
    "partitioned by a letter": _by(TruncateTransform(1), "w"),
    **_changes_within("struct", ("s",)),
    **_changes_within("list", ("l", "element")),
    **_changes_within("map", ("m", "value")),
    "manifests merged": _with(
        commit_manifest__merge_enabled="true", commit_manifest_min__count__to__merge="1"
    ),
    "no statistics": _with(write_metadata_metrics_default="none"),
    "a row deleted": lambda place: place.catalog.load_table(place.name).delete("i == 0"),
    "all deleted": lambda place: place.catalog.load_table(place.name).delete("i >= 0"),
    "history expired": IcebergPlace.expire,
    "made again": IcebergPlace.replace,
    "removed": IcebergPlace.drop,
}
