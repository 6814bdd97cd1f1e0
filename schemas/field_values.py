"""Values of payload fields in Avro's generic form: each exactly the value of its field, or refused.

fastavro takes a value of another type for what it can make of it: `1.5` in an integer field is 1, `None` in a boolean
is False, `1e39` in a float of 32 bits is infinite, a time loses its microseconds, and a time without a zone gets that
of the machine.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import numbers
import struct
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from typing import Any, Final

__all__ = ["DICTS", "LISTS", "FieldForm", "form_of"]

Write = Callable[[Any], Any]

_MICRO: Final = "Micro"
_LOCAL: Final = "Local"
_FLOAT32: Final = "Float32"
_INT32: Final = "Int32"
_TAKEN: Final[Mapping[Any, Sequence[type]]] = {
    dt.date: (int, dt.datetime),
    dt.datetime: (int, dt.datetime),
    dt.time: (int, dt.time),
    dt.timedelta: (int, float),
    uuid.UUID: (str,),
    decimal.Decimal: (bytes,),
}
"""Types whose values fastavro takes for values of a type that stands before them in a union."""

LISTS: Final = (list, tuple, Sequence, MutableSequence)
DICTS: Final = (dict, Mapping, MutableMapping)


class FieldForm(typing.NamedTuple):
    """How the values of a field become Avro's generic form."""

    exact: frozenset[type]
    """Types whose values stay as they are."""
    write: Write
    """Form of a value of any other type. Raises TypeError or ValueError if the field has no such value."""


