"""The formats of a file source: how each settles a schema, cuts a file, and reads a split."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import pyarrow as pa

from coordlog.errors import SourceError
from coordlog.spark_integration.files.compression import Compression, codec_of, refuse_archive
from coordlog.spark_integration.files.formats.bad_rows import BadRow
from coordlog.spark_integration.files.formats.csv.options import CsvText
from coordlog.spark_integration.files.formats.csv.rows import CsvRows
from coordlog.spark_integration.files.formats.csv.schema import settle_csv_schema
from coordlog.spark_integration.files.formats.csv.sifted import sifted_csv
from coordlog.spark_integration.files.formats.json.rows import JsonRows
from coordlog.spark_integration.files.formats.json.schema import json_fields, settle_json_schema
from coordlog.spark_integration.files.formats.json.sifted import sifted_json
from coordlog.spark_integration.files.formats.parquet_rows import (
    ParquetRows,
    parquet_row_groups,
    settle_parquet_schema,
)
from coordlog.spark_integration.files.formats.text.encoding import has_whole_line_ends
from coordlog.spark_integration.files.formats.text.line_blocks import LineBlocks, line_parts
from coordlog.spark_integration.files.formats.text.rows import TEXT_SCHEMA, TextRows
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.rescued import without_rescued
from coordlog.spark_integration.files.schema_difference import schemas_differ

__all__ = [
    "CsvFormat",
    "FileFormat",
    "JsonLinesFormat",
    "ParquetFormat",
    "SplitRows",
    "TextFormat",
]

V = TypeVar("V")


class SplitRows(Protocol):
    """The rows of a split that is being read."""

    bytes_read: int
    skip_rows: int
    """Rows of the next batches that are still to be passed over."""

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        """Rows that were left out of the last batch; none unless the format sifts."""
        ...

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class FileFormat(Protocol):
    """A format with its options. Pickles. All methods raise SourceError."""

    unit: ClassVar[str]
    """Unit of `cut`, for the names of splits."""

    def settle(
        self, files: InputFiles, listed: Sequence[ListedFile], expected: pa.Schema | None
    ) -> pa.Schema:
        """The one schema of these files, or `expected`, checked against them."""
        ...

    def cut(
        self, files: InputFiles, file: ListedFile, split_bytes: int
    ) -> Sequence[tuple[int, int]]:
        """A file's splits, as `start` and `end` of each; none if it cannot have a row."""
        ...

    def row_rules(self) -> str:
        """The options that decide which row is row N, as text; empty if the file alone decides."""
        ...

    def ruled_by(self, rules: str, schema: pa.Schema, *, left_out_rows: bool) -> FileFormat:
        """The same format with `rules`, an earlier result of `row_rules` for a split of this schema.

        Rules that decide which rows are bad count only if rows are left out now, or have been: `left_out_rows`.
        """
        ...

    def read(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        skip_rows: int,
        batch_rows: int,
    ) -> SplitRows:
        """The rows of a split from row `skip_rows` on."""
        ...


@dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """Comma-separated values."""

    unit: ClassVar[str] = "bytes"
    options: CsvText
    compression: Compression
    sifts: bool = False
    """True: bad rows are left out. A format that does not sift refuses them."""

    def settle(
        self, files: InputFiles, listed: Sequence[ListedFile], expected: pa.Schema | None
    ) -> pa.Schema:
        """See `FileFormat`."""
        return settle_csv_schema(
            files, listed, self.options, expected, self.compression, sifts=self.sifts
        )

    def cut(
        self, files: InputFiles, file: ListedFile, split_bytes: int
    ) -> Sequence[tuple[int, int]]:
        """See `FileFormat`."""
        may_cut = self.options.may_split and file.may_seek
        is_packed = codec_of(file.path, self.compression) is not None
        return line_parts(file.size_bytes, split_bytes, may_cut=may_cut and not is_packed)

    def row_rules(self) -> str:
        """See `FileFormat`."""
        options = self.options
        return _text_of(
            block_bytes=options.block_bytes,
            compression=self.compression,
            delimiter=options.csv.delimiter,
            encoding=options.encoding,
            escape=options.csv.escape,
            has_header=options.csv.column_names is None,
            no_newlines_in_fields=options.csv.no_newlines_in_fields,
            null_values=list(options.csv.null_values),
            quote=options.csv.quote,
        )

    def ruled_by(self, rules: str, schema: pa.Schema, *, left_out_rows: bool) -> CsvFormat:
        """See `FileFormat`."""
        values, keeps = json.loads(rules), self.sifts or left_out_rows
        compression, encoding = values.pop("compression"), values.pop("encoding")
        block_bytes = _taken(values, "block_bytes", self.options.block_bytes, keeps=keeps)
        nulls = _taken(values, "null_values", self.options.csv.null_values, keeps=keeps)
        names = None if values.pop("has_header") else tuple(without_rescued(schema).names)
        csv = replace(self.options.csv, column_names=names, null_values=tuple(nulls), **values)
        options = replace(self.options, csv=csv, encoding=encoding, block_bytes=block_bytes)
        return replace(self, options=options, compression=compression)

    def read(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        skip_rows: int,
        batch_rows: int,
    ) -> SplitRows:
        """See `FileFormat`."""
        if self.sifts:
            return sifted_csv(
                files,
                split,
                schema,
                options=self.options,
                compression=self.compression,
                skip_rows=skip_rows,
            )
        return CsvRows(
            files,
            split,
            schema,
            options=self.options,
            compression=self.compression,
            skip_rows=skip_rows,
        )


