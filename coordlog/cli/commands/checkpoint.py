"""`coordlog checkpoint`: which completed checkpoints a job can go back to, what is in one, which are kept by name."""

from __future__ import annotations

import contextlib
from typing import Final

import click

from coordlog.cli.console import Column, iso, json_of, lasted, new_console, print_json, print_table
from coordlog.cli.driver_request import ask_driver
from coordlog.cli.living import driver_lives
from coordlog.cli.log_access import FileLogs, WritableLogs, with_history
from coordlog.cli.reading import records_of
from coordlog.errors import KeepError
from coordlog.offline.epoch import append_fact, read_job
from coordlog.projections.inspection.restorable import (
    CheckpointPart,
    CompletedRow,
    ShownCheckpoint,
    completed_checkpoints,
    show_checkpoint,
)
from coordlog.projections.job.savepoints import to_keep, why_not_let_go
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.schemas.builtin_types import (
    CheckpointKept,
    CheckpointLetGo,
    KeepCheckpoint,
    KeepRecorded,
    LetGoCheckpoint,
)
from coordlog.schemas.checkpoint_metadata import ReadMetadata
from coordlog.spark_integration.driver.liveness import NamedDriver

__all__ = ["checkpoint"]

_CHARS: Final = 160
_NEXT: Final = "`coordlog checkpoint JOB` lists them"
_COLUMNS: Final = (
    Column("CKPT", is_right=True),
    Column("OFFSET", is_right=True),
    Column("EPOCH", is_right=True, rank=1),
    Column("COMPLETED (UTC)"),
    Column("TOOK", is_right=True, rank=2),
    Column("KEPT AS"),
    Column("BACK TO IT"),
)
_PART_COLUMNS: Final = (
    Column("OPERATOR"),
    Column("CUT AT SEQ", is_right=True),
    Column("COORDINATOR", is_right=True),
    Column("SUBTASKS", is_right=True),
    Column("THEIR BYTES", is_right=True),
    Column("IN FLIGHT", is_right=True),
)


@click.command()
@click.argument("job")
@click.argument("number", type=click.IntRange(min=1), required=False, metavar="[N]")
@click.option(
    "--show",
    "shown",
    type=click.IntRange(min=1),
    metavar="N",
    help="What is in checkpoint N: version, sizes, the state of each operator.",
)
@click.option(
    "--keep",
    "keep_name",
    metavar="NAME",
    help="Keep checkpoint N, by default the last one, whatever completes after it.",
)
@click.option("--release", "let_go_name", metavar="NAME", help="Keep it no longer.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Where it cannot be known whether a driver lives: take its place.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with everything.")
@with_history
def checkpoint(
    logs: WritableLogs | FileLogs,
    *,
    job: str,
    number: int | None,
    shown: int | None,
    keep_name: str | None,
    let_go_name: str | None,
    is_take_over: bool,
    as_json: bool,
) -> None:
    """List the completed checkpoints of JOB, and whether it can go back to each with --from-checkpoint.

    `coordlog checkpoints` lists those too that were aborted or are pending.

    A driver that lives is asked to keep a checkpoint; else it is appended to the log. In a file, in
    JOB's place, nothing can be kept.
    """
    if sum(one is not None for one in (shown, keep_name, let_go_name)) > 1:
        raise click.UsageError("give one of --show, --keep and --release")
    if number is not None and keep_name is None:
        raise click.UsageError("N alone says nothing: --show N, or --keep NAME N")
    if keep_name is not None:
        _change(
            _writable(logs),
            job,
            KeepCheckpoint(name=keep_name, kept_checkpoint=number),
            is_take_over=is_take_over,
        )
    elif let_go_name is not None:
        _change(_writable(logs), job, LetGoCheckpoint(name=let_go_name), is_take_over=is_take_over)
    else:
        with records_of(logs, job) as records:
            if shown is None:
                _list(completed_checkpoints(records), as_json=as_json)
            else:
                _show(show_checkpoint(records, shown), as_json=as_json)


def _writable(logs: WritableLogs | FileLogs) -> WritableLogs:
    if isinstance(logs, FileLogs):
        raise click.UsageError(
            f"{logs.where} is a file, which is only read: --keep and --release take a job's id"
        )
    return logs


def _change(
    logs: WritableLogs, job: str, asked: KeepCheckpoint | LetGoCheckpoint, *, is_take_over: bool
) -> None:
    """By the driver, where one lives; else in an epoch of this command's own."""
    with contextlib.closing(logs.open_to_write(job)) as log:
        made = read_job(log, job, lambda state: _check(state, asked))
        number, was_before = _wanted(made.state, asked)
        by = ""
        if driver_lives(NamedDriver.of(made.state), is_take_over=is_take_over):
            answer = ask_driver(
                job, made.state, asked, KeepRecorded, refusal=KeepError, next_step=_NEXT
            )
            assert isinstance(answer.response, KeepRecorded), "it was decoded as that"
            number, was_before = answer.response.kept_checkpoint, answer.response.was_so_before
            by = f", by its driver, at sequence {answer.sequence}"
        elif not was_before:
            fact: CheckpointKept | CheckpointLetGo = CheckpointLetGo(name=asked.name)
            if isinstance(asked, KeepCheckpoint):
                fact = CheckpointKept(name=asked.name, kept_checkpoint=number)
            sequence = append_fact(
                log,
                made,
                fact,
                command="checkpoint",
                check=lambda state: _check(state, _exactly(asked, number)),
                why="asked by command",
            )
            by = f", at sequence {sequence}"
    if was_before:
        by = " already"
    what = "kept" if isinstance(asked, KeepCheckpoint) else "not kept any more"
    click.echo(f"checkpoint {number} of job {job} is {what} as {asked.name!r}{by}", err=True)


