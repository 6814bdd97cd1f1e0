"""Avro schemas derived from Python types: frozen dataclasses, named tuples and payloads, and the types of their fields.

Fields are tuples, lists, dicts, persistent maps, enums, and Avro's own types. Equal values have equal bytes, because
maps are sorted by their keys; a dict keeps its order, which code may depend on.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, cast

from immutables import Map

from coordlog.schemas.codec import Plain

__all__ = ["Derivation", "Shape"]

_PRIMITIVES: Final[Mapping[object, str]] = {
    bool: "boolean",
    bytes: "bytes",
    float: "double",
    int: "long",
    str: "string",
    type(None): "null",
}


class Shape(typing.NamedTuple):
    """A type in Avro: its schema, and the functions from a value to Avro's generic form and back."""

    schema: Plain
    write: Callable[[Any], Any]
    """Raises TypeError, ValueError or AttributeError for a value of another type."""
    read: Callable[[Any], Any]


def _same(value: object) -> object:
    return value


class Derivation:
    """Derivation of one schema. Avro's named types are defined at their first place, and referred to by name later.

    Args:
        any_as: Type to use in place of the annotation `Any`.
    """

    def __init__(self, any_as: object = None) -> None:
        self._any_as = any_as
        self._records: dict[type, Shape | None] = {}
        self.optional: dict[str, frozenset[str]] = {}
        """Fields with a default, by record name."""
        self.is_changeable = False
        """Whether values hold lists, dicts or dataclasses that are not frozen: code could change them in place."""

    def shape(self, hint: object, where: str) -> Shape:
        """The shape of an annotation; `where` is its place, for names and errors. Raises TypeError if it has none."""
        if hint is Any and self._any_as is not None:
            hint = self._any_as
        if hint is None:
            hint = type(None)
        name = _PRIMITIVES.get(hint)
        if name is not None:
            return Shape(name, _same, _same)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, where)
        if origin is tuple and Ellipsis not in arguments:
            return self._fixed(arguments, where)
        self.is_changeable |= origin in (list, dict)
        if origin in (tuple, list):
            return self._sequence(origin, arguments[0], where)
        if origin in (Map, Mapping, dict):
            return self._mapping(dict if origin is dict else Map, arguments, where)
        if isinstance(hint, type):
            return self._class(hint, where)  # pyright: ignore[reportArgumentType]  # narrowed too far
        raise TypeError(f"{where} is {hint!r}, for which there is no encoding")

    def _class(self, cls: type, where: str) -> Shape:
        if issubclass(cls, enum.Enum):
            return Shape("string", attrgetter("value"), cls)
        if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
            return self._record(cls)
        raise TypeError(f"{where} is {cls.__name__}, for which there is no encoding")

    def _sequence(self, container: type, item: object, where: str) -> Shape:
        inner = self.shape(item, where)
        schema: Plain = {"type": "array", "items": inner.schema}
        write_item, read_item = inner.write, inner.read

        def write(value: Sequence[object]) -> Plain:
            _check(value, container, where)
            return cast("Plain", value if inner.write is _same else [write_item(v) for v in value])

        if inner.read is _same:
            return Shape(schema, write, container)
        return Shape(schema, write, lambda value: container([read_item(v) for v in value]))

    def _fixed(self, items: Sequence[object], where: str) -> Shape:
        """The shape of a tuple with a fixed number of items."""
        names = [f"item_{number}" for number in range(len(items))]
        shapes = [
            self.shape(hint, f"{where}_{name}") for hint, name in zip(items, names, strict=True)
        ]
        parts = list(zip(names, shapes, strict=True))

        def write(value: Sequence[object]) -> Plain:
            _check(value, tuple, where)
            return {
                name: shape.write(item) for (name, shape), item in zip(parts, value, strict=True)
            }

        def read(value: Mapping[str, Plain]) -> object:
            return tuple([shape.read(value[name]) for name, shape in parts])

        return Shape(_schema(f"{where}_tuple", parts), write, read)

    def _mapping(self, mapping_type: type, items: Sequence[object], where: str) -> Shape:
        key, value = self.shape(items[0], f"{where}_key"), self.shape(items[1], f"{where}_value")
        entry = _schema(f"{where}_entry", [("key", key), ("value", value)])
        is_plain = key.write is _same and value.write is _same

        def write(mapping: Mapping[Any, object]) -> Plain:
            _check(mapping, mapping_type, where)
            pairs: Iterable[tuple[Any, object]] = mapping.items()
            if mapping_type is Map:
                pairs = sorted(pairs, key=itemgetter(0))
            if is_plain:
                return cast("Plain", [{"key": k, "value": v} for k, v in pairs])
            return [{"key": key.write(k), "value": value.write(v)} for k, v in pairs]

        def read(entries: Sequence[Mapping[str, Plain]]) -> object:
            content = {key.read(pair["key"]): value.read(pair["value"]) for pair in entries}
            if len(content) != len(entries):
                raise ValueError(f"{where} has a key twice")
            return mapping_type(content)

        return Shape({"type": "array", "items": entry}, write, read)

    def _union(self, options: Sequence[Any], where: str) -> Shape:
        present = [option for option in options if option is not type(None)]
        if len(present) == 1:
            shape = self.shape(present[0], where)
            write, read = _union_writer(shape), shape.read
            if write is _same and read is _same:
                return Shape(["null", shape.schema], _same, _same)
            return Shape(
                ["null", shape.schema],
                lambda value: None if value is None else write(value),
                lambda value: None if value is None else read(value),
            )
        if len(present) < len(options) or not all(isinstance(option, type) for option in present):
            raise TypeError(f"{where} is one of {options!r}, for which there is no encoding")
        return self._choice(present, where)

    def _choice(self, options: Sequence[type], where: str) -> Shape:
        """The shape of a union of classes: a record with a field for each, of which exactly one is not null."""
        shapes = [
            (option.__name__, self.shape(option, f"{where}_{option.__name__}"))
            for option in options
        ]
        parts = [(name, shape._replace(schema=["null", shape.schema])) for name, shape in shapes]
        by_class = {
            option: (name, _union_writer(shape))
            for option, (name, shape) in zip(options, shapes, strict=True)
        }
        nothing: dict[str, Plain] = {name: None for name, _ in parts}

        def write(value: object) -> Plain:
            name, write_it = by_class[type(value)]
            return {**nothing, name: write_it(value)}

        def read(value: Mapping[str, Plain]) -> object:
            ((content, read_it),) = (
                (value[name], shape.read) for name, shape in parts if value[name] is not None
            )
            return read_it(content)

        return Shape(_schema(f"{where}_choice", parts), write, read)

    def _record(self, cls: type) -> Shape:
        """The shape of a dataclass or a named tuple, by its name: two classes of one name are an error of Avro's."""
        known = self._records.get(cls)
        if known is not None:
            return known._replace(schema=cls.__name__)
        if cls in self._records:
            raise TypeError(f"{cls.__name__} holds itself, for which there is no encoding")
        self._records[cls] = None
        self.is_changeable |= not _is_frozen(cls)
        hints = typing.get_type_hints(cls)
        names = (
            [field.name for field in dataclasses.fields(cls)]
            if dataclasses.is_dataclass(cls)
            else list(cast("Any", cls)._fields)
        )
        parts = [(name, self.shape(hints[name], f"{cls.__name__}_{name}")) for name in names]
        fields = [(name, None if shape.write is _same else shape.write) for name, shape in parts]
        values, known_names = _values_of(names), dict.fromkeys(names).keys()
        readers = [(name, shape.read) for name, shape in parts]
        is_plain = all(read_it is _same for _, read_it in readers)

        def write(value: object) -> Plain:
            _check(value, cls, cls.__name__)
            return {
                name: content if write_it is None else write_it(content)
                for (name, write_it), content in zip(fields, values(value), strict=True)
            }

        def read(value: Mapping[str, Plain]) -> object:
            if is_plain and value.keys() == known_names:
                return cls(**value)
            return cls(**{name: read_it(value[name]) for name, read_it in readers if name in value})

        record = Shape(_schema(cls.__name__, parts), write, read)
        self._records[cls] = record
        self.optional[cls.__name__] = _with_default(cls)
        return record


