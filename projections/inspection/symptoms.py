"""Symptoms of a job at a moment: waits that may be too long, with their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from coordlog.projections.inspection.verdict import Thresholds, Waiting, WaitingFor
from coordlog.projections.inspection.waits import Intent, Pending, WaitFold
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = ["Symptom", "symptoms_of"]

_NAMED_MAX: Final = 5
_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A wait of a job, and the times after which it makes the job slow and stuck."""

    since_us: int
    slow_s: float
    stuck_s: float | None
    """Seconds after which the job is stuck, or None if this never makes it stuck."""
    waiting: Callable[[], Waiting]
    words: Callable[[], str]

    @property
    def slow_us(self) -> int:
        """Time from which the job is slow; microseconds since 1970, UTC."""
        return self.since_us + round(self.slow_s * _US)

    @property
    def stuck_us(self) -> int | None:
        """As `slow_us`, for a stuck job; None if never."""
        return None if self.stuck_s is None else self.since_us + round(self.stuck_s * _US)


def symptoms_of(
    waits: WaitFold, limits: Thresholds, now_us: int, append_since_us: int | None
) -> Iterator[Symptom]:
    """Waits of the job at a moment that may be too long; the arguments are those of `VerdictFold.verdict`."""
    if append_since_us is not None:
        yield Symptom(
            since_us=append_since_us,
            slow_s=limits.append_slow_s,
            stuck_s=limits.append_stuck_s,
            waiting=lambda: Waiting(kind=WaitingFor.APPEND, since_us=append_since_us),
            words=lambda: "the log has not acknowledged an append",
        )
    if not waits.is_started:
        yield Symptom(
            since_us=waits.began_us,
            slow_s=limits.subtask_slow_s,
            stuck_s=limits.subtask_stuck_s,
            waiting=lambda: Waiting(kind=WaitingFor.DRIVER, since_us=waits.began_us),
            words=lambda: f"the driver of epoch {waits.epoch} has not started its coordinators",
        )
        return
    # A batch job may have more subtasks than there are slots.
    if waits.missing and not (waits.is_batch and waits.live):
        yield Symptom(
            since_us=next(iter(waits.missing.values())),
            slow_s=limits.subtask_slow_s,
            stuck_s=limits.subtask_stuck_s,
            waiting=partial(_missing_attempts, waits),
            words=partial(_missing_words, waits),
        )
    yield from _checkpoint_symptoms(waits, limits, now_us)
    for sequence, intent in waits.intents.items():
        yield Symptom(
            since_us=intent.intended_us,
            slow_s=limits.commit_slow_s,
            stuck_s=limits.commit_stuck_s,
            waiting=partial(_commit, sequence, intent),
            words=partial(_commit_words, intent),
        )


def _missing_attempts(waits: WaitFold) -> Waiting:
    since_us, subtasks = next(iter(waits.missing.values())), tuple(sorted(waits.missing))
    return Waiting(kind=WaitingFor.SUBTASK, since_us=since_us, subtasks=subtasks)


def _missing_words(waits: WaitFold) -> str:
    subtasks = tuple(sorted(waits.missing))
    return f"{_subtasks(subtasks)} {'has' if len(subtasks) == 1 else 'have'} no attempt"


def _checkpoint_symptoms(waits: WaitFold, limits: Thresholds, now_us: int) -> Iterator[Symptom]:
    """An overdue checkpoint; without an interval, silence."""
    interval_s = waits.interval()
    completed_us = waits.began_us if waits.completed_us is None else waits.completed_us
    base_us = max(completed_us, waits.began_us)
    number, pending = next(iter(waits.pending.items()), (None, None))
    expected_s = limits.slow_s if interval_s is None else interval_s
    slow_s = max(limits.slow_s, limits.slow_intervals * expected_s)
    stuck_s = max(limits.stuck_s, limits.stuck_intervals * expected_s)
    if number is not None and pending is not None:
        # Checkpoints that are aborted again and again make a job slow too: since the last completed one.
        yield Symptom(
            since_us=pending.triggered_us if interval_s is None else base_us,
            slow_s=slow_s,
            stuck_s=stuck_s,
            waiting=partial(_checkpoint, number, pending),
            words=lambda: f"checkpoint {number} waits for {_missing_parts(pending)}",
        )
    elif interval_s is not None and now_us - base_us > interval_s * _US:
        yield Symptom(
            since_us=base_us,
            slow_s=slow_s,
            stuck_s=stuck_s,
            waiting=lambda: Waiting(kind=WaitingFor.CHECKPOINT, since_us=base_us),
            words=lambda: "no checkpoint has completed and none is pending",
        )
    if interval_s is None and now_us - waits.last_us > limits.silence_slow_s * _US:
        yield Symptom(
            since_us=waits.last_us,
            slow_s=limits.silence_slow_s,
            stuck_s=None,
            waiting=lambda: Waiting(kind=WaitingFor.RECORD, since_us=waits.last_us),
            words=lambda: "no record has been appended",
        )


def _commit(sequence: int, intent: Intent) -> Waiting:
    return Waiting(
        kind=WaitingFor.COMMIT,
        since_us=intent.intended_us,
        checkpoint_id=intent.checkpoint_id,
        operators=(intent.operator_id,),
        sequence=sequence,
    )


def _commit_words(intent: Intent) -> str:
    is_end = intent.checkpoint_id == NO_CHECKPOINT
    place = "the end of the job" if is_end else f"checkpoint {intent.checkpoint_id}"
    return f"the commit of {intent.operator_id!r} for {place} has no outcome"


def _checkpoint(number: int, pending: Pending) -> Waiting:
    return Waiting(
        kind=WaitingFor.CHECKPOINT,
        since_us=pending.triggered_us,
        checkpoint_id=number,
        subtasks=tuple(sorted(pending.subtasks)),
        operators=tuple(pending.operators),
    )


def _missing_parts(pending: Pending) -> str:
    parts: list[str] = []
    if pending.operators:
        operators = tuple(pending.operators)
        parts.append(f"{'the cut' if len(operators) == 1 else 'cuts'} of {_named(operators)}")
    if pending.subtasks:
        acks = "the ack" if len(pending.subtasks) == 1 else "acks"
        parts.append(f"{acks} of {_subtasks(tuple(sorted(pending.subtasks)))}")
    return " and ".join(parts) or "its completion"


def _subtasks(subtasks: tuple[int, ...]) -> str:
    return f"subtask{'' if len(subtasks) == 1 else 's'} {_named(subtasks)}"


def _named(names: tuple[int, ...] | tuple[str, ...]) -> str:
    shown = ", ".join(map(str, names[:_NAMED_MAX]))
    more = len(names) - _NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
