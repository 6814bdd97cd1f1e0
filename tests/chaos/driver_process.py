"""One driver of the rounds' job as a process of its own: real broker, endpoint, wire and attempts, and no Spark.

Its attempts run in a second process, as Spark's workers do, so that they go on while it is stopped.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from chaos.asked import WORK_TYPE, AskedProvider
from chaos.child import Child, Ordered, enter
from chaos.client_process import ASKED_OPERATOR
from chaos.hosted import HostedSurroundings, fork_task_host
from chaos.job_parts import Folders, SteppedSink, chain_of
from chaos.steps import Steps
from coordlog.cli.exit_status import Exit, exit_of
from coordlog.errors import CoordlogError
from coordlog.log.appender import Patience
from coordlog.log.interface import LogIdentity, LogWriter, PrunableLog, StoredRecord, UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.log.kafka.reader import CONSUMER_OPTIONS
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.header import Header, decode_header
from coordlog.schemas.record import Kind, Record

__all__ = ["PARALLELISM", "DriverProcess", "Orders", "SteppedLog"]

PARALLELISM = 2
_CHECKPOINT_S = 0.1
_SNAPSHOT_EVERY = 40
_FETCH_BYTES = 2048
"""A few records: what is read of a history is asked for many times over."""
_BEHIND = 30
_AHEAD = 100
"""In records, far more than two fetches have: with so many left, a reading needs the broker once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a driver is told."""

    name: str
    root: str
    """The round's folder."""
    job_id: str
    bootstrap_servers: str
    source: str | None = None
    """Where its files are; None: in the round's folder."""
    makes_topic: bool = True
    take_over: bool = False
    again: bool = False
    is_asked: bool = False
    """Whether one of its coordinators answers clients, and has work done before each of its cuts."""
    older_copies: int = 0
    """So many tasks of each subtask register that are older than those which are its attempts."""
    pause_at: tuple[str, int] | None = None
    """The step at which it stops itself, and the how many-th time."""
    ahead_s: float = 0.0
    """How far its clock is ahead."""
    has_snapshots: bool = True
    """Without any, each restore reads the history from its start."""
    snapshot_every: int = _SNAPSHOT_EVERY
    batch_s: float = 0.01
    log_timeout_s: float = 60.0
    append_timeout_s: float = 10.0
    fsync: bool = True


class DriverProcess(Child):
    """A driver, started."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(_run, orders)
        self.orders = orders

    @property
    def driver_id(self) -> str | None:
        """Once it has taken over."""
        return next((one["took_over"] for one in self.notes if "took_over" in one), None)

    @property
    def released(self) -> list[int]:
        """The sequences that it has released, in its order."""
        return [n for one in self.notes for n in one.get("released", [])]


def _run(orders: Ordered) -> None:
    assert isinstance(orders, Orders)
    steps = enter(orders)
    if not orders.has_snapshots:
        CONSUMER_OPTIONS["max_partition_fetch_bytes"] = _FETCH_BYTES
    if orders.ahead_s:
        _shift_clock(orders.ahead_s)
    folders = Folders(Path(orders.root))
    if orders.source is not None:
        folders.source = Path(orders.source)
    sink = SteppedSink(folders.out, steps)
    asked = None
    if orders.is_asked:
        asked = AskedProvider(ASKED_OPERATOR, folder=folders.work, who=orders.name, steps=steps)
    chain = chain_of(folders, sink, batch_s=orders.batch_s, asked=asked)
    channel = fork_task_host(
        lambda: chain, orders.job_id, PARALLELISM, older_copies=orders.older_copies
    )
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
        runtime=RuntimeOptions(
            checkpoint_interval_s=_CHECKPOINT_S,
            snapshot_every=orders.snapshot_every if orders.has_snapshots else None,
        ),
        restarts_max=100,
        restart_backoff_s=0.01,
        patience=Patience(
            log_timeout_s=orders.log_timeout_s, append_timeout_s=orders.append_timeout_s
        ),
    )


def _note_released(steps: Steps, records: Sequence[Record]) -> None:
    steps.did(released=[one.sequence for one in records if one.sequence is not None])
    if any(one.payload_type == WORK_TYPE and one.kind is Kind.FACT for one in records):
        steps.at("before asynchronous work")
    steps.at("between release and effects")


def _shift_clock(ahead_s: float) -> None:
    """Everything in this process is told another time."""
    clock, clock_ns = time.time, time.time_ns
    time.time = lambda: clock() + ahead_s
    time.time_ns = lambda: clock_ns() + int(ahead_s * 1e9)


class SteppedLog:
    """A log that notes which of this process's records are stored, with steps.

    In a long reading, before each append, between its acknowledgement and the release, and before a removal.
    """

    def __init__(self, inner: PrunableLog, steps: Steps) -> None:
        self._inner, self._steps = inner, steps
        self._own_epoch: int | None = None

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
        return self._stepped(self._inner.read(from_offset, to_offset, stall_s=stall_s), to_offset)

    def _stepped(self, records: Iterator[StoredRecord], to_offset: int) -> Iterator[StoredRecord]:
        for count, record in enumerate(records):
            self._note_stored([record.header])
            if count >= _BEHIND and to_offset - record.offset > _AHEAD:
                self._steps.at("in a long reading")
            yield record
        self._steps.did(read=to_offset)

    def writer(self) -> LogWriter:
        """See `Log`."""
        return _SteppedWriter(self._inner.writer(), self)

    def delete_below(self, offset: int) -> None:
        """See `PrunableLog`."""
        self._steps.at("before removing records")
        self._inner.delete_below(offset)

    def close(self) -> None:
        """See `Log`."""
        self._inner.close()

    def append(
        self, inner: LogWriter, records: Sequence[UnstoredRecord], timeout_s: float
    ) -> Sequence[int]:
        """Of one of its writers."""
        headers = [decode_header(one.header) for one in records]
        first = headers[0]
        is_take_over = first is not None and first.is_epoch_started
        if first is not None and is_take_over:
            self._own_epoch = first.epoch
        self._steps.at("before the take-over" if is_take_over else "before append")
        offsets = inner.append(records, timeout_s=timeout_s)
        self._note_stored(headers)
        self._steps.at("after the take-over" if is_take_over else "between ack and release")
        return offsets

    def _note_stored(self, headers: Sequence[Header | None]) -> None:
        ours = [one for one in headers if one is not None and one.epoch == self._own_epoch]
        if stored := [one.sequence for one in ours if not one.is_epoch_started]:
            self._steps.did(stored=stored)


class _SteppedWriter:
    def __init__(self, inner: LogWriter, log: SteppedLog) -> None:
        self._inner, self._log = inner, log

    def append(self, records: Sequence[UnstoredRecord], *, timeout_s: float) -> Sequence[int]:
        """See `LogWriter`."""
        return self._log.append(self._inner, records, timeout_s)

    def close(self, *, timeout_s: float) -> None:
        """See `LogWriter`."""
        self._inner.close(timeout_s=timeout_s)
