"""Prints the table and writes the figures: `python -m benchmarks [--quick]`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from .command import broker, broker_option, output_option
from .events import EVENTS_FULL, EVENTS_QUICK, measure_events
from .figures import FIGURES, draw
from .files import FILES_FULL, FILES_QUICK, measure_files
from .measured.append import APPEND_FULL, APPEND_QUICK, measure_appends
from .measured.kernel import measure_kernel
from .measured.rebuild import measure_rebuild
from .results import RESULTS, Row, show, write


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds: three or four minutes, and less exact.")
@broker_option
@output_option(RESULTS)
@click.option(
    "--figures",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where they are drawn, as .svg or .png; by default docs/benchmarks.svg of a whole run.",
)
def main(*, quick: bool, bootstrap_servers: str | None, output: Path, figures: Path | None) -> None:
    """Measure the log against plain kafka-python, events and checkpoints, small files, and the kernel, in one run."""
    console = Console(width=100)
    with broker(bootstrap_servers) as servers:
        rows: list[Row] = []
        for fsync in (True, False):
            rows += measure_appends(servers, APPEND_QUICK if quick else APPEND_FULL, fsync=fsync)
        rows.append(measure_rebuild(servers, 10_000 if quick else 50_000))
        rows += measure_events(servers, EVENTS_QUICK if quick else EVENTS_FULL)
        rows += measure_files(servers, FILES_QUICK if quick else FILES_FULL)
    rows += measure_kernel(event_count=8_192, rounds=3 if quick else 7)
    show(rows, console)
    write(rows, output, quick=quick)
    console.print(f"written to {output}")
    picture = figures if quick else figures or FIGURES
    if picture is not None:
        draw(output, picture)
        console.print(f"drawn to {picture}")


main()
