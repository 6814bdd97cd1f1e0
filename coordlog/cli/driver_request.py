"""Requests of commands to a job's driver, which records them with the names of the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import click

from coordlog.cli.living import DriverFold
from coordlog.errors import (
    CommandError,
    NoDriverError,
    RecordError,
    RequestRefusedError,
    RequestUnansweredError,
)
from coordlog.history import History
from coordlog.projections.job.state import JobState
from coordlog.runtime.requests import Answer
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.driver.liveness import Liveness, NamedDriver, driver_liveness
from coordlog.spark_integration.driver.requests import request_coordinator, why_over
from coordlog.spark_integration.wire.token import TOKEN_VARIABLE

__all__ = [
    "ask_driver",
    "command_name",
    "driver_of",
    "live_driver",
    "request_driver",
    "timeout_option",
]


_START: Final = "start the job, then repeat the command"
_START_IF_FAILED: Final = (
    "if it failed, start it, then repeat the command; if it finished, a driver runs only while new input is read "
    "(`--again`)"
)


def timeout_option(
    default_s: float, summary: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option `--timeout` of a command that waits, as its parameter `timeout_s`."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        default=default_s,
        show_default=True,
        metavar="SECONDS",
        help=summary,
    )


def command_name() -> str:
    """Name of the command that runs, for the history."""
    return click.get_current_context().info_name or ""


def ask_driver(
    job: str,
    state: JobState,
    request: Payload,
    response_type: type[Payload],
    *,
    refusal: type[CommandError],
    next_step: str,
) -> Answer:
    """Send a request to the driver itself, not to a coordinator. Returns the answer.

    Raises:
        CommandError: The driver refuses the request.
        RequestError: There is no answer.
    """
    try:
        return request_coordinator(
            "",
            request,
            job_id=job,
            endpoint=state.launch_info.endpoint,
            response_types=(response_type,),
            command=command_name(),
        )
    except RequestRefusedError as error:
        raise refusal(job, error.reason, next_step) from error


def driver_of(history: History, job: str) -> NamedDriver | None:
    """The driver of the epoch in force; reads the log from its newest snapshot on.

    Raises:
        CommandError: The log has no record that counts, is a copy, or does not show which records count.
    """
    fold = DriverFold(job, history.log.identity)
    try:
        for entry in history.records_from(history.place_before(lambda _stored: True)):
            fold.apply(entry)
    except RecordError as error:
        problem = f"its log does not show which driver is in force: {error}"
        raise CommandError(job, problem, "`coordlog doctor` looks for the fault") from error
    return fold.driver


def live_driver(history: History, job: str) -> NamedDriver:
    """As `driver_of`, for a driver that answers and proves its identity.

    Raises:
        NoDriverError: No driver does; the message has the evidence and the next step.
    """
    driver = driver_of(history, job)
    if driver is None:
        raise NoDriverError(job, "no driver has opened its log", _START)
    result = driver_liveness(driver)
    if result.liveness is Liveness.LIVES:
        return driver
    where = f"driver {driver.driver_id} of epoch {driver.epoch}"
    if result.liveness is Liveness.GONE:
        has = "has stopped" if driver.is_stopped else "has ended" if driver.is_over else "is gone"
        problem = f"no driver of it runs: its {where} {has} ({result.why})"
        raise NoDriverError(job, problem, _START_IF_FAILED if driver.is_over else _START)
    raise NoDriverError(
        job,
        f"its {where} at {driver.endpoint} cannot be reached from here: {result.why}",
        f"run this where the driver runs, or set {TOKEN_VARIABLE} to its token",
    )


def request_driver(
    driver: NamedDriver, request: Payload, response_type: type[Payload], *, next_step: str
) -> Answer:
    """Send a request to a live driver, not to a coordinator. Returns the answer.

    Raises:
        CommandError: The driver refuses the request.
        NoDriverError: The driver has ended meanwhile.
        RequestError: There is no answer for another reason.
    """
    job = driver.job_id
    try:
        return request_coordinator(
            "",
            request,
            job_id=job,
            endpoint=driver.endpoint,
            response_types=(response_type,),
            command=command_name(),
        )
    except RequestRefusedError as error:
        raise CommandError(job, error.reason, next_step) from error
    except RequestUnansweredError as error:
        why = why_over(job, driver.endpoint)
        problem = f"its driver of epoch {driver.epoch} has not answered: {error.reason if why is None else why}"
        command = command_name()
        step = f"if `coordlog history {job} --kind REQUEST` has it, it was done; else repeat `coordlog {command}`"
        raise NoDriverError(job, problem, step) from error
