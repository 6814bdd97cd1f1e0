"""Verdicts from the records of a log, or from the state of a live driver and each record that this driver releases."""

from __future__ import annotations

from operator import attrgetter

from coordlog.amounts import many
from coordlog.limits import CLOCK_AHEAD_S
from coordlog.projections.inspection.symptoms import Symptom, symptoms_of
from coordlog.projections.inspection.verdict import (
    Thresholds,
    Verdict,
    VerdictState,
    Waiting,
    WaitingFor,
)
from coordlog.projections.inspection.waits import WaitFold
from coordlog.projections.job.state import JobState
from coordlog.schemas.record import NO_CHECKPOINT, Record

__all__ = ["VerdictFold"]


class VerdictFold:
    """The fold behind verdicts.

    `apply` takes each record that counts, in log order; `verdict` may be called at any time, on the same thread. Its
    memory is that of `WaitFold`.
    """

    def __init__(self, *, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._waits = WaitFold(failures_kept=self.thresholds.failures)

    def begin(self, state: JobState) -> None:
        """Begin with a state: that of a live driver, or that with which a pruned log begins.

        A state has no times of intents and attempts: their waits begin with the time of its last record.
        """
        self._waits.begin(state)

    def apply(self, record: Record) -> None:
        """Apply one record."""
        self._waits.apply(record)

    def verdict(
        self,
        now_us: int | None = None,
        *,
        append_since_us: int | None = None,
        driver_answers: bool | None = None,
    ) -> Verdict:
        """The verdict at a moment.

        Args:
            now_us: The moment; microseconds since 1970, UTC. None: the time of the last record.
            append_since_us: Time of the oldest append that the log has not acknowledged, which only its driver knows.
            driver_answers: Whether the driver answers, if the caller has checked.
        """
        waits = self._waits
        now_us = waits.last_us if now_us is None else now_us
        if waits.end is not None:
            return Verdict(state=waits.end, since_us=waits.ended_us, reason=waits.end_reason)
        symptoms = list(symptoms_of(waits, self.thresholds, now_us, append_since_us))
        waiting = tuple(sorted((s.waiting() for s in symptoms), key=attrgetter("since_us")))
        if driver_answers is False:
            gone = Waiting(kind=WaitingFor.DRIVER, since_us=waits.last_us)
            return Verdict(
                state=VerdictState.STUCK,
                since_us=waits.last_us,
                reason="no driver answers, and the last one was not stopped in order",
                wait_since_us=waits.last_us,
                waiting_for=(gone, *waiting),
            )
        state, since_us, worst = self._state(symptoms, now_us)
        if state is VerdictState.PROGRESSING:
            reason = _ahead_words(waits.last_us - now_us) or _progress_words(waits)
        else:
            reason = _failure_words(waits) if worst is None else worst.words()
        return Verdict(
            state=state,
            since_us=since_us,
            reason=reason,
            wait_since_us=None if worst is None else worst.since_us,
            waiting_for=waiting,
        )

    def state(self, now_us: int | None = None) -> VerdictState:
        """The state of `verdict` at a moment, without its words: quick enough for each record of a log."""
        waits = self._waits
        now_us = waits.last_us if now_us is None else now_us
        if waits.end is not None:
            return waits.end
        return self._state(list(symptoms_of(waits, self.thresholds, now_us, None)), now_us)[0]

    def _state(
        self, symptoms: list[Symptom], now_us: int
    ) -> tuple[VerdictState, int, Symptom | None]:
        """State, its begin, and the symptom that decides it; None if failures do, or if the job progresses."""
        waits = self._waits
        stuck = [s for s in symptoms if s.stuck_us is not None and s.stuck_us <= now_us]
        if stuck:
            worst = min(stuck, key=lambda s: s.stuck_us or 0)
            return VerdictState.STUCK, worst.stuck_us or 0, worst
        slow = min(
            (s for s in symptoms if s.slow_us <= now_us), key=attrgetter("slow_us"), default=None
        )
        if waits.failures >= self.thresholds.failures:
            failed_us = waits.failed_us[-1]
            if slow is None or failed_us <= slow.slow_us:
                return VerdictState.SLOW, failed_us, None
        if slow is not None:
            return VerdictState.SLOW, slow.slow_us, slow
        return VerdictState.PROGRESSING, waits.began_us, None


def _ahead_words(ahead_us: int) -> str:
    """Reason for which nothing can be told from waits; empty if the clock is not behind the last record."""
    ahead_s = ahead_us / 1e6
    if ahead_s <= CLOCK_AHEAD_S:
        return ""
    return (
        f"its last record is {ahead_s:,.0f} s ahead of this machine's clock: until that time no wait of the job can be "
        "measured (see `coordlog doctor`)"
    )


def _progress_words(waits: WaitFold) -> str:
    if waits.last_checkpoint != NO_CHECKPOINT and waits.completed_us is not None:
        return f"checkpoint {waits.last_checkpoint} is the last completed one"
    return waits.began_words


def _failure_words(waits: WaitFold) -> str:
    times = many(waits.failures, "time")
    words = f"the job has failed {times} since its last completed checkpoint"
    reason = waits.last_failure.partition("\n")[0]
    return f"{words}, last because of: {reason}" if reason else words
