"""Reads a range of offsets through one consumer without a group."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kafka import KafkaConsumer, errors
from kafka.structs import TopicPartition

from coordlog.errors import OutOfRangeError, RecordError
from coordlog.log.interface import StoredRecord
from coordlog.log.kafka.client import (
    Connection,
    in_background,
    made,
    may_pass,
    within,
)
from coordlog.schemas.header import HEADER_NAME

__all__ = ["IdleConsumer", "read_range"]

_POLL_S: Final = 0.2
_POLL_RECORDS: Final = 5_000
_IDLE_S: Final = 5.0
"""Time after which an idle consumer is not used again: its connection may be dead without an error."""

_GONE: Final = (
    errors.OffsetOutOfRangeError,
    errors.LogTruncationError,  # pyright: ignore[reportAttributeAccessIssue]  # its stubs are older
)
"""Errors if records were removed after the reading began."""

CONSUMER_OPTIONS: Final[dict[str, Any]] = {
    "group_id": None,
    "enable_auto_commit": False,
    # No other offset will do: 'earliest' would silently begin again at the start.
    "auto_offset_reset": "none",
    "isolation_level": "read_uncommitted",
    "allow_auto_create_topics": False,
    "max_partition_fetch_bytes": 4 * 1024 * 1024,
    "max_poll_records": _POLL_RECORDS,
    "fetch_max_wait_ms": 100,
    "metrics_enabled": False,
}


class IdleConsumer:
    """The consumer of a log's last read, for the next one: to connect takes longer than to read few records.

    Any thread. Without a lock: the garbage collector may end a read at any place.
    """

    def __init__(self) -> None:
        self._idle: deque[tuple[float, Any]] = deque()

    def take(self) -> Any:  # noqa: ANN401, the client has no types
        """The consumer, which is no longer idle; None if there is none."""
        try:
            since, consumer = self._idle.pop()
        except IndexError:
            return None
        if time.monotonic() - since < _IDLE_S:
            return consumer
        in_background(consumer.close)
        return None

    def put(self, consumer: Any) -> None:  # noqa: ANN401
        """Keep this consumer, in place of another one."""
        self.free()
        self._idle.append((time.monotonic(), consumer))

    def free(self) -> None:
        """Free the consumer, without waiting for it."""
        with contextlib.suppress(IndexError):
            in_background(self._idle.pop()[1].close)


def read_range(
    connection: Connection,
    idle: IdleConsumer,
    from_offset: int,
    to_offset: int,
    stall_s: float,
    limits: Callable[[], tuple[int, int]],
) -> Iterator[StoredRecord]:
    """Every record with `from_offset` <= offset < `to_offset`, in order.

    Args:
        connection: To the topic.
        idle: Consumer of an earlier read of the topic.
        from_offset: Inclusive.
        to_offset: Exclusive.
        stall_s: So long without a record is an error.
        limits: Returns the log's start and high watermark, for an error's message.

    Raises:
        LogUnavailableError: No record came for `stall_s`.
        RecordError: The broker's data is damaged there.
        OutOfRangeError: Records of the range have been removed since the start.
        TopicError: The topic is gone.
        AccessError: The broker refuses the user, or the user may not read the topic.
    """
    if from_offset == to_offset:
        return
    reading = _Reading(connection, idle, from_offset, stall_s)
    following = from_offset
    try:
        while reading.position < to_offset:
            for record in reading.poll(to_offset - reading.position):
                _check_offset(record.offset, following, to_offset, limits)
                if record.offset >= to_offset:
                    return
                following = record.offset + 1
                yield _stored(record)
    except _GONE as error:
        start, end = limits()
        raise OutOfRangeError(connection.name, reading.position, start, end) from error
    finally:
        reading.end()


def _check_offset(
    offset: int, following: int, to_offset: int, limits: Callable[[], tuple[int, int]]
) -> None:
    """Offsets rise and are below the high watermark: no checksum of Kafka's holds a batch's own offset.

    A gap is no damage: the marker of another producer's transaction has that offset.
    """
    is_beyond = offset >= to_offset and offset > following and offset >= limits()[1]
    if offset < following or is_beyond:
        raise _damaged(following, f"the next record there calls itself {offset}")


def _damaged(offset: int, what: str) -> RecordError:
    return RecordError(
        offset,
        "",
        f"the broker's data is damaged: {what}; restore the topic from a copy, or from another "
        "replica: nothing behind it can be trusted",
    )


class _Reading:
    """One consumer at a time; another replaces it when it fails."""

    def __init__(
        self, connection: Connection, idle: IdleConsumer, from_offset: int, stall_s: float
    ) -> None:
        self._connection, self._idle = connection, idle
        self._partition = TopicPartition(connection.topic, 0)
        self._stall_s = stall_s
        self._consumer: Any = None
        self._heard_at = time.monotonic()
        self.position = from_offset
        """Offset below which every record has been returned; control records of others' transactions
        move it too."""

    def poll(self, most: int) -> Sequence[Any]:
        """At most so many of the next records, perhaps none yet, after a fraction of a second at most.

        The client unpacks no others: a fetch may have thousands behind the one record that is needed.
        """
        error: object = f"nothing from offset {self.position} on"
        try:
            if self._consumer is None:
                self._consumer = self._idle.take() or self._connect()
                self._consumer.seek(self._partition, self.position)
            polled = self._consumer.poll(
                timeout_ms=int(min(_POLL_S, self._stall_s) * 1000),
                max_records=min(most, _POLL_RECORDS),
            )
            records: Sequence[Any] = polled.get(self._partition, ())
            if records:
                self._heard_at = time.monotonic()
                self.position = records[-1].offset + 1
                return records
            position = self._consumer.position(self._partition, timeout_ms=int(_POLL_S * 1000))
            self.position = max(self.position, position or 0)
        except (errors.KafkaError, OSError, RuntimeError) as raised:
            self._close()
            if isinstance(raised, _GONE):
                raise
            if isinstance(raised, errors.CorruptRecordError):
                raise _damaged(self.position, str(raised)) from raised
            refused = self._connection.refusal(raised, "Read")
            if refused is not None:
                raise refused from raised
            if isinstance(raised, errors.KafkaError) and not may_pass(raised):
                raise self._connection.failure("reading", self._heard_at, raised) from raised
            error = raised
            time.sleep(_POLL_S / 10)
        except BaseException:  # an interrupt, perhaps in the middle of an answer
            self._close()
            raise
        if time.monotonic() - self._heard_at >= self._stall_s:
            self._close()
            raise self._connection.unavailable("reading", self._heard_at, error)
        return ()

    def _connect(self) -> Any:  # noqa: ANN401
        silent_s = time.monotonic() - self._heard_at
        timeout_s = max(_POLL_S, self._connection.time_of_try(self._stall_s, silent_s))
        options = {**self._connection.options(timeout_s), **CONSUMER_OPTIONS}

        def connect() -> Any:  # noqa: ANN401, the client has no types
            consumer = made(KafkaConsumer, options)
            consumer.assign([self._partition])
            return consumer

        return within(timeout_s, connect, too_late=lambda consumer: consumer.close())

    def end(self) -> None:
        """Leave the consumer to the next read."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._idle.put(consumer)

    def _close(self) -> None:
        """Free a consumer that has failed, without waiting for it."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            in_background(consumer.close)


def _stored(record: Any) -> StoredRecord:  # noqa: ANN401, the client has no types
    header: bytes | None = None
    for name, value in record.headers:
        if name == HEADER_NAME:
            header = value
            break
    return StoredRecord(record.offset, record.key, record.value, header, record.timestamp)
