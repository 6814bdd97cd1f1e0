"""Every limit of the local broker and of fetching its jars, with unit, default and why.

Durations end in `_S` (seconds), sizes in `_BYTES`.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BROKER_HEAP",
    "FAILED_START_LINES",
    "FORMAT_LIMIT_S",
    "GUARD_CHECK_S",
    "GUARD_START_LIMIT_S",
    "IDLE_CHECK_S",
    "IDLE_MINUTES",
    "JAVA_VERSION_LIMIT_S",
    "JAVA_VERSION_MIN",
    "KILL_LIMIT_S",
    "POLL_S",
    "PORTS",
    "PROBE_TIMEOUT_S",
    "RESOLVE_LIMIT_S",
    "START_LIMIT_S",
    "START_TRIES",
    "STOP_LIMIT_S",
]

# --- jars ----------------------------------------------------------------------------------------
RESOLVE_LIMIT_S: Final = 300.0
"""Time to fetch one set of jars: the broker's are 44 MB in 46 requests."""

JAVA_VERSION_MIN: Final = 17
"""Kafka 4's broker modules and Spark 4 are built for it."""

JAVA_VERSION_LIMIT_S: Final = 30.0
"""`java -version` takes 0.1 s; a cold, loaded machine takes seconds."""

# --- starting and stopping -----------------------------------------------------------------------
START_LIMIT_S: Final = 120.0
"""From a started process to an answer: 2.7 s on a quiet machine, 28 s were seen on a loaded one."""

START_TRIES: Final = 3
"""Starts with another port each, if another process takes the chosen port before the broker does."""

GUARD_START_LIMIT_S: Final = 60.0
"""Until the broker's guard has started Java and written its state: 0.1 s on a quiet machine."""

FORMAT_LIMIT_S: Final = 60.0
"""Formatting a data folder: one start of a JVM, 1 s."""

STOP_LIMIT_S: Final = 30.0
"""From SIGTERM to SIGKILL: a stop takes 0.3 s, more if there is much to flush."""

KILL_LIMIT_S: Final = 10.0
"""From SIGKILL until the process is gone: the kernel's work alone."""

PROBE_TIMEOUT_S: Final = 2.0
"""One probe whether the broker answers."""

POLL_S: Final = 0.05
"""Pause between two checks of a condition that is about to change."""

FAILED_START_LINES: Final = 15
"""Lines of the log that the error of a failed start shows."""

PORTS: Final = range(20_000, 32_000)
"""Ports to choose from: below those that Linux and macOS give to outgoing connections. In that
range, a client that tries to reconnect to a stopped broker can be given the very port as its own,
be connected with itself, and keep the broker from coming back."""

BROKER_HEAP: Final = "256m"
"""The heap of a broker with one partition per job: 207 MB resident in all."""

# --- the guard -----------------------------------------------------------------------------------
GUARD_CHECK_S: Final = 1.0
"""How often a guard checks whether the process that it follows still exists. A closed pipe shows its
end earlier; this check is for a pipe that another process has inherited."""

IDLE_MINUTES: Final = 60.0
"""Minutes without a client after which a shared broker stops. A live client sends a request every
five minutes, when it renews its metadata of the cluster."""

IDLE_CHECK_S: Final = 30.0
"""How often the guard of a shared broker counts clients."""
