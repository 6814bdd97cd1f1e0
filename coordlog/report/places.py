"""Places of records: the offset and time of each sequence, relative to the first record of the log."""

from __future__ import annotations

__all__ = ["Places"]


class Places:
    """Offset, row and time of each record that counts, by its sequence."""

    def __init__(self) -> None:
        self.t0_us: int | None = None
        """Time of the first record that counts, from which other times are measured; None before it."""
        self._by_sequence: dict[int, tuple[int, int]] = {}

    def add(self, sequence: int | None, offset: int, timestamp_us: int) -> None:
        """Add a record that counts, in log order."""
        if self.t0_us is None:
            self.t0_us = timestamp_us
        if sequence is not None:
            self._by_sequence[sequence] = (offset, timestamp_us)

    def offset(self, sequence: int | None) -> int | None:
        """Offset of a record, or None if there is none, or none in this log."""
        place = None if sequence is None else self._by_sequence.get(sequence)
        return None if place is None else place[0]

    def time(self, sequence: int | None) -> int | None:
        """Time of a record: microseconds since the first record; None as in `offset`."""
        place = None if sequence is None else self._by_sequence.get(sequence)
        return None if place is None else self.since(place[1])

    def since(self, timestamp_us: int | None) -> int | None:
        """Microseconds from the first record to a time, or None for None."""
        if timestamp_us is None or self.t0_us is None:
            return None
        return timestamp_us - self.t0_us
