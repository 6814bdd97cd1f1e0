"""Texts of `coordlog ingest`: progress, rates, the summary. Pure functions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from coordlog.amounts import in_bytes, many
from coordlog.cli.console import iso
from coordlog.limits import CLOCK_AHEAD_S
from coordlog.projections.job.state import sorted_items
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.projections.tables.progress import JobEnd, Progress
from coordlog.restore.rebuild import Restored, RestoreMode
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = [
    "RateMeter",
    "Rates",
    "Surrounding",
    "already_finished",
    "checkpoint_text",
    "left_out_line",
    "not_listed_line",
    "progress_line",
    "rates_text",
    "restored_line",
    "stopped_lines",
    "summary_lines",
    "unreleased_line",
]

_WINDOW_S: Final = 15.0
"""Seconds over which a rate is taken: three checkpoints at the default interval."""

_SKIPPED_SHOWN: Final = 10
_SKIPPED_CHARS: Final = 300
_PROBLEM_CHARS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrounding:
    """Facts of the summary that are not in the history."""

    job_id: str
    destination: str
    log_name: str
    servers_option: str
    """` --bootstrap-servers …` and the like, if the advised commands need options; else empty."""
    seconds: float
    """Duration of the run."""
    rejects: str | None = None
    """Destination of bad rows; None if they have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates per second, over the last `_WINDOW_S` seconds."""

    rows: float
    read_bytes: float


class RateMeter:
    """Rates of the progress passed to `see`, over a window of some seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def see(self, at_s: float, progress: Progress) -> Rates:
        """Rates up to now.

        Rows count when they are published (streaming) or when their split is finished (batch);
        bytes always count with their split.

        Args:
            at_s: Monotonic time, seconds.
            progress: Progress at that time.
        """
        rows = progress.rows if progress.is_batch else progress.rows_published
        seen = self._seen
        if not rows and not progress.bytes_read:
            seen.clear()  # the time before the first rows does not count
        seen.append((at_s, rows, progress.bytes_read))
        while at_s - seen[0][0] > _WINDOW_S:
            seen.popleft()
        began_s, began_rows, began_bytes = seen[0]
        passed_s = at_s - began_s
        if passed_s <= 0:
            return Rates(rows=0.0, read_bytes=0.0)
        # A reset takes finished work away; rates are never negative.
        return Rates(
            rows=max(0, rows - began_rows) / passed_s,
            read_bytes=max(0, progress.bytes_read - began_bytes) / passed_s,
        )


def rates_text(rates: Rates) -> str:
    """Both rates, in words; that of bytes is left out while it is 0: the splits of an unbounded topic never end."""
    rows = f"{rates.rows:,.0f} rows/s"
    return f"{rows}, {in_bytes(rates.read_bytes)}/s" if rates.read_bytes else rows


def progress_line(progress: Progress, rates: Rates, now_us: int) -> str:
    """Progress of a running job, on one line."""
    known = f"{progress.splits_known:,}" if progress.splits_known else "?"
    more = "" if progress.is_listing_complete or not progress.splits_known else "+"
    skipped = f", {len(progress.skipped):,} skipped" if progress.skipped else ""
    parts = [f"splits {progress.splits_finished:,}/{known}{more}{skipped}"]
    if progress.is_batch:
        parts.append(f"{progress.rows:,} rows read")
    else:
        parts.append(f"{progress.rows_published:,} rows published")
    if progress.rejected:
        parts.append(many(progress.rejected, "bad row"))
    parts.append(rates_text(rates))
    if not progress.is_batch:
        parts.append(f"checkpoint {checkpoint_text(progress, now_us)}")
    parts.append(f"attempts {len(progress.live)} live, {progress.attempts_lost} lost")
    return " | ".join(parts)


def not_listed_line(progress: Progress, limit_s: float) -> str:
    """Line about a source that cannot be listed, with the time so far and its limit."""
    failing_s = (progress.last_us - progress.listing_failing_since_us) / 1e6
    problem = on_one_line(progress.listing_problem, _PROBLEM_CHARS)
    return (
        f"the source cannot be listed for {failing_s:.0f} of {limit_s:g} s ({problem}); it is tried "
        "again, and known splits are read meanwhile"
    )


def left_out_line(count: int, first: str) -> str:
    """Line about files that a listing has left out for their age."""
    first = on_one_line(first, _PROBLEM_CHARS)
    return f"left out for their age: {many(count, 'file')}, the first {first}"


