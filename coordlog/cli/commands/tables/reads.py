"""`coordlog reads`: reads of a source by queries, task by task or split by split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from rich.text import Text

from coordlog.cli.completing import JOB
from coordlog.cli.console import (
    Column,
    day_of,
    json_of,
    lasted,
    new_console,
    print_json,
    print_table,
    reason_text,
    time_of,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.paging import with_pager
from coordlog.cli.reading import note_beginning, opened, whole
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.projections.tables.reads import (
    ReadRow,
    ReadSplit,
    ReadTask,
    TaskEnd,
    reads_and_streams,
)

__all__ = ["reads"]

_REASON_CHARS = 120
_END_STYLES = {TaskEnd.READING: "cyan", TaskEnd.DONE: "green", TaskEnd.FAILED: "red"}

_TASK_COLUMNS = (
    Column("READ"),
    Column("SPLITS", rank=2),
    Column("PART", is_right=True),
    Column("TASK", is_right=True),
    Column("WHERE", rank=4),
    Column("BEGAN (UTC)", rank=3),
    Column("LASTED", is_right=True, rank=1),
    Column("END"),
    Column("GIVEN", is_right=True),
    Column("READ TO END", is_right=True),
    Column("ROWS", is_right=True),
    Column("WHY"),
)
_BAD_ROWS = Column("BAD ROWS", is_right=True)
_SPLIT_COLUMNS = (
    Column("READ"),
    Column("PART", is_right=True),
    Column("SPLIT"),
    Column("ROWS", is_right=True),
    Column("BY TASKS"),
)


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option(
    "--splits", "by_split", is_flag=True, help="Print a line for each split of each read."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for each read, with all fields."
)
@with_history
@with_pager
def reads(logs: Logs, *, job: str, by_split: bool, as_json: bool) -> None:
    """List the reads of JOB's source by queries, with `spark.read.format("coordlog")` or as a stream.

    A read is a range of the splits in the order of their discovery, for one batch DataFrame or one
    batch of a stream. TASK is Spark's task attempt id; a partition that was tried again has several
    tasks with the same splits. The last line has the streams that may continue, with the progress of
    their commits.
    """
    with opened(logs, job) as log:
        note_beginning(log)
        rows, streams = reads_and_streams(whole(log).records())
    if as_json:
        for read in rows:
            print_json(json_of(read))
        return
    has_rejects = any(task.rejected for read in rows for task in read.tasks)
    cells = _by_split(rows, has_rejects) if by_split else _by_task(rows, has_rejects)
    columns = _with_rejects(_SPLIT_COLUMNS if by_split else _TASK_COLUMNS, has_rejects)
    print_table(new_console(), columns, list(cells))
    tasks = sum(len(read.tasks) for read in rows)
    again = sum(read.plans > 1 for read in rows)
    failed = sum(task.status is TaskEnd.FAILED for read in rows for task in read.tasks)
    click.echo(
        f"\nreads: {len(rows):,} ({again:,} planned again, "
        f"{sum(read.is_committed for read in rows):,} committed). "
        f"tasks: {tasks:,} ({failed:,} failed)."
    )
    if streams:
        texts = ", ".join(
            f"{stream.reader} has committed {stream.committed:,} splits and planned last at "
            f"{day_of(stream.planned_us)} {time_of(stream.planned_us)} UTC"
            for stream in streams
        )
        click.echo(f"streams: {texts}.")


def _with_rejects(columns: Sequence[Column], has_rejects: bool) -> list[Column]:  # noqa: FBT001, of a column
    """The columns, with one for bad rows before the last if there are any."""
    return [*columns[:-1], *[_BAD_ROWS][:has_rejects], columns[-1]]


def _bad_rows(rejected: int | None, has_rejects: bool) -> list[str]:  # noqa: FBT001, as above
    return [f"{rejected:,}" if rejected else ""] if has_rejects else []


def _by_task(rows: Iterable[ReadRow], has_rejects: bool) -> Iterable[tuple[str | Text, ...]]:  # noqa: FBT001, as above
    for read in rows:
        for task in read.tasks:
            yield _task_cells(read, task, has_rejects)


def _task_cells(read: ReadRow, task: ReadTask, has_rejects: bool) -> tuple[str | Text, ...]:  # noqa: FBT001, as above
    return (
        read.read_id,
        f"{read.start}..{read.end}",
        str(task.partition),
        str(task.task_attempt_id),
        f"{task.host}:{task.pid}",
        time_of(task.started_us),
        lasted(task.started_us, task.ended_us),
        Text(task.status.value, style=_END_STYLES[task.status]),
        f"{task.assigned:,}",
        f"{task.finished:,}",
        f"{task.rows:,}",
        *_bad_rows(task.rejected, has_rejects),
        reason_text(task.reason),
    )


def _by_split(rows: Iterable[ReadRow], has_rejects: bool) -> Iterable[tuple[str | Text, ...]]:  # noqa: FBT001, as above
    for read in rows:
        for split in read.splits:
            yield _split_cells(read, split, has_rejects)


def _split_cells(read: ReadRow, split: ReadSplit, has_rejects: bool) -> tuple[str | Text, ...]:  # noqa: FBT001, as above
    return (
        read.read_id,
        str(split.partition),
        on_one_line(split.split_id, _REASON_CHARS),
        "" if split.rows is None else f"{split.rows:,}",
        *_bad_rows(split.rejected, has_rejects),
        " ".join(map(str, split.read_by)),
    )
