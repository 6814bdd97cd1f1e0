"""Adoption: copies a history to another log, where its job continues. Needed after the loss of a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from coordlog.errors import (
    CommandError,
    LogUnavailableError,
    RecordError,
    RestoreError,
)
from coordlog.history import History
from coordlog.limits import WRITER_CLOSE_TIMEOUT_S
from coordlog.log.appender import Patience
from coordlog.log.copy import groups, is_same, taken_by, to_append
from coordlog.log.interface import Log, LogWriter, PrunableLog, StoredRecord, UnstoredRecord
from coordlog.offline.epoch import begin_epoch, check_known_types, read_records
from coordlog.projections.inspection.payload_check import OpenPayload
from coordlog.projections.inspection.verify import Verified, verify
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.snapshot.codec import (
    moved_snapshot,
    state_before,
)
from coordlog.restore.destination_claim import former_logs_attributes
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.codec import encode_record
from coordlog.schemas.header import encode_header
from coordlog.schemas.record import JobMode, Kind, Record
from coordlog.schemas.validity import NOTHING_COUNTED, Judged, beginning_of, judge

__all__ = ["Adopted", "adopt", "checked", "copy_history"]

_NO_DRIVER: Final = "(none: a history is being copied here)"
"""Driver id of the epoch before a copy that is not whole; ids of drivers have no such characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """Result of an adoption."""

    record_count: int
    cluster_id: str
    """Cluster id of the log that the job has left."""
    topic_id: str
    """Topic id of the log that the job has left."""
    epoch: int
    """Epoch in force: the one that records the adoption or, if `is_before`, perhaps a later one."""
    is_before: bool = False
    """Whether an earlier call had recorded the adoption; this call then appended nothing."""


def checked(
    source: Log,
    job_id: str,
    *,
    open_payload: OpenPayload,
    on_progress: Callable[[int], None] | None = None,
) -> Verified:
    """Read all of a history once, check every hash, and fold it.

    Args:
        source: An exported file, or a mirrored topic.
        job_id: Job that the history must belong to.
        open_payload: Opens payloads for `verify`; those in the payload store are checked too.
        on_progress: Called with each offset.

    Raises:
        RestoreError: The history fails a check, belongs to another job or version, or is empty.
        RecordError: The history begins with a `SNAPSHOT` that has lost a part.
    """
    first, records = _peek(History(source, on_progress).stored())
    if first is not None and _is_guard(first):
        raise RestoreError(
            job_id,
            "the history",
            "a copy that was cut off",
            "to be whole",
            "run `coordlog adopt` there again, or adopt the original",
        )
    try:
        verified = verify(records, open_payload=open_payload)
    except RecordError as error:
        raise RestoreError(
            job_id,
            "the history's beginning",
            f"at offset {source.start_offset()}",
            "not to be used",
            str(error),
        ) from error
    if verified.fault_count:
        fault = verified.faults[0]
        raise RestoreError(
            job_id,
            "the history",
            f"faulty in {verified.fault_count} places, first at offset {fault.offset}: {fault.what}",
            "to be whole",
            "take another copy: `coordlog verify FILE` checks whether it is whole",
        )
    if first is not None:
        state_before(beginning_of(first))
    if verified.state.epoch == -1:
        raise RestoreError(
            job_id,
            "the history",
            "without a record that counts",
            "to have one",
            "take another copy",
        )
    if verified.state.job_id != job_id:
        raise RestoreError(
            job_id, "job_id", verified.state.job_id, job_id, "a history keeps the name of its job"
        )
    check_known_types(job_id, verified.state, verified.job_types)
    return verified


