"""Void records ahead of the last record that counts: they show that a log has lost the records between them."""

from __future__ import annotations

from dataclasses import dataclass

from coordlog.limits import GROUP_RECORDS_MAX
from coordlog.projections.job.state import JobState
from coordlog.schemas.record import Record

__all__ = ["Ahead", "Furthest", "place_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Void record that is furthest ahead of the last record that counts."""

    offset: int
    epoch: int
    sequence: int
    """Sequence of the record, or -1 for an `EPOCH_STARTED`, which has none."""
    is_of_one_group: bool
    """Whether all records ahead may be of one append that was cut off. If not, records before them are missing.

    A driver begins an epoch after the one before is in force, and appends a group after the one before counts. A
    group is one turn, or at most `GROUP_RECORDS_MAX` records. So a record further ahead was appended to a log with
    more records.
    """

    @property
    def place(self) -> str:
        """Sequence and epoch, as a message names them."""
        return place_text(self.epoch, self.sequence)


class Furthest:
    """Void records with the highest epoch and with the highest sequence."""

    def __init__(self) -> None:
        self._by_epoch: tuple[int, Record] | None = None
        self._by_sequence: tuple[int, Record] | None = None
        self._turn_end: tuple[int, int] = (-1, -1)
        """Epoch and sequence of the highest record that ends a turn."""
        self._turn_before = -1
        """Sequence at the end of the turn before `_turn_end`, if both have the same epoch; else -1."""

    def add(self, offset: int, record: Record, job_id: str) -> None:
        """Add a void record, unless it is another job's: that shows nothing, and must not hide one that does."""
        if job_id and record.job_id != job_id:
            return
        sequence = _sequence(record)
        if self._by_epoch is None or record.epoch > self._by_epoch[1].epoch:
            self._by_epoch = offset, record
        if self._by_sequence is None or sequence > _sequence(self._by_sequence[1]):
            self._by_sequence = offset, record
        epoch, highest = self._turn_end
        if record.turn_remaining == 0 and sequence > highest:
            self._turn_before = highest if epoch == record.epoch else -1
            self._turn_end = (record.epoch, sequence)

    def of(self, state: JobState) -> Ahead | None:
        """Void record of this job that is ahead of the folded state, or None if there is none."""
        for candidate, is_newer in ((self._by_epoch, True), (self._by_sequence, False)):
            if candidate is None or candidate[1].job_id != state.job_id:
                continue
            offset, record = candidate
            sequence = _sequence(record)
            if is_newer and record.epoch <= state.epoch:
                continue
            if not is_newer and sequence < state.next_sequence:
                continue
            return Ahead(
                offset=offset,
                epoch=record.epoch,
                sequence=sequence,
                is_of_one_group=record.epoch <= state.epoch
                and self._turn_before < state.next_sequence + GROUP_RECORDS_MAX,
            )
        return None


def place_text(epoch: int, sequence: int) -> str:
    """The place of a record, as a message names it."""
    return f"epoch {epoch}" if sequence < 0 else f"sequence {sequence} of epoch {epoch}"


def _sequence(record: Record) -> int:
    return -1 if record.sequence is None else record.sequence
