"""A job's tasks on a Spark session: one stage of long-lived tasks, a task for each subtask.

The stage is run through the DataFrame interface, not in barrier mode, because there one failure aborts
all tasks. Calls outside that interface (slots, killing one task) have a function each.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from coordlog.api.chain import Chain
from coordlog.errors import CoordlogError, EnvironmentSetupError, SessionLostError, SinkError
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
from coordlog.spark_integration.driver.slot_claims import (
    CLAIMING,
    SlotClaim,
    busy_slots,
    claimed_slots,
)
from coordlog.spark_integration.task.task import TaskChain, TaskWork, spark_function
from coordlog.spark_integration.task.worker_probe import WorkerProbe, use_own_interpreter
from coordlog.spark_integration.wire.certificate import Certificate
from coordlog.spark_integration.wire.token import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SparkStage",
    "check_slots",
    "claim_slots",
    "endpoint_host",
    "lost_session",
    "name_lost_session",
    "new_claim",
    "probe_of",
    "short_reason",
    "task_failures_max",
    "warn_of_many_tries",
]

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_END_GRACE_S: Final = 0.5
_FEW_FAILURES: Final = 100
_OWN_ERROR: Final = re.compile(r"coordlog\.[\w.]+Error: ")
"""Beginning of the last line of the traceback of a failed task: a task always raises an error of this package."""
_LOCAL: Final = re.compile(r"local(?:\[\s*(?:\*|\d+)\s*(?:,\s*(\d+)\s*)?\])?")


class _Run:
    """One submission of the stage."""

    def __init__(self, stage_run: int, tag: str) -> None:
        self.stage_run, self.tag = stage_run, tag
        self.ended = threading.Event()
        self.cancelled: str | None = None
        self.cannot_import = False
        """Whether workers cannot import the job: another run would fail too."""
        self.thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_reported = False

    def report_once(self, events: StageEvents, error: str | None) -> None:
        """Report the end of the run, at the first call only."""
        with self._lock:
            if self._is_reported:
                return
            self._is_reported = True
        events.stage_ended(self.stage_run, error)


class SparkStage:
    """Implements `Stage`. Call `end` last, also after an error.

    Args:
        spark: The session; call `check_slots` on it first.
        chain: Chain of the job; tasks receive its factories and payload types, not its coordinators.
        job_id: Id of the job.
        driver_id: Id of the driver.
        parallelism: Number of subtasks.
        endpoint: Address to which tasks connect.
        token: Token that tasks need for the connection.
        certificate: Certificate of the endpoint, or None if it is not encrypted.
        events: Receives the end of each stage run.
        lease_s: Seconds without a message of the driver after which a task ends.
        heartbeat_s: Seconds between two heartbeats of a task.
        registration_timeout_s: Longest wait of a task for the answer to its registration.
        call_timeout_s: Longest time of one call of the chain.
        payloads: Store of the job's large payloads.
        on_lost: Called instead of `events.stage_ended` if the Spark session has ended.
        on_import_failure: Called with the reason, instead of `events.stage_ended`, if workers cannot
            import the job.
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
        on_import_failure: Callable[[int, str], None] | None = None,
    ) -> None:
        self._on_lost, self._on_import_failure = on_lost, on_import_failure
        self._spark, self._parallelism, self._events = spark, parallelism, events
        self._job_id, self._driver_id = job_id, driver_id
        self._chain = TaskChain.of(chain)
        self._endpoint, self._token, self._certificate = endpoint, token, certificate
        self._lease_s, self._heartbeat_s = lease_s, heartbeat_s
        self._registration_timeout_s = registration_timeout_s
        self._call_timeout_s, self._payloads = call_timeout_s, payloads
        self._runs: dict[int, _Run] = {}
        self.probe: WorkerProbe | None = None
        """Probe for which the first run waits; set it before `submit` if one has begun, else the run begins it."""
        self.claim: SlotClaim | None = None
        """Claim of the slots of the runs, or None."""
        # A call into the JVM may never return, so a thread of its own makes them, in order.
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._caller = threading.Thread(target=self._call, name="coordlog-stage", daemon=True)
        self._caller.start()

    # --- Stage ------------------------------------------------------------------------------------
    def submit(self, stage_run: int) -> None:
        """See `Stage`."""
        run = _Run(stage_run, f"coordlog-{self._job_id}-{self._driver_id}-{stage_run}")
        self._runs[stage_run] = run
        if self.claim is not None:
            self.claim.tag = run.tag
        self._calls.put(lambda: self._start(run))

    def cancel(self, stage_run: int, reason: str) -> None:
        """See `Stage`."""
        run = self._runs.get(stage_run)
        if run is None or run.ended.is_set():
            return
        run.cancelled = run.cancelled or reason
        self._calls.put(lambda: self._interrupt(run))
        # The call into the JVM that cancels the run may never return.
        name = f"coordlog-stage-end-{stage_run}"
        threading.Thread(target=self._limit_end, args=(run,), name=name, daemon=True).start()

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """See `Stage`. Has no effect with Spark Connect; the attempt is also fenced by a message."""
        self._calls.put(lambda: _kill_task_attempt(self._spark, task_attempt_id, reason))

    def end(self) -> None:
        """End all runs and threads, within a bound. Tasks that are ending get half a second first."""
        for run in self._runs.values():
            if run.thread is not None:
                run.ended.wait(_END_GRACE_S)
            self.cancel(run.stage_run, "the driver ends")
        if self.probe is not None:
            self.probe.cancel()
        self._calls.put(None)
        self._caller.join(STAGE_END_TIMEOUT_S + _END_GRACE_S)
        for run in self._runs.values():
            if run.thread is not None:
                run.thread.join(_END_GRACE_S)
        running = [run for run in self._runs.values() if not run.ended.is_set()]
        if running:
            _log.warning("job=%s %d stage runs have not ended", self._job_id, len(running))

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
            run.report_once(self._events, run.cancelled)
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

    def _new_probe(self) -> WorkerProbe:
        return _probe_of(self._spark, self._chain, self._job_id)

    def _run(self, run: _Run, work: TaskWork) -> None:
        error: str | None = "the stage's thread ended"
        _log.info("job=%s stage_run=%d begins", self._job_id, run.stage_run)
        try:
            error = self._run_stage(run, work)
        finally:
            _log.info(
                "job=%s stage_run=%d ended: %s",
                self._job_id,
                run.stage_run,
                error or "without error",
            )
            run.ended.set()
            lost = None if error is None or run.cancelled else lost_session(self._spark)
            if lost is not None and self._on_lost is not None:
                self._on_lost(run.stage_run, _session_lost(lost))
            elif run.cannot_import and self._on_import_failure is not None and not run.cancelled:
                self._on_import_failure(run.stage_run, error or "")
            else:
                run.report_once(self._events, error)

    def _run_stage(self, run: _Run, work: TaskWork) -> str | None:
        """Run the stage to its end; returns the reason of its failure, or None."""
        spark = self._spark
        try:
            _name_jobs(spark, run.tag, f"coordlog: job {self._job_id}, stage run {run.stage_run}")
            if self.probe is None or self.probe.is_void:
                self.probe = self._new_probe()
            self.probe.check(None)  # no timeout: a run that takes too long to start is cancelled
            _run_tasks(spark, work, self._parallelism)
        except EnvironmentSetupError as unfit:
            run.cannot_import = True
            return run.cancelled or str(unfit)
        except Exception as error:  # noqa: BLE001, the port's edge: reported as a reason
            return run.cancelled or short_reason(error)
        return None

    def _interrupt(self, run: _Run) -> None:
        """Cancel repeatedly until the run has ended, because its jobs may not be submitted yet."""
        deadline = time.monotonic() + STAGE_END_TIMEOUT_S
        while not run.ended.is_set() and time.monotonic() < deadline:
            if self.probe is not None:
                self.probe.cancel()
            _cancel_jobs(self._spark, run.tag)
            run.ended.wait(_POLL_S)

    def _limit_end(self, run: _Run) -> None:
        """Report the end of a cancelled run that does not end within the time limit."""
        if not run.ended.wait(STAGE_END_TIMEOUT_S):
            run.report_once(
                self._events,
                f"{run.cancelled}; Spark has not ended the stage for {STAGE_END_TIMEOUT_S:g} s",
            )


