"""A Delta table in a folder, by delta-rs."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from coordlog.errors import CoordlogError, DestinationMisfitError, SinkError
from coordlog.limits import TABLE_COMMIT_TRIES, TABLE_FOOTER_THREADS
from coordlog.spark_integration.casts.exact_cast import is_list
from coordlog.spark_integration.files.formats.compatibility import MisfitError, widened
from coordlog.spark_integration.files.names import HIDDEN, NO_VALUE, partition_folder
from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.store.durable import refuse_no_space
from coordlog.spark_integration.files.store.s3_client import s3_options
from coordlog.spark_integration.files.store.store import At
from coordlog.spark_integration.files.tables.column_types import storable
from coordlog.spark_integration.files.tables.table import (
    MARKS,
    OpenedTable,
    TableCommit,
    TableConflictError,
    UnclearError,
)

__all__ = ["DeltaLakeTable"]

_OVERTAKEN: Final = CommitProperties(max_commit_retries=0)
"""Of a change that is made on what was read, or not at all."""
_COMPUTED: Final = ("delta.constraints.", "delta.columnMapping.mode")
"""Prefixes of a table's settings that its writers must obey, and this one does not."""
_COMPUTED_COLUMN: Final = ("delta.generationExpression", "delta.identity.", "delta.invariants")
"""Likewise, of a column's."""
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "timestampNtz-preview",
        "v2Checkpoint",
        "variantType",
    }
)
"""Features of a table that delta-rs writes to."""
_CLOCKS: Final = "timestampNtz"
"""Feature of a table with times without a zone."""
_LACKING_VERSIONS: Final = (6,)
"""Of its versions with fixed features, the one with identity columns."""
_TEXT_MAX: Final = 64
"""Longest text in a file's statistics; longer ones would fill the table's log."""
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
_GREATEST: Final = "\U0010ffff"


