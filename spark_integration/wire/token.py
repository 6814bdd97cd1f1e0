"""The token of a driver: attempts and clients prove by it that they belong to the driver, and the driver to them.

256 random bits per driver, stored in the driver's file (see `driver_file`). Tasks receive it in their closure,
clients on other machines in the variable `COORDLOG_TOKEN`. It is never written to a topic, Spark setting, command
line, page, log line or `repr`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from typing import Final

from coordlog.errors import OptionError
from coordlog.limits import TOKEN_BYTES

__all__ = ["NONCE_BYTES", "TOKEN_VARIABLE", "Token", "new_nonce", "token_of_environment"]

TOKEN_VARIABLE: Final = "COORDLOG_TOKEN"  # noqa: S105, the name of a variable
NONCE_BYTES: Final = 32

_SCHEME: Final = "Bearer "


class Token:
    """A driver's token. It can be pickled into a task's closure; its `repr` does not show the secret."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == TOKEN_BYTES, "a token has one length"
        self._secret = secret

    @classmethod
    def new(cls) -> Token:
        """A new random token."""
        return cls(secrets.token_bytes(TOKEN_BYTES))

    @classmethod
    def parse(cls, text: str, *, where: str) -> Token:
        """Token from the text of a file or variable; `where` names that file or variable in the error.

        Raises:
            OptionError: The text is not a token. The message does not show the text.
        """
        try:
            secret = bytes.fromhex(text.strip())
        except ValueError:
            secret = b""
        if len(secret) != TOKEN_BYTES:
            raise OptionError(where, "(not shown)", f"{2 * TOKEN_BYTES} hexadecimal digits")
        return cls(secret)

    def text(self) -> str:
        """The token as hexadecimal digits, only for the driver's file and a client's `COORDLOG_TOKEN`."""
        return self._secret.hex()

    def header(self) -> str:
        """Value of the HTTP header `Authorization` with this token."""
        return _SCHEME + self.text()

    def is_in(self, header: str | None) -> bool:
        """Whether the header `Authorization` holds this token. Compared in constant time."""
        return hmac.compare_digest((header or "").encode(), self.header().encode())

    def prove(self, nonce: bytes, *, job_id: str, driver_id: str) -> bytes:
        """HMAC-SHA256 of a challenge: proves that the sender has the token, without sending the token."""
        challenge = b"|".join((nonce, job_id.encode(), driver_id.encode()))
        return hmac.digest(self._secret, challenge, hashlib.sha256)

    def is_proof(self, proof: bytes, nonce: bytes, *, job_id: str, driver_id: str) -> bool:
        """Whether `proof` is the result of `prove` for the same challenge. Compared in constant time."""
        return hmac.compare_digest(proof, self.prove(nonce, job_id=job_id, driver_id=driver_id))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash((Token, self._secret))

    def __repr__(self) -> str:
        return "Token(not shown)"

    def __reduce__(self) -> tuple[type[Token], tuple[bytes]]:
        return Token, (self._secret,)


def new_nonce() -> bytes:
    """A new random challenge."""
    return secrets.token_bytes(NONCE_BYTES)


def token_of_environment() -> Token | None:
    """The token in `COORDLOG_TOKEN`, for clients on other machines; None if it is not set.

    The token may belong to another job or an earlier driver. So a client sends it only to a driver that has
    proved by `prove` that it has the same token.

    Raises:
        OptionError: The variable is set, and its text is not a token.
    """
    text = os.environ.get(TOKEN_VARIABLE)
    return Token.parse(text, where=TOKEN_VARIABLE) if text else None
