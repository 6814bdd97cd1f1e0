"""A history put on another log, and a job that goes on there: the way out of a lost cluster (clause E9)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from coordlog.errors import (
    CommandError,
    LogUnavailableError,
    PayloadLostError,
    RecordError,
    RestoreError,
)
from coordlog.limits import WRITER_CLOSE_TIMEOUT_S
from coordlog.log.appender import Patience
from coordlog.log.copy import groups, is_same, taken_by, to_append
from coordlog.log.interface import Log, LogWriter, PrunableLog, StoredRecord, UnstoredRecord
from coordlog.offline.epoch import begin_epoch, begun, check_known_types, read_records
from coordlog.projections.inspection.payload_check import OpenPayload
from coordlog.projections.inspection.verify import Verified, verify
from coordlog.projections.snapshot.codec import SnapshotUnusableError, moved_snapshot, state_of
from coordlog.restore.destination_claim import former_logs, said_of_former_logs
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.codec import encode_record
from coordlog.schemas.header import decode_header, encode_header
from coordlog.schemas.record import Kind, Record

__all__ = ["Adopted", "adopt", "checked", "copy_history"]

_NOBODY: Final = "(none: a history is being copied here)"
"""The driver of the epoch that stands before a copy that is not whole; no driver's own id has such signs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What an adoption came to."""

    record_count: int
    cluster_id: str
    """Of the log that the job has left."""
    topic_id: str
    epoch: int
    """Of the epoch in force: the one that records it, or, `is_before`, one after that."""
    is_before: bool = False
    """Whether an earlier call had recorded it: nothing was appended now."""


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
        job_id: Whose it must be.
        open_payload: As `verify` asks for it: what stands outside the log is looked at too.
        on_progress: Called with each offset.

    Raises:
        RestoreError: Something in it does not hold, it is another job's or another version's, or it is empty.
        RecordError: It begins with a `SNAPSHOT` that does not stand in it.
    """
    start, end = source.start_offset(), source.high_watermark()
    begins, whole = _peeked(source.read(start, end))
    if begins is not None and _is_guard(begins):
        raise RestoreError(
            job_id,
            "the history",
            "a copy that was cut off",
            "to be whole",
            "run `coordlog adopt` there again, or adopt what it was copied from",
        )
    try:
        found = verify(whole, on_progress=on_progress, open_payload=open_payload)
    except RecordError as error:
        raise RestoreError(
            job_id, "the history's beginning", f"at offset {start}", "not to be used", str(error)
        ) from error
    if found.fault_count:
        first = found.faults[0]
        raise RestoreError(
            job_id,
            "the history",
            f"at odds with itself {found.fault_count} times, first at offset {first.offset}: "
            f"{first.what}",
            "to be whole",
            "take another copy: `coordlog verify FILE` tells which is whole",
        )
    begun(source)
    if found.state.epoch == -1:
        raise RestoreError(
            job_id, "the history", "without a record that counts", "to be one", "take another copy"
        )
    if found.state.job_id != job_id:
        raise RestoreError(
            job_id, "job_id", found.state.job_id, job_id, "a history keeps the name of its job"
        )
    check_known_types(job_id, found.state, found.job_types)
    return found


def adopt(
    source: Log,
    target: PrunableLog,
    job_id: str,
    *,
    patience: Patience | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Adopted:
    """Copy a job's history to a log of its own, and record that the job has moved there.

    The caller has looked at the history with `checked`, and has seen that no driver of the job lives. May be called
    again after it was cut off: it goes on with what stands there, and appends nothing where the adoption is recorded.

    Args:
        source: An exported file, or a mirrored topic.
        target: The job's log at its new place: new, or with a part of this very copy.
        job_id: The job.
        patience: Default: the limits, and the machine's clock.
        on_progress: Called now and then with records copied and the number of all.

    Raises:
        CommandError: Something else stands in the target: the job has been adopted there from another copy, too.
        FencedError: Another driver was first there.
        LogError: One of the logs.
    """
    before = _adopted_before(source, target, job_id)
    if before is not None:
        return before
    count = copy_history(source, target, job_id, patience=patience, on_progress=on_progress)
    made = read_records(target)
    was, here = made.state.launch, target.identity
    old_cluster, old_topic = was.get("cluster_id", ""), was.get("topic_id", "")
    begin_epoch(
        target,
        made,
        lambda _state: [],
        command="adopt",
        attributes={
            "cluster_id": here.cluster_id,
            "topic_id": here.topic_id,
            "adopted_cluster_id": old_cluster,
            "adopted_topic_id": old_topic,
            **said_of_former_logs((*former_logs(was), (old_cluster, old_topic))),
        },
        patience=patience,
    )
    return Adopted(
        record_count=count,
        cluster_id=old_cluster,
        topic_id=old_topic,
        epoch=made.state.epoch,
    )


def _adopted_before(source: Log, target: Log, job_id: str) -> Adopted | None:
    """What an earlier call came to, where the target has the record of it; nothing is sent then.

    Raises:
        CommandError: It was of another copy of the same log.
    """
    start, end = target.start_offset(), target.high_watermark()
    if start == end:
        return None
    was = read_records(source).state.launch
    cluster_id, topic_id = was.get("cluster_id", ""), was.get("topic_id", "")
    adopted = (
        one for one in target.read(start, end) if _adopted_from(one) == (cluster_id, topic_id)
    )
    found = next(adopted, None)
    if found is None:
        return _adopted_before_prune(target, (cluster_id, topic_id)) if start else None
    moved = itertools.islice(_moved(source, job_id), start, None)
    # One that is shorter than what was adopted is older, and has nothing that is not there.
    wanted, there = itertools.islice(moved, found.offset + 1 - start), target.read(start, end)
    count = 0
    for one, stored in zip(wanted, there, strict=False):
        if stored.offset == found.offset or not is_same(stored, one):
            raise CommandError(
                job_id,
                f"it has been adopted at {target.identity.name} from another copy of its log, "
                f"recorded at offset {found.offset}, and differs from this one at {stored.offset}",
                "start the job: it goes on from that copy; what only this one has is not in it",
            )
        count += 1
    epoch = read_records(target).state.epoch
    return Adopted(
        record_count=count, cluster_id=cluster_id, topic_id=topic_id, epoch=epoch, is_before=True
    )


def _adopted_before_prune(target: Log, left: tuple[str, str]) -> Adopted | None:
    """An adoption whose record was pruned since: the state names the logs that the job has left.

    Args:
        target: The job's log, which begins with a snapshot.
        left: Cluster id and topic id of the log that the job is to leave.
    """
    state, here = read_records(target).state, target.identity
    launch = state.launch
    is_here = (launch.get("cluster_id"), launch.get("topic_id")) == (
        here.cluster_id,
        here.topic_id,
    )
    if not is_here or left not in former_logs(launch):
        return None
    cluster_id, topic_id = left
    return Adopted(
        record_count=0, cluster_id=cluster_id, topic_id=topic_id, epoch=state.epoch, is_before=True
    )


def _adopted_from(stored: StoredRecord) -> tuple[str, str] | None:
    """The cluster and the topic that a record of an adoption names; None of any other record."""
    if stored.header is None or not stored.header.is_epoch_started:
        return None
    try:
        said = stored.record().attributes
    except RecordError:
        return None
    named = said.get("adopted_topic_id")
    return None if named is None else (said.get("adopted_cluster_id", ""), named)


def copy_history(
    source: Log,
    target: PrunableLog,
    job_id: str,
    *,
    patience: Patience | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Put every record of `source` into `target`, in order, and read all of it back. Returns their number.

    Sequences, keys, values and times stay. Offsets change where the source has gaps or does not begin at 0, and with
    them the snapshot pointers in the headers, and the one in each `SNAPSHOT`. What counts there counts here.

    Raises:
        CommandError: Something else stands in the target.
        FencedError: A driver has begun on it before the first record; nothing of the copy counts.
        LogUnavailableError: No progress within `log_timeout_s`.
        AppendRefusedError: The target does not take a record.
    """
    patience = patience or Patience()
    is_pruned = source.start_offset() > 0
    reached, began, backoff_s = -1, patience.clock(), patience.backoff_s
    while True:
        start = target.start_offset()
        wanted = itertools.islice(_moved(source, job_id), start, None)
        end = target.high_watermark()
        _compare(target, start, end, wanted, job_id)
        if end > reached:
            reached, began, backoff_s = end, patience.clock(), patience.backoff_s
        following = next(wanted, None)
        if following is None:
            break
        writer = target.writer()
        try:
            records = itertools.chain([following], wanted)
            is_ours = _append(writer, records, end, patience, on_progress)
            if not is_ours and end == 0:
                taken = taken_by(target, job_id, following)
                if taken is not None:
                    raise taken
        except LogUnavailableError:
            # What has arrived of it is compared, and the rest is sent again: what arrives later is told as a
            # difference, and the copy is begun anew by hand.
            if patience.clock() - began > patience.log_timeout_s:
                raise
            patience.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, patience.backoff_max_s)
        finally:
            writer.close(timeout_s=WRITER_CLOSE_TIMEOUT_S)
    if is_pruned and target.start_offset() == 0:
        target.delete_below(1)
    return target.high_watermark() - is_pruned


