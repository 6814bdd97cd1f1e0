"""`coordlog checkpoint`: the completed checkpoints that a job can go back to, and the content of one."""

from __future__ import annotations

from typing import Final

import click

from coordlog.cli.completing import JOB
from coordlog.cli.console import (
    Column,
    iso,
    json_of,
    lasted,
    new_console,
    print_json,
    print_line,
    print_table,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.paging import with_pager
from coordlog.cli.reading import records_of
from coordlog.projections.inspection.restorable import (
    CheckpointPart,
    CompletedRow,
    ShownCheckpoint,
    completed_checkpoints,
    show_checkpoint,
)
from coordlog.projections.tables.payload_json import on_one_line
from coordlog.schemas.checkpoint_metadata import ReadMetadata

__all__ = ["checkpoint"]

_CHARS: Final = 160
_COLUMNS: Final = (
    Column("CKPT", is_right=True),
    Column("OFFSET", is_right=True),
    Column("EPOCH", is_right=True, rank=1),
    Column("COMPLETED (UTC)"),
    Column("TOOK", is_right=True, rank=2),
    Column("SAVEPOINT"),
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
@click.argument("job", shell_complete=JOB)
@click.option(
    "--show",
    "shown",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the content of checkpoint N: version, sizes, state of each operator.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line, with all fields."
)
@with_history
@with_pager
def checkpoint(
    logs: Logs,
    *,
    job: str,
    shown: int | None,
    as_json: bool,
) -> None:
    """List the completed checkpoints of JOB, and whether it can go back to each with --from-checkpoint.

    `coordlog checkpoints` also lists aborted and pending checkpoints; `coordlog savepoint` retains
    a checkpoint under a name.
    """
    with records_of(logs, job) as records:
        if shown is None:
            _list(completed_checkpoints(records), as_json=as_json)
        else:
            _show(show_checkpoint(records, shown), as_json=as_json)


def _list(rows: tuple[CompletedRow, ...], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(json_of(row))
        return
    print_table(new_console(), _COLUMNS, [_cells(row) for row in rows])
    count = sum(row.why_not is None for row in rows)
    pruned = sum(row.offset is None for row in rows)
    click.echo(f"\n{len(rows):,} completed; the job can go back to {count:,} of them.")
    if pruned:
        click.echo(
            f"The records of {pruned:,} were pruned, and the state holds them: no other job can be begun "
            "from a pruned log."
        )


def _cells(row: CompletedRow) -> tuple[str, ...]:
    took = ""
    if row.triggered_us is not None and row.completed_us is not None:
        took = lasted(row.triggered_us, row.completed_us)
    yes = "yes: the job continues from it" if row.is_last else "yes"
    back = yes if row.why_not is None else f"no: {row.why_not}"
    return (
        str(row.checkpoint_id),
        f"before {row.log_start}" if row.offset is None else str(row.offset),
        "" if row.epoch is None else str(row.epoch),
        "" if row.completed_us is None else str(iso(row.completed_us)),
        took,
        " ".join(row.savepoints),
        on_one_line(back, _CHARS),
    )


def _show(shown: ShownCheckpoint, *, as_json: bool) -> None:
    if as_json:
        print_json(json_of(shown))
        return
    if shown.metadata is None or shown.completed_us is None:
        click.echo(
            f"checkpoint {shown.checkpoint_id} of job {shown.job_id}: its record was pruned, the log begins "
            f"at offset {shown.log_start}; the following is from the state"
        )
        click.echo(f"parallelism {shown.parallelism}; completed at sequence {shown.sequence}")
    else:
        _show_record(shown, shown.metadata, shown.completed_us)
    finished = ", ".join(map(str, shown.finished)) or "none"
    in_flight = sum(part.in_flight for part in shown.parts)
    click.echo(f"finished subtasks: {finished}; events in flight: {in_flight}")
    click.echo()
    print_table(new_console(), _PART_COLUMNS, [_part_cells(part) for part in shown.parts])


def _show_record(shown: ShownCheckpoint, metadata: ReadMetadata, completed_us: int) -> None:
    value = metadata.value
    print_line(
        f"checkpoint {shown.checkpoint_id} of job {value.job_id}, completed {iso(completed_us)} in "
        f"epoch {shown.epoch}, at offset {shown.offset}"
    )
    print_line(
        f"metadata version {metadata.version}, {shown.metadata_bytes:,} bytes; parallelism "
        f"{value.parallelism}; triggered at sequence {value.triggered_sequence}; cluster "
        f"{value.cluster_id or '-'}, topic {value.topic_id or '-'}"
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
