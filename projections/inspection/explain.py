"""Reasons for the place of a split, the fate of an event or the end of a checkpoint: its records, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coordlog.errors import OptionError
from coordlog.projections.tables.attempts import ADD_SPLITS, split_ids
from coordlog.projections.tables.audit import AuditFold, Stored, audit_records
from coordlog.projections.tables.checkpoints import CheckpointRow, CheckpointStatus
from coordlog.projections.tables.payload_json import Fields, on_one_line
from coordlog.projections.tables.splits import SKIPPED, SplitRow
from coordlog.schemas.builtin_types import Refused
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import (
    ALSO_ACKED,
    NO_CHECKPOINT,
    SKIPPED_BY,
    Kind,
    Notified,
    Record,
    acked_events,
)

__all__ = [
    "Explained",
    "Step",
    "explain_checkpoint",
    "explain_event",
    "explain_split",
    "words_of",
]

_CHARS: Final = 160
_DISCOVERED: Final = "coordlog.splits_discovered@"
_EVENTS: Final = (Kind.EVENT_TO_SUBTASK, Kind.EVENT_TO_COORDINATOR)
_KINDS_SHOWN: Final = (Kind.FACT, Kind.COMMIT_INTENT)
"""Kinds whose payload is shown, beside events."""
_REFUSED: Final = payload_type_of(Refused).key


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
    """The chain of records, and its outcome."""

    steps: tuple[Step, ...]
    outcome: str


@dataclass(slots=True)
class _Known:
    """All records that count, in log order."""

    offsets: list[int]
    records: list[Record]
    fields: list[Fields | None]
    by_sequence: dict[int, int]
    splits: tuple[SplitRow, ...]
    checkpoints: tuple[CheckpointRow, ...]


def _read(stored: Iterable[Stored]) -> _Known:
    known, fold = _Known([], [], [], {}, (), ()), AuditFold()
    for entry in audit_records(stored):
        fold.apply(entry)
        if not entry.counts:
            continue
        record = entry.known()
        if record.sequence is not None:
            known.by_sequence[record.sequence] = len(known.records)
        known.offsets.append(entry.offset)
        known.records.append(record)
        known.fields.append(entry.fields)
    tables = fold.audit()
    known.splits, known.checkpoints = tables.splits, tables.checkpoints
    return known


def explain_split(stored: Iterable[Stored], split_id: str) -> Explained:
    """The history of a split: its discovery, its attempts, work thrown away, and its commit.

    Args:
        stored: All of the log, from its first record on.
        split_id: Id as in `coordlog splits`.

    Raises:
        OptionError: The log has no such split.
        RecordError: A record that counts cannot be read.
    """
    known = _read(stored)
    row = next((split for split in known.splits if split.split_id == split_id), None)
    if row is None:
        names = ", ".join(split.split_id for split in known.splits[:3])
        raise OptionError(
            "split", split_id, f"one that the log knows, as in {names}" if names else "in the log"
        )
    sequences = {assignment.sequence for assignment in row.assignments}
    sequences |= {lost.sequence for lost in row.thrown_away}
    holders = {(holder.subtask, holder.attempt_number) for holder in row.assignments}
    holders |= {(lost.subtask, lost.attempt_number) for lost in row.thrown_away}
    holders |= {lost.reread_by for lost in row.thrown_away if lost.reread_by is not None}
    if row.finished_by is not None:
        holders.add(row.finished_by)

    def is_of_split(record: Record, fields: Fields | None) -> bool:
        if record.sequence in sequences:
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
    """The causes of an event, and its outcome.

    Args:
        stored: As in `explain_split`.
        sequence: Sequence of its `EVENT_TO_SUBTASK` or `EVENT_TO_COORDINATOR`, or of its `EVENT_FAILED` if the event
            was never sent.

    Raises:
        OptionError: The record with this sequence is no event.
        RecordError: A record that counts cannot be read.
    """
    known = _read(stored)
    place = known.by_sequence.get(sequence)
    if place is None or not _is_event(known.records[place]):
        actual = "no record" if place is None else f"a {known.records[place].kind.value}"
        raise OptionError(
            "event", sequence, f"the sequence of an event; {actual} has this sequence"
        )
    event = known.records[place]
    is_down = event.kind is Kind.EVENT_TO_SUBTASK

    def is_of_event(record: Record, _fields: Fields | None) -> bool:
        if record is event or record.cause == sequence:
            return True
        if not is_down or record.kind not in (Kind.EVENT_ACKED, Kind.EVENT_FAILED):
            return False
        is_acked = record.kind is Kind.EVENT_ACKED and event.event_id in acked_events(record)
        return (
            (is_acked or record.event_id == event.event_id)
            and record.subtask == event.subtask
            and record.attempt_number == event.attempt_number
        )

    fate = "no record answers it yet"
    for record in known.records:
        if is_of_event(record, None):
            fate = _fate(record) or fate
    return _explained(known, is_of_event, f"event at sequence {sequence}: {fate}", with_causes=True)


def _is_event(record: Record) -> bool:
    return record.kind in _EVENTS or _is_never_sent(record)


def _is_never_sent(record: Record) -> bool:
    """Whether the record is of an event to an attempt that was over."""
    return record.kind is Kind.EVENT_FAILED and record.attributes.get("never_sent") == "true"


def _is_skipped(record: Record) -> bool:
    """Whether its event is neither delivered nor handled (J2: skip poison)."""
    return SKIPPED_BY in record.attributes


def _fate(record: Record) -> str | None:
    """Outcome of an event by this record, or None if the record is not its outcome."""
    if _is_never_sent(record):
        return "failed: it was never sent"
    if _is_skipped(record):
        return _FATES_SKIPPED.get(record.kind)
    return _FATES.get(record.kind)


_FATES: Final[Mapping[Kind, str]] = {
    Kind.EVENT_ACKED: "acked",
    Kind.EVENT_FAILED: "failed",
    Kind.EVENT_REDELIVERED: "handled, and handled again after a restore",
    Kind.EVENT_TO_COORDINATOR: "handled",
}
_FATES_SKIPPED: Final[Mapping[Kind, str]] = {
    Kind.EVENT_ACKED: "skipped: it was not delivered",
    Kind.EVENT_REDELIVERED: "handled, and skipped after a restore",
    Kind.EVENT_TO_COORDINATOR: "skipped: it was not handled",
}


def explain_checkpoint(stored: Iterable[Stored], checkpoint_id: int) -> Explained:
    """The history of a checkpoint: its acks, its end, its commits, and the resets to it.

    Args:
        stored: As in `explain_split`.
        checkpoint_id: Number of the checkpoint.

    Raises:
        OptionError: The log has no such checkpoint.
        RecordError: A record that counts cannot be read.
    """
    known = _read(stored)
    row = next((row for row in known.checkpoints if row.checkpoint_id == checkpoint_id), None)
    if row is None:
        raise OptionError("checkpoint", checkpoint_id, "one that was triggered in this log")
    undoing = _undoing(known, checkpoint_id) if row.status is CheckpointStatus.ABANDONED else None
    return _explained(
        known,
        lambda record, _fields: record.checkpoint_id == checkpoint_id or record is undoing,
        f"checkpoint {checkpoint_id} is {row.status.value}",
        with_causes=False,
    )


def _undoing(known: _Known, checkpoint_id: int) -> Record | None:
    """The newest reset that has left the branch of this checkpoint, or None: an earlier one may have been undone."""
    parents = dict[int, int]()
    last, undoing = NO_CHECKPOINT, None

    def is_on_the_way(number: int) -> bool:
        while number > checkpoint_id:
            number = parents.get(number, NO_CHECKPOINT)
        return number == checkpoint_id

    for record in known.records:
        number = record.checkpoint_id
        if number is None:
            continue
        if record.kind is Kind.CHECKPOINT_COMPLETED:
            parents[number], last = last, number
        elif record.kind is Kind.RESET_TO_CHECKPOINT:
            if is_on_the_way(last) and not is_on_the_way(number):
                undoing = record
            last = number
    return undoing


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
    pending = list(places) if with_causes else []
    while pending:
        cause = known.records[pending.pop()].cause
        place = None if cause is None else known.by_sequence.get(cause)
        if place is not None and place not in places:
            places.add(place)
            pending.append(place)
    return Explained(
        steps=tuple(
            Step(
                offset=known.offsets[place],
                sequence=known.records[place].sequence,
                timestamp_us=known.records[place].timestamp_us,
                kind=known.records[place].kind,
                words=words_of(known.records[place], known.fields[place]),
            )
            for place in sorted(places)
        ),
        outcome=outcome,
    )


def words_of(record: Record, fields: Fields | None) -> str:
    """The record as a sentence."""
    content = _type(record)
    if record.kind is Kind.EVENT_TO_SUBTASK and (record.payload_type or "").startswith(ADD_SPLITS):
        content = f"splits {', '.join(split_ids(fields or {}))}"
    elif (record.payload_type or "").startswith(_DISCOVERED) and fields is not None:
        new_splits = split_ids(fields)
        content = f"of {len(new_splits)} new splits: {', '.join(new_splits)}"
    elif fields is not None and (record.kind in _KINDS_SHOWN or _is_event(record)):
        content = f"{content} ({on_one_line(fields, _CHARS)})"
    back_to = record.checkpoint_id
    sentence = _sentence(record).format(
        kind=record.kind.value,
        who=_who(record),
        operator=record.operator_id or "the driver",
        checkpoint=record.checkpoint_id,
        back="its start" if back_to in (None, NO_CHECKPOINT) else f"checkpoint {back_to}",
        event=_events(record),
        cause=record.cause,
        what=on_one_line(content, _CHARS),
        refused=(fields or {}).get("what", "something"),
        outcome=record.attributes.get("outcome", ""),
    )
    why = "" if record.reason is None else f", because {on_one_line(record.reason, _CHARS)}"
    return sentence + why


def _sentence(record: Record) -> str:
    """Template by kind and attributes: some records state that an action was not done."""
    attributes = record.attributes
    match record.kind:
        case Kind.EVENT_ACKED if _is_skipped(record):
            return "event {event} to {who} counts as processed"
        case Kind.EVENT_ACKED if ALSO_ACKED in attributes:
            return "{who} had processed events {event}"
        case Kind.EVENT_REDELIVERED if _is_skipped(record):
            return "the event of sequence {cause} was not handled again by {operator!r}"
        case Kind.EVENT_TO_COORDINATOR if _is_skipped(record):
            return "{who} sent {what} to the coordinator of {operator!r}, which did not handle it"
        case Kind.EVENT_FAILED if _is_never_sent(record):
            return "event {event}, {what}, to {who} was never sent"
        case Kind.COMMIT_OUTCOME if attributes.get("settled") == "false":
            tried = ", and no other try can help" if attributes.get("final") else ""
            return (
                f"the commit of sequence {{cause}} for {{operator!r}} could not be settled{tried}"
            )
        case Kind.COORDINATOR_NOTIFIED if attributes.get("what") in _NOTIFIED:
            return f"the coordinator of {{operator!r}} was notified that {_NOTIFIED[attributes['what']]}"
        case Kind.FACT if record.payload_type == _REFUSED:
            by = "{operator!r}" if record.subtask is None else "{who}"
            return f"{{refused}} of {by} was recorded only"
        case Kind.FACT if attributes.get("closed") == "true":
            return "what came for {operator!r} was recorded only: {what}"
        case Kind.RESPONSE if attributes.get("outcome", _ANSWERED) != _ANSWERED:
            return "the request of sequence {cause} to {operator!r} was not answered ({outcome})"
        case _:
            return _SENTENCES.get(record.kind, "{kind}")


def _events(record: Record) -> str:
    """The event of a record, or the events."""
    if record.kind is not Kind.EVENT_ACKED:
        return str(record.event_id)
    return on_one_line(", ".join(map(str, acked_events(record))), _CHARS)


def _who(record: Record) -> str:
    if record.subtask is None:
        return "the driver"
    if record.attempt_number is None:
        return f"subtask {record.subtask}"
    return f"attempt {record.attempt_number} of subtask {record.subtask}"


def _type(record: Record) -> str:
    return (record.payload_type or "something").removeprefix("coordlog.").partition("@")[0]


_ANSWERED: Final = "answered"
_NOTIFIED: Final[Mapping[str, str]] = {
    Notified.ABORTED: "checkpoint {checkpoint} was aborted",
    Notified.COMPLETE: "checkpoint {checkpoint} completed",
}
_SENTENCES: Final[Mapping[Kind, str]] = {
    Kind.EPOCH_STARTED: "a driver began its epoch",
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
    Kind.COORDINATOR_NOTIFIED: "the coordinator of {operator!r} was notified of checkpoint {checkpoint}",
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
