"""Splits and reader states as the log has them, in each version that there has been.

The first version stands bare. Later ones begin with a zero byte and their number: a bare split
cannot begin so, because it begins with the length of its name, nor a bare state, unless it is that
one byte and holds nothing.
"""

from __future__ import annotations

import zlib
from typing import Final, cast

import pyarrow as pa

from coordlog.schemas.payload import payload_type_of

from .payloads import (
    FileReaderState,
    FileSplit,
    FirstFileReaderState,
    FirstFileSplit,
    SplitProgress,
)

__all__ = [
    "decode_schema",
    "decode_split",
    "decode_state",
    "encode_schema",
    "encode_split",
    "encode_state",
]

_SPLIT: Final = payload_type_of(FileSplit)
_STATE: Final = payload_type_of(FileReaderState)
_FIRST_SPLIT: Final = payload_type_of(FirstFileSplit)
_FIRST_STATE: Final = payload_type_of(FirstFileReaderState)
_MARK: Final = bytes((0, _SPLIT.version))


def encode_split(split: FileSplit) -> bytes:
    """What an enumerator is given as a split's content."""
    return _MARK + _SPLIT.encode(split)


def decode_split(content: bytes) -> FileSplit:
    """The split in `content`. Raises ValueError where it is none that this version knows."""
    if _is_marked(content):
        return cast("FileSplit", _SPLIT.decode(content[len(_MARK) :]))
    return _upcast(cast("FirstFileSplit", _FIRST_SPLIT.decode(content)))


def encode_state(state: FileReaderState) -> bytes:
    """What a reader hands over at a barrier."""
    return _MARK + _STATE.encode(state)


def decode_state(content: bytes) -> FileReaderState:
    """The state in `content`. Raises ValueError where it is none that this version knows."""
    if _is_marked(content):
        return cast("FileReaderState", _STATE.decode(content[len(_MARK) :]))
    first = cast("FirstFileReaderState", _FIRST_STATE.decode(content))
    return FileReaderState(
        splits=[SplitProgress(split=_upcast(one.split), rows=one.rows) for one in first.splits]
    )


def encode_schema(schema: pa.Schema) -> bytes:
    """The schema as a split holds it: nothing of it is left to be guessed by a reader."""
    return zlib.compress(schema.serialize().to_pybytes(), 9)


def decode_schema(data: bytes) -> pa.Schema:
    """The schema in `data`."""
    return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(data)))


def _is_marked(content: bytes) -> bool:
    if len(content) < len(_MARK) or content[0]:
        return False
    if content[1] != _MARK[1]:
        raise ValueError(
            f"a split or reader state of version {content[1]}; this version reads up to {_MARK[1]}"
        )
    return True


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
