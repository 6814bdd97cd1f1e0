"""Check of a whole history: its records can be read, they fold, and facts that it records twice agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from coordlog.errors import PayloadLostError, RecordError
from coordlog.projections.inspection.ahead import Ahead, Furthest, place_text
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
from coordlog.projections.tables.audit import Applying, AuditRecord, Stored, audit_records
from coordlog.projections.tables.waiting_splits import WaitingSplits
from coordlog.schemas.checkpoint_metadata import read_metadata
from coordlog.schemas.codec import payload_fingerprint
from coordlog.schemas.payload_address import is_stored
from coordlog.schemas.record import Kind, Record, record_key
from coordlog.schemas.untrusted_schema import foreign_avro
from coordlog.schemas.validity import Verdict

__all__ = ["Fault", "Verified", "verify"]

_FAULTS_MAX: Final = 100
"""Number of faults that are kept; further ones are only counted."""
_IDENTITY: Final = ("cluster_id", "topic_id")
"""Attributes of an `EPOCH_STARTED` that identify the log to which it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A check that failed, with the offset of the record."""

    offset: int
    what: str


@dataclass(slots=True, kw_only=True)
class Verified:
    """Result of `verify`: numbers of checked items, and the faults."""

    record_count: int = 0
    """Records that count."""
    void_count: int = 0
    ahead: Ahead | None = None
    """Furthest void record of the job, if it may belong to one append that was cut off; else None.

    If no append can explain it, records are missing, which is a fault."""
    turn_count: int = 0
    """Turns after which every invariant was checked."""
    payload_count: int = 0
    """Payloads decoded by the schemas that the log holds."""
    type_count: int = 0
    checkpoint_count: int = 0
    """Completed checkpoints whose metadata was compared with the fold."""
    stored_count: int = 0
    """Payloads in the payload store that were read and compared with their addresses."""
    stored_bytes: int = 0
    absent_count: int = 0
    """Payloads in a payload store that were not opened, as in a redacted history. They are no faults."""
    snapshot_count: int = 0
    """Snapshots whose state was compared with the fold."""
    other_snapshots: dict[str, int] = field(default_factory=dict)
    """Number of snapshots that this version of coordlog cannot read, by their version. They are no faults."""
    byte_count: int = 0
    fault_count: int = 0
    faults: list[Fault] = field(default_factory=list)
    """The first faults, at most 100."""
    is_whole: bool = True
    """Whether the log was read to its end: a record that cannot be applied ends the check."""
    state: JobState = field(default_factory=JobState)
    """State of the fold at the last record that was read, without coordinators' projections."""
    job_types: set[str] = field(default_factory=set)
    """Types of payloads without an operator: readers of the history decode these."""

    def found(self, offset: int, what: str) -> None:
        """Add a fault."""
        self.fault_count += 1
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(Fault(offset=offset, what=what))


def verify(
    stored: Iterable[Stored],
    *,
    identity: tuple[str, str] = ("", ""),
    open_payload: OpenPayload | None = no_store,
) -> Verified:
    """Read, fold and check a whole log.

    Args:
        stored: All of the log, from its first record on.
        identity: Cluster id and topic id of the log itself; empty strings if it has none.
        open_payload: Returns the content of a stored payload, and raises PayloadLostError if it is missing or differs.
            Its second argument is the store that the history names. If it is None or returns None, stored
            payloads are not opened: they are counted as absent, and are no faults.

    Raises:
        RecordError: The first records of the log were removed, and it does not begin with a `SNAPSHOT`.
    """
    verified, fold, waiting = Verified(), PlainFold(), WaitingSplits()
    check = StoredCheck(open_payload)
    epoch_offset = 0
    furthest = Furthest()
    for entry in audit_records(stored):
        verified.byte_count += len(entry.value or b"")
        if not entry.counts:
            verified.void_count += 1
            if entry.record is not None and entry.verdict is not Verdict.FITS:
                furthest.add(entry.offset, entry.record, fold.state.job_id)
            continue
        record = entry.record
        if record is None:
            verified.found(entry.offset, entry.problem or "it cannot be read")
            verified.is_whole = False
            break
        verified.record_count += 1
        try:
            with Applying(entry.offset, record):
                _check(verified, fold, entry, record, check)
                if (problem := waiting.apply(record, entry.fields)) is not None:
                    verified.found(entry.offset, problem)
        except RecordError as error:
            verified.found(entry.offset, str(error.problem))
            verified.is_whole = False
            break
        if record.kind is Kind.EPOCH_STARTED:
            epoch_offset = entry.offset
    for name, own, recorded in zip(_IDENTITY, identity, fold.state.launch_info.log, strict=True):
        if own and recorded and own != recorded:
            verified.found(
                epoch_offset,
                f"it was written to the log of {name} {recorded}, and this one has {own}",
            )
    if verified.is_whole:
        _check_ahead(verified, furthest.of(fold.state), fold.state)
    verified.state = fold.state
    verified.stored_count, verified.stored_bytes = check.count, check.size_bytes
    verified.absent_count = check.absent_count
    return verified


