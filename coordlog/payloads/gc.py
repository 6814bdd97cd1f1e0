"""Garbage collection of a job's payload store: finds the files that no record in the log addresses, and removes them.

The store is listed first; then the log is read, up to its high watermark at that time. If an epoch is over by then, its
unaddressed files stay unaddressed: later records of its driver are void, and a newer driver stores files under names of
its own. So a file is removed only if its epoch is in this log and is over. Other files stay: records that address files
of the driver in force may be in flight, and files of an epoch that is not in this log may belong to another log.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from coordlog.errors import PayloadLostError, RecordError
from coordlog.history import History
from coordlog.limits import CLEANED_FILES_MAX, CLEANED_RECORDS_MAX
from coordlog.log.interface import Log, LogIdentity, StoredRecord
from coordlog.log.payload_store import PayloadFile, PayloadStore, is_draft, is_payload
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.state import Phase
from coordlog.projections.snapshot.codec import (
    SNAPSHOT_TYPE,
    SnapshotUnusableError,
    snapshot_in,
    state_before,
    state_bytes_in,
    state_of,
)
from coordlog.schemas.payload_address import (
    STORE_ATTRIBUTE,
    PayloadAddress,
    addresses_among,
    opened,
    owner_of,
)
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import Verdict

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
"""Number above every epoch, for files whose epoch is unknown: they do not count as older."""

_ADOPTED = "adopted_topic_id"
"""Attribute of the epoch that records an adoption: epochs before it were written to another log."""

_SNAPSHOT = SNAPSHOT_TYPE.key.encode()
_ENDED = frozenset({Phase.FINISHED, Phase.FAILED})


class FileUse(enum.Enum):
    """Use of a file in the store."""

    ADDRESSED = "addressed"
    LEFT_OVER = "left over"
    """No record addresses it, and its epoch is over: it may be removed."""
    IN_FORCE = "of the driver in force"
    """No record addresses it so far; a record of the driver in force may still do so."""
    UNKNOWN = "of an epoch that the log does not know"
    """May belong to another log: files of epochs before an adoption do."""
    FOREIGN = "no payload"
    """The file was not written by a payload store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file with its use."""

    kept: PayloadFile
    use: FileUse


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadUse:
    """A job's store, compared with its log."""

    files: tuple[StoredFile, ...]
    missing: tuple[str, ...]
    """Paths that are missing in the store, although records that count seem to address them."""
    high_watermark: int
    """Offset up to which the log was read, exclusive."""
    record_count: int
    """Number of records read, void ones included."""
    copy_of: str = ""
    """Original log, to which the epoch in force was written, if the log read here is a copy; else empty."""
    pruned: tuple[PayloadFile, ...] = ()
    """Unknown files of epochs of pruned records, without those before an adoption: an archive may address them."""
    shared: frozenset[str] = frozenset()
    """Folders of epochs before an adoption: the log from which the job was adopted may need their files."""

    def of(self, use: FileUse) -> tuple[PayloadFile, ...]:
        """The files of that use."""
        return tuple(file.kept for file in self.files if file.use is use)


def payload_use(
    log: Log,
    store: PayloadStore,
    *,
    begins_with: int | None = None,
) -> PayloadUse:
    """The use of each file in the store, according to the whole log.

    Args:
        log: The job's log.
        store: The job's store.
        begins_with: Offset of the snapshot with which the log will begin after a prune, or None without a prune. Files
            that only the pruned records address count as not addressed, and may be removed, even if they are of the
            epoch in which the log begins now. Epochs of pruned records still count as epochs of this log.

    Raises:
        RecordError: The log begins with a `SNAPSHOT` that cannot be read: its addresses are unknown.
        PayloadLostError: The content of that snapshot belongs in the store, and is missing.
        PayloadStoreError, LogError: Store or log cannot be read.
    """
    listed = store.listed()  # before the high watermark of the log is read
    history = History(log)
    scan = _LogScan(store, log.identity)
    scan.read(history, begins_with)
    paths = {kept.path for kept in listed}
    if not paths.issuperset(scan.addressed):
        # A live driver stores each payload before its record: a second listing has files stored since the first.
        paths.update(kept.path for kept in store.listed())
    files = tuple(StoredFile(kept=kept, use=scan.use_of(kept)) for kept in listed)
    return PayloadUse(
        files=files,
        missing=tuple(sorted(scan.addressed - paths)),
        high_watermark=history.end,
        record_count=scan.record_count,
        copy_of=scan.copy_of,
        pruned=tuple(kept for kept in listed if scan.is_pruned(kept)),
        shared=frozenset(scan.shared),
    )


