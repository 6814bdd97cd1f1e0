"""The one schema of a CSV source, settled from a bounded sample when its files are listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from coordlog.errors import SourceError
from coordlog.limits import CSV_SAMPLE_BYTES
from coordlog.spark_integration.files.compression import Compression, codec_of, refuse_archive
from coordlog.spark_integration.files.faults import EmptyFileError
from coordlog.spark_integration.files.formats.csv_options import CsvOptions
from coordlog.spark_integration.files.formats.csv_rows import (
    number_columns,
    open_csv,
    reading_error,
    typed_rows,
)
from coordlog.spark_integration.files.formats.inferring import WIDE, type_of_texts
from coordlog.spark_integration.files.formats.sampling import evenly
from coordlog.spark_integration.files.formats.text_bytes import TextBytes
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.schema_difference import schemas_differ

__all__ = ["settle_csv_schema"]

_FIRST_BYTES: Final = 16 * 1024
"""What Arrow infers types of. The more, the fewer files need a second parse of the sample: about 200 rows."""


def settle_csv_schema(
    files: InputFiles,
    listed: Sequence[ListedFile],
    options: CsvOptions,
    given: pa.Schema | None,
    compression: Compression = "infer",
) -> pa.Schema:
    """Names from the headers and types from the sample's values, or `given`, checked against them.

    A column of which the sample shows no value is of strings: it fits whatever comes.

    Raises:
        SourceError: Two headers differ, or a sampled file cannot be read.
    """
    for one in listed:
        refuse_archive(one.path, compression)
    sampled = evenly([one for one in listed if one.size_bytes != 0])
    block_bytes = max(options.block_bytes, CSV_SAMPLE_BYTES // max(1, len(sampled)))
    settled: pa.Schema | None = given
    first = ""
    for one in sampled:
        found = _schema_of(files, one, options, given, settled, block_bytes, compression)
        if found is None:
            continue
        if settled is None:
            settled, first = found, one.path
        elif settled.names != found.names:
            of = "given, or settled before" if given is not None else f"that of {first}"
            raise schemas_differ(one.path, of, found, settled)
        elif given is None:
            settled = pa.schema(
                pa.field(mine.name, _common(mine.type, other.type))
                for mine, other in zip(settled, found, strict=True)
            )
    if given is not None:
        return given
    if settled is None:
        raise EmptyFileError(
            files.url if len(listed) != 1 else listed[0].path,
            "it has no row and no header",
            "give the schema (`schema=`), or files with a header",
        )
    return pa.schema(pa.field(one.name, _whole(one.type)) for one in settled)


def _schema_of(
    files: InputFiles,
    one: ListedFile,
    options: CsvOptions,
    given: pa.Schema | None,
    settled: pa.Schema | None,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema | None:
    """None for a file without a row and a header; `settled` is that of the files before."""
    if given is None:
        quick = _quick_schema(files, one, options, settled, block_bytes, compression)
        if quick is not None:
            return quick
    stream = _stream(files, one, options, compression)
    try:
        if not stream.has_text():
            return None
        texts = () if given is None else number_columns(given)
        with open_csv(
            stream, options, schema=given, block_bytes=block_bytes, texts=texts
        ) as reader:
            found: pa.Schema = reader.schema
            names: list[str] = found.names  # decodes the header
            if given is not None and names == given.names:
                _check_first(one.path, reader, given, options)
    except (pa.ArrowInvalid, UnicodeError) as error:
        header_rows = 0 if options.column_names is not None else 1
        raise reading_error(one.path, error, given, header_rows=header_rows) from error
    finally:
        stream.close()
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise SourceError(
            one.path, f"columns of one name: {doubled}", "name them apart, or see `column_names=`"
        )
    for column in found if given is None else ():
        if pa.types.is_binary(column.type):
            raise SourceError(
                one.path,
                f"column {column.name!r} holds bytes that are not {options.encoding}",
                "give the file's encoding with `encoding=`",
            ) from ValueError("another encoding")
    return (
        found if given is not None else _exact(files, one, options, found, block_bytes, compression)
    )


def _stream(
    files: InputFiles, one: ListedFile, options: CsvOptions, compression: Compression
) -> TextBytes:
    return TextBytes(
        one.path,
        files.open(one),
        None,
        None if options.is_utf8 else options.encoding,
        codec=codec_of(one.path, compression),
    )


def _check_first(
    path: str, reader: pa_csv.CSVStreamingReader, given: pa.Schema, options: CsvOptions
) -> None:
    """See that the first block fits the schema."""
    for batch in reader:
        typed_rows(path, batch, given, row=1 if options.column_names is not None else 2)
        return


def _exact(
    files: InputFiles,
    one: ListedFile,
    options: CsvOptions,
    inferred: pa.Schema,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema:
    """`inferred`, but for columns of numbers that would not be those of the texts."""
    if not any(map(_is_of_numbers, inferred.types)):
        return inferred
    batch = _with_texts(files, one, options, inferred, block_bytes, compression)
    if batch is None:
        return inferred
    types = [
        type_of_texts(texts, kind) if _is_of_numbers(kind) else kind
        for texts, kind in zip(batch.columns, inferred.types, strict=True)
    ]
    assert None not in types, "Arrow has found numbers in all of these texts"
    return pa.schema(zip(inferred.names, types, strict=True))


def _quick_schema(
    files: InputFiles,
    one: ListedFile,
    options: CsvOptions,
    settled: pa.Schema | None,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema | None:
    """What `_schema_of` comes to, by one parse of the sample; None if only the long way shows it.

    Arrow takes the first type, in its own order, that fits all values. Of a file's first rows that is a type
    before that of the sample, or the same: the same, if all values of the sample fit it. Of later files numbers
    are tried as numbers, and what is strings in a file before stays strings, whatever it is in others.
    """
    first: pa.Schema | None
    try:
        if settled is not None and all(map(_is_plain, settled.types)):
            first = pa.schema((one.name, _integers(one.type)) for one in settled)
        else:
            first = _first_types(files, one, options, block_bytes, compression)
        if first is None or len(set(first.names)) != len(first):
            return None
        batch = _with_texts(files, one, options, first, block_bytes, compression)
    except (pa.ArrowInvalid, UnicodeError):
        return None
    if batch is None or batch.schema.names != first.names:
        return None
    types = [
        _type_in_sample(values, kind)
        for values, kind in zip(batch.columns, first.types, strict=True)
    ]
    return None if None in types else pa.schema(zip(first.names, types, strict=True))


def _first_types(
    files: InputFiles,
    one: ListedFile,
    options: CsvOptions,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema | None:
    """Types of a file's first rows, as Arrow has them; None for a file without a row and a header."""
    stream = _stream(files, one, options, compression)
    try:
        if not stream.has_text():
            return None
        size = min(block_bytes, _FIRST_BYTES)
        with open_csv(stream, options, schema=None, block_bytes=size) as reader:
            return reader.schema
    finally:
        stream.close()


