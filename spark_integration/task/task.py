"""The function of a Spark task: one execution attempt of a job's chain, on the task's main thread."""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import CoordinatorContext, CoordinatorProvider, OperatorCoordinator
from coordlog.errors import AttemptError, CoordlogError, FencedAttemptError
from coordlog.limits import CALL_TIMEOUT_S, HEARTBEAT_S, LEASE_S, REGISTRATION_TIMEOUT_S
from coordlog.messages import Accepted, AlreadyFinished, DownMessage, Fenced, Refused, Register
from coordlog.payloads.offload import NO_STORE, PayloadOptions
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.task.driver_connection import DriverConnection
from coordlog.spark_integration.task.worker_archives import keep_archives
from coordlog.spark_integration.wire.certificate import Certificate
from coordlog.spark_integration.wire.token import Token
from coordlog.task.attempt import AttemptRunner
from coordlog.task.call_watch import MainThread, watched_calls

__all__ = ["TaskChain", "TaskIds", "TaskWork", "run_task", "spark_function"]

_LOOK_S: Final = 0.25
_ERROR_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLink:
    """One link of a chain without its coordinator, which stays on the driver."""

    operator_id: str
    version: int
    create: Callable[[], Any]
    """Creates the reader of the first link, or the operator of any other."""
    is_coordinated: bool
    has_sink: bool
    payload_types: tuple[type[Payload], ...]
    keeps_state_across_splits: bool
    groups_splits: bool
    merge_states: Callable[[Sequence[bytes]], bytes] | None


