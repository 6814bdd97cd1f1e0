"""Rows that an operator holds until its coordinator permits it to emit them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pyarrow as pa

__all__ = ["HeldRows"]


class HeldRows:
    """A queue of rows, in the order of their arrival.

    Args:
        parts: Result of `to_parts` in an earlier attempt.
    """

    def __init__(self, parts: Sequence[bytes] = ()) -> None:
        self._batches: deque[pa.RecordBatch] = deque()
        for part in parts:
            with pa.ipc.open_stream(part) as reader:
                self._batches.extend(reader)

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    def append(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        if batch.num_rows:
            self._batches.append(batch)

    def first(self) -> pa.RecordBatch:
        """The oldest batch, or the rest of it. Raises IndexError if there are no rows."""
        return self._batches[0]

    def batches(self) -> Sequence[pa.RecordBatch]:
        """All rows, oldest first."""
        return tuple(self._batches)

    def take(self, count: int) -> pa.RecordBatch:
        """Remove and return the first rows of the oldest batch: at most `count`, which is positive."""
        batch = self._batches.popleft()
        if count < batch.num_rows:
            self._batches.appendleft(batch.slice(count))
        return batch.slice(0, count)

    def clear(self) -> None:
        """Remove all rows."""
        self._batches.clear()

    def to_parts(self) -> list[bytes]:
        """The rows as bytes: an Arrow stream for each batch."""
        return [_stream_of(batch) for batch in self._batches]


def _stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
