"""`coordlog broker`: the shared local broker that is used where none is named."""

from __future__ import annotations

import click

from coordlog.cli.console import day_of, time_of
from coordlog.cli.exit_status import Exit
from coordlog.log.broker.shared import (
    SharedBrokerStatus,
    StopOutcome,
    shared_status,
    start_shared,
    stop_shared,
)

__all__ = ["broker"]


@click.group()
def broker() -> None:
    """Start, stop or look at the shared local broker.

    It is started by itself when it is needed, keeps its data, and stops after an hour without a
    client.
    """


@broker.command()
@click.option(
    "--idle-minutes",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Stop after so long without a client, 0 for never (default 60).",
)
def start(*, idle_minutes: float | None) -> None:
    """Start it, where it does not run."""
    status = start_shared(notify=lambda line: click.echo(line, err=True), idle_minutes=idle_minutes)
    click.echo(_described(status))


@broker.command()
def stop() -> None:
    """Stop it, where it runs; its data stay."""
    match stop_shared():
        case StopOutcome.NOT_RUNNING:
            click.echo("the shared broker does not run")
        case StopOutcome.STOPPED:
            click.echo("stopped the shared broker; its data stay")
        case StopOutcome.KILLED:
            click.echo("the shared broker did not stop in time and was killed; its data stay")


@broker.command()
@click.pass_context
def status(context: click.Context) -> None:
    """Tell whether it runs and where; exit status 1 where it does not run, 5 where it is silent."""
    found = shared_status()
    click.echo(_described(found))
    if not found.running:
        context.exit(Exit.FAILED)
    if not found.answering:
        context.exit(Exit.UNREACHABLE)


def _described(found: SharedBrokerStatus) -> str:
    if not found.running:
        return f"the shared broker does not run; its data: {found.folder}"
    answers = "" if found.answering else ", and does not answer"
    since_us = int((found.since or 0) * 1_000_000)
    since = "" if found.since is None else f" since {day_of(since_us)} {time_of(since_us)[:8]} UTC"
    clients = "" if found.clients is None else f", {found.clients} connections"
    idle = (
        "never by itself"
        if found.idle_minutes is None
        else f"after {found.idle_minutes:g} min idle"
    )
    return (
        f"the shared broker runs at {found.bootstrap_servers}{answers}\n"
        f"process {found.pid}{since}{clients}, stops {idle}\n"
        f"data: {found.folder}\n"
        f"log: {found.log_path}"
    )
