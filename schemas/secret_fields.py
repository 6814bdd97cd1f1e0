"""Secret fields of payload types, and the texts that are recorded in their place.

    @event("db.login", version=1)
    class Login(Payload):
        user: str
        password: Annotated[str, REDACTED]

The mark takes effect only when a payload is encoded: coordinators, attempts, clients, projections and
readers receive the recorded text, live as after a restore, and never the value. If code needs the
value, the field takes a guard that can be opened: `coordlog.secret_fields.Encrypted`.
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
    """Mark of a secret text field, inside `Annotated`."""

    def seal(self, text: str) -> str:
        """The text to record in place of `text`: equal for equal texts, and unchanged for a text already sealed."""
        ...


class _Redacted:
    """Guard that records nothing of the value, not even whether two values are equal.

    A digest would show that, and short secrets could be found by trying; a keyed digest needs a key,
    and with a key the field can be encrypted.
    """

    __slots__ = ()

    def seal(self, text: str) -> str:
        """`REDACTED_TEXT`, for every text."""
        del text
        return REDACTED_TEXT

    def __repr__(self) -> str:
        return "REDACTED"

    def __reduce__(self) -> str:
        return "REDACTED"


REDACTED: Final = _Redacted()
"""Guard of fields whose value is never recorded."""


def guards_of(cls: type[Any]) -> Mapping[str, Guard]:
    """The guards of a dataclass, by field name.

    Raises:
        TypeError: A mark is on a field that is no text, or inside another type.
    """
    guards: dict[str, Guard] = {}
    for field in dataclasses.fields(cls):
        guard = _guard(field.type)
        if guard is not None:
            guards[field.name] = guard
        elif _is_inside(field.type):
            raise TypeError(
                f"{field.name}: only a field that is a text, or None, can be marked secret"
            )
    return guards


def _guard(hint: Any) -> Guard | None:  # noqa: ANN401, a type's own form
    """The guard of `Annotated[str, guard]`, `Annotated[str | None, guard]` or `Annotated[str, guard] | None`."""
    parts = [part for part in _union(hint) if part is not type(None)]
    if len(parts) != 1 or typing.get_origin(parts[0]) is not Annotated:
        return None
    inner, *marks = typing.get_args(parts[0])
    guard = next((mark for mark in marks if _is_guard(mark)), None)
    if guard is None or {part for part in _union(inner) if part is not type(None)} != {str}:
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
    return any(_is_inside(part) for part in typing.get_args(hint))


def _is_guard(mark: object) -> bool:
    return isinstance(mark, Guard) and not isinstance(mark, type)
