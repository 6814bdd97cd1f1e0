"""Why something is as it is: the records that led there, first to last, each in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coordlog.errors import OptionError, RecordError
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

from .attempts import ADD_SPLITS, AttemptFold, split_ids
from .audit import Stored, audit_records
from .payload_json import Fields, on_one_line
from .split_audit import SKIPPED, SplitFold, SplitRow
from .unfit import Applying

__all__ = ["Explained", "Step", "explain_checkpoint", "explain_event", "explain_split"]

_CHARS: Final = 160
_DISCOVERED: Final = "coordlog.splits_discovered@"
_EVENTS: Final = (Kind.EVENT_TO_SUBTASK, Kind.EVENT_TO_COORDINATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One record of the chain."""

    offset: int
    sequence: int | None
    timestamp_us: int
    kind: Kind
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The chain, and what it comes to."""

    steps: tuple[Step, ...]
    outcome: str


@dataclass(slots=True)
class _Known:
    """All that counts, in log order."""

    offsets: list[int]
    records: list[Record]
    fields: list[Fields | None]
    by_sequence: dict[int, int]
    splits: tuple[SplitRow, ...]


def _read(stored: Iterable[Stored]) -> _Known:
    known = _Known([], [], [], {}, ())
    attempts, splits = AttemptFold(), SplitFold()
    for one in audit_records(stored):
        if not one.counts:
            continue
        if one.record is None:
            raise RecordError(one.offset, "", one.problem or "it cannot be read")
        if one.record.sequence is not None:
            known.by_sequence[one.record.sequence] = len(known.records)
        known.offsets.append(one.offset)
        known.records.append(one.record)
        known.fields.append(one.fields)
        with Applying(one.offset, one.record):
            attempts.apply(one.record, one.fields)
            splits.apply(one.record, one.fields, attempts)
    known.splits = splits.rows()
    return known


def explain_split(stored: Iterable[Stored], split_id: str) -> Explained:
    """Where a split was found, who had it, whose work was thrown away, what committed it.

    Args:
        stored: All of the log, from its first record on.
        split_id: As `coordlog splits` names it.

    Raises:
        OptionError: The log has no such split.
        RecordError: A record that counts cannot be read.
    """
    known = _read(stored)
    row = next((one for one in known.splits if one.split_id == split_id), None)
    if row is None:
        names = ", ".join(one.split_id for one in known.splits[:3])
        raise OptionError(
            "split", split_id, f"one that the log knows, as in {names}" if names else "in the log"
        )
    wanted = {one.sequence for one in row.assignments}
    wanted |= {one.sequence for one in row.thrown_away}
    holders = {(one.subtask, one.attempt_number) for one in row.assignments}
    holders |= {(one.subtask, one.attempt_number) for one in row.thrown_away}
    holders |= {one.reread_by for one in row.thrown_away if one.reread_by is not None}
    if row.finished_by is not None:
        holders.add(row.finished_by)

    def is_of_split(record: Record, fields: Fields | None) -> bool:
        if record.sequence in wanted:
            return True
        match record.kind:
            case Kind.FACT:
                if fields is None:
                    return False
                if (record.payload_type or "").startswith(SKIPPED):
                    return fields.get("split_id") == split_id
                is_listing = (record.payload_type or "").startswith(_DISCOVERED)
                return is_listing and split_id in split_ids(fields)
            case Kind.SPLIT_FINISHED:
                return fields is not None and fields.get("split_id") == split_id
            case Kind.ATTEMPT_STARTED | Kind.ATTEMPT_FAILED | Kind.SUBTASK_COMPLETED:
                return (record.subtask, record.attempt_number) in holders
            case Kind.CHECKPOINT_COMPLETED | Kind.COMMIT_INTENT | Kind.COMMIT_OUTCOME:
                return record.checkpoint_id == row.checkpoint_id
            case _:
                return False

    return _explained(
        known, is_of_split, f"split {split_id} is {row.place.value}", with_causes=False
    )


def explain_event(stored: Iterable[Stored], sequence: int) -> Explained:
    """What led to an event, and what became of it.

    Args:
        stored: As in `explain_split`.
        sequence: Of its `EVENT_TO_SUBTASK` or `EVENT_TO_COORDINATOR`.

    Raises:
        OptionError: No event stands there.
        RecordError: A record that counts cannot be read.
    """
    known = _read(stored)
    place = known.by_sequence.get(sequence)
    if place is None or known.records[place].kind not in _EVENTS:
        there = "nothing" if place is None else f"a {known.records[place].kind.value}"
        raise OptionError("event", sequence, f"the sequence of an event; {there} stands there")
    event = known.records[place]
    is_down = event.kind is Kind.EVENT_TO_SUBTASK

    def is_of_event(record: Record, _fields: Fields | None) -> bool:
        if record is event or record.cause == sequence:
            return True
        is_same = (
            record.event_id == event.event_id
            and record.subtask == event.subtask
            and record.attempt_number == event.attempt_number
        )
        return is_down and is_same and record.kind in (Kind.EVENT_ACKED, Kind.EVENT_FAILED)

    fate = "no record answers it yet"
    for one in known.records:
        if is_of_event(one, None) and one.kind in _FATES:
            fate = _FATES[one.kind]
    return _explained(known, is_of_event, f"event at sequence {sequence}: {fate}", with_causes=True)


_FATES: Final[Mapping[Kind, str]] = {
    Kind.EVENT_ACKED: "acked",
    Kind.EVENT_FAILED: "failed",
    Kind.EVENT_REDELIVERED: "handled, and handled again after a restore",
    Kind.EVENT_TO_COORDINATOR: "handled",
}


def explain_checkpoint(stored: Iterable[Stored], checkpoint_id: int) -> Explained:
    """What a checkpoint waited for, how it ended, what it committed, who went back to it.

    Args:
        stored: As in `explain_split`.
        checkpoint_id: Its number.

    Raises:
        OptionError: The log has no such checkpoint.
        RecordError: A record that counts cannot be read.
    """
    known = _read(stored)
    ends = {
        Kind.CHECKPOINT_COMPLETED: "completed",
        Kind.CHECKPOINT_ABORTED: "aborted",
    }
    own = [one for one in known.records if one.checkpoint_id == checkpoint_id]
    if not any(one.kind is Kind.CHECKPOINT_TRIGGERED for one in own):
        raise OptionError("checkpoint", checkpoint_id, "one that was triggered in this log")
    outcome = next((ends[one.kind] for one in reversed(own) if one.kind in ends), "pending")
    return _explained(
        known,
        lambda record, _fields: record.checkpoint_id == checkpoint_id,
        f"checkpoint {checkpoint_id} is {outcome}",
        with_causes=False,
    )


def _explained(
    known: _Known,
    is_wanted: Callable[[Record, Fields | None], bool],
    outcome: str,
    *,
    with_causes: bool,
) -> Explained:
    places = {
        place
        for place, (record, fields) in enumerate(zip(known.records, known.fields, strict=True))
        if is_wanted(record, fields)
    }
    left = list(places) if with_causes else []
    while left:
        cause = known.records[left.pop()].cause
        place = None if cause is None else known.by_sequence.get(cause)
        if place is not None and place not in places:
            places.add(place)
            left.append(place)
    return Explained(
        steps=tuple(
            Step(
                offset=known.offsets[place],
                sequence=known.records[place].sequence,
                timestamp_us=known.records[place].timestamp_us,
                kind=known.records[place].kind,
                words=_words(known.records[place], known.fields[place]),
            )
            for place in sorted(places)
        ),
        outcome=outcome,
    )


def _words(record: Record, fields: Fields | None) -> str:
    """The record as a sentence."""
    template = _SENTENCES.get(record.kind, "{kind}")
    what = _type(record)
    if record.kind is Kind.EVENT_TO_SUBTASK and (record.payload_type or "").startswith(ADD_SPLITS):
        what = f"splits {', '.join(split_ids(fields or {}))}"
    elif (record.payload_type or "").startswith(_DISCOVERED) and fields is not None:
        found = split_ids(fields)
        what = f"of {len(found)} new splits: {', '.join(found)}"
    elif fields is not None and record.kind in (*_EVENTS, Kind.FACT, Kind.COMMIT_INTENT):
        what = f"{what} ({on_one_line(fields, _CHARS)})"
    back_to = record.checkpoint_id
    said = template.format(
        kind=record.kind.value,
        who=_who(record),
        operator=record.operator_id or "the driver",
        checkpoint=record.checkpoint_id,
        back="its start" if back_to in (None, NO_CHECKPOINT) else f"checkpoint {back_to}",
        event=record.event_id,
        cause=record.cause,
        what=on_one_line(what, _CHARS),
        restored=record.attributes.get("restored_from", ""),
    )
    if record.kind is Kind.COMMIT_OUTCOME and record.attributes.get("settled") == "false":
        said = said.replace("is settled", "could not be settled, and is tried again")
    why = "" if record.reason is None else f", because {on_one_line(record.reason, _CHARS)}"
    return said + why


def _who(record: Record) -> str:
    if record.subtask is None:
        return "the driver"
    if record.attempt_number is None:
        return f"subtask {record.subtask}"
    return f"attempt {record.attempt_number} of subtask {record.subtask}"


def _type(record: Record) -> str:
    return (record.payload_type or "something").removeprefix("coordlog.").partition("@")[0]


_SENTENCES: Final[Mapping[Kind, str]] = {
    Kind.EPOCH_STARTED: "a driver began its reign",
    Kind.COORDINATORS_STARTED: "the coordinators were started",
    Kind.RESET_TO_CHECKPOINT: "the whole job went back to {back}",
    Kind.EVENT_REDELIVERED: "the event of sequence {cause} was handled again by {operator!r}",
    Kind.ATTEMPT_STARTED: "{who} began",
    Kind.EVENT_TO_SUBTASK: "the coordinator of {operator!r} sent {what} to {who}",
    Kind.EVENT_TO_COORDINATOR: "{who} sent {what} to the coordinator of {operator!r}",
    Kind.EVENT_ACKED: "{who} had processed event {event}",
    Kind.EVENT_FAILED: "event {event} to {who} failed",
    Kind.CHECKPOINT_TRIGGERED: "checkpoint {checkpoint} was triggered",
    Kind.COORDINATOR_CHECKPOINTED: "the coordinator of {operator!r} made its cut of {checkpoint}",
    Kind.BARRIER_INJECTED: "the barrier of {checkpoint} was sent to {who}",
    Kind.CHECKPOINT_ACKED: "{who} acked checkpoint {checkpoint}",
    Kind.CHECKPOINT_COMPLETED: "checkpoint {checkpoint} completed",
    Kind.CHECKPOINT_ABORTED: "checkpoint {checkpoint} was aborted",
    Kind.COORDINATOR_NOTIFIED: "the coordinator of {operator!r} was told about {checkpoint}",
    Kind.COMMIT_INTENT: "the commit of {what} for {operator!r} was decided on",
    Kind.COMMIT_OUTCOME: "the commit of sequence {cause} for {operator!r} is settled",
    Kind.ATTEMPT_FAILED: "{who} failed",
    Kind.SUBTASK_RESET: "{who} went back to {back}",
    Kind.GLOBAL_FAILURE: "the whole job failed",
    Kind.SPLIT_FINISHED: "{who} had read the split to its end",
    Kind.SUBTASK_COMPLETED: "{who} completed",
    Kind.FACT: "{operator!r} learnt {what}",
    Kind.REQUEST: "a client asked {operator!r}: {what}",
    Kind.RESPONSE: "{operator!r} answered the request of sequence {cause}",
    Kind.JOB_FAILED: "the job ended as failed",
    Kind.JOB_FINISHED: "the job finished",
}
