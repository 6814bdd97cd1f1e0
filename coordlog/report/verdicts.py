"""Facts of a report about the verdict: each change of it, and what the job waits for at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coordlog.projections.inspection.verdict import Thresholds, Verdict, VerdictState
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import AuditRecord
from coordlog.report.columns import Table, Texts
from coordlog.report.places import Places
from coordlog.schemas.record import Kind, Record

__all__ = ["VerdictFacts"]

_CHANGING: Final = frozenset(
    {
        Kind.EPOCH_STARTED,
        Kind.COORDINATORS_STARTED,
        Kind.RESET_TO_CHECKPOINT,
        Kind.ATTEMPT_STARTED,
        Kind.ATTEMPT_FAILED,
        Kind.SUBTASK_COMPLETED,
        Kind.GLOBAL_FAILURE,
        Kind.JOB_FAILED,
        Kind.JOB_FINISHED,
        Kind.FACT,
        Kind.CHECKPOINT_TRIGGERED,
        Kind.COORDINATOR_CHECKPOINTED,
        Kind.CHECKPOINT_ACKED,
        Kind.CHECKPOINT_COMPLETED,
        Kind.CHECKPOINT_ABORTED,
        Kind.COMMIT_INTENT,
        Kind.COMMIT_OUTCOME,
    }
)
"""Kinds that may change the words of a verdict; any record ends a silence."""


class VerdictFacts:
    """Changes of the verdict. `apply` takes each record that counts, in log order."""

    def __init__(self, places: Places, texts: Texts, thresholds: Thresholds) -> None:
        self._places, self._texts = places, texts
        self._fold = VerdictFold(thresholds=thresholds)
        self._rows = Table("off", "t", "state", "since_t", "reason")
        self._waiting = Table("kind", "since_t", "cp", "subtasks", "operators", "sequence")
        self._last: tuple[VerdictState, str] | None = None
        self._state = VerdictState.NEW
        self._offset, self._now_us = -1, 0

    @property
    def is_over(self) -> bool:
        """Whether the last verdict stays the same without another record."""
        return self._state.is_over

    def begin(self, state: JobState) -> None:
        """Begin with the state at the first record of a pruned log."""
        self._fold.begin(state)

    def apply(self, entry: AuditRecord, record: Record, _row: int) -> None:
        """Apply one record."""
        now_us = record.timestamp_us
        if self._offset >= 0 and now_us > self._now_us and self._fold.state(now_us) != self._state:
            self._note(self._offset, self._fold.verdict(now_us))  # changed by time alone
        self._fold.apply(record)
        self._offset, self._now_us = entry.offset, now_us
        state = self._fold.state(now_us)
        is_plain = (
            state is VerdictState.PROGRESSING and record.kind is not Kind.CHECKPOINT_COMPLETED
        )
        if state is self._state and (is_plain or record.kind not in _CHANGING):
            return
        self._note(entry.offset, self._fold.verdict(now_us), now_us)

    def _note(self, offset: int, verdict: Verdict, now_us: int | None = None) -> None:
        self._state = verdict.state
        if (verdict.state, verdict.reason) == self._last:
            return
        self._last = (verdict.state, verdict.reason)
        at_us = max(self._now_us, verdict.since_us) if now_us is None else now_us
        self._rows.add(
            offset,
            self._places.since(at_us),
            self._texts.number(verdict.state.value),
            self._places.since(verdict.since_us),
            self._texts.number(verdict.reason),
        )

    def tables(
        self, moment_us: int, *, driver_answers: bool | None = None
    ) -> Iterator[tuple[str, Table]]:
        """The tables, with the verdict at a moment after the last record; `driver_answers` as in `verdict`."""
        verdict = self._fold.verdict(moment_us, driver_answers=driver_answers)
        if self._offset >= 0:
            self._note(self._offset, verdict)
        for waiting in verdict.waiting_for:
            self._waiting.add(
                self._texts.number(waiting.kind.value),
                self._places.since(waiting.since_us),
                waiting.checkpoint_id,
                list(waiting.subtasks),
                list(waiting.operators),
                waiting.sequence,
            )
        yield "verdicts", self._rows
        yield "waiting", self._waiting
