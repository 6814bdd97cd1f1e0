"""Reads a job's log from its first record to its current end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Final

import click

from coordlog.cli.log_access import Logs
from coordlog.history import History
from coordlog.log.interface import Log
from coordlog.projections.tables.audit import Audit, AuditRecord, audit

__all__ = ["audit_of", "note_beginning", "opened", "progress_printer", "records_of", "whole"]

_PROGRESS_S: Final = 2.0


@contextlib.contextmanager
def records_of(logs: Logs, job_id: str) -> Generator[Iterator[AuditRecord]]:
    """Every record of a job, as `History.records` returns them; the log is closed with the block."""
    with opened(logs, job_id) as log:
        yield History(log).records()


def audit_of(logs: Logs, job_id: str) -> Audit:
    """The tables of a job."""
    with opened(logs, job_id) as log:
        note_beginning(log)
        return audit(whole(log).stored())


@contextlib.contextmanager
def opened(logs: Logs, job_id: str) -> Generator[Log]:
    """The log of a job, closed with the block."""
    log = logs.open(job_id)
    try:
        yield log
    finally:
        log.close()


def whole(log: Log, done: str = "read") -> History:
    """The history in a log. Long readings print their progress, as in `read 100 of 900 records`."""
    return History(log, progress_printer(log.high_watermark(), done))


def note_beginning(log: Log) -> None:
    """Print on the standard error that a table of a pruned log is partial."""
    start = log.start_offset()
    if start:
        click.echo(
            f"the log begins at offset {start}: rows and counts of before are in the file that the prune has "
            "archived, and those that were in progress are shown in part",
            err=True,
        )


def progress_printer(end: int, done: str) -> Callable[[int], None]:
    """Function to be called with each offset; prints progress on the standard error every two seconds.

    Args:
        end: The high watermark.
        done: Participle for the message, as in `read`.
    """
    last = time.monotonic()

    def progress(offset: int) -> None:
        nonlocal last
        if offset % 256 == 0 and time.monotonic() - last > _PROGRESS_S:
            last = time.monotonic()
            click.echo(f"{done} {offset:,} of {end:,} records", err=True)

    return progress
