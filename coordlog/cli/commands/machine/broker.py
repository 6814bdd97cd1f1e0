"""`coordlog broker`: the shared local broker, which is used if no other broker is named."""

from __future__ import annotations

import click

from coordlog.cli.console import day_of, iso, print_json, time_of
from coordlog.cli.exit_status import Exit
from coordlog.cli.table_output import result_option
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
@result_option
def start(*, idle_minutes: float | None, as_json: bool) -> None:
    """Start the broker, if it does not run."""
    status = start_shared(notify=lambda line: click.echo(line, err=True), idle_minutes=idle_minutes)
    _print(status, as_json=as_json)


@broker.command()
@result_option
def stop(*, as_json: bool) -> None:
    """Stop the broker, if it runs; its data stay."""
    outcome = stop_shared()
    if as_json:
        print_json({"status": outcome.value})
        return
    match outcome:
        case StopOutcome.NOT_RUNNING:
            click.echo("the shared broker does not run")
        case StopOutcome.STOPPED:
            click.echo("stopped the shared broker; its data stay")
        case StopOutcome.KILLED:
            click.echo("the shared broker did not stop in time and was killed; its data stay")


@broker.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def status(context: click.Context, *, as_json: bool) -> None:
    """Show whether the broker runs, and its address; exit status 1 if it does not run, 5 if it does not answer."""
    broker_status = shared_status()
    _print(broker_status, as_json=as_json)
    if not broker_status.running:
        context.exit(Exit.FAILED)
    if not broker_status.answering:
        context.exit(Exit.UNREACHABLE)


def _print(status: SharedBrokerStatus, *, as_json: bool) -> None:
    if not as_json:
        click.echo(_described(status))
        return
    print_json(
        {
            "status": _word(status),
            "bootstrap_servers": status.bootstrap_servers,
            "pid": status.pid,
            "since": None if status.since is None else iso(int(status.since * 1_000_000)),
            "connections": status.clients,
            "idle_minutes": status.idle_minutes,
            "folder": str(status.folder),
            "log": str(status.log_path),
        }
    )


def _word(status: SharedBrokerStatus) -> str:
    if not status.running:
        return "not running"
    return "running" if status.answering else "not answering"


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
