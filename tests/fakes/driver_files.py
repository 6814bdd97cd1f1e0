"""Driver files of tests: that of an endpoint in this process, and those of drivers that are elsewhere or over."""

from __future__ import annotations

from dataclasses import replace

from coordlog.log.local.processes import Process
from coordlog.spark_integration.driver.driver_file import (
    DriverFile,
    driver_files,
    write_driver_file,
)
from coordlog.spark_integration.driver.machine import Machine
from coordlog.spark_integration.wire.certificate import Certificate
from coordlog.spark_integration.wire.token import Token

__all__ = ["ENDED_PROCESS", "file_of", "token_of", "write_file"]

ENDED_PROCESS = Process(pid=2**22 + 1, born="never")
"""A number above the highest that Linux gives."""


def file_of(
    endpoint: str,
    token: Token,
    *,
    job_id: str = "ingest",
    driver_id: str = "d1",
    certificate: Certificate | None = None,
) -> DriverFile:
    """That of a driver of this process that listens at `endpoint`."""
    host, _, port = endpoint.partition("://")[2].rpartition(":")
    return DriverFile.of_this_process(
        job_id=job_id,
        driver_id=driver_id,
        endpoint=endpoint,
        listens=(host.strip("[]"), int(port)),
        token=token,
        certificate=certificate,
    )


def write_file(
    endpoint: str,
    token: Token,
    *,
    job_id: str = "ingest",
    driver_id: str = "d1",
    certificate: Certificate | None = None,
    process: Process | None = None,
    machine: Machine | None = None,
) -> DriverFile:
    """Write that, with another process or machine if they are given."""
    file = file_of(endpoint, token, job_id=job_id, driver_id=driver_id, certificate=certificate)
    file = replace(file, process=process or file.process, machine=machine or file.machine)
    write_driver_file(file)
    return file


def token_of(job_id: str) -> Token:
    """The token of the job's newest driver that has not ended."""
    return next(file.token for file in driver_files(job_id) if file.token is not None)
