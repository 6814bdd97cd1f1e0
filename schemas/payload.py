"""Payload types: dataclasses with an explicit name and version, whose Avro schemas are derived and registered.

`@event("rules.update", version=1)` makes a frozen dataclass of a `Payload`. A schema is derived by
dataclasses-avroschema; fastavro encodes. That library refuses `from __future__ import annotations` and `NewType` in the
module that declares the type.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform

from dataclasses_avroschema import AvroModel

from coordlog.errors import PayloadLostError, PayloadTypeError
from coordlog.schemas.codec import Avro, Plain, avro_fingerprint
from coordlog.schemas.payload_address import address_in, plain
from coordlog.schemas.secret_fields import Guard, guards_of

__all__ = [
    "Payload",
    "PayloadRole",
    "PayloadType",
    "PayloadTypes",
    "event",
    "fact",
    "open_inline",
    "payload",
    "payload_type_of",
    "request",
    "response",
]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
P = TypeVar("P", bound="Payload")


class PayloadRole(enum.Enum):
    """What a payload type may be used for."""

    EVENT = "event"
    FACT = "fact"
    REQUEST = "request"
    RESPONSE = "response"
    PAYLOAD = "payload"
    """Anything else that records hold: snapshots, intents, outcomes."""


class Payload(AvroModel):
    """Base class of every payload. Subclasses are declared with `event`, `fact`, `request`, `response` or `payload`."""

    coordlog_type: ClassVar[PayloadType]

    def upcast(self) -> Payload:
        """What a value of this version is read as: itself, or one of a later version of the same name.

        For a version that is declared so that the history stays readable, and not written any more.
        Both are named in the operator's `payload_types`; everything that reads the log gets the later one.
        """
        return self


@dataclass(frozen=True, slots=True, eq=False)
class PayloadType:
    """What the log calls a payload class."""

    name: str
    version: int
    role: PayloadRole
    payload_class: type[Payload]
    avro: Avro
    fingerprint: int
    loss_tolerant: bool = False
    """An event that may be lost without a failover (clause C8)."""

    @property
    def key(self) -> str:
        """Name and version, as records name it: `rules.update@1`."""
        return f"{self.name}@{self.version}"

    @property
    def schema_json(self) -> str:
        """The derived Avro schema."""
        return self.avro.schema_json

    def encode(self, value: Payload) -> bytes:
        """The value's bytes, its secret fields sealed.

        Raises:
            PayloadTypeError: A field has a value of another type.
            OptionError: A field is encrypted, and there is no key.
        """
        try:
            return self.avro.encode(_fields_of(value))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise PayloadTypeError(
                self.key, f"{value!r} does not fit its schema: {error}"
            ) from error

    def decode(self, data: bytes) -> Payload:
        """The value in `data`; secret fields as they were sealed. Raises ValueError where the bytes are none."""
        return _build(self.payload_class, self.avro.decode(data))


def payload_type_of(value: Payload | type[Payload]) -> PayloadType:
    """The declared type of a payload or of a payload class. Raises PayloadTypeError where it was not declared."""
    cls = value if isinstance(value, type) else type(value)
    declared: PayloadType | None = cls.__dict__.get("coordlog_type")
    if declared is None:
        raise PayloadTypeError(
            f"{cls.__module__}.{cls.__qualname__}",
            'it has no name: declare it with `@event("some.name", version=1)`',
        )
    return declared


def _declare(
    role: PayloadRole, name: str, version: int, *, loss_tolerant: bool = False
) -> Callable[[type[P]], type[P]]:
    if not _NAME.fullmatch(name):
        raise PayloadTypeError(
            name, "a name is lower-case words joined by dots, as in `rules.update`"
        )
    if version < 1:
        raise PayloadTypeError(name, f"version is {version}; versions begin at 1")

    def decorate(cls: type[P]) -> type[P]:
        if not issubclass(cls, Payload):
            raise PayloadTypeError(name, f"{cls.__name__} must inherit coordlog's Payload")
        made = dataclass(frozen=True, kw_only=True)(cls)
        try:
            guarded = guards_of(made)
        except TypeError as error:
            raise PayloadTypeError(name, str(error)) from error
        if guarded:
            made.__repr__ = _repr_without(frozenset(guarded))  # type: ignore[method-assign]
        schema_json = json.dumps(json.loads(made.avro_schema()), separators=(",", ":"))
        made.coordlog_type = PayloadType(
            name=name,
            version=version,
            role=role,
            payload_class=made,
            avro=Avro(schema_json),
            fingerprint=avro_fingerprint(schema_json),
            loss_tolerant=loss_tolerant,
        )
        return made

    return decorate


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(name: str, *, version: int, loss_tolerant: bool = False) -> Callable[[type[P]], type[P]]:
    """Declare an operator event."""
    return _declare(PayloadRole.EVENT, name, version, loss_tolerant=loss_tolerant)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def fact(name: str, *, version: int) -> Callable[[type[P]], type[P]]:
    """Declare a fact: anything from outside that a decision needs, or a coordinator's own."""
    return _declare(PayloadRole.FACT, name, version)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def request(name: str, *, version: int) -> Callable[[type[P]], type[P]]:
    """Declare a client's question to a coordinator."""
    return _declare(PayloadRole.REQUEST, name, version)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def response(name: str, *, version: int) -> Callable[[type[P]], type[P]]:
    """Declare a coordinator's answer."""
    return _declare(PayloadRole.RESPONSE, name, version)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def payload(name: str, *, version: int) -> Callable[[type[P]], type[P]]:
    """Declare any other payload that records hold."""
    return _declare(PayloadRole.PAYLOAD, name, version)


