"""Payload types with fields that are secret; for a module without postponed annotations."""

from typing import Annotated

from coordlog.schemas.payload import Payload, event, fact
from coordlog.schemas.secret_fields import REDACTED
from coordlog.secret_fields import Encrypted

SEALED = Encrypted()


@event("db.login", version=1)
class Login(Payload):
    user: str
    password: Annotated[str, REDACTED]
    pin: Annotated[str | None, REDACTED] = None
    token: Annotated[str, SEALED] | None = None


@fact("db.logins", version=1)
class Logins(Payload):
    first: Login
    others: list[Login]


@event("db.login", version=2)
class PlainLogin(Payload):
    """The same without marks: it has the same schema."""

    user: str
    password: str
    pin: str | None = None
    token: str | None = None


def declare_list() -> None:
    """A mark inside a list: refused."""

    @event("db.pins", version=1)
    class Pins(Payload):
        pins: list[Annotated[str, REDACTED]]

    del Pins


def declare_number() -> None:
    """A mark on a number: refused."""

    @event("db.pin", version=1)
    class Pin(Payload):
        pin: Annotated[int, REDACTED]

    del Pin