def _check_ahead(verified: Verified, ahead: Ahead | None, state: JobState) -> None:
    """Add a fault if records are missing before those that are ahead."""
    if ahead is None or ahead.is_of_one_group:
        verified.ahead = ahead
        return
    verified.found(
        ahead.offset,
        f"it has {ahead.place}, and the last record that counts has "
        f"{place_text(state.epoch, state.next_sequence - 1)}: records between them are missing from this log",
    )


def _check(
    verified: Verified, fold: PlainFold, entry: AuditRecord, record: Record, check: StoredCheck
) -> None:
    """Fold a record that counts, and add the faults of the record and of the state after it."""
    before = fold.state
    if record.kind is Kind.SNAPSHOT:
        before, faults = _snapshot(verified, before, entry, record, check)
        fold.begin_with(before)
        for problem in faults:
            verified.found(entry.offset, problem)
    for problem in _record_faults(verified, entry, record):
        verified.found(entry.offset, problem)
    fold.apply(entry)
    state = fold.state
    moves = _moves(before, state) if record.kind is Kind.EPOCH_STARTED else ()
    for problem in (
        *moves,
        *_owner_faults(state, record),
        *_state_faults(verified, state, record),
        *check.faults(state, entry, record),
    ):
        verified.found(entry.offset, problem)


def _owner_faults(state: JobState, record: Record) -> Iterator[str]:
    """Fault of a record that fits into an epoch by its numbers only, as in a mirror of two logs in one topic."""
    of_record, of_epoch = (record.job_id, record.driver_id), (state.job_id, state.driver_id)
    if of_record != of_epoch:
        yield (
            f"it is of job {of_record[0]} and driver {of_record[1]}, and its epoch of job {of_epoch[0]} and "
            f"driver {of_epoch[1]}: it belongs to another log"
        )


def _moves(before: JobState, state: JobState) -> Iterator[str]:
    """Faults of an epoch whose log is neither that of the epoch before nor adopted from it."""
    origin = state.launch_info.adopted_from
    if "begun_from" in state.launch and origin is None:
        return  # the records before were copied from the log of another job
    logs = zip(before.launch_info.log, state.launch_info.log, origin or ("", ""), strict=True)
    for name, (before_id, id_now, origin_id) in zip(_IDENTITY, logs, strict=True):
        if origin is not None and before_id != origin_id:
            yield f"it records that the job comes from {name} {origin_id}, and it comes from {before_id}"
        if origin is None and before_id and id_now and before_id != id_now:
            yield f"it was written to the log of {name} {id_now}, and the epoch before to that of {before_id}"


