"""Removes the beginning of a job's log, after folding all of it and archiving the records to remove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coordlog.errors import (
    CommandError,
    OffsetGapError,
    OutOfRangeError,
    RecordError,
)
from coordlog.export import archive_below
from coordlog.history import History
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log, PrunableLog
from coordlog.projections.inspection.prune_plan import PrunePlan, SnapshotPlace, plan_prune
from coordlog.projections.snapshot.codec import state_before
from coordlog.restore.rebuild import check_identity
from coordlog.schemas.payload import open_inline

__all__ = ["planned", "prune"]


def planned(
    log: PrunableLog,
    job_id: str,
    *,
    sequence: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> PrunePlan:
    """Plan of a prune: reads and folds all of a log, and compares each snapshot with the fold at its place.

    Args:
        log: The job's log.
        job_id: The job.
        sequence: Sequence of the snapshot just taken by the job's driver, or None; it must exist and be whole.
        on_progress: Called with each offset.

    Raises:
        RecordError: A record that counts cannot be read or applied.
        RestoreError: The log is a copy.
        CommandError: The snapshot at `sequence` is missing or not whole.
        LogError: The log cannot be read.
    """
    plan = plan_prune(History(log, on_progress).stored())
    if plan.state.epoch >= 0:
        check_identity(job_id, plan.state, log.identity)
    newest = plan.newest
    if sequence is not None and (newest is None or newest.sequence < sequence):
        raise CommandError(
            job_id,
            f"a log cannot begin with the snapshot at sequence {sequence}, taken for this prune",
            f"nothing was removed; `coordlog verify {job_id}` shows its faults",
        )
    return plan


def prune(
    log: PrunableLog,
    job_id: str,
    plan: PrunePlan,
    archive: Path,
    open_payload: Callable[[bytes], bytes] = open_inline,
) -> SnapshotPlace:
    """Archive the records to remove, remove them, and check the log's new beginning. Returns that snapshot's place.

    Args:
        log: The job's log.
        job_id: The job.
        plan: Result of `planned`, with records to remove.
        archive: New file, or the file of an earlier call that was cut off before it removed records.
        open_payload: Opens inline and addressed payloads: no log may begin with a snapshot that has lost a part.

    Raises:
        PayloadLostError, PayloadStoreError: A part of the snapshot is lost or cannot be read; nothing was removed.
        FileExistsError: The archive exists with other content.
        SourceError: The archive cannot be read back; nothing was removed.
        CommandError: Another process changed the log after `planned`: its beginning has moved, and this call removed
            nothing; or, after the removal, it does not begin with the planned snapshot.
        LogError: The log cannot be read or pruned.
    """
    target = plan.begins_with
    assert target is not None, "the plan removes records"
    for address in target.kept_apart:
        open_payload(address)
    _check_start(log, job_id, plan, target)
    _archive(log, job_id, plan, target, archive)
    log.delete_below(target.offset)
    history = History(log)
    start = history.start
    if start < target.offset:
        raise OffsetGapError(log.identity.name, target.offset, start)
    problem = "it was removed" if start > target.offset else _problem_of_beginning(history)
    if problem:
        raise CommandError(
            job_id,
            f"its log begins at offset {start}, and the snapshot at {target.offset} has changed: "
            f"{problem}",
            f"the removed records are in {archive}",
        )
    return target


def _archive(log: Log, job_id: str, plan: PrunePlan, target: SnapshotPlace, archive: Path) -> None:
    """Write the records to remove to the file, or check that an existing file has them."""
    existed = archive.exists()
    try:
        count = archive_below(log, job_id, target.offset, archive)
    except OutOfRangeError:
        _check_start(log, job_id, plan, target)
        raise
    if count == target.records_below:
        return
    start = ExportedLog(archive).start_offset()
    if not existed:  # the next prune would refuse to write over it
        archive.unlink()
    raise _moved_start(job_id, plan, target, start)


def _check_start(log: Log, job_id: str, plan: PrunePlan, target: SnapshotPlace) -> None:
    """Refuse a log that has lost its beginning since `planned`: a prompt may wait for hours in between."""
    start = log.start_offset()
    if start > plan.start:
        raise _moved_start(job_id, plan, target, start)


def _moved_start(job_id: str, plan: PrunePlan, target: SnapshotPlace, start: int) -> CommandError:
    return CommandError(
        job_id,
        f"its log began at offset {plan.start} when the prune was planned, with {target.records_below} records before "
        f"the snapshot at offset {target.offset}, and begins at offset {start} now: another prune, or retention, "
        "has removed records meanwhile, and this one has removed nothing",
        "run it again",
    )


def _problem_of_beginning(history: History) -> str:
    """Fault of the snapshot that the log begins with; empty if it has none."""
    try:
        state_before(history.beginning())
    except RecordError as error:
        return error.problem
    return ""
