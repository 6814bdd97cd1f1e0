"""An Iceberg table in a catalog, by pyiceberg."""

from __future__ import annotations

import re
import threading
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import exceptions as refused
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatsAggregator,
    UnsupportedPyArrowTypeException,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table as LoadedTable
from pyiceberg.table import Transaction
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertTableUUID
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Properties, Record
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from coordlog.errors import CoordlogError, DestinationMisfitError, SinkError
from coordlog.limits import TABLE_COMMIT_TRIES, TABLE_FOOTER_THREADS
from coordlog.spark_integration.files.formats.compatibility import MisfitError, widened
from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.store.durable import refuse_no_space
from coordlog.spark_integration.files.store.store import At
from coordlog.spark_integration.files.tables.column_types import storable
from coordlog.spark_integration.files.tables.table import (
    MARKS,
    OpenedTable,
    TableCommit,
    TableConflictError,
    UnclearError,
    has_reached,
)

__all__ = ["IcebergTable"]

_NOT_MADE: Final = (
    refused.BadRequestError,
    refused.ForbiddenError,
    refused.NoSuchTableError,
    refused.UnauthorizedError,
)
"""Errors of a commit that was not made, and will not be."""
_VERSIONS: Final = (1, 2)
"""Versions of the format that pyiceberg writes."""
_UUID_BYTES: Final = 16
_LOCAL: Final = re.compile("^file:(//)?(?=/[^/])")
"""Before a local path: of pyiceberg, or as Spark writes it."""
_NO_METRICS: Final = MetricsMode(MetricModeTypes.NONE)
_COUNTS: Final = MetricsMode(MetricModeTypes.COUNTS)
_ALL_METRICS: Final = MetricsMode(MetricModeTypes.FULL)
_TIMES: Final = (DateType, TimestampType, TimestamptzType)


