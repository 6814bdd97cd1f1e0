"""Removes the beginning of a job's log, after all of it has been folded and what goes has been archived."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from coordlog.errors import (
    CommandError,
    OffsetGapError,
    OutOfRangeError,
    PayloadLostError,
    RecordError,
    SourceError,
)
from coordlog.log.file import ExportedLog, write_exported
from coordlog.log.interface import Log, PrunableLog, StoredRecord
from coordlog.projections.inspection.prune_plan import PrunePlan, SnapshotPlace, plan_prune
from coordlog.projections.snapshot.codec import SnapshotUnusableError, state_of
from coordlog.restore.rebuild import check_identity
from coordlog.schemas.payload import open_inline

__all__ = ["planned", "prune"]


def planned(
    log: PrunableLog,
    job_id: str,
    *,
    keep_checkpoints: int,
    sequence: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> PrunePlan:
    """Read and fold all of a log, each snapshot compared with the fold there, and see what can be removed.

    Args:
        log: The job's.
        job_id: The job.
        keep_checkpoints: How many of the last restorable checkpoints must stay so, 1 or more.
        sequence: Of a snapshot that has just been taken for this: it must be found, and be whole.
        on_progress: Called with each offset.

    Raises:
        RecordError: A record that counts cannot be read or applied.
        RestoreError: The log is a copy.
        CommandError: The snapshot is not there, or not whole.
        LogError: The log.
    """
    stored = log.read(log.start_offset(), log.high_watermark())

    def watched() -> Iterator[StoredRecord]:
        for one in stored:
            if on_progress is not None:
                on_progress(one.offset)
            yield one

    plan = plan_prune(watched(), keep_checkpoints=keep_checkpoints)
    if plan.state.epoch >= 0:
        check_identity(job_id, plan.state, log.identity)
    newest = plan.newest
    if sequence is not None and (newest is None or newest.sequence < sequence):
        raise CommandError(
            job_id,
            f"the snapshot at sequence {sequence}, taken for this, is none that a log can begin with",
            f"nothing was removed; `coordlog verify {job_id}` tells what is wrong with it",
        )
    return plan


def prune(
    log: PrunableLog,
    job_id: str,
    plan: PrunePlan,
    archive: Path,
    open_payload: Callable[[bytes], bytes] = open_inline,
) -> SnapshotPlace:
    """Archive what goes, remove it, and look at what the log begins with then.

    Args:
        log: The job's.
        job_id: The job.
        plan: By `planned`: with something to remove.
        archive: A file that is not there yet, or that an earlier call has left, cut off before it removed anything.
        open_payload: Gives what the snapshot holds, or addresses: the log is begun with none of which a part is lost.

    Raises:
        PayloadLostError, PayloadStoreError: A part is lost, or cannot be looked at; nothing was removed.
        FileExistsError: It is there, and is not what would be written.
        SourceError: What was archived cannot be read back; nothing was removed.
        CommandError: The log does not begin where it did when it was planned, and nothing was removed by this call; or
            what it begins with then is not what it should, though it has been checked before. Somebody has changed the
            log meanwhile.
        LogError: The log.
    """
    target = plan.begins_with
    assert target is not None, "there is something to remove"
    for address in target.kept_apart:
        open_payload(address)
    _check_start(log, job_id, plan, target)
    _archive(log, job_id, plan, target, archive)
    log.delete_below(target.offset)
    start = log.start_offset()
    if start < target.offset:
        raise OffsetGapError(log.identity.name, target.offset, start)
    first = next(iter(log.read(start, log.high_watermark())), None)
    why_not = "it is not there"
    if first is not None and first.offset == target.offset:
        why_not = _why_not(first)
    if why_not:
        raise CommandError(
            job_id,
            f"its log begins at offset {start}, and the snapshot at {target.offset} is not what it "
            f"was: {why_not}",
            f"what was removed is in {archive}",
        )
    return target


def _archive(log: Log, job_id: str, plan: PrunePlan, target: SnapshotPlace, archive: Path) -> None:
    """Write what goes to the file, or see that it is there."""
    is_there = archive.exists()
    try:
        if not is_there:
            write_exported(log, job_id, archive, to_offset=target.offset)
        elif not _is_archived(log, job_id, archive, target.offset):
            raise FileExistsError(archive)
    except OutOfRangeError:
        _check_start(log, job_id, plan, target)
        raise
    kept = ExportedLog(archive)
    there = sum(1 for _ in kept.read(kept.start_offset(), kept.high_watermark()))
    if there == target.records_below:
        return
    if not is_there:  # it would stand in the way of the next one
        archive.unlink()
    raise _moved(job_id, plan, target, kept.start_offset())


def _check_start(log: Log, job_id: str, plan: PrunePlan, target: SnapshotPlace) -> None:
    """Refuse a log whose beginning has gone since it was planned: a prompt may stand for hours."""
    start = log.start_offset()
    if start > plan.start:
        raise _moved(job_id, plan, target, start)


def _moved(job_id: str, plan: PrunePlan, target: SnapshotPlace, start: int) -> CommandError:
    return CommandError(
        job_id,
        f"its log began at offset {plan.start} when it was looked at, with {target.records_below} records before "
        f"the snapshot at offset {target.offset}, and begins at offset {start} now: another prune, or retention, "
        "has removed records meanwhile, and this one has removed nothing",
        "run it again",
    )


def _is_archived(log: Log, job_id: str, archive: Path, end: int) -> bool:
    """Whether the file has this very beginning of the log, whole."""
    start, here = log.start_offset(), log.identity
    try:
        kept = ExportedLog(archive)
        there = kept.identity
        said = (kept.job_id, there.cluster_id, there.topic_id, kept.is_redacted)
        if said != (job_id, here.cluster_id, here.topic_id, False):
            return False
        if (kept.start_offset(), kept.high_watermark()) != (start, end):
            return False
        pairs = itertools.zip_longest(kept.read(start, end), log.read(start, end))
        return all(one == other for one, other in pairs)
    except SourceError:
        return False


def _why_not(stored: StoredRecord) -> str:
    try:
        state_of(stored.record())
    except (RecordError, SnapshotUnusableError, PayloadLostError) as error:
        return str(error)
    return ""
