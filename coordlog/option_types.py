"""Types and values of the options of public constructors, checked at once and all together.

A value of a wrong type fails late otherwise: on another machine, after a wait, and with an error about something else.
The annotations of a constructor are its only declaration, so they are what values are held to.
"""

from __future__ import annotations

import inspect
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from coordlog.errors import CoordlogError, OptionError, OptionsError

__all__ = ["check_all", "check_range", "check_types"]

_NAMES: Final[Mapping[object, str]] = {
    bool: "True or False",
    bytes: "bytes",
    float: "a number",
    int: "a whole number",
    str: "a text",
    type(None): "None",
}
_SEQUENCES: Final = (Sequence, Collection, Iterable, list, tuple)
_SHOWN: Final = 200
"""Characters of a value of a wrong type that are shown."""


def check_types(
    function: Callable[..., object], values: Mapping[str, object], *, prefix: str = ""
) -> None:
    """Hold values to the annotations of a function's parameters.

    Args:
        function: The constructor; an annotation that is known to type checkers alone is passed over.
        values: Values by the names of parameters, as `locals()` has them at its beginning.
        prefix: Text before the names in errors.

    Raises:
        OptionError: One value is of another type.
        OptionsError: Several are.
    """
    check_all(*(_raising(error) for error in _wrong_types(function, values, prefix)))


def check_all(*checks: Callable[[], object]) -> None:
    """Make all checks, and raise what they raise: its error if it is one, else all of them together.

    Raises:
        CoordlogError: One check failed.
        OptionsError: Several did.
    """
    errors: list[CoordlogError] = []
    for check in checks:
        try:
            check()
        except CoordlogError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise OptionsError(tuple(map(str, errors)))


def check_range(
    option: str, value: float | None, lowest: float, highest: float, *, unit: str = ""
) -> None:
    """Refuse a number out of range, and one that is none; None is taken.

    Raises:
        OptionError: With the value and both bounds.
    """
    if value is not None and not lowest <= value <= highest:
        raise OptionError(option, value, f"between {lowest:,} and {highest:,}{unit}")


def _raising(error: OptionError) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def _wrong_types(
    function: Callable[..., object], values: Mapping[str, object], prefix: str
) -> Iterator[OptionError]:
    names = getattr(function, "__globals__", {})
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation is parameter.empty or name not in values:
            continue
        hint = parameter.annotation
        if isinstance(hint, str):
            try:
                hint = eval(hint, names)  # noqa: S307, an annotation of our own code
            except NameError:
                continue  # imported for type checkers alone
        value = values[name]
        if not _is_of(hint, value):
            shown = value if len(repr(value)) <= _SHOWN else type(value).__name__
            yield OptionError(prefix + name, shown, " or ".join(dict.fromkeys(_said(hint))))


def _is_of(hint: Any, value: object) -> bool:  # noqa: ANN401, any annotation
    if hint is None:
        return value is None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is_of(argument, value) for argument in arguments)
    if origin is Literal:
        return any(type(argument) is type(value) and argument == value for argument in arguments)
    if origin in (Sequence, Collection, Iterable):
        is_sequence = isinstance(value, origin) and not isinstance(value, (str, bytes))
        return is_sequence and all(
            _is_of(arguments[0], argument) for argument in typing.cast("Any", value)
        )
    if origin is Mapping or origin is dict:
        return isinstance(value, Mapping) and all(
            _is_of(arguments[0], key) and _is_of(arguments[1], held) for key, held in value.items()
        )
    if origin is Callable:
        return callable(value)
    if origin is os.PathLike:
        return isinstance(value, os.PathLike)
    return origin is not None or _is_instance(hint, value)


def _is_instance(hint: Any, value: object) -> bool:  # noqa: ANN401, as above
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(hint, type):
        return True
    if getattr(hint, "_is_protocol", False):
        return _has_members(hint, value)
    return isinstance(value, hint)


def _has_members(protocol: type, value: object) -> bool:
    """Whether an object has what a protocol asks for; no property is evaluated, for one may ask a broker."""
    if isinstance(value, type):
        return False  # a class in the place of an object of it
    if hasattr(type(value), "__getattr__"):
        return True  # a stand-in for another object
    missing = object()
    return all(
        inspect.getattr_static(value, name, missing) is not missing
        for owner in protocol.__mro__
        if getattr(owner, "_is_protocol", False)
        for name in (*vars(owner), *inspect.get_annotations(owner))
        if not name.startswith("_")
    )


def _said(hint: Any) -> Iterator[str]:  # noqa: ANN401, as above
    """What a value may be, in words."""
    hint = type(None) if hint is None else hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from _said(argument)
    elif origin is Literal:
        yield from map(repr, arguments)
    elif origin in _SEQUENCES:
        yield f"a sequence, each {' or '.join(_said(arguments[0]))}"
    elif origin is Mapping or origin is dict:
        key, value = (" or ".join(_said(argument)) for argument in arguments)
        yield f"a mapping of {key} to {value}"
    elif origin is Callable:
        yield "a function"
    elif origin is os.PathLike:
        yield "a path"
    else:
        yield _NAMES.get(hint) or _with_article(getattr(hint, "__name__", str(hint)).lstrip("_"))


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