class DeltaLakeTable:
    """A `Table` of Delta. It is made by the first rows: its folder is known before.

    Args:
        root: An absolute path, or `s3://BUCKET/PREFIX`.
    """

    keeps_partition_columns = False

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def where(self) -> str:
        """As in the port."""
        return f"delta+file://{self._root}" if self._is_local else f"delta+{self._root}"

    @property
    def _is_local(self) -> bool:
        return self._root.startswith("/")

    @property
    def _options(self) -> Mapping[str, str]:
        """Options of delta-rs: endpoint and credentials as the files are written with, made anew as they expire."""
        return {} if self._is_local else s3_options()

    def exists(self) -> bool:
        """As in the port; also if a job has begun in its folder, and had no rows yet."""
        with _errors(self.where, "it cannot be looked up"):
            is_begun = self._is_local and (Path(self._root) / HIDDEN).is_dir()
            return is_begun or not self._is_local or self._loaded() is not None

    def open(self, columns: pa.Schema | None, partition_by: tuple[str, ...]) -> OpenedTable:
        """As in the port."""
        with _errors(self.where, "it cannot be opened"):
            table = self._loaded()
            if table is None and columns is not None:
                table = self._made(columns, partition_by)
            return self._opened(table, partition_by)

    def settle(self, columns: pa.Schema, partition_by: tuple[str, ...]) -> OpenedTable:
        """As in the port."""
        with _errors(self.where, "it cannot be made"):
            return self._opened(self._loaded() or self._made(columns, partition_by), partition_by)

    def _opened(
        self, table: deltalake.DeltaTable | None, partition_by: tuple[str, ...]
    ) -> OpenedTable:
        if table is not None:
            _check_settings(self.where, table)
        return OpenedTable(
            identity=None if table is None else str(table.metadata().id),
            files_root=self._root,
            has_own_folders=False,
            columns=None if table is None else _arrow(table),
            partition_by=partition_by if table is None else _partition_columns(table),
        )

    def widened_columns(self, columns: pa.Schema) -> pa.Schema:
        """As in the port: columns are added, and no type is changed."""
        with _errors(self.where, "its columns cannot be added"):
            for _ in range(TABLE_COMMIT_TRIES):
                table = deltalake.DeltaTable(self._root, storage_options=dict(self._options))
                now = _arrow(table)
                wanted = storable(widened(now, columns))
                for column in now:
                    other = wanted.field(column.name).type
                    if other != storable(pa.schema([column])).field(0).type:
                        raise MisfitError(
                            f"column {column.name!r} is {column.type}, and would be {other}: this sink widens no "
                            "column of a Delta table"
                        )
                new = [column for column in wanted if column.name not in now.names]
                if not new:
                    return now
                has_clocks = _CLOCKS in (table.protocol().reader_features or ())
                if not has_clocks and (hidden := _hidden_clocks(pa.schema(new))) is not None:
                    raise MisfitError(f"Delta does not add it: {hidden}")
                try:
                    table.alter.add_columns(
                        deltalake.Schema.from_arrow(pa.schema(new)).fields,
                        commit_properties=_OVERTAKEN,
                    )
                except CommitFailedError:
                    continue
                except (DeltaError, OSError):
                    raise
                except Exception as error:
                    raise MisfitError(f"Delta does not add it: {_message(error)}") from error
            raise SinkError(
                self.where,
                f"{TABLE_COMMIT_TRIES} tries to add columns were overtaken by other writers",
                "see which programs write to it, and start the job again",
            )

    def look(self) -> _Look:
        """As in the port."""
        with _errors(self.where, "it cannot be read"):
            return _Look(self._loaded(), self.where, self._files())

    def _files(self) -> pa_fs.FileSystem:
        """The table's folder. By Arrow: delta-rs would hold Python's lock while it reads."""
        if self._is_local:
            return pa_fs.SubTreeFileSystem(self._root, pa_fs.LocalFileSystem())
        options = self._options
        endpoint = options.get("AWS_ENDPOINT_URL")
        s3 = pa_fs.S3FileSystem(
            access_key=options.get("AWS_ACCESS_KEY_ID"),
            secret_key=options.get("AWS_SECRET_ACCESS_KEY"),
            session_token=options.get("AWS_SESSION_TOKEN"),
            region=options["AWS_REGION"],
            endpoint_override=endpoint,
        )
        return pa_fs.SubTreeFileSystem(self._root.removeprefix("s3://"), s3)

    def _loaded(self) -> deltalake.DeltaTable | None:
        try:
            return deltalake.DeltaTable(self._root, storage_options=dict(self._options))
        except TableNotFoundError:
            return None

    def _made(self, columns: pa.Schema, partition_by: tuple[str, ...]) -> deltalake.DeltaTable:
        try:
            schema = deltalake.Schema.from_arrow(storable(columns))
            pa.schema(schema.to_arrow())  # its files will have these
        except Exception as error:
            raise DestinationMisfitError(
                self.where,
                f"Delta does not take these columns: {_message(error)}",
                "cast or rename the column in the transform",
            ) from error
        if (hidden := _hidden_clocks(columns)) is not None:
            raise DestinationMisfitError(
                self.where,
                f"Delta does not take these columns: {hidden}",
                "cast them in the transform, for example each to a time with a zone",
            )
        try:
            return deltalake.DeltaTable.create(
                self._root,
                schema=schema,
                mode="ignore",  # another task may have made it
                partition_by=list(partition_by),
                storage_options=dict(self._options),
                commit_properties=_OVERTAKEN,
            )
        except CommitFailedError:  # or is making it: a second try would replace its table
            return deltalake.DeltaTable(self._root, storage_options=dict(self._options))