def store_named_in(history: History) -> str:
    """Payload store that the log names: in the newest `EPOCH_STARTED` that counts and has one, or empty without any.

    Empty too if the log's first records were removed and it does not begin with a `SNAPSHOT`: validity is unknown then.
    """
    return _named_in_epochs(history).get(STORE_ATTRIBUTE, "")


def log_named_in(history: History) -> tuple[str, str]:
    """Cluster id and topic id, each from the newest `EPOCH_STARTED` that counts and has one, or empty."""
    named = _named_in_epochs(history)
    return named.get("cluster_id", ""), named.get("topic_id", "")


def _named_in_epochs(history: History) -> dict[str, str]:
    """Attributes of all `EPOCH_STARTED` that count; newer values replace older ones."""
    try:
        beginning, records = history.judged()
    except RecordError:
        return {}
    named: dict[str, str] = {}
    with suppress(RecordError):
        named |= state_before(beginning).launch
    for judged in records:
        if judged.verdict is Verdict.EPOCH:
            with suppress(RecordError):
                named |= judged.entry.record().attributes
    return named


def addressed_in(stored: StoredRecord) -> Iterator[PayloadAddress]:
    """All possible addresses in a record, including those in the compressed state of a `SNAPSHOT`."""
    value = stored.value or b""
    yield from addresses_among(value)
    if _SNAPSHOT not in value:  # quicker than to decode each record
        return
    with suppress(RecordError, SnapshotUnusableError, PayloadLostError):
        record = stored.record()
        if record.kind is Kind.SNAPSHOT:
            yield from addresses_among(state_bytes_in(snapshot_in(record)))


class _LogScan:
    """Collects the epochs of a log and the addresses of stored payloads in it."""

    def __init__(self, store: PayloadStore, identity: LogIdentity) -> None:
        self._store, self._identity = store, identity
        self.epochs: dict[str, int] = {}
        """Epochs of this log, by the folders of their files."""
        self.addressed: set[str] = set()
        """Paths of possible addresses, of any version, in records that count or may yet count."""
        self.shared: set[str] = set()
        self.copy_of = ""
        self.record_count = 0
        self._begun_in = ""
        """Folder of the epoch in which a pruned log begins: pruned records may address its files."""
        self._dropped: set[str] = set()
        """Paths that records about to be pruned address; a snapshot at the log's beginning is such a record too."""
        self.in_force = -1
        """Epoch in force; that of the last added `EPOCH_STARTED`, if the caller sets no other."""
        self._last: StoredRecord | None = None

    def read(self, history: History, begins_with: int | None) -> None:
        """Read all of the log, from its first record on."""
        beginning, records = history.judged()
        if beginning.snapshot is not None:
            self._begin(beginning.offset, beginning.snapshot)
        for judged in records:
            stored = judged.entry
            self.record_count += 1
            if judged.verdict.is_void:
                continue
            if stored.offset == begins_with:
                self._dropped, self.addressed = (
                    self.addressed,
                    set(self._in_snapshot(stored.offset, stored.record())),
                )
            self._last = stored
            self.add(stored)

    def add(self, stored: StoredRecord) -> None:
        """Add the addresses of a record, and its epoch if it begins one."""
        self.addressed.update(address.path for address in addressed_in(stored))
        if stored.header is not None and stored.header.is_epoch_started:
            record = stored.record()
            self._add_epoch(record, record.attributes)

    def _begin(self, offset: int, snapshot: Record) -> None:
        """Begin with the snapshot of a pruned log: it has the addresses of the pruned records."""
        self.addressed.update(self._in_snapshot(offset, snapshot))
        self._add_epoch(snapshot, state_of(snapshot, self._open).launch)
        self._begun_in = next(iter(self.epochs), "")

    def _in_snapshot(self, offset: int, record: Record) -> Iterator[str]:
        try:
            state = state_bytes_in(snapshot_in(record, self._open))
            _ = state_of(record, self._open)
        except SnapshotUnusableError as error:
            raise RecordError(
                offset,
                record.kind.value,
                f"the log begins with it, and its addresses cannot be read: {error}",
            ) from error
        return (address.path for address in addresses_among(state))

    def _open(self, data: bytes) -> bytes:
        return opened(data, self._store.get)

    def _add_epoch(self, record: Record, launch: Mapping[str, str]) -> None:
        """Add an epoch, with the attributes of its `EPOCH_STARTED`."""
        self.in_force = record.epoch
        # In a fork, the epochs of the other job have their files in the other job's folder.
        is_of_this_job = record.job_id == self._store.job_id
        self.copy_of = _other_log(launch, self._identity) if is_of_this_job else ""
        if _ADOPTED in launch:
            self.shared.update(self.epochs)
        with suppress(ValueError):  # a driver with such an id has stored no files
            self.epochs[owner_of(record.epoch, record.driver_id)] = record.epoch

    @cached_property
    def _is_over(self) -> bool:
        """Whether the last record is the snapshot of an ended job: its driver appends no address after that.

        After the end alone the driver may still append that snapshot, with an address.
        """
        last = self._last
        if last is None:
            return False
        record = last.record()
        if record.kind is not Kind.SNAPSHOT:
            return False
        try:
            return state_of(record, self._open).phase in _ENDED
        except (SnapshotUnusableError, PayloadLostError):
            return False

    def use_of(self, kept: PayloadFile) -> FileUse:
        """The use of a file, once the log has been read."""
        if not is_payload(kept) and not is_draft(kept):
            return FileUse.FOREIGN
        if kept.path in self.addressed:
            return FileUse.ADDRESSED
        epoch = self.epochs.get(kept.owner)
        # If the job was adopted, its driver may have continued in the original log after the copy was made.
        if epoch is None or kept.owner in self.shared:
            return FileUse.UNKNOWN
        if epoch < self.in_force or self._is_over:
            # This log does not have its pruned records; an archive may hold some that address the file.
            is_archived = kept.owner == self._begun_in and kept.path not in self._dropped
            return FileUse.UNKNOWN if is_archived else FileUse.LEFT_OVER
        return FileUse.IN_FORCE

    def is_pruned(self, kept: PayloadFile) -> bool:
        """Whether only pruned records may address a file: its use is unknown, and its epoch is one of theirs."""
        begun = self.epochs.get(self._begun_in)
        if begun is None or kept.owner in self.shared:
            return False
        is_of_theirs = kept.owner == self._begun_in or _epoch_of(kept) < begun
        return is_of_theirs and self.use_of(kept) is FileUse.UNKNOWN


