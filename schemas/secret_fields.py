"""Fields that a payload type marks secret: what is appended in their place.

    @event("db.login", version=1)
    class Login(Payload):
        user: str
        password: Annotated[str, REDACTED]

The mark acts where a payload becomes bytes, and there only: what a coordinator, an attempt, a client,
a projection or a reader gets is what the log has, live as after a restore. Nobody sees the value by
its payload, so whoever needs it takes a guard that can be opened: `coordlog.secret_fields.Encrypted`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Final, Protocol, runtime_checkable

__all__ = ["REDACTED", "REDACTED_TEXT", "Guard", "guards_of"]

REDACTED_TEXT: Final = "(redacted)"


@runtime_checkable
class Guard(Protocol):
    """Marks a field of text as secret, inside `Annotated`."""

    def seal(self, text: str) -> str:
        """What is appended in the place of `text`: the same for the same, and for what it has given itself."""
        ...


class _Redacted:
    """Gives nothing of the value, not even whether two are alike.

    A digest would tell that, and the value of whatever short secret somebody cares to try; one that
    is keyed needs a key, and who has one can encrypt.
    """

    __slots__ = ()

    def seal(self, text: str) -> str:
        """Nothing of it."""
        del text
        return REDACTED_TEXT

    def __repr__(self) -> str:
        return "REDACTED"

    def __reduce__(self) -> str:
        return "REDACTED"


REDACTED: Final = _Redacted()
"""The value is never appended."""


def guards_of(cls: type[Any]) -> Mapping[str, Guard]:
    """The guards of a dataclass, by its fields' names.

    Raises:
        TypeError: A mark stands on something that is no text, or inside another type.
    """
    found: dict[str, Guard] = {}
    for field in dataclasses.fields(cls):
        guard = _guard(field.type)
        if guard is not None:
            found[field.name] = guard
        elif _is_inside(field.type):
            raise TypeError(
                f"{field.name}: only a field that is a text, or None, can be marked secret"
            )
    return found


def _guard(hint: Any) -> Guard | None:  # noqa: ANN401, a type's own form
    """Of `Annotated[str, guard]`, `Annotated[str | None, guard]` or `Annotated[str, guard] | None`."""
    parts = [one for one in _union(hint) if one is not type(None)]
    if len(parts) != 1 or typing.get_origin(parts[0]) is not Annotated:
        return None
    inner, *marks = typing.get_args(parts[0])
    guard = next((one for one in marks if _is_guard(one)), None)
    if guard is None or {one for one in _union(inner) if one is not type(None)} != {str}:
        return None
    return typing.cast("Guard", guard)


def _union(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401, as above
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _is_inside(hint: Any) -> bool:  # noqa: ANN401, as above
    if isinstance(hint, str):  # a name that is not known yet
        return "Annotated" in hint
    if typing.get_origin(hint) is Annotated and any(map(_is_guard, typing.get_args(hint)[1:])):
        return True
    return any(_is_inside(one) for one in typing.get_args(hint))


def _is_guard(mark: object) -> bool:
    return isinstance(mark, Guard) and not isinstance(mark, type)
