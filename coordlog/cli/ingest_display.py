"""Shows how a job is getting on: redrawn in place on a terminal, else a line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordlog.projections.progress import Progress

from .ingest_text import RateMeter, Rates, checkpoint_text, progress_line, rates_text

__all__ = ["Display"]

_REDRAW_S: Final = 0.25
_LINE_EVERY_S: Final = 3.0
_END_S: Final = 2.0
_BAR_COLUMNS: Final = 40
_WIDE: Final = 10_000


class _PatientConsole(Console):
    """Goes on, silently, when its reader has gone: the job does not depend on who watches it."""

    def on_broken_pipe(self) -> None:
        """Print nothing more; rich would end the process."""
        self.quiet = True


class Display:
    """Lines, and below them what is under way. `say` from any thread; a context manager.

    Args:
        output: Where to.
        look: Gives the progress as of now; None while there is nothing to be shown.
        is_terminal: Whether it can be redrawn; by default what `output` is.
    """

    def __init__(
        self,
        output: IO[str],
        look: Callable[[], Progress | None],
        *,
        is_terminal: bool | None = None,
    ) -> None:
        self._console = _PatientConsole(
            file=output,
            highlight=False,
            markup=False,
            emoji=False,
            force_terminal=is_terminal,
        )
        self._is_terminal = self._console.is_terminal
        if not self._is_terminal:
            self._console.width = _WIDE
        self._look, self._meter = look, RateMeter()
        self._doing = ""
        self._ended = threading.Event()
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # these are a file by now
            redirect_stderr=False,
        )
        self._thread = threading.Thread(target=self._run, name="coordlog-display", daemon=True)

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._is_terminal:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; what `say` was given stays."""
        self._ended.set()
        self._thread.join(_END_S)
        self.restore_terminal()

    def restore_terminal(self) -> None:
        """Give the terminal back as it was; for an end at once, too."""
        if self._is_terminal:
            self._live.stop()
            self._console.show_cursor()

    def say(self, line: str, *, style: str | None = None) -> None:
        """One line that stays."""
        self._console.print(Text(line, style=style or ""), soft_wrap=True)

    def doing(self, what: str) -> None:
        """What is under way, until it is said to be something else; nothing: only the progress."""
        self._doing = what
        if what and not self._is_terminal:
            self.say(f"{what} ...")

    def _run(self) -> None:
        last_line_s = time.monotonic()
        while not self._ended.wait(_REDRAW_S):
            progress, now_s = self._look(), time.monotonic()
            rates = None if progress is None else self._meter.see(now_s, progress)
            if self._is_terminal:
                self._live.update(self._picture(progress, rates), refresh=True)
            elif (
                progress is not None and rates is not None and now_s - last_line_s >= _LINE_EVERY_S
            ):
                last_line_s = now_s
                self.say(progress_line(progress, rates, _now_us()))

    def _picture(self, progress: Progress | None, rates: Rates | None) -> RenderableType:
        parts: list[RenderableType] = []
        if progress is not None and rates is not None:
            parts.append(_table(progress, rates, _now_us()))
        if self._doing:
            parts.append(Text(f"{self._doing} ...", style="dim"))
        return Group(*parts)


def _table(progress: Progress, rates: Rates, now_us: int) -> Table:
    done, known = progress.splits_finished, progress.splits_known
    table = Table.grid(padding=(0, 2))
    splits = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=known or None, completed=done, width=_BAR_COLUMNS, pulse=not known)
    splits.add_row(bar, f"{done:,} of {known:,}" if known else "listing the source")
    table.add_row("splits", splits)
    rows = (
        f"{progress.rows:,} read" if progress.is_batch else f"{progress.rows_published:,} published"
    )
    table.add_row("rows", f"{rows}, {rates_text(rates)}")
    if not progress.is_batch:
        table.add_row("checkpoint", checkpoint_text(progress, now_us))
    lost = progress.attempts_lost
    attempts = Text(f"{len(progress.live)} live, ")
    attempts.append(f"{lost} lost", style="yellow" if lost else "")
    table.add_row("attempts", attempts)
    return table


def _now_us() -> int:
    return time.time_ns() // 1000
