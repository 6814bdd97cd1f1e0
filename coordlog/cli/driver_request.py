"""Requests of commands to a job's driver."""

from __future__ import annotations

import click

from coordlog.errors import CommandError, RequestRefusedError
from coordlog.projections.job.state import JobState
from coordlog.runtime.requests import Answer
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.driver.requests import request_coordinator

__all__ = ["ask_driver"]


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
            command=click.get_current_context().info_name or "",
        )
    except RequestRefusedError as error:
        raise refusal(job, error.reason, next_step) from error
