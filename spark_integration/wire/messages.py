"""What attempts, clients and their driver say, as bytes: Avro, by the schema `avro/wire-v5.avsc`.

One message is one value of a union of records. Neither side reads another version's bytes: the
version stands in the handshake, and another one is refused there, by its number.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, TypeVar, assert_never

import fastavro

from coordlog.messages import (
    Accepted,
    AckCheckpoint,
    AckEvent,
    AlreadyFinished,
    CheckpointAborted,
    CheckpointCompleted,
    Complete,
    DeliverEvent,
    DownMessage,
    Fail,
    Fenced,
    FinishSplit,
    InjectBarrier,
    Marker,
    Refused,
    Register,
    SendEvent,
    SkipSplit,
    UpMessage,
)
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    Committable,
    OperatorState,
    SplitFinished,
)

__all__ = [
    "ATTEMPT_PATH",
    "DRIVER_PATH",
    "REQUEST_PATH",
    "SOCKET_LOGGER",
    "VERSION_HEADER",
    "WIRE_SCHEMA",
    "WIRE_VERSION",
    "AskCoordinator",
    "ClientHello",
    "CoordinatorAnswer",
    "DriverHello",
    "Heartbeat",
    "MoreStates",
    "WireMessage",
    "decode",
    "decode_down",
    "decode_up",
    "encode",
]

WIRE_VERSION: Final = 5
"""Rises with each change of the schema; driver and tasks run one version of coordlog."""

VERSION_HEADER: Final = "Coordlog-Wire"
"""The header of the handshake that names the version."""

ATTEMPT_PATH: Final = "/attempt"
"""Where attempts connect, with the driver's token."""

DRIVER_PATH: Final = "/driver"
"""Where anybody may ask the driver to prove itself; whoever asks shows nothing."""

REQUEST_PATH: Final = "/request"
"""Where clients ask coordinators, with the driver's token; one request after the other on a connection."""

WIRE_SCHEMA: Final = (
    resources.files("coordlog.spark_integration") / "avro" / "wire-v5.avsc"
).read_text(encoding="utf-8")
"""The union of all messages, as JSON text."""

SOCKET_LOGGER: Final = logging.getLogger("coordlog.spark_integration.websockets")
"""The WebSocket library's. Never at DEBUG, where it writes a handshake's headers, the token too."""
SOCKET_LOGGER.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Both ways: the sender lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreStates:
    """Down, ahead of an `Accepted` that would be too large: a part of its states and skipped splits."""

    states: Sequence[OperatorState] = ()
    skipped_splits: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    """A client's first message: it asks the endpoint to prove which driver it is."""

    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverHello:
    """The answer to `ClientHello`; `proof` is `Token.prove` of nonce, job and driver."""

    job_id: str
    driver_id: str
    proof: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCoordinator:
    """What a client says at `REQUEST_PATH`: the next one after its answer (clause J1)."""

    operator_id: str
    payload_type: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAnswer:
    """The answer to `AskCoordinator`, once it is in the log; `outcome` is the value of a `RequestOutcome`."""

    outcome: str
    sequence: int | None = None
    payload_type: str | None = None
    payload: bytes | None = None
    reason: str | None = None


WireMessage = (
    UpMessage
    | DownMessage
    | MoreStates
    | Heartbeat
    | ClientHello
    | DriverHello
    | AskCoordinator
    | CoordinatorAnswer
)

_UP: Final = (
    Register,
    SendEvent,
    AckEvent,
    AckCheckpoint,
    FinishSplit,
    SkipSplit,
    Complete,
    Fail,
    Marker,
    Heartbeat,
)
_DOWN: Final = (
    Accepted,
    AlreadyFinished,
    Refused,
    DeliverEvent,
    InjectBarrier,
    CheckpointCompleted,
    CheckpointAborted,
    Marker,
    Fenced,
    MoreStates,
    Heartbeat,
)
_NAMESPACE: Final = "coordlog.wire."
_SCHEMA: Final = fastavro.parse_schema(json.loads(WIRE_SCHEMA))

M = TypeVar("M")
Plain = Mapping[str, Any]


def encode(message: WireMessage) -> bytes:
    """The message's bytes. Raises ValueError where a field does not fit its type."""
    out = io.BytesIO()
    value = (_NAMESPACE + type(message).__name__, _plain(message))
    try:
        fastavro.schemaless_writer(out, _SCHEMA, value, strict=True)
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{message!r} does not fit its schema: {error}") from error
    return out.getvalue()


def decode(data: bytes) -> WireMessage:
    """The message in `data`.

    Raises:
        ValueError: The bytes are no message of this version, too few or too many.
    """
    source = io.BytesIO(data)
    try:
        read: Any = fastavro.schemaless_reader(source, _SCHEMA, None, return_record_name=True)
        name, value = read
    except (EOFError, IndexError, KeyError, OverflowError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"no message of wire version {WIRE_VERSION}: {error!r}") from error
    if source.tell() != len(data):
        raise ValueError(f"{len(data) - source.tell()} bytes are left over after a message")
    make = _MAKE.get(str(name).removeprefix(_NAMESPACE))
    if make is None:
        raise ValueError(f"{name} is no message")
    return make(value)


