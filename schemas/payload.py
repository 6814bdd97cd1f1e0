"""Payload types: dataclasses with an explicit name and version, whose Avro schemas are derived and registered.

`@event("rules.update", version=1)` turns a subclass of `Payload` into a frozen dataclass. dataclasses-avroschema
derives its schema, and refuses fields of a `NewType`; fastavro encodes its values.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar, cast, dataclass_transform

from dataclasses_avroschema import AvroModel
from dataclasses_avroschema.exceptions import InvalidMap, InvalidSymbol

from coordlog.errors import PayloadLostError, PayloadTypeError
from coordlog.schemas.codec import Avro, Plain, payload_fingerprint
from coordlog.schemas.field_values import DICTS, LISTS, form_of
from coordlog.schemas.payload_address import address_in, plain
from coordlog.schemas.secret_fields import Guard, guards_of

__all__ = [
    "Payload",
    "PayloadRole",
    "PayloadType",
    "PayloadTypes",
    "decode_versioned",
    "encode_versioned",
    "event",
    "fact",
    "open_inline",
    "payload",
    "payload_type_of",
    "request",
    "response",
]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
M = TypeVar("M", bound=AvroModel)
P = TypeVar("P", bound="Payload")


class PayloadRole(enum.Enum):
    """Use of a payload type."""

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
        """This value, or its equivalent in a later version of the same name.

        Override it in an old version that is not written any more, and is declared only so that old records
        stay readable. `payload_types` of the operator has both versions; readers of the log get the later one.
        """
        return self


@dataclass(frozen=True, slots=True, eq=False)
class PayloadType:
    """Declaration of a payload class: its name and version in the log, and its schema."""

    name: str
    version: int
    role: PayloadRole
    payload_class: type[Payload]
    avro: Avro
    loss_tolerant: bool = False
    """Whether an event may be lost without a failover (C8: tolerated loss)."""
    key: str = dataclasses.field(init=False)
    """Name and version in the form that records have: `rules.update@1`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.name}@{self.version}")

    @property
    def schema_json(self) -> str:
        """The derived Avro schema."""
        return self.avro.schema_json

    @property
    def fingerprint(self) -> int:
        """Hash of the schema and its logical types."""
        return payload_fingerprint(self.schema_json)

    def encode(self, value: Payload) -> bytes:
        """The value as bytes, with its secret fields sealed.

        Raises:
            PayloadTypeError: A field has a value of another type.
            OptionError: A field must be encrypted, and there is no key.
        """
        try:
            return self.avro.encode(_fields_of(value))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise PayloadTypeError(
                self.key, f"{value!r} does not fit its schema: {error}"
            ) from error

    def decode(self, data: bytes) -> Payload:
        """The value in `data`; secret fields stay sealed. Raises ValueError if the bytes are no value."""
        return _build(self.payload_class, self.avro.decode(data))


def payload_type_of(value: Payload | type[Payload]) -> PayloadType:
    """The declared type of a payload or of a payload class. Raises PayloadTypeError if it was not declared."""
    cls = value if isinstance(value, type) else type(value)
    declared: PayloadType | None = cls.__dict__.get("coordlog_type")
    if declared is None:
        problem = (
            'it has no name: declare it with `@event("some.name", version=1)`'
            if issubclass(cls, Payload)
            else "it is no payload: return or send an object of a declared class"
        )
        raise PayloadTypeError(f"{cls.__module__}.{cls.__qualname__}", problem)
    return declared


def encode_versioned(value: Payload) -> bytes:
    """One byte with the version of the type, then the value's bytes: for places that hold no type name."""
    declared = payload_type_of(value)
    return bytes([declared.version]) + declared.encode(value)


def decode_versioned(cls: type[P], content: bytes) -> P:
    """The value in the bytes of `encode_versioned`. Raises ValueError if the version differs or bytes are damaged."""
    declared = payload_type_of(cls)
    if content[:1] != bytes([declared.version]):
        version = content[0] if content else None
        raise ValueError(
            f"a {declared.name} of version {version}; this coordlog reads {declared.version}"
        )
    return cast("P", declared.decode(content[1:]))


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
        _resolve_annotations(cls, name)
        payload_class = dataclass(frozen=True, kw_only=True)(cls)
        try:
            guarded = guards_of(payload_class)
        except TypeError as error:
            raise PayloadTypeError(name, str(error)) from error
        if guarded:
            payload_class.__repr__ = _repr_without(frozenset(guarded))  # type: ignore[method-assign]
        try:
            schema_json = json.dumps(json.loads(payload_class.avro_schema()), separators=(",", ":"))
        except (ValueError, InvalidSymbol, InvalidMap) as error:
            raise PayloadTypeError(name, f"{error}; {_advice(error)}") from error
        payload_class.coordlog_type = PayloadType(
            name=name,
            version=version,
            role=role,
            payload_class=payload_class,
            avro=Avro(schema_json),
            loss_tolerant=loss_tolerant,
        )
        return payload_class

    return decorate


