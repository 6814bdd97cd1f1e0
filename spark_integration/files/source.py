"""A source of CSV or Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, cast

import pyarrow as pa

from coordlog.chain import SourceSpec
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import OptionError, SourceError
from coordlog.limits import CSV_BLOCK_BYTES, FILE_BATCH_ROWS, FILE_SPLIT_BYTES
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.source_events import Split, SplitsDiscovered

from .csv_bytes import compression_of
from .csv_options import CsvOptions
from .csv_schema import settle_csv_schema
from .listing import InputFiles, ListedFile
from .parquet_rows import parquet_row_groups, settle_parquet_schema
from .payloads import FileSplit
from .reader import (
    FileReader,
    FileReaderOptions,
    decode_schema,
    encode_schema,
    is_fault_of_file,
    merge_reader_states,
)

__all__ = ["FileSource"]

_SPLIT = payload_type_of(FileSplit)


class FileSource:
    """The rows of a file, of all files in a folder and its folders, of a glob, or of an fsspec URL.

    The files are listed once, when the job first starts, in the order of their paths; names that
    begin with `.` or `_` are left out. The schema is settled then too and stands in every split, so
    that it is the same for every reader, file and block, and after every restart. Files must not
    change while a job reads them: a changed length is found.

    Args:
        path: A local path or an fsspec URL; may be a glob, unless something of just that name
            exists.
        format: `"csv"` or `"parquet"`.
        schema: All columns, in order, with their types. Without it: CSV names from the header and
            types from a sample of the files; Parquet as the first file has it, and the others must
            be equal.
        storage_options: For fsspec: what its file system needs, secrets included. Not in the log.
        batch_rows: The most rows of a batch.
        split_bytes: About how long a split is. Parquet is split between row groups. CSV is split
            only with `no_newlines_in_fields`, uncompressed, and in an encoding in which every byte
            10 is a line end.
        assignment: `"pull"`: a subtask gets a split when it has read the one before. `"static"`:
            dealt out beforehand.
        null_values: CSV: words that stand for null, in columns of all types, strings included. Only
            these do.
        encoding: CSV: any that Python knows.
        delimiter: CSV: one character.
        quote: CSV: one character, or None where quotes mean nothing.
        escape: CSV: one character, or None.
        column_names: CSV: the names, where the files have no header. Without it the first line that
            is not empty is one.
        no_newlines_in_fields: CSV: the caller's word that no field holds a line feed or a carriage
            return.
        block_bytes: CSV: what is parsed at once; a longer line is an error.
        on_error: What becomes of a split whose file is at fault: a bad row, a cut file, one that is
            gone. `"fail"`: the attempt fails, and the job with it where that happens again and
            again. `"skip"`: the split is skipped, which the history has with the reason. In batch,
            where no link of the chain keeps state across splits, none of its rows stay; else those
            before the first that cannot be read, and the history has their number.

    Raises:
        OptionError: An option is out of range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: Literal["csv", "parquet"] = "csv",  # noqa: A002, what everybody calls it
        schema: pa.Schema | None = None,
        storage_options: Mapping[str, str] | None = None,
        batch_rows: int = FILE_BATCH_ROWS,
        split_bytes: int = FILE_SPLIT_BYTES,
        assignment: Literal["pull", "static"] = "pull",
        null_values: Sequence[str] = ("",),
        encoding: str = "utf-8",
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        column_names: Sequence[str] | None = None,
        no_newlines_in_fields: bool = False,
        block_bytes: int = CSV_BLOCK_BYTES,
        on_error: Literal["fail", "skip"] = "fail",
    ) -> None:
        url = os.fspath(path)
        if not url:
            raise OptionError("path", url, "a path, a glob or an fsspec URL")
        if format not in ("csv", "parquet"):
            raise OptionError("format", format, "'csv' or 'parquet'")
        if assignment not in ("pull", "static"):
            raise OptionError("assignment", assignment, "'pull' or 'static'")
        if on_error not in ("fail", "skip"):
            raise OptionError("on_error", on_error, "'fail' or 'skip'")
        for name, value in (("batch_rows", batch_rows), ("split_bytes", split_bytes)):
            if value < 1:
                raise OptionError(name, value, "at least 1")
        if schema is not None and column_names is not None and schema.names != list(column_names):
            raise OptionError("column_names", column_names, f"those of `schema`: {schema.names}")
        self._csv = CsvOptions(
            null_values=tuple(null_values) if not isinstance(null_values, str) else null_values,
            encoding=encoding,
            delimiter=delimiter,
            quote=quote,
            escape=escape,
            column_names=None if column_names is None else tuple(column_names),
            no_newlines_in_fields=no_newlines_in_fields,
            block_bytes=block_bytes,
        )
        self._is_csv = format == "csv"
        self._skips_unreadable = on_error == "skip"
        self._schema = schema
        self._batch_rows, self._split_bytes = batch_rows, split_bytes
        self._assignment: Literal["pull", "static"] = assignment
        self._files = InputFiles(
            url=url if "://" in url else os.path.abspath(os.path.expanduser(url)),  # noqa: PTH100, PTH111
            storage_options=dict(storage_options or {}),
        )

    def spec(self, operator_id: str = "source") -> SourceSpec:
        """The source as the first link of a chain.

        Reads nothing yet: its coordinator calls `discover`.
        """
        options = FileReaderOptions(
            files=self._files,
            csv=self._csv if self._is_csv else None,
            batch_rows=self._batch_rows,
            asks_for_splits=self._assignment == "pull",
            skips_unreadable=self._skips_unreadable,
        )
        return SourceSpec(
            operator_id=operator_id,
            create_reader=partial(FileReader, options),
            merge_states=merge_reader_states,
            coordinator=SplitCoordinatorProvider(
                operator_id,
                discover=self.discover,
                discover_again=self.discover_again,
                assignment=self._assignment,
            ),
        )

    def settle_schema(self) -> pa.Schema:
        """The schema that a listing made now would settle: to change, and give as `schema`.

        Raises:
            SourceError: There is nothing to read, or the files do not fit together.
        """
        return self._settle(self._files.list())[0]

    def discover(self) -> SplitsDiscovered:
        """List the files, settle their schema, and cut them into splits. Blocks; runs on a worker.

        Raises:
            SourceError: There is nothing to read, or the files do not fit together.
        """
        listed = self._files.list()
        return self._splits_of(listed, *self._settle(listed))

    def discover_again(self, known: Sequence[Split]) -> SplitsDiscovered:
        """List the files that are not of `known`, the splits of an opening of the job that has ended.

        Their schema is the one that was settled then. Files that have gone since are not missed:
        their rows are committed. Blocks; runs on a worker.

        Raises:
            SourceError: A file of `known` has another length now, or a new one does not fit.
        """
        before = [cast("FileSplit", _SPLIT.decode(one.content)) for one in known]
        sizes = {one.path: one.size_bytes for one in before}
        listed = self._files.list(allow_none=True)
        for one in listed:
            size_bytes = sizes.get(one.path, -1)
            if min(size_bytes, one.size_bytes) >= 0 and size_bytes != one.size_bytes:
                raise SourceError(
                    one.path,
                    f"it has {one.size_bytes} bytes; it had {size_bytes} when the job read it, and "
                    "its rows are committed",
                    "put what is new into a file of its own, and this one back as it was",
                )
        new = [one for one in listed if one.path not in sizes and one.size_bytes != 0]
        if not new:
            return SplitsDiscovered(splits=[], is_complete=True)
        schema = self._schema or decode_schema(before[0].arrow_schema)
        return self._splits_of(new, *self._settle(new, schema))

    def _splits_of(
        self, listed: Sequence[ListedFile], schema: pa.Schema, unreadable: frozenset[str]
    ) -> SplitsDiscovered:
        arrow_schema = encode_schema(schema)
        splits = [
            Split(
                split_id=split_id,
                content=_SPLIT.encode(
                    FileSplit(
                        split_id=split_id,
                        path=one.path,
                        size_bytes=one.size_bytes,
                        start=start,
                        end=end,
                        arrow_schema=arrow_schema,
                    )
                ),
            )
            for one in listed
            for split_id, start, end in self._cut(one, is_readable=one.path not in unreadable)
        ]
        return SplitsDiscovered(splits=splits, is_complete=True)

    def _settle(
        self, listed: Sequence[ListedFile], given: pa.Schema | None = None
    ) -> tuple[pa.Schema, frozenset[str]]:
        """The schema, and the paths that were left out of it: unreadable, and to be skipped."""
        unreadable: set[str] = set()
        while True:
            left = [one for one in listed if one.path not in unreadable]
            try:
                return self._settled(left, given), frozenset(unreadable)
            except SourceError as error:
                # Files that do not fit together are no fault of one: those have no cause.
                is_skipped = self._skips_unreadable and error.__cause__ is not None
                if (
                    not is_skipped
                    or not is_fault_of_file(error, self._files)
                    or error.where not in {one.path for one in left}
                    or len(left) == 1
                ):
                    raise
                unreadable.add(error.where)

    def _settled(self, listed: Sequence[ListedFile], given: pa.Schema | None) -> pa.Schema:
        schema = self._schema if given is None else given
        if self._is_csv:
            return settle_csv_schema(self._files, listed, self._csv, schema)
        return settle_parquet_schema(self._files, listed, schema)

    def _cut(self, one: ListedFile, *, is_readable: bool) -> Iterator[tuple[str, int, int]]:
        if self._is_csv:
            if one.size_bytes == 0:
                return  # some writers leave such files where they had nothing to write
            step = self._split_bytes
            if not self._csv.may_split or compression_of(one.path) or one.size_bytes <= step:
                yield one.path, 0, one.size_bytes
                return
            for start in range(0, one.size_bytes, step):
                end = min(start + step, one.size_bytes)
                yield f"{one.path}#bytes={start}-{end}", start, end
            return
        if not is_readable:
            # A split all the same: its reader finds what is wrong, and skips it with the reason.
            yield one.path, 0, 0
            return
        runs = parquet_row_groups(self._files, one, self._split_bytes)
        for start, end in runs:
            of = "" if len(runs) == 1 else f"#row-groups={start}-{end}"
            yield f"{one.path}{of}", start, end
