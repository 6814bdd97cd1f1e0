"""The records that the benchmarks append: real envelopes of about 200 bytes, encoded beforehand."""

from __future__ import annotations

from coordlog.log.interface import UnstoredRecord
from coordlog.schemas.codec import encode_record, header_of
from coordlog.schemas.header import encode_header
from coordlog.schemas.record import Kind, Record, record_key

__all__ = ["JOB", "encoded", "encoded_record", "epoch_started"]

JOB = "bench"
_TIME_US = 1_700_000_000_000_000
_PAYLOAD = b"x" * 120


def encoded_record(record: Record) -> UnstoredRecord:
    """The record as a driver hands it to a log."""
    return UnstoredRecord(
        key=record_key(record).encode(),
        value=encode_record(record),
        header=encode_header(header_of(record)),
        timestamp_us=record.timestamp_us,
    )


def epoch_started(epoch: int) -> UnstoredRecord:
    """The record that a driver takes over with."""
    return encoded_record(
        Record(
            epoch=epoch,
            driver_id="benchmark",
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=_TIME_US,
            job_id=JOB,
        )
    )


def encoded(epoch: int, first: int, count: int) -> list[UnstoredRecord]:
    """Turns of one record each, with sequences from `first` on."""
    return [
        encoded_record(
            Record(
                epoch=epoch,
                driver_id="benchmark",
                sequence=sequence,
                kind=Kind.EVENT_TO_COORDINATOR,
                timestamp_us=_TIME_US + sequence,
                job_id=JOB,
                operator_id="source",
                subtask=sequence % 64,
                attempt_number=0,
                event_id=sequence,
                payload_type="benchmark.event@1",
                payload=_PAYLOAD,
            )
        )
        for sequence in range(first, first + count)
    ]
