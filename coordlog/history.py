"""The only reading path of a log: its beginning, its valid records, and the snapshot from which a reader may start.

Each header has the offset of the newest released `SNAPSHOT` that its driver knew; the header of a snapshot has that of
the snapshot before. A snapshot with an offset in any header was released, so it is valid even if the record with that
header is not. Other snapshots are no starting point: only a fold from an earlier place shows whether they are valid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from coordlog.errors import (
    OutOfRangeError,
    PayloadLostError,
    PayloadStoreError,
    PrunedMeanwhileError,
    RecordError,
)
from coordlog.limits import SNAPSHOT_CHAIN_MAX
from coordlog.log.interface import Log, StoredRecord
from coordlog.projections.snapshot.codec import (
    DecodedSnapshot,
    SnapshotCodec,
    SnapshotUnusableError,
    snapshot_in,
    state_before,
)
from coordlog.projections.tables.audit import AuditRecord, audit_records
from coordlog.schemas.payload import open_inline
from coordlog.schemas.record import Record
from coordlog.schemas.validity import (
    Beginning,
    Counted,
    Judged,
    Turns,
    beginning_at,
    beginning_of,
    begun,
    counted_turns,
    judge,
)

__all__ = ["Following", "FoundSnapshot", "History", "SnapshotSearch"]

_log = logging.getLogger(__name__)

_TAILS: Final = (64, 4_096)
"""Numbers of records at a log's end to search for a valid header: foreign records may follow the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSnapshot:
    """A snapshot from which a fold may start. Its state includes its own record."""

    beginning: Beginning
    decoded: DecodedSnapshot


class _OtherRecordError(SnapshotUnusableError):
    """The record at a snapshot's offset is of another kind."""


@dataclass(slots=True, kw_only=True)
class SnapshotSearch:
    """Result of the search for a snapshot to start from."""

    snapshot: FoundSnapshot | None = None
    """Snapshot to start from, or None if there is none."""
    passed_over: dict[int, str] = field(default_factory=dict)
    """Reasons why newer snapshots cannot be used, by offset, newest first."""
    lost: set[int] = field(default_factory=set)
    """Offsets in `passed_over` of snapshots with a stored payload that cannot be read."""
    others: set[int] = field(default_factory=set)
    """Offsets in `passed_over` with a record of another kind."""


