"""The log's protocol from the view of one driver, without I/O.

The caller performs the action that `next_action` returns and reports its result, one call per event:

| action | perform | then report by |
| --- | --- | --- |
| `Append` | append these with a writer that has not failed | `acknowledged` or `outcome_unknown` |
| `ReadHighWatermark` | query the log | `high_watermark` |
| `Read` | read these offsets, in order | `record_read` for each record, then `reading_ended` |
| `Rest` | nothing: all of the goal counts, and no later record can change that | `append_begun`, for the next goal |
| `Fenced`, `Lost` | end | nothing, ever |

If an action fails without a result, nothing is reported and the same action is due again. The rules
of the protocol's model have these names in the code: *exact epoch*, *epoch in
force*, *sequence* and *whole turns* are `coordlog.schemas.validity.count`; *take-over reads back*,
*check offsets* and *fold the gap* are here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.schemas.evolution import evolve
from coordlog.schemas.header import decode_header, header_places
from coordlog.schemas.validity import Counting, Verdict, count

__all__ = [
    "Action",
    "Append",
    "DriverState",
    "Fenced",
    "Lost",
    "Place",
    "Read",
    "ReadHighWatermark",
    "Rest",
    "acknowledged",
    "append_begun",
    "high_watermark",
    "next_action",
    "outcome_unknown",
    "reading_ended",
    "record_read",
    "take_over_begun",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position up to which a log has been folded, with the result of the fold."""

    end_offset: int
    """Every record below it has been folded."""
    counting: Counting


class _Goal(enum.Enum):
    TAKE_OVER = "take over"
    APPEND = "append"


class _Step(enum.Enum):
    SEND = "send"
    ASK = "ask for the high watermark"
    READ = "read"
    REST = "rest"
    FENCED = "fenced"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """State of one driver's use of its log. Created by `take_over_begun`."""

    epoch: int
    """This driver's epoch."""
    epoch_started: UnstoredRecord
    """This driver's own `EPOCH_STARTED`: the epoch in force is this driver's if its record has these bytes."""
    place: Place
    in_force: StoredRecord | None = None
    """The `EPOCH_STARTED` that came into force last since the driver's first reading; None if none has."""
    goal: _Goal = _Goal.TAKE_OVER
    step: _Step = _Step.SEND
    group: tuple[UnstoredRecord, ...] = ()
    """Records that are to count."""
    first_sequence: int = 0
    """Sequence of the group's first record."""
    counting_after: Counting | None = None
    """Result of the fold once all of the group counts; None before the first append."""
    counted_at: tuple[int, ...] = ()
    """Offsets at which the group's records count, as far as the fold has found them: first to last."""
    is_acknowledged: bool = False
    """Whether the last append for this goal has been acknowledged."""
    read_to: int = 0
    """End of the reading in progress, exclusive."""
    lost_at: int = 0
    """The offset that shows that the log has lost records."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append `records`, in this order."""

    records: tuple[UnstoredRecord, ...]


@dataclass(frozen=True, slots=True)
class ReadHighWatermark:
    """Query the log's high watermark."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read every record with `from_offset` <= offset < `to_offset`."""

    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class Rest:
    """All of the goal counts, and no later record can change that."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another driver's epoch is in force, since `in_force`. Nothing more may be released."""

    in_force: StoredRecord


@dataclass(frozen=True, slots=True)
class Lost:
    """The log returned `offset`, below the lowest possible `expected_offset`."""

    expected_offset: int
    offset: int


Action = Append | ReadHighWatermark | Read | Rest | Fenced | Lost

_REST: Final = Rest()
_ASK: Final = ReadHighWatermark()


def next_action(state: DriverState) -> Action:
    """The action that is due."""
    match state.step:
        case _Step.SEND:
            return Append(_unconfirmed(state))
        case _Step.ASK:
            return _ASK
        case _Step.READ:
            return Read(state.place.end_offset, state.read_to)
        case _Step.REST:
            return _REST
        case _Step.FENCED:
            assert state.in_force is not None
            return Fenced(state.in_force)
        case _Step.LOST:
            return Lost(state.read_to, state.lost_at)


