"""`coordlog broker`: the shared local broker, which is used if no other broker is named."""

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
    """Start, stop or show the shared local broker.

    Commands start it if they need it. It keeps its data, and stops after an hour without a client.
    """


@broker.command()
@click.option(
    "--idle-minutes",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Minutes without a client after which it stops, 0 for never (default 60).",
)
def start(*, idle_minutes: float | None) -> None:
    """Start the broker, if it does not run."""
    status = start_shared(notify=lambda line: click.echo(line, err=True), idle_minutes=idle_minutes)
    click.echo(_described(status))


@broker.command()
def stop() -> None:
    """Stop the broker, if it runs; its data stay."""
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
    """Show whether the broker runs, and its address; exit status 1 if it does not run, 5 if it does not answer."""
    broker_status = shared_status()
    click.echo(_described(broker_status))
    if not broker_status.running:
        context.exit(Exit.FAILED)
    if not broker_status.answering:
        context.exit(Exit.UNREACHABLE)


def _described(status: SharedBrokerStatus) -> str:
    if not status.running:
        return f"the shared broker does not run; its data: {status.folder}"
    silence = "" if status.answering else ", and does not answer"
    since_us = int((status.since or 0) * 1_000_000)
    since = "" if status.since is None else f" since {day_of(since_us)} {time_of(since_us)[:8]} UTC"
    clients = "" if status.clients is None else f", {status.clients} connections"
    idle = (
        "never by itself"
        if status.idle_minutes is None
        else f"after {status.idle_minutes:g} min idle"
    )
    return (
        f"the shared broker runs at {status.bootstrap_servers}{silence}\n"
        f"process {status.pid}{since}{clients}, stops {idle}\n"
        f"data: {status.folder}\n"
        f"log: {status.log_path}"
    )
