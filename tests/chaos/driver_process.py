"""One driver of the rounds' job as a process of its own: real broker, endpoint, wire and attempts, and no Spark.

Its attempts run in a second process, as Spark's workers do, so that they go on while it is stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from chaos.hosted import HostedSurroundings, fork_task_host
from chaos.job_parts import Folders, SteppedSink, chain_of
from chaos.steps import Note, Steps, read_notes
from coordlog.cli.exits import Exit, exit_of
from coordlog.driver import DriverOptions, JobDriver
from coordlog.errors import CoordlogError
from coordlog.log.appender import Patience
from coordlog.log.kafka import KafkaLog
from coordlog.log.port import Log, LogIdentity, LogWriter, StoredRecord, UnstoredRecord
from coordlog.runtime import RuntimeOptions
from coordlog.schemas.header import decode_header
from coordlog.schemas.record import Record

__all__ = ["PARALLELISM", "DriverProcess", "Orders", "SteppedLog", "wait_until"]

PARALLELISM = 2
_CHECKPOINT_S = 0.1
_SNAPSHOT_EVERY = 40
_LOOK_S = 0.005
_PR_SET_PDEATHSIG = 1
_MODULES = ["chaos.driver_process", "pyarrow.parquet", "pyarrow.csv", "kafka"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a driver is told."""

    name: str
    root: str
    """The round's folder."""
    job_id: str
    bootstrap_servers: str
    makes_topic: bool = True
    take_over: bool = False
    again: bool = False
    pause_at: tuple[str, int] | None = None
    """The step at which it stops itself, and the how many-th time."""
    ahead_s: float = 0.0
    """How far its clock is ahead."""
    batch_s: float = 0.01
    log_timeout_s: float = 60.0
    append_timeout_s: float = 10.0
    fsync: bool = True