def clean_former(
    log: Log,
    store: PayloadStore,
    *,
    epoch: int,
    end_offset: int,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Remove unaddressed files of epochs before the epoch in force, `epoch`. Returns the number of removed files.

    Limited to epochs that began in the last `CLEANED_RECORDS_MAX` records, and to `CLEANED_FILES_MAX` files;
    `payload_use` finds the other files. Records before an epoch's `EPOCH_STARTED` need not be read: the first record
    that addresses a file is of the file's own epoch. An address in a void record keeps its file too.

    Args:
        log: The job's log.
        store: The job's store.
        epoch: This driver's epoch.
        end_offset: Offset up to which the log is read, exclusive: just after this driver's `EPOCH_STARTED`.
        is_over: Returns whether the driver has ended: then the cleaning ends. Called before each record and each file.

    Raises:
        PayloadStoreError, LogError: Store or log cannot be read.
    """
    listed = store.listed()
    if not any(_epoch_of(kept) < epoch for kept in listed):
        return 0
    scan = _LogScan(store, log.identity)
    history = History(log)
    for stored in history.stored(max(history.start, end_offset - CLEANED_RECORDS_MAX), end_offset):
        if is_over():
            return 0
        with suppress(RecordError):  # of a void record
            scan.add(stored)
    scan.in_force = epoch  # void records may name any epoch
    unused = [kept for kept in listed if scan.use_of(kept) is FileUse.LEFT_OVER]
    return store.remove(itertools.takewhile(lambda _: not is_over(), unused[:CLEANED_FILES_MAX]))


def _other_log(launch: Mapping[str, str], identity: LogIdentity) -> str:
    """Log to which an epoch was written, by its attributes `launch`; empty if that is the log of `identity`."""
    info = LaunchInfo(launch)
    cluster_id, topic_id = info.log
    is_here = info.is_of(identity.cluster_id, identity.topic_id)
    return "" if is_here else f"topic {topic_id} of cluster {cluster_id}"


def _epoch_of(kept: PayloadFile) -> int:
    number = kept.owner.partition("-")[0]
    return int(number) if number.isdecimal() else _NO_EPOCH


def clean(
    store: PayloadStore, use: PayloadUse, *, is_dropping: bool = False
) -> Sequence[PayloadFile]:
    """Remove the files that are left over. Returns the removed files.

    Args:
        store: The job's store.
        use: Its comparison with the log.
        is_dropping: Whether to remove the files of epochs of pruned records too.

    Raises:
        PayloadStoreError: A file cannot be removed.
    """
    left_over = (*use.of(FileUse.LEFT_OVER), *(use.pruned if is_dropping else ()))
    store.remove(left_over)
    return left_over