def _is_frozen(cls: type) -> bool:
    """Whether the fields of a dataclass or a named tuple cannot be set."""
    return not dataclasses.is_dataclass(cls) or bool(cast("Any", cls).__dataclass_params__.frozen)


def _with_default(cls: type) -> frozenset[str]:
    """Fields of a dataclass or a named tuple that have a default."""
    if not dataclasses.is_dataclass(cls):
        return frozenset(cast("Any", cls)._field_defaults)
    nothing = dataclasses.MISSING
    return frozenset(
        field.name
        for field in dataclasses.fields(cls)
        if field.default is not nothing or field.default_factory is not nothing
    )


def _values_of(names: Sequence[str]) -> Callable[[object], Sequence[Any]]:
    """A function from an object to the values of these fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _union_writer(shape: Shape) -> Callable[[Any], Any]:
    """A function that writes such a value into a union: records with their name, so that Avro need not guess."""
    schema, write = shape.schema, shape.write
    name = schema["name"] if isinstance(schema, dict) and schema["type"] == "record" else schema
    if not isinstance(name, str) or name in _PRIMITIVES.values():
        return write
    return lambda value: (name, write(value))


def _check(value: object, expected: type, where: str) -> None:
    """Raise TypeError for a value of another type: values read have the annotated types, so values written must too."""
    if type(value) is not expected:
        raise TypeError(f"{where} is a {type(value).__name__}, and not a {expected.__name__}")


def _schema(name: str, parts: Sequence[tuple[str, Shape]]) -> Plain:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": shape.schema} for field, shape in parts],
    }