def unreleased_line(count: int, problem: str) -> str:
    """Line about read files that could not be archived or deleted."""
    splits = many(count, "split")
    return (
        f"{splits} of committed files stay where they are: {on_one_line(problem, _PROBLEM_CHARS)}"
    )


def checkpoint_text(progress: Progress, now_us: int) -> str:
    """Number and age of the last completed checkpoint."""
    if progress.last_checkpoint_us is None or progress.last_checkpoint == NO_CHECKPOINT:
        return "none yet"
    age_s = max(0, now_us - progress.last_checkpoint_us) / 1e6
    return f"{progress.last_checkpoint}, {age_s:.1f} s ago"


def restored_line(restored: Restored, progress: Progress) -> str:
    """Line about a restore or about the job's first start."""
    folded = f"{restored.record_count:,} records folded in {restored.seconds:.2f} s"
    if restored.snapshot_offset is not None:
        folded = f"from the snapshot at offset {restored.snapshot_offset}: {folded}"
    void = f" ({restored.void_count:,} void)" if restored.void_count else ""
    mark = ":" if restored.snapshot_offset is None else ";"
    match restored.mode:
        case RestoreMode.START:
            return "a new job" if progress.epoch == -1 else f"started again, {folded}{void}"
        case RestoreMode.SETTLE:
            return f"every subtask has finished, only commits are left{mark} {folded}{void}"
        case RestoreMode.AGAIN:
            return (
                f"opened again{mark} {folded}{void}; committed files stay, and new files are read"
            )
        case mode:
            return f"restored by {mode} {_from(restored, progress)}{mark} {folded}{void}"


def _from(restored: Restored, progress: Progress) -> str:
    number = restored.checkpoint_id
    if number != NO_CHECKPOINT:
        offset = restored.checkpoint_offset
        return f"from checkpoint {number}" + ("" if offset is None else f" at offset {offset}")
    if restored.mode is RestoreMode.RESUME and progress.is_batch:
        done, known = progress.splits_finished, progress.splits_known
        return f"with {done:,} of {known:,} splits finished (no checkpoints in batch)"
    return f"from checkpoint {NO_CHECKPOINT}, the start"


def already_finished(progress: Progress, job_id: str) -> str:
    """Line about a job that has finished before."""
    result = f"{_finished(progress, job_id)}, and its log was pruned since"
    if progress.ended_us is not None:
        rows, files = progress.rows_published, progress.files_published
        result = f"{_finished(progress, job_id)}: {rows:,} rows in {files:,} files"
    return f"{result}; nothing was changed (--again reads new files)"


def _finished(progress: Progress, job_id: str) -> str:
    """The end of the job, with its time unless a prune has removed it."""
    ended_us = progress.ended_us
    return (
        f"job {job_id} has finished"
        if ended_us is None
        else f"job {job_id} finished at {iso(ended_us)}"
    )


def before_lines(progress: Progress, *, is_again: bool, now_us: int) -> list[str]:
    """Lines about the job before this run, if it had ended, or had not although it is to be opened again.

    One more line if a clock was wrong: times in a history never decrease.
    """
    ahead_s = (progress.last_us - now_us) / 1e6
    lines = _former_status(progress, is_again=is_again)
    if ahead_s > CLOCK_AHEAD_S:
        lines.append(
            f"the clock is wrong here or was wrong before: the last record of job {progress.job_id} "
            f"is of {iso(progress.last_us)}, {ahead_s:,.0f} s ahead of this machine's clock; its "
            "times do not advance until then: synchronise the machines' clocks"
        )
    return lines


def _former_status(progress: Progress, *, is_again: bool) -> list[str]:
    match progress.end:
        case JobEnd.FAILED:
            cause = (progress.last_failure or "no cause is recorded").partition("\n")[0]
            return [
                f"job {progress.job_id} failed at {iso(progress.ended_us)}: {cause}",
                "it continues, with a fresh count of failures",
            ]
        case JobEnd.FINISHED:
            return [f"{_finished(progress, progress.job_id)}; it is opened again"]
        case _ if is_again and progress.epoch >= 0:
            return [
                f"job {progress.job_id} has not finished: it continues, and is not opened again"
            ]
        case _:
            return []