class _Look:
    """A `TableLook`: one version of the table."""

    def __init__(
        self, table: deltalake.DeltaTable | None, where: str, files: pa_fs.FileSystem
    ) -> None:
        self._table, self._where, self._files = table, where, files

    @property
    def identity(self) -> str | None:
        """As in the port."""
        return None if self._table is None else str(self._table.metadata().id)

    def settled(self, mark: str) -> int | None:
        """As in the port."""
        with _errors(self._where, "its marks cannot be read"):
            return None if self._table is None else self._table.transaction_version(mark)

    def jobs(self) -> frozenset[str]:
        """As in the port. The table has its marks by name alone: the names are those of the operators' folders."""
        with _errors(self._where, "its hidden folders cannot be listed"):
            hidden = pa_fs.FileSelector(HIDDEN, allow_not_found=True)
            names = [folder.base_name for folder in self._files.get_file_info(hidden)]
        marked = [name for name in names if self.settled(f"{MARKS}{name}") is not None]
        return frozenset(name.partition(".")[0] for name in marked)

    def commit(self, commit: TableCommit, *, at: At) -> None:
        """As in the port: the mark is a transaction of the application of its name, which stays in the table."""
        table = self._table
        if table is None:
            raise SinkError(
                self._where,
                "it does not exist any more, and it has had rows of this job",
                "put it back; or run another job id, which writes all rows again",
            )
        try:
            _check_settings(self._where, table)
            with ThreadPoolExecutor(TABLE_FOOTER_THREADS, "coordlog-footers") as pool:
                read = partial(self._addition, table, _arrow(table))
                actions: list[AddAction | RemoveAction] = [*pool.map(read, commit.files)]
            at("after footers")
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=list(_partition_columns(table)),
                commit_properties=CommitProperties(
                    custom_metadata=dict(commit.properties),
                    # delta-rs would try again without a look for the mark.
                    max_commit_retries=0,
                    app_transactions=[
                        Transaction(commit.mark, commit.number, time.time_ns() // 1_000_000)
                    ],
                ),
                post_commithook_properties=PostCommitHookProperties(),
            )
        except CommitFailedError as error:
            raise TableConflictError(_message(error)) from error
        except CoordlogError:
            raise
        except (
            Exception
        ) as error:  # a file that another driver's commit added may be rewritten and gone
            raise UnclearError(_message(error)) from error

    def _addition(
        self, table: deltalake.DeltaTable, columns: pa.Schema, file: StagedFile
    ) -> AddAction:
        with self._files.open_input_file(file.final) as stream:
            footer = pq.read_metadata(stream)
        partition_by = _partition_columns(table)
        self._check_columns(columns, partition_by, file.final, footer.schema.to_arrow_schema())
        values = self._partition_values(columns, partition_by, file.final)
        return AddAction(
            path=file.final,
            size=file.size_bytes,
            partition_values=values,
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=json.dumps(_statistics(footer), ensure_ascii=False),
        )

    def _partition_values(
        self, columns: pa.Schema, partition_by: Sequence[str], name: str
    ) -> dict[str, str | None]:
        """The values of a file's partition, from its folder, which must be that of the same values now.

        A value of another type would make the table unreadable.
        """
        folder, _, _ = name.rpartition("/")
        texts = [part.partition("=")[2] for part in folder.split("/")] if folder else []
        values = [None if text == NO_VALUE else _unescaped(text) for text in texts]
        if len(values) != len(partition_by) or folder != self._folder(
            columns, partition_by, values
        ):
            fields = [columns.field(column) for column in partition_by]
            by = ", ".join(
                f"{field.name} of {field.type}{'' if field.nullable else ', never null'}"
                for field in fields
            )
            raise DestinationMisfitError(
                self._where,
                f"its partitions were changed since {name} was written: they are by {by or 'nothing'}",
                "partition it as before, and run the same command again; change its partitions once the job has "
                "nothing left to commit",
            )
        return dict(zip(partition_by, values, strict=True))

    def _folder(
        self, columns: pa.Schema, partition_by: Sequence[str], values: Sequence[str | None]
    ) -> str | None:
        """The folder of values in the types of the table's columns; None if a column does not take its value."""
        fields = [columns.field(column) for column in partition_by]
        if any(
            value is None and not field.nullable
            for field, value in zip(fields, values, strict=True)
        ):
            return None
        try:
            typed = tuple(
                pa.scalar(value, pa.string()).cast(field.type).as_py()
                for field, value in zip(fields, values, strict=True)
            )
        except (pa.ArrowException, ValueError):
            return None
        return partition_folder(self._where, tuple(partition_by), typed)

    def _check_columns(
        self, now: pa.Schema, partition_by: Sequence[str], name: str, written: pa.Schema
    ) -> None:
        """Refuse a file that the table does not take: another program has changed its columns since."""
        problems = [
            f"column {column.name!r} was dropped"
            if column.name not in now.names
            else f"column {column.name!r} is {now.field(column.name).type}, and in the file {column.type}"
            for column in written
            if column.name not in now.names
            or not _is_readable_as(column.type, now.field(column.name).type)
        ]
        problems += [
            f"column {column.name!r} must have values, and the file lacks it"
            for column in now
            if not column.nullable
            and column.name not in written.names
            and column.name not in partition_by
        ]
        if problems:
            raise DestinationMisfitError(
                self._where,
                f"its columns were changed since {name} was written: {'; '.join(problems)}",
                "change them back, and run the same command again",
            )