def _advice(error: Exception) -> str:
    """What to write in place of a field that has no schema."""
    if isinstance(error, InvalidSymbol):
        return "the value of each member of an enum is a text of letters, digits and `_`"
    if isinstance(error, InvalidMap):
        return "declare the field as `dict[str, …]`"
    if "max_digits" in str(error):
        return (
            "declare a field of decimals with its digits, as "
            "`condecimal(max_digits=20, decimal_places=2)` of `dataclasses_avroschema.types`"
        )
    return (
        "a class in a field inherits `coordlog.Payload`, and is declared with "
        '`@payload("some.name", version=1)` of `coordlog` too'
    )


def _resolve_annotations(cls: type[Payload], name: str) -> None:
    """Replace annotations that are strings by their types: dataclasses-avroschema refuses strings."""
    own = inspect.get_annotations(cls)
    if not any(isinstance(annotation, str) for annotation in own.values()):
        return
    try:
        resolved = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise PayloadTypeError(
            name, f"{error}: import the types of its fields at run time, at the top of the module"
        ) from error
    cls.__annotations__ = {field: resolved[field] for field in own}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(name: str, *, version: int, loss_tolerant: bool = False) -> Callable[[type[P]], type[P]]:
    """Declare an operator event."""
    return _declare(PayloadRole.EVENT, name, version, loss_tolerant=loss_tolerant)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def fact(name: str, *, version: int) -> Callable[[type[P]], type[P]]:
    """Declare a fact: an observation from outside that a decision needs, or a record of the coordinator for itself."""
    return _declare(PayloadRole.FACT, name, version)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def request(name: str, *, version: int) -> Callable[[type[P]], type[P]]:
    """Declare a client's request to a coordinator."""
    return _declare(PayloadRole.REQUEST, name, version)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def response(name: str, *, version: int) -> Callable[[type[P]], type[P]]:
    """Declare a coordinator's response."""
    return _declare(PayloadRole.RESPONSE, name, version)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def payload(name: str, *, version: int) -> Callable[[type[P]], type[P]]:
    """Declare any other payload that records hold."""
    return _declare(PayloadRole.PAYLOAD, name, version)


def open_inline(data: bytes) -> bytes:
    """The payload in the bytes of a record, for readers without a payload store.

    Raises:
        PayloadLostError: The payload is outside the log, and there is no payload store here.
        ValueError: The bytes have the prefix of an address and are no address.
    """
    address = address_in(data)
    if address is not None:
        raise PayloadLostError(
            address.path,
            address.length,
            "no payload store",
            "this reader has none",
            "name the job's with --payload-store, or payload_store",
        )
    return plain(data)


