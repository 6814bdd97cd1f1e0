"""Secret fields that those who have a key can read: encrypted before they are appended.

    PASSWORD = Encrypted()

    @event("db.login", version=1)
    class Login(Payload):
        user: str
        password: Annotated[str, PASSWORD]

    PASSWORD.open(login.password)  # where it is needed

A payload that was decoded holds what the log holds. So a fold, a restore, an audit and a snapshot
need no key and have nothing to give away; only who opens a field does.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coordlog.errors import EnvironmentSetupError, OptionError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

__all__ = ["KEY_VARIABLE", "Encrypted"]

KEY_VARIABLE: Final = "COORDLOG_SECRET_KEY"

_MARK: Final = "sealed:1:"
_KEY_BYTES: Final = 64
_FIRST: Final = b"\x01"
"""Before each text: an empty one cannot be encrypted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encrypted:
    """A guard that encrypts with AES-SIV (RFC 5297); pickles, without the key.

    The same text under the same key gives the same bytes: a replay is exact, and readers without the
    key can tell which values are equal and about how long they are, and nothing else.

    Attributes:
        variable: The environment variable that has the key, 128 hexadecimal digits, in each process
            that seals or opens: `openssl rand -hex 64` makes one.
    """

    variable: str = KEY_VARIABLE

    def seal(self, text: str) -> str:
        """What is appended. What was sealed by this key stays as it is.

        Raises:
            OptionError: There is no key.
        """
        cipher = self._cipher()
        if _opened(cipher, text) is not None:
            return text
        sealed = cipher.encrypt(_FIRST + text.encode(), None)
        return _MARK + base64.b64encode(sealed).decode()

    def open(self, sealed: str) -> str:
        """The text.

        Raises:
            OptionError: There is no key.
            ValueError: It was not sealed, or by another key, or changed since.
        """
        text = _opened(self._cipher(), sealed)
        if text is None:
            raise ValueError(
                f"a secret field cannot be opened by the key in {self.variable}: it was sealed by"
                " another one, or never"
            )
        return text

    def _cipher(self) -> AESSIV:
        text = os.environ.get(self.variable, "")
        if not text:
            raise OptionError(self.variable, "", "set: a payload has a field that it encrypts")
        return _cipher_of(self.variable, text)


@functools.lru_cache(maxsize=16)
def _cipher_of(variable: str, text: str) -> AESSIV:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # noqa: PLC0415, an extra
    except ImportError as error:
        raise EnvironmentSetupError(
            "the package cryptography, which encrypts secret fields, is not installed",
            "pip install 'coordlog[secrets]'",
        ) from error
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        expected = f"{2 * _KEY_BYTES} hexadecimal digits, as of `openssl rand -hex {_KEY_BYTES}`"
        raise OptionError(variable, "(not shown)", expected)
    return AESSIV(key)


def _opened(cipher: AESSIV, sealed: str) -> str | None:
    """The text; None where this key has not sealed it, whatever it looks like."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415, the cipher is there

    if not sealed.startswith(_MARK):
        return None
    try:
        data = base64.b64decode(sealed.removeprefix(_MARK), validate=True)
        return cipher.decrypt(data, None).removeprefix(_FIRST).decode()
    except (InvalidTag, binascii.Error, ValueError):
        return None