def _is_readable_as(written: pa.DataType, now: pa.DataType) -> bool:
    """Whether readers of the type `now` read values of the type `written`, in which fields that came later are null.

    Fields of structs in maps must be the same: delta-rs (1.6.6) does not read them else.
    """
    if pa.types.is_struct(written) and pa.types.is_struct(now):
        former, fields = {field.name: field.type for field in written}, {one.name for one in now}
        return former.keys() <= fields and all(
            _is_readable_as(former[field.name], field.type)
            if field.name in former
            else field.nullable
            for field in now
        )
    if is_list(written) and is_list(now):
        return _is_readable_as(written.value_type, now.value_type)
    both = storable(pa.schema([("written", written), ("now", now)]))
    return bool(both.field(0).type == both.field(1).type)


def _hidden_clocks(columns: pa.Schema) -> str | None:
    """The column for which delta-rs would make a table that no reader opens.

    It looks for times without a zone, but not in maps, and without any the table lacks their feature.
    """
    if any(_has_clock(column.type, in_maps=False) for column in columns):
        return None
    return next(
        (
            f"column {column.name!r} has times without a zone in a map, and delta-rs would make a table that no "
            "reader opens"
            for column in columns
            if _has_clock(column.type, in_maps=True)
        ),
        None,
    )


def _has_clock(kind: pa.DataType, *, in_maps: bool) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    if pa.types.is_map(kind) and not in_maps:
        return False
    return any(_has_clock(kind.field(i).type, in_maps=in_maps) for i in range(kind.num_fields))


def _check_settings(where: str, table: deltalake.DeltaTable) -> None:
    """Refuse a table whose writers must check or compute values, or do what delta-rs does not."""
    protocol = table.protocol()
    lacking = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if protocol.min_writer_version in _LACKING_VERSIONS:
        lacking.append(f"writer version {protocol.min_writer_version}")
    if lacking:
        raise SinkError(
            where,
            f"its writers must have {', '.join(lacking)}, which delta-rs lacks",
            "use a table without, or write it with Spark alone",
        )
    settings = [
        name
        for name, value in table.metadata().configuration.items()
        if name.startswith(_COMPUTED) and value != "none"
    ]
    settings += [
        f"{name} of column {path!r}"
        for path, names in _settings_of(json.loads(table.schema().to_json()), "")
        for name in names
        if name.startswith(_COMPUTED_COLUMN)
    ]
    if settings:
        raise SinkError(
            where,
            f"its writers must obey {', '.join(settings)}; this sink adds files as they are",
            "use a table without, or write it with Spark alone",
        )


