"""The one schema of a source of JSON lines, settled from a bounded sample when its files are listed."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from coordlog.errors import SourceError
from coordlog.limits import CSV_SAMPLE_BYTES
from coordlog.spark_integration.files.compression import Compression, refuse_archive
from coordlog.spark_integration.files.faults import EmptyFileError
from coordlog.spark_integration.files.formats.inferring import BIG_INTEGERS, WIDE, infer_json
from coordlog.spark_integration.files.formats.json_rows import wrong_json
from coordlog.spark_integration.files.formats.json_values import parse_json
from coordlog.spark_integration.files.formats.line_blocks import LineBlocks
from coordlog.spark_integration.files.formats.sampling import evenly
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.schema_difference import schemas_differ

__all__ = ["settle_json_schema"]


def settle_json_schema(
    files: InputFiles,
    listed: Sequence[ListedFile],
    *,
    encoding: str,
    compression: Compression,
    block_bytes: int,
    given: pa.Schema | None,
) -> pa.Schema:
    """The fields of the sample in the order in which they come, or `given`, tried on the sample.

    A field of which the sample shows no value is of strings.

    Raises:
        SourceError: A sampled file cannot be read, or two have a field of types that do not fit.
    """
    for one in listed:
        refuse_archive(one.path, compression)
    sampled = evenly([one for one in listed if one.size_bytes != 0])
    sample_bytes = max(block_bytes, CSV_SAMPLE_BYTES // max(1, len(sampled)))
    settled: pa.Schema | None = given
    first = ""
    for one in sampled:
        blocks = LineBlocks(
            files,
            one,
            start=0,
            end=one.size_bytes,
            encoding=encoding,
            compression=compression,
            block_bytes=sample_bytes,
        )
        try:
            found = _schema_of(one.path, blocks, given)
        finally:
            blocks.close()
        if found is None or given is not None:
            continue
        if settled is None:
            settled, first = found, one.path
            continue
        common = _common(pa.struct(settled), pa.struct(found))
        if common is None:
            plain = [pa.schema(list(_plain(pa.struct(schema)))) for schema in (found, settled)]
            raise schemas_differ(one.path, first, *plain)
        settled = pa.schema(list(common))
    if given is not None:
        return given
    if settled is None or not settled.names:
        raise EmptyFileError(
            files.url, "its files show no object with a field", "give the schema (`schema=`)"
        )
    return pa.schema(pa.field(one.name, _whole(one.type, one.name, first)) for one in settled)


def _schema_of(path: str, blocks: LineBlocks, given: pa.Schema | None) -> pa.Schema | None:
    text = blocks.next()
    if text is None or not text.strip():
        return None
    try:
        return infer_json(text) if given is None else parse_json(text, given, "ignore").schema
    except (pa.ArrowException, ValueError) as error:
        raise wrong_json(path, blocks, text, given, "ignore") from error


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that reads the values of both; None where there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        types = {field.name: field.type for field in one}
        for field in other:
            known = types.get(field.name)
            made = field.type if known is None else _common(known, field.type)
            if made is None:
                return None
            types[field.name] = made
        return pa.struct(types)
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _common(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    both = (one, other)
    wider = next((kind for kind in (BIG_INTEGERS, WIDE) if kind in both), None)
    if wider is not None and all(kind in (BIG_INTEGERS, WIDE, pa.int64()) for kind in both):
        return wider
    # Texts all of them, some of which look like a time.
    if all(pa.types.is_timestamp(t) for t in both) and one.tz == other.tz:
        return pa.timestamp("ns", one.tz)
    if all(pa.types.is_timestamp(t) or pa.types.is_string(t) for t in both):
        return pa.string()
    return None


def _plain(found: pa.DataType) -> pa.DataType:
    """The type without marks."""
    if pa.types.is_struct(found):
        return pa.struct([(one.name, _plain(one.type)) for one in found])
    if pa.types.is_list(found):
        return pa.list_(_plain(found.value_type))
    return pa.int64() if found == WIDE else found


def _whole(found: pa.DataType, name: str, path: str) -> pa.DataType:
    """The type without places of which nothing is known."""
    if pa.types.is_null(found):
        return pa.string()
    if pa.types.is_list(found):
        return pa.list_(_whole(found.value_type, name, path))
    if not pa.types.is_struct(found):
        return _plain(found)
    if not found.num_fields:
        raise SourceError(
            path,
            f"field {name!r} is an empty object wherever the sample shows it",
            "give the types with `schema=`, with or without that field",
        )
    return pa.struct([(one.name, _whole(one.type, f"{name}.{one.name}", path)) for one in found])
