"""Splits and reader states as bytes, behind the version of their type."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable

import pyarrow as pa

from coordlog.schemas.payload import decode_versioned, encode_versioned
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.files.payloads import (
    FileReaderState,
    FileSplit,
)
from coordlog.spark_integration.files.rescued import unmarked

__all__ = [
    "decode_schema",
    "decode_split",
    "decode_state",
    "encode_schema",
    "encode_split",
    "encode_state",
    "first_schema",
    "schema_of",
    "size_of",
    "weight_of",
]


def encode_split(split: FileSplit) -> bytes:
    """The content of a split."""
    return encode_versioned(split)


def decode_split(content: bytes) -> FileSplit:
    """The split in `content`. Raises ValueError if it is none that this version knows."""
    return decode_versioned(FileSplit, content)


def encode_state(state: FileReaderState) -> bytes:
    """The state that a reader hands over at a barrier."""
    return encode_versioned(state)


def decode_state(content: bytes) -> FileReaderState:
    """The state in `content`. Raises ValueError if it is none that this version knows."""
    return decode_versioned(FileReaderState, content)


def encode_schema(schema: pa.Schema) -> bytes:
    """The schema as a split stores it, complete, so that a reader infers nothing."""
    return zlib.compress(schema.serialize().to_pybytes(), 9)


@functools.lru_cache(maxsize=64)  # most splits of a source share one schema
def decode_schema(data: bytes) -> pa.Schema:
    """The schema in `data`."""
    return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(data)))


def schema_of(split: Split) -> pa.Schema:
    """Schema of a split's rows."""
    return unmarked(decode_schema(decode_split(split.content).arrow_schema))


def first_schema(splits: Iterable[Split]) -> bytes:
    """Encoded schema of the first split that has one; empty: none has."""
    schemas = (decode_split(split.content).arrow_schema for split in splits)
    return next(filter(None, schemas), b"")


def weight_of(split: Split) -> int:
    """Approximate number of bytes of its file to read; 0 if unknown."""
    return size_of(decode_split(split.content)) or 0


def size_of(split: FileSplit) -> int | None:
    """Approximate number of bytes of its file to read; None if unknown."""
    return None if split.size_bytes < 0 else split.size_bytes // max(split.parts, 1)
