"""Whether a driver lives: the one answer that commands, drivers and checks before a start go by.

That a driver is gone is proved, never assumed: a driver that does not answer may stand still, or be
out of reach from here. Nothing but a proof lets a log be deleted, or a place be taken, without the
user's word.
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
    """What is known of a driver from here."""

    LIVES = "lives"
    """It answers, and proves by its token that it is this driver."""
    GONE = "gone"
    """There is a proof that it is over."""
    UNKNOWN = "unknown"
    """Neither: it may stand still, or run where it cannot be reached from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDriver:
    """The driver of the epoch in force, as its log names it."""

    job_id: str
    epoch: int
    driver_id: str
    endpoint: str
    """Empty if it has none: commands have none, and are over once they have appended."""
    host: str = ""
    """Name of its machine, for messages."""
    is_over: bool = False
    """Whether the log says that the job has ended in this epoch."""
    is_stopped: bool = False
    """Whether the log says that this driver has stopped in order."""

    @classmethod
    def of(cls, state: JobState) -> NamedDriver:
        """That of a job's state."""
        return cls(
            job_id=state.job_id,
            epoch=state.epoch,
            driver_id=state.driver_id,
            endpoint=state.launch.get("endpoint", ""),
            host=state.launch.get("host", ""),
            is_over=state.is_over,
            is_stopped=state.driver_stop is DriverStop.DONE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDriver:
    """What is known of a driver, and by what."""

    liveness: Liveness
    why: str
    """A clause, for messages."""


def driver_liveness(driver: NamedDriver) -> SeenDriver:
    """What is known of this very driver, within `TAKE_OVER_PROBE_S` and a moment.

    Gone is a driver

    - that has no endpoint, or that the log says is over, unless it still answers;
    - whose own file is here and says that it has ended, or names a process of this machine that
      has ended, or this machine before it was restarted;
    - whose own file is here, if this machine refuses a connection where it listened.

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
        DriverAliveError: It lives.
        DriverUnknownError: It may live.
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
    return [one for one in tokens if one is not None]


def _is_refused(file: DriverFile) -> bool:
    """Whether this machine itself says that nothing listens there: a driver that stands still still listens."""
    is_known = file.is_of_this_user and file.machine.is_same_run(Machine.here())
    if not is_known or not _is_own_address(file.listens[0]):
        return False
    try:
        socket.create_connection(file.listens, timeout=TAKE_OVER_PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        pass
    return False


def _is_own_address(address: str) -> bool:
    """Whether this machine has the address now: one of a VPN or a lease may be another machine's by now."""
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
            f"{driver.driver_id}.json is not in COORDLOG_HOME here, or is none that this version reads"
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
