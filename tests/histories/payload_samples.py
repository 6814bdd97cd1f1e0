"""Payload types for the tests of what derives and encodes them."""

from __future__ import annotations

import enum

from coordlog.schemas.payload import Payload, event, payload


class Colour(enum.Enum):
    """An enumeration in a payload."""

    RED = "RED"
    BLUE = "BLUE"


@payload("sample.inner", version=1)
class Inner(Payload):
    """Stands inside others."""

    name: str
    size: int = 0


@event("sample.outer", version=1)
class Outer(Payload):
    """One of everything."""

    inner: Inner
    many: list[Inner]
    by_name: dict[str, int]
    colour: Colour
    maybe: Inner | None = None
    content: bytes = b""
    share: float = 0.5
    is_on: bool = True


@event("sample.outer", version=2)
class OuterSecond(Payload):
    """The same name in another version."""

    text: str


def another_inner() -> type[Payload]:
    """A second class of the name `sample.inner@1`."""

    @payload("sample.inner", version=1)
    class AnotherInner(Payload):
        other: int

    return AnotherInner
