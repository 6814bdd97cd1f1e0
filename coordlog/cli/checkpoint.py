"""`coordlog checkpoint`: which completed checkpoints a job can go back to, and what is in one."""

from __future__ import annotations

from typing import Final

import click

from coordlog.projections.payload_json import on_one_line
from coordlog.projections.retained import (
    CheckpointPart,
    CompletedRow,
    ShownCheckpoint,
    completed_checkpoints,
    show_checkpoint,
)

from .console import Column, iso, json_of, lasted, new_console, print_json, print_table
from .logs import Logs, with_logs
from .reading import records_of

__all__ = ["checkpoint"]

_CHARS: Final = 160
_COLUMNS: Final = (
    Column("CKPT", is_right=True),
    Column("OFFSET", is_right=True),
    Column("EPOCH", is_right=True, rank=1),
    Column("COMPLETED (UTC)"),
    Column("TOOK", is_right=True, rank=2),
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
@click.option(
    "--show",
    "shown",
    type=click.IntRange(min=1),
    metavar="N",
    help="What is in checkpoint N: version, sizes, the state of each operator.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with everything.")
@with_logs
def checkpoint(logs: Logs, *, job: str, shown: int | None, as_json: bool) -> None:
    """List the completed checkpoints of JOB, and whether it can go back to each with --from-checkpoint.

    `coordlog checkpoints` lists those too that were aborted or are pending.
    """
    with records_of(logs, job) as records:
        if shown is None:
            _list(completed_checkpoints(records), as_json=as_json)
        else:
            _show(show_checkpoint(records, shown), as_json=as_json)


def _list(rows: tuple[CompletedRow, ...], *, as_json: bool) -> None:
    if as_json:
        for one in rows:
            print_json(json_of(one))
        return
    print_table(new_console(), _COLUMNS, [_cells(one) for one in rows])
    count = sum(one.why_not is None for one in rows)
    click.echo(f"\n{len(rows):,} completed; the job can go back to {count:,} of them.")


def _cells(one: CompletedRow) -> tuple[str, ...]:
    took = "" if one.triggered_us is None else lasted(one.triggered_us, one.completed_us)
    can = "yes: the job goes on from it" if one.is_last else "yes"
    back = can if one.why_not is None else f"no: {one.why_not}"
    return (
        str(one.checkpoint_id),
        str(one.offset),
        str(one.epoch),
        str(iso(one.completed_us)),
        took,
        on_one_line(back, _CHARS),
    )


def _show(one: ShownCheckpoint, *, as_json: bool) -> None:
    said = one.metadata.value
    if as_json:
        print_json(json_of(one))
        return
    click.echo(
        f"checkpoint {said.checkpoint_id} of job {said.job_id}, completed {iso(one.completed_us)} in "
        f"epoch {one.epoch}, at offset {one.offset}"
    )
    click.echo(
        f"metadata version {one.metadata.version}, {one.metadata_bytes:,} bytes; parallelism "
        f"{said.parallelism}; triggered at sequence {said.triggered_sequence}; cluster "
        f"{said.cluster_id or '-'}, topic {said.topic_id or '-'}"
    )
    finished = ", ".join(map(str, one.finished)) or "none"
    click.echo(f"finished subtasks: {finished}; events in flight: {len(said.in_flight_events)}")
    click.echo()
    print_table(new_console(), _PART_COLUMNS, [_part_cells(part) for part in one.parts])


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
