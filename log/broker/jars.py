"""Fetches the needed jars into a cache of this user, once; later runs need no network.

Each file of the list in `jars.lock` is one request, and is checked by its SHA-256.
`python -m coordlog.log.broker.jars` fetches the sets that are not on demand,
`python -m coordlog.log.broker.jars delta iceberg` these two.

They come from Maven Central, through the proxy of `HTTPS_PROXY`. `COORDLOG_MAVEN_URL` is the address of a
mirror, or of a folder with its layout (`file:///home/me/.m2/repository`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from coordlog.errors import CoordlogError, OptionError
from coordlog.log.broker import limits
from coordlog.log.broker.jar_cache import cache_lock
from coordlog.log.broker.jar_lock import Jar, JarSet, fingerprint, locked
from coordlog.log.local.call_timeout import answered
from coordlog.log.local.environment_errors import ChecksumError, JarsError
from coordlog.log.local.fsync import sync_path
from coordlog.log.local.paths import cache_folder, private_folder

__all__ = ["JarSet", "class_path", "main", "resolve"]

MAVEN_CENTRAL: Final = "https://maven.example/maven2"
URL_VARIABLE: Final = "COORDLOG_MAVEN_URL"

_UNFINISHED: Final = ".unfinished-"
_MEBIBYTE: Final = 1024 * 1024
_PROGRESS_BYTES: Final = 4 * _MEBIBYTE
_PART_BYTES: Final = 64 * 1024
_REASON_CHARS: Final = 200
_SCHEMES: Final = ("https", "http", "file")
_NET_ERRORS: Final = (OSError, HTTPException, ValueError)
"""URLError, timeouts and resets are OSErrors; a damaged answer is one of the others."""

Progress = Callable[[str], None]


def resolve(jar_set: JarSet, *, progress: Progress | None = None) -> tuple[Path, ...]:
    """The jars of a set as files in the cache, in the lock's order; fetched if they are missing.

    Several processes may call it at once: one fetches, the others wait. A set appears in
    the cache complete and checked, or not at all.

    Args:
        jar_set: The set.
        progress: Called with a line now and then while jars are fetched; not called if none is missing.

    Raises:
        JarsError: The jars could not be fetched within the time limit.
        ChecksumError: A file differs from that of the lock.
    """
    jars = locked(jar_set)
    cache = cache_folder() / "jars"
    folder = cache / f"{jar_set.value}-{fingerprint(jars)}"
    paths = tuple(folder / jar.file_name for jar in jars)
    if _complete(folder, jars):
        return paths
    try:
        private_folder(cache)
        with cache_lock(cache):
            if not _complete(folder, jars):
                _fetch_set(jar_set, jars, folder, progress or _silent)
    except OSError as error:
        raise JarsError(
            f"the jars could not be written to {cache} ({error})",
            "free some space there, or set COORDLOG_CACHE to a folder of yours",
        ) from error
    return paths


def class_path(jar_set: JarSet, *, progress: Progress | None = None) -> str:
    """The jars of a set as a class path for `java -cp`; fetched if they are missing."""
    return os.pathsep.join(str(path) for path in resolve(jar_set, progress=progress))


def install(
    folder: Path, jars: Sequence[Jar], fetch: Callable[[Path], None], *, work_in: Path
) -> None:
    """Fill a folder with exactly these jars, or change nothing.

    Args:
        folder: Folder in which they appear, all at once. An existing folder is replaced.
        jars: The jars that the folder must have.
        fetch: Puts the jars into the folder of its argument; other files there are dropped.
        work_in: A folder on the same disk, for unfinished files.

    Raises:
        ChecksumError: A file has the wrong content.
        JarsError: A file is missing.
    """
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=work_in) as temporary:
        fetched, checked = Path(temporary, "fetched"), Path(temporary, "checked")
        fetched.mkdir()
        checked.mkdir()
        fetch(fetched)
        for jar in jars:
            path = fetched / jar.file_name
            if not path.is_file():
                raise JarsError(f"{jar.coordinates} was not fetched", "do the same again")
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != jar.sha256:
                raise ChecksumError(jar.coordinates, jar.sha256, digest)
            path.rename(checked / jar.file_name)
        if folder.exists():  # incomplete, or it would not be replaced
            folder.rename(Path(temporary, "replaced"))
        sync_path(checked)
        checked.rename(folder)
        sync_path(folder.parent)


def main(named: Sequence[str] = ()) -> int:
    """Fetch the named sets, or those that are not on demand; prints a line each. Returns the exit status."""
    known = [jar_set.value for jar_set in JarSet]
    if unknown := [name for name in named if name not in known]:
        print(f"error: no set {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)  # noqa: T201, a command prints
        return 2
    for jar_set in JarSet:
        if jar_set.value not in named and (named or jar_set.is_on_demand):
            continue
        try:
            paths = resolve(jar_set, progress=functools.partial(print, flush=True))
        except CoordlogError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201, a command prints
            return 1
        print(f"{jar_set.value}: {len(paths)} jars in {paths[0].parent}", flush=True)  # noqa: T201
    return 0


def _silent(_line: str) -> None:
    """Progress without output."""


def _complete(folder: Path, jars: Sequence[Jar]) -> bool:
    """Whether all jars exist with their sizes; their content was checked when they were fetched."""
    try:
        return all((folder / jar.file_name).stat().st_size == jar.size for jar in jars)
    except OSError:
        return False


def _fetch_set(jar_set: JarSet, jars: Sequence[Jar], folder: Path, progress: Progress) -> None:
    # The process that left these was killed: this one has the lock.
    for unfinished in folder.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    mebibytes = sum(jar.size for jar in jars) // _MEBIBYTE + 1
    progress(f"{jar_set.value}: fetching {len(jars)} jars, {mebibytes} MiB, once")

    def fetch(target: Path) -> None:
        size = 0

        def received(part: int) -> None:
            nonlocal size
            before, size = size, size + part
            if before // _PROGRESS_BYTES != size // _PROGRESS_BYTES:
                progress(f"{jar_set.value}: {size // _MEBIBYTE} of {mebibytes} MiB")

        fetch_jars(jars, target, received)

    install(folder, jars, fetch, work_in=folder.parent)


def fetch_jars(jars: Sequence[Jar], target: Path, received: Callable[[int], None]) -> None:
    """Put these jars into a folder, unchecked and on disk, from Maven Central or its mirror.

    Args:
        jars: The jars; of each file, at most one byte more than its size is read.
        target: An existing folder.
        received: Called with the number of bytes of each part that has arrived.

    Raises:
        JarsError: A jar is missing there, or not all have arrived within `RESOLVE_LIMIT_S`.
        OptionError: The address of the mirror is none.
    """
    base = base_url()
    deadline = monotonic() + limits.RESOLVE_LIMIT_S
    for jar in jars:
        with (target / jar.file_name).open("wb") as file:
            for part in _parts(base, jar, deadline):
                file.write(part)
                received(len(part))
            file.flush()
            os.fsync(file.fileno())


def base_url() -> str:
    """Address of the repository: `COORDLOG_MAVEN_URL`, else Maven Central.

    Raises:
        OptionError: The variable has no address that can be read.
    """
    text = os.environ.get(URL_VARIABLE) or MAVEN_CENTRAL
    url = urlsplit(text)
    if "@" in url.netloc:
        raise OptionError(URL_VARIABLE, "(hidden)", "an address without user and password")
    if url.scheme not in _SCHEMES or not (url.netloc or url.scheme == "file"):
        expected = "an address that begins with https://, http:// or file://"
        raise OptionError(URL_VARIABLE, text, expected)
    return text.rstrip("/")


def _parts(base: str, jar: Jar, deadline: float) -> Generator[bytes, None, None]:
    """The content of a jar; each wait is bounded."""
    size = 0
    timeout_s = max(0.001, min(deadline - monotonic(), limits.FETCH_WAIT_S))
    try:
        # The timeout of a socket bounds neither the look-up of a name nor headers that arrive byte by byte.
        response = answered(
            lambda: urlopen(f"{base}/{jar.path}", timeout=timeout_s),  # noqa: S310, checked by base_url
            timeout_s,
        )
        with response:
            while size <= jar.size and (
                part := response.read1(min(_PART_BYTES, jar.size + 1 - size))
            ):
                size += len(part)
                yield part
                if monotonic() > deadline:
                    raise JarsError(
                        f"the jars were not fetched from {base} within {limits.RESOLVE_LIMIT_S:.0f} s: "
                        f"of {jar.file_name} {size:,} of {jar.size:,} bytes had arrived",
                        "check the network, then do the same again",
                    )
            announced = response.headers.get("Content-Length")
            if size <= jar.size and announced is not None and size < int(announced):
                raise ConnectionError(f"the connection ended after {size} of {announced} bytes")
    except HTTPError as error:
        error.close()
        raise JarsError(
            f"{base} responds with status {error.code} for {jar.path}",
            f"if it is a mirror of yours, add the file, or name another one by {URL_VARIABLE}",
        ) from error
    except _NET_ERRORS as error:
        raise JarsError(
            f"{jar.file_name} was not fetched from {base}: {_reason(error)}",
            "check the network; behind a proxy set HTTPS_PROXY=http://HOST:PORT, for a mirror "
            f"set {URL_VARIABLE} to its address; then do the same again",
        ) from error


def _reason(error: Exception) -> str:
    """Text of an error in one line: it may hold a server's answer."""
    cause = error.reason if isinstance(error, URLError) else error
    return " ".join(str(cause).split())[:_REASON_CHARS] or type(cause).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
