"""Shows the progress of a job: redrawn in place on a terminal, else as a line every few seconds."""

from __future__ import annotations

import queue
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

from coordlog.cli.console import Printable
from coordlog.cli.ingest.text import RateMeter, Rates, checkpoint_text, progress_line, rates_text
from coordlog.projections.tables.progress import Progress

__all__ = ["Display"]

_REDRAW_S: Final = 0.25
_LINE_EVERY_S: Final = 3.0
_END_S: Final = 30.0
"""Seconds that an ended command waits for a slow reader of its output; a signal ends the wait."""
_RESTORE_S: Final = 1.0
_LINES_MAX: Final = 10_000
"""Maximum number of lines that wait for a reader; newer ones are dropped, and their number is shown."""
_BAR_COLUMNS: Final = 40
_WIDE: Final = 10_000


class _PatientConsole(Console):
    """Console that goes silent if its reader has ended: the job does not depend on a reader."""

    def on_broken_pipe(self) -> None:
        """Print nothing more; rich would end the process."""
        self.quiet = True


class Display:
    """Lines, and below them the current activity. A context manager.

    `say` and `doing` never wait, on any thread and in a handler of a signal: only the display's own
    thread writes, so that a reader that does not read stops no job.

    Args:
        output: Stream to write to.
        look: Returns the current progress, or None while there is nothing to show.
        in_options: Function of a text to the text with options as the command names them.
        is_terminal: Whether lines can be redrawn; by default whether `output` is a terminal.
    """

    def __init__(
        self,
        output: IO[str],
        look: Callable[[], Progress | None],
        *,
        in_options: Callable[[str], str] = str,
        is_terminal: bool | None = None,
    ) -> None:
        self._in_options = in_options
        self._console = _PatientConsole(
            file=output,
            highlight=False,
            markup=False,
            emoji=False,
            force_terminal=is_terminal,
        )
        self._console.push_render_hook(Printable())
        self._is_terminal = self._console.is_terminal
        if not self._is_terminal:
            self._console.width = _WIDE
        self._look, self._meter = look, RateMeter()
        self._doing = ""
        # A signal's handler may call `put`, and may interrupt another `put` of its thread.
        self._lines: queue.SimpleQueue[Text | None] = queue.SimpleQueue()
        self._dropped = 0
        self._ended = threading.Event()
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # both are redirected to a file
            redirect_stderr=False,
        )
        self._thread = threading.Thread(target=self._run, name="coordlog-display", daemon=True)

    def __enter__(self) -> Self:
        """Start the display."""
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
        """Write all waiting lines, then stop."""
        self._ended.set()
        self._lines.put(None)
        self._thread.join(_END_S)
        self.restore_terminal()

    def restore_terminal(self) -> None:
        """Restore the terminal's state; also called for an immediate end."""
        if self._is_terminal:
            # On another thread: a terminal that does not read may block the writing thread.
            restoring = threading.Thread(target=self._restore, daemon=True)
            restoring.start()
            restoring.join(_RESTORE_S)

    def _restore(self) -> None:
        self._live.stop()
        self._console.show_cursor()

    def say(self, line: str, *, style: str | None = None) -> None:
        """Show a line that stays."""
        if self._lines.qsize() >= _LINES_MAX:
            self._dropped += 1
            return
        self._lines.put(Text(self._in_options(line), style=style or ""))

    def doing(self, activity: str) -> None:
        """Show the current activity, until the next call; empty: only the progress."""
        self._doing = self._in_options(activity)
        if activity and not self._is_terminal:
            self.say(f"{activity} ...")

    def _run(self) -> None:
        last_line_s = time.monotonic()
        while not self._ended.is_set():
            self._write_lines()
            progress, now_s = self._look(), time.monotonic()
            rates = None if progress is None else self._meter.see(now_s, progress)
            if self._is_terminal:
                self._live.update(self._picture(progress, rates), refresh=True)
            elif (
                progress is not None and rates is not None and now_s - last_line_s >= _LINE_EVERY_S
            ):
                last_line_s = now_s
                line = progress_line(progress, rates, _now_us())
                self._console.print(Text(line), soft_wrap=True)

        self._write_lines(is_last=True)

    def _write_lines(self, *, is_last: bool = False) -> None:
        """Write waiting lines, and new ones until the next redrawing."""
        due_s = time.monotonic() + _REDRAW_S
        while True:
            try:
                wait_s = 0.0 if is_last else max(0.0, due_s - time.monotonic())
                line = self._lines.get(timeout=wait_s) if wait_s else self._lines.get_nowait()
            except queue.Empty:
                return
            if line is not None:
                self._console.print(line, soft_wrap=True)
            elif not is_last:
                return
            if self._dropped and self._lines.qsize() < _LINES_MAX // 2:
                count, self._dropped = self._dropped, 0
                self._console.print(Text(f"{count:,} lines were dropped: this output was not read"))

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