def summary_lines(progress: Progress, around: Surrounding) -> list[str]:
    """Summary at the end of a job."""
    verb = "ingested" if progress.end is JobEnd.FINISHED else "so far"
    again = progress.splits_thrown_away
    lines = [
        (
            f"{verb} {progress.rows_published:,} rows into {around.destination}: "
            f"{progress.files_published:,} files, {in_bytes(progress.bytes_published)}, "
            f"in {around.seconds:.1f} s"
        ),
        f"  splits       {progress.splits_finished:,} of {progress.splits_known:,} finished"
        + (f", {again:,} read again after that" if again else "")
        + (f", {len(progress.skipped):,} skipped" if progress.skipped else ""),
    ]
    if progress.rejected:
        where = "left out" if around.rejects is None else f"written to {around.rejects}"
        splits = sum(1 for _, work in sorted_items(progress.finished) if work.rejected)
        lines.append(f"  bad rows     {progress.rejected:,} in {many(splits, 'split')}, {where}")
    if progress.openings > 1:
        rows = progress.rows_published - progress.rows_before
        files = progress.files_published - progress.files_before
        lines.append(
            f"  this time    {rows:,} rows in {files:,} files; opened {progress.openings} times"
        )
    if not progress.is_batch:
        last = progress.last_checkpoint
        lines.append(
            f"  checkpoints  {progress.checkpoints_completed:,} completed, "
            f"{progress.checkpoints_aborted:,} aborted"
            + (f"; the last is {last}" if last != NO_CHECKPOINT else "")
        )
    lines += [
        (
            f"  attempts     {progress.attempts_started:,} started, "
            f"{progress.attempts_lost:,} lost, "
            f"by {progress.epoch + 1:,} {'driver' if progress.epoch == 0 else 'drivers'}"
        ),
        *_history_lines(progress, around),
    ]
    return [*lines, *_commands(around), *_skipped_lines(progress, around)]


def _history_lines(progress: Progress, around: Surrounding) -> list[str]:
    note = "the numbers are counted since its log was pruned"
    return [
        f"  history      {around.log_name}",
        *([f"               {note}"] if progress.is_pruned else []),
    ]


def _skipped_lines(progress: Progress, around: Surrounding) -> list[str]:
    """Warning about skipped splits, with the first of them."""
    skipped = sorted(progress.skipped.items())
    if not skipped:
        return []
    more = len(skipped) - _SKIPPED_SHOWN
    splits = "1 split was" if len(skipped) == 1 else f"{len(skipped):,} splits were"
    command = f"coordlog splits {around.job_id} --skipped{around.servers_option}"
    return [
        f"warning: {splits} skipped, and some of the rows are missing: {command}",
        *(
            f"  {on_one_line(split_id, _SKIPPED_CHARS)}: {on_one_line(why, _SKIPPED_CHARS)}"
            for split_id, why in skipped[:_SKIPPED_SHOWN]
        ),
        *([f"  and {more:,} more"] if more > 0 else []),
    ]


def _commands(around: Surrounding) -> list[str]:
    names = ("history", "attempts", "splits")
    commands = [f"coordlog {name} {around.job_id}{around.servers_option}" for name in names]
    return [
        f"  {'look at it' if i == 0 else '':<12} {command}" for i, command in enumerate(commands)
    ]


def stopped_lines(
    progress: Progress, around: Surrounding, *, stop_checkpoint: int | None
) -> list[str]:
    """Summary at a stop in order: the finished work, and the next step.

    Args:
        progress: Progress at the stop.
        around: Facts that are not in the history.
        stop_checkpoint: Checkpoint taken by the stop, or None if it has taken none.
    """
    if progress.is_batch:
        result = (
            f"stopped: {progress.splits_finished:,} of {progress.splits_known:,} splits are "
            "finished and stay so"
        )
    elif progress.last_checkpoint == NO_CHECKPOINT:
        result = "stopped before the first checkpoint: nothing is published yet"
    elif stop_checkpoint is None:
        result = (
            f"stopped without a checkpoint of its own, rows read since checkpoint "
            f"{progress.last_checkpoint} are read again: {progress.rows_published:,} rows are published"
        )
    else:
        result = (
            f"stopped after checkpoint {progress.last_checkpoint}: "
            f"{progress.rows_published:,} rows are published"
        )
    return [
        f"{result}; run the same command again to continue",
        *_history_lines(progress, around),
        *_commands(around),
    ]
