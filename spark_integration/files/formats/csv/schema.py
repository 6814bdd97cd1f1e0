"""The one schema of a CSV source, settled from a bounded sample when its files are listed."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from coordlog.errors import SourceError
from coordlog.limits import CSV_SAMPLE_BYTES
from coordlog.spark_integration.casts.exact_numbers import are_whole_exact
from coordlog.spark_integration.files.compression import Compression, codec_of, refuse_archive
from coordlog.spark_integration.files.faults import EmptyFileError
from coordlog.spark_integration.files.formats.csv.options import CsvText
from coordlog.spark_integration.files.formats.csv.rows import (
    header_names,
    number_columns,
    open_csv,
    reading_error,
    row_cutter,
    typed_rows,
)
from coordlog.spark_integration.files.formats.csv.sifted import whole_rows
from coordlog.spark_integration.files.formats.inferring import WIDE, evenly, type_of_texts
from coordlog.spark_integration.files.formats.text.text_bytes import TextBytes
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.rescued import file_schema, without_rescued
from coordlog.spark_integration.files.schema_difference import schemas_differ

__all__ = ["settle_csv_schema"]

_FIRST_BYTES: Final = 16 * 1024
"""Bytes of which Arrow infers types, about 200 rows. With more, fewer files need a second parse of the sample."""


def settle_csv_schema(
    files: InputFiles,
    listed: Sequence[ListedFile],
    options: CsvText,
    expected: pa.Schema | None,
    compression: Compression = "infer",
    *,
    sifts: bool = False,
) -> pa.Schema:
    """Names from the headers and types from the sample's values, or `expected`, checked against them.

    A column without a value in the sample is of strings, which take every later value.

    Args:
        files: Opens the files.
        listed: The files.
        options: Form of the files.
        expected: The schema, if it is set or settled already.
        compression: Compression of the files.
        sifts: True: damaged rows are left out of the sample, and no value is checked.

    Raises:
        SourceError: Two headers differ, or a sampled file cannot be read.
    """
    for file in listed:
        refuse_archive(file.path, compression)
    sampled = evenly([file for file in listed if file.size_bytes != 0])
    if sifts:
        options = replace(options, skips_ragged=True)
    block_bytes = max(options.block_bytes, CSV_SAMPLE_BYTES // max(1, len(sampled)))
    settled: pa.Schema | None = None if expected is None else without_rescued(expected)
    first = ""
    for file in sampled:
        if expected is not None:
            settled = _file_schema(files, file, options, expected, compression)
        wanted = None if expected is None else settled
        inferred = _schema_of(files, file, options, wanted, settled, block_bytes, compression)
        if inferred is None:
            continue
        if settled is None:
            settled, first = inferred, file.path
        elif settled.names != inferred.names:
            of = "set, or settled before" if expected is not None else f"that of {first}"
            raise schemas_differ(file.path, of, inferred, settled)
        elif expected is None:
            settled = pa.schema(
                pa.field(column.name, _common(column.type, other.type))
                for column, other in zip(settled, inferred, strict=True)
            )
    if expected is not None:
        return expected
    if settled is None:
        raise EmptyFileError(
            files.url if len(listed) != 1 else listed[0].path,
            "it has no row and no header",
            "set the schema (`schema=`), or files with a header",
        )
    return pa.schema(pa.field(column.name, _whole(column.type)) for column in settled)


def _schema_of(
    files: InputFiles,
    file: ListedFile,
    options: CsvText,
    expected: pa.Schema | None,
    settled: pa.Schema | None,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema | None:
    """Schema of one file, or None without a row and a header; `settled` is that of the files before."""
    if options.skips_ragged and expected is not None:
        return _named_as_expected(files, file, options, expected, block_bytes, compression)
    if expected is None:
        quick = _quick_schema(files, file, options, settled, block_bytes, compression)
        if quick is not None:
            return quick
    elif _is_compatible(files, file, options, expected, block_bytes, compression):
        return expected
    stream = _stream(files, file, options, block_bytes, compression)
    try:
        if not stream.has_text(block_bytes):
            return None
        texts = () if expected is None else number_columns(expected)
        with open_csv(
            stream, options, schema=expected, block_bytes=block_bytes, texts=texts
        ) as reader:
            inferred: pa.Schema = reader.schema
            names: list[str] = inferred.names  # decodes the header
            if expected is not None and names == expected.names:
                _check_first(file.path, reader, expected, options)
    except (pa.ArrowInvalid, UnicodeError) as error:
        header_rows = 0 if options.csv.column_names is not None else 1
        raise reading_error(file.path, error, expected, header_rows=header_rows) from error
    finally:
        stream.close()
    _refuse_doubled(file.path, names)
    for column in inferred if expected is None else ():
        if pa.types.is_binary(column.type):
            raise SourceError(
                file.path,
                f"column {column.name!r} holds bytes that are not {options.encoding}",
                "set the file's encoding with `encoding=`",
            ) from ValueError("another encoding")
    return (
        inferred
        if expected is not None
        else _exact(files, file, options, inferred, block_bytes, compression)
    )


def _file_schema(
    files: InputFiles,
    file: ListedFile,
    options: CsvText,
    expected: pa.Schema,
    compression: Compression,
) -> pa.Schema:
    """Schema in which a file is read: `expected`, with columns of its own if there is a column for them."""
    if without_rescued(expected) is expected:
        return expected
    stream = TextBytes(
        file.path,
        files.open(file),
        None,
        None if options.is_utf8 else options.encoding,
        codec=codec_of(file.path, compression),
        for_csv=False,
    )
    with closing(stream):
        names = header_names(file.path, row_cutter(stream, options), options)
    return file_schema(names, expected)


def _stream(
    files: InputFiles,
    file: ListedFile,
    options: CsvText,
    block_bytes: int,
    compression: Compression,
) -> TextBytes:
    stream = TextBytes(
        file.path,
        files.open(file),
        None,
        None if options.is_utf8 else options.encoding,
        codec=codec_of(file.path, compression),
        for_csv=not options.skips_ragged,
    )
    if not options.skips_ragged:
        return stream
    try:
        sample = whole_rows(stream, replace(options, block_bytes=block_bytes))
    finally:
        stream.close()
    return TextBytes(file.path, io.BytesIO(sample), None, None)


def _refuse_doubled(path: str, names: Sequence[str]) -> None:
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubled:
        raise SourceError(
            path, f"columns of one name: {doubled}", "name them apart, or see `column_names=`"
        )


def _named_as_expected(
    files: InputFiles,
    file: ListedFile,
    options: CsvText,
    expected: pa.Schema,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema | None:
    """`expected` with the names of the file; None without a row and a header."""
    stream = _stream(files, file, options, block_bytes, compression)
    try:
        if not stream.has_text():
            return None
        texts = pa.schema(pa.field(name, pa.string()) for name in expected.names)
        with open_csv(stream, options, schema=texts, block_bytes=block_bytes) as reader:
            names: list[str] = reader.schema.names  # decodes the header
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise reading_error(file.path, error, expected) from error
    finally:
        stream.close()
    _refuse_doubled(file.path, names)
    types = [] if names == expected.names else [pa.string()] * len(names)
    return expected if not types else pa.schema(zip(names, types, strict=True))


def _is_compatible(
    files: InputFiles,
    file: ListedFile,
    options: CsvText,
    expected: pa.Schema,
    block_bytes: int,
    compression: Compression,
) -> bool:
    """Whether the first block is compatible as Arrow reads it; if not, its texts decide, and name the first fault."""
    stream = _stream(files, file, options, block_bytes, compression)
    try:
        if not stream.has_text(block_bytes):
            return False
        with open_csv(stream, options, schema=expected, block_bytes=block_bytes) as reader:
            names: list[str] = reader.schema.names
            return names == expected.names and _check_first(file.path, reader, expected, options)
    except (pa.ArrowInvalid, UnicodeError, SourceError):
        return False
    finally:
        stream.close()


def _check_first(
    path: str, reader: pa_csv.CSVStreamingReader, expected: pa.Schema, options: CsvText
) -> bool:
    """Check the first block against the schema. False: Arrow may have rounded floats."""
    for batch in reader:
        typed_rows(path, batch, expected, row=1 if options.csv.column_names is not None else 2)
        floats = [values for values in batch.columns if pa.types.is_floating(values.type)]
        return all(are_whole_exact(values, values.type) for values in floats)
    return True


def _exact(
    files: InputFiles,
    file: ListedFile,
    options: CsvText,
    inferred: pa.Schema,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema:
    """`inferred`, with other types for columns whose texts would change as numbers."""
    if not any(map(_is_of_numbers, inferred.types)):
        return inferred
    batch = _with_texts(files, file, options, inferred, block_bytes, compression)
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
    file: ListedFile,
    options: CsvText,
    settled: pa.Schema | None,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema | None:
    """The result of `_schema_of` by one parse of the sample; None if only the long way shows it.

    Arrow takes the first type, in its own order, that can read all values. For a file's first rows that is an
    earlier type than for the whole sample, or the same: the same, if it can read all values of the sample. In
    later files numbers are tried as numbers, and a column of strings in an earlier file stays strings.
    """
    first: pa.Schema | None
    try:
        if settled is not None and all(map(_is_plain, settled.types)):
            first = pa.schema((column.name, _integers(column.type)) for column in settled)
        else:
            first = _first_types(files, file, options, block_bytes, compression)
        if first is None or len(set(first.names)) != len(first):
            return None
        batch = _with_texts(files, file, options, first, block_bytes, compression)
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
    file: ListedFile,
    options: CsvText,
    block_bytes: int,
    compression: Compression,
) -> pa.Schema | None:
    """Types that Arrow infers of a file's first rows; None for a file without a row and a header."""
    stream = _stream(files, file, options, block_bytes, compression)
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
    file: ListedFile,
    options: CsvText,
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
    stream = _stream(files, file, options, block_bytes, compression)
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
    known = type_of_texts(values, first)
    # Between integers and floats Arrow tries no other type.
    is_other = known is None and first == pa.int64()
    return type_of_texts(values, pa.float64()) if is_other else known


def _is_plain(kind: pa.DataType) -> bool:
    return kind == WIDE or _is_of_numbers(kind) or pa.types.is_string(kind)


def _integers(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if kind == WIDE else kind


def _is_of_numbers(kind: pa.DataType) -> bool:
    return kind in (pa.int64(), pa.float64())


def _whole(kind: pa.DataType) -> pa.DataType:
    """Final type of a column, after the samples of all files."""
    if pa.types.is_null(kind):
        return pa.string()
    return pa.int64() if kind == WIDE else kind


def _common(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type that reads the values of both; in the end strings."""
    if kind == other or pa.types.is_null(other):
        return kind
    if pa.types.is_null(kind):
        return other
    kinds = {kind, other}
    if kinds == {pa.int64(), pa.float64()}:
        return pa.float64()
    if kinds == {pa.int64(), WIDE}:
        return WIDE
    moments = [t for t in (kind, other) if pa.types.is_timestamp(t)]
    if len(moments) == 2 and moments[0].tz == moments[1].tz:  # noqa: PLR2004, both
        return pa.timestamp("ns", tz=kind.tz)
    if len(moments) == 1 and moments[0].tz is None and pa.date32() in kinds:
        return moments[0]
    return pa.string()
