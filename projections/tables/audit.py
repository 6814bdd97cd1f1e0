"""A job's history for people: each record with its verdict, and the tables of all records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from coordlog.errors import LogError, PayloadLostError, RecordError
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import schemas_before, state_before
from coordlog.projections.tables.attempts import AttemptFold, AttemptRow
from coordlog.projections.tables.checkpoints import CheckpointFold, CheckpointRow
from coordlog.projections.tables.commits import CommitFold, CommitRow
from coordlog.projections.tables.epochs import EpochFold, EpochRow
from coordlog.projections.tables.failures import FailureFold, FailureRow
from coordlog.projections.tables.payload_json import Fields, PayloadReader
from coordlog.projections.tables.splits import SplitFold, SplitRow
from coordlog.schemas.codec import decode_record
from coordlog.schemas.header import Header
from coordlog.schemas.record import Record
from coordlog.schemas.validity import Beginning, HasContent, Judged, Turns, Verdict, begun

__all__ = [
    "Applying",
    "Audit",
    "AuditFold",
    "AuditReader",
    "AuditRecord",
    "Stored",
    "audit",
    "audit_records",
    "state_at_beginning",
]

UNFINISHED = "not finished: the rest of its turn is not in the log"
"""Reason for a record that may count later."""


class Stored(HasContent, Protocol):
    """A record as a log returns it: `coordlog.log.interface.StoredRecord`, or another reader's."""

    @property
    def key(self) -> bytes | None:
        """Key of the record."""
        ...

    @property
    def timestamp_ms(self) -> int:
        """Timestamp of the log, in milliseconds since 1970, UTC."""
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
    """Decoded record, or None if it has another format or this version cannot read it."""
    fields: Fields | None
    """Payload, decoded by the schemas that counted before it."""
    problem: str | None
    """Reason if `record` is None."""
    beginning: Beginning | None = None
    """How the log begins, on its first record."""

    @property
    def counts(self) -> bool:
        """Whether the record is part of the job's history."""
        return self.verdict.counts

    def known(self) -> Record:
        """The record, which counts. Raises RecordError if this version cannot read it."""
        if self.record is None:
            raise RecordError(self.offset, "", self.problem or "it cannot be read")
        return self.record

    @property
    def why_not(self) -> str | None:
        """Reason if the record does not count, else None."""
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
    """Number of records that count."""
    void_count: int
    """Number of records that do not count, unless their turn is finished later."""


def audit_records(stored: Iterable[Stored]) -> Iterator[AuditRecord]:
    """Every record of a log, in log order, with its verdict and its content.

    Args:
        stored: All of the log, from its first record on; or from a released `SNAPSHOT` on.

    Raises:
        RecordError: As `beginning_of`.
    """
    beginning, entries = begun(stored)
    reader = AuditReader(beginning)
    for entry in entries:
        yield from reader.feed(entry)
    yield from reader.rest()


class AuditReader:
    """Judges and decodes the records of a log that is still growing; fed in offset order.

    Args:
        beginning: Beginning of the reading; its record is the first one fed.
    """

    def __init__(self, beginning: Beginning) -> None:
        self._turns = Turns[Stored](beginning.counting)
        self._payloads = PayloadReader()
        self._payloads.begin(schemas_before(beginning))
        self._beginning: Beginning | None = beginning

    def feed(self, entry: Stored) -> Iterator[AuditRecord]:
        """The records whose verdict is final with this one; those of an unfinished turn wait for its end."""
        return map(self._read, self._turns.feed(entry))

    def rest(self) -> Iterator[AuditRecord]:
        """The records of the unfinished turn."""
        return map(self._read, self._turns.waiting)

    def _read(self, judged: Judged[Stored]) -> AuditRecord:
        entry = judged.entry
        record, problem = _decoded(entry, judged.header)
        fields = None
        if record is not None:
            # A type registered by a void record is no type of the log, but its payload is shown.
            reads = self._payloads.read if judged.counts else self._payloads.peek
            fields = reads(record)
        beginning, self._beginning = self._beginning, None
        return AuditRecord(
            offset=entry.offset,
            timestamp_ms=entry.timestamp_ms,
            key=entry.key,
            value=entry.value,
            verdict=judged.verdict,
            record=record,
            fields=fields,
            problem=problem,
            beginning=beginning,
        )


def state_at_beginning(entry: AuditRecord) -> JobState | None:
    """State with which a pruned log begins, on its first record; None on others, or if it cannot be read here."""
    if entry.beginning is None or entry.beginning.snapshot is None:
        return None
    try:
        return state_before(entry.beginning)
    except RecordError:  # of another version, or redacted: the tables show the records alone
        return None


def audit(stored: Iterable[Stored]) -> Audit:
    """The tables of a log.

    Args:
        stored: All of the log, from its first record on.

    Raises:
        RecordError: A record that counts cannot be read; or as `beginning_of`.
    """
    fold = AuditFold()
    for entry in audit_records(stored):
        fold.apply(entry)
    return fold.audit()


class AuditFold:
    """The fold behind `audit`.

    `apply` takes every record of a log, in log order, void ones included; `audit` may be called at
    any time.
    """

    def __init__(self) -> None:
        self._attempts = AttemptFold()
        self._splits = SplitFold()
        self._checkpoints = CheckpointFold()
        self._commits = CommitFold()
        self._failures = FailureFold()
        self._epochs = EpochFold()
        self._record_count = self._void_count = 0

    def apply(self, entry: AuditRecord) -> None:
        """Apply one record.

        Raises:
            RecordError: The record counts and cannot be read.
        """
        if not entry.counts:
            self._void_count += 1
            return
        record = entry.known()
        self._record_count += 1
        state = state_at_beginning(entry)
        if state is not None:
            self._begin(state)
        with Applying(entry.offset, record):
            self._attempts.apply(record, entry.fields)
            self._splits.apply(record, entry.fields, self._attempts)
            self._checkpoints.apply(record)
            self._commits.apply(record)
            self._failures.apply(record)
            self._epochs.apply(record)

    def _begin(self, state: JobState) -> None:
        self._attempts.begin(state)
        self._splits.begin(state)
        self._checkpoints.begin(state)
        self._commits.begin(state)
        self._failures.begin(state)
        self._epochs.begin(state)

    def audit(self) -> Audit:
        """The tables of all records so far."""
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


def _decoded(entry: Stored, header: Header | None) -> tuple[Record | None, str | None]:
    if header is None:
        return None, "it has no header of this log's format"
    try:
        return decode_record(entry.offset, entry.value, entry.header_bytes, header=header), None
    except RecordError as error:
        return None, error.problem


class Applying:
    """A block that applies a record that counts; its errors become a RecordError with the offset.

    Errors of an unreachable log or payload store pass unchanged: the record is not their cause.
    """

    __slots__ = ("_offset", "_record")

    def __init__(self, offset: int, record: Record) -> None:
        self._offset, self._record = offset, record

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        """Add offset and kind of the record to the error."""
        if isinstance(error, RecordError):
            raise RecordError(self._offset, error.kind, error.problem) from error
        if isinstance(error, LogError) and not isinstance(error, PayloadLostError):
            return
        if isinstance(error, Exception):
            problem = f"it cannot be applied: {type(error).__name__}: {error}"
            raise RecordError(self._offset, self._record.kind.value, problem) from error
