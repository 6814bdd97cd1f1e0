"""What the coordinator of a file source keeps beside its splits, as bytes: files read otherwise, age limit, schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.source_types import LASTING, LastingState, Split
from coordlog.spark_integration.files.listing import ListedFile, as_listed
from coordlog.spark_integration.files.payloads import (
    AgeLimit,
    FileChanged,
    FilesAsRead,
    FileSplit,
    SchemaSettled,
)
from coordlog.spark_integration.files.source.split_bytes import decode_split

__all__ = [
    "as_it_was_read",
    "files_as_read",
    "limit_of",
    "note_change",
    "note_fact",
    "note_lost_splits",
    "settled_of",
]

_AS_READ: Final = payload_type_of(FilesAsRead)
_LASTING: Final = payload_type_of(LastingState)
_LIMIT_BYTES: Final = 8
_NO_LIMIT: Final = b"\xff" * _LIMIT_BYTES


def files_as_read(kept: bytes | None) -> dict[str, FileChanged]:
    """Files that were read otherwise than listed, by path, from the bytes that a coordinator keeps."""
    _, content = _parts(kept)
    if content is None:
        return {}
    return {file.path: file for file in cast("FilesAsRead", _AS_READ.decode(content)).files}


def as_it_was_read(split: FileSplit, files: Mapping[str, FileChanged]) -> ListedFile:
    """The file of a split as its rows were read: as it was listed, or as `files` has it, by path.

    A change of an earlier listing is none of this split: the name may have been released or forgotten since.
    """
    listed, change = as_listed(split), files.get(split.path)
    if change is None or (change.listed_size_bytes, change.listed_mark) != (
        listed.size_bytes,
        listed.mark,
    ):
        return listed
    return replace(listed, size_bytes=change.size_bytes, mark=change.mark)


def limit_of(kept: bytes | None) -> int | None:
    """Time before which a modified file is not discovered any more, microseconds since 1970, UTC; None: none is."""
    lasting, _ = _parts(kept)
    limit = lasting[:_LIMIT_BYTES]
    return None if limit in (b"", _NO_LIMIT) else int.from_bytes(limit, "big")


def settled_of(kept: bytes | None) -> bytes:
    """Schema of files that were forgotten or released, as in their splits; empty: none was."""
    lasting, _ = _parts(kept)
    return lasting[_LIMIT_BYTES:]


def note_change(kept: bytes | None, event: Payload) -> bytes | None:
    """Bytes that a coordinator keeps after an event of a reader."""
    if not isinstance(event, FileChanged):
        return kept
    files = {**files_as_read(kept), event.path: event}
    return _with_files(kept, [files[path] for path in sorted(files)])


def note_lost_splits(kept: bytes | None, splits: Sequence[Split]) -> bytes | None:
    """Bytes that a coordinator keeps after a reader has lost `splits`: the next reader reads them anew."""
    if _parts(kept)[1] is None:
        return kept
    lost = {decode_split(split.content).path for split in splits}
    return _with_files(
        kept, [file for path, file in files_as_read(kept).items() if path not in lost]
    )


def note_fact(kept: bytes | None, fact: Payload) -> bytes | None:
    """Bytes that a coordinator keeps after a fact that a listing has recorded."""
    lasting, content = _parts(kept)
    limit = lasting[:_LIMIT_BYTES] or _NO_LIMIT
    match fact:
        case AgeLimit():
            limit_us = max(fact.modified_from_us, limit_of(kept) or 0)
            limit = limit_us.to_bytes(_LIMIT_BYTES, "big")
            return _encoded(limit + settled_of(kept), content)
        case SchemaSettled():
            return _encoded(limit + (settled_of(kept) or fact.arrow_schema), content)
        case _:
            return kept


def _parts(kept: bytes | None) -> tuple[bytes, bytes | None]:
    """The lasting part, an age limit and a schema, and encoded `FilesAsRead`; empty or None if there is none."""
    if kept is None or not kept.startswith(LASTING):
        return b"", kept
    state = cast("LastingState", _LASTING.decode(kept.removeprefix(LASTING)))
    return state.lasting, state.content


def _with_files(kept: bytes | None, files: list[FileChanged]) -> bytes:
    return _encoded(_parts(kept)[0], _AS_READ.encode(FilesAsRead(files=files)))


def _encoded(lasting: bytes, content: bytes | None) -> bytes:
    if not lasting:
        assert content is not None, "it is kept for one of the two"
        return content
    return LASTING + _LASTING.encode(LastingState(lasting=lasting, content=content))
