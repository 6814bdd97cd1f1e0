"""A request of another process to the driver of a job, found by its file."""

from __future__ import annotations

from collections.abc import Iterable

from coordlog.errors import OptionError, RequestUnansweredError
from coordlog.limits import REQUEST_TIMEOUT_S
from coordlog.runtime.requests import Answer
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.driver.driver_file import DriverFile, driver_files
from coordlog.spark_integration.wire.certificate import (
    CERTIFICATE_VARIABLE,
    Certificate,
    certificate_of_environment,
    is_encrypted,
)
from coordlog.spark_integration.wire.client import CoordinatorClient
from coordlog.spark_integration.wire.token import TOKEN_VARIABLE, Token, token_of_environment

__all__ = ["driver_client", "request_coordinator", "why_over"]


def request_coordinator(
    operator_id: str,
    request: Payload,
    *,
    job_id: str,
    endpoint: str,
    response_types: Iterable[type[Payload]],
    token: Token | None = None,
    certificate: Certificate | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
    command: str = "",
) -> Answer:
    """Send a request to a coordinator in another process, and return its answer once it is in the log.

    Args:
        operator_id: Operator of the coordinator.
        request: The request.
        job_id: The job.
        endpoint: Address of its driver: `endpoint` among the attributes of its `EPOCH_STARTED`.
        response_types: Types of the possible answers.
        token: Token of the driver; by default that in the driver's file, or `COORDLOG_TOKEN`.
        certificate: Certificate of the driver if it is encrypted (`wss:`); by default the file that
            `COORDLOG_CERTIFICATE` names, or the driver's file.
        timeout_s: Seconds for the whole call; a driver answers or fails within its own limit, too.
        command: Name of the command that asks, recorded in the history with user, machine and process; empty for a
            program.

    Raises:
        RequestError: There is no answer; the subclass is the reason.
        OptionError: There is no token, or no certificate for an encrypted endpoint.
        PayloadTypeError: The request's type is not one of the job's, the answer's not one of `response_types`, or one
            of these has another schema in the job.
        TooLargeError: The request is above its limit.
    """
    with driver_client(
        job_id,
        endpoint,
        response_types,
        operator_id=operator_id,
        token=token,
        certificate=certificate,
        command=command,
    ) as client:
        return client.ask(operator_id, request, timeout_s=timeout_s)


def driver_client(
    job_id: str,
    endpoint: str,
    response_types: Iterable[type[Payload]] = (),
    *,
    operator_id: str = "",
    token: Token | None = None,
    certificate: Certificate | None = None,
    command: str = "",
) -> CoordinatorClient:
    """Client of the job's driver at `endpoint`; the caller closes it. Arguments and errors as `request_coordinator`."""
    file = _live_file(job_id, endpoint)
    if token is None and file is None and (why := why_over(job_id, endpoint)) is not None:
        raise RequestUnansweredError(operator_id, f"its driver at {endpoint} is over: {why}")
    token = token or (None if file is None else file.token) or token_of_environment()
    if token is None:
        expected = (
            f"the token of job {job_id}: its driver at {endpoint} has no file on this machine; if that driver "
            "is over, the newest EPOCH_STARTED has another endpoint"
        )
        raise OptionError(TOKEN_VARIABLE, None, expected)
    if is_encrypted(endpoint):
        certificate = certificate or certificate_of_environment()
        if certificate is None and file is not None:
            certificate = file.certificate
        if certificate is None:
            expected = f"the certificate of job {job_id}: its driver has no file on this machine"
            raise OptionError(CERTIFICATE_VARIABLE, None, expected)
    return CoordinatorClient(
        endpoint=endpoint,
        token=token,
        certificate=certificate,
        response_types=response_types,
        command=command,
    )


def why_over(job_id: str, endpoint: str) -> str | None:
    """Proof of this machine that the job's driver at `endpoint` is over; None if there is none."""
    files = [file for file in driver_files(job_id) if file.endpoint == endpoint]
    reasons = [file.why_over for file in files]
    return None if None in reasons or not reasons else reasons[0]


def _live_file(job_id: str, endpoint: str) -> DriverFile | None:
    """Newest file on this machine of a driver of the job at this endpoint without proof of its end."""
    return next(
        (
            file
            for file in driver_files(job_id)
            if file.endpoint == endpoint and file.why_over is None
        ),
        None,
    )