def _snapshot(
    verified: Verified, state: JobState, entry: AuditRecord, record: Record, check: StoredCheck
) -> tuple[JobState, tuple[str, ...]]:
    """State before a snapshot (that of the snapshot if the log begins with it), and faults of the snapshot."""
    try:
        held, apart = state_and_kept_apart(record, check.opener(state))
    except SnapshotVersionError as error:
        if entry.beginning is not None:
            problem = f"the log begins with this snapshot: {error}; use the version that wrote it"
            raise RecordError(entry.offset, record.kind.value, problem) from error
        verified.other_snapshots[error.version] = verified.other_snapshots.get(error.version, 0) + 1
        return state, ()
    except PayloadLostError:
        return state, ()  # a fault of the payload, which its own check reports
    except SnapshotUnusableError as error:
        return state, (f"the snapshot is no place to start from: {error}",)
    if entry.beginning is not None:
        state = held
    verified.snapshot_count += 1
    faults = () if held == state else ("the snapshot's state is not the fold's there",)
    return state, (*faults, *check.faults_in(apart, held))


def _record_faults(verified: Verified, entry: AuditRecord, record: Record) -> Iterator[str]:
    key = record_key(record)
    if entry.key != key.encode():
        yield f"its key is {entry.key!r}, and its value has {key!r}"
    if entry.timestamp_ms != record.timestamp_us // 1000:
        yield (
            f"the log's time of it is {entry.timestamp_ms} ms, and its value has "
            f"{record.timestamp_us // 1000} ms: a topic with message.timestamp.type=LogAppendTime does so"
        )
    if record.kind is Kind.TYPE_REGISTERED:
        verified.type_count += 1
        schema = (record.payload or b"").decode(errors="replace")
        fingerprint = record.attributes.get("fingerprint", "")
        try:
            is_same = f"{payload_fingerprint(foreign_avro(schema).schema_json):016x}" == fingerprint
        except ValueError as error:
            yield f"the schema of {record.payload_type} cannot be read: {error}"
            return
        if not is_same:
            yield f"the schema of {record.payload_type} has another fingerprint than {fingerprint}"
    elif (
        record.payload is not None and record.payload_type is not None
    ):  # else it is a coordinator's own
        verified.payload_count += 1
        if record.operator_id is None:
            verified.job_types.add(record.payload_type)
        if entry.fields is None and not is_stored(record.payload):
            yield (
                f"its payload of {len(record.payload)} bytes is no {record.payload_type} by the "
                "schema that the log holds"
            )


def _state_faults(verified: Verified, state: JobState, record: Record) -> Iterator[str]:
    if record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id is not None:
        verified.checkpoint_count += 1
        completed = state.completed.get(record.checkpoint_id)
        if completed is None:
            yield f"checkpoint {record.checkpoint_id} has completed, and the fold does not hold it"
        else:
            yield from _metadata_faults(record, completed, state)
    if record.turn_remaining == 0:
        verified.turn_count += 1
        yield from faults_of(state)


def _metadata_faults(
    record: Record, completed: CompletedCheckpoint, state: JobState
) -> Iterator[str]:
    """Differences between the metadata in the record and the fold."""
    read = read_metadata(record.payload_type, record.payload)
    metadata, name = read.value, f"checkpoint {completed.checkpoint_id}"
    cuts = {cut.operator_id: cut.sequence for cut in metadata.coordinators}
    folded = {operator_id: cut.sequence for operator_id, cut in completed.cuts.items()}
    if cuts != folded and read.version > 1:
        yield f"{name} names the cuts {cuts}, and the fold has {dict(sorted(folded.items()))}"
    in_flight = [event.sequence for event in completed.in_flight]
    if metadata.in_flight_events != in_flight and read.version > 1:
        yield f"{name} names the events {metadata.in_flight_events} in flight, the fold has {in_flight}"
    finished = sorted(part.subtask for part in metadata.finished)
    if finished != sorted(completed.finished):
        yield f"{name} names {finished} as finished, and the fold has {sorted(completed.finished)}"
    yield from metadata_differences(metadata, completed, state.types)
    if "states" in record.attributes:
        return  # the states are in the records of its cuts and acks
    for part in metadata.subtasks:
        if completed.states.get(part.subtask) != tuple(part.states):
            yield f"{name} holds another state of subtask {part.subtask} than the fold"
    for cut in metadata.coordinators:
        folded_cut = completed.cuts.get(cut.operator_id)
        if folded_cut is not None and folded_cut.state != cut.state:
            yield f"{name} holds another state of coordinator {cut.operator_id!r} than the fold"
