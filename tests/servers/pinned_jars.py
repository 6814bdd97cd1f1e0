"""Jars that only tests use: pinned in `jars.lock` as the broker's are, and fetched when they are first needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from coordlog.log.broker.jar_cache import cache_lock
from coordlog.log.broker.jar_lock import Jar, fingerprint
from coordlog.log.broker.jars import fetch_with_ivy, install
from coordlog.log.local.paths import cache_folder, private_folder

__all__ = ["class_path"]

_LOCK: Final = Path(__file__).with_name("jars.lock")


def class_path(name: str) -> str:
    """The jars of a part of the lock, as a class path for `java -cp`."""
    jars = _jars(name)
    cache = private_folder(cache_folder() / "test-jars")
    folder = cache / f"{name}-{fingerprint(jars)}"
    with cache_lock(cache):
        if not folder.is_dir():

            def fetch(target: Path) -> None:
                fetch_with_ivy(jars, target, lambda _count: None)

            install(folder, jars, fetch, work_in=cache)
    return os.pathsep.join(str(folder / jar.file_name) for jar in jars)


def _jars(name: str) -> tuple[Jar, ...]:
    _, _, behind = _LOCK.read_text("utf-8").partition(f"\n[{name}]\n")
    return tuple(map(Jar.of_line, behind.partition("\n[")[0].split("\n")[:-1]))
