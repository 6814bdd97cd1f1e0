"""A job's tasks on a Spark session: one stage of long-lived tasks, a task for each subtask.

Through the DataFrame interface, never in barrier mode: there one failure aborts all. What leaves
that interface (slots, killing one task) is in a function of its own each, below.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from coordlog.api.chain import Chain
from coordlog.errors import EnvironmentSetupError
from coordlog.limits import (
    CALL_TIMEOUT_S,
    HEARTBEAT_S,
    LEASE_S,
    REASON_CHARS_MAX,
    REGISTRATION_TIMEOUT_S,
    SLOTS_TIMEOUT_S,
    STAGE_END_TIMEOUT_S,
)
from coordlog.payloads.offload import NO_STORE, PayloadOptions
from coordlog.runtime.ports import StageEvents
from coordlog.spark_integration.task.task import TaskChain, TaskWork, spark_function
from coordlog.spark_integration.task.worker_probe import check_workers, use_own_interpreter
from coordlog.spark_integration.wire.certificate import Certificate
from coordlog.spark_integration.wire.token import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkStage", "check_slots", "endpoint_host", "short_reason", "task_failures_max"]

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_END_GRACE_S: Final = 0.5
_FAILURES_FEW: Final = 100
_RAISED: Final = re.compile(r"coordlog\.[\w.]+Error: ")
"""The last line of a Python traceback, where a task ended by an error of ours: all of them do."""
_LOCAL: Final = re.compile(r"local(?:\[\s*(?:\*|\d+)\s*(?:,\s*(\d+)\s*)?\])?")


class _Run:
    """One submission of the stage."""

    def __init__(self, stage_run: int, tag: str) -> None:
        self.stage_run, self.tag = stage_run, tag
        self.ended = threading.Event()
        self.cancelled: str | None = None
        self.is_unfit = False
        """Workers cannot load the job: no other run can."""
        self.thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_told = False

    def tell_once(self, events: StageEvents, error: str | None) -> None:
        """Say that it is over, unless that has been said."""
        with self._lock:
            if self._is_told:
                return
            self._is_told = True
        events.stage_ended(self.stage_run, error)


class SparkStage:
    """Implements `Stage`. `end` always, last.

    Args:
        spark: The session; its slots have been checked.
        chain: The job's; its factories and payload types travel, its coordinators do not.
        job_id: The job's.
        driver_id: The driver's.
        parallelism: How many subtasks.
        endpoint: Where tasks connect.
        token: By which they are let in.
        certificate: What the endpoint shows, where it is encrypted.
        events: Told of each stage run's end.
        lease_s: A task whose driver is silent for so long ends itself.
        heartbeat_s: How often a task tells that it lives.
        registration_timeout_s: How long a task waits for the answer to its registration.
        call_timeout_s: How long one call of the chain may take.
        payloads: Where the job keeps large payloads.
        on_lost: Told, in place of the stage run's end, that Spark itself has gone, so that no
            other run can follow.
        on_unfit: Told, in place of the stage run's end, that workers cannot load the job, and why.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        chain: Chain,
        job_id: str,
        driver_id: str,
        parallelism: int,
        endpoint: str,
        token: Token,
        events: StageEvents,
        certificate: Certificate | None = None,
        lease_s: float = LEASE_S,
        heartbeat_s: float = HEARTBEAT_S,
        registration_timeout_s: float = REGISTRATION_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
        payloads: PayloadOptions = NO_STORE,
        on_lost: Callable[[int, EnvironmentSetupError], None] | None = None,
        on_unfit: Callable[[int, str], None] | None = None,
    ) -> None:
        self._on_lost, self._on_unfit = on_lost, on_unfit
        self._is_loaded = False
        """A task has loaded the chain."""
        self._spark, self._parallelism, self._events = spark, parallelism, events
        self._job_id, self._driver_id = job_id, driver_id
        self._chain = TaskChain.of(chain)
        self._endpoint, self._token, self._certificate = endpoint, token, certificate
        self._lease_s, self._heartbeat_s = lease_s, heartbeat_s
        self._registration_timeout_s = registration_timeout_s
        self._call_timeout_s, self._payloads = call_timeout_s, payloads
        self._runs: dict[int, _Run] = {}
        # Calls into the JVM take milliseconds, or forever: one thread makes them, in order.
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._caller = threading.Thread(target=self._call, name="coordlog-stage", daemon=True)
        self._caller.start()

    # --- Stage ------------------------------------------------------------------------------------
    def submit(self, stage_run: int) -> None:
        """See `Stage`."""
        run = _Run(stage_run, f"coordlog-{self._job_id}-{self._driver_id}-{stage_run}")
        self._runs[stage_run] = run
        self._calls.put(lambda: self._start(run))

    def cancel(self, stage_run: int, reason: str) -> None:
        """See `Stage`."""
        run = self._runs.get(stage_run)
        if run is not None:
            run.cancelled = run.cancelled or reason
            self._calls.put(lambda: self._interrupt(run))

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """See `Stage`: the attempt is told too, which is all where Spark offers no more."""
        self._calls.put(lambda: _kill_task_attempt(self._spark, task_attempt_id, reason))

    def end(self) -> None:
        """End whatever runs, within a bound, and the threads. Tasks that are ending may do so."""
        for run in self._runs.values():
            if run.thread is not None:
                run.ended.wait(_END_GRACE_S)
            self.cancel(run.stage_run, "the driver ends")
        self._calls.put(None)
        self._caller.join(STAGE_END_TIMEOUT_S + _END_GRACE_S)
        for run in self._runs.values():
            if run.thread is not None:
                run.thread.join(_END_GRACE_S)
        left = [one for one in self._runs.values() if not one.ended.is_set()]
        if left:
            _log.warning("job=%s %d stage runs do not end", self._job_id, len(left))

    # --- the stage's threads ----------------------------------------------------------------------
    def _call(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            try:
                call()
            except Exception:  # noqa: BLE001, one call into Spark that fails must not end the others
                _log.exception("job=%s a call into Spark failed", self._job_id)

    def _start(self, run: _Run) -> None:
        if run.cancelled is not None:
            run.ended.set()
            run.tell_once(self._events, run.cancelled)
            return
        work = TaskWork(
            job_id=self._job_id,
            driver_id=self._driver_id,
            stage_run=run.stage_run,
            endpoint=self._endpoint,
            token=self._token,
            certificate=self._certificate,
            chain=self._chain,
            lease_s=self._lease_s,
            heartbeat_s=self._heartbeat_s,
            registration_timeout_s=self._registration_timeout_s,
            call_timeout_s=self._call_timeout_s,
            payloads=self._payloads,
        )
        run.thread = threading.Thread(
            target=lambda: self._run(run, work),
            name=f"coordlog-stage-{run.stage_run}",
            daemon=True,
        )
        run.thread.start()

    def _run(self, run: _Run, work: TaskWork) -> None:
        error: str | None = "the stage's thread ended"
        _log.info("job=%s stage_run=%d begins", self._job_id, run.stage_run)
        try:
            error = self._run_stage(run, work)
        finally:
            _log.info("job=%s stage_run=%d ended: %s", self._job_id, run.stage_run, error or "well")
            run.ended.set()
            lost = None if error is None or run.cancelled else _lost_session(self._spark)
            if lost is not None and self._on_lost is not None:
                self._on_lost(run.stage_run, _session_lost(lost))
            elif run.is_unfit and self._on_unfit is not None and not run.cancelled:
                self._on_unfit(run.stage_run, error or "")
            else:
                run.tell_once(self._events, error)

    def _run_stage(self, run: _Run, work: TaskWork) -> str | None:
        """Run the stage to its end; why it failed, if it did."""
        spark = self._spark
        try:
            use_own_interpreter(spark, is_local=is_local_session(spark))
            _name_jobs(spark, run.tag, f"coordlog: job {self._job_id}, stage run {run.stage_run}")
            if not self._is_loaded:
                check_workers(spark, self._chain, f"job {self._job_id}")
                self._is_loaded = True
            _run_tasks(spark, work, self._parallelism)
        except EnvironmentSetupError as unfit:
            run.is_unfit = True
            return run.cancelled or str(unfit)
        except Exception as error:  # noqa: BLE001, the port's edge: it goes on as a reason
            return run.cancelled or short_reason(error)
        return None

    def _interrupt(self, run: _Run) -> None:
        """Cancel until it has ended: what is not submitted yet cannot be cancelled yet."""
        deadline = time.monotonic() + STAGE_END_TIMEOUT_S
        while not run.ended.is_set():
            if time.monotonic() > deadline:
                run.tell_once(
                    self._events,
                    f"{run.cancelled}; Spark has not ended the stage for {STAGE_END_TIMEOUT_S:g} s",
                )
                return
            _cancel_jobs(self._spark, run.tag)
            run.ended.wait(_POLL_S)


# --- sessions -------------------------------------------------------------------------------------
def endpoint_host(spark: SparkSession) -> str:
    """Where tasks reach the endpoint unless the user says so: the loopback address in local mode."""
    if _LOCAL.fullmatch(_master(spark)):
        return "127.0.0.1"
    return spark.conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"


def is_local_session(spark: SparkSession) -> bool:
    """Whether all tasks run on this machine, as this user."""
    return _LOCAL.fullmatch(_master(spark)) is not None


def check_slots(spark: SparkSession, parallelism: int) -> None:
    """Refuse a session whose slots are too few, where Spark would start nothing and say nothing.

    Executors that have not come yet, and tasks that are ending, are waited for, within a bound.

    Raises:
        EnvironmentSetupError: With both numbers.
    """
    _warn_of_few_failures(spark)
    is_local = _LOCAL.fullmatch(_master(spark)) is not None
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        _check_dynamic_slots(spark, parallelism)
        return  # more executors come when the stage asks for them
    deadline = time.monotonic() + SLOTS_TIMEOUT_S
    while True:
        slots = _slots(spark)
        if slots is None:
            return
        busy = min(slots, _busy_slots(spark))
        if slots - busy >= parallelism:
            return
        is_final = is_local and slots < parallelism
        if is_final or time.monotonic() > deadline:
            raise EnvironmentSetupError(
                f"too few slots: {parallelism} subtasks need one each, and this session "
                f"({_master(spark)}) has {slots}, of which {busy} are taken",
                f"use a session with more (in local mode `local[{parallelism + busy},1000]`), or a "
                f"parallelism of at most {max(slots - busy, 0)}",
            )
        time.sleep(_POLL_S)


def _check_dynamic_slots(spark: SparkSession, parallelism: int) -> None:
    """Refuse bounds of dynamic allocation below which all subtasks can never run."""
    executors = spark.conf.get("spark.dynamicAllocation.maxExecutors", None)
    cores = spark.conf.get("spark.executor.cores", None)
    if executors is None or cores is None:
        return  # without a bound, or with as many cores as a machine has
    of_each = int(cores) // int(spark.conf.get("spark.task.cpus", "1") or "1")
    slots = int(executors) * of_each
    if slots < parallelism:
        raise EnvironmentSetupError(
            f"too few slots: {parallelism} subtasks need one each, and dynamic allocation gives at "
            f"most {slots}: {executors} executors (spark.dynamicAllocation.maxExecutors) of "
            f"{of_each}",
            f"allow at least {-(-parallelism // max(of_each, 1))} executors, or a parallelism of at "
            f"most {slots}",
        )


def _warn_of_few_failures(spark: SparkSession) -> None:
    """Spark counts a task's failures over the job's life, and aborts the stage at its own limit."""
    master, failures = _master(spark), task_failures_max(spark)
    is_local = _LOCAL.fullmatch(master) is not None
    advice = "the master local[N,1000]" if is_local else "spark.task.maxFailures=1000"
    if failures < _FAILURES_FEW:
        _log.warning(
            "with master %s Spark aborts the stage at failure %d of one subtask, counted over the "
            "job's whole life, and all subtasks begin again; use %s: how often a subtask may fail "
            "is the restart policy's to say",
            *(master, failures, advice),
        )


def task_failures_max(spark: SparkSession) -> int:
    """How often a task may fail before Spark ends its stage; in local mode the master has the number."""
    local = _LOCAL.fullmatch(_master(spark))
    if local is not None:
        return int(local[1] or 1)
    return int(spark.conf.get("spark.task.maxFailures", "4") or "4")


def _run_tasks(spark: SparkSession, work: TaskWork, count: int) -> None:
    """One row and one partition for each subtask, and no shuffle that could merge them."""
    spark.range(0, count, 1, count).mapInArrow(spark_function(work), "subtask long").collect()


def _lost_session(spark: SparkSession) -> str | None:
    """Why nothing can run on this session any more; None where it can, or nobody can tell."""
    context = _context(spark)
    if context is None:
        return None
    try:
        # In this process the context may be closed, and in the JVM stopped, each alone.
        is_stopped = context._jsc is None or context._jsc.sc().isStopped()  # noqa: SLF001, as `_slots`
    except Exception as error:  # noqa: BLE001, py4j's own, and whatever a socket raises
        return f"its JVM does not answer any more ({type(error).__name__}: {error})"
    return "its context has been stopped" if is_stopped else None


def _session_lost(why: str) -> EnvironmentSetupError:
    return EnvironmentSetupError(
        f"Spark has gone from under the job: {why}",
        "start the job again: it goes on from its last checkpoint",
    )


def _master(spark: SparkSession) -> str:
    return spark.conf.get("spark.master", "") or ""


def _context(spark: SparkSession) -> Any:  # noqa: ANN401, a SparkContext with its JVM inside
    """The session's context; None with Spark Connect, which offers none."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001, each version raises another
        return None


def _slots(spark: SparkSession) -> int | None:
    """How many tasks can run at once, spark.task.cpus included; None where that cannot be asked.

    Spark asks itself so before a barrier stage.
    """
    context = _context(spark)
    if context is None:
        return None
    scala = context._jsc.sc()  # noqa: SLF001, no other way to it
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def _busy_slots(spark: SparkSession) -> int:
    context = _context(spark)
    if context is None:
        return 0
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
    # Of an active stage each task that has not ended: one that waits comes before ours, and Spark
    # says a while after its start only that one runs.
    return sum(one.numTasks - one.numCompletedTasks for one in stages if one is not None)


def _name_jobs(spark: SparkSession, tag: str, description: str) -> None:
    """What the jobs of this thread are cancelled by, and what Spark's pages call them."""
    context = _context(spark)
    if context is None:
        spark.addTag(tag)
        return
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)
    context.setJobDescription(description)


def _cancel_jobs(spark: SparkSession, tag: str) -> None:
    """Cancel the jobs with this tag.

    Not by `interruptTag` where there is another way: outside Spark Connect it finds no job of
    `collect` (pyspark 4.1.1).
    """
    context = _context(spark)
    if context is None:
        spark.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


def _kill_task_attempt(spark: SparkSession, task_attempt_id: int, reason: str) -> None:
    """End a task; Spark starts another in its place and does not count it as a failure."""
    context = _context(spark)
    if context is None:
        return
    is_interrupted = True
    is_killed = context._jsc.sc().killTaskAttempt(task_attempt_id, is_interrupted, reason)  # noqa: SLF001
    _log.info("task_attempt_id=%d kill=%s: %s", task_attempt_id, is_killed, reason)


def short_reason(error: BaseException) -> str:
    """What Spark says, without stack traces: what a task raised, else the first line that tells."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    of_java = [line[2:] for line in lines if line.startswith(": ")]
    told = [*raised[-1:], *of_java, *lines, type(error).__name__]
    return told[0][:REASON_CHARS_MAX]
