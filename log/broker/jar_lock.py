"""The exact jars: the lock file beside this module, one line per jar with its SHA-256.

`scripts/lock_jars.py` writes the file.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["LOCK_PATH", "Jar", "JarSet", "fingerprint", "format_lock", "locked", "parse_lock"]

LOCK_PATH: Final = Path(__file__).with_name("jars.lock")

_HEADER: Final = """\
# The jars that are used, by exact version: group:artifact:version, SHA-256, bytes.
# Written by scripts/lock_jars.py.
"""
_LINE: Final = re.compile(
    r"(?P<group>[\w.-]+):(?P<artifact>[\w.-]+):(?P<version>[\w.-]+)(?::(?P<classifier>[\w.-]+))? "
    r"(?P<sha256>[0-9a-f]{64}) (?P<size>[1-9][0-9]*)"
)


class JarSet(enum.Enum):
    """Jars that are used together, on one class path."""

    BROKER = "broker"
    """A Kafka broker, complete."""
    SPARK = "spark"
    """Jars that Spark 4.1 needs besides its own to read a topic of Avro records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One jar, by name and content."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int
    classifier: str = ""
    """Which of the jars of this version it is; empty for the main one."""

    @property
    def file_name(self) -> str:
        """Its name in a folder of jars."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.jar"

    @property
    def coordinates(self) -> str:
        """Its name in a Maven repository."""
        classifier = f":{self.classifier}" if self.classifier else ""
        return f"{self.group}:{self.artifact}:{self.version}{classifier}"

    @property
    def line(self) -> str:
        """Its line in a lock, without the line's end."""
        return f"{self.coordinates} {self.sha256} {self.size}"

    @classmethod
    def of_line(cls, line: str) -> Jar:
        """The jar of such a line. Raises ValueError if it is none."""
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{line!r} is not the line of a jar in a set")
        return cls(
            group=match["group"],
            artifact=match["artifact"],
            version=match["version"],
            sha256=match["sha256"],
            size=int(match["size"]),
            classifier=match["classifier"] or "",
        )


def parse_lock(text: str) -> dict[JarSet, tuple[Jar, ...]]:
    """The sets in the text of a lock file.

    Raises:
        ValueError: A line that is none of a comment, a set's name in brackets, a jar; a set or a
            file twice; a set that is missing.
    """
    sets: dict[JarSet, list[Jar]] = {}
    jars: list[Jar] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            jar_set = JarSet(line.strip("[]"))
            if jar_set in sets:
                raise ValueError(f"line {number}: the set {jar_set.value} is listed twice")
            jars = sets[jar_set] = []
            continue
        if jars is None:
            raise ValueError(f"line {number}: {line!r} is not the line of a jar in a set")
        try:
            jar = Jar.of_line(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if jar.file_name in {other.file_name for other in jars}:
            raise ValueError(f"line {number}: {jar.file_name} is listed twice")
        jars.append(jar)
    missing = [jar_set.value for jar_set in JarSet if not sets.get(jar_set)]
    if missing:
        raise ValueError(f"no jars of {', '.join(missing)}")
    return {jar_set: tuple(jars) for jar_set, jars in sets.items()}


def format_lock(sets: Mapping[JarSet, Iterable[Jar]]) -> str:
    """The text that `parse_lock` reads; jars in the order of their coordinates."""
    parts = [_HEADER]
    for jar_set, jars in sets.items():
        lines = (jar.line for jar in sorted(jars, key=lambda jar: jar.coordinates))
        parts.append("\n".join(("", f"[{jar_set.value}]", *lines, "")))
    return "".join(parts)


def locked(jar_set: JarSet) -> tuple[Jar, ...]:
    """The jars of a set, as the committed lock has them."""
    return parse_lock(LOCK_PATH.read_text("utf-8"))[jar_set]


def fingerprint(jars: Iterable[Jar]) -> str:
    """Twelve hexadecimal digits that change with every change of a set."""
    text = "\n".join(f"{jar.coordinates} {jar.sha256}" for jar in jars)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