def take_over_begun(place: Place, epoch_started: UnstoredRecord) -> DriverState:
    """State of a driver that has read up to `place` and begins to take over the next epoch.

    Args:
        place: The log's high watermark at the end of the driver's first reading.
        epoch_started: A record whose bytes no other driver can produce; its header has the epoch after
            `place`'s.
    """
    header = decode_header(epoch_started.header)
    epoch = place.counting.epoch + 1
    assert header is not None
    assert header.is_epoch_started
    assert header.epoch == epoch
    return DriverState(
        epoch=epoch,
        epoch_started=epoch_started,
        place=place,
        group=(epoch_started,),
    )


def append_begun(state: DriverState, group: Sequence[UnstoredRecord]) -> DriverState:
    """Begin to append `group`: whole turns of the driver's epoch, with the next sequences."""
    assert state.step is _Step.REST
    assert group
    first = state.place.counting.next_sequence
    after = first + len(group)
    # Checked before they are sent: a record that cannot count would be sent until the time is up.
    places = tuple(header_places(record.header for record in group))
    assert [place[:3] for place in places] == [(False, state.epoch, n) for n in range(first, after)]
    assert places[-1][3] == 0, "the last turn is not whole"
    counting = Counting(epoch=state.epoch, next_sequence=after, turn_began=after)
    return evolve(
        state,
        goal=_Goal.APPEND,
        step=_Step.SEND,
        group=tuple(group),
        first_sequence=first,
        counting_after=counting,
        counted_at=(),
        is_acknowledged=False,
    )


def check_begun(state: DriverState) -> DriverState:
    """Begin to read the records that others have appended, without an append, to see whether the driver is fenced."""
    assert state.step is _Step.REST
    return evolve(state, step=_Step.ASK)


def acknowledged(
    state: DriverState, offsets: Sequence[int], *, is_read_back: bool = False
) -> DriverState:
    """Each record of the last `Append` is stored at its offset: *check offsets*, every one.

    Contiguous from the expected offset: these records come next, and no others. Above: the records
    between are read and folded. Below: the log has lost acknowledged records.

    Args:
        state: The driver's.
        offsets: One for each record.
        is_read_back: Whether records at the expected offsets are read too. After a pause the log of that name may be
            another one, which has just as many records; only a read shows it.
    """
    assert state.step is _Step.SEND
    sent = _unconfirmed(state)
    assert len(offsets) == len(sent)
    expected = state.place.end_offset
    lowest = min(offsets)
    if lowest < expected:
        return evolve(state, step=_Step.LOST, lost_at=lowest, read_to=expected)
    end_offset = max(offsets) + 1
    if not is_read_back and list(offsets) == list(range(expected, end_offset)):
        if state.goal is _Goal.TAKE_OVER:
            return _epoch_next(state, expected)
        if not state.counted_at:
            return _group_next(state, tuple(offsets))
    return evolve(state, step=_Step.READ, read_to=end_offset, is_acknowledged=True)


def outcome_unknown(state: DriverState) -> DriverState:
    """Each record of the last `Append` may be stored, now, later or never: read to find out."""
    assert state.step is _Step.SEND
    return evolve(state, step=_Step.ASK, is_acknowledged=False)


def high_watermark(state: DriverState, offset: int) -> DriverState:
    """The log reaches up to `offset`, exclusive."""
    assert state.step in {_Step.ASK, _Step.READ}
    lowest = state.place.end_offset if state.step is _Step.ASK else state.read_to
    if offset < lowest:
        return evolve(state, step=_Step.LOST, lost_at=offset, read_to=lowest)
    if state.step is _Step.ASK:
        return evolve(state, step=_Step.READ, read_to=offset)
    return state