def _settings_of(kind: object, path: str) -> Iterator[tuple[str, Collection[str]]]:
    """Path and settings of each column in a type of Delta's own schema, also of parts of nested columns."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        inner = f"{path}.{field['name']}" if path else str(field["name"])
        yield inner, field["metadata"]
        yield from _settings_of(field["type"], inner)
    for part in ("elementType", "keyType", "valueType"):
        yield from _settings_of(kind.get(part), path)


def _arrow(table: deltalake.DeltaTable) -> pa.Schema:
    """Columns of the table, plain."""
    schema = pa.schema(table.schema().to_arrow())
    return pa.schema(
        [pa.field(column.name, column.type, nullable=column.nullable) for column in schema]
    )


def _partition_columns(table: deltalake.DeltaTable) -> tuple[str, ...]:
    return tuple(str(column) for column in table.metadata().partition_columns)


def _unescaped(text: str) -> str:
    """Column or value of a partition, as Delta spells it, from its folder."""
    return unquote(text, errors="surrogatepass")


def _statistics(footer: pq.FileMetaData) -> dict[str, object]:
    """Statistics of a file, as Delta has them: of its plain columns.

    The bounds of all columns, or of none: delta-rs takes a column without bounds, beside others that have them, for one
    without values. So a file with floats or decimals has none: its footer does not show NaN, which Spark takes for the
    greatest number, and JSON has no decimals.
    """
    plain = frozenset(
        column.name
        for column in footer.schema.to_arrow_schema()
        if not pa.types.is_nested(column.type) and not _is_bytes(column.type)
    )
    # A part of a nested column may have the path of a plain one: `a.b`.
    paths = Counter(footer.schema.column(number).path for number in range(footer.num_columns))
    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[object, object] | None] = {}
    for number in range(footer.num_columns):
        name = footer.schema.column(number).path
        if name not in plain:
            continue
        groups = [footer.row_group(i).column(number) for i in range(footer.num_row_groups)]
        chunks = [group.statistics for group in groups]
        if paths[name] > 1 or any(one is None or not one.has_null_count for one in chunks):
            bounds[name] = None
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        valued = [chunk for chunk in chunks if chunk.num_values]
        if valued:
            bounds[name] = _bounds(valued)
    statistics: dict[str, object] = {"numRecords": footer.num_rows, "nullCount": nulls}
    known = {name: both for name, both in bounds.items() if both is not None}
    if known and len(known) == len(bounds):
        statistics["minValues"] = {name: low for name, (low, _) in known.items()}
        statistics["maxValues"] = {name: high for name, (_, high) in known.items()}
    return statistics


def _bounds(chunks: Sequence[pq.Statistics]) -> tuple[object, object] | None:
    """Least and greatest value, in types of JSON; None if they are not known, or have no text."""
    if not all(chunk.has_min_max for chunk in chunks):
        return None
    try:
        low, high = min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
    except (OverflowError, ValueError):  # a date before Python's first year, or after its last
        return None
    match low, high:
        case int(), int():  # booleans too
            return low, high
        case str(), str():
            if len(high) > _TEXT_MAX:
                high = f"{high[:_TEXT_MAX]}{_GREATEST}" if high[_TEXT_MAX] < _GREATEST else None
            return None if high is None else (low[:_TEXT_MAX], high)
        case dt.datetime(), dt.datetime():
            # To the millisecond, outwards; the last one of Python's calendar has none after it.
            try:
                return _text(low), _text(high + dt.timedelta(microseconds=-high.microsecond % 1000))
            except OverflowError:
                return _text(low), _text(high, "microseconds")
        case dt.date(), dt.date():
            return low.isoformat(), high.isoformat()
        case _:
            return None


def _text(time_of: dt.datetime, to: str = "milliseconds") -> str:
    """Downwards."""
    text = time_of.replace(tzinfo=None).isoformat(timespec=to)
    return text if time_of.tzinfo is None else f"{text}Z"


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


@contextmanager
def _errors(where: str, problem: str) -> Generator[None]:
    """Errors of delta-rs as SinkError."""
    try:
        yield
    except (CoordlogError, MisfitError):
        raise
    except Exception as error:  # some of its errors have no class of their own
        refuse_no_space(where, problem, error)
        raise SinkError(
            where,
            f"{problem}: {_message(error)}",
            "see whether it is a Delta table; if another program has just cleaned up its log, run the same command "
            "again",
        ) from error


def _message(error: Exception) -> str:
    lines = _COLOUR.sub("", str(error)).strip().splitlines() or [""]
    # Further ones are causes, or of its call stack.
    causes = [line.strip()[1:].strip() for line in lines[1:] if line.strip().startswith("↳")]
    return f"{type(error).__name__}: {' '.join(': '.join([lines[0], *causes]).split())[:500]}"
