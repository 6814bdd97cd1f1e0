"""What `coordlog ingest` says, as functions of what it knows: lines, numbers, the summary."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from coordlog.amounts import in_bytes
from coordlog.cli.console import iso
from coordlog.limits import CLOCK_AHEAD_S
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.projections.tables.progress import JobEnd, Progress
from coordlog.restore.rebuild import Restored
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = [
    "RateMeter",
    "Rates",
    "Surrounding",
    "already_finished",
    "checkpoint_text",
    "not_listed_line",
    "progress_line",
    "rates_text",
    "restored_line",
    "stopped_lines",
    "summary_lines",
]

_WINDOW_S: Final = 15.0
"""Over how long a rate is taken: three checkpoints at the default interval."""

_SKIPPED_SHOWN: Final = 10
_SKIPPED_CHARS: Final = 300
_PROBLEM_CHARS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrounding:
    """What the summary tells beside the history."""

    job_id: str
    destination: str
    log_name: str
    servers_option: str
    """` --bootstrap-servers …` where the commands need it, else nothing."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Per second, over the last seconds."""

    rows: float
    read_bytes: float


class RateMeter:
    """Rates of what `see` was told, over a window of some seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def see(self, at_s: float, progress: Progress) -> Rates:
        """The rates up to now.

        In streaming rows are counted when they are published, in batch when their split is
        finished; bytes always with their split.

        Args:
            at_s: Monotonic, seconds.
            progress: As of then.
        """
        rows = progress.rows if progress.is_batch else progress.rows_published
        seen = self._seen
        if not rows and not progress.bytes_read:
            seen.clear()  # the time before the first rows is not the rate's
        seen.append((at_s, rows, progress.bytes_read))
        while at_s - seen[0][0] > _WINDOW_S:
            seen.popleft()
        began_s, began_rows, began_bytes = seen[0]
        passed_s = at_s - began_s
        if passed_s <= 0:
            return Rates(rows=0.0, read_bytes=0.0)
        # A reset takes finished work away: nothing is read backwards.
        return Rates(
            rows=max(0, rows - began_rows) / passed_s,
            read_bytes=max(0, progress.bytes_read - began_bytes) / passed_s,
        )


def rates_text(rates: Rates) -> str:
    """Both rates."""
    return f"{rates.rows:,.0f} rows/s, {in_bytes(rates.read_bytes)}/s"


def progress_line(progress: Progress, rates: Rates, now_us: int) -> str:
    """All that is shown while a job runs, on one line."""
    known = f"{progress.splits_known:,}" if progress.splits_known else "?"
    more = "" if progress.is_listing_complete or not progress.splits_known else "+"
    skipped = f", {len(progress.skipped):,} skipped" if progress.skipped else ""
    parts = [f"splits {progress.splits_finished:,}/{known}{more}{skipped}"]
    if progress.is_batch:
        parts.append(f"{progress.rows:,} rows read")
    else:
        parts.append(f"{progress.rows_published:,} rows published")
    parts.append(rates_text(rates))
    if not progress.is_batch:
        parts.append(f"checkpoint {checkpoint_text(progress, now_us)}")
    parts.append(f"attempts {len(progress.live)} live, {progress.attempts_lost} lost")
    return " | ".join(parts)


def not_listed_line(progress: Progress, limit_s: float) -> str:
    """That the source cannot be listed, for how long, and when the job gives up."""
    failing_s = (progress.last_us - progress.listing_failing_since_us) / 1e6
    problem = on_one_line(progress.listing_problem, _PROBLEM_CHARS)
    return (
        f"the source cannot be listed for {failing_s:.0f} of {limit_s:g} s ({problem}); it is tried "
        "again, and what was found before is read on"
    )


def checkpoint_text(progress: Progress, now_us: int) -> str:
    """The last completed checkpoint, and how long ago that was."""
    if progress.last_checkpoint_us is None or progress.last_checkpoint == NO_CHECKPOINT:
        return "none yet"
    age_s = max(0, now_us - progress.last_checkpoint_us) / 1e6
    return f"{progress.last_checkpoint}, {age_s:.1f} s ago"


def restored_line(restored: Restored, progress: Progress) -> str:
    """How a job goes on; for one that begins, that it does."""
    folded = f"{restored.record_count:,} records folded in {restored.seconds:.2f} s"
    if restored.snapshot_offset is not None:
        folded = f"from the snapshot at offset {restored.snapshot_offset}: {folded}"
    void = f" ({restored.void_count:,} void)" if restored.void_count else ""
    mark = ":" if restored.snapshot_offset is None else ";"
    match restored.mode:
        case "start":
            return "a new job" if progress.epoch == -1 else f"started again, {folded}{void}"
        case "settle":
            return f"every subtask has finished, only commits are left{mark} {folded}{void}"
        case "again":
            return f"opened again{mark} {folded}{void}; what is committed stays, and new files are read"
        case mode:
            return f"restored by {mode} {_from(restored, progress)}{mark} {folded}{void}"


def _from(restored: Restored, progress: Progress) -> str:
    number = restored.checkpoint_id
    if number != NO_CHECKPOINT:
        offset = restored.checkpoint_offset
        return f"from checkpoint {number}" + ("" if offset is None else f" at offset {offset}")
    if restored.mode == "resume" and progress.is_batch:
        done, known = progress.splits_finished, progress.splits_known
        return f"with {done:,} of {known:,} splits finished (no checkpoints in batch)"
    return f"from checkpoint {NO_CHECKPOINT}, the start"


def already_finished(progress: Progress, job_id: str) -> str:
    """What is said where there is nothing left to do."""
    what = f"{_finished(progress, job_id)}, and its log was pruned since"
    if progress.ended_us is not None:
        rows, files = progress.rows_published, progress.files_published
        what = f"{_finished(progress, job_id)}: {rows:,} rows in {files:,} files"
    return f"{what}; nothing was changed (--again reads what has come since)"


def _finished(progress: Progress, job_id: str) -> str:
    """With the time, where the log has that still: one that was pruned behind it does not."""
    ended_us = progress.ended_us
    return (
        f"job {job_id} has finished"
        if ended_us is None
        else f"job {job_id} finished at {iso(ended_us)}"
    )


def before_lines(progress: Progress, *, is_again: bool, now_us: int) -> list[str]:
    """How the job stood before this run, where it had ended, or was to be opened again and had not.

    And that a clock was wrong: a history's times never go back.
    """
    ahead_s = (progress.last_us - now_us) / 1e6
    lines = _how_it_stood(progress, is_again=is_again)
    if ahead_s > CLOCK_AHEAD_S:
        lines.append(
            f"the clock is wrong here or was wrong before: the last record of job {progress.job_id} "
            f"is of {iso(progress.last_us)}, {ahead_s:,.0f} s ahead of this machine's clock; its "
            "times stand still for as long: see that the machines' clocks agree"
        )
    return lines


def _how_it_stood(progress: Progress, *, is_again: bool) -> list[str]:
    match progress.end:
        case JobEnd.FAILED:
            cause = (progress.last_failure or "no cause is recorded").partition("\n")[0]
            return [
                f"job {progress.job_id} failed at {iso(progress.ended_us)}: {cause}",
                "it goes on, with a fresh count of failures",
            ]
        case JobEnd.FINISHED:
            return [f"{_finished(progress, progress.job_id)}; it is opened again"]
        case _ if is_again and progress.epoch >= 0:
            return [f"job {progress.job_id} has not finished: it goes on, and is not opened again"]
        case _:
            return []


def summary_lines(progress: Progress, around: Surrounding) -> list[str]:
    """The end of a job that has finished, or of a driver that has stopped."""
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
    since = "counted here is what has come since its log was pruned"
    return [
        f"  history      {around.log_name}",
        *([f"               {since}"] if progress.is_pruned else []),
    ]


def _skipped_lines(progress: Progress, around: Surrounding) -> list[str]:
    """A warning that names what is not all there; the first few, where there are many."""
    named = sorted(progress.skipped.items())
    if not named:
        return []
    left = len(named) - _SKIPPED_SHOWN
    many = "1 split was" if len(named) == 1 else f"{len(named):,} splits were"
    command = f"coordlog splits {around.job_id} --skipped{around.servers_option}"
    return [
        f"warning: {many} skipped, and not all of the rows are there: {command}",
        *(
            f"  {on_one_line(split_id, _SKIPPED_CHARS)}: {on_one_line(why, _SKIPPED_CHARS)}"
            for split_id, why in named[:_SKIPPED_SHOWN]
        ),
        *([f"  and {left:,} more"] if left > 0 else []),
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
    """The end of a driver that was told to stop: what is safe, and how to go on.

    Args:
        progress: As of the end.
        around: The rest.
        stop_checkpoint: The checkpoint that the stop has taken; None where it has taken none.
    """
    if progress.is_batch:
        what = (
            f"stopped: {progress.splits_finished:,} of {progress.splits_known:,} splits are "
            "finished and stay so"
        )
    elif progress.last_checkpoint == NO_CHECKPOINT:
        what = "stopped before the first checkpoint: nothing is published yet"
    elif stop_checkpoint is None:
        what = (
            f"stopped without a checkpoint of its own, what was read since checkpoint "
            f"{progress.last_checkpoint} is read again: {progress.rows_published:,} rows are published"
        )
    else:
        what = (
            f"stopped after checkpoint {progress.last_checkpoint}: "
            f"{progress.rows_published:,} rows are published"
        )
    return [
        f"{what}; run the same command again to go on",
        *_history_lines(progress, around),
        *_commands(around),
    ]