def record_read(state: DriverState, record: StoredRecord) -> DriverState:
    """*Fold the gap*: one record of the reading in progress is folded, whichever driver wrote it."""
    assert state.step is _Step.READ
    assert state.place.end_offset <= record.offset < state.read_to
    header = record.header
    counting, verdict = count(state.place.counting, header)
    in_force, counted_at = state.in_force, state.counted_at
    if verdict is Verdict.EPOCH:
        in_force = record
    elif not verdict.is_void and state.goal is _Goal.APPEND and counting.epoch == state.epoch:
        counted_at = (*counted_at, record.offset)
    return evolve(
        state,
        place=Place(end_offset=record.offset + 1, counting=counting),
        in_force=in_force,
        counted_at=counted_at,
    )


def reading_ended(state: DriverState) -> DriverState:
    """Every record of a reading has been reported; the fold decides the next step."""
    assert state.step is _Step.READ
    place = replace(state.place, end_offset=state.read_to)
    return _decided(evolve(state, place=place))


def _decided(state: DriverState) -> DriverState:
    """The step after the fold has reached what was acknowledged, or the high watermark."""
    counting = state.place.counting
    if state.goal is _Goal.TAKE_OVER and counting.epoch < state.epoch:
        return evolve(state, step=_Step.SEND)  # ours has not arrived, nor has another's
    # *Take-over reads back*: of two drivers with one epoch, the one whose record counts holds it.
    # Afterwards a higher epoch in force is another driver's, whatever its content: this driver begins
    # no second epoch.
    ours = state.in_force is not None and _is_of(state.epoch_started, state.in_force)
    if counting.epoch != state.epoch or not ours:
        return evolve(state, step=_Step.FENCED)
    all_count = state.goal is _Goal.TAKE_OVER or (
        counting.counted_end == state.first_sequence + len(state.group)
    )
    # That they were read is not enough: with replicas, appended records can be read while they are on
    # one machine only. An acknowledgement at a higher offset proves that all records below are
    # replicated as required.
    if all_count and state.is_acknowledged:
        return evolve(state, step=_Step.REST)
    return evolve(state, step=_Step.SEND)


def _group_next(state: DriverState, offsets: tuple[int, ...]) -> DriverState:
    """All of the group is stored at the expected offsets, so that no record need be read."""
    assert state.counting_after is not None
    return _decided(
        evolve(
            state,
            place=Place(end_offset=offsets[-1] + 1, counting=state.counting_after),
            counted_at=offsets,
            is_acknowledged=True,
        )
    )


def _epoch_next(state: DriverState, offset: int) -> DriverState:
    """The driver's `EPOCH_STARTED`, or a further copy of it, is stored at the expected offset."""
    counting, verdict = count(state.place.counting, decode_header(state.epoch_started.header))
    stored = _stored(state.epoch_started, offset)
    return _decided(
        evolve(
            state,
            place=Place(end_offset=offset + 1, counting=counting),
            in_force=stored if verdict is Verdict.EPOCH else state.in_force,
            is_acknowledged=True,
        )
    )


def _unconfirmed(state: DriverState) -> tuple[UnstoredRecord, ...]:
    """Records to send: those that the fold has not found yet, or the last record if it has found all."""
    if state.goal is _Goal.TAKE_OVER:
        return state.group
    return state.group[len(state.counted_at) :] or state.group[-1:]


def _is_of(unstored: UnstoredRecord, stored: StoredRecord) -> bool:
    return (unstored.key, unstored.value, unstored.header) == (
        stored.key,
        stored.value,
        stored.header_bytes,
    )


def _stored(record: UnstoredRecord, offset: int) -> StoredRecord:
    return StoredRecord(
        offset=offset,
        key=record.key,
        value=record.value,
        header_bytes=record.header,
        timestamp_ms=record.timestamp_us // 1000,
    )
