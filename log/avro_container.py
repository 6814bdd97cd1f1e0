"""Avro container files from outside, read within bounds: neither lengths, counts nor schema of the file are trusted.

A library that follows the file's own schema loops for any count in it (an array of nulls takes no bytes), and a library
that inflates a whole block takes up to a thousand times its size on disk. So the schema is the caller's, each block is
inflated up to a limit, and the count of rows is checked against the block's bytes.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import fastavro

from coordlog.limits import CONTAINER_BLOCK_BYTES_MAX, CONTAINER_HEADER_BYTES_MAX

__all__ = ["ContainerHeader", "read_header", "read_rows"]

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_VARINT_BYTES_MAX: Final = 10
_RAW_DEFLATE: Final = -15


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHeader:
    """The beginning of a container file."""

    metadata: Mapping[str, str]
    sync: bytes
    """Marker that ends each block."""

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields of the file's rows, as its own schema has them."""
        try:
            schema = json.loads(self.metadata.get("avro.schema", ""))
            return tuple(str(field["name"]) for field in schema["fields"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError("its schema is no record's") from error


def read_header(file: BinaryIO) -> ContainerHeader:
    """Read a container's header; the file is at its first block then.

    Raises:
        ValueError: The file is no container, or its header is too large.
        EOFError: The file ends inside its header.
    """
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as an Avro container file does")
    metadata: dict[str, str] = {}
    left = CONTAINER_HEADER_BYTES_MAX
    while (count := _required_long(file)) != 0:
        if count < 0:  # then their size in bytes precedes these entries
            _required_long(file)
        for _ in range(abs(count)):
            name = _bytes(file, left)
            value = _bytes(file, left - len(name))
            left -= len(name) + len(value) + 1
            metadata[name.decode()] = value.decode()
    return ContainerHeader(metadata=metadata, sync=_exactly(file, _SYNC_BYTES))


def read_rows(
    file: BinaryIO, header: ContainerHeader, schema: object, *, row_bytes_min: int
) -> Iterator[dict[str, object]]:
    """Read the rows behind the header.

    Args:
        file: The file, right behind its header.
        header: Its header.
        schema: The parsed schema of the rows: the caller's, which the file's fields equal.
        row_bytes_min: Bytes that the smallest row of this schema has.

    Raises:
        ValueError: A block is damaged, or larger than `CONTAINER_BLOCK_BYTES_MAX`.
        EOFError: The file ends inside a block.
    """
    codec = header.metadata.get("avro.codec", "null")
    if codec not in ("null", "deflate"):
        raise ValueError(f"its codec is {codec[:40]!r}, and only null and deflate are read")
    while (count := _long(file)) is not None:
        data = _bytes(file, CONTAINER_BLOCK_BYTES_MAX)
        if codec == "deflate":
            data = _inflated(data)
        if not 0 <= count <= len(data) // row_bytes_min:
            raise ValueError(f"a block of {len(data):,} bytes is said to have {count:,} rows")
        source = io.BytesIO(data)
        for _ in range(count):
            row = fastavro.schemaless_reader(source, schema, None)  # type: ignore[arg-type]  # parsed
            assert isinstance(row, dict), "the schema is a record's"
            yield row
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell():,} bytes of a block are left over")
        if _exactly(file, _SYNC_BYTES) != header.sync:
            raise ValueError("a block does not end with the file's marker")


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj(_RAW_DEFLATE)
    content = inflater.decompress(data, CONTAINER_BLOCK_BYTES_MAX + 1)
    if len(content) > CONTAINER_BLOCK_BYTES_MAX:
        raise ValueError(
            f"a block of {len(data):,} bytes has more than {CONTAINER_BLOCK_BYTES_MAX:,} when it is "
            "inflated"
        )
    if not inflater.eof:
        raise EOFError("a block is cut off")
    return content


def _long(file: BinaryIO) -> int | None:
    """The next number; None at the file's end."""
    number = 0
    for position in range(_VARINT_BYTES_MAX):
        byte = file.read(1)
        if not byte:
            if position:
                raise EOFError("it ends inside a number")
            return None
        number |= (byte[0] & 0x7F) << (7 * position)
        if byte[0] < 0x80:  # noqa: PLR2004, the bit that says that more follow
            return (number >> 1) ^ -(number & 1)
    raise ValueError("a number in it has more than ten bytes")


def _required_long(file: BinaryIO) -> int:
    number = _long(file)
    if number is None:
        raise EOFError("it ends inside its header")
    return number


def _bytes(file: BinaryIO, bytes_max: int) -> bytes:
    length = _required_long(file)
    if not 0 <= length <= bytes_max:
        raise ValueError(
            f"a part of it is said to have {length:,} bytes; at most {bytes_max:,} are read"
        )
    return _exactly(file, length)


def _exactly(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    if len(data) != length:
        raise EOFError(f"it ends {length - len(data):,} bytes too early")
    return data
