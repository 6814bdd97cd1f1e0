"""States to bytes and back: an Avro schema derived from the type of a state, and values in it.

For states that are made of frozen dataclasses, named tuples and payloads, of tuples, lists, dicts and persistent maps,
of enums, and of what Avro has itself. Equal states have equal bytes: whatever has an order of its own making is sorted.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar, cast

from immutables import Map

from coordlog.projections.operators.state_evolution import check_readable
from coordlog.schemas.codec import Avro, Plain, avro_fingerprint
from coordlog.schemas.untrusted_schema import foreign_avro

__all__ = ["DerivedCodec"]

S = TypeVar("S")

_PRIMITIVES: Final[Mapping[object, str]] = {
    bool: "boolean",
    bytes: "bytes",
    float: "double",
    int: "long",
    str: "string",
    type(None): "null",
}


class DerivedCodec(Generic[S]):
    """The `StateCodec` of a type of states, derived from its annotations, which the states must keep to.

    Args:
        state_type: Of the state: a frozen dataclass, say, or `tuple[int, ...]`. A map's keys are
            what Python can sort.
        any_as: The type that stands wherever an annotation is `Any`.

    Raises:
        TypeError: It holds something that is not understood, `Any` among that; it says where.
    """

    __slots__ = ("_avro", "_optional", "_shape", "fingerprint")

    def __init__(self, state_type: type[S], *, any_as: object = None) -> None:
        derived = _Derivation(any_as)
        self._shape = derived.shape(state_type, "State")
        self._optional = derived.optional
        schema = {
            "type": "record",
            "name": "Encoded",
            "fields": [{"name": "state", "type": self._shape.schema}],
        }
        text = json.dumps(schema, separators=(",", ":"))
        self._avro = Avro(text)
        self.fingerprint: str = f"{avro_fingerprint(text):016x}"
        """Of the schema: another one's bytes are not read."""

    @property
    def schema_json(self) -> str:
        """The derived Avro schema."""
        return self._avro.schema_json

    def encode(self, state: S) -> bytes:
        """The state's bytes. Raises ValueError, TypeError or AttributeError where it is not of its type."""
        return self._avro.encode({"state": self._shape.write(state)})

    def decode(self, data: bytes) -> S:
        """The state in `data`. Raises ValueError where the bytes are none."""
        try:
            return cast("S", self._shape.read(self._avro.decode(data)["state"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a state of this type: {error!r}") from error

    def reader_of(self, schema_json: str) -> Callable[[bytes], S]:
        """A reader of states that an earlier schema of this type has encoded.

        A field that the earlier schema lacks has its default; one that is gone is left out. All else is equal.

        Raises:
            ValueError: The schema differs otherwise; the message has the place.
        """
        avro = foreign_avro(schema_json)
        check_readable(json.loads(schema_json), json.loads(self.schema_json), self._optional)

        def read(data: bytes) -> S:
            try:
                return cast("S", self._shape.read(avro.decode(data)["state"]))
            except (TypeError, KeyError) as error:
                raise ValueError(f"not a state of this type: {error!r}") from error

        return read


class _Shape(typing.NamedTuple):
    """How one type stands in Avro."""

    schema: Plain
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _same(value: object) -> object:
    return value


class _Derivation:
    """Derives one schema. Avro's named types are defined where they stand first, and named from then on."""

    def __init__(self, any_as: object) -> None:
        self._any_as = any_as
        self._records: dict[type, _Shape | None] = {}
        self.optional: dict[str, frozenset[str]] = {}
        """Fields that a value need not have, by the names of records."""

    def shape(self, hint: object, where: str) -> _Shape:
        if hint is Any and self._any_as is not None:
            hint = self._any_as
        if hint is None:
            hint = type(None)
        name = _PRIMITIVES.get(hint)
        if name is not None:
            return _Shape(name, _same, _same)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, where)
        if origin is tuple and Ellipsis not in arguments:
            return self._fixed(arguments, where)
        if origin in (tuple, list):
            return self._sequence(origin, arguments[0], where)
        if origin in (Map, Mapping, dict):
            return self._mapping(dict if origin is dict else Map, arguments, where)
        if isinstance(hint, type):
            return self._class(hint, where)  # pyright: ignore[reportArgumentType]  # narrowed too far
        raise TypeError(f"{where} is {hint!r}, for which there is no encoding")

    def _class(self, cls: type, where: str) -> _Shape:
        if issubclass(cls, enum.Enum):
            return _Shape("string", attrgetter("value"), cls)
        if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
            return self._record(cls)
        raise TypeError(f"{where} is {cls.__name__}, for which there is no encoding")

    def _sequence(self, made: type, item: object, where: str) -> _Shape:
        one = self.shape(item, where)
        schema: Plain = {"type": "array", "items": one.schema}
        write_one, read_one = one.write, one.read

        def write(value: Sequence[object]) -> Plain:
            _check(value, made, where)
            return cast("Plain", value if one.write is _same else [write_one(v) for v in value])

        if one.read is _same:
            return _Shape(schema, write, made)
        return _Shape(schema, write, lambda value: made([read_one(v) for v in value]))

    def _fixed(self, items: Sequence[object], where: str) -> _Shape:
        """A tuple of so many."""
        names = [f"item_{number}" for number in range(len(items))]
        shapes = [
            self.shape(one, f"{where}_{name}") for one, name in zip(items, names, strict=True)
        ]
        parts = list(zip(names, shapes, strict=True))

        def write(value: Sequence[object]) -> Plain:
            _check(value, tuple, where)
            return {name: one.write(item) for (name, one), item in zip(parts, value, strict=True)}

        def read(value: Mapping[str, Plain]) -> object:
            return tuple([one.read(value[name]) for name, one in parts])

        return _Shape(_schema(f"{where}_tuple", parts), write, read)

    def _mapping(self, made: type, items: Sequence[object], where: str) -> _Shape:
        key, value = self.shape(items[0], f"{where}_key"), self.shape(items[1], f"{where}_value")
        entry = _schema(f"{where}_entry", [("key", key), ("value", value)])
        is_plain = key.write is _same and value.write is _same

        def write(mapping: Mapping[Any, object]) -> Plain:
            _check(mapping, made, where)
            found = sorted(mapping.items(), key=itemgetter(0))
            if is_plain:
                return cast("Plain", [{"key": k, "value": v} for k, v in found])
            return [{"key": key.write(k), "value": value.write(v)} for k, v in found]

        def read(entries: Sequence[Mapping[str, Plain]]) -> object:
            found = {key.read(one["key"]): value.read(one["value"]) for one in entries}
            if len(found) != len(entries):
                raise ValueError(f"{where} has a key twice")
            return made(found)

        return _Shape({"type": "array", "items": entry}, write, read)

    def _union(self, options: Sequence[Any], where: str) -> _Shape:
        present = [one for one in options if one is not type(None)]
        if len(present) == 1:
            one = self.shape(present[0], where)
            write, read = _named(one), one.read
            if write is _same and read is _same:
                return _Shape(["null", one.schema], _same, _same)
            return _Shape(
                ["null", one.schema],
                lambda value: None if value is None else write(value),
                lambda value: None if value is None else read(value),
            )
        if len(present) < len(options) or not all(isinstance(one, type) for one in present):
            raise TypeError(f"{where} is one of {options!r}, for which there is no encoding")
        return self._choice(present, where)

    def _choice(self, options: Sequence[type], where: str) -> _Shape:
        """One of several classes: a record with a field for each, of which one is there."""
        shapes = [(one.__name__, self.shape(one, f"{where}_{one.__name__}")) for one in options]
        parts = [(name, shape._replace(schema=["null", shape.schema])) for name, shape in shapes]
        by_class = {
            one: (name, _named(shape)) for one, (name, shape) in zip(options, shapes, strict=True)
        }
        nothing: dict[str, Plain] = {name: None for name, _ in parts}

        def write(value: object) -> Plain:
            name, write_it = by_class[type(value)]
            return {**nothing, name: write_it(value)}

        def read(value: Mapping[str, Plain]) -> object:
            ((content, read_it),) = (
                (value[name], one.read) for name, one in parts if value[name] is not None
            )
            return read_it(content)

        return _Shape(_schema(f"{where}_choice", parts), write, read)

    def _record(self, cls: type) -> _Shape:
        """A dataclass or a named tuple, by its name: two of one name are an error of Avro's."""
        known = self._records.get(cls)
        if known is not None:
            return known._replace(schema=cls.__name__)
        if cls in self._records:
            raise TypeError(f"{cls.__name__} holds itself, for which there is no encoding")
        self._records[cls] = None
        hints = typing.get_type_hints(cls)
        names = (
            [one.name for one in dataclasses.fields(cls)]
            if dataclasses.is_dataclass(cls)
            else list(cast("Any", cls)._fields)
        )
        parts = [(name, self.shape(hints[name], f"{cls.__name__}_{name}")) for name in names]
        fields = [(name, None if one.write is _same else one.write) for name, one in parts]
        values = _values_of(names)
        readers = [(name, one.read) for name, one in parts]

        def write(value: object) -> Plain:
            _check(value, cls, cls.__name__)
            return {
                name: one if write_it is None else write_it(one)
                for (name, write_it), one in zip(fields, values(value), strict=True)
            }

        def read(value: Mapping[str, Plain]) -> object:
            return cls(**{name: read_it(value[name]) for name, read_it in readers if name in value})

        made = _Shape(_schema(cls.__name__, parts), write, read)
        self._records[cls] = made
        self.optional[cls.__name__] = _with_default(cls)
        return made


def _with_default(cls: type) -> frozenset[str]:
    """Fields of a dataclass or a named tuple that have a default."""
    if not dataclasses.is_dataclass(cls):
        return frozenset(cast("Any", cls)._field_defaults)
    nothing = dataclasses.MISSING
    return frozenset(
        one.name
        for one in dataclasses.fields(cls)
        if one.default is not nothing or one.default_factory is not nothing
    )


def _values_of(names: Sequence[str]) -> Callable[[object], Sequence[Any]]:
    """What takes the values of these fields out of one that has them."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _named(one: _Shape) -> Callable[[Any], Any]:
    """What writes such a value into a union: a record with its name, or Avro tries out which of the union it fits."""
    schema, write = one.schema, one.write
    name = schema["name"] if isinstance(schema, dict) and schema["type"] == "record" else schema
    if not isinstance(name, str) or name in _PRIMITIVES.values():
        return write
    return lambda value: (name, write(value))


def _check(value: object, wanted: type, where: str) -> None:
    """What is read again has the types of the annotations: then what is written must have them."""
    if type(value) is not wanted:
        raise TypeError(f"{where} is a {type(value).__name__}, and not a {wanted.__name__}")


def _schema(name: str, parts: Sequence[tuple[str, _Shape]]) -> Plain:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": one.schema} for field, one in parts],
    }
