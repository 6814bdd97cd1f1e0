"""Every commit of a job: its intent, and the time of its outcome.

A fold of the records that count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from coordlog.projections.job.state import JobState, sorted_values
from coordlog.schemas.payload_address import content_length
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = ["CommitFold", "CommitRow", "CommitStatus", "commits"]


class CommitStatus(enum.Enum):
    """Whether an intent is carried out."""

    OPEN = "open"
    """Without a recorded outcome; never dropped (H3: settle each intent)."""
    SETTLED = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRow:
    """One intent and its outcome."""

    sequence: int
    """Sequence of the intent."""
    operator_id: str
    checkpoint_id: int
    """Checkpoint whose completion allows the commit; -1 is the end of a batch job."""
    epoch: int | None
    """Epoch of the intent, or None if a prune has removed the intent."""
    intent_type: str | None
    intent_bytes: int
    intended_us: int | None
    """Microseconds since 1970, UTC, or None if a prune has removed the intent."""
    status: CommitStatus = CommitStatus.OPEN
    settled_us: int | None = None
    settled_epoch: int | None = None
    """Epoch of the outcome; differs from `epoch` if the driver died in between."""
    failed_tries: int = 0
    reason: str | None = None
    """Reason of the last failed try."""

    @property
    def milliseconds(self) -> float | None:
        """Time from the intent to its outcome, or None if the intent is open, or was removed."""
        if self.settled_us is None or self.intended_us is None:
            return None
        return (self.settled_us - self.intended_us) / 1000


def commits(records: Iterable[Record]) -> tuple[CommitRow, ...]:
    """The commits of a job, in the order of their intents.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    fold = CommitFold()
    for record in records:
        fold.apply(record)
    return fold.rows()


class CommitFold:
    """The fold behind `commits`.

    `apply` takes each record that counts, in log order; `rows` may be called at any time.
    """

    def __init__(self) -> None:
        self._commits: dict[int, CommitRow] = {}
        self._job_id = ""

    def begin(self, state: JobState) -> None:
        """Begin with the open intents in the state at the first record of a pruned log."""
        self._job_id = state.job_id
        for intent in sorted_values(state.intents):
            self._commits[intent.sequence] = CommitRow(
                sequence=intent.sequence,
                operator_id=intent.operator_id,
                checkpoint_id=intent.checkpoint_id,
                epoch=None,
                intent_type=intent.payload_type,
                intent_bytes=content_length(intent.payload),
                intended_us=None,
                failed_tries=intent.failed_tries,
            )

    def rows(self) -> tuple[CommitRow, ...]:
        """All commits so far, in the order of their intents."""
        return tuple(self._commits[key] for key in sorted(self._commits))

    def apply(self, record: Record) -> None:
        """Apply one record."""
        if record.kind is Kind.EPOCH_STARTED and record.job_id != self._job_id:
            self._job_id = record.job_id
            self._commits = {  # forked: open commits stay with the first job
                sequence: row
                for sequence, row in self._commits.items()
                if row.status is CommitStatus.SETTLED
            }
        elif record.kind is Kind.COMMIT_INTENT and record.sequence is not None:
            number = record.checkpoint_id
            self._commits[record.sequence] = CommitRow(
                sequence=record.sequence,
                operator_id=record.operator_id or "",
                checkpoint_id=NO_CHECKPOINT if number is None else number,
                epoch=record.epoch,
                intent_type=record.payload_type,
                intent_bytes=content_length(record.payload),
                intended_us=record.timestamp_us,
            )
        elif record.kind is Kind.COMMIT_OUTCOME and record.cause in self._commits:
            known = self._commits[record.cause]
            if record.attributes.get("settled") == "true":
                known = replace(
                    known,
                    status=CommitStatus.SETTLED,
                    settled_us=record.timestamp_us,
                    settled_epoch=record.epoch,
                )
            else:
                tries = known.failed_tries + 1
                known = replace(known, failed_tries=tries, reason=record.reason)
            self._commits[record.cause] = known
