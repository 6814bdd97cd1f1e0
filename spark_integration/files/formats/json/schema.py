"""The one schema of a source of JSON lines, settled from a bounded sample when its files are listed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa

from coordlog.errors import SourceError
from coordlog.limits import CSV_SAMPLE_BYTES, CSV_SAMPLE_FILES_MAX
from coordlog.spark_integration.files.compression import Compression, refuse_archive
from coordlog.spark_integration.files.faults import EmptyFileError
from coordlog.spark_integration.files.formats.inferring import (
    BIG_INTEGERS,
    WIDE,
    evenly,
    infer_json,
)
from coordlog.spark_integration.files.formats.json.rows import wrong_json
from coordlog.spark_integration.files.formats.json.sifted import whole_objects
from coordlog.spark_integration.files.formats.json.values import parse_json
from coordlog.spark_integration.files.formats.text.line_blocks import LineBlocks
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.schema_difference import schemas_differ

__all__ = ["json_fields", "settle_json_schema"]


def settle_json_schema(
    files: InputFiles,
    listed: Sequence[ListedFile],
    *,
    encoding: str,
    compression: Compression,
    block_bytes: int,
    expected: pa.Schema | None,
    sifts: bool = False,
) -> pa.Schema:
    """The fields of the sample in the order in which they come, or `expected`, tried on the sample.

    A field without a value in the sample is of strings. If `sifts` is True, lines that are no objects are left out of
    the sample, and `expected` is not tried.

    Raises:
        SourceError: A sampled file cannot be read, or two files have incompatible types of a field.
    """
    for file in listed:
        refuse_archive(file.path, compression)
    if sifts and expected is not None:
        return expected
    sampled = evenly([file for file in listed if file.size_bytes != 0])
    sample_bytes = max(block_bytes, CSV_SAMPLE_BYTES // max(1, len(sampled)))
    settled: pa.Schema | None = expected
    first = ""
    for file in sampled:
        with closing(_whole_file(files, file, encoding, compression, sample_bytes)) as blocks:
            inferred = _schema_of(file.path, blocks, expected, sifts=sifts)
        if inferred is None or expected is not None:
            continue
        if settled is None:
            settled, first = inferred, file.path
            continue
        common = _common(pa.struct(settled), pa.struct(inferred))
        if common is None:
            plain = [pa.schema(list(_plain(pa.struct(schema)))) for schema in (inferred, settled)]
            raise schemas_differ(file.path, first, *plain)
        settled = pa.schema(list(common))
    if expected is not None:
        return expected
    if settled is None or not settled.names:
        raise EmptyFileError(
            files.url, "its files show no object with a field", "set the schema (`schema=`)"
        )
    return pa.schema(
        pa.field(field.name, _whole(field.type, field.name, first)) for field in settled
    )


def json_fields(
    files: InputFiles, file: ListedFile, *, encoding: str, compression: Compression
) -> frozenset[str]:
    """The fields of the objects in the first lines of a file; none if no line there is an object.

    Raises:
        SourceError: The file cannot be read.
    """
    block_bytes = CSV_SAMPLE_BYTES // CSV_SAMPLE_FILES_MAX
    with closing(_whole_file(files, file, encoding, compression, block_bytes)) as blocks:
        lines = whole_objects(blocks.stream, block_bytes).split("\n")
    return frozenset(name for line in lines if line for name in json.loads(line))


def _whole_file(
    files: InputFiles, file: ListedFile, encoding: str, compression: Compression, block_bytes: int
) -> LineBlocks:
    return LineBlocks(
        files,
        file,
        start=0,
        end=file.size_bytes,
        encoding=encoding,
        compression=compression,
        block_bytes=block_bytes,
    )


def _schema_of(
    path: str, blocks: LineBlocks, expected: pa.Schema | None, *, sifts: bool
) -> pa.Schema | None:
    text = whole_objects(blocks.stream, blocks.block_bytes) if sifts else blocks.next()
    if text is None or not text.strip():
        return None
    try:
        return infer_json(text) if expected is None else parse_json(text, expected, "ignore").schema
    except (pa.ArrowException, ValueError) as error:
        raise wrong_json(path, blocks, text, expected, "ignore") from error


def _common(kind: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that reads the values of both; None if there is none."""
    if kind == other or pa.types.is_null(other):
        return kind
    if pa.types.is_null(kind):
        return other
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        types = {field.name: field.type for field in kind}
        for field in other:
            known = types.get(field.name)
            common = field.type if known is None else _common(known, field.type)
            if common is None:
                return None
            types[field.name] = common
        return pa.struct(types)
    if pa.types.is_list(kind) and pa.types.is_list(other):
        inner = _common(kind.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if {kind, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    both = (kind, other)
    wider = next((mark for mark in (BIG_INTEGERS, WIDE) if mark in both), None)
    if wider is not None and all(each in (BIG_INTEGERS, WIDE, pa.int64()) for each in both):
        return wider
    # All values are texts, some of which have the form of a time.
    if all(pa.types.is_timestamp(t) for t in both) and kind.tz == other.tz:
        return pa.timestamp("ns", kind.tz)
    if all(pa.types.is_timestamp(t) or pa.types.is_string(t) for t in both):
        return pa.string()
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without the marks of wide numbers."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.int64() if kind == WIDE else kind


def _whole(kind: pa.DataType, name: str, path: str) -> pa.DataType:
    """The type with strings in all places that have no value in the sample."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_whole(kind.value_type, name, path))
    if not pa.types.is_struct(kind):
        return _plain(kind)
    if not kind.num_fields:
        raise SourceError(
            path,
            f"field {name!r} is an empty object in the whole sample",
            "set the types with `schema=`, with or without that field",
        )
    fields = [(field.name, _whole(field.type, f"{name}.{field.name}", path)) for field in kind]
    return pa.struct(fields)