def adopt(
    source: Log,
    target: PrunableLog,
    job_id: str,
    *,
    patience: Patience | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Adopted:
    """Copy a job's history to a log of its own, and record that the job has moved there.

    The caller has read the history with `checked`, and has checked that no driver of the job runs. A call after an
    interrupted one continues the copy, and appends nothing if the adoption is recorded.

    Args:
        source: An exported file, or a mirrored topic.
        target: The job's log at its new place: empty, or with a part of this copy.
        job_id: The job.
        patience: Time limits; by default those of `limits`, and the machine's clock.
        on_progress: Called now and then with the number of copied records and the source's end offset.

    Raises:
        CommandError: The target has other records, for instance if the job was adopted there from another copy.
        FencedError: Another driver was first there.
        LogError: A log cannot be read or appended to.
    """
    earlier = _adopted_before(source, target, job_id)
    if earlier is not None:
        return earlier
    count = copy_history(source, target, job_id, patience=patience, on_progress=on_progress)
    rebuild = read_records(target)
    launch, identity = rebuild.state.launch_info, target.identity
    old_cluster, old_topic = launch.log
    begin_epoch(
        target,
        rebuild,
        lambda _state: [],
        command="adopt",
        attributes={
            "cluster_id": identity.cluster_id,
            "topic_id": identity.topic_id,
            "adopted_cluster_id": old_cluster,
            "adopted_topic_id": old_topic,
            **former_logs_attributes((*launch.former_logs, (old_cluster, old_topic))),
        },
        patience=patience,
    )
    return Adopted(
        record_count=count,
        cluster_id=old_cluster,
        topic_id=old_topic,
        epoch=rebuild.state.epoch,
    )


def _adopted_before(source: Log, target: Log, job_id: str) -> Adopted | None:
    """Result of an earlier call, or None if the target has no record of it.

    Raises:
        CommandError: The earlier call adopted another copy of the same log.
    """
    start, end = target.start_offset(), target.high_watermark()
    if start == end:
        return None
    cluster_id, topic_id = read_records(source).state.launch_info.log
    adoptions = (
        stored
        for stored in target.read(start, end)
        if _adopted_from(stored) == (cluster_id, topic_id)
    )
    adoption = next(adoptions, None)
    if adoption is None:
        return _adopted_before_prune(target, (cluster_id, topic_id)) if start else None
    moved = itertools.islice(_moved(source, job_id, source.high_watermark()), start, None)
    # A shorter source is an older copy: all of its records are in the target.
    expected = itertools.islice(moved, adoption.offset + 1 - start)
    count = 0
    for record, stored in zip(expected, target.read(start, end), strict=False):
        if stored.offset == adoption.offset or not is_same(stored, record):
            raise CommandError(
                job_id,
                f"it has been adopted at {target.identity.name} from another copy of its log, "
                f"recorded at offset {adoption.offset}, and differs from this one at {stored.offset}",
                "start the job: it continues from that copy, without the records that only this copy has",
            )
        count += 1
    epoch = read_records(target).state.epoch
    return Adopted(
        record_count=count, cluster_id=cluster_id, topic_id=topic_id, epoch=epoch, is_before=True
    )


def _adopted_before_prune(target: Log, former_log: tuple[str, str]) -> Adopted | None:
    """Result of an adoption whose record was pruned since, or None: the state names the job's former logs.

    Args:
        target: The job's log, which begins with a snapshot.
        former_log: Cluster id and topic id of the log that the job is to leave.
    """
    state, identity = read_records(target).state, target.identity
    launch = state.launch_info
    is_here = launch.log == (identity.cluster_id, identity.topic_id)
    if not is_here or former_log not in launch.former_logs:
        return None
    cluster_id, topic_id = former_log
    return Adopted(
        record_count=0, cluster_id=cluster_id, topic_id=topic_id, epoch=state.epoch, is_before=True
    )


def _adopted_from(stored: StoredRecord) -> tuple[str, str] | None:
    """Cluster id and topic id in the record of an adoption, or None for any other record."""
    if stored.header is None or not stored.header.is_epoch_started:
        return None
    try:
        return LaunchInfo(stored.record().attributes).adopted_from
    except RecordError:
        return None


def copy_history(
    source: Log,
    target: PrunableLog,
    job_id: str,
    *,
    to_offset: int | None = None,
    patience: Patience | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Copy every record of `source` to `target`, in order, and read all of the copy back. Returns their number.

    Sequences, keys, values and times stay. Offsets change if the source has gaps or does not begin at 0, and with
    them the snapshot pointers in the headers and in each `SNAPSHOT`. Records that count in the source count in the
    target.

    Args:
        source: An exported file, or a topic.
        target: Empty log, or a log with a part of this copy.
        job_id: The job of the target.
        to_offset: End of the copy, exclusive; by default all records are copied.
        patience: Time limits; by default those of `limits`, and the machine's clock.
        on_progress: Called now and then with the number of copied records and the source's end offset.

    Raises:
        CommandError: The target has other records.
        FencedError: A driver's epoch began in the target before the first record; nothing of the copy counts.
        LogUnavailableError: No progress within `log_timeout_s`.
        AppendRefusedError: The target refuses a record.
    """
    patience = patience or Patience()
    is_pruned = source.start_offset() > 0
    source_end = source.high_watermark() if to_offset is None else to_offset
    reached, began, backoff_s = -1, patience.clock(), patience.backoff_s
    while True:
        start = target.start_offset()
        moved = itertools.islice(_moved(source, job_id, source_end), start, None)
        end = target.high_watermark()
        _compare(target, start, end, moved, job_id)
        if end > reached:
            reached, began, backoff_s = end, patience.clock(), patience.backoff_s
        following = next(moved, None)
        if following is None:
            break
        writer = target.writer()
        try:
            records = itertools.chain([following], moved)
            is_ours = _append(
                writer,
                records,
                end,
                patience,
                None if on_progress is None else lambda done: on_progress(done, source_end),
            )
            if not is_ours and end == 0:
                taken = taken_by(target, job_id, following)
                if taken is not None:
                    raise taken
        except LogUnavailableError:
            # The records that arrived are compared, and the rest is sent again. A record of the failed append that
            # arrives after that is reported as a difference, and the user begins the copy again.
            if patience.clock() - began > patience.log_timeout_s:
                raise
            patience.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, patience.backoff_max_s)
        finally:
            writer.close(timeout_s=WRITER_CLOSE_TIMEOUT_S)
    if is_pruned and target.start_offset() == 0:
        target.delete_below(1)
    return target.high_watermark() - is_pruned


def _moved(source: Log, job_id: str, end: int) -> Iterator[UnstoredRecord]:
    """The records of a copy, at offsets from 0 on without gaps; before those of a pruned source, the `_guard`."""
    history = History(source)
    is_pruned = history.start > 0
    first, records = _peek(history.stored(end=end))
    if is_pruned:
        yield _guard(first, job_id)
    counting = NOTHING_COUNTED
    if first is not None:
        with suppress(RecordError):
            counting = beginning_of(first).counting
    new_offsets: dict[int, int] = {}
    for offset, judged in enumerate(judge(records, counting), start=int(is_pruned)):
        yield _at(judged, offset, new_offsets)


def _peek(
    records: Iterator[StoredRecord],
) -> tuple[StoredRecord | None, Iterator[StoredRecord]]:
    """The first of some records, and all of them."""
    first = next(records, None)
    return first, records if first is None else itertools.chain([first], records)


def _guard(first: StoredRecord | None, job_id: str) -> UnstoredRecord:
    """Record at offset 0, until the copy is whole, before a history that begins with a `SNAPSHOT`.

    A driver counts epochs from the start of the records that it has read. A driver that has read the empty log begins
    epoch 0: within the copy or after it, until offset 0 is removed. The guard occupies epoch 0, as a whole history
    does, so that driver is fenced. After the removal its reading begins below the log's start, and it ends. A driver
    that reads the copy before it is whole finds an epoch at another cluster, and starts no job.

    Once offset 0 is removed, the `SNAPSHOT` decides which records count. The guard is derived from the history's
    first record alone, so that an interrupted copy can be continued.

    Args:
        first: The history's first record, or None if it is empty.
        job_id: The job.
    """
    cluster_id, topic_id = "", ""
    if first is not None:
        with suppress(RecordError):
            cluster_id, topic_id = state_before(beginning_of(first)).launch_info.log
    return to_unstored(
        Record(
            epoch=0,
            driver_id=_NO_DRIVER,
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=0 if first is None else first.timestamp_ms * 1000,
            job_id=job_id,
            attributes={
                "cluster_id": cluster_id,
                "topic_id": topic_id,
                "endpoint": "",
                "mode": JobMode.STREAMING,
                "operators": "[]",
                "parallelism": "0",
            },
        ),
        snapshot_offset=-1,
    )


def _is_guard(first: StoredRecord) -> bool:
    header = first.header
    if header is None or not header.is_epoch_started:
        return False
    try:
        return first.record(header).driver_id == _NO_DRIVER
    except RecordError:
        return False


def _at(judged: Judged[StoredRecord], offset: int, new_offsets: dict[int, int]) -> UnstoredRecord:
    """A record at its new offset.

    `new_offsets`: those of snapshots and completed checkpoints, by the old offset. Void ones are not among them: no
    header may name a snapshot that counted only in the log of which the source has lost records.
    """
    stored, header = judged.entry, judged.header
    header_bytes: bytes | None = None
    value: bytes | None = None
    if header is not None:
        kind = _kind(stored)
        if kind in (Kind.SNAPSHOT, Kind.CHECKPOINT_COMPLETED) and not judged.verdict.is_void:
            new_offsets[stored.offset] = offset
        pointer = header.snapshot_offset
        new_pointer = new_offsets.get(pointer, -1)
        if pointer >= 0 and new_pointer != pointer:
            header_bytes = encode_header(header._replace(snapshot_offset=new_pointer))
        if kind is Kind.SNAPSHOT:
            value = _moved_value(stored, new_offsets)
    return to_append(stored, header=header_bytes, value=value)


def _moved_value(stored: StoredRecord, new_offsets: dict[int, int]) -> bytes | None:
    """Value of a `SNAPSHOT` with new offsets, or None if it stays as it is."""
    record = stored.record()
    payload = moved_snapshot(record, new_offsets)
    return None if payload is None else encode_record(replace(record, payload=payload))


def _kind(stored: StoredRecord) -> Kind | None:
    try:
        return stored.record().kind
    except RecordError:
        return None  # the record is void, or `checked` has refused the history


def _compare(
    target: Log, start: int, end: int, moved: Iterator[UnstoredRecord], job_id: str
) -> None:
    for stored in target.read(start, end):
        expected = next(moved, None)
        if expected is None or not is_same(stored, expected):
            raise CommandError(
                job_id,
                f"{target.identity.name} has another record at offset {stored.offset} than this history",
                f"if its records are not needed, remove it with `coordlog delete {job_id} --keep-payloads`, "
                "and try again",
            )


def _append(
    writer: LogWriter,
    records: Iterator[UnstoredRecord],
    first: int,
    patience: Patience,
    on_progress: Callable[[int], None] | None,
) -> bool:
    """Whether each record got its expected offset; stops after the first group in which one did not."""
    end = first
    for group in groups(records):
        offsets = writer.append(group, timeout_s=patience.append_timeout_s)
        if list(offsets) != list(range(end, end + len(group))):
            return False
        end += len(group)
        if on_progress is not None:
            on_progress(end)
    return True
