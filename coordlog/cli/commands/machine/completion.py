"""`coordlog completion`: a script for a shell to complete commands, options and their values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]

_HELP = """Print the completion script of SHELL.

\b
bash: coordlog completion bash > ~/.local/share/bash-completion/completions/coordlog
zsh:  coordlog completion zsh > "${fpath[1]}/_coordlog"
fish: coordlog completion fish > ~/.config/fish/completions/coordlog.fish
"""


@click.command(help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print click's script; with the variable in it, click queries the program for completions."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None, "click has these three"
    root = context.find_root()
    click.echo(completion_class(root.command, {}, "coordlog", "_COORDLOG_COMPLETE").source())