# --- sessions -------------------------------------------------------------------------------------
def probe_of(spark: SparkSession, chain: Chain, job_id: str) -> WorkerProbe:
    """A probe of the session with the tasks of a job; it runs from now on, in the background.

    Raises:
        EnvironmentSetupError: PYSPARK_PYTHON is no program.
    """
    return _probe_of(spark, TaskChain.of(chain), job_id)


def _probe_of(spark: SparkSession, chain: TaskChain, job_id: str) -> WorkerProbe:
    use_own_interpreter(spark, is_local=is_local_session(spark))
    return WorkerProbe(spark, chain, f"job {job_id}")


def endpoint_host(spark: SparkSession) -> str:
    """Default host at which tasks reach the endpoint: the loopback address in local mode."""
    if _LOCAL.fullmatch(_master(spark)):
        return "127.0.0.1"
    return spark.conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"


def is_local_session(spark: SparkSession) -> bool:
    """Whether all tasks run on this machine, as this user."""
    return _LOCAL.fullmatch(_master(spark)) is not None


def new_claim(spark: SparkSession, parallelism: int, *, first_tag: str) -> SlotClaim:
    """A claim that is not taken yet, of a driver whose stage begins later.

    Args:
        spark: The session.
        parallelism: Number of subtasks.
        first_tag: Tag of its probe, whose task takes a slot and ends before the stage begins.
    """
    return SlotClaim(_context(spark), parallelism, first_tag=first_tag)


