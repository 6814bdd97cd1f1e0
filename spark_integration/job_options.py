"""Groups of options of a `Job`. Each option has the same name on the command line and in `coordlog.toml`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Final, Literal

from coordlog.errors import OptionError
from coordlog.limits import (
    ACK_TIMEOUT_S,
    CALL_TIMEOUT_S,
    CALLBACK_TIMEOUT_S,
    CHECKPOINT_TIMEOUT_S,
    LOG_TIMEOUT_S,
    REGISTRATION_TIMEOUT_S,
    RESTART_WINDOW_S,
    RESTARTS_MAX,
    STOP_TIMEOUT_S,
    VERDICT_STUCK_INTERVALS,
)
from coordlog.option_types import check_all, check_range, check_types
from coordlog.restore.rebuild import Restored
from coordlog.schemas.record import Record
from coordlog.telemetry.opening import Otel

__all__ = ["Callbacks", "RestartPolicy", "Start", "Telemetry", "Timeouts", "check_duration"]

_LOWEST_S: Final = {
    "checkpoint_interval_s": 0.01,
    "checkpoint_timeout_s": 0.1,
    "stop_timeout_s": 0.0,
}
"""Lowest values of durations, if not one second."""
_HIGHEST_S: Final = 86_400
_ADDRESS: Final = re.compile(r"[A-Za-z0-9._:-]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Failures that a job survives.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options are wrong.
    """

    restarts_max: int = RESTARTS_MAX
    """Number of local and global failovers within the window; one more fails the job."""
    restart_window_s: float = RESTART_WINDOW_S
    """Length of the window, in seconds."""

    def __post_init__(self) -> None:
        _check_types(self)
        check_all(
            partial(check_range, "restarts_max", self.restarts_max, 0, 1000),
            partial(check_duration, "restart_window_s", self.restart_window_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Longest durations of a job's steps, in seconds.

    Raises:
        OptionError: A duration has a wrong type or is out of range.
        OptionsError: Several durations are wrong.
    """

    checkpoint_timeout_s: float = CHECKPOINT_TIMEOUT_S
    """Time after which an incomplete checkpoint is aborted."""
    registration_timeout_s: float = REGISTRATION_TIMEOUT_S
    """Longest time of a subtask without an attempt."""
    call_timeout_s: float = CALL_TIMEOUT_S
    """Longest time of one call of the chain in a task, for example a batch in the transform."""
    ack_timeout_s: float = ACK_TIMEOUT_S
    """Longest time from the delivery of an event to its ack.

    Then an attempt that is in no call of its chain, and has handled all earlier events, is failed.
    """
    callback_timeout_s: float = CALLBACK_TIMEOUT_S
    """Longest time of one callback of a coordinator before the driver ends."""
    log_timeout_s: float = LOG_TIMEOUT_S
    """Longest wait of the job for its log before the job ends."""
    stop_timeout_s: float = STOP_TIMEOUT_S
    """Longest wait of a stop for its checkpoint before it stops without one."""

    def __post_init__(self) -> None:
        _check_types(self)
        names = (field.name for field in fields(self))
        check_all(*(partial(check_duration, name, getattr(self, name)) for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """State with which one start of a job begins.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options are wrong.
    """

    restore: Literal["rollback", "resume"] | None = None
    """Kind of restore; None: rollback in streaming, resume in batch."""
    from_checkpoint: int | None = None
    """Completed checkpoint to go back to, as a new branch, in streaming.

    Refused if a later checkpoint has been committed, unless the sink writes elsewhere now.
    """
    allow_non_restored_state: Sequence[str] = ()
    """Operators that the job no longer has and whose state may be dropped; else the restore is refused."""
    again: bool = False
    """Open a finished job again: rows that its source has since are read, committed output stays."""

    def __post_init__(self) -> None:
        _check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Functions that a job calls while it runs.

    Raises:
        OptionError: One is not a function.
        OptionsError: Several are not.
    """

    on_restored: Callable[[Restored], None] | None = None
    """Called with the way in which the job is restored, before it runs."""
    on_progress: Callable[[int, int], None] | None = None
    """Called while the history is folded: with the offset reached, and the high watermark."""
    on_waiting: Callable[[float, str], None] | None = None
    """Called while the log does not answer: with the seconds waited, and the last error."""
    on_released: Callable[[Sequence[Record]], None] | None = None
    """Called on the mailbox with each turn's records once they are in force; must not block."""

    def __post_init__(self) -> None:
        _check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Reports of a job to systems outside; by default none. Each needs an extra, and none can fail or delay the job.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options are wrong.
    """

    metrics_port: int | None = None
    """Port of `/metrics` (Prometheus) and `/healthz`, 0 for any free one; None: closed. Extra `prometheus`."""
    metrics_host: str = "127.0.0.1"
    """Address on which that port is open, without a password: `0.0.0.0` for all."""
    stuck_intervals: float = VERDICT_STUCK_INTERVALS
    """Checkpoint intervals without a checkpoint from which `/healthz` reports the job as stuck; never below 60 s."""
    otel: Otel = "off"
    """Metrics and traces by OpenTelemetry. `"global"`: through the providers that this process has set; `"otlp"`: by
    OTLP over HTTP, as the variables `OTEL_…` configure it. Extra `otel`."""
    openlineage: bool = False
    """Events of runs by OpenLineage's client, as its own file and variables configure it. Extra `openlineage`."""

    def __post_init__(self) -> None:
        _check_types(self)
        check_all(
            partial(check_range, "metrics_port", self.metrics_port, 0, 65_535),
            partial(_check_address, "metrics_host", self.metrics_host),
            partial(check_range, "stuck_intervals", self.stuck_intervals, 1, 10_000),
        )


def _check_address(option: str, host: str) -> None:
    if not _ADDRESS.fullmatch(host):
        raise OptionError(option, host, "an address or a name, without a port")


def check_duration(option: str, seconds: float) -> None:
    """Refuse a duration of a job that is out of range.

    Raises:
        OptionError: With the value and both bounds.
    """
    check_range(option, seconds, _LOWEST_S.get(option, 1), _HIGHEST_S, unit=" seconds")


def _check_types(options: RestartPolicy | Timeouts | Start | Telemetry | Callbacks) -> None:
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    check_types(type(options).__init__, values)
