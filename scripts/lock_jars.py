"""Writes log/broker/jars.lock anew, after a change of the roots below.

    .venv/bin/python scripts/lock_jars.py

Resolves the broker with all that it depends on, fetches every jar of all sets, and writes what
came, by SHA-256: look at the difference before it is committed.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from coordlog.log.broker.jar_lock import LOCK_PATH, Jar, JarSet, format_lock
from coordlog.log.broker.jars import fetch_with_ivy
from coordlog.log.broker.java import find_java, pyspark_jars

BROKER: Final = ("org.apache.kafka", "kafka_2.13", "4.3.1")

BESIDE_THE_BROKER: Final = (
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),  # or it logs nothing
)

# For Spark 4.1.1. A token provider of that version cannot be had; 4.0.0 fits.
SPARK: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.1.1"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
    ("org.apache.spark", "spark-avro_2.13", "4.1.1"),
)

SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""

LIMIT_S: Final = 600

Module = tuple[str, str, str] | tuple[str, str, str, str]
"""Group, artifact, version, and the classifier if it is not the main jar."""


def closure(root: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    """The root and all that it depends on, at the versions that Ivy settles on."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "settings.xml")
        settings.write_text(SETTINGS, "utf-8")
        command = [find_java(), "-cp", str(pyspark_jars() / "*"), "org.apache.ivy.Main"]
        command += ["-settings", str(settings), "-cache", str(Path(folder, "cache"))]
        command += ["-dependency", *root, "-confs", "default", "-types", "jar", "bundle"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    found = set(re.findall(r"^\s*found (\S+)#(\S+);(\S+) in", done.stdout, re.MULTILINE))
    evicted = set(re.findall(r"^\s*(\S+)#(\S+);(\S+) by \[", done.stdout, re.MULTILINE))
    return sorted(found - evicted)


def measured(modules: Iterable[Module]) -> list[Jar]:
    """These modules as jars with the checksums of what came."""
    unknown = [
        Jar(
            group=group,
            artifact=artifact,
            version=version,
            classifier="".join(classifier),
            sha256="0" * 64,
            size=1,
        )
        for group, artifact, version, *classifier in modules
    ]
    with tempfile.TemporaryDirectory() as folder:
        fetch_with_ivy(unknown, Path(folder), lambda _count: None)
        jars: list[Jar] = []
        for jar in unknown:
            content = Path(folder, jar.file_name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            jars.append(replace(jar, sha256=digest, size=len(content)))
    return jars


def main() -> int:
    """Write the lock."""
    sets = {
        JarSet.BROKER: measured([*closure(BROKER), *BESIDE_THE_BROKER]),
        JarSet.SPARK: measured(list(SPARK)),
    }
    LOCK_PATH.write_text(format_lock(sets), "utf-8")
    for jar_set, jars in sets.items():
        print(f"{jar_set.value}: {len(jars)} jars, {sum(jar.size for jar in jars)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
