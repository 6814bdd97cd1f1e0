"""A job's history for people: each record with what it is worth, and the tables they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from coordlog.errors import PayloadLostError, RecordError
from coordlog.projections.snapshot.codec import SnapshotUnusableError, schemas_of, snapshot_in
from coordlog.projections.tables.apply_errors import Applying
from coordlog.projections.tables.attempts import AttemptFold, AttemptRow
from coordlog.projections.tables.checkpoints import CheckpointFold, CheckpointRow
from coordlog.projections.tables.commits import CommitFold, CommitRow
from coordlog.projections.tables.epochs import EpochFold, EpochRow
from coordlog.projections.tables.failures import FailureFold, FailureRow
from coordlog.projections.tables.payload_json import Fields, PayloadReader
from coordlog.projections.tables.splits import SplitFold, SplitRow
from coordlog.schemas.codec import decode_record
from coordlog.schemas.header import Header
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import NOTHING_COUNTED, Counting, Verdict, judge

__all__ = [
    "Audit",
    "AuditFold",
    "AuditRecord",
    "Stored",
    "audit",
    "audit_records",
    "counting_at",
    "schemas_before",
]

UNFINISHED = "not finished: the rest of its turn is not in the log"
"""What is said of a record that may count yet."""


class Stored(Protocol):
    """A record as a log gives it back: `coordlog.log.interface.StoredRecord`, or another reader's."""

    @property
    def offset(self) -> int:
        """Its place in the log."""
        ...

    @property
    def key(self) -> bytes | None:
        """Its key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Its value."""
        ...

    @property
    def header_bytes(self) -> bytes | None:
        """Its packed header; None where it has none of ours."""
        ...

    @property
    def timestamp_ms(self) -> int:
        """The log's own time of it."""
        ...

    @property
    def header(self) -> Header | None:
        """The decoded header."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One record of the log, void ones included."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    verdict: Verdict
    record: Record | None
    """None where it is no record of ours, or one that this version cannot read."""
    fields: Fields | None
    """The payload, decoded by the schemas that counted before it."""
    problem: str | None
    """Why there is no `record`."""

    @property
    def counts(self) -> bool:
        """Whether it is part of the job's history."""
        return self.verdict in (Verdict.EPOCH, Verdict.COMPLETES)

    @property
    def why_not(self) -> str | None:
        """Why it does not count; None where it does."""
        if self.counts:
            return None
        return UNFINISHED if self.verdict is Verdict.FITS else self.verdict.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The tables that a job's history adds up to."""

    attempts: tuple[AttemptRow, ...]
    splits: tuple[SplitRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    commits: tuple[CommitRow, ...]
    failures: tuple[FailureRow, ...]
    epochs: tuple[EpochRow, ...]
    record_count: int
    """Records that count."""
    void_count: int
    """Records that do not, and will not unless their turn is finished."""


def counting_at(first: Stored) -> Counting:
    """Where counting begins in a log whose first record this is.

    Raises:
        RecordError: Records before it are gone, and it is no `SNAPSHOT`: what counts after it
            nobody can tell.
    """
    if first.offset == 0:
        return NOTHING_COUNTED
    header = first.header
    if header is not None and not header.is_epoch_started:
        record = decode_record(first.offset, first.value, first.header_bytes)
        if record.kind is Kind.SNAPSHOT and header.turn_remaining == 0:
            place = header.sequence
            return Counting(epoch=header.epoch, next_sequence=place, turn_began=place)
    raise RecordError(
        first.offset,
        "",
        "the log begins here, and not with a SNAPSHOT: what stood before is gone, by the topic's "
        "retention or by somebody's hand, and what counts cannot be told without it",
    )


def audit_records(stored: Iterable[Stored]) -> Iterator[AuditRecord]:
    """Every record of a log, in log order, with what it is worth and what it says.

    Args:
        stored: All of the log, from its first record on.

    Raises:
        RecordError: As `counting_at`.
    """
    entries = iter(stored)
    first = next(entries, None)
    if first is None:
        return
    counting, reader = counting_at(first), PayloadReader()
    if counting != NOTHING_COUNTED:
        reader.begin(schemas_before(first))
    for judged in judge(_chained(first, entries), counting):
        entry = judged.entry
        record, problem = _decoded(entry)
        one = AuditRecord(
            offset=entry.offset,
            timestamp_ms=entry.timestamp_ms,
            key=entry.key,
            value=entry.value,
            verdict=judged.verdict,
            record=record,
            fields=None,
            problem=problem,
        )
        yield one if record is None else _with_fields(one, record, reader)


def schemas_before(first: Stored) -> Mapping[str, str]:
    """The schemas, by type key, that were registered before the snapshot with which a log begins.

    Nothing where this version cannot tell.
    """
    record = decode_record(first.offset, first.value, first.header_bytes)
    try:
        return schemas_of(snapshot_in(record))
    except (SnapshotUnusableError, PayloadLostError):
        return {}


def audit(stored: Iterable[Stored]) -> Audit:
    """The tables of a log.

    Args:
        stored: All of the log, from its first record on.

    Raises:
        RecordError: A record that counts cannot be read; or as `counting_at`.
    """
    fold = AuditFold()
    for one in audit_records(stored):
        fold.apply(one)
    return fold.audit()


class AuditFold:
    """The fold behind `audit`.

    `apply` takes every record of a log, in log order, void ones included; `audit` may be asked any
    time.
    """

    def __init__(self) -> None:
        self._attempts = AttemptFold()
        self._splits = SplitFold()
        self._checkpoints = CheckpointFold()
        self._commits = CommitFold()
        self._failures = FailureFold()
        self._epochs = EpochFold()
        self._record_count = self._void_count = 0

    def apply(self, one: AuditRecord) -> None:
        """One more record.

        Raises:
            RecordError: It counts and cannot be read.
        """
        if not one.counts:
            self._void_count += 1
            return
        record = one.record
        if record is None:
            raise RecordError(one.offset, "", one.problem or "it cannot be read")
        self._record_count += 1
        with Applying(one.offset, record):
            self._attempts.apply(record, one.fields)
            self._splits.apply(record, one.fields, self._attempts)
            self._checkpoints.apply(record)
            self._commits.apply(record)
            self._failures.apply(record)
            self._epochs.apply(record)

    def audit(self) -> Audit:
        """The tables as they stand."""
        return Audit(
            attempts=self._attempts.rows(),
            splits=self._splits.rows(),
            checkpoints=self._checkpoints.rows(),
            commits=self._commits.rows(),
            failures=self._failures.rows(),
            epochs=self._epochs.rows(),
            record_count=self._record_count,
            void_count=self._void_count,
        )


def _chained(first: Stored, rest: Iterator[Stored]) -> Iterator[Stored]:
    yield first
    yield from rest


def _decoded(entry: Stored) -> tuple[Record | None, str | None]:
    if entry.header is None:
        return None, "it has no header of this log's format"
    try:
        return decode_record(entry.offset, entry.value, entry.header_bytes), None
    except RecordError as error:
        return None, error.problem


def _with_fields(one: AuditRecord, record: Record, reader: PayloadReader) -> AuditRecord:
    # What a void record registers is no type of this log, and what it says is still worth showing.
    fields = reader.read(record) if one.counts else reader.peek(record)
    return AuditRecord(
        offset=one.offset,
        timestamp_ms=one.timestamp_ms,
        key=one.key,
        value=one.value,
        verdict=one.verdict,
        record=record,
        fields=fields,
        problem=None,
    )
