"""A destination that belongs to one job: its owner, its schema, its staged files.

Below the root, `.coordlog/` holds files that are not for readers: `owner.json`, `log.json`, a
`log-N.json` for each adoption of the job by another log, `schema.arrow`, a `schema-N.arrow` for each
widening, and `staging/DRIVER/SUBTASK-ATTEMPT-COUNT.parquet`.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

import pyarrow as pa

from coordlog.errors import DestinationMisfitError, OutOfSpaceError, SinkError
from coordlog.limits import DESTINATION_FREE_BYTES_MIN, DESTINATION_RESERVE_BYTES
from coordlog.log.interface import LogIdentity
from coordlog.spark_integration.files.names import HIDDEN
from coordlog.spark_integration.files.sink.parquet_output import refused_columns
from coordlog.spark_integration.files.store.log_claims import Claim, check_held, claim_for
from coordlog.spark_integration.files.store.store import FileStore

__all__ = ["Destination", "SchemaKeeper", "SettledSchema", "can_partition"]

_OWNER: Final = f"{HIDDEN}/owner.json"
_PARTITION_BY: Final = b"coordlog.partition_by"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledSchema:
    """Schema of all files from now on; a file holds none of the partition columns."""

    version: int
    """Number of times that the schema has been widened."""
    columns: pa.Schema
    partition_by: tuple[str, ...]


class SchemaKeeper(Protocol):
    """Where the schema of all files is settled and widened, once for all writers: see `Destination`. Pickles."""

    @property
    def settling_anew(self) -> str:
        """How a person settles the schema anew, if there are no rows yet."""
        ...

    def settled_schema(self, after: SettledSchema | None = None) -> SettledSchema | None:
        """The newest schema; None if there is none, or none newer than `after`."""
        ...

    def settle_schema(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> SettledSchema:
        """The settled schema, which the first call decides."""
        ...

    def widen(self, settled: SettledSchema, columns: pa.Schema) -> SettledSchema | None:
        """The next schema after `settled`, with at least `columns`; None if `settled` stays the widest."""
        ...


class Destination:
    """The files in a store that one job owns. Holds nothing open; pickles.

    `prepare` comes first, on the driver. Each method may run twice at once, also in two drivers.
    """

    def __init__(self, store: FileStore) -> None:
        self.store = store

    @property
    def where(self) -> str:
        """The root, for messages."""
        return self.store.where

    def prepare(self, job_id: str) -> None:
        """Make the destination, or check that it is this job's already; check that it can publish.

        Raises:
            SinkError: It belongs to another job, has files but no owner, is inside another
                destination, cannot be written, or cannot publish without replacing.
            OutOfSpaceError: It is new, and has less than 1 GiB free.
        """
        store = self.store
        store.check_root()
        if not self.has_owner():
            self._refuse_inside()
        store.make_root()
        if store.read(_OWNER) is None:
            foreign = store.names()
            if foreign:
                raise SinkError(
                    self.where,
                    f"a destination that is not ours: it holds {len(foreign)} names, {foreign[0]!r} first, and no "
                    f"{_OWNER}",
                    f"use one that is empty or does not exist; if the job has made these, put {HIDDEN} back beside "
                    "them",
                )
            self._check_space(DESTINATION_FREE_BYTES_MIN, "no new job starts here")
            created = datetime.now(UTC).isoformat(timespec="seconds")
            owner = json.dumps({"job_id": job_id, "created": created})
            store.write_once(_OWNER, owner.encode())
        self.check_owner(job_id)
        store.make_ready()

    def _refuse_inside(self) -> None:
        """Refuse a place inside another destination, whose readers would read these files too."""
        owner = self.store.read_above(_OWNER)
        if owner is None:
            return
        where, content = owner
        raise SinkError(
            self.where,
            f"it is inside the destination of job {self._owner(where, content)!r}, {where}",
            "use one beside it: readers of that one would read the files of both",
        )

    def refuse_earlier_output(self, job_id: str) -> None:
        """Refuse files of an earlier history, or of a branch of it, at the start of a job.

        Raises:
            SinkError: The destination has files, whose rows the job would write a second time.
        """
        names = self.store.names() if self.has_owner() else ()
        if names:
            raise SinkError(
                self.where,
                f"it holds {len(names)} names that an earlier history of job {job_id!r} has "
                f"published, {names[0]!r} first, and the start of the job has none of them: "
                "rows would be written a second time",
                "use the log that the job had, or another destination",
            )

    def refuse_lost_output(self, job_id: str) -> None:
        """Refuse a destination without a claim and without files, for a job that has committed there.

        Raises:
            SinkError: Its rows are not there, and would not be written again.
        """
        if self.read_claim(0) is None and not self.store.names():
            raise SinkError(
                self.where,
                f"the destination of job {job_id!r} was removed or moved: its log has commits there, and 0 files "
                "are left",
                "mount it or put it back as it was; to write all rows again, run another job id at another "
                "destination, a query also with another checkpoint",
            )

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> Claim:
        """Check that no other log of this job writes here, and store `log` as the writer (`claim_for`).

        Raises:
            SinkError: Another log writes here, of which `log` is no continuation; or the claim is
                gone, and files are published.
        """
        return claim_for(self, job_id, log, former)

    def check_held(self, claim: Claim) -> None:
        """Check that no other log has claimed the destination since: one lookup of a file, as a rule.

        Raises:
            JobMovedError: The job has been adopted by another log.
        """
        check_held(self, claim)

    @property
    def release(self) -> str:
        """See `ClaimKeeper`."""
        return f"remove all that is in this one, {HIDDEN} too"

    def read_claim(self, number: int) -> bytes | None:
        """See `ClaimKeeper`: one file for each claim."""
        return self.store.read(_log_file(number))

    def write_claim(self, number: int, content: bytes) -> None:
        """See `ClaimKeeper`."""
        self.store.write_once(_log_file(number), content)

    def claim_path(self, number: int) -> str:
        """See `ClaimKeeper`."""
        return f"{self.where}/{_log_file(number)}"

    def has_owner(self) -> bool:
        """Whether some job has made it ready."""
        return self.store.read(_OWNER) is not None

    def check_owner(self, job_id: str) -> None:
        """Raise SinkError if this machine sees no destination, or that of another job."""
        owner = self.owner()
        if owner is None:
            raise SinkError(
                self.where,
                "a destination that is not ours: no job has made it ready, as this machine sees it",
                "use one that the driver and all executors share",
            )
        if owner != job_id:
            raise SinkError(
                self.where,
                f"a destination that is not ours: it is of job {owner!r}, this is job {job_id!r}",
                "use a destination of its own for each job; if it is the one of that job, moved or by another path, "
                f'continue with `job_id="{owner}"`',
            )

    def owner(self) -> str | None:
        """Id of the job that has made it ready; None if none has. Raises SinkError."""
        content = self.store.read(_OWNER)
        return None if content is None else self._owner(self.where, content)

    @staticmethod
    def _owner(where: str, content: bytes) -> str:
        subject = "the owner of the destination"
        return _json_fields(f"{where}/{_OWNER}", content, ("job_id",), subject)["job_id"]

    def check_reserve(self) -> None:
        """Raise OutOfSpaceError before the last space is taken: Kafka may need it."""
        self._check_space(DESTINATION_RESERVE_BYTES, "the job stops while others can still write")

    def settled_schema(self, after: SettledSchema | None = None) -> SettledSchema | None:
        """The newest schema; None if there is none, or none newer than `after`."""
        newest = None
        version = 0 if after is None else after.version + 1
        while (content := self.store.read(_schema_file(version))) is not None:
            newest = self._decoded(version, content)
            version += 1
        return newest

    def settle_schema(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> SettledSchema:
        """The settled schema: of the first call `schema` and `partition_by`, of later calls the same.

        Raises:
            DestinationMisfitError: It is the first call, and Parquet lacks the type of a column.
            SinkError: It is the first call, and a column has no type or is missing; or the
                destination is partitioned by other columns.
        """
        settled = self.settled_schema()
        if settled is None:
            self.check_first(schema, partition_by)
            self.store.write_once(_schema_file(0), _encoded(schema, partition_by))
            settled = self.settled_schema()
            assert settled is not None, "it has been written, by this call or another's"
        if settled.partition_by != partition_by:
            raise SinkError(
                self.where,
                f"it is partitioned by {_listed(settled.partition_by)}, the job by "
                f"{_listed(partition_by)}",
                "write the same columns in the same order, or another destination",
            )
        return settled

    def widen(self, settled: SettledSchema, columns: pa.Schema) -> SettledSchema:
        """`columns` as the next schema after `settled`; or the one that another call made meanwhile.

        Raises:
            DestinationMisfitError: Parquet lacks the type of a column.
            SinkError: A new column has no type.
        """
        self._check_writable(columns)
        self._check_typed(column for column in columns if column.name not in settled.columns.names)
        content = _encoded(columns, settled.partition_by)
        self.store.write_once(_schema_file(settled.version + 1), content)
        newest = self.settled_schema(settled)
        assert newest is not None, "it has been written, by this call or another's"
        return newest

    def follow(
        self, settled: SettledSchema | None, columns: pa.Schema, partition_by: tuple[str, ...]
    ) -> SettledSchema:
        """`columns` of a table, with the metadata of its fields, as the next schema after `settled`.

        Or the newest one that another call made meanwhile.
        """
        version = 0 if settled is None else settled.version + 1
        self.store.write_once(_schema_file(version), _encoded_as_is(columns, partition_by))
        newest = self.settled_schema(settled)
        assert newest is not None, "it has been written, by this call or another's"
        return newest

    @property
    def settling_anew(self) -> str:
        """How a person settles the schema anew, if there are no rows yet."""
        return f"removing {self.where}/{_schema_file(0)} settles it anew"

    def check_first(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
        """Raise as `settle_schema` if files of these columns cannot be written."""
        self._check_writable(schema)
        if not schema.names:
            raise DestinationMisfitError(
                self.where,
                "the rows have no column: nothing is left for the files",
                "keep at least one in the transform",
            )
        missing = [column for column in partition_by if column not in schema.names]
        if missing:
            raise DestinationMisfitError(
                self.where,
                f"there is no column {missing[0]!r} to partition by: the rows have "
                f"{', '.join(schema.names)}",
                "name columns of the rows, as the transform leaves them",
            )
        if len(partition_by) == len(schema.names):
            raise DestinationMisfitError(
                self.where,
                "all columns are partition columns: nothing is left for the files",
                "partition by fewer",
            )
        self._check_typed(schema)
        for column in schema:
            if column.name in partition_by and not can_partition(column.type):
                raise DestinationMisfitError(
                    self.where,
                    f"column {column.name!r} of {column.type} cannot be partitioned by: only "
                    "strings, integers, booleans and dates have one text",
                    "cast it in the transform",
                )

    def _check_typed(self, columns: Iterable[pa.Field]) -> None:
        """Refuse columns of nulls alone, or of lists, fields and values of nulls alone: no later value fits them."""
        for column in columns:
            if _has_nulls_alone(column.type):
                part = "" if pa.types.is_null(column.type) else f" in a part of it, {column.type}"
                raise SinkError(
                    self.where,
                    f"column {column.name!r} has no type{part}: all its first values are null",
                    "set `schema=` of the sink, or cast the column in the transform",
                )

    def _check_writable(self, schema: pa.Schema) -> None:
        """Refuse types that Parquet lacks before the schema is stored: no later row could be written."""
        if refused := refused_columns(schema):
            raise DestinationMisfitError(
                self.where,
                f"Parquet has no such type: {'; '.join(refused)}",
                "cast the column in the transform",
            )

    def _check_space(self, at_least: int, therefore: str) -> None:
        free = self.store.free_bytes()
        if free is not None and free < at_least:
            raise OutOfSpaceError(
                self.where,
                f"[errno {errno.ENOSPC}] {free:,} bytes are free there, of which {at_least:,} are to "
                f"stay so: {therefore}",
                "free some space there, then run the same command again",
            )

    def _decoded(self, version: int, content: bytes) -> SettledSchema:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(content))
            partition_by = json.loads((schema.metadata or {}).get(_PARTITION_BY, b"[]"))
        except (pa.ArrowException, ValueError) as error:
            raise SinkError(
                f"{self.where}/{_schema_file(version)}",
                f"it holds no schema: {error}",
                "put it back as it was",
            ) from error
        return SettledSchema(
            version=version,
            columns=schema.remove_metadata(),
            partition_by=tuple(str(column) for column in partition_by),
        )


def _json_fields(
    path: str, content: bytes, fields: tuple[str, ...], subject: str
) -> dict[str, str]:
    """`fields` of a JSON file.

    Raises:
        SinkError: The file lacks one of them.
    """
    try:
        document = json.loads(content)
        return {name: str(document[name]) for name in fields}
    except (ValueError, KeyError, TypeError) as error:
        raise SinkError(
            path,
            f"it does not hold {subject}: {error!r}",
            "put it back as it was, or use another destination",
        ) from error


def _log_file(version: int) -> str:
    return f"{HIDDEN}/log-{version}.json" if version else f"{HIDDEN}/log.json"


def _schema_file(version: int) -> str:
    return f"{HIDDEN}/schema-{version}.arrow" if version else f"{HIDDEN}/schema.arrow"


def _encoded(schema: pa.Schema, partition_by: tuple[str, ...]) -> bytes:
    plain = pa.schema([pa.field(column.name, column.type) for column in schema])
    return _encoded_as_is(plain, partition_by)


def _encoded_as_is(schema: pa.Schema, partition_by: tuple[str, ...]) -> bytes:
    metadata = {_PARTITION_BY: json.dumps(partition_by).encode()} if partition_by else None
    return bytes(pa.schema(list(schema), metadata=metadata).serialize().to_pybytes())


def _has_nulls_alone(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_nulls_alone(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_nulls_alone(kind.storage_type)
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_null(kind) or any(map(_has_nulls_alone, parts))


def can_partition(column_type: pa.DataType) -> bool:
    """Whether each value of the type has one text, and no other value has it."""
    types = pa.types
    if types.is_dictionary(column_type):
        column_type = column_type.value_type
    return any(
        is_kind(column_type)
        for is_kind in (
            types.is_string,
            types.is_large_string,
            types.is_integer,
            types.is_boolean,
            types.is_date,
        )
    )


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(columns) or "nothing"
