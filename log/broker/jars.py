"""Fetches the needed jars into a cache of this user, once; later runs need no network.

The Ivy that PySpark bundles fetches them, flat, from the list in `jars.lock`; each file is checked
here, by its SHA-256. `python -m coordlog.log.broker.jars` fetches all sets.

Ivy fetches from Maven Central, through the proxy of `HTTPS_PROXY` or of `JAVA_TOOL_OPTIONS`.
`COORDLOG_IVY_SETTINGS` is the path of a settings file of Ivy, for a mirror.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from coordlog.errors import CoordlogError
from coordlog.log.broker import limits
from coordlog.log.broker.jar_cache import cache_lock
from coordlog.log.broker.jar_lock import Jar, JarSet, fingerprint, locked
from coordlog.log.broker.java import find_java, pyspark_jars
from coordlog.log.local.environment_errors import ChecksumError, JarsError
from coordlog.log.local.paths import cache_folder, private_folder

__all__ = ["JarSet", "class_path", "main", "resolve"]

SETTINGS_VARIABLE: Final = "COORDLOG_IVY_SETTINGS"

# No descriptors: the lock is flat, so each jar costs one request. No SHA-1: ours is SHA-256.
_SETTINGS: Final = """\
<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/>
  </resolvers>
</ivysettings>
"""
_UNFINISHED: Final = ".unfinished-"
_PROGRESS_EVERY: Final = 10
_MEBIBYTE: Final = 1024 * 1024

Progress = Callable[[str], None]


def resolve(jar_set: JarSet, *, progress: Progress | None = None) -> tuple[Path, ...]:
    """The jars of a set as files in the cache, in the lock's order; fetched if they are missing.

    Several processes may call it at once: one fetches, the others wait. A set appears in
    the cache complete and checked, or not at all.

    Args:
        jar_set: The set.
        progress: Called with a line now and then while jars are fetched; not called if none is missing.

    Raises:
        JavaError: There is no Java that can run Ivy.
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
        checked.rename(folder)


def main() -> int:
    """Fetch all sets; prints a line each. Returns the exit status."""
    for jar_set in JarSet:
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
        fetch_with_ivy(jars, target, lambda n: _report(progress, jar_set, n, len(jars)))

    install(folder, jars, fetch, work_in=folder.parent)


def _report(progress: Progress, jar_set: JarSet, count: int, total: int) -> None:
    if count % _PROGRESS_EVERY == 0:
        progress(f"{jar_set.value}: {count} of {total} jars")


def fetch_with_ivy(jars: Sequence[Jar], target: Path, fetched: Callable[[int], None]) -> None:
    """Put these jars into a folder, unchecked, by the Ivy that PySpark bundles.

    Args:
        jars: The jars; checksums and sizes are not checked.
        target: An empty folder; Ivy's own cache is in it too.
        fetched: Called with the number of fetched jars, after each.
    """
    settings = Path(os.environ.get(SETTINGS_VARIABLE) or target / "settings.xml").absolute()
    if settings.parent == target:
        settings.write_text(_SETTINGS, "utf-8")
    elif not settings.is_file():
        raise JarsError(f"{SETTINGS_VARIABLE} names {settings}, which is no file", "correct it")
    ivy_file = target / "ivy.xml"
    ivy_file.write_text(_ivy_module(jars), "utf-8")
    command = [
        find_java(),
        *proxy_options(),
        *("-cp", str(pyspark_jars() / "*"), "org.apache.ivy.Main"),
        *("-settings", str(settings), "-ivy", str(ivy_file), "-cache", str(target / "cache")),
        *("-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    last_lines: deque[str] = deque(maxlen=40)
    reason: str | None = None
    count = 0
    with _bounded(command) as (process, ran_out):
        assert process.stdout is not None
        for line in process.stdout:
            last_lines.append(line.strip())
            if "[SUCCESSFUL ]" in line:
                count += 1
                fetched(count)
            elif (failure := re.search(r"HttpClientHandler: (.*?) url=", line)) is not None:
                reason = failure[1]
        code = process.wait()
    if ran_out.is_set():
        raise JarsError(
            f"{count} of {len(jars)} jars were fetched within {limits.RESOLVE_LIMIT_S:.0f} s",
            "check the network, then do the same again",
        )
    if code != 0:
        raise _ivy_failure(reason, tuple(last_lines))


def _ivy_failure(reason: str | None, last_lines: tuple[str, ...]) -> JarsError:
    if reason is not None:
        return JarsError(
            f"the Maven repository cannot be reached ({reason})",
            "check the network; behind a proxy set HTTPS_PROXY=http://HOST:PORT, for a mirror set "
            f"{SETTINGS_VARIABLE} to a settings file of Ivy; then do the same again",
        )
    missing = [match[1] for line in last_lines if (match := _MISSING.search(line)) is not None]
    if missing:
        return JarsError(
            f"the Maven repository has no {', '.join(missing)}",
            f"if it is a mirror of yours, add them, or take another one by {SETTINGS_VARIABLE}",
        )
    output = " / ".join([line for line in last_lines if line][-3:])
    return JarsError(f"Ivy failed: {output}", "do the same again")


_MISSING: Final = re.compile(r":: (\S+#\S+;\S+): not found")


def _ivy_module(jars: Sequence[Jar]) -> str:
    """The jars as a module of Ivy that depends on each of them, but not on their own dependencies."""
    dependencies = "".join(
        f"    <dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} "
        f'conf="default->default" transitive="false">{_ivy_artifacts(same)}</dependency>\n'
        for (group, artifact, version), same in _by_module(jars).items()
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '  <info organisation="coordlog" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{dependencies}  </dependencies>\n"
        "</ivy-module>\n"
    )


def _by_module(jars: Sequence[Jar]) -> dict[tuple[str, str, str], list[Jar]]:
    modules: dict[tuple[str, str, str], list[Jar]] = {}
    for jar in jars:
        modules.setdefault((jar.group, jar.artifact, jar.version), []).append(jar)
    return modules


def _ivy_artifacts(jars: Sequence[Jar]) -> str:
    """Which of a module's jars these are, unless it is the main one alone."""
    if not any(jar.classifier for jar in jars):
        return ""
    return "".join(
        f'<artifact name={quoteattr(jar.artifact)} type="jar" ext="jar"'
        + (f" m:classifier={quoteattr(jar.classifier)}/>" if jar.classifier else "/>")
        for jar in jars
    )


def proxy_options() -> list[str]:
    """Options of `java` for `HTTPS_PROXY`, which the JVM does not read.

    A proxy in JAVA_TOOL_OPTIONS has precedence.
    """
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    if not proxy or "proxyHost" in os.environ.get("JAVA_TOOL_OPTIONS", ""):
        return []
    url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    if not url.hostname:
        return []
    return [f"-Dhttps.proxyHost={url.hostname}", f"-Dhttps.proxyPort={url.port or 80}"]


@contextlib.contextmanager
def _bounded(
    command: list[str],
) -> Generator[tuple[subprocess.Popen[str], threading.Event], None, None]:
    """A process whose output is read, and an event that is set if it is killed at the time limit."""
    ran_out = threading.Event()
    with subprocess.Popen(  # noqa: S603, the Java of this machine
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:

        def end() -> None:
            ran_out.set()
            process.kill()

        timer = threading.Timer(limits.RESOLVE_LIMIT_S, end)
        timer.daemon = True
        timer.start()
        try:
            yield process, ran_out
        finally:
            timer.cancel()
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