class History:
    """A job's log from its first record to its high watermark, both as of the creation of this object.

    Each reading starts from the beginning. All raise LogUnavailableError if the log does not respond, and
    PrunedMeanwhileError if the log was pruned since the creation of this object.

    Args:
        log: Log of the job.
        on_progress: Called with each offset before its record is yielded.
    """

    def __init__(self, log: Log, on_progress: Callable[[int], None] | None = None) -> None:
        self.log = log
        self.start, self.end = log.start_offset(), log.high_watermark()
        self._on_progress = on_progress

    def stored(self, first: int | None = None, end: int | None = None) -> Iterator[StoredRecord]:
        """Stored records with `first` <= offset < `end`; by default all."""
        try:
            for stored in self.log.read(
                self.start if first is None else first, self.end if end is None else end
            ):
                if self._on_progress is not None:
                    self._on_progress(stored.offset)
                yield stored
        except OutOfRangeError as error:
            if error.start_offset <= self.start:
                raise
            raise PrunedMeanwhileError(
                error.log, self.start, error.start_offset, error.high_watermark
            ) from error

    def beginning(self) -> Beginning:
        """Beginning of the log: offset 0, or the first `SNAPSHOT` after a prune.

        Raises:
            RecordError: As in `beginning_of`.
            OutOfRangeError: All records have been removed.
        """
        if self.start == self.end > 0:
            raise OutOfRangeError(self.log.identity.name, 0, self.start, self.end)
        return begun(self.stored())[0]

    def snapshot_at(self, offset: int) -> Beginning | None:
        """Beginning of a reading at the `SNAPSHOT` at `offset`; None if the log has no `SNAPSHOT` there.

        Raises:
            RecordError: The record cannot be decoded.
        """
        stored = next(self._read(offset, offset + 1), None)
        return None if stored is None else beginning_at(stored)

    def records(self) -> Iterator[AuditRecord]:
        """Every record, decoded, with its verdict. Raises RecordError as in `beginning_of`."""
        return audit_records(self.stored())

    def judged(self) -> tuple[Beginning, Iterator[Judged[StoredRecord]]]:
        """The beginning, and every record with its verdict, not decoded. Raises RecordError as in `beginning_of`."""
        beginning, stored = begun(self.stored())
        return beginning, judge(stored, beginning.counting)

    def turns(self) -> Iterator[Counted[StoredRecord]]:
        """The valid turns, each complete. Raises RecordError as in `beginning_of`."""
        beginning, stored = begun(self.stored())
        return counted_turns(stored, beginning.counting)

    def newest_named(self) -> int:
        """Offset of the newest snapshot in the headers of the last records, or -1; the snapshot is not read."""
        for count in _TAILS:
            first = max(self.start, self.end - count)
            headers = [(stored.offset, stored.header) for stored in self._read(first, self.end)]
            named = [
                header.snapshot_offset
                for offset, header in headers
                if header is not None
                and header.snapshot_offset < offset  # else the header is foreign
            ]
            if named or first == self.start:
                return max(named, default=-1)
        return -1

    def place_before(self, is_early: Callable[[StoredRecord], bool]) -> int:
        """Offset from which records may be judged: the newest released snapshot that is early enough, else the start.

        So a reader of the log's end reads the records of one snapshot interval, not the whole log.
        """
        offset = self.newest_named()
        for _ in range(SNAPSHOT_CHAIN_MAX):
            if not self.start <= offset < self.end:
                break
            stored = next(iter(self._read(offset, offset + 1)), None)
            if stored is None or stored.offset != offset or stored.header is None:
                break
            if is_early(stored) and _is_readable(stored):
                return offset
            if not -1 <= stored.header.snapshot_offset < offset:
                break
            offset = stored.header.snapshot_offset
        return self.start

    def records_from(self, place: int) -> Iterator[AuditRecord]:
        """As `records`, from a result of `place_before` on."""
        return audit_records(self.stored(place))

    def search(
        self,
        codec: SnapshotCodec,
        open_payload: Callable[[bytes], bytes] = open_inline,
        *,
        is_whole: bool = False,
    ) -> SnapshotSearch:
        """The newest snapshot from which a job can start; without one it starts at the beginning of the log.

        Args:
            codec: Codec of the job's snapshots.
            open_payload: Reads a state that is stored outside the log. If it raises, the snapshot is passed over.
            is_whole: Use the snapshot with which a pruned log begins, if the job can start from it, and none if the
                log begins with its first record.
        """
        search = SnapshotSearch()
        if codec.without_codec or (is_whole and not 0 < self.start < self.end):
            return search
        if is_whole:
            self._try(codec, self.start, search, open_payload)
            if search.snapshot is not None:
                return search
            search = SnapshotSearch()
        offset = self.newest_named()
        for _ in range(SNAPSHOT_CHAIN_MAX):
            if not self.start <= offset < self.end:
                break
            following = self._try(codec, offset, search, open_payload)
            if search.snapshot is not None or not -1 <= following < offset:
                break
            offset = following
        is_first_left = 0 < self.start < self.end and self.start not in search.passed_over
        if search.snapshot is None and is_first_left:
            # No header needs to name the snapshot with which a pruned log begins.
            self._try(codec, self.start, search, open_payload)
        for at, why in search.passed_over.items():
            name = self.log.identity.name
            _log.warning("passed over the snapshot at offset=%d of %s: %s", at, name, why)
        return search

    def is_usable(
        self, codec: SnapshotCodec, offset: int, open_payload: Callable[[bytes], bytes]
    ) -> bool:
        """Whether the job of the codec can start from the snapshot at `offset`."""
        search = SnapshotSearch()
        if not codec.without_codec:
            self._try(codec, offset, search, open_payload)
        return search.snapshot is not None

    def _try(
        self,
        codec: SnapshotCodec,
        offset: int,
        search: SnapshotSearch,
        open_payload: Callable[[bytes], bytes],
    ) -> int:
        """Try the snapshot at `offset`; returns the offset of the snapshot before it, or -1.

        The snapshot with which a pruned log begins may hold states of an earlier schema, because the records before it
        are gone. Other snapshots with such states are passed over: a fold of the records is exact.
        """
        stored = next(
            (record for record in self._read(offset, offset + 1) if record.offset == offset), None
        )
        if stored is None or stored.header is None:
            search.passed_over[offset] = "there is no record of this log's format"
            return -1
        is_first = offset == self.start > 0
        try:
            search.snapshot = _decoded(stored, codec, open_payload, upcasts=is_first)
        except _OtherRecordError as error:
            search.passed_over[offset] = str(error)
            search.others.add(offset)
        except (PayloadLostError, PayloadStoreError) as error:
            search.passed_over[offset] = str(error)
            search.lost.add(offset)
        except (RecordError, SnapshotUnusableError) as error:
            search.passed_over[offset] = str(error)
        return stored.header.snapshot_offset

    def _read(self, first: int, end: int) -> Iterator[StoredRecord]:
        """Stored records of a range; none if retention has removed its beginning."""
        try:
            yield from self.log.read(first, end)
        except OutOfRangeError:
            return