def open_inline(data: bytes) -> bytes:
    """The payload that a record itself holds.

    Raises:
        PayloadLostError: It stands outside the log, where nobody here looks.
        ValueError: It begins like an address and is none.
    """
    address = address_in(data)
    if address is not None:
        raise PayloadLostError(
            address.path,
            address.length,
            "no payload store",
            "this reader was given none",
            "name the job's with --payload-store, or payload_store",
        )
    return plain(data)


class PayloadTypes:
    """The payload types of a job, by key. Doubled names are refused when it is made.

    Args:
        classes: Of the types.
        open_payload: Gives what a record holds, or addresses: the same for the same bytes, always.
    """

    __slots__ = ("_by_key", "open_payload")

    def __init__(
        self,
        classes: Iterable[type[Payload]],
        open_payload: Callable[[bytes], bytes] = open_inline,
    ) -> None:
        self.open_payload = open_payload
        self._by_key: dict[str, PayloadType] = {}
        for cls in classes:
            declared = payload_type_of(cls)
            known = self._by_key.get(declared.key)
            if known is not None and known.payload_class is not cls:
                raise PayloadTypeError(
                    declared.key,
                    f"declared twice, by {known.payload_class.__qualname__} and {cls.__qualname__}: "
                    "give one of them another name or version",
                )
            self._by_key[declared.key] = declared

    def __iter__(self) -> Iterator[PayloadType]:
        return iter([self._by_key[key] for key in sorted(self._by_key)])

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def of(self, value: Payload) -> PayloadType:
        """The registered type of `value`. Raises PayloadTypeError where the job does not have it."""
        declared = payload_type_of(value)
        if self._by_key.get(declared.key) is not declared:
            raise PayloadTypeError(
                declared.key,
                "not registered with this job: name it in the operator's `payload_types`",
            )
        return declared

    def by_key(self, key: str) -> PayloadType:
        """The registered type of that key. Raises PayloadTypeError where the job does not have it."""
        declared = self._by_key.get(key)
        if declared is None:
            raise PayloadTypeError(
                key, "not registered with this job: name it in the operator's `payload_types`"
            )
        return declared

    def decode(self, key: str | None, data: bytes | None) -> Payload:
        """The payload of a record. Raises PayloadTypeError for an unknown type, ValueError for damage.

        Of one that stands outside the log also PayloadLostError and PayloadStoreError.
        """
        declared = self._by_key.get(key or "")
        if declared is None:
            raise PayloadTypeError(str(key), "unknown here: the job that wrote it had this type")
        return _upcast(declared.decode(self.open_payload(data or b"")))

    def opened_by(self, open_payload: Callable[[bytes], bytes]) -> PayloadTypes:
        """The same types, for who can open what stands outside the log."""
        return PayloadTypes((one.payload_class for one in self), open_payload)


def _upcast(value: Payload) -> Payload:
    """The value as the latest version has it."""
    later = value.upcast()
    while later is not value:
        before, after = payload_type_of(value), payload_type_of(later)
        if before.name != after.name or before.version >= after.version:
            raise PayloadTypeError(
                before.key, f"it is read as {after.key}, which is no later version of the same name"
            )
        value, later = later, later.upcast()
    return value


