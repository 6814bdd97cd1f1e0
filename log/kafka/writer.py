"""Appends through one idempotent producer, which is discarded after its first failure."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from kafka import KafkaProducer, errors

from coordlog.errors import AppendRefusedError, LogError
from coordlog.limits import WRITER_CLOSE_TIMEOUT_S
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka.client import Connection, described, made, within
from coordlog.schemas.header import HEADER_NAME

__all__ = ["PRODUCER_OPTIONS", "KafkaWriter"]

_REQUEST_BYTES_MAX: Final = 1_048_576
_RECORD_OVERHEAD_BYTES: Final = 128
"""Bytes of a record's length fields and its header's name, and of the batch around it."""

_PLAINLY_SMALL_BYTES: Final = _REQUEST_BYTES_MAX // 4
"""A value below it is not measured further: keys are shorter than the rest."""

PRODUCER_OPTIONS: Final[dict[str, Any]] = {
    "acks": "all",
    "enable_idempotence": True,
    "batch_size": 128 * 1024,
    "linger_ms": 5,  # `flush` ends it at once, so that a single record does not wait
    "max_request_size": _REQUEST_BYTES_MAX,
    "max_in_flight_requests_per_connection": 5,
    "allow_auto_create_topics": False,
    "metrics_enabled": False,
}


_REFUSED: Final = (
    errors.InvalidRecordError,
    errors.InvalidRequiredAcksError,
    errors.InvalidTimestampError,
    errors.InvalidTopicError,
    errors.MessageSizeTooLargeError,
    errors.PolicyViolationError,
    errors.RecordListTooLargeError,
    errors.UnsupportedVersionError,
)
"""Errors that a repeated send cannot correct."""


class KafkaWriter:
    """One producer of one topic's partition 0. Connects at its first append."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer: Any = None
        self._has_failed = False
        self._retried_for: type[Exception] | None = None

    def append(self, records: Sequence[UnstoredRecord], *, timeout_s: float) -> Sequence[int]:
        """As in the port."""
        assert not self._has_failed, "a writer is discarded after its first failure"
        self._has_failed = True  # until the append has succeeded
        began = time.monotonic()
        self._refuse_large(records)
        self._retried_for = None
        try:
            offsets = self._append(records, began + timeout_s)
        except (errors.KafkaError, OSError, ValueError) as error:
            # ValueError: the producer's metadata has lost the partition.
            raise self._failure(began, error) from error
        if min(offsets) < 0:
            # The broker detected a duplicate batch and did not return the first copy's offsets.
            raise self._connection.unavailable("appending", began, "stored, but not known where")
        self._has_failed = False
        return offsets

    def _append(self, records: Sequence[UnstoredRecord], end: float) -> list[int]:
        if self._producer is None:
            self._producer = self._make(end - time.monotonic())
        send, topic = self._producer.send, self._connection.topic
        futures = [
            send(
                topic,
                value=record.value,
                key=record.key,
                headers=[(HEADER_NAME, record.header)],
                partition=0,
                timestamp_ms=record.timestamp_us // 1000,
            )
            for record in records
        ]
        # The first future's error is more precise than a timeout; and `flush` of kafka-python 3.0.12 fails
        # with an UnknownError for a batch that the client splits because the broker found it too large.
        with contextlib.suppress(errors.KafkaTimeoutError, errors.UnknownError):
            self._producer.flush(timeout=max(0.0, end - time.monotonic()))
        # Finished futures return their offsets; the first failed one raises its error.
        return [_offset(future, end) for future in futures]

    def _make(self, timeout_s: float) -> object:
        timeout_ms = max(100, int(timeout_s * 1000))
        options = {
            **self._connection.options(timeout_s),
            **PRODUCER_OPTIONS,
            # Two requests fit into one try: the second reaches the broker that the first one's
            # failure has shown.
            "delivery_timeout_ms": timeout_ms,
            "request_timeout_ms": timeout_ms // 2 - 10,
            "max_block_ms": timeout_ms,
        }
        producer = within(timeout_s, lambda: made(KafkaProducer, options), too_late=_discard)
        # The client has no public call for the reason why a batch is sent again.
        self._note_retries(producer._sender)  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
        return producer

    def _note_retries(self, sender: Any) -> None:  # noqa: ANN401, the client has no types
        """Keep why a batch is sent again: when the time is over, the producer reports nothing else."""
        can_retry = sender._can_retry  # noqa: SLF001, as above

        def noting(batch: object, error: type[Exception]) -> bool:
            if error is not errors.KafkaTimeoutError:
                self._retried_for = error
            return bool(can_retry(batch, error))

        sender._can_retry = noting  # noqa: SLF001, as above

    def _failure(self, began: float, error: Exception) -> LogError:
        refused = self._connection.refusal(error, "Write")
        if refused is not None:
            return refused
        if isinstance(error, _REFUSED):
            return AppendRefusedError(self._connection.name, described(error))
        if isinstance(error, errors.KafkaTimeoutError) and self._retried_for is not None:
            error = self._retried_for()
        # A topic that is missing now may have been there for some of these records.
        return self._connection.unavailable("appending", began, error)

    def _refuse_large(self, records: Sequence[UnstoredRecord]) -> None:
        limit = _REQUEST_BYTES_MAX - _RECORD_OVERHEAD_BYTES
        for record in records:
            if len(record.value) > _PLAINLY_SMALL_BYTES and record.size_bytes > limit:
                raise AppendRefusedError(
                    self._connection.name,
                    f"a record of {record.size_bytes} bytes is above its limit of {limit}",
                )

    def close(self, *, timeout_s: float) -> None:
        """As in the port."""
        self._has_failed = True
        producer, self._producer = self._producer, None
        if producer is not None:
            thread = threading.Thread(
                target=_discard, args=(producer,), name="coordlog-kafka-close", daemon=True
            )
            thread.start()
            thread.join(timeout_s)


def _offset(future: Any, end: float) -> int:  # noqa: ANN401, the client has no types
    """The offset of a sent record; raises its error, or KafkaTimeoutError at `end`, monotonic seconds."""
    if not future.is_done or future.exception is not None:
        future.get(timeout=max(0.0, end - time.monotonic()))
    # Before kafka-python 3.0.12, `get` without time left returns None for an unfinished future.
    if not future.is_done:
        raise errors.KafkaTimeoutError("no answer to the last request")
    return int(future.value.offset)


def _discard(producer: Any) -> None:  # noqa: ANN401, the client has no types
    """End a producer, whatever state it is in.

    `close` of kafka-python flushes first: if that fails, because a batch has no answer yet, it raises
    and its thread never ends. So the thread is first made to drop its batches.
    """
    sender = producer._sender  # noqa: SLF001, no public call drops batches
    sender.force_close()
    with contextlib.suppress(errors.KafkaError, OSError, RuntimeError):
        producer.close(timeout=WRITER_CLOSE_TIMEOUT_S)
    producer._closed = True  # noqa: SLF001, or its `__del__` closes once more
