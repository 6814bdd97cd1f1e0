"""Checks a whole history: that it can be read, that it folds, and that what it says of itself is so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from coordlog.errors import PayloadLostError, RecordError
from coordlog.limits import GROUP_RECORDS_MAX
from coordlog.projections.inspection.codeless_fold import PlainFold
from coordlog.projections.inspection.payload_check import OpenPayload, StoredCheck, no_store
from coordlog.projections.job.checkpoint_digest import metadata_differences
from coordlog.projections.job.invariants import faults_of
from coordlog.projections.job.state import CompletedCheckpoint, JobState
from coordlog.projections.snapshot.codec import (
    SnapshotUnusableError,
    SnapshotVersionError,
    state_and_kept_apart,
)
from coordlog.projections.tables.apply_errors import Applying
from coordlog.projections.tables.audit import AuditRecord, Stored, audit_records
from coordlog.projections.tables.waiting_splits import WaitingSplits
from coordlog.schemas.checkpoint_metadata import read_metadata
from coordlog.schemas.codec import avro_fingerprint
from coordlog.schemas.payload_address import is_stored
from coordlog.schemas.record import Kind, Record, record_key
from coordlog.schemas.untrusted_schema import foreign_avro
from coordlog.schemas.validity import Verdict

__all__ = ["Ahead", "Fault", "Verified", "verify"]

_FAULTS_MAX: Final = 100
"""Kept; more are only counted."""
_IDENTITY: Final = ("cluster_id", "topic_id")
"""Attributes of an `EPOCH_STARTED`: which log it was written to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that does not hold."""

    offset: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The record that is furthest ahead of the last that counts."""

    offset: int
    epoch: int
    sequence: int
    """Of an `EPOCH_STARTED`, which has none: -1."""


@dataclass(slots=True, kw_only=True)
class Verified:
    """How much was checked, and what was found."""

    record_count: int = 0
    """Records that count."""
    void_count: int = 0
    ahead: Ahead | None = None
    """Set if a record of the job does not count although a driver had the records before it, and it may be of one
    append that was cut off. If that cannot be, records are missing, which is a fault."""
    turn_count: int = 0
    """Turns after which every invariant was checked."""
    payload_count: int = 0
    """Payloads decoded by the schemas that the log holds."""
    type_count: int = 0
    checkpoint_count: int = 0
    """Completed ones whose metadata was compared with the fold."""
    stored_count: int = 0
    """Payloads in the payload store that were read and compared with their addresses."""
    stored_bytes: int = 0
    absent_count: int = 0
    """Payloads in a payload store that were not opened, as of a redacted history: no faults."""
    snapshot_count: int = 0
    """Those whose state was compared with the fold."""
    other_snapshots: dict[str, int] = field(default_factory=dict)
    """How many could not be compared, as this version of coordlog cannot read theirs, by that: no faults."""
    byte_count: int = 0
    fault_count: int = 0
    faults: list[Fault] = field(default_factory=list)
    """The first ones."""
    is_whole: bool = True
    """The log was read to its end: a record that cannot be applied ends the reading."""
    state: JobState = field(default_factory=JobState)
    """What the fold came to there, without coordinators' projections."""
    job_types: set[str] = field(default_factory=set)
    """Types of the payloads of no operator: readers of the history look into these."""

    def found(self, offset: int, what: str) -> None:
        """One more fault."""
        self.fault_count += 1
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(Fault(offset=offset, what=what))


def verify(
    stored: Iterable[Stored],
    *,
    identity: tuple[str, str] = ("", ""),
    on_progress: Callable[[int], None] | None = None,
    open_payload: OpenPayload | None = no_store,
) -> Verified:
    """Read, fold and check a whole log.

    Args:
        stored: All of the log, from its first record on.
        identity: The log's own cluster id and topic id; empty where it has none.
        on_progress: Called with each offset.
        open_payload: Gives the content of a stored payload, and raises PayloadLostError where it is
            not there or another one; told too which store the history names. None, as its answer
            too, if none may be opened: stored payloads are counted as absent then, and are no faults.

    Raises:
        RecordError: The log's first records are gone, and it does not begin with a `SNAPSHOT`.
    """
    made, fold, waiting = Verified(), PlainFold(), WaitingSplits()
    check = StoredCheck(open_payload)
    began = 0
    furthest = _Furthest()
    for one in audit_records(stored):
        if on_progress is not None:
            on_progress(one.offset)
        made.byte_count += len(one.value or b"")
        if not one.counts:
            made.void_count += 1
            furthest.look_at(one)
            continue
        record = one.record
        if record is None:
            made.found(one.offset, one.problem or "it cannot be read")
            made.is_whole = False
            break
        made.record_count += 1
        try:
            with Applying(one.offset, record):
                _check(made, fold, one, record, check)
                if (problem := waiting.apply(record, one.fields)) is not None:
                    made.found(one.offset, problem)
        except RecordError as error:
            made.found(one.offset, str(error.problem))
            made.is_whole = False
            break
        if record.kind is Kind.EPOCH_STARTED:
            began = one.offset
    for name, here in zip(_IDENTITY, identity, strict=True):
        there = fold.state.launch.get(name, "")
        if here and there and here != there:
            made.found(
                began, f"it was written to the log of {name} {there}, and this one has {here}"
            )
    if made.is_whole:
        _check_ahead(made, furthest, fold.state)
    made.state = fold.state
    made.stored_count, made.stored_bytes = check.count, check.size_bytes
    made.absent_count = check.absent_count
    return made


