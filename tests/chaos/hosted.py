"""What surrounds a driver here: the real endpoint, token and tasks; a process of its own where Spark has workers."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chaos.steps import Steps
from coordlog.api.chain import Chain
from coordlog.errors import CoordlogError
from coordlog.kernel.inputs import Asker, RequestOutcome
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import CONNECTION_CLOSE_S
from coordlog.messages import DeliverEvent, DownMessage, Refused
from coordlog.messages import InjectBarrier as BarrierMessage
from coordlog.projections.job.state import JobState
from coordlog.runtime.mailbox import Mailbox
from coordlog.runtime.ports import Connections, Stage, StageEvents
from coordlog.runtime.requests import Requests
from coordlog.spark_integration.driver.driver_file import (
    DriverFile,
    end_driver_file,
    forget_former_files,
    former_files,
    write_driver_file,
)
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.driver.liveness import NamedDriver, refuse_unless_gone
from coordlog.spark_integration.task.task import TaskChain, TaskIds, TaskWork, run_task
from coordlog.spark_integration.wire.token import Token

__all__ = ["HostedSurroundings", "fork_task_host"]

_FAILURES_MAX = 1000
_AGAIN_S = 0.02


def fork_task_host(
    make_chain: Callable[[], Chain], job_id: str, parallelism: int, *, older_copies: int = 0
) -> socket.socket:
    """Fork the process that runs this driver's tasks; how to talk to it. Before any thread is started.

    Of each subtask `older_copies` tasks more register, one after the other, whose ids are below those of all others.

    It ends with the driver, at once: so do Spark's workers.
    """
    ours, its = socket.socketpair()
    if os.fork() > 0:
        its.close()
        return ours
    ours.close()
    status = 1
    try:
        _TaskHost(its, TaskChain.of(make_chain()), job_id, parallelism, older_copies).run()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


class _TaskHost:
    """Runs the tasks of one stage run after the other, a thread each; starts one that fails again."""

    def __init__(
        self,
        channel: socket.socket,
        chain: TaskChain,
        job_id: str,
        parallelism: int,
        older_copies: int,
    ) -> None:
        self._channel, self._chain = channel, chain
        self._job_id, self._parallelism = job_id, parallelism
        self._older_copies = older_copies
        self._cancelled: set[int] = set()
        self._lock = threading.Lock()
        self._next_task = parallelism * older_copies

    def run(self) -> None:
        for line in self._channel.makefile("r", encoding="ascii"):
            order: dict[str, Any] = json.loads(line)
            if "cancel" in order:
                self._cancelled.add(order["cancel"])
                continue
            work = TaskWork(
                job_id=self._job_id,
                driver_id=order["driver_id"],
                stage_run=order["submit"],
                endpoint=order["endpoint"],
                token=Token.parse(order["token"], where="an order"),
                chain=self._chain,
            )
            threading.Thread(target=self._run_stage, args=(work,), daemon=True).start()

    def _run_stage(self, work: TaskWork) -> None:
        errors: list[str] = []
        threads = [
            threading.Thread(target=self._run_subtask, args=(work, n, errors), daemon=True)
            for n in range(self._parallelism)
        ]
        copying = threading.Thread(target=self._run_older_copies, args=(work,), daemon=True)
        for one in (*threads, copying):
            one.start()
        for one in threads:
            one.join()
        told = {"ended": work.stage_run, "error": errors[0] if errors else None}
        with self._lock:
            self._channel.sendall((json.dumps(told) + "\n").encode())

    def _run_subtask(self, work: TaskWork, subtask: int, errors: list[str]) -> None:
        for failures in range(_FAILURES_MAX):
            if work.stage_run in self._cancelled:
                return
            with self._lock:
                task, self._next_task = self._next_task, self._next_task + 1
            ids = TaskIds(subtask=subtask, task_attempt_id=task, spark_attempt_number=failures)
            try:
                run_task(work, ids)
            except CoordlogError as error:
                print(f"task {task} of subtask {subtask}: {error}", flush=True)
                time.sleep(_AGAIN_S)
            else:
                return
        errors.append(f"subtask {subtask} failed {_FAILURES_MAX} times")

    def _run_older_copies(self, work: TaskWork) -> None:
        """Tasks that Spark would have started before the others, and that come behind them."""
        for task in range(self._parallelism * self._older_copies):
            if work.stage_run in self._cancelled:
                return
            ids = TaskIds(
                subtask=task % self._parallelism, task_attempt_id=task, spark_attempt_number=0
            )
            try:
                run_task(work, ids)
            except CoordlogError as error:
                print(f"task {task} of subtask {ids.subtask}: {error}", flush=True)
            time.sleep(_AGAIN_S)


class _HostedStage:
    """`Stage`, whose tasks run in the task host."""

    def __init__(
        self, channel: socket.socket, order: dict[str, str], events: StageEvents, steps: Steps
    ) -> None:
        self._channel, self._order, self._events, self._steps = channel, order, events, steps
        self._lock = threading.Lock()
        self._is_over = False
        self._thread = threading.Thread(target=self._listen, name="coordlog-hosted", daemon=True)
        self._thread.start()

    def submit(self, stage_run: int) -> None:
        """See `Stage`."""
        self._steps.at("before the stage")
        self._say({"submit": stage_run, **self._order})

    def cancel(self, stage_run: int, reason: str) -> None:
        """See `Stage`."""
        self._say({"cancel": stage_run})

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """See `Stage`: the attempt has been told over its connection."""

    def end(self) -> None:
        """The host ends when it hears that nobody is there."""
        self._is_over = True
        self._channel.shutdown(socket.SHUT_RDWR)
        self._thread.join(CONNECTION_CLOSE_S)
        self._channel.close()

    def _say(self, order: dict[str, Any]) -> None:
        with self._lock:
            self._channel.sendall((json.dumps(order) + "\n").encode())

    def _listen(self) -> None:
        for line in self._channel.makefile("r", encoding="ascii"):
            told: dict[str, Any] = json.loads(line)
            if not self._is_over:
                self._events.stage_ended(told["ended"], told["error"])


class _SteppedConnections:
    """The endpoint's connections, with a step before what goes down."""

    def __init__(self, inner: Connections, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def send(self, connection_id: int, message: DownMessage) -> None:
        """See `Connections`."""
        if isinstance(message, DeliverEvent):
            self._steps.did(delivers=message.event_id)
            self._steps.at("before delivery")
        elif isinstance(message, BarrierMessage):
            self._steps.at("before a barrier")
        elif isinstance(message, Refused):
            self._steps.did(refuses=message.reason)
            self._steps.at("before refusing a task")
        self._inner.send(connection_id, message)

    def close(self, connection_id: int) -> None:
        """See `Connections`."""
        self._inner.close(connection_id)

    def released(self, connection_id: int, message_count: int) -> None:
        """See `Connections`."""
        self._inner.released(connection_id, message_count)


class _SteppedRequests(Requests):
    """The driver's requests, for its endpoint: with a step before each answer leaves."""

    def __init__(self, inner: Requests, steps: Steps) -> None:
        self.types = inner.types
        self._inner, self._steps = inner, steps

    def ask(
        self,
        operator_id: str,
        payload_type: str,
        payload: bytes,
        on_answer: Callable[[AnswerRequest], None],
        *,
        asked_by: Asker | None = None,
    ) -> int:
        """See `Requests`."""

        def told(effect: AnswerRequest) -> None:
            if effect.sequence is not None:
                self._steps.did(answers=effect.sequence)
            if effect.outcome is RequestOutcome.ANSWERED:
                self._steps.at("before an answer")
            elif effect.outcome is RequestOutcome.REFUSED:
                self._steps.at("before refusing a client")
            on_answer(effect)

        return self._inner.ask(operator_id, payload_type, payload, told, asked_by=asked_by)

    def forget(self, request_id: int) -> None:
        """See `Requests`."""
        self._inner.forget(request_id)


class HostedSurroundings:
    """`Surroundings` of one driver."""

    def __init__(self, *, job_id: str, channel: socket.socket, steps: Steps) -> None:
        self._job_id, self._channel, self._steps = job_id, channel, steps
        self._token = Token.new()
        self._driver_id = ""
        self._endpoint: Endpoint | None = None
        self._stage: _HostedStage | None = None
        self._file: DriverFile | None = None
        self._former_files: Sequence[Path] = ()

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        self._driver_id = driver_id
        self._endpoint = Endpoint(
            job_id=self._job_id,
            driver_id=driver_id,
            token=self._token,
            arrivals=mailbox,
            on_refused=lambda count: self._refused(mailbox, count),
            requests=_SteppedRequests(mailbox.requests, self._steps),
        )
        address = self._endpoint.start()
        self._file = DriverFile.of_this_process(
            job_id=self._job_id,
            driver_id=driver_id,
            endpoint=address,
            listens=self._endpoint.listens,
            token=self._token,
        )
        self._former_files = former_files(self._job_id)
        self._steps.at("before the driver's file")
        write_driver_file(self._file)
        self._steps.did(listens=address)
        order = {"driver_id": driver_id, "endpoint": address, "token": self._token.text()}
        self._stage = _HostedStage(self._channel, order, mailbox, self._steps)
        return address

    def _refused(self, mailbox: Mailbox, count: int) -> None:
        mailbox.connections_refused(count)
        self._steps.at("before refusing a stranger")

    def took_over(self) -> None:
        """See `Surroundings`; as on Spark."""
        self._steps.did(took_over=self._driver_id)
        self._steps.at("before former files go")
        forget_former_files(self._former_files)

    def connections(self) -> Connections:
        """See `Surroundings`."""
        assert self._endpoint is not None, "begun"
        return _SteppedConnections(self._endpoint, self._steps)

    def stage(self) -> Stage:
        """See `Surroundings`."""
        assert self._stage is not None, "begun"
        return self._stage

    def is_driver_alive(self, state: JobState) -> bool:
        """See `Surroundings`; as on Spark."""
        refuse_unless_gone(NamedDriver.of(state))
        return False

    def end(self) -> None:
        """See `Surroundings`."""
        try:
            if self._stage is not None:
                self._stage.end()
        finally:
            if self._endpoint is not None:
                self._endpoint.stop()
            if self._file is not None:
                end_driver_file(self._file)
