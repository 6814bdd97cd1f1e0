"""Prints the table and writes the figures: `python -m benchmarks [--quick]`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import click
from rich.console import Console

from .append import APPEND_FULL, APPEND_QUICK, measure_appends
from .kernel import measure_kernel
from .rebuild import measure_rebuild
from .results import Row, show, write

RESULTS = Path(__file__).parent / "results.json"


@contextlib.contextmanager
def _broker(bootstrap_servers: str | None) -> Generator[str]:
    if bootstrap_servers is not None:
        yield bootstrap_servers
        return
    from coordlog.log.embedded import embedded_broker  # noqa: PLC0415, only where none is given

    with embedded_broker() as broker:
        yield broker.bootstrap_servers


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds: under a minute, and less exact.")
@click.option("--bootstrap-servers", help="A broker that runs; by default one is started.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=RESULTS,
    show_default=True,
    help="Where the figures go, as JSON.",
)
def main(*, quick: bool, bootstrap_servers: str | None, output: Path) -> None:
    """Measure the log against plain kafka-python, and the kernel, in one run, in interleaved rounds."""
    console = Console(width=100)
    with _broker(bootstrap_servers) as servers:
        rows: list[Row] = []
        for fsync in (True, False):
            rows += measure_appends(servers, APPEND_QUICK if quick else APPEND_FULL, fsync=fsync)
        rows.append(measure_rebuild(servers, 10_000 if quick else 50_000))
    rows += measure_kernel(event_count=8_192, rounds=3 if quick else 7)
    show(rows, console)
    write(rows, output, quick=quick)
    console.print(f"written to {output}")


main()
