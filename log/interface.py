"""The interface of a log: the port that `MemoryLog` and `KafkaLog` implement.

A log is one partition. It stores records without interpreting them: a key, a value and one
packed header. `coordlog.schemas.validity` decides which of them count, never a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from coordlog.schemas.codec import decode_record
from coordlog.schemas.header import Header, decode_header
from coordlog.schemas.record import Record

__all__ = ["Log", "LogIdentity", "LogWriter", "PrunableLog", "StoredRecord", "UnstoredRecord"]


class UnstoredRecord(NamedTuple):
    """A record to be appended to a log."""

    key: bytes
    value: bytes
    header: bytes
    """`coordlog.schemas.header.encode_header`'s bytes."""
    timestamp_us: int
    """Microseconds since 1970, UTC; a log keeps at least milliseconds of it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of key, value and header."""
        return len(self.key) + len(self.value) + len(self.header)


class StoredRecord(NamedTuple):
    """A record as a log returns it."""

    offset: int
    key: bytes | None
    value: bytes | None
    header_bytes: bytes | None
    """None if the record has no header of ours; such a record is void."""
    timestamp_ms: int

    @property
    def header(self) -> Header | None:
        """The decoded header; None if it is none of ours."""
        return decode_header(self.header_bytes)

    def record(self, header: Header | None = None) -> Record:
        """The decoded record; only for a record that counts. `header` is its header, if that is decoded already.

        Raises:
            RecordError: As `decode_record`.
        """
        return decode_record(self.offset, self.value, self.header_bytes, header=header)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """Identity of a log, so that another log of the same name is noticed (clause E9)."""

    cluster_id: str
    topic_id: str
    """Differs when a topic has been deleted and created again."""
    name: str
    """For messages, as in `ingest.log at 127.0.0.1:9092`."""
    topic: str = field(default="", compare=False)
    """Topic's name within the cluster; of two ids with one name the older topic is gone. Empty if unknown."""


class LogWriter(Protocol):
    """One producer of one log.

    Used by one thread. Discarded after its first failure: `Log.writer()` returns a new one.
    """

    def append(self, records: Sequence[UnstoredRecord], *, timeout_s: float) -> Sequence[int]:
        """Append `records` in order; return the offset of each of them, in the same order.

        On success each record is stored at the returned offset, and on disk or on several machines as
        the log's settings require. Other writers' records may lie between. Whether the records count
        is not decided here.

        Raises:
            AppendRefusedError: The log will never take these records; none of them, or some, may
                have been stored.
            LogUnavailableError: The outcome is unknown: each record may be stored, may be stored
                later, or never, in any order. This writer must not be used again.
        """
        ...

    def close(self, *, timeout_s: float) -> None:
        """Abandon appends in flight (their outcome stays unknown) and free all resources; never raise."""
        ...


class Log(Protocol):
    """One partition of records.

    Its methods may be called from any thread; each wait has a bound.
    """

    @property
    def identity(self) -> LogIdentity:
        """The log's identity. Raises LogUnavailableError or TopicError."""
        ...

    def start_offset(self) -> int:
        """Offset of the first record that still exists; the high watermark if none does."""
        ...

    def high_watermark(self) -> int:
        """The offset after the last acknowledged record, exclusive.

        Never decreases while the log loses no record.
        """
        ...

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """Yield every record with `from_offset` <= offset < `to_offset`, in offset order.

        Offsets need not be dense. A record below the high watermark never changes once it was read.

        Args:
            from_offset: Inclusive.
            to_offset: Exclusive, at most the high watermark.
            stall_s: No progress for so long is an error; default `limits.READ_STALL_S`.

        Raises:
            OutOfRangeError: `from_offset` is below `start_offset`, or `to_offset` above the high
                watermark.
            LogUnavailableError: No record came for `stall_s`.
        """
        ...

    def writer(self) -> LogWriter:
        """A new writer, with nothing in flight."""
        ...

    def close(self) -> None:
        """Free all resources; the log itself stays. Never raises; may be called twice."""
        ...


class PrunableLog(Log, Protocol):
    """A log whose first records can be removed."""

    def delete_below(self, offset: int) -> None:
        """Remove every record below `offset`, for good; `start_offset` is `offset` then.

        Raises:
            LogUnavailableError: Whether the records are gone is unknown.
            OutOfRangeError: `offset` is above the high watermark.
            TopicError: The log does not allow this user to do it.
        """
        ...
