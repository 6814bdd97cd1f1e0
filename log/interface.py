"""What everything else asks of a log: the port that `MemoryLog` and `KafkaLog` implement.

A log is one partition. It carries records without knowing what they mean: a key, a value and one
packed header. What counts among them is decided by `coordlog.schemas.validity`, never by a log.
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
    """A record as it is handed to a log."""

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
    """A record as a log gives it back."""

    offset: int
    key: bytes | None
    value: bytes | None
    header_bytes: bytes | None
    """None where the record has no header of ours; such a record is void."""
    timestamp_ms: int

    @property
    def header(self) -> Header | None:
        """The decoded header; None where it is none of ours."""
        return decode_header(self.header_bytes)

    def record(self, header: Header | None = None) -> Record:
        """The record, decoded; to be asked only for of one that counts. `header` is its own, where that is decoded.

        Raises:
            RecordError: As `decode_record`.
        """
        return decode_record(self.offset, self.value, self.header_bytes, header=header)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """Which log this is, so that another one of the same name is noticed (clause E9)."""

    cluster_id: str
    topic_id: str
    """Differs when a topic has been deleted and created again."""
    name: str
    """For messages, as in `ingest.log at 127.0.0.1:9092`."""
    topic: str = field(default="", compare=False)
    """Its name within the cluster: of two ids of one name the older topic is gone. Empty: not known."""


class LogWriter(Protocol):
    """One producer of one log.

    Used by one thread. Thrown away after its first failure: `Log.writer()` gives a new one.
    """

    def append(self, records: Sequence[UnstoredRecord], *, timeout_s: float) -> Sequence[int]:
        """Append `records` in order; return the offset of every one of them, in the same order.

        On success each record is stored at the offset given, and on disk or on several machines as
        the log's settings say. Other writers' records may stand between. Nothing is said about what
        counts.

        Raises:
            AppendRefusedError: The log will never take these records; none of them, or some, may
                have been stored.
            LogUnavailableError: The outcome is unknown: each record may be stored, may be stored
                later, or never, in any order. This writer must not be used again.
        """
        ...

    def close(self, *, timeout_s: float) -> None:
        """Give up what is in flight (its outcome stays unknown), free what is held; never raise."""
        ...


class Log(Protocol):
    """One partition of records.

    Its methods may be called from any thread; each wait has a bound.
    """

    @property
    def identity(self) -> LogIdentity:
        """Which log this is. Raises LogUnavailableError or TopicError."""
        ...

    def start_offset(self) -> int:
        """The offset of the first record that is still there.

        Equal to the high watermark where there is none.
        """
        ...

    def high_watermark(self) -> int:
        """The offset after the last acknowledged record, exclusive.

        Never goes down while the log loses nothing.
        """
        ...

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """Yield every record with `from_offset` <= offset < `to_offset`, in offset order.

        Offsets need not be dense. A record below the high watermark that was read once is read
        alike for ever.

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
        """Free what is held; the log itself stays. Never raises; may be called twice."""
        ...


class PrunableLog(Log, Protocol):
    """A log whose first records can be removed."""

    def delete_below(self, offset: int) -> None:
        """Remove every record below `offset`, for good; `start_offset` is `offset` then.

        Raises:
            LogUnavailableError: It is not known whether they are gone.
            OutOfRangeError: `offset` is above the high watermark.
            TopicError: The log does not let this user do it.
        """
        ...