def _repr_without(hidden: frozenset[str]) -> Callable[[object], str]:
    """A `__repr__` that shows no secret: errors and loggings are made of them."""

    def shown(value: Any) -> str:  # noqa: ANN401, a dataclass
        parts = [
            f"{f.name}={'(secret)' if f.name in hidden else repr(getattr(value, f.name))}"
            for f in dataclasses.fields(value)
        ]
        return f"{type(value).__qualname__}({', '.join(parts)})"

    return shown


def _guards(cls: type) -> Mapping[str, Guard]:
    cached = _GUARDS.get(cls)
    if cached is None:
        cached = _GUARDS[cls] = guards_of(cls)
    return cached


_GUARDS: Final[dict[type, Mapping[str, Guard]]] = {}


def _sealed(value: Any, guards: Mapping[str, Guard]) -> dict[str, Plain]:  # noqa: ANN401, a dataclass
    made: dict[str, Plain] = {}
    for field in dataclasses.fields(value):
        one = getattr(value, field.name)
        guard = guards.get(field.name)
        if guard is None or one is None:
            made[field.name] = _plain(one)
        elif isinstance(one, str):
            made[field.name] = guard.seal(one)
        else:
            # Not left to the schema: what the encoder says of a value shows it.
            raise TypeError(
                f"its secret field {field.name} is of type {type(one).__name__} (not shown); "
                "it must be a text, or None"
            )
    return made


_FLAT: Final = frozenset({type(None), bool, int, float, str, bytes})


def _plain(value: object) -> Plain:
    if type(value) in _FLAT:
        return value  # type: ignore[return-value]  # a cast for each of them takes its time
    names = _OPEN.get(type(value))
    if names is not None:
        return {name: _plain(getattr(value, name)) for name in names}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        guards = _guards(type(value))
        if guards:
            return _sealed(value, guards)
        _OPEN[type(value)] = _names(type(value))
        return _plain(value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, enum.Enum):
        return typing.cast("Plain", value.value)
    return typing.cast("Plain", value)


def _names(cls: type) -> tuple[str, ...]:
    cached = _NAMES.get(cls)
    if cached is None:
        cached = _NAMES[cls] = tuple(one.name for one in dataclasses.fields(cls))
    return cached


_NAMES: Final[dict[type, tuple[str, ...]]] = {}
_OPEN: Final[dict[type, tuple[str, ...]]] = {}
"""The fields of classes that have no secret ones, once a value of theirs has been encoded."""


def _fields_of(value: Payload) -> dict[str, Plain]:
    return typing.cast("dict[str, Plain]", _plain(value))


_Reading = Callable[[Any], Any]


def _readings(cls: type) -> dict[str, _Reading | None]:
    """By field, what makes its value of Avro's generic form; None where that is the value."""
    cached = _READINGS.get(cls)
    if cached is None:
        hints, names = typing.get_type_hints(cls), _names(cls)
        cached = {name: _reading(hint) for name, hint in hints.items() if name in names}
        _READINGS[cls] = cached
    return cached


_READINGS: Final[dict[type, dict[str, _Reading | None]]] = {}


def _build(cls: type[Payload], value: Mapping[str, Plain]) -> Payload:
    readings = _readings(cls)
    fields: dict[str, Any] = {}
    for name, one in value.items():
        reading = readings[name]
        fields[name] = one if reading is None or one is None else reading(one)
    return cls(**fields)


def _reading(hint: Any) -> _Reading | None:  # noqa: ANN401, whatever a field is annotated with
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [one for one in typing.get_args(hint) if one is not type(None)]
        return _reading(inner[0]) if len(inner) == 1 else None
    if origin in (list, tuple):
        return _reading_items(_reading(typing.get_args(hint)[0]), is_tuple=origin is tuple)
    if origin is dict:
        return _reading_values(_reading(typing.get_args(hint)[1]))
    if isinstance(hint, type):
        if issubclass(hint, Payload):
            return lambda value: _build(hint, value) if isinstance(value, dict) else value
        if issubclass(hint, enum.Enum):
            return hint
    return None


def _reading_items(reading: _Reading | None, *, is_tuple: bool) -> _Reading | None:
    if reading is None:
        return tuple if is_tuple else None

    def items(value: list[Any]) -> Any:  # noqa: ANN401, a list or a tuple
        made = [None if one is None else reading(one) for one in value]
        return tuple(made) if is_tuple else made

    return items


def _reading_values(reading: _Reading | None) -> _Reading | None:
    if reading is None:
        return None
    return lambda value: {k: None if v is None else reading(v) for k, v in value.items()}
