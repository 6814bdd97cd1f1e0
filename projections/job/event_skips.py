"""Skips of events, and which event has used each (J2: skip poison).

A skip leaves out one event on each branch. If the job goes back to before that event, it is sent again, and skipped
again; if the job goes back to a checkpoint behind it, maybe of another branch, the skip is used there.

`JobState.skipped_events` has the skips by these keys, each with the `event_key` at its end:

- the `event_key` alone: the next event of this content is skipped;
- `also/SKIP/`: a further skip of this content waits, with the sequence of its record;
- `used/EVENT/BARRIER/`: the event with the record of sequence EVENT was skipped, behind that barrier of its attempt;
  BARRIER is empty for an event to a subtask;
- `at/CHECKPOINT/EVENT/BARRIER/`: as `used`, in the history of that checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from immutables import Map

from coordlog.projections.job.lifecycle import is_opened_again
from coordlog.projections.job.state import (
    CompletedCheckpoint,
    DownEvent,
    JobState,
    SkippedEvent,
    UpEvent,
    sorted_values,
)
from coordlog.schemas.builtin_types import EventSkipped
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload_address import content_digest_input
from coordlog.schemas.record import NO_CHECKPOINT, SKIPPED_BY, Kind, Record

__all__ = [
    "digest_of",
    "event_key",
    "event_key_in",
    "fold_uses",
    "key_of_skip",
    "skip_of_event",
    "with_skip",
]

_ALSO: Final = "also/"
_USED: Final = "used/"
_AT: Final = "at/"
_SLASHES: Final = {_ALSO: 2, _USED: 3, _AT: 4}
_PLACES: Final = frozenset(
    {Kind.CHECKPOINT_COMPLETED, Kind.RESET_TO_CHECKPOINT, Kind.SUBTASK_RESET}
)
"""Kinds after which other events have used the skips, or after which a checkpoint holds the uses."""


def digest_of(payload: bytes) -> str:
    """Digest of an event's content: BLAKE2b of it, or of its checksum if it is stored; 8 bytes, in hexadecimal."""
    return hashlib.blake2b(content_digest_input(payload), digest_size=8).hexdigest()


def event_key(
    *, operator_id: str, subtask: int, is_down: bool, event_type: str, digest: str
) -> str:
    """Key of a skip, by what an event keeps if it is sent again: it gets another sequence and another id."""
    way = "down" if is_down else "up"
    return f"{way}/{subtask}/{event_type}/{digest}/{operator_id}"


def key_of_skip(operator_id: str, subtask: int, value: EventSkipped) -> str:
    """The `event_key` of the event that a skip names."""
    return event_key(
        operator_id=operator_id,
        subtask=subtask,
        is_down=value.is_down,
        event_type=value.event_type,
        digest=value.digest,
    )


def event_key_in(name: str) -> str:
    """The `event_key` in a key of `JobState.skipped_events`."""
    for prefix, slashes in _SLASHES.items():
        if name.startswith(prefix):
            return name.split("/", slashes)[slashes]
    return name


def skip_of_event(state: JobState, event: DownEvent | UpEvent) -> SkippedEvent | None:
    """The skip that the next event, which is `event`, uses; None if it is not skipped."""
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


def with_skip(
    skips: Map[str, SkippedEvent], key: str, skip: SkippedEvent
) -> Map[str, SkippedEvent]:
    """The skips with one more, unless one of this key waits for its event."""
    return skips if key in skips else skips.set(key, skip)


@dataclass(frozen=True, slots=True)
class _Use:
    """The event that has used a skip."""

    sequence: int
    """Sequence of the record that it was skipped with."""
    last_barrier: int | None
    """Last barrier of its attempt before it; None for an event to a subtask."""

    def is_in(self, checkpoint: CompletedCheckpoint, operator_id: str) -> bool:
        """Whether no restore from the checkpoint, which has just completed, sends the event again."""
        if self.last_barrier is not None:
            return self.last_barrier < checkpoint.checkpoint_id
        cut = checkpoint.cuts.get(operator_id)
        return cut is None or self.sequence < cut.sequence