class _Elsewhere(CoordinatorProvider):
    """Placeholder of a provider that has stayed on the driver."""

    def __init__(self, link: TaskLink) -> None:
        self.operator_id, self.payload_types = link.operator_id, link.payload_types
        self.sink = self if link.has_sink else None

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """Never called: there are no coordinators in a task."""
        raise AssertionError(f"the coordinator of {self.operator_id!r} is on the driver")

    def settle(self, intent: Payload) -> Payload | None:
        """Never called: see `create`."""
        raise AssertionError(f"the sink of {self.operator_id!r} is on the driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChain:
    """A chain as sent to tasks: factories and payload types, without coordinators."""

    links: tuple[TaskLink, ...]

    @classmethod
    def of(cls, chain: Chain) -> TaskChain:
        """The part of `chain` that tasks need."""
        links: list[TaskLink] = []
        for spec in chain.links:
            own = () if isinstance(spec, SourceSpec) else tuple(spec.payload_types)
            provided = () if spec.coordinator is None else spec.coordinator.payload_types
            links.append(
                TaskLink(
                    operator_id=spec.operator_id,
                    version=spec.version,
                    create=(
                        spec.create_reader if isinstance(spec, SourceSpec) else spec.create_operator
                    ),
                    is_coordinated=spec.coordinator is not None,
                    has_sink=spec.coordinator is not None and spec.coordinator.sink is not None,
                    payload_types=(*own, *provided),
                    keeps_state_across_splits=spec.keeps_state_across_splits,
                    groups_splits=spec.groups_splits,
                    merge_states=spec.merge_states,
                )
            )
        return cls(links=tuple(links))

    def chain(self) -> Chain:
        """The chain for an attempt. Created in the task, so that its classes are those of the task's process."""
        first, *rest = self.links
        source = SourceSpec(
            operator_id=first.operator_id,
            version=first.version,
            create_reader=first.create,
            coordinator=_Elsewhere(first),
            keeps_state_across_splits=first.keeps_state_across_splits,
            groups_splits=first.groups_splits,
            merge_states=first.merge_states,
        )
        operators = [
            OperatorSpec(
                operator_id=link.operator_id,
                version=link.version,
                create_operator=link.create,
                coordinator=_Elsewhere(link) if link.is_coordinated else None,
                payload_types=link.payload_types,
                keeps_state_across_splits=link.keeps_state_across_splits,
                groups_splits=link.groups_splits,
                merge_states=link.merge_states,
            )
            for link in rest
        ]
        return Chain(source=source, operators=operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """Content of a task's closure. Its `repr` does not show the token."""

    job_id: str
    driver_id: str
    stage_run: int
    endpoint: str
    token: Token
    chain: TaskChain
    certificate: Certificate | None = None
    """Certificate of the endpoint, or None if it is not encrypted."""
    lease_s: float = LEASE_S
    heartbeat_s: float = HEARTBEAT_S
    registration_timeout_s: float = REGISTRATION_TIMEOUT_S
    call_timeout_s: float = CALL_TIMEOUT_S
    payloads: PayloadOptions = NO_STORE


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIds:
    """Spark's ids of a task. Read once, at its start: later the process may run another task."""

    subtask: int
    task_attempt_id: int
    spark_attempt_number: int


def spark_function(
    work: TaskWork,
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """The function for `mapInArrow`: its input is one row, the subtask's index; it returns no rows."""

    def run_subtask(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        run_task(work, _task_ids(batches))
        yield from ()

    return run_subtask


def run_task(work: TaskWork, ids: TaskIds) -> None:
    """Register and run the attempt; returns if the subtask has finished, else raises.

    Raises:
        CoordlogError: The task has failed, so that Spark starts another; in one sentence, because
            the driver has the traceback.
    """
    keep_archives()
    chain = work.chain.chain()
    connection = DriverConnection(
        endpoint=work.endpoint,
        token=work.token,
        certificate=work.certificate,
        lease_s=work.lease_s,
        heartbeat_s=work.heartbeat_s,
    )
    connection.subtask = ids.subtask
    try:
        connection.open()
        answer = _register(connection, work, ids)
        if not isinstance(answer, Accepted):
            return
        connection.attempt_number = answer.attempt_number
        runner = AttemptRunner(
            chain,
            answer,
            job_id=work.job_id,
            subtask=ids.subtask,
            outbox=connection.send,
            why_over=connection.why_over,
            payloads=work.payloads,
            flush=connection.flush,
        )
        main_thread = MainThread(lambda: runner.progress, work.call_timeout_s)
        connection.is_moving = main_thread.is_moving
        with watched_calls(runner, work.call_timeout_s):
            runner.run(connection.inbox)
    except CoordlogError as error:
        raise error.with_traceback(None) from None
    except Exception as error:  # noqa: BLE001, raised on, in one sentence
        message = f"{type(error).__name__}: {error}"
        raise AttemptError(
            f"attempt {connection.attempt_number} of subtask {ids.subtask} failed with "
            f"{message[:_ERROR_CHARS_MAX]}; its traceback is in the job's history"
        ) from None
    finally:
        connection.close()


def _register(
    connection: DriverConnection, work: TaskWork, ids: TaskIds
) -> Accepted | AlreadyFinished | Fenced:
    """Register as an attempt and return the answer, which the driver may delay."""
    connection.send(
        Register(
            driver_id=work.driver_id,
            subtask=ids.subtask,
            stage_run=work.stage_run,
            task_attempt_id=ids.task_attempt_id,
            spark_attempt_number=ids.spark_attempt_number,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
    )
    answer = _answer(connection, work, ids)
    if isinstance(answer, Refused):
        raise AttemptError(
            f"the driver assigns task {ids.task_attempt_id} no attempt of subtask {ids.subtask}: "
            f"{answer.reason}"
        )
    if isinstance(answer, Fenced) and not answer.is_finished:
        raise FencedAttemptError(ids.subtask, -1, answer.reason)
    assert isinstance(answer, (Accepted, AlreadyFinished, Fenced)), f"{answer} is no answer"
    return answer


def _answer(connection: DriverConnection, work: TaskWork, ids: TaskIds) -> DownMessage:
    deadline = time.monotonic() + work.registration_timeout_s
    while True:
        # Read before the inbox: messages from before the loss of the connection are in the inbox by then.
        reason = connection.why_over()
        try:
            return connection.inbox.get(timeout=_LOOK_S)
        except queue.Empty:
            if reason is None and time.monotonic() > deadline:
                reason = (
                    f"its driver has not answered its registration for "
                    f"{work.registration_timeout_s:g} s"
                )
            if reason is not None:
                raise FencedAttemptError(ids.subtask, -1, reason) from None


def _task_ids(batches: Iterable[pa.RecordBatch]) -> TaskIds:
    """Ids of this task; the subtask's index is the single row of the input, not Spark's partition."""
    # On the driver pyspark's worker-side module is not needed, and importing it is slow.
    from pyspark import TaskContext  # noqa: PLC0415

    rows = [row for batch in batches for row in batch.column(0).to_pylist()]
    if len(rows) != 1:
        raise AttemptError(
            f"a task received the subtasks {rows}; it must be one each: does a setting of this "
            "session merge or split the partitions of a range?"
        )
    context = TaskContext.get()
    assert context is not None, "inside a Spark task"
    return TaskIds(
        subtask=int(rows[0]),
        task_attempt_id=context.taskAttemptId(),
        spark_attempt_number=context.attemptNumber(),
    )
