"""Which files of a job's payload store no record left in its log addresses, and which of those may go.

The store is listed first, the log read after it, to the high watermark of then. A file of an epoch that is over by then
and that no record there addresses stays unaddressed: later records of its driver are void, and a newer driver stores
files under names of its own. So a file goes only if its epoch is known to this log and is over. Files of the driver in
force may be on their way to the log; files of an epoch that this log does not know may belong to another log.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from coordlog.errors import PayloadLostError, RecordError
from coordlog.limits import CLEANED_FILES_MAX, CLEANED_RECORDS_MAX
from coordlog.log.interface import Log, LogIdentity, StoredRecord
from coordlog.log.payload_store import KeptPayload, PayloadStore, is_draft, is_payload
from coordlog.projections.snapshot.codec import (
    SNAPSHOT_TYPE,
    SnapshotUnusableError,
    snapshot_in,
    state_bytes_in,
    state_of,
)
from coordlog.projections.tables.audit import counting_at
from coordlog.schemas.payload_address import (
    STORE_ATTRIBUTE,
    PayloadAddress,
    addresses_among,
    opened,
    owner_of,
)
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import Counting, Verdict, judge

__all__ = [
    "FileUse",
    "PayloadUse",
    "StoredFile",
    "addressed_in",
    "clean",
    "clean_former",
    "log_named_in",
    "payload_use",
    "store_named_in",
]

_NO_EPOCH = 1 << 62
"""Above every other: what is not known to be older is not."""

_ADOPTED = "adopted_topic_id"
"""Of the epoch that records an adoption: those before it were written to another log."""

_SNAPSHOT = SNAPSHOT_TYPE.key.encode()
_ENDS = frozenset({Kind.JOB_FINISHED, Kind.JOB_FAILED})


class FileUse(enum.Enum):
    """What a file of the store is worth."""

    ADDRESSED = "addressed"
    LEFT_OVER = "left over"
    """Of an epoch that is over, and addressed by nothing: it may go."""
    IN_FORCE = "of the driver in force"
    """Addressed by nothing so far."""
    UNKNOWN = "of an epoch that the log does not know"
    """Of another log's, perhaps; so is what an epoch from before an adoption kept."""
    FOREIGN = "no payload"
    """Somebody else's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file with its worth."""

    kept: KeptPayload
    use: FileUse


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadUse:
    """A job's store, held against its log."""

    files: tuple[StoredFile, ...]
    missing: tuple[str, ...]
    """Paths that records which count seem to address, and that are not in the store."""
    high_watermark: int
    """Up to where the log was read."""
    copy_of: str = ""
    """The log that the epoch in force was written to, where that is another one: this is a copy; else empty."""
    shared: frozenset[str] = frozenset()
    """The folders of epochs from before an adoption: the log that the job comes from may need what they kept."""

    def of(self, use: FileUse) -> tuple[KeptPayload, ...]:
        """The files of that worth."""
        return tuple(one.kept for one in self.files if one.use is use)