class DriverProcess:
    """A driver, started. Its process ends with this one, at the latest."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self.folders = orders, Folders(Path(orders.root))
        self._notes = self.folders.root / f"{orders.name}.notes"
        self._output = self.folders.root / f"{orders.name}.out"
        self._process: BaseProcess = _context().Process(target=_run, args=(orders,))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def notes(self) -> list[Note]:
        """What it has noted until now."""
        return read_notes(self._notes)

    @property
    def driver_id(self) -> str | None:
        """Once it has taken over."""
        return next((one["took_over"] for one in self.notes if "took_over" in one), None)

    @property
    def released(self) -> list[int]:
        """The sequences that it has released, in its order."""
        return [n for one in self.notes for n in one.get("released", [])]

    @property
    def output(self) -> str:
        """What it and its tasks have said."""
        return self._output.read_text("utf-8", "replace") if self._output.exists() else ""

    @property
    def error(self) -> str:
        """The one line by which a command would end."""
        lines = [line for line in self.output.splitlines() if line.startswith("error: ")]
        return lines[-1] if lines else ""

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still, by SIGSTOP."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self.pid}/stat").read_text("ascii", "replace")
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    @property
    def status(self) -> int | None:
        """Its exit status; None while it is there."""
        return self._process.exitcode

    def wait(self, limit_s: float) -> int | None:
        """Its exit status; None where it has not ended within the limit."""
        self._process.join(limit_s)
        return self._process.exitcode

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self._process.is_alive():
            os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.exitcode is not None

    def end(self) -> None:
        """See that it is gone."""
        self.signal(signal.SIGKILL)
        self._process.join()


def _context() -> ForkServerContext:
    """Drivers are forked from a process that has imported all there is to import: it takes a second."""
    context = multiprocessing.get_context("forkserver")
    tests = str(Path(__file__).parents[1])
    if tests not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        # The server does not look where this process has been told to.
        paths = [tests, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    context.set_forkserver_preload(_MODULES)
    return context


def _run(orders: Orders) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))  # one that stands still, too
    folders = Folders(Path(orders.root))
    with (folders.root / f"{orders.name}.out").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ["COORDLOG_HOME"] = str(folders.home)
    if orders.ahead_s:
        _shift_clock(orders.ahead_s)
    steps = Steps(folders.root / f"{orders.name}.notes", orders.pause_at)
    sink = SteppedSink(folders.out, steps)
    chain = chain_of(folders, sink, batch_s=orders.batch_s)
    channel = fork_task_host(lambda: chain, orders.job_id, PARALLELISM)
    surroundings = HostedSurroundings(job_id=orders.job_id, channel=channel, steps=steps)
    try:
        with closing(
            KafkaLog.for_job(orders.job_id, orders.bootstrap_servers, fsync=orders.fsync)
        ) as log:
            if orders.makes_topic:
                log.create()
            sink.prepare(orders.job_id)
            driver = JobDriver(
                chain=chain,
                log=SteppedLog(log, steps),
                options=_options(orders),
                surroundings=surroundings,
                on_released=lambda records: _note_released(steps, records),
            )
            driver.start()
            result = driver.wait()
            print(f"ended: {result}")
    except CoordlogError as error:
        # As the command line ends: one message and a status.
        print(f"error: {error}")
        sys.exit(exit_of(error))
    except Exception as error:  # noqa: BLE001, the process's edge
        traceback.print_exc()
        print(f"error: a fault: {type(error).__name__}: {error}")
        sys.exit(Exit.FAILED)
    sys.exit(Exit.DONE)


def _options(orders: Orders) -> DriverOptions:
    return DriverOptions(
        job_id=orders.job_id,
        parallelism=PARALLELISM,
        is_batch=False,
        is_take_over=orders.take_over,
        is_again=orders.again,
        runtime=RuntimeOptions(checkpoint_interval_s=_CHECKPOINT_S, snapshot_every=_SNAPSHOT_EVERY),
        restarts_max=100,
        restart_backoff_s=0.01,
        patience=Patience(
            log_timeout_s=orders.log_timeout_s, append_timeout_s=orders.append_timeout_s
        ),
    )


def _note_released(steps: Steps, records: Sequence[Record]) -> None:
    steps.did(released=[one.sequence for one in records if one.sequence is not None])
    steps.at("between release and effects")


def _shift_clock(ahead_s: float) -> None:
    """Everything in this process is told another time."""
    clock, clock_ns = time.time, time.time_ns
    time.time = lambda: clock() + ahead_s
    time.time_ns = lambda: clock_ns() + int(ahead_s * 1e9)


class SteppedLog:
    """A log with a step before each append, and one between its acknowledgement and the release."""

    def __init__(self, inner: Log, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    @property
    def identity(self) -> LogIdentity:
        """See `Log`."""
        return self._inner.identity

    def start_offset(self) -> int:
        """See `Log`."""
        return self._inner.start_offset()

    def high_watermark(self) -> int:
        """See `Log`."""
        return self._inner.high_watermark()

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """See `Log`."""
        return self._inner.read(from_offset, to_offset, stall_s=stall_s)

    def writer(self) -> LogWriter:
        """See `Log`."""
        return _SteppedWriter(self._inner.writer(), self._steps)

    def close(self) -> None:
        """See `Log`."""
        self._inner.close()


class _SteppedWriter:
    def __init__(self, inner: LogWriter, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def append(self, records: Sequence[UnstoredRecord], *, timeout_s: float) -> Sequence[int]:
        """See `LogWriter`."""
        first = decode_header(records[0].header)
        is_take_over = first is not None and first.is_epoch_started
        self._steps.at("before the take-over" if is_take_over else "before append")
        offsets = self._inner.append(records, timeout_s=timeout_s)
        self._steps.at("after the take-over" if is_take_over else "between ack and release")
        return offsets

    def close(self, *, timeout_s: float) -> None:
        """See `LogWriter`."""
        self._inner.close(timeout_s=timeout_s)


def wait_until(is_so: Callable[[], object], limit_s: float, what: str) -> None:
    """Look until it is so.

    Raises:
        TimeoutError: It is not, within the limit.
    """
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        time.sleep(_LOOK_S)
