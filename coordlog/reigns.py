"""A reign that a command begins for records of its own, where no driver lives: there is no other way into a log."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from importlib import metadata

from coordlog.errors import RecordError
from coordlog.log.appender import Appender, Patience, take_over
from coordlog.log.port import Log, UnstoredRecord
from coordlog.projections.audit import counting_at
from coordlog.projections.job import JobProjection
from coordlog.projections.snapshots import DecodedSnapshot, SnapshotUnusableError, state_of
from coordlog.restore import Rebuild
from coordlog.runtime import to_unstored
from coordlog.schemas.builtin import BUILTIN_PAYLOADS
from coordlog.schemas.codec import decode_record
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.record import Kind, Record
from coordlog.snapshots import FoundSnapshot, SnapshotSearch

__all__ = ["PLAIN_TYPES", "begin_reign", "plain_rebuild"]

PLAIN_TYPES = PayloadTypes(BUILTIN_PAYLOADS)
"""What a command knows of a job's types."""


def plain_rebuild(log: Log) -> Rebuild:
    """A fold of a whole log without the job's operators: their projections are left out.

    Raises:
        RecordError: A record that counts cannot be read; or the log's first records are gone, and it does not begin
            with a `SNAPSHOT`, or with one that is damaged.
        LogError: The log.
    """
    made = Rebuild(JobProjection(PLAIN_TYPES, {}), PLAIN_TYPES, frozenset())
    start, end = log.start_offset(), log.high_watermark()
    if 0 < start < end:
        first = next(iter(log.read(start, end)))
        counting, record = (
            counting_at(first),
            decode_record(first.offset, first.value, first.header_bytes),
        )
        try:
            decoded = DecodedSnapshot(state=state_of(record), checkpoint_offset=None)
        except SnapshotUnusableError as error:
            raise RecordError(first.offset, record.kind.value, str(error)) from error
        found = FoundSnapshot(offset=first.offset, counting=counting, decoded=decoded)
        made.begin_at(SnapshotSearch(found=found))
    made.catch_up(log, end)
    return made


def begin_reign(
    log: Log,
    made: Rebuild,
    *,
    command: str,
    attributes: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Appender:
    """Take over from a driver that is gone; what the job is stays as in the reign before, and nobody listens.

    The caller has seen that no driver lives. The next driver takes over from this reign as from any other.

    Args:
        log: The job's.
        made: Its fold, to the high watermark; it goes on to this reign's `EPOCH_STARTED`.
        command: For the record.
        attributes: More of them; they go before what the reign before has said.
        patience: Default: the limits, and the machine's clock.
        now_us: The time, microseconds since 1970, UTC.

    Raises:
        FencedError: Another driver was first.
        LogError: The log.
    """
    driver_id = secrets.token_hex(8)

    def epoch_started(epoch: int) -> UnstoredRecord:
        state = made.state
        return to_unstored(
            Record(
                epoch=epoch,
                driver_id=driver_id,
                sequence=None,
                kind=Kind.EPOCH_STARTED,
                timestamp_us=max(now_us(), state.timestamp_us),
                job_id=state.job_id,
                attributes={
                    **_of_the_job(state.launch),
                    "endpoint": "",
                    "host": socket.gethostname(),
                    "pid": str(os.getpid()),
                    "coordlog_version": metadata.version("coordlog"),
                    "python_version": platform.python_version(),
                    "take_over": "false",
                    "command": command,
                    **(attributes or {}),
                },
            ),
            snapshot_offset=made.newest_snapshot.offset,
        )

    appender = take_over(
        log,
        job_id=made.state.job_id,
        place=made.place,
        make_epoch_started=epoch_started,
        reading=made.feed,
        patience=patience,
    )
    made.catch_up(log, appender.end_offset)
    assert made.state.driver_id == driver_id, "the epoch in force is this one"
    return appender


def _of_the_job(launch: Mapping[str, str]) -> dict[str, str]:
    """What a reign has said of the job, without what it did of its own."""
    return {name: launch[name] for name in sorted(launch) if not name.startswith("adopted_")}