def payload_use(
    log: Log,
    store: PayloadStore,
    *,
    begins_with: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> PayloadUse:
    """What each file of the store is worth, by the whole log.

    Args:
        log: The job's.
        store: The job's.
        begins_with: The offset of a snapshot, with which the log is about to begin: what only records below address
            counts as addressed by nothing. Their epochs are known all the same, and that what they address is this
            log's, of the epoch in which it begins now too.
        on_progress: Called with each offset.

    Raises:
        RecordError: The log begins with a `SNAPSHOT` that cannot be read: what it addresses is unknown.
        PayloadLostError: That snapshot stands in the store, and is not there.
        PayloadStoreError, LogError: They cannot be read.
    """
    listed = store.listed()  # before the log's end is asked for
    start, end = log.start_offset(), log.high_watermark()
    reading = _Reading(store, log.identity)
    reading.read(log.read(start, end), begins_with, on_progress)
    there = {one.path for one in listed}
    if not there.issuperset(reading.addressed):
        # A living driver has stored and appended since the listing; its payloads are there before its records.
        there.update(one.path for one in store.listed())
    files = tuple(StoredFile(kept=one, use=reading.use_of(one)) for one in listed)
    return PayloadUse(
        files=files,
        missing=tuple(sorted(reading.addressed - there)),
        high_watermark=end,
        copy_of=reading.copy_of,
        shared=frozenset(reading.shared),
    )


def store_named_in(records: Iterator[StoredRecord]) -> str:
    """The store that the newest of these `EPOCH_STARTED` that count names; empty where none does.

    Args:
        records: All of a log, from its first record on. One whose beginning is gone, and does not begin with a
            `SNAPSHOT`, names none: what counts in it nobody can tell.
    """
    return _named_in_epochs(records).get(STORE_ATTRIBUTE, "")


def log_named_in(records: Iterator[StoredRecord]) -> tuple[str, str]:
    """Cluster id and topic id that the newest of these `EPOCH_STARTED` that count names; empty texts if none does.

    Args:
        records: As `store_named_in` takes them.
    """
    named = _named_in_epochs(records)
    return named.get("cluster_id", ""), named.get("topic_id", "")


def _named_in_epochs(records: Iterator[StoredRecord]) -> dict[str, str]:
    """Attributes of all `EPOCH_STARTED` that count, those of newer ones in place of those of older ones."""
    first = next(records, None)
    if first is None:
        return {}
    try:
        counting = counting_at(first)
    except RecordError:
        return {}
    named = _named_in(first) if first.offset > 0 else {}
    for judged in judge(itertools.chain([first], records), counting):
        if judged.verdict is Verdict.EPOCH:
            with suppress(RecordError):
                named |= judged.entry.record().attributes
    return named


def addressed_in(stored: StoredRecord) -> Iterator[PayloadAddress]:
    """All that may be addresses in a record; in what a `SNAPSHOT` holds too, which is compressed."""
    value = stored.value or b""
    yield from addresses_among(value)
    if _SNAPSHOT not in value:  # quicker than to decode each record
        return
    with suppress(RecordError, SnapshotUnusableError, PayloadLostError):
        record = stored.record()
        if record.kind is Kind.SNAPSHOT:
            yield from addresses_among(state_bytes_in(snapshot_in(record)))


def _named_in(first: StoredRecord) -> dict[str, str]:
    """Attributes of its epoch that the snapshot holds with which a pruned log begins."""
    try:
        return dict(state_of(first.record()).launch)
    except (RecordError, SnapshotUnusableError, PayloadLostError):
        return {}


class _Reading:
    """What a log says of stored payloads."""

    def __init__(self, store: PayloadStore, identity: LogIdentity) -> None:
        self._store, self._identity = store, identity
        self.epochs: dict[str, int] = {}
        """The epochs of this log, by the folders of what they keep."""
        self.addressed: set[str] = set()
        """Whatever looks like an address in a record that counts, or may yet: of any version."""
        self.shared: set[str] = set()
        self.copy_of = ""
        self._begun_in = ""
        """The folder of the epoch in which a pruned log begins: records that are gone may address what it kept."""
        self._let_go: set[str] = set()
        """What records address that are about to go, its first snapshot among them."""
        self._in_force = -1
        self._last: StoredRecord | None = None

    def read(
        self,
        records: Iterator[StoredRecord],
        begins_with: int | None,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        """All of the log, from its first record on."""
        first = next(records, None)
        if first is None:
            return
        counting = self._begin(first)
        for judged in judge(itertools.chain([first], records), counting):
            stored = judged.entry
            if on_progress is not None:
                on_progress(stored.offset)
            if judged.verdict.is_void:
                continue
            self._last = stored
            if stored.offset == begins_with:
                self._let_go, self.addressed = self.addressed, set(self._in_snapshot(stored))
            self.addressed.update(one.path for one in addressed_in(stored))
            if judged.verdict is Verdict.EPOCH:
                record = stored.record()
                self._know(record, record.attributes)

    def _begin(self, first: StoredRecord) -> Counting:
        """Where counting begins. Of a log that was pruned only its snapshot says what older records addressed."""
        counting = counting_at(first)
        if first.offset == 0:
            return counting
        self.addressed.update(self._in_snapshot(first))
        record = first.record()
        self._know(record, state_of(record, self._open).launch)
        self._begun_in = next(iter(self.epochs), "")
        return counting

    def _in_snapshot(self, stored: StoredRecord) -> Iterator[str]:
        record = stored.record()
        try:
            state = state_bytes_in(snapshot_in(record, self._open))
            _ = state_of(record, self._open)
        except SnapshotUnusableError as error:
            raise RecordError(
                stored.offset,
                record.kind.value,
                f"the log begins with it, and what it addresses cannot be told: {error}",
            ) from error
        return (one.path for one in addresses_among(state))

    def _open(self, data: bytes) -> bytes:
        return opened(data, self._store.get)

    def _know(self, record: Record, launch: Mapping[str, str]) -> None:
        """An epoch. `launch`: what it says of itself."""
        self._in_force = record.epoch
        # What another job has kept, from whose checkpoint this one has begun, stands in that one's folder.
        is_of_this_job = record.job_id == self._store.job_id
        self.copy_of = _elsewhere(launch, self._identity) if is_of_this_job else ""
        if _ADOPTED in launch:
            self.shared.update(self.epochs)
        with suppress(ValueError):  # then it has kept nothing
            self.epochs[owner_of(record.epoch, record.driver_id)] = record.epoch

    @cached_property
    def _is_over(self) -> bool:
        """Whether the job has ended: its driver appends nothing behind that record that addresses a payload."""
        last = self._last
        if last is None:
            return False
        record = last.record()
        return record.kind in _ENDS and record.turn_remaining == 0

    def use_of(self, one: KeptPayload) -> FileUse:
        """What a file is worth."""
        if not is_payload(one) and not is_draft(one):
            return FileUse.FOREIGN
        if one.path in self.addressed:
            return FileUse.ADDRESSED
        epoch = self.epochs.get(one.owner)
        # Where the job has been adopted, its last driver there may have gone on after the copy was made.
        if epoch is None or one.owner in self.shared:
            return FileUse.UNKNOWN
        if epoch < self._in_force or self._is_over:
            # An archive may hold what addressed it: what a prune has removed this log cannot tell.
            is_archived = one.owner == self._begun_in and one.path not in self._let_go
            return FileUse.UNKNOWN if is_archived else FileUse.LEFT_OVER
        return FileUse.IN_FORCE


def clean_former(
    log: Log,
    store: PayloadStore,
    *,
    epoch: int,
    end_offset: int,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Remove what epochs before `epoch`, which is in force, kept and could not append any more; how many files.

    Bounded: of epochs that began among the log's last records, and so many files; the rest is `payload_use`'s. What a
    epoch has kept is addressed first by a record of its own, so that nothing before its `EPOCH_STARTED` matters; here
    void records keep what they address too.

    Args:
        log: The job's.
        store: The job's.
        epoch: This driver's.
        end_offset: Up to where the log is read: behind its `EPOCH_STARTED`.
        is_over: Whether the driver has ended: asked before each record and each file, and nothing more is done then.

    Raises:
        PayloadStoreError, LogError: They cannot be read.
    """
    listed = [one for one in store.listed() if is_payload(one) or is_draft(one)]
    if not any(_epoch_of(one) < epoch for one in listed):
        return 0
    over, addressed = set[str](), set[str]()
    start = max(log.start_offset(), end_offset - CLEANED_RECORDS_MAX)
    for stored in log.read(start, end_offset):
        if is_over():
            return 0
        addressed.update(one.path for one in addressed_in(stored))
        header = stored.header
        if header is not None and header.is_epoch_started and header.epoch < epoch:
            with suppress(RecordError, ValueError):
                record = stored.record()
                if _ADOPTED in record.attributes:
                    over.clear()  # where the job comes from they may have gone on
                over.add(owner_of(record.epoch, record.driver_id))
    left = [one for one in listed if one.owner in over and one.path not in addressed]
    return store.remove(itertools.takewhile(lambda _: not is_over(), left[:CLEANED_FILES_MAX]))


def _elsewhere(launch: Mapping[str, str], here: LogIdentity) -> str:
    """The log that an epoch was written to, where that is another one; else empty. `launch`: what it says of itself."""
    cluster_id = launch.get("cluster_id", here.cluster_id)
    topic_id = launch.get("topic_id", here.topic_id)
    is_here = (cluster_id, topic_id) == (here.cluster_id, here.topic_id)
    return "" if is_here else f"topic {topic_id} of cluster {cluster_id}"


def _epoch_of(one: KeptPayload) -> int:
    number = one.owner.partition("-")[0]
    return int(number) if number.isdecimal() else _NO_EPOCH


def clean(store: PayloadStore, use: PayloadUse) -> Sequence[KeptPayload]:
    """Remove what is left over; those that were removed.

    Raises:
        PayloadStoreError: One cannot be removed.
    """
    over = use.of(FileUse.LEFT_OVER)
    store.remove(over)
    return over
