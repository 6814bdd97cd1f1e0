"""Tables of each format, as those see them who do not go through a job's sink."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import itertools
import json
import urllib.parse
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import DataScan

from coordlog.spark_integration.files.store.s3_client import s3_options
from coordlog.spark_integration.files.tables.delta import DeltaSink
from coordlog.spark_integration.files.tables.iceberg import IcebergSink
from coordlog.spark_integration.files.tables.sink import TableSink
from servers.rest_catalog import RunningCatalog
from servers.s3_server import S3Server

__all__ = [
    "JOB",
    "DeltaInBucket",
    "DeltaPlace",
    "IcebergByRest",
    "IcebergInBucket",
    "IcebergPlace",
    "Place",
]

JOB = "ingest"
_NAMESPACES = itertools.count()


def no_pause(seconds: float) -> None:
    """Of two commits that meet, the second looks again at once."""


def own_words(descriptions: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Of descriptions of commits those of coordlog's, and of them its own keys."""
    own = (
        {key: value for key, value in one.items() if key.startswith("coordlog.")}
        for one in descriptions
    )
    return [one for one in own if one]


class Place(ABC):
    """A table, as those see it who do not go through the sink."""

    widens_types = True
    empty_word: str | None = ""
    """The empty string as the value of a partition."""

    @abstractmethod
    def new_sink(self, **options: Any) -> TableSink:  # noqa: ANN401, the sink's own
        """A sink of it, as another process would make one; not prepared."""

    @abstractmethod
    def table(self) -> pa.Table:
        """All its rows."""

    @abstractmethod
    def numbers_of(self, column: str, value: Any) -> list[int]:  # noqa: ANN401, of any column
        """Values of `i` in the rows with this value, found by partitions and statistics."""

    @abstractmethod
    def files_for(self, column: str, value: Any) -> int:  # noqa: ANN401, of any column
        """Number of files in which the reader looks for this value."""

    def intents(self) -> list[str]:
        """The intents that its commits name, oldest first."""
        return [one["coordlog.intent"] for one in self.described()]

    @abstractmethod
    def described(self) -> list[dict[str, str]]:
        """How the sink's commits describe themselves, oldest first."""

    @abstractmethod
    def make(self, columns: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Its owner makes it, or gives it these columns."""

    @abstractmethod
    def partition(self, *columns: str) -> None:
        """Its owner partitions it by these columns from now on."""

    @abstractmethod
    def drop_column(self, column: str) -> None:
        """Its owner drops a column."""

    @abstractmethod
    def drop(self) -> None:
        """Its owner drops it."""

    def kept_by_partitioning(self, numbers: list[int]) -> list[int]:
        """Those of the rows that the format keeps when the owner changes the partitions."""
        return numbers

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Another program writes rows."""

    @abstractmethod
    def rewrite(self) -> None:
        """Its owner rewrites all its files, and removes the former ones and the history of commits."""

    @abstractmethod
    def replace(self) -> None:
        """Its owner drops it, and makes another of its name."""

    @abstractmethod
    def broken(self, *, loses: str, times: int) -> contextlib.AbstractContextManager[None]:
        """Commits of this process fail so many times; `loses` the "request" or the "answer"."""

    @abstractmethod
    def names(self) -> list[str]:
        """All that stands there, hidden things too."""

    @abstractmethod
    def remove_file(self, name: str) -> None:
        """Remove one of `names`."""

    def sink(self, pause: Callable[[float], None] = no_pause, **options: Any) -> TableSink:  # noqa: ANN401, the sink's own
        sink = self.new_sink(**options)
        sink._files.pause = pause
        sink.spec()
        sink.prepare(JOB)
        return sink

    def rows(self) -> Counter[int]:
        return Counter(self.table()["i"].to_pylist())

    def staged(self) -> list[str]:
        return sorted(one for one in self.names() if "/staging/" in one)


def names_below(root: Path) -> list[str]:
    return [str(one) for one in root.rglob("*") if one.is_file()]


class IcebergPlace(Place):
    name = "ns.t"
    catalog_class: ClassVar[type[Catalog]] = SqlCatalog

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{root}/catalog.db",
            "warehouse": f"file://{root}/warehouse",
        }

    def names(self) -> list[str]:
        return names_below(self.root)

    def remove_file(self, name: str) -> None:
        Path(name).unlink()

    @property
    def catalog(self) -> Catalog:
        return load_catalog("local", **self.properties)

    def new_sink(self, **options: Any) -> TableSink:  # noqa: ANN401, the sink's own
        return IcebergSink(self.name, catalog="local", properties=self.properties, **options)

    def table(self) -> pa.Table:
        return self.catalog.load_table(self.name).scan().to_arrow()

    def numbers_of(self, column: str, value: Any) -> list[int]:  # noqa: ANN401, of any column
        return sorted(self._scan(column, value).to_arrow()["i"].to_pylist())

    def files_for(self, column: str, value: Any) -> int:  # noqa: ANN401, of any column
        return len(list(self._scan(column, value).plan_files()))

    def _scan(self, column: str, value: Any) -> DataScan:  # noqa: ANN401, of any column
        if isinstance(value, dt.date):
            value = value.isoformat()
        return self.catalog.load_table(self.name).scan(EqualTo(column, value))  # type: ignore[call-arg, arg-type]

    def described(self) -> list[dict[str, str]]:
        snapshots = self.catalog.load_table(self.name).snapshots()
        summaries = [
            one.summary.additional_properties for one in snapshots if one.summary is not None
        ]
        return own_words(summaries)

    def make(self, columns: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        self.catalog.create_namespace_if_not_exists(self.name.partition(".")[0])
        table = self.catalog.create_table_if_not_exists(self.name, columns)
        if not table.schema().fields:
            with table.update_schema() as update:
                update.union_by_name(columns)
        if partition_by:
            self.partition(*partition_by)

    def partition(self, *columns: str) -> None:
        with self.catalog.load_table(self.name).update_spec() as update:
            for field in self.catalog.load_table(self.name).spec().fields:
                update.remove_field(field.name)
            for column in columns:
                update.add_identity(column)

    def drop_column(self, column: str) -> None:
        with self.catalog.load_table(self.name).update_schema() as update:
            update.delete_column(column)

    def drop(self) -> None:
        self.catalog.drop_table(self.name)

    def append(self, rows: pa.Table) -> None:
        self.catalog.load_table(self.name).append(rows)

    def rewrite(self) -> None:
        table = self.catalog.load_table(self.name)
        files = [task.file.file_path for task in table.scan().plan_files()]
        table.overwrite(table.scan().to_arrow())
        self.expire()
        for file in files:
            table.io.delete(file)

    def expire(self) -> None:
        """Expire all snapshots but the newest."""
        table = self.catalog.load_table(self.name)
        now = table.current_snapshot()
        assert now is not None
        former = [
            one.snapshot_id for one in table.snapshots() if one.snapshot_id != now.snapshot_id
        ]
        table.maintenance.expire_snapshots().by_ids(former).commit()

    def replace(self) -> None:
        catalog = self.catalog
        schema = catalog.load_table(self.name).schema()
        catalog.drop_table(self.name)
        catalog.create_table(self.name, schema=schema)

    @contextlib.contextmanager
    def broken(self, *, loses: str, times: int) -> Any:  # noqa: ANN401, a context
        real, left = self.catalog_class.commit_table, itertools.repeat(None, times)

        def commit_table(*arguments: Any) -> Any:  # noqa: ANN401
            if loses == "answer":
                real(*arguments)
            for _ in left:
                raise OSError("the connection was reset")
            return real(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.catalog_class, "commit_table", commit_table)
            yield


class IcebergByRest(IcebergPlace):
    """A catalog behind HTTP, which all places share: each has a namespace."""

    catalog_class: ClassVar[type[Catalog]] = RestCatalog

    def __init__(self, root: Path, catalog: RunningCatalog) -> None:
        root.mkdir()
        namespace = f"ns{next(_NAMESPACES)}"
        self.name, self.root = f"{namespace}.t", catalog.warehouse / namespace
        self.properties = {"type": "rest", "uri": catalog.uri}


class IcebergInBucket(IcebergPlace):
    """A catalog in SQLite, and the table's files in a store with S3's protocol."""

    def __init__(self, root: Path, server: S3Server) -> None:
        super().__init__(root)
        self.server, self.bucket = server, server.new_bucket()
        self.properties |= {
            "warehouse": f"s3://{self.bucket}/warehouse",
            "s3.endpoint": server.endpoint,
            "s3.access-key-id": "testing",
            "s3.secret-access-key": "testing",
            "s3.region": "us-east-1",
        }

    def names(self) -> list[str]:
        return self.server.keys(self.bucket)

    def remove_file(self, name: str) -> None:
        self.server.client.delete_object(Bucket=self.bucket, Key=name)


class DeltaPlace(Place):
    widens_types = False
    empty_word: str | None = None

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def names(self) -> list[str]:
        return names_below(Path(self.root))

    def remove_file(self, name: str) -> None:
        Path(name).unlink()

    def loaded(self) -> DeltaTable:
        return DeltaTable(self.root, storage_options=self.options)

    options: ClassVar[dict[str, str]] = {}

    def new_sink(self, **options: Any) -> TableSink:  # noqa: ANN401, the sink's own
        return DeltaSink(self.root, **options)

    def table(self) -> pa.Table:
        return self.loaded().to_pyarrow_table()

    def numbers_of(self, column: str, value: Any) -> list[int]:  # noqa: ANN401, of any column
        dataset = self.loaded().to_pyarrow_dataset()
        return sorted(dataset.to_table(filter=pc.field(column) == value)["i"].to_pylist())

    def files_for(self, column: str, value: Any) -> int:  # noqa: ANN401, of any column
        dataset = self.loaded().to_pyarrow_dataset()
        return len(list(dataset.get_fragments(filter=pc.field(column) == value)))

    def described(self) -> list[dict[str, str]]:
        return own_words(reversed(self.loaded().history()))

    def make(self, columns: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        DeltaTable.create(
            self.root,
            schema=columns,
            partition_by=list(partition_by),
            storage_options=self.options,
        )

    def partition(self, *columns: str) -> None:
        """Delta changes the partitions of an empty table, or together with its rows."""
        write_deltalake(
            self.loaded(),
            self.table().slice(0, 0),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=list(columns),
        )

    def kept_by_partitioning(self, numbers: list[int]) -> list[int]:
        return []

    def drop_column(self, column: str) -> None:
        rows = self.table().drop_columns([column])
        write_deltalake(self.loaded(), rows, mode="overwrite", schema_mode="overwrite")

    def drop(self) -> None:
        for name in self.names():
            if "/_delta_log/" in name:
                self.remove_file(name)

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.loaded(), rows, mode="append")

    def rewrite(self) -> None:
        write_deltalake(self.loaded(), self.table(), mode="overwrite")
        table = self.loaded()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
        table.create_checkpoint()
        commits = [one for one in self.names() if "/_delta_log/" in one and one.endswith(".json")]
        for commit in sorted(commits)[:-1]:
            self.remove_file(commit)

    def replace(self) -> None:
        schema = self.loaded().schema()
        self.drop()
        DeltaTable.create(self.root, schema=schema, storage_options=self.options)

    @contextlib.contextmanager
    def broken(self, *, loses: str, times: int) -> Any:  # noqa: ANN401, a context
        real, left = DeltaTable.create_write_transaction, itertools.repeat(None, times)

        def commit(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            if loses == "answer":
                real(*arguments, **named)
            for _ in left:
                raise OSError("the connection was reset")
            return real(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", commit)
            yield


class DeltaInBucket(DeltaPlace):
    def __init__(self, _root: Path, server: S3Server) -> None:
        self.server, self.bucket = server, server.new_bucket()
        self.root, self.options = f"s3://{self.bucket}/a/table", s3_options()  # type: ignore[misc]

    def names(self) -> list[str]:
        return self.server.keys(self.bucket)

    def table(self) -> pa.Table:
        """Not by delta-rs: it reads with Python's lock, without which the server in this process does not answer."""
        empty = pa.schema(self.loaded().schema().to_arrow()).empty_table()
        files = [
            self._rows(action, empty.schema)
            for action in pa.table(self.loaded().get_add_actions()).to_pylist()
        ]
        return pa.concat_tables([empty, *files], promote_options="permissive")

    def _rows(self, action: dict[str, Any], schema: pa.Schema) -> pa.Table:
        """Rows of a file, with the partition's values, which only the table's log has."""
        key = "a/table/" + urllib.parse.unquote(action["path"])
        rows = pq.ParquetFile(io.BytesIO(self.server.get(self.bucket, key))).read()
        for name, value in (action.get("partition") or {}).items():
            values = pa.repeat(pa.scalar(value, schema.field(name).type), rows.num_rows)
            rows = rows.append_column(name, values)
        return rows.select([name for name in schema.names if name in rows.column_names])

    def described(self) -> list[dict[str, str]]:
        """See `table`."""
        logs = [name for name in self.names() if "/_delta_log/" in name and name.endswith(".json")]
        lines = [line for log in logs for line in self.server.get(self.bucket, log).splitlines()]
        return own_words(json.loads(line).get("commitInfo", {}) for line in lines)

    def numbers_of(self, column: str, value: Any) -> list[int]:  # noqa: ANN401, of any column
        pytest.skip("needs delta-rs' reader: see `table`")

    def append(self, rows: pa.Table) -> None:
        pytest.skip("needs delta-rs' writer: see `table`")

    def rewrite(self) -> None:
        pytest.skip("needs delta-rs' writer: see `table`")

    def drop_column(self, column: str) -> None:
        pytest.skip("needs delta-rs' writer: see `table`")

    def remove_file(self, name: str) -> None:
        self.server.client.delete_object(Bucket=self.bucket, Key=name)
