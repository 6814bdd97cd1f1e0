"""Facts of a report about failures, resets and commits, with the files that commits name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import AuditRecord
from coordlog.projections.tables.commits import CommitFold, CommitStatus
from coordlog.projections.tables.failures import FailureFold, FailureRow, FailureScope
from coordlog.projections.tables.payload_json import Fields, Json
from coordlog.report.columns import Table, Texts
from coordlog.report.places import Places
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = ["OutcomeFacts", "cause_of"]

_CAUSE_CHARS: Final = 120
_STAGED: Final = re.compile(r"(?:^|/)(\d+)-(\d+)-\d+\.[a-z]+$")
"""Subtask and attempt number in the name of a staged file."""
_NUMBERS: Final = re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}\b|\d+")


def cause_of(reason: str) -> str:
    """The class of failures that a reason belongs to: its first line, with `#` for each number and id."""
    first = reason.partition("\n")[0].strip()
    return _NUMBERS.sub("#", first)[:_CAUSE_CHARS] or "no reason recorded"


class OutcomeFacts:
    """Failures, resets, commits and files. `apply` takes each record that counts, in log order."""

    def __init__(self, places: Places, texts: Texts) -> None:
        self._places, self._texts = places, texts
        self._failures, self._commits = FailureFold(), CommitFold()
        self._at_resets: dict[tuple[int | None, int], int] = {}
        """Offset of the first reset of a subtask (None: of the whole job) at a time."""
        self._at_starts: dict[tuple[int | None, int], int] = {}
        """Offset of the first attempt of a subtask (None: of any) at a time."""
        self._resets = Table("off", "t", "epoch", "sub", "cp", "words")
        self._settled: dict[int, tuple[int, Fields]] = {}
        """Offset and payload of the outcome, by the sequence of the intent."""
        self._intents: dict[int, Fields] = {}

    def begin(self, state: JobState) -> None:
        """Begin with the state at the first record of a pruned log."""
        self._failures.begin(state)
        self._commits.begin(state)

    def apply(self, entry: AuditRecord, record: Record, _row: int) -> None:
        """Apply one record."""
        self._failures.apply(record)
        self._commits.apply(record)
        offset, now_us = entry.offset, record.timestamp_us
        match record.kind:
            case Kind.SUBTASK_RESET | Kind.RESET_TO_CHECKPOINT:
                self._reset(entry.offset, record)
            case Kind.ATTEMPT_STARTED:
                self._at_starts.setdefault((record.subtask, now_us), offset)
                self._at_starts.setdefault((None, now_us), offset)
            case Kind.COMMIT_INTENT if record.sequence is not None:
                self._intents[record.sequence] = entry.fields or {}
            case Kind.COMMIT_OUTCOME if record.attributes.get("settled") == "true":
                cause = -1 if record.cause is None else record.cause
                self._settled[cause] = (offset, entry.fields or {})
            case _:
                pass

    def _reset(self, offset: int, record: Record) -> None:
        is_global = record.kind is Kind.RESET_TO_CHECKPOINT
        subtask = None if is_global else record.subtask
        number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
        self._at_resets.setdefault((subtask, record.timestamp_us), offset)
        restore = record.attributes.get("restore")
        self._resets.add(
            offset,
            self._places.since(record.timestamp_us),
            record.epoch,
            subtask,
            number,
            self._texts.number(restore if is_global else "local failover"),
        )

    def tables(self) -> Iterator[tuple[str, Table]]:
        """The tables."""
        yield "failures", self._failure_table()
        yield "resets", self._resets
        yield from self._commit_tables()

    def _failure_table(self) -> Table:
        text, places = self._texts.number, self._places
        table = Table(
            *("off", "t", "epoch", "scope", "op", "sub", "att", "reason", "cause", "with_job"),
            *("reset_off", "reset_t", "reset_cp", "restarted_off", "restarted_t"),
        )
        for row in self._failures.rows():
            table.add(
                places.offset(row.sequence),
                places.since(row.failed_us),
                row.epoch,
                text(row.scope.value),
                text(row.operator_id),
                row.subtask,
                row.attempt_number,
                text(row.reason),
                text(cause_of(row.reason)),
                row.is_with_job,
                self._reset_of(row),
                places.since(row.reset_us),
                row.reset_to,
                self._start_of(row),
                places.since(row.restarted_us),
            )
        return table

    def _reset_of(self, row: FailureRow) -> int | None:
        if row.reset_us is None:
            return None
        is_whole = row.is_with_job or row.scope is not FailureScope.ATTEMPT
        return self._at_resets.get((None if is_whole else row.subtask, row.reset_us))

    def _start_of(self, row: FailureRow) -> int | None:
        if row.restarted_us is None:
            return None
        subtask = None if row.scope is FailureScope.GLOBAL else row.subtask
        return self._at_starts.get((subtask, row.restarted_us))

    def _commit_tables(self) -> Iterator[tuple[str, Table]]:
        text, places = self._texts.number, self._places
        table = Table(
            *("op", "cp", "epoch", "off", "t", "tries", "end_off", "end_t", "end_epoch"),
            *("rows", "files", "bytes", "reason", "sequence"),
        )
        files = Table("commit", "name", "rows", "bytes", "sub", "att")
        for row in self._commits.rows():
            end_off, fields = self._settled.get(row.sequence, (None, {}))
            commit = table.add(
                text(row.operator_id),
                row.checkpoint_id,
                row.epoch,
                places.offset(row.sequence),
                places.since(row.intended_us),
                row.failed_tries,
                end_off if row.status is CommitStatus.SETTLED else None,
                places.since(row.settled_us),
                row.settled_epoch,
                _number(fields, "rows"),
                _number(fields, "file_count"),
                _number(fields, "size_bytes"),
                text(row.reason),
                row.sequence,
            )
            _add_files(files, commit, self._intents.get(row.sequence, {}))
        yield "commits", table
        yield "files", files


def _add_files(files: Table, commit: int, intent: Fields) -> None:
    """Add the files of an intent, if its payload has any. Records are untrusted, and the sink may be of any kind."""
    named = intent.get("files")
    for file in named if isinstance(named, list) else ():
        if not isinstance(file, dict):
            continue
        name, staged = file.get("final"), file.get("staged")
        if not isinstance(name, str):
            continue
        attempt = _STAGED.search(staged) if isinstance(staged, str) else None
        files.add(
            commit,
            name,
            _number(file, "rows"),
            _number(file, "size_bytes"),
            None if attempt is None else int(attempt[1]),
            None if attempt is None else int(attempt[2]),
        )


def _number(fields: Fields, name: str) -> Json:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
