"""Writes tests/old_brokers.lock anew, after a change of the versions below.

    .venv/bin/python scripts/lock_old_brokers.py

As `lock_jars.py` does it: look at the difference before it is committed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from lock_jars import closure, measured

LOCK: Final = Path(__file__).parents[1] / "tests" / "old_brokers.lock"

VERSIONS: Final = ("2.7.2", "2.8.0", "3.0.0")

HEADER: Final = """\
# The jars of older brokers, for `make test-old-broker`: group:artifact:version, SHA-256, bytes.
# Written by scripts/lock_old_brokers.py.
"""


def main() -> int:
    """Write the lock."""
    parts = [HEADER]
    for version in VERSIONS:
        jars = measured(closure(("org.apache.kafka", "kafka_2.13", version)))
        lines = (f"{jar.coordinates} {jar.sha256} {jar.size}\n" for jar in jars)
        parts.append(f"\n[{version}]\n" + "".join(lines))
        print(f"{version}: {len(jars)} jars, {sum(jar.size for jar in jars)} bytes")
    LOCK.write_text("".join(parts), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
