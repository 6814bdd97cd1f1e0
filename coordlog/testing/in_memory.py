"""A whole job in this process: the real driver, mailbox and attempts, with threads instead of Spark's tasks.

Restarts a task whose attempt fails, as Spark would. Needs neither Kafka nor Spark.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from coordlog.api.chain import Chain
from coordlog.errors import CoordlogError
from coordlog.limits import CALL_TIMEOUT_S
from coordlog.messages import Accepted, AlreadyFinished, DownMessage, Register, UpMessage
from coordlog.payloads.offload import NO_STORE, PayloadOptions
from coordlog.projections.job.state import JobState
from coordlog.runtime.mailbox import Mailbox
from coordlog.runtime.ports import Connections, Stage
from coordlog.task.attempt import AttemptRunner
from coordlog.task.call_watch import watched_calls

__all__ = ["InMemorySurroundings"]

_log = logging.getLogger(__name__)
_END_S = 10.0


@dataclass(slots=True, eq=False)
class _Connection:
    """A task's connection to the driver."""

    connection_id: int
    inbox: queue.SimpleQueue[DownMessage] = field(default_factory=queue.SimpleQueue)
    is_cut: bool = False
    """Whether the connection is lost: no message passes, in either direction."""
    is_closed: bool = False
    """Whether the driver has closed the connection: it sends no more messages."""


