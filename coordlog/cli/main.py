"""The command `coordlog`: finds a subcommand, runs it, turns an error into a message and a status.

A subcommand's module is imported only when that subcommand runs: commands that read a topic do not
wait for Spark's import.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from coordlog.cli.commands.machine.version import print_version
from coordlog.cli.config.names import CONFIG_VARIABLE, name_variables
from coordlog.cli.config.sources import (
    configure,
    in_options,
    read_config,
    variables_named,
)
from coordlog.cli.exit_status import Exit, exit_of, message_of
from coordlog.errors import CoordlogError, UsageError

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class _Command:
    module: str
    attribute: str
    summary: str


_GROUPS: Final[Mapping[str, Mapping[str, _Command]]] = {
    "Run": {
        "ingest": _Command("ingest.command", "ingest", "Ingest files into Parquet, exactly once."),
        "stop": _Command("commands.run.stop", "stop", "Stop a job's driver in order."),
        "trigger": _Command("commands.run.trigger", "trigger", "Take a checkpoint of a job now."),
        "kill-attempt": _Command(
            "commands.run.kill_attempt", "kill_attempt", "Fail the attempt of one subtask."
        ),
        "request": _Command(
            "commands.run.request", "request", "Send a request or a query to a coordinator."
        ),
        "skip": _Command(
            "commands.run.skip", "skip", "Go on without a split or an event that fails the job."
        ),
        "savepoint": _Command(
            "commands.run.savepoint",
            "savepoint",
            "Retain a checkpoint under a name, or release it.",
        ),
        "fork": _Command(
            "commands.run.fork", "fork", "Begin a job from a checkpoint of another job."
        ),
    },
    "Look": {
        "jobs": _Command("commands.look.jobs", "jobs", "List the jobs that have a log."),
        "health": _Command(
            "commands.look.health", "health", "Judge a job; the exit status is for scripts."
        ),
        "report": _Command(
            "commands.look.report",
            "report",
            "Write a job's history as one page that needs no network.",
        ),
        "web": _Command(
            "commands.look.web", "web", "Serve the page of each job, and renew it while it lives."
        ),
        "tail": _Command("commands.look.tail", "tail", "Follow a job's log."),
        "history": _Command(
            "commands.look.history", "history", "Show a job's records in log order."
        ),
        "attempts": _Command(
            "commands.tables.attempts", "attempts", "List the execution attempts of a job."
        ),
        "splits": _Command(
            "commands.tables.splits", "splits", "List the splits of a job, and lost work on them."
        ),
        "reads": _Command(
            "commands.tables.reads", "reads", "List the reads of queries, and their tasks."
        ),
        "checkpoints": _Command(
            "commands.tables.checkpoints", "checkpoints", "List the checkpoints of a job."
        ),
        "events": _Command(
            "commands.tables.events", "events", "List the operator events of a job, and their acks."
        ),
        "commits": _Command(
            "commands.tables.commits", "commits", "List the commits of a job, and the open ones."
        ),
        "failures": _Command(
            "commands.tables.failures", "failures", "List the failures of a job, and their cost."
        ),
        "epochs": _Command(
            "commands.tables.epochs", "epochs", "List the epochs of a job's log, with their ends."
        ),
        "checkpoint": _Command(
            "commands.look.checkpoint",
            "checkpoint",
            "Show checkpoints that a job can go back to, and their content.",
        ),
        "state": _Command(
            "commands.look.state", "state", "Show a coordinator's state at any place of its log."
        ),
        "diff": _Command("commands.look.state", "diff", "Show the changes between two places."),
        "explain": _Command(
            "commands.look.explain", "explain", "Explain the state of a split, event or checkpoint."
        ),
        "verify": _Command("commands.look.verify", "verify", "Check a job's whole history."),
    },
    "Keep and repair": {
        "doctor": _Command(
            "commands.repair.doctor", "doctor", "Check broker, logs and machine for faults."
        ),
        "export": _Command(
            "commands.repair.export", "export", "Write a job's whole log to one file."
        ),
        "import": _Command(
            "commands.repair.import_",
            "import_",
            "Put an exported history into a log, to inspect it.",
        ),
        "adopt": _Command(
            "commands.repair.adopt", "adopt", "Let a job continue here from an exported history."
        ),
        "prune": _Command(
            "commands.repair.prune", "prune", "Remove the beginning of a job's log, archived first."
        ),
        "payloads": _Command(
            "commands.repair.payloads", "payloads", "Show and clean a job's large payloads."
        ),
        "delete": _Command(
            "commands.repair.delete", "delete", "Delete a job's log with all its history."
        ),
    },
    "Machine": {
        "broker": _Command(
            "commands.machine.broker", "broker", "Start, stop or show the shared local broker."
        ),
        "jars": _Command(
            "commands.machine.jars", "jars", "Print the jars with which Spark reads a history."
        ),
        "cache": _Command(
            "commands.machine.cache", "cache", "Clear files that can be fetched again."
        ),
        "config": _Command(
            "commands.machine.config", "config", "Show each setting, and its source."
        ),
        "completion": _Command(
            "commands.machine.completion", "completion", "Print a shell's completion script."
        ),
    },
}
"""Commands by task, in the order of the help. A new command is a line here and a module in a package of `commands`."""

_COMMANDS: Final = {name: command for group in _GROUPS.values() for name, command in group.items()}

_STATUSES: Final = (
    "Exit status: 0 done, 1 failed, 2 wrong usage, 3 refused to restore, 4 another driver has "
    "taken over, 5 the log cannot be reached, 6 out of space, 130 or 143 stopped."
)
_CONFIGURED: Final = "Each option is also a variable, COORDLOG_NAME, and a key of coordlog.toml: see `coordlog config`."


class _Commands(click.Group):
    """The subcommands, found by name, and the edge at which errors become messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with that name; imports its module."""
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"coordlog.cli.{entry.module}")
        command: click.Command = getattr(module, entry.attribute)
        name_variables(command, (cmd_name,), ctx)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names with their summaries, without imports."""
        width = max(map(len, _COMMANDS))
        for task, commands in _GROUPS.items():
            with formatter.section(task):
                formatter.write_dl(
                    [(name.ljust(width), command.summary) for name, command in commands.items()]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand, with the configuration applied."""
        if not ctx.resilient_parsing and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None and not ctx.resilient_parsing:
            configure(ctx, (name,), command)
        return name, command, rest

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401, click's own signature
        """Run the command line; errors of output that click itself prints, such as help, are handled too."""
        _prepare_streams()
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if extra.get("standalone_mode", True) is False:
                raise
            _drop_output()
            with suppress(OSError):
                click.echo(_message(error), err=True)
            sys.exit(exit_of(error))

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401, click's own signature
        """Context of `coordlog` itself, whose own options may be variables too."""
        with variables_named():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401, click's own signature
        """Run the subcommand; turn its errors into a message and an exit status."""
        try:
            with variables_named():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            ctx.exit(Exit.DONE)
        except KeyboardInterrupt:
            _end(ctx, "stopped", Exit.INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            # The edge: one message and a status, no traceback.
            if ctx.params["debug"]:
                raise
            message = in_options(ctx, _message(error), is_usage=isinstance(error, UsageError))
            _end(ctx, message, exit_of(error))
        return result


def _message(error: Exception) -> str:
    """Message of an error, without control sequences: it may have texts of records."""
    from coordlog.projections.tables.payload_json import printable  # noqa: PLC0415, only for errors

    return printable(_words(error))


def _words(error: Exception) -> str:
    if isinstance(error, CoordlogError):
        return f"error: {error}"
    if isinstance(error, OSError):
        return f"error: {message_of(error)}"
    return (
        f"error: this is a fault of coordlog: {type(error).__name__}: {error}; "
        "`coordlog --debug ...` shows the traceback"
    )


def _end(ctx: click.Context, message: str, status: Exit) -> NoReturn:
    click.echo(message, err=True)
    ctx.exit(status)


def _prepare_streams() -> None:
    """Open the null device for standard streams that are closed; escape characters that the encoding lacks."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Send the output to the null device: its reader has ended, and the interpreter flushes once more at its end."""
    with open(os.devnull, "w", encoding="utf-8") as null:  # noqa: PTH123, no Path for a device
        os.dup2(null.fileno(), sys.stdout.fileno())


@click.command(
    cls=_Commands,
    epilog=f"{_CONFIGURED}\n\n{_STATUSES}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--debug", is_flag=True, envvar="COORDLOG_DEBUG", help="Show the traceback of an error."
)
@click.option(
    "--config",
    envvar=CONFIG_VARIABLE,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    is_eager=True,  # it may set other options
    expose_value=False,
    callback=read_config,
    help="File to read in place of coordlog.toml here, in COORDLOG_HOME or in ~/.config/coordlog.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the versions of coordlog, Python and libraries.",
)
def main(*, debug: bool) -> None:
    """An event-sourced coordination log for PySpark.

    Commands that read a history read the job's topic; its driver need not run.
    """
    del debug  # `invoke` reads it