class PayloadTypes:
    """The payload types of a job, by key. Raises PayloadTypeError at creation if two types have the same key.

    Args:
        classes: Payload classes of the types.
        open_payload: Returns the payload for the bytes in a record: always the same one for the same bytes.
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
                    "change the name or version of one of them",
                )
            self._by_key[declared.key] = declared

    def __iter__(self) -> Iterator[PayloadType]:
        return iter([self._by_key[key] for key in sorted(self._by_key)])

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def of(self, value: Payload) -> PayloadType:
        """The registered type of `value`. Raises PayloadTypeError if the job does not have it."""
        declared = payload_type_of(value)
        if self._by_key.get(declared.key) is not declared:
            raise PayloadTypeError(
                declared.key,
                "not registered with this job: name it in the operator's `payload_types`",
            )
        return declared

    def by_key(self, key: str) -> PayloadType:
        """The registered type of this key. Raises PayloadTypeError if the job does not have it."""
        declared = self._by_key.get(key)
        if declared is None:
            raise PayloadTypeError(
                key, "not registered with this job: name it in the operator's `payload_types`"
            )
        return declared

    def decode(self, key: str | None, data: bytes | None) -> Payload:
        """The payload of a record, in the latest version of its type.

        Raises:
            PayloadTypeError: The type is unknown.
            ValueError: The bytes are damaged.
            PayloadLostError, PayloadStoreError: The payload is outside the log, and cannot be fetched.
        """
        return _upcast(self.declared(key or "").decode(self.open_payload(data or b"")))

    def declared(self, key: str) -> PayloadType:
        """The type with this key. Raises PayloadTypeError if it is unknown."""
        declared = self._by_key.get(key)
        if declared is None:
            raise PayloadTypeError(key, "unknown here: the job that wrote it had this type")
        return declared

    def opened_by(self, open_payload: Callable[[bytes], bytes]) -> PayloadTypes:
        """The same types, with an opener for payloads outside the log."""
        return PayloadTypes((declared.payload_class for declared in self), open_payload)


def _upcast(value: Payload) -> Payload:
    """The value, converted to its latest version."""
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
    """A `__repr__` that shows no secret field: errors and log lines contain it."""

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


_Converter = Callable[[Any], Any]


def _sealed(value: Any, guards: Mapping[str, Guard]) -> dict[str, Plain]:  # noqa: ANN401, a dataclass
    sealed: dict[str, Plain] = {}
    for name, exact, write in _forms(type(value)):
        field_value = getattr(value, name)
        guard = guards.get(name)
        if guard is None or field_value is None:
            sealed[name] = field_value if type(field_value) in exact else write(field_value)
        elif isinstance(field_value, str):
            sealed[name] = guard.seal(field_value)
        else:
            # Checked here, because an error of the encoder would show the value.
            raise TypeError(
                f"its secret field {name} is of type {type(field_value).__name__} (not shown); "
                "it must be a text, or None"
            )
    return sealed


def _plain(value: Any) -> dict[str, Plain]:  # noqa: ANN401, a dataclass
    forms = _FORMS_WITHOUT_SECRETS.get(type(value))
    if forms is None:
        guards = _guards(type(value))
        if guards:
            return _sealed(value, guards)
        forms = _FORMS_WITHOUT_SECRETS[type(value)] = _forms(type(value))
    fields: dict[str, Plain] = {}
    for name, exact, write in forms:
        field = getattr(value, name)
        fields[name] = field if type(field) in exact else write(field)
    return fields


_Form = tuple[str, frozenset[type], _Converter]

_FORMS_WITHOUT_SECRETS: Final[dict[type, tuple[_Form, ...]]] = {}
"""See `_forms`, by class without secret fields, filled when the first value of a class is encoded."""


def _forms(cls: type) -> tuple[_Form, ...]:
    """Name of each field of a class, types of values that stay as they are, and the function for others."""
    cached = _FORMS.get(cls)
    if cached is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        forms = {
            field.name: form_of(_in_schema(hints[field.name], field.default), _plain, _is_payload)
            for field in dataclasses.fields(cls)
        }
        cached = tuple((name, form.exact, form.write) for name, form in forms.items())
        _FORMS[cls] = cached
    return cached


_FORMS: Final[dict[type, tuple[_Form, ...]]] = {}


def _in_schema(hint: Any, default: object) -> Any:  # noqa: ANN401, annotations
    """The annotation as the schema has it: a default of None makes a union, and a default's type is a union's first."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    if default is None or (is_union and default is not dataclasses.MISSING):
        return typing.Union[type(default), hint]  # noqa: UP007, of two values
    return hint


def _is_payload(hint: Any) -> bool:  # noqa: ANN401, an annotation
    return isinstance(hint, type) and issubclass(hint, AvroModel)


def _names(cls: type) -> tuple[str, ...]:
    cached = _NAMES.get(cls)
    if cached is None:
        cached = _NAMES[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return cached


_NAMES: Final[dict[type, tuple[str, ...]]] = {}


def _fields_of(value: Payload) -> dict[str, Plain]:
    return _plain(value)


def _converters(cls: type) -> dict[str, _Converter | None]:
    """Converters from Avro's generic form to the value, by field; None if both forms are the same."""
    cached = _CONVERTERS.get(cls)
    if cached is None:
        hints, names = typing.get_type_hints(cls), _names(cls)
        cached = {name: _converter(hint) for name, hint in hints.items() if name in names}
        _CONVERTERS[cls] = cached
    return cached


_CONVERTERS: Final[dict[type, dict[str, _Converter | None]]] = {}


def _build(cls: type[M], value: Mapping[str, Plain]) -> M:
    converters = _converters(cls)
    fields: dict[str, Any] = {}
    for name, field_value in value.items():
        convert = converters[name]
        fields[name] = (
            field_value if convert is None or field_value is None else convert(field_value)
        )
    return cls(**fields)


def _converter(hint: Any) -> _Converter | None:  # noqa: ANN401, any annotation of a field
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [option for option in typing.get_args(hint) if option is not type(None)]
        return _converter(inner[0]) if len(inner) == 1 else None
    if origin in LISTS:
        return _items_converter(_converter(typing.get_args(hint)[0]), is_tuple=origin is tuple)
    if origin in DICTS:
        return _values_converter(_converter(typing.get_args(hint)[1]))
    if _is_payload(hint):
        return lambda value: _build(hint, value) if isinstance(value, dict) else value
    return hint if isinstance(hint, type) and issubclass(hint, enum.Enum) else None


def _items_converter(convert: _Converter | None, *, is_tuple: bool) -> _Converter | None:
    if convert is None:
        return tuple if is_tuple else None

    def items(value: list[Any]) -> Any:  # noqa: ANN401, a list or a tuple
        items_read = [None if item is None else convert(item) for item in value]
        return tuple(items_read) if is_tuple else items_read

    return items


def _values_converter(convert: _Converter | None) -> _Converter | None:
    if convert is None:
        return None
    return lambda value: {k: None if v is None else convert(v) for k, v in value.items()}