def claim_slots(spark: SparkSession, claim: SlotClaim) -> None:
    """Check the slots as `check_slots`, and take the claim.

    Raises:
        EnvironmentSetupError: As of `check_slots`.
    """
    deadline = time.monotonic() + SLOTS_TIMEOUT_S
    while True:
        with CLAIMING:
            if _has_slots(spark, claim.count, deadline, [claim.first_tag]):
                claim.take()
                return
        time.sleep(_POLL_S)


def check_slots(spark: SparkSession, parallelism: int) -> None:
    """Refuse a session with too few slots, because Spark would wait for more without an error.

    Waits, within a bound, for executors that are starting and for tasks that are ending. Slots that other jobs of this
    process have claimed are taken.

    Raises:
        EnvironmentSetupError: There are too few slots; the message has both numbers.
    """
    _warn_of_few_failures(spark)
    deadline = time.monotonic() + SLOTS_TIMEOUT_S
    while not _has_slots(spark, parallelism, deadline, ()):
        time.sleep(_POLL_S)


def _has_slots(
    spark: SparkSession, parallelism: int, deadline: float, first_tags: Sequence[str]
) -> bool:
    """Whether the session has enough free slots now; raises as `check_slots` if it may no longer be waited for."""
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        _check_dynamic_slots(spark, parallelism)
        return True  # Spark starts more executors once the stage needs them
    slots, context = _slots(spark), _context(spark)
    if slots is None or context is None:
        return True
    # Claims first: if Spark begins to count their tasks in between, these count twice. Else they might not count.
    claimed = claimed_slots(context)
    busy = min(slots, claimed + busy_slots(context, first_tags))
    if slots - busy >= parallelism:
        return True
    is_local = _LOCAL.fullmatch(_master(spark)) is not None
    if (is_local and slots < parallelism) or time.monotonic() > deadline:
        raise EnvironmentSetupError(
            f"too few slots: {parallelism} subtasks need one each, and this session "
            f"({_master(spark)}) has {slots}, of which {busy} are taken",
            f"use a session with more (in local mode `local[{parallelism + busy},1000]`), or a "
            f"parallelism of at most {max(slots - busy, 0)}",
        )
    return False


def _check_dynamic_slots(spark: SparkSession, parallelism: int) -> None:
    """Refuse bounds of dynamic allocation that are too low for all subtasks to run at once."""
    executors = spark.conf.get("spark.dynamicAllocation.maxExecutors", None)
    cores = spark.conf.get("spark.executor.cores", None)
    if executors is None or cores is None:
        return  # no bound, or each executor has all cores of its machine
    tasks_per_executor = int(cores) // int(spark.conf.get("spark.task.cpus", "1") or "1")
    slots = int(executors) * tasks_per_executor
    if slots < parallelism:
        raise EnvironmentSetupError(
            f"too few slots: {parallelism} subtasks need one each, and dynamic allocation allows at "
            f"most {slots}: {executors} executors (spark.dynamicAllocation.maxExecutors) of "
            f"{tasks_per_executor}",
            f"allow at least {-(-parallelism // max(tasks_per_executor, 1))} executors, or a parallelism of at "
            f"most {slots}",
        )


def _warn_of_few_failures(spark: SparkSession) -> None:
    """Warn of a low limit of task failures, which Spark counts over the job's whole life."""
    master, failures = _master(spark), task_failures_max(spark)
    is_local = _LOCAL.fullmatch(master) is not None
    advice = "the master local[N,1000]" if is_local else "spark.task.maxFailures=1000"
    if failures < _FEW_FAILURES:
        _log.warning(
            "with master %s Spark aborts the stage at failure %d of one subtask, counted over the "
            "job's whole life, and all subtasks begin again; use %s: the restart policy limits the "
            "failures of a subtask",
            *(master, failures, advice),
        )