def decode_up(data: bytes) -> UpMessage | Heartbeat:
    """What an attempt said. Raises ValueError for anything else."""
    message = decode(data)
    if not isinstance(message, _UP):
        raise ValueError(f"an attempt does not say {type(message).__name__}")  # noqa: TRY004, of bytes
    return message


def decode_down(data: bytes) -> DownMessage | MoreStates | Heartbeat:
    """What a driver said. Raises ValueError for anything else."""
    message = decode(data)
    if not isinstance(message, _DOWN):
        raise ValueError(f"a driver does not say {type(message).__name__}")  # noqa: TRY004, of bytes
    return message


def _plain(message: WireMessage) -> Plain:
    match message:
        case AckCheckpoint() | Complete():
            return {**_fields(message), "snapshot": _plain_snapshot(message.snapshot)}
        case FinishSplit():
            finished = message.finished
            return {
                **_fields(message),
                "finished": {
                    "split_id": finished.split_id,
                    "rows": finished.rows,
                    "bytes_read": finished.bytes_read,
                    "committables": _plain_committables(finished.committables),
                },
            }
        case Accepted():
            return {
                **_fields(message),
                "states": _plain_states(message.states),
                "skipped_splits": list(message.skipped_splits),
            }
        case MoreStates():
            return {
                "states": _plain_states(message.states),
                "skipped_splits": list(message.skipped_splits),
            }
        case (
            Register()
            | SendEvent()
            | AckEvent()
            | SkipSplit()
            | Fail()
            | AlreadyFinished()
            | Refused()
            | DeliverEvent()
            | InjectBarrier()
            | CheckpointCompleted()
            | CheckpointAborted()
            | Marker()
            | Fenced()
            | Heartbeat()
            | ClientHello()
            | DriverHello()
            | AskCoordinator()
            | CoordinatorAnswer()
        ):
            return _fields(message)
        case _:
            assert_never(message)


def _fields(message: WireMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in type(message).__slots__}


def _plain_states(states: Any) -> list[Plain]:  # noqa: ANN401, a sequence or a list of one type
    return [{"operator_id": one.operator_id, "state": one.state} for one in states]


def _plain_committables(committables: list[Committable]) -> list[Plain]:
    return [{"operator_id": one.operator_id, "content": one.content} for one in committables]


def _plain_snapshot(snapshot: AttemptSnapshot) -> Plain:
    return {
        "states": _plain_states(snapshot.states),
        "committables": _plain_committables(snapshot.committables),
    }


def _states(value: list[Plain]) -> list[OperatorState]:
    return [OperatorState(**one) for one in value]


def _committables(value: list[Plain]) -> list[Committable]:
    return [Committable(**one) for one in value]


def _snapshot(value: Plain) -> AttemptSnapshot:
    return AttemptSnapshot(
        states=_states(value["states"]), committables=_committables(value["committables"])
    )


def _finished(value: Plain) -> SplitFinished:
    return SplitFinished(
        split_id=value["split_id"],
        rows=value["rows"],
        bytes_read=value["bytes_read"],
        committables=_committables(value["committables"]),
    )


def _accepted(value: Plain) -> Accepted:
    states, skipped = tuple(_states(value["states"])), tuple(value["skipped_splits"])
    plain: dict[str, Any] = {**value, "states": states, "skipped_splits": skipped}
    return Accepted(**plain)


def _more_states(value: Plain) -> MoreStates:
    return MoreStates(
        states=tuple(_states(value["states"])), skipped_splits=tuple(value["skipped_splits"])
    )


def _with(cls: Callable[..., M], field: str, make: Callable[[Any], object]) -> Callable[[Plain], M]:
    """Makes a `cls` of a plain value, one field of which is made by `make`."""
    return lambda value: cls(**{**value, field: make(value[field])})


def _of(cls: Callable[..., M]) -> Callable[[Plain], M]:
    return lambda value: cls(**value)


_MAKE: Final[dict[str, Callable[[Plain], WireMessage]]] = {
    "Register": _of(Register),
    "SendEvent": _of(SendEvent),
    "AckEvent": _of(AckEvent),
    "AckCheckpoint": _with(AckCheckpoint, "snapshot", _snapshot),
    "FinishSplit": _with(FinishSplit, "finished", _finished),
    "SkipSplit": _of(SkipSplit),
    "Complete": _with(Complete, "snapshot", _snapshot),
    "Fail": _of(Fail),
    "Accepted": _accepted,
    "AlreadyFinished": _of(AlreadyFinished),
    "Refused": _of(Refused),
    "DeliverEvent": _of(DeliverEvent),
    "InjectBarrier": _of(InjectBarrier),
    "CheckpointCompleted": _of(CheckpointCompleted),
    "CheckpointAborted": _of(CheckpointAborted),
    "Marker": _of(Marker),
    "Fenced": _of(Fenced),
    "MoreStates": _more_states,
    "Heartbeat": _of(Heartbeat),
    "ClientHello": _of(ClientHello),
    "DriverHello": _of(DriverHello),
    "AskCoordinator": _of(AskCoordinator),
    "CoordinatorAnswer": _of(CoordinatorAnswer),
}
