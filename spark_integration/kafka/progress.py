"""Progress of a Kafka reader in its splits, and the records that it has fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordlog.api.operator import FinishedSplit
from coordlog.spark_integration.kafka.cluster import Partition
from coordlog.spark_integration.kafka.consumer import Position
from coordlog.spark_integration.kafka.payloads import UNBOUNDED, KafkaSplit, KafkaSplitProgress
from coordlog.spark_integration.kafka.rows import Received

__all__ = ["Fetched", "Progress"]


@dataclass(slots=True, kw_only=True, eq=False)
class Progress:
    """Progress of one split."""

    split: KafkaSplit
    position: int
    leader_epoch: int = -1
    """Number of the leader that has stored the record before `position`; -1 if unknown."""
    rows: int = 0
    rejected: int = 0
    """Number of records that were left out, and are not among `rows`."""
    bytes_read: int = 0
    moved_at: float
    """Monotonic seconds of the last rise of the position, or of the start of reading."""

    @property
    def partition(self) -> Partition:
        """Partition of the split."""
        return self.split.topic, self.split.partition

    @property
    def place(self) -> Position:
        """Position for the client."""
        return Position(self.position, self.leader_epoch)

    @property
    def is_at_end(self) -> bool:
        """Whether all of the split has been read."""
        return self.split.end != UNBOUNDED and self.position >= self.split.end

    def stored(self) -> KafkaSplitProgress:
        """The progress as a part of the reader's state."""
        return KafkaSplitProgress(
            split=self.split,
            position=self.position,
            leader_epoch=self.leader_epoch,
            rows=self.rows,
            rejected=self.rejected,
            bytes_read=self.bytes_read,
        )

    def finished(self) -> FinishedSplit:
        """The split at its end."""
        return FinishedSplit(
            split_id=self.split.split_id,
            rows=self.rows,
            bytes_read=self.bytes_read,
            rejected=self.rejected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Records of one split that are fetched and not emitted yet."""

    progress: Progress
    records: Sequence[Received]
    next_offset: int
    """Position after these records."""

    def pieces(self, records_max: int) -> list[Fetched]:
        """The same records in pieces of at most so many, in order."""
        pieces = [
            self.records[start : start + records_max]
            for start in range(0, len(self.records), records_max)
        ]
        return [
            Fetched(
                progress=self.progress,
                records=piece,
                next_offset=self.next_offset if piece is pieces[-1] else piece[-1].offset + 1,
            )
            for piece in pieces
        ]
