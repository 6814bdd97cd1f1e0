"""Whether a driver is alive: the one rule for commands, drivers and checks before a start.

The end of a driver is proved, never assumed: a driver that does not answer may be suspended, or out of
reach from here. Without a proof, a log is deleted or a driver replaced only if the user asks for it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from coordlog.errors import DriverAliveError, DriverUnknownError
from coordlog.limits import TAKE_OVER_PROBE_S
from coordlog.projections.job.state import DriverStop, JobState
from coordlog.spark_integration.driver.driver_file import DriverFile, read_driver_file
from coordlog.spark_integration.driver.machine import Machine
from coordlog.spark_integration.wire.driver_proof import DriverHeard, hear_driver
from coordlog.spark_integration.wire.token import TOKEN_VARIABLE, Token, token_of_environment

__all__ = ["Liveness", "NamedDriver", "SeenDriver", "driver_liveness", "refuse_unless_gone"]


class Liveness(Enum):
    """State of a driver as known from here."""

    LIVES = "lives"
    """The driver answers, and proves its identity by its token."""
    GONE = "gone"
    """There is a proof of its end."""
    UNKNOWN = "unknown"
    """Neither: it may be suspended, or out of reach from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDriver:
    """The driver of the epoch in force, by the job's log."""

    job_id: str
    epoch: int
    driver_id: str
    endpoint: str
    """Address of the driver. Empty for a command, which has none and ends once it has appended."""
    host: str = ""
    """Name of its machine, for messages."""
    pid: int | None = None
    """Number of its process there, for messages."""
    is_over: bool = False
    """Whether the job has ended, by the log; a later command leaves it so."""
    is_stopped: bool = False
    """Whether this driver has stopped in order, by the log."""

    @classmethod
    def of(cls, state: JobState) -> NamedDriver:
        """Driver of a job's state."""
        return cls(
            job_id=state.job_id,
            epoch=state.epoch,
            driver_id=state.driver_id,
            endpoint=state.launch_info.endpoint,
            host=state.launch_info.host,
            pid=state.launch_info.pid,
            is_over=state.is_over,
            is_stopped=state.driver_stop is DriverStop.DONE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDriver:
    """State of a driver, with its evidence."""

    liveness: Liveness
    why: str
    """Evidence as a clause, for messages."""


def driver_liveness(driver: NamedDriver) -> SeenDriver:
    """State of exactly this driver; returns within little more than `TAKE_OVER_PROBE_S`.

    A driver is gone if

    - it has no endpoint, or the log has its end and the driver does not answer any more;
    - its file is on this machine, and records its end, or a process of this machine that has ended, or
      this machine before a restart;
    - its file is on this machine and has no process, because the system reports no start times, and this machine
      refuses a connection to the port on which the driver listened. A process that lives may be a driver that has lost
      its endpoint, and still appends.

    Raises:
        OptionError: `COORDLOG_TOKEN` is set, and is no token.
    """
    if not driver.endpoint:
        return SeenDriver(liveness=Liveness.GONE, why="it was a command, which has ended")
    file = read_driver_file(driver.job_id, driver.driver_id)
    proof = None if file is None else file.why_over
    if proof is not None:
        return SeenDriver(liveness=Liveness.GONE, why=proof)
    heard = hear_driver(
        driver.endpoint if file is None else file.endpoint,
        job_id=driver.job_id,
        driver_id=driver.driver_id,
        tokens=_tokens(file),
        timeout_s=TAKE_OVER_PROBE_S,
    )
    if heard is DriverHeard.DRIVER:
        return SeenDriver(liveness=Liveness.LIVES, why="it answers")
    if driver.is_over or driver.is_stopped:
        return SeenDriver(liveness=Liveness.GONE, why="its log says that it has ended")
    if heard is DriverHeard.NOTHING and file is not None and _is_refused(file):
        return SeenDriver(liveness=Liveness.GONE, why="nothing listens where it did")
    return SeenDriver(liveness=Liveness.UNKNOWN, why=_why_unknown(driver, file, heard))


def refuse_unless_gone(driver: NamedDriver) -> None:
    """Return if the driver is proved to be gone.

    Raises:
        DriverAliveError: The driver is alive.
        DriverUnknownError: The driver may be alive.
        OptionError: As `driver_liveness`.
    """
    seen = driver_liveness(driver)
    if seen.liveness is Liveness.GONE:
        return
    named = (driver.job_id, driver.epoch, driver.driver_id, driver.endpoint)
    if seen.liveness is Liveness.LIVES:
        raise DriverAliveError(*named)
    raise DriverUnknownError(*named, seen.why)


def _tokens(file: DriverFile | None) -> Sequence[Token]:
    tokens = (None if file is None else file.token, token_of_environment())
    return [token for token in tokens if token is not None]


def _is_refused(file: DriverFile) -> bool:
    """Whether the driver's process is not known, and this machine refuses connections to its port.

    A suspended driver still listens.
    """
    is_known = file.is_of_this_user and file.machine.is_same_run(Machine.here())
    if not is_known or file.process is not None or not _is_own_address(file.listens[0]):
        return False
    try:
        socket.create_connection(file.listens, timeout=TAKE_OVER_PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        pass
    return False


def _is_own_address(address: str) -> bool:
    """Whether this machine has the address now: an address of a VPN or a lease may have moved to another machine."""
    try:
        family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as bound:
            bound.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True


def _why_unknown(driver: NamedDriver, file: DriverFile | None, heard: DriverHeard) -> str:
    here = Machine.here()
    if heard is DriverHeard.UNPROVED:
        return (
            f"something answers there as its driver {driver.driver_id}, and no token that is here "
            f"proves that it is ({TOKEN_VARIABLE}, or the driver's file)"
        )
    if file is None:
        elsewhere = f"; it ran on {driver.host}, this is {here.host}" if driver.host else ""
        return (
            f"nothing answers there, and its file jobs/{driver.job_id}/"
            f"{driver.driver_id}.json is not in COORDLOG_HOME here, or is damaged or of another version"
            f"{elsewhere}"
        )
    if not file.is_of_this_user:
        return (
            f"nothing answers there, and its file jobs/{driver.job_id}/{driver.driver_id}.json "
            "in COORDLOG_HOME is another user's, which proves nothing"
        )
    if not file.machine.is_same_run(here):
        return (
            f"nothing answers there; it ran on {file.machine.host}, and from "
            f"{here.host} nothing proves that it has ended there"
        )
    process = "a process" if file.process is None else f"process {file.process.pid}"
    return (
        f"{process} of this machine has not ended, and does not answer there within "
        f"{TAKE_OVER_PROBE_S:g} s: it may stand still"
    )
