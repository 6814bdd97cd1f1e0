"""Writes tests/servers/jars.lock anew, after a change of the versions below.

    .venv/bin/python scripts/lock_test_jars.py

As `lock_jars.py` does it: look at the difference before it is committed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lock_jars import Module, closure, measured

from coordlog.log.broker.jar_lock import Jar

LOCK: Final = Path(__file__).parents[1] / "tests" / "servers" / "jars.lock"

BROKERS: Final = ("2.7.2", "2.8.0", "3.0.0")

# The last version of Iceberg with the server among its jars. What it needs besides, Spark has.
ICEBERG: Final = "1.10.1"
JETTY: Final = "11.0.26"
ICEBERG_REST: Final[Sequence[Module]] = (
    ("org.apache.iceberg", "iceberg-open-api", ICEBERG, "test-fixtures"),
    ("org.apache.iceberg", "iceberg-core", ICEBERG, "tests"),
    ("org.apache.iceberg", "iceberg-core", ICEBERG),
    ("org.apache.iceberg", "iceberg-api", ICEBERG),
    ("org.apache.iceberg", "iceberg-common", ICEBERG),
    ("org.apache.iceberg", "iceberg-bundled-guava", ICEBERG),
    *(
        ("org.eclipse.jetty", f"jetty-{name}", JETTY)
        for name in ("server", "servlet", "http", "io", "util", "security")
    ),
    ("org.eclipse.jetty.toolchain", "jetty-jakarta-servlet-api", "5.0.2"),
    ("com.github.ben-manes.caffeine", "caffeine", "2.9.3"),
    ("org.apache.httpcomponents.client5", "httpclient5", "5.5"),
    ("org.apache.httpcomponents.core5", "httpcore5", "5.3.4"),
    ("org.apache.httpcomponents.core5", "httpcore5-h2", "5.3.4"),
)

HEADER: Final = """\
# The jars of the tests, of older brokers and of an Iceberg catalog: group:artifact:version, SHA-256, bytes.
# Written by scripts/lock_test_jars.py.
"""


def main() -> int:
    """Write the lock."""
    sets: dict[str, list[Jar]] = {
        version: measured(closure(("org.apache.kafka", "kafka_2.13", version)))
        for version in BROKERS
    }
    sets["iceberg-rest"] = measured(ICEBERG_REST)
    parts = [HEADER]
    for name, jars in sets.items():
        parts.append("\n".join(("", f"[{name}]", *(jar.line for jar in jars), "")))
        print(f"{name}: {len(jars)} jars, {sum(jar.size for jar in jars)} bytes")
    LOCK.write_text("".join(parts), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