class InMemorySurroundings:
    """`Surroundings` whose tasks are threads. `kill` ends one attempt as SIGKILL would.

    Args:
        chain: Chain of the job.
        job_id: Id of the job.
        parallelism: Number of subtasks.
        failures_max: Number of failures of a task that aborts the stage.
        call_timeout_s: Limit of a call of the chain, seconds; a longer call fails its attempt.
        payloads: Payload store of the job.
    """

    def __init__(
        self,
        chain: Chain,
        job_id: str,
        parallelism: int,
        *,
        failures_max: int = 1000,
        call_timeout_s: float = CALL_TIMEOUT_S,
        payloads: PayloadOptions = NO_STORE,
    ) -> None:
        self._payloads = payloads
        self._chain, self._job_id, self._parallelism = chain, job_id, parallelism
        self._failures_max, self._call_timeout_s = failures_max, call_timeout_s
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._tasks = itertools.count()
        self._connections: dict[int, _Connection] = {}
        self._of_subtask: dict[int, _Connection] = {}
        self._threads: list[threading.Thread] = []
        self._cancelled: set[int] = set()
        self._stage_run = 0
        self._is_over = False
        self._driver_id = ""
        self._mailbox: Mailbox | None = None

    # --- Surroundings -------------------------------------------------------------------------------------------------
    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        self._driver_id, self._mailbox = driver_id, mailbox
        return "memory"

    def took_over(self) -> None:
        """See `Surroundings`."""

    def connections(self) -> Connections:
        """See `Surroundings`."""
        return self

    def stage(self) -> Stage:
        """See `Surroundings`."""
        return self

    def is_driver_alive(self, state: JobState) -> bool:
        """See `Surroundings`: always False, as memory has no other driver."""
        return state.epoch < -1

    def end(self) -> None:
        """See `Surroundings`."""
        self._is_over = True
        with self._lock:
            connections, threads = list(self._connections.values()), list(self._threads)
        for connection in connections:
            connection.is_cut = True
        for thread in threads:
            thread.join(_END_S)

    # --- Connections --------------------------------------------------------------------------------------------------
    def send(self, connection_id: int, message: DownMessage) -> None:
        """See `Connections`."""
        connection = self._connections.get(connection_id)
        if connection is not None and not connection.is_cut:
            connection.inbox.put(message)

    def close(self, connection_id: int) -> None:
        """See `Connections`."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.is_closed = True

    def released(self, connection_id: int, message_count: int) -> None:
        """See `Connections`."""

    # --- Stage --------------------------------------------------------------------------------------------------------
    def submit(self, stage_run: int) -> None:
        """See `Stage`."""
        self._stage_run = stage_run
        ended = threading.Semaphore(0)
        errors: list[str] = []
        for subtask in range(self._parallelism):
            self._start(lambda s=subtask: self._run_task(stage_run, s, errors, ended))  # type: ignore[misc]
        self._start(lambda: self._watch(stage_run, errors, ended))

    def cancel(self, stage_run: int, reason: str) -> None:
        """See `Stage`."""
        self._cancelled.add(stage_run)
        _log.debug("stage run %d cancelled: %s", stage_run, reason)
        with self._lock:
            for connection in self._connections.values():
                connection.is_cut = True

    def abort(self, reason: str) -> None:
        """End the newest stage, as Spark does when a task has failed too often: a global failover."""
        mailbox = self._mailbox
        assert mailbox is not None, "begun"
        self._cancelled.add(self._stage_run)
        mailbox.stage_ended(self._stage_run, reason)

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """See `Stage`: the attempt gets its end over its connection."""

    def kill(self, subtask: int) -> None:
        """End the live attempt of a subtask as SIGKILL would."""
        connection = self._of_subtask.get(subtask)
        if connection is not None and not connection.is_cut:
            connection.is_cut = True
            mailbox = self._mailbox
            assert mailbox is not None, "begun"
            mailbox.connection_lost(connection.connection_id, "killed by the test")

    # --- tasks --------------------------------------------------------------------------------------------------------
    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="coordlog-task", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _watch(self, stage_run: int, errors: list[str], ended: threading.Semaphore) -> None:
        for _ in range(self._parallelism):
            ended.acquire()
        mailbox = self._mailbox
        assert mailbox is not None, "begun"
        mailbox.stage_ended(stage_run, errors[0] if errors else None)

    def _run_task(
        self, stage_run: int, subtask: int, errors: list[str], ended: threading.Semaphore
    ) -> None:
        try:
            for failures in range(self._failures_max):
                if self._is_over or stage_run in self._cancelled or errors:
                    return
                if self._run_attempt(stage_run, subtask, failures):
                    return
            errors.append(f"subtask {subtask} failed {self._failures_max} times")
        finally:
            ended.release()

    def _run_attempt(self, stage_run: int, subtask: int, failures: int) -> bool:
        """Run a task from its registration to its end; returns whether it succeeded."""
        mailbox = self._mailbox
        assert mailbox is not None, "begun"
        with self._lock:
            connection = _Connection(next(self._ids))
            self._connections[connection.connection_id] = connection
            self._of_subtask[subtask] = connection
            task_attempt_id = next(self._tasks)

        def say(message: UpMessage) -> None:
            if not connection.is_cut:
                mailbox.arrived(connection.connection_id, message)

        say(
            Register(
                driver_id=self._driver_id,
                subtask=subtask,
                stage_run=stage_run,
                task_attempt_id=task_attempt_id,
                spark_attempt_number=failures,
                host="memory",
                pid=0,
            )
        )
        answer = self._answer(connection)
        if isinstance(answer, AlreadyFinished):
            return True
        if not isinstance(answer, Accepted):
            return False
        runner = AttemptRunner(
            self._chain,
            answer,
            job_id=self._job_id,
            subtask=subtask,
            outbox=say,
            why_over=lambda: "its connection is cut" if connection.is_cut else None,
            payloads=self._payloads,
        )
        try:
            with watched_calls(runner, self._call_timeout_s):
                runner.run(connection.inbox)
        except CoordlogError as error:
            _log.debug("attempt of subtask %d ends: %s", subtask, error)
        except Exception as error:  # noqa: BLE001, as in Spark: the task failed, another is started
            _log.debug("attempt of subtask %d failed: %s", subtask, error)
        else:
            return True
        if not connection.is_cut:
            connection.is_cut = True
            mailbox.connection_lost(connection.connection_id, "the task has ended")
        return False

    def _answer(self, connection: _Connection) -> DownMessage | None:
        while not connection.is_cut and not self._is_over:
            try:
                return connection.inbox.get(timeout=0.05)
            except queue.Empty:
                continue
        return None