def _exactly(
    asked: KeepCheckpoint | LetGoCheckpoint, number: int
) -> KeepCheckpoint | LetGoCheckpoint:
    """The same, with the number that has been found."""
    if isinstance(asked, LetGoCheckpoint):
        return asked
    return KeepCheckpoint(name=asked.name, kept_checkpoint=number)


def _check(state: JobState, asked: KeepCheckpoint | LetGoCheckpoint) -> None:
    if isinstance(asked, KeepCheckpoint):
        _, why_not = to_keep(state, asked.name, asked.kept_checkpoint)
    else:
        why_not = why_not_let_go(state, asked.name)
    if why_not is not None:
        raise KeepError(state.job_id, why_not, _NEXT)


def _wanted(state: JobState, asked: KeepCheckpoint | LetGoCheckpoint) -> tuple[int, bool]:
    """Which checkpoint, and whether it is so already."""
    if isinstance(asked, LetGoCheckpoint):
        return state.kept[asked.name], False
    number, _ = to_keep(state, asked.name, asked.kept_checkpoint)
    return number, state.kept.get(asked.name) == number


def _list(rows: tuple[CompletedRow, ...], *, as_json: bool) -> None:
    if as_json:
        for one in rows:
            print_json(json_of(one))
        return
    print_table(new_console(), _COLUMNS, [_cells(one) for one in rows])
    count = sum(one.why_not is None for one in rows)
    pruned = sum(one.offset is None for one in rows)
    click.echo(f"\n{len(rows):,} completed; the job can go back to {count:,} of them.")
    if pruned:
        click.echo(
            f"The records of {pruned:,} were pruned, and the state holds them: no other job can be begun "
            "from a log whose beginning was pruned."
        )


def _cells(one: CompletedRow) -> tuple[str, ...]:
    took = ""
    if one.triggered_us is not None and one.completed_us is not None:
        took = lasted(one.triggered_us, one.completed_us)
    can = "yes: the job goes on from it" if one.is_last else "yes"
    back = can if one.why_not is None else f"no: {one.why_not}"
    return (
        str(one.checkpoint_id),
        f"before {one.log_start}" if one.offset is None else str(one.offset),
        "" if one.epoch is None else str(one.epoch),
        "" if one.completed_us is None else str(iso(one.completed_us)),
        took,
        " ".join(one.kept_as),
        on_one_line(back, _CHARS),
    )


def _show(one: ShownCheckpoint, *, as_json: bool) -> None:
    if as_json:
        print_json(json_of(one))
        return
    if one.metadata is None or one.completed_us is None:
        click.echo(
            f"checkpoint {one.checkpoint_id} of job {one.job_id}: its record was pruned, the log begins "
            f"at offset {one.log_start}; what follows is what the state still holds of it"
        )
        click.echo(f"parallelism {one.parallelism}; completed at sequence {one.sequence}")
    else:
        _show_record(one, one.metadata, one.completed_us)
    finished = ", ".join(map(str, one.finished)) or "none"
    in_flight = sum(part.in_flight for part in one.parts)
    click.echo(f"finished subtasks: {finished}; events in flight: {in_flight}")
    click.echo()
    print_table(new_console(), _PART_COLUMNS, [_part_cells(part) for part in one.parts])


def _show_record(one: ShownCheckpoint, metadata: ReadMetadata, completed_us: int) -> None:
    said = metadata.value
    click.echo(
        f"checkpoint {one.checkpoint_id} of job {said.job_id}, completed {iso(completed_us)} in "
        f"epoch {one.epoch}, at offset {one.offset}"
    )
    click.echo(
        f"metadata version {metadata.version}, {one.metadata_bytes:,} bytes; parallelism "
        f"{said.parallelism}; triggered at sequence {said.triggered_sequence}; cluster "
        f"{said.cluster_id or '-'}, topic {said.topic_id or '-'}"
    )


def _part_cells(part: CheckpointPart) -> tuple[str, ...]:
    if part.cut_sequence is None:
        coordinator = ""
    elif part.coordinator_bytes is None:
        coordinator = "folded there"
    else:
        coordinator = f"{part.coordinator_bytes:,} bytes"
    return (
        part.operator_id,
        "" if part.cut_sequence is None else str(part.cut_sequence),
        coordinator,
        str(len(part.subtask_bytes)),
        f"{sum(size for _, size in part.subtask_bytes):,}",
        str(part.in_flight),
    )
