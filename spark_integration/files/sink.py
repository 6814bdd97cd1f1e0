"""A sink of Parquet files in a local folder, published exactly once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Literal, cast

import pyarrow as pa

from coordlog.chain import OperatorSpec
from coordlog.coordinator import CommittableOf, Sink
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.errors import OptionError, SinkError
from coordlog.limits import FILES_PER_INTENT, ROW_GROUP_BYTES, ROW_GROUP_ROWS
from coordlog.schemas.payload import Payload, payload_type_of

from .destination import Destination
from .payloads import FilesPublished, PublishFiles, StagedFile
from .publish import publish
from .writer import ParquetFileWriter, ParquetWriterOptions

__all__ = ["ParquetSink"]

Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_COMMITTABLE = payload_type_of(StagedFile)


class ParquetSink(Sink):
    """Parquet files in a folder of one job, which the driver and all executors share.

    A file gets its final name once, after the checkpoint that holds it has completed; a reader sees
    file by file, never a part of one. All files have one schema: that of the first rows written, or
    `schema`.

    The driver calls, in this order: `prepare` before any attempt starts; `settle` for each intent;
    `clean` for an attempt that is over, after the record that gave its names up is released;
    `sweep` when the job has finished and no attempt lives. Each may be called again, and by two
    drivers at once.

    Args:
        path: A local path. Made where it does not exist.
        schema: Of all files. Without it, that of the first rows: then they must have a type in
            every column.
        compression: Of the columns.
        row_group_rows: Rows after which a row group is written.
        row_group_bytes: Bytes, as Arrow holds them, after which one is written: about what a writer
            takes of memory.

    Raises:
        OptionError: An option is out of range.
        SinkError: `path` is not local.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | None = None,
        compression: Compression = "zstd",
        row_group_rows: int = ROW_GROUP_ROWS,
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        text = os.fspath(path)
        if not text:
            raise OptionError("path", text, "a path")
        if compression not in _COMPRESSIONS:
            raise OptionError("compression", compression, f"one of {', '.join(_COMPRESSIONS)}")
        for name, value in (
            ("row_group_rows", row_group_rows),
            ("row_group_bytes", row_group_bytes),
        ):
            if value < 1:
                raise OptionError(name, value, "at least 1")
        text = text.removeprefix("file://")
        if "://" in text or "::" in text:
            raise SinkError(
                text.partition("://")[0] + "://",
                "the sink publishes by a hard link, which this file system does not have",
                "give a local path; copy the files there once the job has finished",
            )
        self._options = ParquetWriterOptions(
            # Not resolved: a link in the path may be set to lead elsewhere between two runs.
            root=Path(os.path.abspath(Path(text).expanduser())),  # noqa: PTH100
            compression=compression,
            row_group_rows=row_group_rows,
            row_group_bytes=row_group_bytes,
        )
        self._destination = Destination(self._options.root)
        self._schema = schema

    @property
    def path(self) -> Path:
        """The destination, absolute."""
        return self._options.root

    def spec(self, operator_id: str = "sink") -> OperatorSpec:
        """The sink as a link of a chain. It keeps nothing across splits."""
        return OperatorSpec(
            operator_id=operator_id,
            create_operator=partial(ParquetFileWriter, self._options),
            coordinator=CommitCoordinatorProvider(
                operator_id,
                sink=self,
                make_intent=self.make_intent,
                payload_types=(StagedFile, PublishFiles, FilesPublished),
                committables_per_intent=FILES_PER_INTENT,
            ),
            keeps_state_across_splits=False,
        )

    def prepare(self, job_id: str) -> None:
        """Take the destination for `job_id`, or find that it has it already.

        Before any attempt starts.

        Raises:
            SinkError: It is another's, is not a folder, cannot be written, or cannot publish
                without replacing.
        """
        self._destination.prepare(job_id)
        if self._schema is not None:
            settled = self._destination.settle_schema(self._schema)
            given = pa.schema(pa.field(one.name, one.type) for one in self._schema)
            if not settled.equals(given):
                raise SinkError(
                    str(self.path),
                    f"`schema=` is {_in_line(given)}; all files here have {_in_line(settled)}",
                    "give that one, or another destination",
                )

    def make_intent(
        self, checkpoint_id: int, committables: Sequence[CommittableOf]
    ) -> PublishFiles:
        """The intent that publishes these committables, in their order."""
        files = [cast("StagedFile", _COMMITTABLE.decode(one.content)) for one in committables]
        return PublishFiles(checkpoint_id=checkpoint_id, files=files)

    def settle(self, intent: Payload) -> FilesPublished:
        """Publish what of `intent` is not published yet. Any thread; may run twice at once.

        Raises:
            SinkError: A file is gone, damaged, or its name is taken by other content.
        """
        assert isinstance(intent, PublishFiles), "intents are made by `make_intent`"
        return publish(self._destination, intent)

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Delete the staged files of an attempt that is over, but `keep` (see `staged_names`).

        Raises:
            SinkError: The operating system refuses.
        """
        self._destination.clean(
            driver_id=driver_id, subtask=subtask, attempt_number=attempt_number, keep=keep
        )

    def sweep(self, *, keep: AbstractSet[str] = frozenset()) -> None:
        """Delete all staged files but those in `keep`.

        Only when no attempt of the job lives, of any driver.

        Raises:
            SinkError: The operating system refuses.
        """
        self._destination.sweep(keep=keep)

    def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
        """What `clean` and `sweep` must keep as long as the log holds these committables."""
        return frozenset(
            cast("StagedFile", _COMMITTABLE.decode(one)).staged for one in committables
        )

    def intent_names(self, intent: Payload) -> frozenset[str]:
        """What `clean` and `sweep` must keep as long as the intent has no outcome."""
        return frozenset(one.staged for one in cast("PublishFiles", intent).files)


def _in_line(schema: pa.Schema) -> str:
    return ", ".join(f"{one.name}: {one.type}" for one in schema)
