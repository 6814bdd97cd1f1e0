"""What the commands of the benchmarks have in common: the broker that they measure on, and where their figures go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import click

from coordlog.log.broker.embedded import embedded_broker

__all__ = ["broker", "broker_option", "output_option"]

broker_option: Final = click.option(
    "--bootstrap-servers", help="A broker that runs; by default one is started."
)


def output_option(default: Path) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--output`, a file."""
    return click.option(
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        default=default,
        show_default=True,
        help="Where the figures go, as JSON.",
    )


@contextlib.contextmanager
def broker(bootstrap_servers: str | None) -> Generator[str]:
    """The servers that are given, or those of a broker of its own."""
    if bootstrap_servers is not None:
        yield bootstrap_servers
        return
    with embedded_broker() as started:
        yield started.bootstrap_servers
