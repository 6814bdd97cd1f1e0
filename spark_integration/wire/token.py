"""The driver's token: its holder is accepted as an attempt or a client, and can tell whether the driver lives.

256 random bits per driver, in the driver's file (see `driver_file`). Tasks get it in their closure,
clients on other machines in `COORDLOG_TOKEN`. It is in no topic, Spark setting, command line, page,
log line or `repr`.
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

TOKEN_VARIABLE: Final = "COORDLOG_TOKEN"  # noqa: S105, its name
NONCE_BYTES: Final = 32

_SCHEME: Final = "Bearer "


class Token:
    """A driver's token. Pickles, for a task's closure; prints nothing of itself."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == TOKEN_BYTES, "a token has one length"
        self._secret = secret

    @classmethod
    def new(cls) -> Token:
        """Another one each time."""
        return cls(secrets.token_bytes(TOKEN_BYTES))

    @classmethod
    def parse(cls, text: str, *, where: str) -> Token:
        """The token in a file or a variable, `where` says which.

        Raises:
            OptionError: It is none; the message does not show what is there.
        """
        try:
            secret = bytes.fromhex(text.strip())
        except ValueError:
            secret = b""
        if len(secret) != TOKEN_BYTES:
            raise OptionError(where, "(not shown)", f"{2 * TOKEN_BYTES} hexadecimal digits")
        return cls(secret)

    def text(self) -> str:
        """What stands in the token's file; for that, and for a client's variable, only."""
        return self._secret.hex()

    def header(self) -> str:
        """The value of the header `Authorization`."""
        return _SCHEME + self.text()

    def is_in(self, header: str | None) -> bool:
        """Whether this token is in a header `Authorization`; takes as long for any wrong one."""
        return hmac.compare_digest((header or "").encode(), self.header().encode())

    def prove(self, nonce: bytes, *, job_id: str, driver_id: str) -> bytes:
        """HMAC-SHA256 of a challenge: shows that its maker holds the token, and nothing of it."""
        said = b"|".join((nonce, job_id.encode(), driver_id.encode()))
        return hmac.digest(self._secret, said, hashlib.sha256)

    def is_proof(self, proof: bytes, nonce: bytes, *, job_id: str, driver_id: str) -> bool:
        """Whether `proof` is what `prove` gives; takes as long for any wrong one."""
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
    """A challenge that nobody has seen."""
    return secrets.token_bytes(NONCE_BYTES)


def token_of_environment() -> Token | None:
    """The token in `COORDLOG_TOKEN`, for clients on other machines; None if it is not set.

    It may be another job's, or that of a driver before: nothing is sent to a driver that does not
    prove itself by it.

    Raises:
        OptionError: It is no token.
    """
    text = os.environ.get(TOKEN_VARIABLE)
    return Token.parse(text, where=TOKEN_VARIABLE) if text else None
