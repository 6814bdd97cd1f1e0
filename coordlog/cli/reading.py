"""Reads a job's log from its first record to what stands there now."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

from coordlog.log.port import Log
from coordlog.projections.audit import Audit, AuditRecord, audit, audit_records

from .logs import Logs

__all__ = ["audit_of", "opened", "records_of"]


@contextlib.contextmanager
def records_of(logs: Logs, job_id: str) -> Generator[Iterator[AuditRecord]]:
    """Every record of a job, as `audit_records` gives them; the log is closed with the block."""
    with opened(logs, job_id) as log:
        yield audit_records(log.read(log.start_offset(), log.high_watermark()))


def audit_of(logs: Logs, job_id: str) -> Audit:
    """The tables of a job."""
    with opened(logs, job_id) as log:
        return audit(log.read(log.start_offset(), log.high_watermark()))


@contextlib.contextmanager
def opened(logs: Logs, job_id: str) -> Generator[Log]:
    """The log of a job, closed with the block."""
    log = logs.open(job_id)
    try:
        yield log
    finally:
        log.close()
