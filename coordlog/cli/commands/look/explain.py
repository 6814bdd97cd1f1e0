"""`coordlog explain`: how a split, an event or a checkpoint got to its state."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import click
from rich.text import Text

from coordlog.cli.completing import JOB
from coordlog.cli.console import (
    crop,
    json_of,
    new_console,
    print_json,
    print_line,
    time_of,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.paging import with_pager
from coordlog.cli.reading import opened, whole
from coordlog.errors import OptionError
from coordlog.log.interface import Log
from coordlog.projections.inspection.explain import (
    Explained,
    explain_checkpoint,
    explain_event,
    explain_split,
)

__all__ = ["explain"]


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option("--split", metavar="ID", help="Explain this split; `coordlog splits` lists the ids.")
@click.option(
    "--event",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Explain the event with this sequence.",
)
@click.option("--checkpoint", type=int, metavar="N", help="Explain this checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_history
@with_pager
def explain(
    logs: Logs,
    *,
    job: str,
    split: str | None,
    event: int | None,
    checkpoint: int | None,
    as_json: bool,
) -> None:
    """Explain how a split, an event or a checkpoint of JOB got to its state, record by record."""
    if sum(value is not None for value in (split, event, checkpoint)) != 1:
        raise click.UsageError("pass one of --split, --event and --checkpoint")
    with opened(logs, job) as log, _hint_at_archive(log):
        stored = whole(log).stored()
        if split is not None:
            explained = explain_split(stored, split)
        elif event is not None:
            explained = explain_event(stored, event)
        else:
            assert checkpoint is not None, "one of the three options is set"
            explained = explain_checkpoint(stored, checkpoint)
    if as_json:
        print_json(json_of(explained))
        return
    _print_explained(explained)


@contextlib.contextmanager
def _hint_at_archive(log: Log) -> Generator[None]:
    """If the subject of a query is missing from a pruned log, print that the archived file may have it."""
    try:
        yield
    except OptionError:
        start = log.start_offset()
        if start:
            click.echo(
                f"the log begins at offset {start}: pruned records are in the file that the prune has "
                "archived, which can take JOB's place",
                err=True,
            )
        raise


def _print_explained(explained: Explained) -> None:
    console = new_console()
    for step in explained.steps:
        crop(console, Text(f"{step.offset:>6} {time_of(step.timestamp_us):<12}  {step.words}"))
    print_line(f"so {explained.outcome}")