class Following:
    """The records of a log that count, each passed to a fold once, also those appended between two calls. One thread.

    Args:
        log: Log of a job.
        begin: Called before the first record of a pruned log; not if the log does not begin with a valid `SNAPSHOT`.
        apply: Called with offset and content of each record that counts, in log order.
    """

    def __init__(
        self, log: Log, begin: Callable[[Beginning], None], apply: Callable[[int, Record], None]
    ) -> None:
        self._log, self._begin, self._apply = log, begin, apply
        self._next_offset = 0
        self._turns = Turns[StoredRecord]()

    def catch_up(self) -> None:
        """Read the records appended since the last one. Raises as `Log.read`, and as `feed`."""
        for stored in self._log.read(self._next_offset, self._log.high_watermark()):
            self.feed(stored)

    def feed(self, stored: StoredRecord) -> None:
        """Take the next record; the first is the log's. Raises RecordError if it counts and cannot be decoded."""
        if self._next_offset == 0 and stored.offset > 0:
            with suppress(RecordError):
                beginning = beginning_of(stored)
                self._turns = Turns(beginning.counting)
                self._begin(beginning)
        self._next_offset = stored.offset + 1
        for judged in self._turns.feed(stored):
            if judged.counts:
                self._apply(judged.entry.offset, judged.entry.record(judged.header))


def _is_readable(stored: StoredRecord) -> bool:
    """Whether the state in a snapshot can be read here, without a payload store."""
    try:
        beginning = beginning_at(stored)
        if beginning is None:
            return False
        state_before(beginning)
    except (RecordError, PayloadStoreError):
        return False
    return True


def _decoded(
    stored: StoredRecord,
    codec: SnapshotCodec,
    open_payload: Callable[[bytes], bytes],
    *,
    upcasts: bool,
) -> FoundSnapshot:
    beginning = beginning_at(stored)
    if beginning is None or beginning.snapshot is None:
        raise _OtherRecordError(f"it is a {stored.record().kind.value}, and no snapshot")
    record = beginning.snapshot
    decoded = codec.decode(snapshot_in(record, open_payload), open_payload, upcasts=upcasts)
    state = decoded.state
    there, here = (
        (record.job_id, record.epoch, record.sequence),
        (state.job_id, state.epoch, state.next_sequence),
    )
    if there != here:
        raise SnapshotUnusableError(f"its record is of {there}, and its state of {here}")
    return FoundSnapshot(beginning=beginning, decoded=decoded)