def task_failures_max(spark: SparkSession) -> int:
    """Failures of a task before Spark ends its stage; in local mode the number is part of the master."""
    local = _LOCAL.fullmatch(_master(spark))
    if local is not None:
        return int(local[1] or 1)
    return int(spark.conf.get("spark.task.maxFailures", "4") or "4")


def warn_of_many_tries(spark: SparkSession) -> None:
    """Warn of a limit of task failures that is right for jobs and high for queries."""
    tries = task_failures_max(spark)
    if tries >= _FEW_FAILURES:
        _log.warning(
            "this session tries each task %d times, which is right for jobs alone: an error in a task "
            "may end a query only after all of them; make the session with query_session(…)",
            tries,
        )


def _run_tasks(spark: SparkSession, work: TaskWork, count: int) -> None:
    """Run the tasks: one row and one partition for each subtask, without a shuffle that could merge them."""
    spark.range(0, count, 1, count).mapInArrow(spark_function(work), "subtask long").collect()


def lost_session(spark: SparkSession) -> str | None:
    """Reason why this session can run no job any more; None if it can, or if that is unknown."""
    context = _context(spark)
    if context is None:
        return None
    try:
        # The context may be closed in this process only, or stopped in the JVM only.
        is_stopped = context._jsc is None or context._jsc.sc().isStopped()  # noqa: SLF001, as `_slots`
    except Exception as error:  # noqa: BLE001, errors of py4j and of sockets
        return f"its JVM does not respond any more ({type(error).__name__}: {error})"
    return "its context has been stopped" if is_stopped else None


@contextmanager
def name_lost_session(spark: SparkSession) -> Generator[None]:
    """Replace errors of Spark, and of sinks, by SessionLostError if the session's JVM or context has ended."""
    try:
        yield
    except Exception as error:
        # A leaf below SinkError has a reason of its own.
        is_other = isinstance(error, CoordlogError) and type(error) is not SinkError
        why = None if is_other else lost_session(spark)
        if why is None:
            raise
        raise _session_lost(why) from error


def _session_lost(why: str) -> SessionLostError:
    return SessionLostError(
        f"the job's Spark session has ended: {why}",
        "start the job again with a new session: it continues from its log",
    )


def _master(spark: SparkSession) -> str:
    return spark.conf.get("spark.master", "") or ""


def _context(spark: SparkSession) -> Any:  # noqa: ANN401, a SparkContext with its JVM inside
    """The session's context, or None with Spark Connect."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001, the type depends on the version
        return None


def _slots(spark: SparkSession) -> int | None:
    """Number of tasks that can run at once, with spark.task.cpus; None with Spark Connect.

    Spark uses the same call before a barrier stage.
    """
    context = _context(spark)
    if context is None:
        return None
    scala = context._jsc.sc()  # noqa: SLF001, there is no public way
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def _name_jobs(spark: SparkSession, tag: str, description: str) -> None:
    """Set tag (for cancelling) and description (for Spark's UI) of the jobs of this thread."""
    context = _context(spark)
    if context is None:
        spark.addTag(tag)
        return
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)
    context.setJobDescription(description)


def _cancel_jobs(spark: SparkSession, tag: str) -> None:
    """Cancel the jobs with this tag.

    `interruptTag` is used only with Spark Connect: elsewhere it finds no job of `collect` (pyspark 4.1.1).
    """
    context = _context(spark)
    if context is None:
        spark.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


def _kill_task_attempt(spark: SparkSession, task_attempt_id: int, reason: str) -> None:
    """Kill a task. Spark starts another in its place and does not count a failure."""
    context = _context(spark)
    if context is None:
        return
    is_interrupted = True
    is_killed = context._jsc.sc().killTaskAttempt(task_attempt_id, is_interrupted, reason)  # noqa: SLF001
    _log.info("task_attempt_id=%d kill=%s: %s", task_attempt_id, is_killed, reason)


def short_reason(error: BaseException) -> str:
    """Spark's error without stack traces: the task's own error if there is one, else the first useful line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own_errors = [line for line in lines if _OWN_ERROR.match(line)]
    java_errors = [line[2:] for line in lines if line.startswith(": ")]
    candidates = [*own_errors[-1:], *java_errors, *lines, type(error).__name__]
    return candidates[0][:REASON_CHARS_MAX]
