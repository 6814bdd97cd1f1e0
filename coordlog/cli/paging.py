"""A pager for output that is longer than the terminal."""

from __future__ import annotations

import functools
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final, TextIO

import click

from coordlog.cli.console import is_terminal

__all__ = ["pager_of", "with_pager"]

_LESS: Final = "FRX"
"""Options of `less` if the user's variable LESS is not set: colours, and the text stays on the screen."""


def with_pager(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--pager`, and show its standard output in a pager once it is longer than the screen.

    There is no pager without a terminal, for `--json`, or if `PAGER` is empty or `cat`.
    """

    @click.option(
        "--pager/--no-pager",
        "has_pager",
        default=True,
        help="Show output that is longer than the terminal by the program in PAGER; default less.",
    )
    @functools.wraps(command)
    def with_output(*arguments: object, has_pager: bool, **options: object) -> None:
        program = pager_of(os.environ)
        is_wanted = has_pager and not options.get("as_json") and is_terminal()
        if program is None or not is_wanted:
            command(*arguments, **options)
            return
        output = _PagedOutput(sys.stdout, program)
        former, sys.stdout = sys.stdout, output
        try:
            command(*arguments, **options)
        finally:
            sys.stdout = former
            output.end()

    return with_output


def pager_of(environment: Mapping[str, str]) -> list[str] | None:
    """Command of the pager, or None without one.

    A value that is no command line, or names no program, counts as none: the output is shown in any case.
    """
    try:
        words = shlex.split(environment.get("PAGER", "less"))
    except ValueError:
        return None
    if not words or words == ["cat"]:
        return None
    program = shutil.which(words[0])
    return None if program is None else [program, *words[1:]]


class _PagedOutput(io.TextIOBase):
    """A standard output that is kept while it fits the terminal, and goes to a pager from then on."""

    def __init__(self, terminal: TextIO, program: list[str]) -> None:
        super().__init__()
        self._terminal, self._program = terminal, program
        self._height = shutil.get_terminal_size().lines
        self._kept: list[str] = []
        self._lines = 0
        self._pager: subprocess.Popen[bytes] | None = None
        self._former: object = None

    @property
    def encoding(self) -> str:  # type: ignore[override]  # no caller sets it
        """Encoding of the terminal."""
        return self._terminal.encoding

    def isatty(self) -> bool:
        """True: widths and colours are those of the terminal."""
        return True

    def fileno(self) -> int:
        """That of the terminal."""
        return self._terminal.fileno()

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Keep the text, or pass it on. Raises BrokenPipeError once the user has left the pager.

        Raises TypeError for bytes: by that, click finds out that this is a stream of text.
        """
        if not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} is no text")
        if self._pager is not None:
            self._pass_on(text)
            return len(text)
        self._kept.append(text)
        self._lines += text.count("\n")
        if self._lines >= self._height:
            self._begin()
        return len(text)

    def _begin(self) -> None:
        environment = {**os.environ, "LESS": os.environ.get("LESS", _LESS)}
        self._pager = subprocess.Popen(  # noqa: S603, the user's own pager
            self._program, stdin=subprocess.PIPE, env=environment
        )
        # Ctrl-C is the pager's: `less` ends a search with it.
        self._former = signal.signal(signal.SIGINT, signal.SIG_IGN)
        kept, self._kept = "".join(self._kept), []
        self._pass_on(kept)

    def _pass_on(self, text: str) -> None:
        assert self._pager is not None, "begun"
        assert self._pager.stdin is not None, "a pipe"
        self._pager.stdin.write(text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Do nothing: a part of the output may belong to the pager."""

    def end(self) -> None:
        """Print output that fits the terminal, or wait until the user leaves the pager."""
        pager = self._pager
        if pager is None:
            self._terminal.write("".join(self._kept))
            self._terminal.flush()
            return
        try:
            assert pager.stdin is not None, "a pipe"
            pager.stdin.close()
        except BrokenPipeError:
            pass  # the user has seen enough
        finally:
            pager.wait()
            signal.signal(signal.SIGINT, self._former)  # type: ignore[arg-type]  # what it has returned
