"""What `coordlog ingest` does with its output, its display and the signals that stop it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from coordlog.cli.ingest.display import Display
from coordlog.cli.ingest.output import Followed, output_file, redirected
from coordlog.cli.ingest.signals import StoppedError, StopSignals
from coordlog.projections.tables.progress import Progress

LIMIT_S = 10.0


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be so"
        threading.Event().wait(0.01)


# Output


def test_what_is_written_meanwhile_goes_to_the_file_by_children_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.log"
    with redirected(path) as former:
        subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
        os.write(2, b"of this process\n")
        logging.getLogger("coordlog.some.module").info("of the logging")
        print("to the former output", file=former)
    os.write(1, b"afterwards\n")

    written = path.read_text(encoding="utf-8")
    shown = capfd.readouterr().out
    assert "of a child\n" in written
    assert "of this process\n" in written
    assert shown == "to the former output\nafterwards\n"


def test_output_is_put_back_when_the_block_raises(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        with redirected(tmp_path / "out.log"):
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    os.write(2, b"the message\n")

    assert capfd.readouterr().err == "the message\n"


def test_each_run_of_a_job_has_a_file_and_the_oldest_of_many_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    folder = output_file("ingest").parent
    for number in range(25):
        (folder / f"20200101T0000{number:02}-1.log").touch()

    made = output_file("ingest")
    made.touch()

    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 20
    assert names[0] == "20200101T000006-1.log"
    assert names[-1] == made.name
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_output_of_a_run_that_has_not_ended_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    living = output_file("ingest").with_name("20200101T000000-1.log")
    with redirected(living):
        for number in range(1, 25):
            output_file("ingest").with_name(f"20200101T0000{number:02}-1.log").touch()

        assert living.exists()
    output_file("ingest")

    assert not living.exists()


def test_what_is_added_to_a_followed_file_is_shown_line_by_line(tmp_path: Path) -> None:
    path, shown = tmp_path / "spark.log", list[str]()
    path.write_text("before\n", encoding="utf-8")
    followed = Followed([path, tmp_path / "not there yet"], shown.append)
    with path.open("a", encoding="utf-8") as file:
        file.write("one\ntw")
        file.flush()
        wait_until(lambda: shown == ["one"])
        file.write("o\n")
    followed.close()

    assert shown == ["one", "two"]


# Display


def test_without_a_terminal_there_are_plain_lines_only() -> None:
    out = io.StringIO()
    with Display(out, lambda: Progress(job_id="ingest"), is_terminal=False) as display:
        display.say("the first line")
        display.doing("starting Spark")

    assert out.getvalue() == "the first line\nstarting Spark ...\n"


def test_all_lines_name_options_as_the_command_does() -> None:
    out = io.StringIO()
    with Display(
        out,
        lambda: None,
        in_options=lambda text: text.replace("exclude=", "--exclude"),
        is_terminal=False,
    ) as display:
        display.say("see exclude=")
        display.doing("see exclude=")

    assert out.getvalue() == "see --exclude\nsee --exclude ...\n"


def test_on_a_terminal_the_progress_is_drawn_and_gone_at_the_end() -> None:
    out = io.StringIO()
    looked = threading.Event()

    def look() -> Progress:
        if out.getvalue().count("attempts"):
            looked.set()
        return Progress(job_id="ingest", attempts_lost=2)

    with Display(out, look, is_terminal=True) as display:
        assert looked.wait(LIMIT_S)
        display.say("the summary")

    assert "listing the source" in out.getvalue()
    assert out.getvalue().rstrip("\n").rindex("the summary") > 0
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().index("\x1b[?25l")


class ClosedPipe(io.StringIO):
    """Whoever read has gone."""

    def write(self, text: str) -> int:
        """Never."""
        raise BrokenPipeError


def test_an_output_that_nobody_reads_any_more_stops_nothing() -> None:
    with Display(ClosedPipe(), lambda: None, is_terminal=False) as display:
        display.say("to nobody")


@contextmanager
def full_pipe() -> Iterator[IO[str]]:
    """The end of a pipe that is full, and that nobody reads until the block is over."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writes, b"x" * 65_536)
    os.set_blocking(writes, True)
    out = os.fdopen(writes, "w")
    try:
        yield out
    finally:
        os.close(reads)
        with contextlib.suppress(BrokenPipeError):
            out.close()


def test_a_reader_that_does_not_read_holds_no_signal_and_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`less`, or a log collector that stands still: the job has to be stopped all the same."""
    monkeypatch.setattr("coordlog.cli.ingest.display._END_S", 0.1)
    said = threading.Event()
    with full_pipe() as out:
        display = Display(out, lambda: None, is_terminal=False)

        def speak() -> None:
            with display:
                for number in range(20_000):
                    display.say(f"line {number}")
                signals = StopSignals(lambda _: None, noted=lambda: display.doing("stopping"))
                signals.keep()
                signals._handle(signal.SIGTERM, None)
                assert signals.received == signal.SIGTERM
            said.set()

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        assert said.wait(LIMIT_S)
        thread.join()


# Signals


def test_before_the_job_runs_the_first_signal_ends_what_is_under_way() -> None:
    with StopSignals(lambda _number: None) as signals, pytest.raises(StoppedError) as caught:
        signal.raise_signal(signal.SIGINT)

    assert caught.value.signal_number == signal.SIGINT
    assert signals.received == signal.SIGINT


def test_a_block_that_must_not_be_cut_off_ends_first() -> None:
    done = []

    def work() -> None:
        with StopSignals(lambda _number: None) as signals, signals.deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(StoppedError):
        work()

    assert done == ["all of it"]


def test_a_signal_that_another_handler_failed_at_is_a_stop_and_no_fault() -> None:
    """Spark puts its own in place while it starts; it calls the JVM, in the middle of another call."""

    def fail(_number: int, _frame: object) -> None:
        raise RuntimeError("an error occurred while calling the JVM")

    def work() -> None:
        with StopSignals(lambda _number: None) as signals, signals.deferred():
            signal.signal(signal.SIGINT, fail)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError) as stopped:
        work()

    assert stopped.value.signal_number == signal.SIGINT


def test_an_error_without_a_signal_stays_that_error() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        StopSignals(lambda _number: None) as signals,
        signals.deferred(),
    ):
        raise ZeroDivisionError


def test_while_the_job_runs_the_first_signal_is_only_noted() -> None:
    with StopSignals(lambda _number: None) as signals:
        signals.keep()
        signal.raise_signal(signal.SIGTERM)

        assert signals.received == signal.SIGTERM


def test_signals_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(lambda _number: None):
        assert signal.getsignal(signal.SIGTERM) != before

    assert signal.getsignal(signal.SIGTERM) == before


def test_the_second_signal_ends_the_process_and_its_children_at_once() -> None:
    program = (
        "import signal, os, subprocess\n"
        "from coordlog.cli.ingest.signals import StopSignals\n"
        "subprocess.Popen(['sleep', '1000'])\n"
        "with StopSignals(lambda _number: os.write(1, b'at once')) as signals:\n"
        "    signals.keep()\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    os.write(1, b'never')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (143, b"at once")