class _Furthest:
    """The void records with the highest epoch and with the highest sequence."""

    def __init__(self) -> None:
        self._by_epoch: tuple[str, Ahead] | None = None
        self._by_sequence: tuple[str, Ahead] | None = None
        self._turn_end: tuple[int, int] = (-1, -1)
        """Epoch and sequence of the highest record that ends a turn."""
        self.turn_before = -1
        """Sequence at which the turn before that one ended, if both are of one epoch."""

    def look_at(self, one: AuditRecord) -> None:
        """One more void record."""
        record = one.record
        if record is None or one.verdict is Verdict.FITS:
            return
        sequence = -1 if record.sequence is None else record.sequence
        candidate = record.job_id, Ahead(offset=one.offset, epoch=record.epoch, sequence=sequence)
        if self._by_epoch is None or record.epoch > self._by_epoch[1].epoch:
            self._by_epoch = candidate
        if self._by_sequence is None or sequence > self._by_sequence[1].sequence:
            self._by_sequence = candidate
        epoch, highest = self._turn_end
        if record.turn_remaining == 0 and sequence > highest:
            self.turn_before = highest if epoch == record.epoch else -1
            self._turn_end = (record.epoch, sequence)

    def of(self, state: JobState) -> Ahead | None:
        """The one that is ahead of what the log comes to; None if none of this job is."""
        epoch, sequence = self._by_epoch, self._by_sequence
        if epoch is not None and epoch[1].epoch > state.epoch and epoch[0] == state.job_id:
            return epoch[1]
        if sequence is None or sequence[0] != state.job_id:
            return None
        return sequence[1] if sequence[1].sequence >= state.next_sequence else None


def _check_ahead(made: Verified, furthest: _Furthest, state: JobState) -> None:
    """Whether records are missing before those that are ahead.

    A driver begins an epoch once the one before it is in force, and appends a group once the one before it counts. A
    group is one turn, or at most `GROUP_RECORDS_MAX` records. So what is further ahead was appended to a log that had
    more.
    """
    ahead = furthest.of(state)
    if ahead is None:
        return
    is_of_one_group = furthest.turn_before < state.next_sequence + GROUP_RECORDS_MAX
    if ahead.epoch <= state.epoch and is_of_one_group:
        made.ahead = ahead
        return
    made.found(
        ahead.offset,
        f"it has {_place(ahead.epoch, ahead.sequence)}, and the last record that counts has "
        f"{_place(state.epoch, state.next_sequence - 1)}: records between them are missing from this log",
    )


def _place(epoch: int, sequence: int) -> str:
    return f"epoch {epoch}" if sequence < 0 else f"sequence {sequence} of epoch {epoch}"


def _check(
    made: Verified, fold: PlainFold, one: AuditRecord, record: Record, check: StoredCheck
) -> None:
    """Fold a record that counts, and note what does not hold of it, and behind it."""
    before = fold.state
    if record.kind is Kind.SNAPSHOT:
        before, faults = _snapshot(made, before, one.offset, record, check)
        fold.begin_with(before)
        for what in faults:
            made.found(one.offset, what)
    for what in _record_faults(made, one, record):
        made.found(one.offset, what)
    fold.apply(one)
    state = fold.state
    moves = _moves(before, state) if record.kind is Kind.EPOCH_STARTED else ()
    for what in (*moves, *_state_faults(made, state, record), *check.faults(state, one, record)):
        made.found(one.offset, what)


def _moves(before: JobState, state: JobState) -> Iterator[str]:
    """Whether an epoch is on the same log as the one before, or says that the job has moved from there."""
    said = {name: state.launch.get(f"adopted_{name}", "") for name in _IDENTITY}
    is_adoption = any(said.values())
    if "begun_from" in state.launch and not is_adoption:
        return  # what stands before was copied from another job's log
    for name in _IDENTITY:
        was, now = before.launch.get(name, ""), state.launch.get(name, "")
        if is_adoption and was != said[name]:
            yield f"it says that the job comes from {name} {said[name]}, and it comes from {was}"
        if not is_adoption and was and now and was != now:
            yield f"it was written to the log of {name} {now}, and the epoch before to that of {was}"


