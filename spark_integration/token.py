"""The job's token: who holds it may speak as an attempt, and can tell whether the driver lives.

256 random bits per driver, in `COORDLOG_HOME/jobs/JOB/token`, mode 0600, and beside it in one that
is named after the driver's endpoint: a driver that stood still may write its own late, and must not
take a newer one's away. Tasks get it in their
closure, clients on other machines in `COORDLOG_TOKEN`. It is in no topic, Spark setting, command
line, page, log line or `repr`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coordlog.errors import OptionError
from coordlog.limits import TOKEN_BYTES
from coordlog.log.user_folders import home_folder, private_folder

__all__ = [
    "NONCE_BYTES",
    "TOKEN_VARIABLE",
    "Token",
    "find_token",
    "find_tokens",
    "forget_beside_endpoint",
    "forget_token",
    "job_folder",
    "new_nonce",
    "paths_beside_endpoint",
    "write_beside_endpoint",
    "write_token",
]

TOKEN_VARIABLE: Final = "COORDLOG_TOKEN"  # noqa: S105, its name
NONCE_BYTES: Final = 32

_SCHEME: Final = "Bearer "
_FILE: Final = "token"


class Token:
    """A job's token. Pickles, for a task's closure; prints nothing of itself."""

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


def job_folder(job_id: str) -> Path:
    """Where what belongs to a job is kept on this machine; it may not exist yet."""
    return home_folder() / "jobs" / job_id


def write_token(job_id: str, token: Token, *, endpoint: str | None = None) -> Path:
    """Put a driver's token in the place of the last one's; its path, in folders of this user only.

    Only once the driver that wrote the last one is known to be gone: asking it needs that one.

    Args:
        job_id: The job's.
        token: The driver's.
        endpoint: Where it listens, as `EPOCH_STARTED` has it: `find_token` finds the token by it.
    """
    return write_beside_endpoint(job_id, _FILE, token.text() + "\n", endpoint=endpoint)


def forget_token(job_id: str, endpoint: str) -> None:
    """Nobody listens at this endpoint any more. Call it while the endpoint is still this driver's."""
    forget_beside_endpoint(job_id, _FILE, endpoint)


def write_beside_endpoint(job_id: str, name: str, text: str, *, endpoint: str | None) -> Path:
    """Put what clients of a driver need in the place of the last driver's; only this user can read it.

    And, with `endpoint`, in a file of that endpoint's own, which no other driver replaces.
    """
    home = private_folder(home_folder())
    private_folder(home / "jobs")
    folder = private_folder(job_folder(job_id))
    if endpoint is not None:
        _write(_of_endpoint(job_id, name, endpoint), text)
    return _write(folder / name, text)


def forget_beside_endpoint(job_id: str, name: str, endpoint: str) -> None:
    """Remove the file of an endpoint's own."""
    with contextlib.suppress(OSError):
        _of_endpoint(job_id, name, endpoint).unlink(missing_ok=True)


def paths_beside_endpoint(job_id: str, name: str, endpoint: str | None) -> tuple[Path, ...]:
    """Where to look: the endpoint's own file, then that of the job's last driver."""
    own = () if endpoint is None else (_of_endpoint(job_id, name, endpoint),)
    return (*own, job_folder(job_id) / name)


def _of_endpoint(job_id: str, name: str, endpoint: str) -> Path:
    digest = hashlib.blake2b(endpoint.encode(), digest_size=8).hexdigest()
    return job_folder(job_id) / f"{name}-{digest}"


def _write(path: Path, text: str) -> Path:
    # mkstemp's files are 0600 from the beginning, whatever the umask is.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def find_token(job_id: str, *, endpoint: str | None = None) -> Token | None:
    """The first of `find_tokens`; None where there is none."""
    return next(find_tokens(job_id, endpoint=endpoint), None)


def find_tokens(job_id: str, *, endpoint: str | None = None) -> Iterator[Token]:
    """What may be the token of the driver at `endpoint`, the surest first.

    Its own file, if this machine has it; then `COORDLOG_TOKEN`, which may be another job's, or that
    of a driver before; then that of the job's last driver.

    Raises:
        OptionError: What is there is no token.
    """
    own, last = _paths(job_id, endpoint)
    if own is not None:
        yield from _read(own)
    given = os.environ.get(TOKEN_VARIABLE)
    if given:
        yield Token.parse(given, where=TOKEN_VARIABLE)
    yield from _read(last)


def _paths(job_id: str, endpoint: str | None) -> tuple[Path | None, Path]:
    *own, last = paths_beside_endpoint(job_id, _FILE, endpoint)
    return (own[0] if own else None), last


def _read(path: Path) -> Iterator[Token]:
    with contextlib.suppress(FileNotFoundError):
        yield Token.parse(path.read_text("ascii", errors="replace"), where=str(path))
