"""Facts of a report about epochs, attempts and splits: what the lanes show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.attempts import ADD_SPLITS, AttemptEnd, AttemptFold, split_ids
from coordlog.projections.tables.audit import AuditRecord
from coordlog.projections.tables.epochs import EpochEnd, EpochFold
from coordlog.projections.tables.payload_json import Fields, Json
from coordlog.projections.tables.splits import SKIPPED, WITHDRAWN, SplitFold
from coordlog.report.columns import Table, Texts
from coordlog.report.places import Places
from coordlog.schemas.record import Kind, Record

__all__ = ["LaneFacts", "SizeOf"]

_DISCOVERED: Final = "coordlog.splits_discovered@"
_ENDING: Final = frozenset(
    {
        Kind.EPOCH_STARTED,
        Kind.RESET_TO_CHECKPOINT,
        Kind.JOB_FAILED,
        Kind.FACT,
        Kind.ATTEMPT_FAILED,
        Kind.SUBTASK_COMPLETED,
    }
)
"""Kinds that may end attempts."""

Split = tuple[str, str]
"""Operator id and split id."""

SizeOf = Callable[[bytes], int | None]
"""Bytes of a split to read, by its content; None if unknown."""


class LaneFacts:
    """Epochs, attempts, splits and holds. `apply` takes each record that counts, in log order.

    Args:
        places: Places of all records so far.
        texts: Texts of the document.
        size_of: Bytes to read of the content of a file source's split, or None if unknown.
    """

    def __init__(self, places: Places, texts: Texts, size_of: SizeOf) -> None:
        self._places, self._texts, self._size_of = places, texts, size_of
        self._file_sources: frozenset[str] = frozenset()
        self._sizes: dict[Split, int | None] = {}
        self._epochs, self._attempts, self._splits = EpochFold(), AttemptFold(), SplitFold()
        self._epoch_places: dict[int, int] = {}
        self._epoch_ends: dict[int, int] = {}
        """Offset from which an epoch is over."""
        self._epoch = -1
        self._first: int | None = None
        self._attempt_places: dict[tuple[int, int], int] = {}
        self._attempt_ends: dict[tuple[int, int], int] = {}
        self._open: dict[tuple[int, int], None] = {}
        self._found: dict[Split, int] = {}
        self._skipped: dict[Split, int] = {}
        self._withdrawn: dict[Split, int] = {}
        self._records: dict[Split, list[Json]] = {}
        """Rows of the records of each split."""
        self._resets: dict[int, int] = {}
        self._late = Table("off", "t", "epoch", "kind", "why", "sub", "att")

    def begin(self, state: JobState) -> None:
        """Begin with the state at the first record of a pruned log."""
        self._epochs.begin(state)
        self._attempts.begin(state)
        self._splits.begin(state)
        self._epoch = state.epoch
        self._file_sources = _file_sources(state.launch_info)
        for row in self._attempts.rows():
            self._open[row.subtask, row.attempt_number] = None

    def apply(self, entry: AuditRecord, record: Record, row: int) -> None:
        """Apply one record, which gets that row in the table of records."""
        if self._first is None:
            self._first = entry.offset
        self._epochs.apply(record)
        self._attempts.apply(record, entry.fields)
        self._splits.apply(record, entry.fields, self._attempts)
        if record.kind is Kind.EPOCH_STARTED:
            self._file_sources = _file_sources(LaunchInfo(record.attributes))
            if self._epoch >= 0 and self._epoch not in self._epoch_ends:
                self._epoch_ends[self._epoch] = entry.offset
            self._epoch = record.epoch
            self._epoch_places[record.epoch] = entry.offset
        elif record.kind in (Kind.JOB_FINISHED, Kind.JOB_FAILED) or is_driver_stopped(record):
            self._epoch_ends[record.epoch] = entry.offset
        elif record.kind is Kind.COORDINATORS_STARTED:
            self._epoch_ends.pop(record.epoch, None)
        if record.kind is Kind.ATTEMPT_STARTED:
            assert record.subtask is not None
            assert record.attempt_number is not None
            attempt = (record.subtask, record.attempt_number)
            self._attempt_places[attempt] = entry.offset
            self._open[attempt] = None
        elif record.kind in _ENDING:
            self._end_attempts(entry.offset, record)
        self._of_split(entry, record, row)

    def late(self, entry: AuditRecord, record: Record, why: str) -> None:
        """Add a record of an epoch that is over."""
        self._late.add(
            entry.offset,
            self._places.since(record.timestamp_us),
            record.epoch,
            self._texts.number(record.kind.value),
            self._texts.number(why),
            record.subtask,
            record.attempt_number,
        )

    def _end_attempts(self, offset: int, record: Record) -> None:
        attempt = (record.subtask, record.attempt_number)
        candidates = [attempt] if record.subtask is not None else list(self._open)
        for candidate in candidates:
            if candidate not in self._open:
                continue
            subtask, number = candidate
            assert subtask is not None
            assert number is not None
            row = self._attempts.row_of(subtask, number)
            if row is not None and row.end is not AttemptEnd.RUNNING:
                self._attempt_ends[subtask, number] = offset
                del self._open[subtask, number]

    def _of_split(self, entry: AuditRecord, record: Record, row: int) -> None:
        operator_id, payload_type = record.operator_id or "", record.payload_type or ""
        if payload_type.startswith(_DISCOVERED) and operator_id in self._file_sources:
            self._measure(operator_id, entry.fields or {})
        for split_id in _ids_in(record, entry.fields):
            key = (operator_id, split_id)
            self._records.setdefault(key, []).append(row)
            if record.kind is not Kind.FACT:
                continue
            if payload_type.startswith(_DISCOVERED):
                self._found.setdefault(key, entry.offset)
                self._withdrawn.pop(key, None)
            elif payload_type.startswith(SKIPPED):
                self._skipped.setdefault(key, entry.offset)
            elif payload_type.startswith(WITHDRAWN):
                self._withdrawn[key] = entry.offset

    def _measure(self, operator_id: str, fields: Fields) -> None:
        """Note the sizes of discovered splits of a file source."""
        discovered = fields.get("splits")
        for split in discovered if isinstance(discovered, list) else ():
            content = split.get("content") if isinstance(split, dict) else None
            if isinstance(content, bytes):
                self._sizes[operator_id, str(split.get("split_id"))] = self._size_of(content)

    def records_of_splits(self) -> Iterator[Json]:
        """Rows of the records of each split, in the order of the table of splits."""
        for split in self._splits.rows():
            yield self._records.get((split.operator_id, split.split_id), [])

    def tables(self) -> Iterator[tuple[str, Table]]:
        """The tables."""
        yield "epochs", self._epoch_table()
        yield "late", self._late
        attempts = self._attempt_table()
        yield "attempts", attempts
        yield from self._split_tables(attempts)

    def _epoch_table(self) -> Table:
        text, since = self._texts.number, self._places.since
        table = Table(
            *("epoch", "off", "t", "driver", "host", "pid", "mode", "parallelism", "version"),
            *("restored_by", "restored_from", "end_off", "end_t", "end"),
        )
        for row in self._epochs.rows():
            # If a prune has removed the end, the epoch was over at the first record.
            is_open = row.end is EpochEnd.OPEN
            end_off = self._epoch_ends.get(row.epoch, None if is_open else self._first)
            table.add(
                row.epoch,
                self._epoch_places.get(row.epoch),
                since(row.started_us),
                text(row.driver_id),
                text(row.host),
                row.pid,
                text(row.mode),
                row.parallelism,
                text(row.coordlog_version),
                text(row.restored_by),
                row.restored_from,
                end_off,
                # The next driver may have begun hours later.
                None if end_off is None else since(row.last_us),
                None if is_open else text(row.end.value),
            )
        return table

    def _attempt_table(self) -> Table:
        text, since = self._texts.number, self._places.since
        table = Table(
            *("sub", "att", "epoch", "off", "t", "host", "pid", "from_cp"),
            *("end_off", "end_t", "end", "reason"),
        )
        for row in self._attempts.rows():
            key = (row.subtask, row.attempt_number)
            table.add(
                row.subtask,
                row.attempt_number,
                row.epoch,
                self._attempt_places.get(key),
                since(row.started_us),
                text(row.host),
                row.pid,
                row.restored_from,
                self._attempt_ends.get(key),
                since(row.ended_us),
                None if row.end is AttemptEnd.RUNNING else text(row.end.value),
                text(row.reason),
            )
        return table

    def _split_tables(self, attempts: Table) -> Iterator[tuple[str, Table]]:
        text, places = self._texts.number, self._places
        table = Table(
            "op", "id", "off", "t", "bytes", "skipped_off", "skipped_why", "withdrawn_off"
        )
        holds = Table(
            *("split", "attempt", "sub", "att", "off", "t", "read_t", "end_off", "end_t"),
            *("is_skipped", "rows", "thrown_off", "cp", "cp_off", "committed_off"),
        )
        lost = Table(
            *("off", "split", "hold", "cp", "is_whole", "was_finished", "rows", "reason", "reread")
        )
        subtasks, numbers = attempts.column("sub"), attempts.column("att")
        attempt_rows = {key: at for at, key in enumerate(zip(subtasks, numbers, strict=True))}
        rows = self._splits.rows()
        split_rows = {(row.operator_id, row.split_id): at for at, row in enumerate(rows)}
        hold_rows: dict[tuple[Json, Json, Json], int] = {}
        for hold in self._splits.holds():
            split = split_rows[hold.operator_id, hold.split_id]
            attempt = attempt_rows.get((hold.subtask, hold.attempt_number))
            hold_rows[split, hold.subtask, hold.attempt_number] = holds.add(
                split,
                attempt,
                hold.subtask,
                hold.attempt_number,
                places.offset(hold.began),
                places.time(hold.began),
                places.time(hold.began),
                places.offset(hold.ended),
                places.time(hold.ended),
                hold.is_skipped,
                hold.rows,
                places.offset(hold.thrown_away),
                hold.checkpoint_id,
                places.offset(hold.completed),
                places.offset(hold.committed),
            )
        _set_read_times(holds)
        hold_counts, begun = holds.column("rows"), _begun_by_split(holds)
        for row in rows:
            key = (row.operator_id, row.split_id)
            split = table.add(
                text(row.operator_id),
                row.split_id,
                _first_place(
                    self._found.get(key), begun.get(len(table), []), self._skipped.get(key)
                ),
                places.since(row.discovered_us),
                self._sizes.get(key),
                self._skipped.get(key),
                text(row.skipped_because),
                self._withdrawn.get(key),
            )
            for away in row.thrown_away:
                hold_row = hold_rows.get((split, away.subtask, away.attempt_number))
                lost.add(
                    places.offset(away.sequence),
                    split,
                    hold_row,
                    away.checkpoint_id,
                    away.is_whole,
                    away.was_finished,
                    None if hold_row is None else hold_counts[hold_row],
                    text(away.reason),
                    None if away.reread_by is None else hold_rows.get((split, *away.reread_by)),
                )
        yield "splits", table
        yield "holds", holds
        yield "lost", lost


def _begun_by_split(holds: Table) -> dict[Json, list[Json]]:
    """Offsets of the holds of each split."""
    begun: dict[Json, list[Json]] = {}
    for split_row, offset in zip(holds.column("split"), holds.column("off"), strict=True):
        begun.setdefault(split_row, []).append(offset)
    return begun


def _first_place(discovered: int | None, begun: list[Json], skipped: int | None) -> Json:
    """Offset from which a split is known: without its discovery, that of its first hold or its skip."""
    if discovered is not None or not begun:
        return skipped if discovered is None else discovered
    offsets = [offset for offset in begun if isinstance(offset, int)]
    return min(offsets) if len(offsets) == len(begun) else None


def _file_sources(launch: LaunchInfo) -> frozenset[str]:
    return frozenset(each.operator_id for each in launch.operators if each.has_format)


def _ids_in(record: Record, fields: Fields | None) -> list[str]:
    """Ids of the splits that a record is about."""
    payload_type = record.payload_type or ""
    match record.kind:
        case Kind.FACT if payload_type.startswith(_DISCOVERED):
            return split_ids(fields)
        case Kind.EVENT_TO_SUBTASK if payload_type.startswith(ADD_SPLITS):
            return split_ids(fields)
        case Kind.FACT if payload_type.startswith(SKIPPED):
            return [] if fields is None else [str(fields.get("split_id"))]
        case Kind.FACT if payload_type.startswith(WITHDRAWN):
            ids = None if fields is None else fields.get("split_ids")
            return [str(split_id) for split_id in ids] if isinstance(ids, list) else []
        case Kind.SPLIT_FINISHED:
            return [] if fields is None else [str(fields.get("split_id"))]
        case _:
            return []


def _set_read_times(holds: Table) -> None:
    """Set the earliest begin of each reading: an attempt reads one split after the other, those without an end last."""
    ends: dict[Json, list[tuple[float, int]]] = {}
    ended, attempts = holds.column("end_t"), holds.column("attempt")
    for row, (attempt, end_t) in enumerate(zip(attempts, ended, strict=True)):
        if attempt is not None:
            end = end_t if isinstance(end_t, int) else math.inf
            ends.setdefault(attempt, []).append((end, row))
    for of_attempt in ends.values():
        of_attempt.sort()
        before: int | None = None
        for end, row in of_attempt:
            began = holds.column("t")[row]
            if isinstance(began, int) and before is not None:
                holds.put(row, "read_t", int(min(max(began, before), end)))
            if end < math.inf:
                before = int(end)