class IcebergTable:
    """A `Table` of Iceberg, whose columns and properties are changed by its own commits, each on what was read.

    Args:
        name: `NAMESPACE.TABLE`.
        catalog: Name of the catalog.
        properties: Properties of the catalog; those that pyiceberg finds under its name are added.
    """

    def __init__(self, name: str, catalog: str, properties: Mapping[str, str]) -> None:
        self._name, self._catalog_name, self._properties = name, catalog, dict(properties)
        self._lock = threading.Lock()
        self._made_catalog: Catalog | None = None

    def __getstate__(self) -> dict[str, object]:
        """State for the tasks: without the client."""
        return {
            "_name": self._name,
            "_catalog_name": self._catalog_name,
            "_properties": self._properties,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore without a client: the first call makes one."""
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._made_catalog = None

    keeps_partition_columns = True

    @property
    def where(self) -> str:
        """As in the port."""
        return f"iceberg://{self._catalog_name}/{self._name}"

    def exists(self) -> bool:
        """As in the port."""
        with self._errors("it cannot be looked up"):
            return self._catalog.table_exists(self._name)

    def open(self, columns: pa.Schema | None, partition_by: tuple[str, ...]) -> OpenedTable:
        """As in the port.

        A table that is made has no columns at first: its location is needed before its first rows.
        """
        with self._errors("it cannot be opened"):
            table = self._made() if columns is None else self._with_columns(columns, partition_by)
            return self._opened(table, partition_by)

    def look(self) -> _Look:
        """As in the port."""
        with self._errors("it cannot be read"):
            try:
                return _Look(self._catalog.load_table(self._name), self.where)
            except refused.NoSuchTableError as error:
                raise SinkError(
                    self.where,
                    "it does not exist any more, and it has had rows of this job",
                    "put it back; or run another job id, which writes all rows again",
                ) from error

    def settle(self, columns: pa.Schema, partition_by: tuple[str, ...]) -> OpenedTable:
        """As in the port."""
        with self._errors("its columns cannot be added"):
            return self._opened(self._with_columns(columns, partition_by), partition_by)

    def _opened(self, table: LoadedTable, partition_by: tuple[str, ...]) -> OpenedTable:
        _check_writable(self.where, table)
        schema = table.schema()
        return OpenedTable(
            identity=str(table.metadata.table_uuid),
            files_root=f"{_plain(table.location())}/data",
            has_own_folders=True,
            columns=schema_to_pyarrow(schema) if schema.fields else None,
            partition_by=self._columns_of(table.spec(), schema) if schema.fields else partition_by,
        )

    def widened_columns(self, columns: pa.Schema) -> pa.Schema:
        """As in the port."""
        with self._errors("its columns cannot be widened"):
            for _ in range(TABLE_COMMIT_TRIES):
                table = self._catalog.load_table(self._name)
                now = schema_to_pyarrow(table.schema())
                changed = _changed(now, widened(now, columns))
                if not changed.names:
                    return now
                try:
                    with table.update_schema() as update:
                        update.union_by_name(changed)
                except refused.CommitFailedException:
                    continue
                except (
                    UnsupportedPyArrowTypeException,
                    ValueError,
                    refused.ResolveError,
                    refused.ValidationError,
                ) as error:
                    raise MisfitError(f"Iceberg does not widen it so: {error}") from error
                return schema_to_pyarrow(table.schema())
            raise self._overtaken("widen its columns")

    def _made(self) -> LoadedTable:
        catalog = self._catalog
        try:
            return catalog.load_table(self._name)
        except refused.NoSuchTableError:
            namespace = self._name.rpartition(".")[0]
            try:
                catalog.create_namespace_if_not_exists(namespace)
            # Another program may make it at the same time, and pyiceberg does not notice.
            except Exception:
                if not catalog.namespace_exists(namespace):
                    raise
            return catalog.create_table_if_not_exists(self._name, schema=Schema())

    def _with_columns(self, columns: pa.Schema, partition_by: tuple[str, ...]) -> LoadedTable:
        for _ in range(TABLE_COMMIT_TRIES):
            table = self._made()
            if table.schema().fields:
                return table
            try:
                with table.transaction() as transaction:
                    with transaction.update_schema() as update:
                        update.union_by_name(storable(columns))
                    if partition_by:
                        with transaction.update_spec() as spec:
                            for column in partition_by:
                                spec.add_identity(column)
            except refused.CommitFailedException:
                continue
            except UnsupportedPyArrowTypeException as error:
                raise DestinationMisfitError(
                    self.where,
                    f"Iceberg has no such type: {error}",
                    "cast the column in the transform",
                ) from error
            return table
        raise self._overtaken("add its columns")

    def _overtaken(self, purpose: str) -> SinkError:
        return SinkError(
            self.where,
            f"{TABLE_COMMIT_TRIES} tries to {purpose} were overtaken by other writers",
            "see which programs write to it, and start the job again",
        )

    def _columns_of(self, spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
        """Columns of the partitions."""
        parts = _parts_of(spec)
        for field in parts:
            if not isinstance(field.transform, IdentityTransform):
                raise SinkError(
                    self.where,
                    f"it is partitioned by {field.name}, {field.transform} of a column; this sink writes partitions "
                    "by columns themselves",
                    "use a table that is partitioned by columns, or by nothing; if this one was, partition it so again",
                )
        return tuple(str(schema.find_column_name(field.source_id)) for field in parts)

    @property
    def _catalog(self) -> Catalog:
        with self._lock:
            if self._made_catalog is None:
                load = partial(load_catalog, self._catalog_name, **self._properties)
                try:
                    self._made_catalog = load()
                # Another program may make a new one in a database at the same time.
                except Exception:  # noqa: BLE001, databases raise errors of their own
                    self._made_catalog = load()
            return self._made_catalog

    @contextmanager
    def _errors(self, problem: str) -> Generator[None]:
        """Errors of pyiceberg and of its catalogs, which have no class in common, as SinkError."""
        try:
            yield
        except (CoordlogError, MisfitError):
            raise
        except Exception as error:
            refuse_no_space(self.where, problem, error)
            raise SinkError(
                self.where,
                f"{problem}: {_message(error)}",
                "see the settings of the catalog (.pyiceberg.yaml, PYICEBERG_CATALOG__…, `properties=`)",
            ) from error


class _OneTry(Transaction):
    """A transaction that is committed once: pyiceberg's own would try again without a look for the mark."""

    def append(  # type: ignore[override]
        self, files: list[DataFile], properties: dict[str, str]
    ) -> None:
        """Add files, in a manifest of their own or merged, as the table has it.

        Manifests of former partitions, of which a column was dropped, cannot be merged: see `_lost_parts`.
        """
        may_merge = not any(
            any(_lost_parts(spec, self.table_metadata.schema()))
            for spec in self.table_metadata.specs().values()
        )
        with (
            self._append_snapshot_producer(properties)
            if may_merge
            else self.update_snapshot(snapshot_properties=properties).fast_append()
        ) as producer:
            for file in files:
                producer.append_data_file(file)

    def commit_transaction(self) -> LoadedTable:
        """Commit, or raise what the catalog raised."""
        requirements = (
            *self._requirements,
            AssertTableUUID(uuid=self.table_metadata.table_uuid),
            # The files were compared with these, and a change of columns alone is no new snapshot.
            AssertCurrentSchemaId.model_validate(
                {"current-schema-id": self.table_metadata.current_schema_id}
            ),
            AssertDefaultSpecId.model_validate(
                {"default-spec-id": self.table_metadata.default_spec_id}
            ),
        )
        self._table._do_commit(self._updates, requirements)  # noqa: SLF001, see the class
        return self._table

    def remove_uncommitted(self) -> None:
        """Remove the manifests of a commit that was not made."""
        for producer in self._snapshot_producers:
            producer._clean_all_uncommitted()  # noqa: SLF001, as pyiceberg's own commit does


class _Look:
    """A `TableLook`: the metadata that the catalog named."""

    def __init__(self, table: LoadedTable, where: str) -> None:
        self._table, self._where = table, where
        self._columns = index_by_id(table.schema())

    @property
    def identity(self) -> str | None:
        """As in the port."""
        return str(self._table.metadata.table_uuid)

    def settled(self, mark: str) -> int | None:
        """As in the port."""
        value = self._table.properties.get(mark)
        if value is not None and not value.isdecimal():
            raise SinkError(
                self._where,
                f"its property {mark} is {value!r}, and no number of a commit",
                "put back the number that it had: it counts the commits of the job",
            )
        return None if value is None else int(value)

    def jobs(self) -> frozenset[str]:
        """As in the port."""
        marks = [name for name in self._table.properties if name.startswith(MARKS)]
        return frozenset(mark.removeprefix(MARKS).partition(".")[0] for mark in marks)

    def commit(self, commit: TableCommit, *, at: At) -> None:
        """As in the port: the mark is a property, which stays if the snapshot expires."""
        _check_writable(self._where, self._table)
        transaction = _OneTry(self._table)
        try:
            with ThreadPoolExecutor(TABLE_FOOTER_THREADS, "coordlog-footers") as pool:
                read = partial(self._data_file, commit.root)
                files = list(pool.map(read, commit.files))
            transaction.set_properties({commit.mark: str(commit.number)})
            # Also without files: a commit of properties alone would not conflict with one of files on the same look.
            transaction.append(files, dict(commit.properties))
            at("after manifests")
            transaction.commit_transaction()
        except refused.CommitFailedException as error:
            self._remove_uncommitted(transaction, commit)
            raise TableConflictError(str(error)) from error
        except _NOT_MADE as error:
            raise SinkError(
                self._where, f"its catalog refuses a commit: {_message(error)}", "allow it there"
            ) from error
        except CoordlogError:
            raise
        except (
            Exception
        ) as error:  # a file that another driver's commit added may be rewritten and gone
            raise UnclearError(_message(error)) from error

    def _remove_uncommitted(self, transaction: _OneTry, commit: TableCommit) -> None:
        """Remove the manifests, unless the table has the mark.

        A gateway that sends a commit twice has it made, and then refused. Its snapshot proves nothing: it may have
        expired, and later ones have its manifests.
        """
        try:
            self._table.refresh()
            if not has_reached(self, commit.mark, commit.number):
                transaction.remove_uncommitted()
        except Exception as error:  # the catalog does not answer: manifests of no snapshot stay
            raise UnclearError(_message(error)) from error

    def _data_file(self, root: str, file: StagedFile) -> DataFile:
        path, table = f"{root}/{file.final}", self._table
        with table.io.new_input(path).open() as stream:
            metadata = pq.read_metadata(stream)
        schema = pyarrow_to_schema(metadata.schema.to_arrow_schema())
        self._check_columns(path, schema)
        statistics = _statistics(metadata, schema, table.properties)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=self._partition(path, metadata, schema),
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _partition(self, path: str, metadata: pq.FileMetaData, schema: Schema) -> Record:
        """The partition of a file: its least and greatest values, whatever statistics the table has."""
        spec = self._table.spec()
        parts = _parts_of(spec)
        sources = {field.source_id for field in parts}
        plan = {
            number: replace(column, mode=_ALL_METRICS if number in sources else _NO_METRICS)
            for number, column in compute_statistics_plan(schema, {}).items()
        }
        statistics = data_file_statistics_from_parquet_metadata(
            metadata, plan, parquet_path_to_id_mapping(schema)
        )
        values = Record()
        try:
            mixed = [field.name for field in parts if _has_several(statistics, field.source_id)]
            values = statistics.partition(PartitionSpec(*parts), self._table.schema())
        except ValueError as error:  # several values, or a function without an order
            mixed = [str(error)]
        if mixed:
            raise DestinationMisfitError(
                self._where,
                f"its partitions were changed since {path} was written, which has rows of several of them: "
                f"{'; '.join(mixed)}",
                "partition it as before, and run the same command again; change its partitions once the job has "
                "nothing left to commit",
            )
        numbers = {field.field_id: number for number, field in enumerate(parts)}
        return Record(
            *(
                values[numbers[field.field_id]] if field.field_id in numbers else None
                for field in spec.fields
            )
        )

    def _check_columns(self, path: str, schema: Schema) -> None:
        """Refuse a file with values that the table has no column for: another program has changed its columns since."""
        written = index_by_id(schema)
        problems: list[str] = []
        for number, field in written.items():
            now = self._columns.get(number)
            if now is None:
                problems.append(f"column {field.name!r} was dropped or replaced")
            elif not _is_readable_as(field.field_type, now.field_type):
                problems.append(
                    f"column {field.name!r} is {now.field_type}, and in the file {field.field_type}"
                )
        problems += [
            f"column {name!r} is required, and the file lacks it"
            for name in _lacking(self._table.schema().fields, written)
        ]
        if problems:
            raise DestinationMisfitError(
                self._where,
                f"its columns were changed since {path} was written: {'; '.join(problems)}",
                "make the former schema current, as docs/tables.md shows, and run the same command again: a column "
                "that is added again is another one",
            )


def _check_writable(where: str, table: LoadedTable) -> None:
    """Refuse a table that pyiceberg does not write, or in a way that no reader opens."""
    version = table.format_version
    if version not in _VERSIONS:
        raise SinkError(
            where,
            f"its format has version {version}, which pyiceberg does not write",
            f"use a table of version {_VERSIONS[-1]}, or write it with Spark alone",
        )
    if lost := next(_lost_parts(table.spec(), table.schema()), None):
        raise SinkError(
            where,
            f"the column of its dropped partition {lost.name!r} was dropped too, and no reader would open what "
            "pyiceberg writes then",
            "make a schema current that has the column, as docs/tables.md shows, or write the table with Spark alone",
        )


def _lost_parts(spec: PartitionSpec, schema: Schema) -> Iterator[PartitionField]:
    """Fields of partitions whose columns were dropped: pyiceberg (0.12.0) writes no valid manifest of them."""
    return (field for field in spec.fields if schema.find_column_name(field.source_id) is None)


def _parts_of(spec: PartitionSpec) -> Sequence[PartitionField]:
    """Fields of a partition that have values: version 1 of the format keeps dropped ones, as `void`."""
    return [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]


def _lacking(fields: Iterable[NestedField], written: Container[int]) -> Iterator[str]:
    """Required columns that a file lacks, also within those that it has."""
    for field in fields:
        match field.field_type:
            case _ if field.field_id not in written:
                if field.required:
                    yield field.name
            case StructType(fields=inner):
                yield from _lacking(inner, written)
            case ListType(element_field=inner):
                yield from _lacking([inner], written)
            case MapType(value_field=inner):
                yield from _lacking([inner], written)
            case _:
                pass


def _has_several(statistics: DataFileStatistics, number: int) -> bool:
    """Whether a column has, or may have, several values in a file, null among them; not seen for two that are not null.

    Numbers with a floating point may be NaN, which the bounds do not show.
    """
    if number not in statistics.value_counts:
        return False  # the file lacks the column: null
    nulls, bounds = (
        statistics.null_value_counts.get(number),
        statistics.column_aggregates.get(number),
    )
    if nulls == 0:
        return bounds is None or isinstance(bounds.current_min, float | None)
    return nulls != statistics.value_counts[number]


def _statistics(
    metadata: pq.FileMetaData, schema: Schema, properties: Properties
) -> DataFileStatistics:
    """Statistics of a file, as the table has them; without bounds that cannot be made.

    Those of times beyond Python's years cannot be read. Those of a text may be no text: pyiceberg cuts it, and then
    raises its last character by one, which may give a surrogate.
    """
    plan = compute_statistics_plan(schema, properties)
    numbers = parquet_path_to_id_mapping(schema)
    try:
        statistics = data_file_statistics_from_parquet_metadata(metadata, plan, numbers)
    except (OverflowError, ValueError):
        counted = {
            number: replace(column, mode=_COUNTS)
            for number, column in plan.items()
            if isinstance(column.iceberg_type, _TIMES) and column.mode != _NO_METRICS
        }
        statistics = data_file_statistics_from_parquet_metadata(metadata, plan | counted, numbers)
    bounds = statistics.column_aggregates
    return replace(
        statistics,
        column_aggregates={n: both for n, both in bounds.items() if _are_writable(both)},
    )


def _are_writable(bounds: StatsAggregator) -> bool:
    try:
        bounds.min_as_bytes()
        bounds.max_as_bytes()
    except UnicodeError:
        return False
    return True


def _changed(now: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """Columns of `wanted` that a table lacks or has with another type. A column that must have values still must.

    Raises:
        MisfitError: A nested column would change, of which a part must have values: it would not have to any more.
    """
    changed: list[pa.Field] = []
    for column, plain in zip(wanted, storable(wanted), strict=True):
        if column.name not in now.names:
            changed.append(plain)
            continue
        former = now.field(column.name)
        if storable(pa.schema([former])).field(0).type == plain.type:
            continue
        if pa.types.is_nested(former.type) and "not null" in str(former.type):
            raise MisfitError(
                f"column {column.name!r} is {former.type}, of which parts must have values, and would be {plain.type}"
            )
        changed.append(plain.with_nullable(former.nullable))
    return pa.schema(changed)


def _is_readable_as(written: IcebergType, now: IcebergType) -> bool:
    """Whether readers of the type `now` read values of the type `written`; parts of nested types are judged alone."""
    if not written.is_primitive:
        return type(written) is type(now)
    match written, now:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return written.scale == now.scale and written.precision <= now.precision
        case FixedType(), UUIDType():
            return len(written) == _UUID_BYTES
        case _:
            return written == now


def _plain(location: str) -> str:
    """A table's location, of which a local one is a path: a URL would have the escapes of folders decoded."""
    return _LOCAL.sub("", location.rstrip("/"))


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
