"""The messages of attempts, clients and their driver, as bytes: Avro, by a schema that is derived from their classes.

A message is a value of a union of records. A frame between an attempt and its driver has one or more, one after the
other; a frame of a client has one. Neither side reads another version's bytes: the handshake contains the
version number, and refuses another one.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast, get_args

import fastavro

from coordlog.kernel.inputs import Asker
from coordlog.messages import DownMessage, UpMessage
from coordlog.schemas.builtin_types import OperatorState
from coordlog.schemas.derived_schema import Derivation, Shape

__all__ = [
    "ATTEMPT_PATH",
    "DRIVER_PATH",
    "FRAME_BYTES",
    "FRAME_MESSAGES_MAX",
    "REQUEST_PATH",
    "SOCKET_LOGGER",
    "VERSION_HEADER",
    "WIRE_SCHEMA",
    "WIRE_VERSION",
    "AskCoordinator",
    "ClientHello",
    "CoordinatorAnswer",
    "DescribeTypes",
    "DriverHello",
    "FromTask",
    "Heartbeat",
    "MoreStates",
    "TypeDescription",
    "TypesDescribed",
    "WireMessage",
    "decode",
    "decode_down",
    "decode_up",
    "encode",
]

FRAME_MESSAGES_MAX: Final = 64
FRAME_BYTES: Final = 64 * 1024
"""A frame of more messages than one takes no further message once it has so many bytes."""

WIRE_VERSION: Final = 1
"""Version of the schema; rises with each change of a released one. Driver and tasks run one version of coordlog."""

VERSION_HEADER: Final = "Coordlog-Wire"
"""Header of the handshake with the version."""

ATTEMPT_PATH: Final = "/attempt"
"""Path for attempts, which need the driver's token."""

DRIVER_PATH: Final = "/driver"
"""Path for challenges to the driver, which need no token."""

REQUEST_PATH: Final = "/request"
"""Path for requests to coordinators, which need the driver's token; one request after the other on a connection."""

SOCKET_LOGGER: Final = logging.getLogger("coordlog.spark_integration.websockets")
"""Logger of the WebSocket library. Never at DEBUG, as it would log a handshake's headers, including the token."""
SOCKET_LOGGER.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """In both directions: the sender lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreStates:
    """To a task, ahead of an `Accepted` that would be too large: a part of its states and skipped splits."""

    states: tuple[OperatorState, ...] = ()
    skipped_splits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    """A client's challenge, its first message: the endpoint must prove which driver it is."""

    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverHello:
    """The answer to `ClientHello`; `proof` is `Token.prove` of nonce, job and driver."""

    job_id: str
    driver_id: str
    proof: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCoordinator:
    """A client's request at `REQUEST_PATH`; the next one follows its answer (J1: requests to coordinators)."""

    operator_id: str
    payload_type: str
    payload: bytes
    asked_by: Asker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTypes:
    """A client's question at `REQUEST_PATH` for the payload types of the job; answered from memory, not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeDescription:
    """A payload type of the job."""

    key: str
    """Name and version, as in `rules.update@1`."""
    role: str
    """Value of a `PayloadRole`."""
    schema_json: str
    secret_fields: tuple[str, ...] = ()
    """Fields that only the class of the payload seals: bytes made by the schema alone would show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypesDescribed:
    """The answer to `DescribeTypes`, sorted by key."""

    types: tuple[TypeDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAnswer:
    """The answer to `AskCoordinator`, once the answer is in the log; `outcome` is the value of a `RequestOutcome`."""

    outcome: str
    sequence: int | None = None
    payload_type: str | None = None
    payload: bytes | None = None
    reason: str | None = None


FromTask = UpMessage | Heartbeat
ToTask = DownMessage | MoreStates | Heartbeat
WireMessage = (
    FromTask
    | ToTask
    | ClientHello
    | DriverHello
    | AskCoordinator
    | CoordinatorAnswer
    | DescribeTypes
    | TypesDescribed
)

_CLASSES: Final = get_args(WireMessage)
_FROM_TASK: Final = frozenset(get_args(FromTask))
_TO_TASK: Final = frozenset(get_args(ToTask))
_HEADS: Final = 64
_TOGETHER: Final = Derivation()

WIRE_SCHEMA: Final = json.dumps(
    [_TOGETHER.shape(message, message.__name__).schema for message in _CLASSES]
)
"""The union of all messages, as JSON text. Each is a record with the class's name and fields."""


class _Codec(NamedTuple):
    """The codec of one message of the union, for its bytes behind the union's index.

    A library that writes the whole union looks for the record among all of them: five times the cost.
    """

    head: bytes
    """Index in the union: one byte, as its zigzag number is below 128."""
    schema: Any
    shape: Shape


def _codec_of(number: int, message: type) -> _Codec:
    assert number < _HEADS, "its head is one byte"
    shape = Derivation().shape(message, message.__name__)
    return _Codec(bytes((2 * number,)), fastavro.parse_schema(cast("Any", shape.schema)), shape)


_CODECS: Final = tuple(_codec_of(number, message) for number, message in enumerate(_CLASSES))
_BY_CLASS: Final = dict(zip(_CLASSES, _CODECS, strict=True))
_BY_INDEX: Final = {codec.head[0]: codec for codec in _CODECS}


def encode(message: WireMessage) -> bytes:
    """The message's bytes. Raises ValueError if a field has a value of another type."""
    codec = _BY_CLASS[type(message)]
    out = io.BytesIO()
    out.write(codec.head)
    try:
        fastavro.schemaless_writer(out, codec.schema, codec.shape.write(message), strict=True)
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{message!r} is incompatible with its schema: {error}") from error
    return out.getvalue()


def decode(data: bytes) -> WireMessage:
    """The one message in `data`.

    Raises:
        ValueError: The bytes are no message of this version, or too few, or too many.
    """
    message, end = _decode_at(io.BytesIO(data), data, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes are left over after a message")
    return message


def _decode_at(source: io.BytesIO, data: bytes, start: int) -> tuple[WireMessage, int]:
    """The message that begins at `start`, and its end; `source` reads `data`."""
    codec = _BY_INDEX.get(data[start]) if start < len(data) else None
    if codec is None:
        head = data[start : start + 1]
        raise ValueError(f"no message of wire version {WIRE_VERSION}: it begins with {head!r}")
    source.seek(start + 1)
    try:
        value = fastavro.schemaless_reader(source, codec.schema, None)
    except (EOFError, IndexError, KeyError, OverflowError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"no message of wire version {WIRE_VERSION}: {error!r}") from error
    message: WireMessage = codec.shape.read(value)
    return message, source.tell()


def _decode_frame(data: bytes) -> Iterator[tuple[WireMessage, int]]:
    source, start = io.BytesIO(data), 0
    while start < len(data) or not data:
        message, end = _decode_at(source, data, start)
        yield message, end - start
        start = end


def decode_up(data: bytes) -> Iterator[tuple[FromTask, int]]:
    """The messages of an attempt in a frame, one or more, with their bytes.

    Each is decoded when it is taken: ValueError is raised behind the last valid message before anything else.
    """
    for message, size in _decode_frame(data):
        if type(message) not in _FROM_TASK:
            raise ValueError(f"an attempt does not send {type(message).__name__}")
        yield cast("FromTask", message), size


def decode_down(data: bytes) -> Iterator[tuple[ToTask, int]]:
    """The messages of a driver to an attempt in a frame, as `decode_up`."""
    for message, size in _decode_frame(data):
        if type(message) not in _TO_TASK:
            raise ValueError(f"a driver does not send {type(message).__name__}")
        yield cast("ToTask", message), size
