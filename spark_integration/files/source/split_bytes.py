"""Splits and reader states as the log has them, in each version that there has been.

The first version stands bare. Later ones begin with a zero byte and their number: a bare split
cannot begin so, because it begins with the length of its name, nor a bare state, unless it is that
one byte and holds nothing.
"""

from __future__ import annotations

import functools
import zlib
from typing import Final, cast

import pyarrow as pa

from coordlog.schemas.payload import PayloadType, payload_type_of
from coordlog.schemas.source_events import Split
from coordlog.spark_integration.files.payloads import (
    FileReaderState,
    FileSplit,
    FirstFileReaderState,
    FirstFileSplit,
    SecondFileReaderState,
    SplitProgress,
)

__all__ = [
    "decode_schema",
    "decode_split",
    "decode_state",
    "encode_schema",
    "encode_split",
    "encode_state",
    "schema_of",
    "weight_of",
]

_SPLIT: Final = payload_type_of(FileSplit)
_STATE: Final = payload_type_of(FileReaderState)
_SECOND_STATE: Final = payload_type_of(SecondFileReaderState)
_FIRST_SPLIT: Final = payload_type_of(FirstFileSplit)
_FIRST_STATE: Final = payload_type_of(FirstFileReaderState)
_MARK_BYTES: Final = 2


def encode_split(split: FileSplit) -> bytes:
    """What an enumerator is given as a split's content."""
    return _mark(_SPLIT) + _SPLIT.encode(split)


def decode_split(content: bytes) -> FileSplit:
    """The split in `content`. Raises ValueError where it is none that this version knows."""
    if _version(content, "a split", _SPLIT) > 1:
        return cast("FileSplit", _SPLIT.decode(content[_MARK_BYTES:]))
    return _upcast(cast("FirstFileSplit", _FIRST_SPLIT.decode(content)))


def encode_state(state: FileReaderState) -> bytes:
    """What a reader hands over at a barrier."""
    return _mark(_STATE) + _STATE.encode(state)


def decode_state(content: bytes) -> FileReaderState:
    """The state in `content`. Raises ValueError where it is none that this version knows."""
    version = _version(content, "a reader's state", _STATE)
    if version == _STATE.version:
        return cast("FileReaderState", _STATE.decode(content[_MARK_BYTES:]))
    if version == _SECOND_STATE.version:
        second = cast("SecondFileReaderState", _SECOND_STATE.decode(content[_MARK_BYTES:]))
        earlier = [(one.split, one.rows) for one in second.splits]
    else:
        first = cast("FirstFileReaderState", _FIRST_STATE.decode(content))
        earlier = [(_upcast(one.split), one.rows) for one in first.splits]
    return FileReaderState(
        splits=[SplitProgress(split=split, rows=rows, read_as="") for split, rows in earlier]
    )


def encode_schema(schema: pa.Schema) -> bytes:
    """The schema as a split holds it: nothing of it is left to be guessed by a reader."""
    return zlib.compress(schema.serialize().to_pybytes(), 9)


@functools.lru_cache(maxsize=64)  # a source's splits share theirs, or few do not
def decode_schema(data: bytes) -> pa.Schema:
    """The schema in `data`."""
    return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(data)))


def schema_of(split: Split) -> pa.Schema:
    """Of a split's rows."""
    return decode_schema(decode_split(split.content).arrow_schema)


def weight_of(split: Split) -> int:
    """About how many bytes of its file it has to read; 0 where nobody knows."""
    content = decode_split(split.content)
    return max(content.size_bytes, 0) // max(content.parts, 1)


def _mark(kind: PayloadType) -> bytes:
    return bytes((0, kind.version))


def _version(content: bytes, what: str, newest: PayloadType) -> int:
    if len(content) < _MARK_BYTES or content[0]:
        return 1
    version = content[1]
    if not _SPLIT.version <= version <= newest.version:
        raise ValueError(f"{what} of version {version}; this version reads up to {newest.version}")
    return version


def _upcast(first: FirstFileSplit) -> FileSplit:
    return FileSplit(
        split_id=first.split_id,
        path=first.path,
        size_bytes=first.size_bytes,
        mark="",
        real_path="",
        parts=0,
        listed_by="",
        start=first.start,
        end=first.end,
        arrow_schema=first.arrow_schema,
    )