def form_of(hint: Any, write_payload: Write, is_payload: Callable[[Any], bool]) -> FieldForm:  # noqa: ANN401, an annotation
    """The form of an annotation's values.

    Args:
        hint: Annotation of the field, with its extras.
        write_payload: Form of a value of a payload class.
        is_payload: Whether a type is a payload class.
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _form_of_marked(parts[0], parts[1:], write_payload, is_payload)
    if origin in (typing.Union, types.UnionType):
        return _form_of_union(parts, write_payload, is_payload)
    if origin in LISTS:
        return FieldForm(frozenset(), _items(form_of(parts[0], write_payload, is_payload)))
    if origin in DICTS:
        return FieldForm(frozenset(), _entries(form_of(parts[1], write_payload, is_payload)))
    if is_payload(hint):
        return FieldForm(frozenset(), _of_type(hint, write_payload))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return FieldForm(frozenset(), lambda value: hint(value).value)
    return _FORMS.get(hint, FieldForm(frozenset(), lambda value: value))


def _form_of_marked(
    inner: Any,  # noqa: ANN401, as above
    marks: Sequence[object],
    write_payload: Write,
    is_payload: Callable[[Any], bool],
) -> FieldForm:
    names = "".join(type(mark).__name__ for mark in marks)
    if inner is dt.datetime:
        is_local, is_micro = _LOCAL in names, _MICRO in names
        return FieldForm(frozenset(), lambda value: _moment(value, is_local, is_micro))
    if inner is dt.time:
        return FieldForm(frozenset(), lambda value: _time(value, is_micro=_MICRO in names))
    if inner is float and _FLOAT32 in names:
        return FieldForm(frozenset(), _number_32)
    if inner is int and _INT32 in names:
        return FieldForm(frozenset(), _whole_32)
    return form_of(inner, write_payload, is_payload)


def _form_of_union(
    parts: Sequence[Any], write_payload: Write, is_payload: Callable[[Any], bool]
) -> FieldForm:
    options = [part for part in parts if part is not type(None)]
    forms = [form_of(option, write_payload, is_payload) for option in options]
    none = frozenset([type(None)]) if len(options) < len(parts) else frozenset[type]()
    if len(forms) == 1:
        return FieldForm(none | forms[0].exact, forms[0].write)
    bare = [_bare(option) for option in options]
    forms = [
        _refused(option) if _is_lost(option, bare[:place], is_payload) else form
        for place, (option, form) in enumerate(zip(bare, forms, strict=True))
    ]
    exact = frozenset[type]().union(*(form.exact for form in forms))
    if float in options and int in options:
        return FieldForm(none | exact - {int}, _number_or(forms))
    return FieldForm(none | exact, _any_of(forms))


def _bare(option: Any) -> Any:  # noqa: ANN401, as above
    """The annotation without its extras."""
    is_marked = typing.get_origin(option) is typing.Annotated
    return typing.get_args(option)[0] if is_marked else option


def _is_lost(option: Any, earlier: Sequence[Any], is_payload: Callable[[Any], bool]) -> bool:  # noqa: ANN401, as above
    """Whether readers of the union get another value than one of this type: of an earlier type, or not converted."""
    return _is_converted(option, is_payload) or any(
        option in _TAKEN.get(each, ()) for each in earlier
    )


def _is_converted(hint: Any, is_payload: Callable[[Any], bool]) -> bool:  # noqa: ANN401, as above
    is_enum = isinstance(hint, type) and issubclass(hint, enum.Enum)
    parts = typing.get_args(hint)
    return is_payload(hint) or is_enum or any(_is_converted(part, is_payload) for part in parts)


def _refused(option: type) -> FieldForm:
    """The types stay declared, so that what was recorded of them can be read."""

    def write(value: Any) -> Any:  # noqa: ANN401, of any type
        raise TypeError(
            f"in a union with other types {value!r} would not be read back as {option.__name__}: have a field for "
            "each type, which may be None"
        )

    return FieldForm(frozenset(), write)


def _number_or(forms: Sequence[FieldForm]) -> Write:
    """As `_any_of`; integers with the name of their branch, because fastavro takes a double for each number."""
    other = _any_of(forms)
    return lambda value: ("long", value) if type(value) is int else other(value)


def _any_of(forms: Sequence[FieldForm]) -> Write:
    def write(value: Any) -> Any:  # noqa: ANN401, of any type
        if any(type(value) in form.exact for form in forms):
            return value
        problems: list[str] = []
        for form in forms:
            try:
                return form.write(value)
            except (TypeError, ValueError) as error:
                problems.append(str(error))
        raise TypeError("; ".join(problems))

    return write


def _items(form: FieldForm) -> Write:
    exact, write_item = form

    def write(value: Any) -> Any:  # noqa: ANN401, of any type
        # An iterator would be empty when the event is sent again. A list is known without these slow checks.
        if type(value) is not list and isinstance(value, (str, bytes, Mapping, Iterator)):
            raise TypeError(f"{value!r} is no list")
        return [item if type(item) in exact else write_item(item) for item in value]

    return write


def _entries(form: FieldForm) -> Write:
    exact, write_item = form

    def write(value: Any) -> Any:  # noqa: ANN401, of any type
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r} is no dict")
        return {
            _key(key): item if type(item) in exact else write_item(item)
            for key, item in value.items()
        }

    return write


def _key(key: object) -> str:
    return key if type(key) is str else _text(key)


def _of_type(cls: type, write_payload: Write) -> Write:
    def write(value: Any) -> Any:  # noqa: ANN401, of any type
        if not isinstance(value, cls):
            if not isinstance(value, Mapping):
                raise TypeError(f"{value!r} is no {cls.__name__}")
            value = cls(**value)  # so that its fields are checked, and secret ones sealed
        return write_payload(value)

    return write


# --- single values ------------------------------------------------------------------------------------
def _unboxed(value: Any) -> Any:  # noqa: ANN401, of any type
    """The Python value of a number of NumPy; any other value as it is."""
    item = getattr(value, "item", None)
    return item() if callable(item) and not isinstance(value, (str, bytes, enum.Enum)) else value


def _whole(value: object) -> int:
    value = _unboxed(value)
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no integer")
    return int(value)


def _number(value: object) -> float:
    value = _unboxed(value)
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    number = float(value)
    if number != value and not isinstance(value, float):
        raise ValueError(f"{value!r} would be rounded to {number!r}")
    return number


def _whole_32(value: object) -> int:
    number = _whole(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{value!r} is no integer of 32 bits: {_declare_as('int')}")
    return number


def _number_32(value: object) -> float:
    number = _number(value)
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError as error:
        raise ValueError(
            f"{value!r} is beyond the largest float of 32 bits: {_declare_as('float')}"
        ) from error
    if narrow != number and not math.isnan(number):
        raise ValueError(
            f"{value!r} would be rounded to {narrow!r}: round it, as numpy.float32 does, or "
            f"{_declare_as('float')}"
        )
    return number


def _truth(value: object) -> bool:
    value = _unboxed(value)
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither True nor False")
    return value


def _text(value: object) -> str:
    value = _unboxed(value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    # `str` of a member of an enum of texts would be its name.
    return str(value.value if isinstance(value, enum.Enum) else value)


def _bytes(value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{value!r} is no bytes")
    return bytes(value)


def _date(value: object) -> dt.date:
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise TypeError(f"{value!r} is no date")
    return value


def _time(value: object, *, is_micro: bool) -> dt.time:
    if not isinstance(value, dt.time):
        raise TypeError(f"{value!r} is no time of day")
    if value.tzinfo is not None:
        raise ValueError(f"{value!r} has a zone, which would be lost")
    if value.microsecond % 1000 and not is_micro:
        raise ValueError(f"{value!r} has microseconds: {_types('TimeMicro')}")
    return value


def _moment(value: object, is_local: bool, is_micro: bool) -> dt.datetime:  # noqa: FBT001, both are of the type
    if not isinstance(value, dt.datetime):
        raise TypeError(f"{value!r} is no datetime")
    if not is_local and value.tzinfo is None:
        raise ValueError(f"{value!r} has no zone: set one, or {_types('LocalDateTimeMicro')}")
    if is_local and value.tzinfo is not None:
        raise ValueError(f"{value!r} has a zone, which would be lost")
    if value.microsecond % 1000 and not is_micro:
        name = "LocalDateTimeMicro" if is_local else "DateTimeMicro"
        raise ValueError(f"{value!r} has microseconds: cut them off, or {_types(name)}")
    return value


def _duration(value: object) -> dt.timedelta:
    if not isinstance(value, dt.timedelta):
        raise TypeError(f"{value!r} is no timedelta")
    if dt.timedelta(seconds=value.total_seconds()) != value:  # Avro has it so
        raise ValueError(f"{value!r} would be rounded")
    return value


def _uuid(value: object) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, str):
        with suppress(ValueError):
            return uuid.UUID(value)
    raise TypeError(f"{value!r} is no UUID")


def _types(name: str) -> str:
    return _declare_as(f"dataclasses_avroschema.types.{name}")


def _declare_as(name: str) -> str:
    return f"declare the field as {name}, in a later version of the type"


_FORMS: Final[Mapping[Any, FieldForm]] = {
    type(None): FieldForm(frozenset([type(None)]), lambda value: value),
    bool: FieldForm(frozenset([bool]), _truth),
    int: FieldForm(frozenset([int]), _whole),
    float: FieldForm(frozenset([float]), _number),
    str: FieldForm(frozenset([str]), _text),
    bytes: FieldForm(frozenset([bytes]), _bytes),
    uuid.UUID: FieldForm(frozenset([uuid.UUID]), _uuid),
    dt.date: FieldForm(frozenset(), _date),
    dt.timedelta: FieldForm(frozenset(), _duration),
    dt.time: FieldForm(frozenset(), lambda value: _time(value, is_micro=False)),
    dt.datetime: FieldForm(frozenset(), lambda value: _moment(value, False, False)),  # noqa: FBT003, as above
}
"""Forms of plain types. Any other type is left to fastavro."""
