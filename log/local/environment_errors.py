"""Errors for Java, jars or a broker that a job needs and this machine lacks.

Each holds the fact and the next step.
"""

from __future__ import annotations

from typing import ClassVar, Final

from coordlog.errors import EnvironmentSetupError

__all__ = [
    "BrokerBusyError",
    "BrokerError",
    "BrokerStartError",
    "ChecksumError",
    "JarsError",
    "JavaError",
]

_BIND_ERROR: Final = "java.net.BindException"


class JavaError(EnvironmentSetupError):
    """This machine has no Java, or one that is too old."""


class JarsError(EnvironmentSetupError):
    """Required jars could not be fetched; with a network, another try may succeed later."""

    retriable: ClassVar[bool] = True


class ChecksumError(JarsError):
    """A jar is not the one that the lock names: never used, and not to be tried again blindly."""

    retriable: ClassVar[bool] = False

    def __init__(self, jar: str, expected: str, actual: str) -> None:
        super().__init__(
            f"{jar} has SHA-256 {actual}, the lock says {expected}: it was damaged on its way, or "
            "the repository serves another file; nothing of it was kept",
            "do the same again; if the result is the same, find out what intercepts the traffic between this machine "
            "and the repository",
        )
        self.args = (jar, expected, actual)
        self.jar, self.expected, self.actual = jar, expected, actual


class BrokerError(EnvironmentSetupError):
    """A broker that runs on this machine could not be started, reached or stopped."""


class BrokerBusyError(BrokerError):
    """Another process starts or stops the same broker, or uses its folder."""

    retriable: ClassVar[bool] = True


class BrokerStartError(BrokerError):
    """A broker did not start.

    Attributes:
        log_path: The broker's log.
        last_lines: The log's last lines.
    """

    def __init__(self, what: str, log_path: str, last_lines: tuple[str, ...]) -> None:
        super().__init__(what, f"its log is {log_path}")
        self.args = (what, log_path, last_lines)
        self.log_path, self.last_lines = log_path, last_lines

    @property
    def lost_a_port(self) -> bool:
        """Whether the broker found another process on one of its ports."""
        return any(_BIND_ERROR in line for line in self.last_lines)

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.last_lines) or " nothing"
        return f"{self.what}; its log is {self.log_path}, and the last that it said is:{lines}"