def _with_texts(
    files: InputFiles,
    one: ListedFile,
    options: CsvOptions,
    schema: pa.Schema,
    block_bytes: int,
    compression: Compression,
) -> pa.RecordBatch | None:
    """The sample with columns of numbers, and of nulls, as texts; None if it has no row."""
    texts = [
        column.name
        for column in schema
        if _is_of_numbers(column.type) or pa.types.is_null(column.type)
    ]
    stream = _stream(files, one, options, compression)
    try:
        with open_csv(
            stream, options, schema=schema, block_bytes=block_bytes, texts=texts
        ) as reader:
            return next(iter(reader), None)
    finally:
        stream.close()


def _type_in_sample(values: pa.Array, first: pa.DataType) -> pa.DataType | None:
    """The type of a column of the sample, of which Arrow has the first values as `first`; None if unknown."""
    if pa.types.is_null(first):
        return first if values.null_count == len(values) else None
    if not _is_of_numbers(first):
        return None if pa.types.is_binary(first) else first
    if values.null_count == len(values):
        return pa.null()
    found = type_of_texts(values, first)
    # What is no integer, and is a float, is of no type between the two.
    is_other = found is None and first == pa.int64()
    return type_of_texts(values, pa.float64()) if is_other else found


def _is_plain(kind: pa.DataType) -> bool:
    return kind == WIDE or _is_of_numbers(kind) or pa.types.is_string(kind)


def _integers(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if kind == WIDE else kind


def _is_of_numbers(kind: pa.DataType) -> bool:
    return kind in (pa.int64(), pa.float64())


def _whole(found: pa.DataType) -> pa.DataType:
    """The type of a column, once those of all files are known."""
    if pa.types.is_null(found):
        return pa.string()
    return pa.int64() if found == WIDE else found


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type that reads the values of both; in the end strings."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    kinds = {one, other}
    if kinds == {pa.int64(), pa.float64()}:
        return pa.float64()
    if kinds == {pa.int64(), WIDE}:
        return WIDE
    moments = [t for t in (one, other) if pa.types.is_timestamp(t)]
    if len(moments) == 2 and moments[0].tz == moments[1].tz:  # noqa: PLR2004, both
        return pa.timestamp("ns", tz=one.tz)
    if len(moments) == 1 and moments[0].tz is None and pa.date32() in kinds:
        return moments[0]
    return pa.string()