def _moved(source: Log, job_id: str) -> Iterator[UnstoredRecord]:
    """The records as they stand in a log that has them from its first offset on; `_guard` first where that is not 0."""
    start, end = source.start_offset(), source.high_watermark()
    is_pruned = start > 0
    first, records = _peeked(source.read(start, end))
    if is_pruned:
        yield _guard(first, job_id)
    places: dict[int, int] = {}
    for here, stored in enumerate(records, start=int(is_pruned)):
        yield _at(stored, here, places)


def _peeked(
    records: Iterator[StoredRecord],
) -> tuple[StoredRecord | None, Iterator[StoredRecord]]:
    """The first of some records, and all of them."""
    first = next(records, None)
    return first, records if first is None else itertools.chain([first], records)


def _guard(first: StoredRecord | None, job_id: str) -> UnstoredRecord:
    """What stands at offset 0, until all is copied, before a history that begins with a `SNAPSHOT`.

    A driver counts from the start of what it has read. One that has read the log while it was empty begins its epoch
    in epoch 0: anywhere in the copy, or behind it, until offset 0 is removed. So that epoch is taken there, as it is
    where a history is whole. Afterwards its reading begins below the log's start, and it ends. One that reads the copy
    before it is whole finds an epoch at another cluster, and starts no job.

    What counts in the copy is told by the `SNAPSHOT` once that is the first record. This one is made of that alone, so
    that a copy can be gone on with.

    Args:
        first: The history's first record.
        job_id: The job.
    """
    launch: Mapping[str, str] = {}
    if first is not None:
        with suppress(RecordError, SnapshotUnusableError, PayloadLostError):
            launch = state_of(first.record()).launch
    return to_unstored(
        Record(
            epoch=0,
            driver_id=_NOBODY,
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=0 if first is None else first.timestamp_ms * 1000,
            job_id=job_id,
            attributes={
                "cluster_id": launch.get("cluster_id", ""),
                "topic_id": launch.get("topic_id", ""),
                "endpoint": "",
                "mode": "streaming",
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
        return first.record(header).driver_id == _NOBODY
    except RecordError:
        return False


def _at(stored: StoredRecord, here: int, places: dict[int, int]) -> UnstoredRecord:
    """One record at its new offset. `places`: the new offsets of what is pointed to."""
    header_bytes: bytes | None = None
    value: bytes | None = None
    header = decode_header(stored.header_bytes)
    if header is not None:
        kind = _kind(stored)
        if kind in (Kind.SNAPSHOT, Kind.CHECKPOINT_COMPLETED):
            places[stored.offset] = here
        pointer = header.snapshot_offset
        if pointer >= 0 and places.get(pointer, -1) != pointer:
            header_bytes = encode_header(header._replace(snapshot_offset=places.get(pointer, -1)))
        if kind is Kind.SNAPSHOT:
            value = _moved_value(stored, places)
    return to_append(stored, header=header_bytes, value=value)


def _moved_value(stored: StoredRecord, places: dict[int, int]) -> bytes | None:
    record = stored.record()
    payload = moved_snapshot(record, places)
    return None if payload is None else encode_record(replace(record, payload=payload))


def _kind(stored: StoredRecord) -> Kind | None:
    try:
        return stored.record().kind
    except RecordError:
        return None  # it is void, or `checked` has refused the history


def _compare(
    target: Log, start: int, end: int, wanted: Iterator[UnstoredRecord], job_id: str
) -> None:
    for stored in target.read(start, end):
        one = next(wanted, None)
        if one is None or not is_same(stored, one):
            raise CommandError(
                job_id,
                f"{target.identity.name} has something else at offset {stored.offset} than this history",
                f"if nothing in it is needed remove it with `coordlog delete {job_id} --keep-payloads`, "
                "and try again",
            )


def _append(
    writer: LogWriter,
    records: Iterator[UnstoredRecord],
    first: int,
    patience: Patience,
    on_progress: Callable[[int, int], None] | None,
) -> bool:
    """Whether each record stands where it is to; nothing is sent behind one that does not."""
    done = first
    for group in groups(records):
        offsets = writer.append(group, timeout_s=patience.append_timeout_s)
        if list(offsets) != list(range(done, done + len(group))):
            return False
        done += len(group)
        if on_progress is not None:
            on_progress(done, max(offsets) + 1)
    return True
