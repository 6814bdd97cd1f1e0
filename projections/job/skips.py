"""Permanent skips: splits that are not read, events neither delivered nor handled (J2: skip poison).

Poison is a split or an event at which attempts keep failing: attributes of the failure's record name it, and readers of
the history put it and the command that skips it into words.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from immutables import Map

from coordlog.limits import POISON_FAILURES, REASON_CHARS_MAX
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
from coordlog.schemas.payload_address import content_digest_input
from coordlog.schemas.record import NO_CHECKPOINT, SKIPPED_BY, Kind, Record

__all__ = [
    "FACTS",
    "attributes_of_event",
    "digest_of",
    "event_key",
    "event_key_in",
    "find_split",
    "fold_skip",
    "fold_uses",
    "marked",
    "poison_in",
    "reason_in_words",
    "skip_again",
    "skip_command",
    "skip_of_event",
    "skipped_in_reader",
]

_FIRST_CHARS: Final = REASON_CHARS_MAX // 4
_ALSO: Final = "also/"
_USED: Final = "used/"

FACTS: Final = frozenset(payload_type_of(fact).key for fact in (SplitSkipped, EventSkipped))
"""Payload types of the facts of skips."""


def digest_of(payload: bytes) -> str:
    """Digest of an event's content: BLAKE2b of it, or of its checksum if it is stored; 8 bytes, in hexadecimal."""
    return hashlib.blake2b(content_digest_input(payload), digest_size=8).hexdigest()


def event_key(
    *, operator_id: str, subtask: int, is_down: bool, event_type: str, digest: str
) -> str:
    """Key of a skip that the next event of this content uses: an event that is sent again has another sequence.

    A skip that an event has used has this key behind `used/SEQUENCE/BARRIER/`, with the sequence of the record of the
    skipped event, and the last barrier of the attempt before it, or nothing for an event to a subtask. If a reset takes
    back the uses of several skips with one key, all but one have it behind `also/SEQUENCE/`, with their own sequence.
    """
    way = "down" if is_down else "up"
    return f"{way}/{subtask}/{event_type}/{digest}/{operator_id}"


def event_key_in(name: str) -> str:
    """The `event_key` in a key of `JobState.skipped_events`, which may be that of a used skip."""
    for prefix, slashes in ((_USED, 3), (_ALSO, 2)):
        if name.startswith(prefix):
            return name.split("/", slashes)[slashes]
    return name


def skip_of_event(state: JobState, event: DownEvent | UpEvent) -> SkippedEvent | None:
    """The skip of the next event, which is `event`, or None if it is not skipped."""
    if not state.skipped_events:
        return None
    key = event_key(
        operator_id=event.operator_id,
        subtask=event.subtask,
        is_down=isinstance(event, DownEvent),
        event_type=event.payload_type,
        digest=digest_of(event.payload),
    )
    return state.skipped_events.get(key)


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
    """The state after a `FACT` of one of `FACTS`; a repeated skip that is still in force changes only its sequence."""
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
    key = event_key(
        operator_id=operator_id,
        subtask=record.subtask,
        is_down=value.is_down,
        event_type=value.event_type,
        digest=value.digest,
    )
    event = SkippedEvent(
        operator_id=operator_id,
        subtask=record.subtask,
        event_type=value.event_type,
        reason=record.reason or "",
        sequence=sequence,
    )
    return evolve(
        state,
        skipped_events=state.skipped_events.set(key, event),
        poison=_without(state.poison, f"event:{operator_id}/{value.event_type}/{value.digest}"),
    )


def fold_uses(state: JobState, record: Record) -> JobState:
    """The state after a skipped event has used its skip, or after a reset has taken back the uses that it undoes.

    Args:
        state: State before the record.
        record: Any record.
    """
    skips = state.skipped_events
    if record.kind in (Kind.SUBTASK_RESET, Kind.RESET_TO_CHECKPOINT):
        for name, skip in sorted_items(skips):
            if name.startswith(_USED) and _is_undone(state, record, name, skip):
                key = event_key_in(name)
                in_force = f"{_ALSO}{skip.sequence}/{key}" if key in skips else key
                skips = skips.delete(name).set(in_force, skip)
    elif SKIPPED_BY in record.attributes:
        skips = _used(state, record)
    return state if skips is state.skipped_events else evolve(state, skipped_events=skips)


def _used(state: JobState, record: Record) -> Map[str, SkippedEvent]:
    """The skips once the one that a record of a skipped event names is used."""
    skips = state.skipped_events
    for key, skip in sorted_items(skips):
        if str(skip.sequence) == record.attributes[SKIPPED_BY] and not key.startswith(_USED):
            is_redelivered = record.kind is Kind.EVENT_REDELIVERED
            sent = state.owed_redeliveries[0] if is_redelivered else record
            barrier = "" if sent.last_barrier is None else sent.last_barrier
            skips = skips.delete(key).set(f"{_USED}{record.sequence}/{barrier}/{key}", skip)
            for name, other in sorted_items(skips):
                if name.startswith(_ALSO) and event_key_in(name) == key:
                    return skips.delete(name).set(key, other)
    return skips


def _is_undone(state: JobState, reset: Record, name: str, skip: SkippedEvent) -> bool:
    """Whether the event that has used a skip may be sent, or delivered, again after this reset."""
    if reset.subtask not in (None, skip.subtask):
        return False
    checkpoint_id = NO_CHECKPOINT if reset.checkpoint_id is None else reset.checkpoint_id
    checkpoint = state.completed.get(checkpoint_id)
    if checkpoint is None:
        return True
    _, sequence, last_barrier, _ = name.split("/", 3)
    if not last_barrier:
        cut = checkpoint.cuts.get(skip.operator_id)
        return cut is None or int(sequence) > cut.sequence
    # An event in flight at the cut was skipped after the checkpoint, and is delivered again by a global reset only.
    is_in_flight = reset.subtask is None and int(sequence) > checkpoint.sequence
    return is_in_flight or int(last_barrier) >= checkpoint_id


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