@dataclass(frozen=True, kw_only=True)
class _LineFormat:
    """Common part of formats of lines: the cuts of a file, and the lines of a split."""

    unit: ClassVar[str] = "bytes"
    encoding: str
    block_bytes: int
    compression: Compression
    sifts: bool = False
    """True: bad rows are left out. A format that does not sift refuses them."""

    def cut(
        self, files: InputFiles, file: ListedFile, split_bytes: int
    ) -> Sequence[tuple[int, int]]:
        """See `FileFormat`."""
        is_packed = codec_of(file.path, self.compression) is not None
        may_cut = not is_packed and file.may_seek and has_whole_line_ends(self.encoding)
        return line_parts(file.size_bytes, split_bytes, may_cut=may_cut)

    def row_rules(self) -> str:
        """See `FileFormat`."""
        return _text_of(
            block_bytes=self.block_bytes, compression=self.compression, encoding=self.encoding
        )

    def ruled_by(self, rules: str, schema: pa.Schema, *, left_out_rows: bool) -> Self:
        """See `FileFormat`."""
        values, keeps = json.loads(rules), self.sifts or left_out_rows
        block_bytes = _taken(values, "block_bytes", self.block_bytes, keeps=keeps)
        return replace(self, **values, block_bytes=block_bytes)

    def _blocks(self, files: InputFiles, split: FileSplit) -> LineBlocks:
        return LineBlocks(
            files,
            split,
            start=split.start,
            end=split.end,
            encoding=self.encoding,
            compression=self.compression,
            block_bytes=self.block_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class JsonLinesFormat(_LineFormat):
    """One JSON object on each line."""

    ignores_new_fields: bool
    """True: the schema was given, and fields that it lacks are ignored."""

    def row_rules(self) -> str:
        """See `FileFormat`."""
        return _text_of(
            block_bytes=self.block_bytes,
            compression=self.compression,
            encoding=self.encoding,
            ignores_new_fields=self.ignores_new_fields,
        )

    def ruled_by(self, rules: str, schema: pa.Schema, *, left_out_rows: bool) -> Self:
        """See `FileFormat`."""
        values, keeps = json.loads(rules), self.sifts or left_out_rows
        ignores = _taken(values, "ignores_new_fields", self.ignores_new_fields, keeps=keeps)
        same = super().ruled_by(json.dumps(values), schema, left_out_rows=left_out_rows)
        return replace(same, ignores_new_fields=ignores)

    def settle(
        self, files: InputFiles, listed: Sequence[ListedFile], expected: pa.Schema | None
    ) -> pa.Schema:
        """See `FileFormat`."""
        return settle_json_schema(
            files,
            listed,
            encoding=self.encoding,
            compression=self.compression,
            block_bytes=self.block_bytes,
            expected=expected,
            sifts=self.sifts,
        )

    def fields_of(self, files: InputFiles, file: ListedFile) -> Collection[str]:
        """Names of the fields in the first lines of a file; none if no line there is an object. Raises SourceError."""
        return json_fields(files, file, encoding=self.encoding, compression=self.compression)

    def read(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        skip_rows: int,
        batch_rows: int,
    ) -> SplitRows:
        """See `FileFormat`."""
        ignores = self.ignores_new_fields or without_rescued(schema) is not schema
        unexpected: Literal["ignore", "error"] = "ignore" if ignores else "error"
        if self.sifts:
            return sifted_json(
                files,
                split,
                schema,
                encoding=self.encoding,
                compression=self.compression,
                block_bytes=self.block_bytes,
                unexpected=unexpected,
                bytes_read=_read_bytes(split),
                skip_rows=skip_rows,
            )
        return JsonRows(
            path=split.path,
            blocks=self._blocks(files, split),
            schema=schema,
            unexpected=unexpected,
            bytes_read=_read_bytes(split),
            skip_rows=skip_rows,
        )


@dataclass(frozen=True, kw_only=True)
class TextFormat(_LineFormat):
    """Lines, each a row with one column `value`."""

    def settle(
        self, files: InputFiles, listed: Sequence[ListedFile], expected: pa.Schema | None
    ) -> pa.Schema:
        """See `FileFormat`."""
        for file in listed:
            refuse_archive(file.path, self.compression)
        if expected is not None and expected != TEXT_SCHEMA:
            raise schemas_differ(files.url, "set with `schema=`", TEXT_SCHEMA, expected)
        return TEXT_SCHEMA

    def read(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        skip_rows: int,
        batch_rows: int,
    ) -> SplitRows:
        """See `FileFormat`."""
        return TextRows(
            blocks=self._blocks(files, split),
            bytes_read=_read_bytes(split),
            skip_rows=skip_rows,
        )


@dataclass(frozen=True, kw_only=True)
class ParquetFormat:
    """Parquet, whatever its columns are compressed with."""

    unit: ClassVar[str] = "row-groups"
    is_lenient: bool
    """True: a file whose footer cannot be read is one split, whose reading fails."""
    is_given: bool
    """True: the user has given the schema. A settled schema picks and casts no columns."""

    def settle(
        self, files: InputFiles, listed: Sequence[ListedFile], expected: pa.Schema | None
    ) -> pa.Schema:
        """See `FileFormat`."""
        for file in listed:
            if codec_of(file.path, "infer") is not None:
                raise SourceError(
                    file.path,
                    "a Parquet file that is packed as a whole is not read",
                    "unpack it: its columns are compressed already",
                ) from ValueError("a packed file")
            refuse_archive(file.path, "infer")
        return settle_parquet_schema(files, listed, expected, is_given=self.is_given)

    def cut(
        self, files: InputFiles, file: ListedFile, split_bytes: int
    ) -> Sequence[tuple[int, int]]:
        """See `FileFormat`."""
        try:
            return parquet_row_groups(files, file, split_bytes)
        except SourceError:
            if not self.is_lenient:
                raise
            return [(0, -1)]

    def row_rules(self) -> str:
        """See `FileFormat`."""
        return ""

    def ruled_by(self, rules: str, schema: pa.Schema, *, left_out_rows: bool) -> ParquetFormat:
        """See `FileFormat`."""
        return self

    def read(
        self,
        files: InputFiles,
        split: FileSplit,
        schema: pa.Schema,
        *,
        skip_rows: int,
        batch_rows: int,
    ) -> SplitRows:
        """See `FileFormat`."""
        return ParquetRows(
            files,
            split,
            schema,
            skip_rows=skip_rows,
            batch_rows=batch_rows,
            is_given=self.is_given,
        )


def _text_of(**options: str | bool | int | list[str] | None) -> str:
    return json.dumps(options, sort_keys=True)


def _taken(rules: dict[str, Any], name: str, wanted: V, *, keeps: bool) -> V:
    """Take a rule that decides which rows are bad out of `rules`: its value if `keeps`, else `wanted`."""
    begun: V = rules.pop(name, wanted)
    return begun if keeps else wanted


def _read_bytes(split: FileSplit) -> int:
    """Bytes of a finished split for the progress: of the file, packed or not."""
    return max(0, split.end - split.start)