def _snapshot(
    made: Verified, state: JobState, offset: int, record: Record, check: StoredCheck
) -> tuple[JobState, tuple[str, ...]]:
    """The state before it, which is its own where a log begins with it; and what is wrong with it."""
    try:
        held, apart = state_and_kept_apart(record, check.opener(state))
    except SnapshotVersionError as error:
        if made.record_count == 1:
            problem = f"the log begins with this snapshot: {error}; use the version that wrote it"
            raise RecordError(offset, record.kind.value, problem) from error
        made.other_snapshots[error.version] = made.other_snapshots.get(error.version, 0) + 1
        return state, ()
    except PayloadLostError:
        return state, ()  # a fault of the payload, which is said there
    except SnapshotUnusableError as error:
        return state, (f"the snapshot is no place to start from: {error}",)
    if made.record_count == 1:
        state = held
    made.snapshot_count += 1
    faults = () if held == state else ("the snapshot's state is not the fold's there",)
    return state, (*faults, *check.faults_in(apart, held))


def _record_faults(made: Verified, one: AuditRecord, record: Record) -> Iterator[str]:
    key = record_key(record)
    if one.key != key.encode():
        yield f"its key is {one.key!r}, and its value says {key!r}"
    if one.timestamp_ms != record.timestamp_us // 1000:
        yield (
            f"the log's time of it is {one.timestamp_ms} ms, and its value says "
            f"{record.timestamp_us // 1000} ms: a topic with message.timestamp.type=LogAppendTime does so"
        )
    if record.kind is Kind.TYPE_REGISTERED:
        made.type_count += 1
        schema = (record.payload or b"").decode(errors="replace")
        said = record.attributes.get("fingerprint", "")
        try:
            is_so = f"{avro_fingerprint(foreign_avro(schema).schema_json):016x}" == said
        except ValueError as error:
            yield f"the schema of {record.payload_type} cannot be read: {error}"
            return
        if not is_so:
            yield f"the schema of {record.payload_type} has another fingerprint than {said}"
    elif record.payload is not None and record.payload_type is not None:  # else a coordinator's own
        made.payload_count += 1
        if record.operator_id is None:
            made.job_types.add(record.payload_type)
        if one.fields is None and not is_stored(record.payload):
            yield (
                f"its payload of {len(record.payload)} bytes is no {record.payload_type} by the "
                "schema that the log holds"
            )


def _state_faults(made: Verified, state: JobState, record: Record) -> Iterator[str]:
    if record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id is not None:
        made.checkpoint_count += 1
        completed = state.completed.get(record.checkpoint_id)
        if completed is None:
            yield f"checkpoint {record.checkpoint_id} has completed, and the fold does not hold it"
        else:
            yield from _metadata_faults(record, completed, state)
    if record.turn_remaining == 0:
        made.turn_count += 1
        yield from faults_of(state)


def _metadata_faults(
    record: Record, completed: CompletedCheckpoint, state: JobState
) -> Iterator[str]:
    """Whether what the record says by name is what the fold comes to."""
    read = read_metadata(record.payload_type, record.payload)
    said, name = read.value, f"checkpoint {completed.checkpoint_id}"
    cuts = {one.operator_id: one.sequence for one in said.coordinators}
    folded = {operator_id: cut.sequence for operator_id, cut in completed.cuts.items()}
    if cuts != folded and read.version > 1:
        yield f"{name} names the cuts {cuts}, and the fold has {dict(sorted(folded.items()))}"
    in_flight = [one.sequence for one in completed.in_flight]
    if said.in_flight_events != in_flight and read.version > 1:
        yield f"{name} names the events {said.in_flight_events} in flight, the fold has {in_flight}"
    finished = sorted(one.subtask for one in said.finished)
    if finished != sorted(completed.finished):
        yield f"{name} names {finished} as finished, and the fold has {sorted(completed.finished)}"
    yield from metadata_differences(said, completed, state.types)
    if "states" in record.attributes:
        return  # they stand in the records of its cuts and acks
    for part in said.subtasks:
        if completed.states.get(part.subtask) != tuple(part.states):
            yield f"{name} holds another state of subtask {part.subtask} than the fold"
    for cut in said.coordinators:
        known = completed.cuts.get(cut.operator_id)
        if known is not None and known.state != cut.state:
            yield f"{name} holds another state of coordinator {cut.operator_id!r} than the fold"
