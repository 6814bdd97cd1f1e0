"""Subtasks with real connections: threads of other processes, as Spark's workers are processes beside the driver's."""

from __future__ import annotations

import multiprocessing
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from typing import Final

from coordlog.api.chain import Chain
from coordlog.errors import CoordlogError
from coordlog.projections.job.state import JobState
from coordlog.runtime.mailbox import Mailbox
from coordlog.runtime.ports import Connections, Stage
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.task.task import TaskChain, TaskIds, TaskWork, run_task
from coordlog.spark_integration.wire.certificate import Certificate, new_certificate
from coordlog.spark_integration.wire.token import Token

__all__ = ["Connected", "Watch"]

_LIMIT_S: Final = 120.0
_TASKS_PER_HOST: Final = 8
_HOSTS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Order to run the tasks of a stage run."""

    job_id: str
    driver_id: str
    endpoint: str
    token: Token
    certificate: Certificate | None
    subtasks: range
    stage_run: int


class Connected:
    """`Surroundings` and `Stage` whose tasks are threads of other processes, each with its own connection.

    Spark has a process for each task. Here one has several, since each takes 60 MB; with 64 in one process, a third of
    its CPU time was that of threads waiting for the interpreter.

    Args:
        job_id: Id of the job.
        parallelism: Number of subtasks.
        make_chain: A function of a module: returns the job's chain, in each of the other processes.
        is_encrypted: Whether the connections have TLS.
    """

    def __init__(
        self,
        job_id: str,
        parallelism: int,
        make_chain: Callable[[], Chain],
        *,
        is_encrypted: bool = False,
    ) -> None:
        self._job_id, self._parallelism, self._is_encrypted = job_id, parallelism, is_encrypted
        self._token = Token.new()
        self._certificate: Certificate | None = None
        self._endpoint: Endpoint | None = None
        self._driver_id = ""
        self._mailbox: Mailbox | None = None
        # Started here, so that a caller can measure this process's memory without them.
        each = max(_TASKS_PER_HOST, -(-parallelism // _HOSTS_MAX))
        self._hosts = [
            _Host(range(first, min(first + each, parallelism)), make_chain)
            for first in range(0, parallelism, each)
        ]
        for host in self._hosts:
            assert host.channel.recv() == "ready", "it has imported what tasks need"
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        self._mailbox, self._driver_id = mailbox, driver_id
        tls: ssl.SSLContext | None = None
        if self._is_encrypted:
            self._certificate, tls = new_certificate()
        self._endpoint = Endpoint(
            job_id=self._job_id,
            driver_id=driver_id,
            token=self._token,
            arrivals=mailbox,
            tls=tls,
            subtasks=self._parallelism,
        )
        address = self._endpoint.start()
        self._listener.start()
        return address

    def took_over(self) -> None:
        """See `Surroundings`."""

    def connections(self) -> Connections:
        """See `Surroundings`."""
        assert self._endpoint is not None, "begun"
        return self._endpoint

    def stage(self) -> Stage:
        """See `Surroundings`."""
        return self

    def is_driver_alive(self, state: JobState) -> bool:
        """See `Surroundings`: there is no other driver."""
        return False

    def submit(self, stage_run: int) -> None:
        """See `Stage`."""
        assert self._endpoint is not None, "begun"
        for host in self._hosts:
            order = _Order(
                job_id=self._job_id,
                driver_id=self._driver_id,
                endpoint=self._endpoint.address,
                token=self._token,
                certificate=self._certificate,
                subtasks=host.subtasks,
                stage_run=stage_run,
            )
            host.channel.send(order)

    def cancel(self, stage_run: int, reason: str) -> None:
        """See `Stage`: the attempts are fenced over their connections, and end."""

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """See `Stage`."""

    def end(self) -> None:
        """See `Surroundings`."""
        assert self._endpoint is not None, "begun"
        self._endpoint.stop()
        for host in self._hosts:
            host.channel.send(None)
        for host in self._hosts:
            host.process.join(_LIMIT_S)

    def _listen(self) -> None:
        assert self._mailbox is not None, "begun"
        with suppress(EOFError, OSError):
            while True:
                # A stage run ends with the last of its tasks.
                stage_run = [host.channel.recv() for host in self._hosts][-1]
                self._mailbox.stage_ended(stage_run, "cancelled")


class _Host:
    """A process that runs these subtasks."""

    def __init__(self, subtasks: range, make_chain: Callable[[], Chain]) -> None:
        self.subtasks = subtasks
        context = multiprocessing.get_context("spawn")
        self.channel, its = context.Pipe()
        self.process = context.Process(target=_host_tasks, args=(its, make_chain), daemon=True)
        self.process.start()
        its.close()


def _host_tasks(channel: Connection, make_chain: Callable[[], Chain]) -> None:
    """Run the tasks of one stage run after the other, until the end is ordered."""
    numbers = count()
    channel.send("ready")
    while True:
        order: _Order | None = channel.recv()
        if order is None:
            return
        work = TaskWork(
            job_id=order.job_id,
            driver_id=order.driver_id,
            stage_run=order.stage_run,
            endpoint=order.endpoint,
            token=order.token,
            certificate=order.certificate,
            chain=TaskChain.of(make_chain()),
        )
        threads = [
            threading.Thread(target=_run_one, args=(work, subtask, next(numbers)))
            for subtask in order.subtasks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        channel.send(order.stage_run)


def _run_one(work: TaskWork, subtask: int, task_attempt_id: int) -> None:
    ids = TaskIds(subtask=subtask, task_attempt_id=task_attempt_id, spark_attempt_number=0)
    with suppress(CoordlogError):  # a failover, or the end
        run_task(work, ids)


class Watch:
    """Counts the records that count, by kind, and waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seen: dict[Kind, int] = {}

    def released(self, records: Sequence[Record]) -> None:
        """Count the records of a turn. On the mailbox."""
        with self._changed:
            for record in records:
                self._seen[record.kind] = self._seen.get(record.kind, 0) + 1
            self._changed.notify_all()

    def timed_ms(self, kind: Kind, more: int, act: Callable[[], object]) -> float:
        """Time from before `act` until so many more records of a kind count, milliseconds."""
        with self._changed:
            wanted = self._seen.get(kind, 0) + more
        began_s = time.perf_counter()
        act()
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: self._seen.get(kind, 0) >= wanted, timeout=_LIMIT_S
            )
        if not is_there:
            raise TimeoutError(f"{more} records {kind} did not come within {_LIMIT_S:g} s")
        return (time.perf_counter() - began_s) * 1e3
