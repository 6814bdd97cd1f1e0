"""Permanent skips: splits that are not read, events neither delivered nor handled (J2: skip poison).

Poison is a split or an event at which attempts keep failing: attributes of the failure's record name it, and readers of
the history put it and the command that skips it into words.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from immutables import Map

from coordlog.limits import POISON_FAILURES, REASON_CHARS_MAX
from coordlog.projections.job.event_skips import digest_of, key_of_skip, with_skip
from coordlog.projections.job.state import (
    DownEvent,
    JobState,
    SkippedEvent,
    SkippedSplit,
    UpEvent,
    sorted_items,
)
from coordlog.projections.splits.fold import KnownSplit, Skipped, SplitsState
from coordlog.schemas.builtin_types import EventSkipped, SplitSkipped
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = [
    "FACTS",
    "attributes_of_event",
    "find_split",
    "fold_skip",
    "marked",
    "poison_in",
    "reason_in_words",
    "skip_again",
    "skip_command",
    "skipped_in_reader",
]

_FIRST_CHARS: Final = REASON_CHARS_MAX // 4

FACTS: Final = frozenset(payload_type_of(fact).key for fact in (SplitSkipped, EventSkipped))
"""Payload types of the facts of skips."""


def skip_command(job_id: str, attributes: Mapping[str, str]) -> str:
    """The command that skips the split or event of a failure; it needs no more options if the log is configured.

    Args:
        job_id: Id of the job.
        attributes: Attributes of the failure's record, with `poison`.
    """
    split_id, sequence = attributes.get("split_id"), attributes.get("event_sequence", "")
    target = f"--event {sequence}" if split_id is None else f"--split {shlex.quote(split_id)}"
    reason = f"{attributes['poison']} attempts in a row failed at it"
    return f"coordlog skip {job_id} {target} --reason '{reason}'"


def fold_skip(state: JobState, record: Record, value: Payload) -> JobState:
    """The state after a `FACT` of one of `FACTS`; a repeated skip of a split changes only its sequence."""
    operator_id, sequence = record.operator_id or "", record.sequence
    assert sequence is not None, "a fact has a sequence"
    if isinstance(value, SplitSkipped):
        split = SkippedSplit(
            operator_id=operator_id,
            split_id=value.split_id,
            reason=record.reason or "",
            sequence=sequence,
            rows=value.rows,
            last_barrier=record.last_barrier,
        )
        return evolve(
            state,
            skipped_splits=state.skipped_splits.set((operator_id, value.split_id), split),
            poison=_without(state.poison, f"split_id:{value.split_id}"),
        )
    assert isinstance(value, EventSkipped), "FACTS has two types"
    assert record.subtask is not None, "an event has a subtask"
    key = key_of_skip(operator_id, record.subtask, value)
    event = SkippedEvent(
        operator_id=operator_id,
        subtask=record.subtask,
        event_type=value.event_type,
        reason=record.reason or "",
        sequence=sequence,
    )
    return evolve(
        state,
        skipped_events=with_skip(state.skipped_events, key, event),
        poison=_without(state.poison, f"event:{operator_id}/{value.event_type}/{value.digest}"),
    )


def skip_again(state: JobState, reset: Record) -> tuple[tuple[Record, SplitSkipped], ...]:
    """The skips of splits as facts, for the projections that a `RESET_TO_CHECKPOINT` has restored.

    A fact has the number of rows only if the reader had released the split at the checkpoint: a
    reader restored from an older place records it anew. So does one whose split was skipped on
    another branch, or after the checkpoint.
    """
    checkpoint_id = NO_CHECKPOINT if reset.checkpoint_id is None else reset.checkpoint_id
    checkpoint = state.completed.get(checkpoint_id)
    completed = -1 if checkpoint is None else checkpoint.sequence
    facts = []
    for (operator_id, split_id), skip in sorted_items(state.skipped_splits):
        is_before = skip.last_barrier is not None and skip.last_barrier < checkpoint_id
        is_held = is_before and skip.sequence < completed
        fact = replace(
            reset,
            kind=Kind.FACT,
            operator_id=operator_id,
            last_barrier=skip.last_barrier if is_held else None,
            checkpoint_id=None,
            reason=skip.reason,
            attributes={},
        )
        facts.append((fact, SplitSkipped(split_id=split_id, rows=skip.rows if is_held else None)))
    return tuple(facts)


def find_split(state: JobState, split_id: str) -> tuple[str, SplitsState, KnownSplit] | None:
    """The source with a split of this id, its splits, and the split, or None if it is unknown."""
    for operator_id, splits in _sources(state):
        known = splits.splits.get(split_id)
        if known is not None:
            return operator_id, splits, known
    return None


def skipped_in_reader(state: JobState, subtask: int) -> tuple[str, ...]:
    """Skipped splits that the next attempt of a subtask may be restored with, in the order of assignment."""
    names: list[str] = []
    for _, splits in _sources(state):
        for name in splits.reader(subtask).splits:
            place = splits.splits.place(name)
            # A reset to n removes the records of readers since their barrier of n.
            if isinstance(place, Skipped) and place.last_barrier is None:
                names.append(name)
    return tuple(names)


def _sources(state: JobState) -> list[tuple[str, SplitsState]]:
    return [
        (operator_id, splits)
        for operator_id, splits in sorted_items(state.projections)
        if isinstance(splits, SplitsState)
    ]


def _without(poison: Map[str, int], key: str) -> Map[str, int]:
    return poison.delete(key) if key in poison else poison


def attributes_of_event(event: DownEvent | UpEvent) -> dict[str, str]:
    """Attributes of a failure's record for the event at which it happened: its sequence and the hash of its content."""
    return {
        "event": f"{event.operator_id}/{event.payload_type}/{digest_of(event.payload)}",
        "event_sequence": str(event.sequence),
    }


def marked(state: JobState, attributes: Mapping[str, str]) -> dict[str, str]:
    """A failure's attributes; with `poison` if `POISON_FAILURES` in a row were at one split or event.

    Args:
        state: State before the failure is recorded.
        attributes: Attributes of the failure's record.
    """
    for name in ("split_id", "event"):
        value = attributes.get(name)
        failures = state.poison.get(f"{name}:{value}", 0) + 1
        if value is not None and failures >= POISON_FAILURES:
            return {**attributes, "poison": str(failures)}
    return dict(attributes)


def poison_in(attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a failure that name its poison split or event; empty if there is none."""
    if "poison" not in attributes:
        return {}
    names = ("split_id", "event", "event_sequence", "poison")
    return {name: attributes[name] for name in names if name in attributes}


def reason_in_words(record: Record) -> str | None:
    """The reason of a failure, with its poison split or event, if any, behind the first line.

    Behind the first line, because the end of a traceback may be cut off.
    """
    attributes = record.attributes
    if record.reason is None or "poison" not in attributes:
        return record.reason
    split_id, event = attributes.get("split_id"), attributes.get("event")
    place = f"event {event!r}" if split_id is None else f"split {split_id!r}"
    command = skip_command(record.job_id, attributes)
    first, line_end, rest = record.reason.partition("\n")
    poison = (
        f"; {place} is poison: {attributes['poison']} attempts in a row have failed at it; "
        f"to continue without it: `{command}`"
    )
    return f"{first[:_FIRST_CHARS]}{poison}{line_end}{rest}"