@dataclass(slots=True)
class _Skips:
    """`JobState.skipped_events`, taken apart; skips are known by the sequences of their records."""

    known: dict[int, tuple[str, SkippedEvent]]
    used: dict[int, _Use]
    held: dict[int, dict[int, _Use]]
    """By checkpoint, the uses in its history."""

    @staticmethod
    def of(skips: Mapping[str, SkippedEvent]) -> _Skips:
        """Take the map apart."""
        apart = _Skips({}, {}, {})
        for name, skip in sorted(skips.items()):
            apart.known[skip.sequence] = (event_key_in(name), skip)
            if name.startswith(_USED):
                apart.used[skip.sequence] = _use(name.split("/")[1:3])
            elif name.startswith(_AT):
                at = name.split("/")[1:4]
                apart.held.setdefault(int(at[0]), {})[skip.sequence] = _use(at[1:])
        return apart

    def together(self) -> Map[str, SkippedEvent]:
        """The map."""
        skips = Map[str, SkippedEvent]()
        for sequence, (key, skip) in sorted(self.known.items()):
            use = self.used.get(sequence)
            if use is not None:
                name = f"{_USED}{_text(use)}/{key}"
            else:
                name = f"{_ALSO}{sequence}/{key}" if key in skips else key
            skips = skips.set(name, skip)
            for checkpoint_id, uses in sorted(self.held.items()):
                if sequence in uses:
                    skips = skips.set(f"{_AT}{checkpoint_id}/{_text(uses[sequence])}/{key}", skip)
        return skips


def _use(texts: list[str]) -> _Use:
    sequence, last_barrier = texts
    return _Use(int(sequence), int(last_barrier) if last_barrier else None)


def _text(use: _Use) -> str:
    return f"{use.sequence}/{'' if use.last_barrier is None else use.last_barrier}"


def fold_uses(before: JobState, state: JobState, record: Record) -> JobState:
    """The state with the uses of skips after a record: of a skipped event, a checkpoint, an opening or a reset.

    Args:
        before: State before the record, with skips of events.
        state: State after the record, but for these uses.
        record: Any record.
    """
    is_opened = is_opened_again(record)
    if not (is_opened or record.kind in _PLACES or SKIPPED_BY in record.attributes):
        return state
    skips = _Skips.of(before.skipped_events)
    number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
    if record.kind is Kind.CHECKPOINT_COMPLETED:
        skips.held[number] = {
            sequence: use
            for sequence, use in skips.used.items()
            if use.is_in(state.completed[number], skips.known[sequence][1].operator_id)
        }
        retained: Iterable[int] = (NO_CHECKPOINT, *state.completed.keys())
        skips.held = {held: uses for held, uses in skips.held.items() if held in retained}
    elif is_opened:
        # No event of the former run is sent again.
        skips.held[state.last_checkpoint] = dict(skips.used)
    elif record.kind is Kind.RESET_TO_CHECKPOINT:
        skips.used = dict(skips.held.get(number, {}))
    elif record.kind is Kind.SUBTASK_RESET:
        skips.used = _used_after_reset(skips, state, record, number)
    elif record.attributes[SKIPPED_BY].isdecimal():
        is_redelivered = record.kind is Kind.EVENT_REDELIVERED
        sent = before.owed_redeliveries[0] if is_redelivered else record
        skip = int(record.attributes[SKIPPED_BY])
        skips.used[skip] = _Use(record.sequence or 0, sent.last_barrier)
    return evolve(state, skipped_events=skips.together())


def _used_after_reset(
    skips: _Skips, state: JobState, reset: Record, checkpoint_id: int
) -> dict[int, _Use]:
    """The uses that a reset of one subtask leaves."""
    held = skips.held.get(checkpoint_id, {})
    kept = [
        split.sequence
        for split in sorted_values(state.kept_splits)
        if split.subtask == reset.subtask
    ]
    return {
        sequence: use
        for sequence, use in skips.used.items()
        if skips.known[sequence][1].subtask != reset.subtask
        or sequence in held
        # It was skipped when it was delivered again; or it is of a split that stays read, in batch.
        or (
            use.last_barrier is not None
            and (use.last_barrier < checkpoint_id or use.sequence < max(kept, default=-1))
        )
    }
