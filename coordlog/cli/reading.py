"""Reads a job's log from its first record to what stands there now."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Final

import click

from coordlog.cli.log_access import Logs
from coordlog.log.interface import Log, StoredRecord
from coordlog.projections.tables.audit import Audit, AuditRecord, audit, audit_records

__all__ = ["audit_of", "opened", "records_of", "told_of", "whole"]

_PROGRESS_S: Final = 2.0


@contextlib.contextmanager
def records_of(logs: Logs, job_id: str) -> Generator[Iterator[AuditRecord]]:
    """Every record of a job, as `audit_records` gives them; the log is closed with the block."""
    with opened(logs, job_id) as log:
        yield audit_records(log.read(log.start_offset(), log.high_watermark()))


def audit_of(logs: Logs, job_id: str) -> Audit:
    """The tables of a job."""
    with opened(logs, job_id) as log:
        return audit(whole(log))


@contextlib.contextmanager
def opened(logs: Logs, job_id: str) -> Generator[Log]:
    """The log of a job, closed with the block."""
    log = logs.open(job_id)
    try:
        yield log
    finally:
        log.close()


def whole(log: Log) -> Iterator[StoredRecord]:
    """All that stands in the log now; where that takes long, it is told how far it is."""
    end = log.high_watermark()
    progress = told_of(end, "read")
    for one in log.read(log.start_offset(), end):
        progress(one.offset)
        yield one


def told_of(end: int, done: str) -> Callable[[int], None]:
    """To be called with each offset: says how far it is, every two seconds, on the standard error.

    Args:
        end: The high watermark.
        done: What is done with the records, as in `read`.
    """
    last = time.monotonic()

    def progress(offset: int) -> None:
        nonlocal last
        if offset % 256 == 0 and time.monotonic() - last > _PROGRESS_S:
            last = time.monotonic()
            click.echo(f"{done} {offset:,} of {end:,} records", err=True)

    return progress
