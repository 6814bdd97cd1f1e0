"""A job's Spark stage: one long-lived task for each subtask, through the DataFrame API (DESIGN.md, section 11)."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coordlog.chain import Chain
from coordlog.errors import EnvironmentSetupError
from coordlog.limits import REASON_CHARS_MAX, STAGE_END_TIMEOUT_S
from coordlog.outside import StageEvents

from .task import TaskChain, TaskWork, spark_function
from .token import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkStage", "check_slots", "endpoint_host"]

_log = logging.getLogger(__name__)

_RETRYING_LOCAL = re.compile(r"local\[[^,\]]+,\s*\d+\]")


def _context(spark: SparkSession) -> Any | None:  # noqa: ANN401, pyspark's, which a Connect session lacks
    """The session's SparkContext; None where the session is a Spark Connect client."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001, pyspark raises several types here
        return None


def check_slots(spark: SparkSession, parallelism: int) -> None:
    """Refuse a session whose tasks cannot all run at once: Spark would wait in silence.

    Raises:
        EnvironmentSetupError: With both numbers.
    """
    context = _context(spark)
    if context is None:
        return
    master = str(context.master)
    if not master.startswith("local[") and master != "local":
        return
    slots = 1 if master == "local" else int(context.defaultParallelism)
    tracker = context.statusTracker()
    busy = 0
    for stage_id in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage_id)
        busy += 0 if info is None else int(info.numActiveTasks)
    if slots - busy < parallelism:
        raise EnvironmentSetupError(
            f"the job has {parallelism} subtasks and the Spark session ({master}) {slots} slots, of "
            f"which {busy} are busy",
            f"start the session with local[{parallelism + busy},1000], or use parallelism "
            f"{max(slots - busy, 1)}",
        )
    if not _RETRYING_LOCAL.match(master):
        _log.warning(
            "the Spark session's master is %s, which retries no task: the first failure of a task "
            "restarts all of them; local[%d,1000] restarts one",
            master,
            slots,
        )


def endpoint_host(spark: SparkSession) -> str:
    """Where tasks reach the driver: loopback on a local master, else Spark's own host for its driver."""
    context = _context(spark)
    if context is None or str(context.master).startswith("local"):
        return "127.0.0.1"
    return str(spark.conf.get("spark.driver.host", "127.0.0.1"))


class SparkStage:
    """Implements `Stage`, and tells `StageEvents`. `end` always, last.

    Raises nothing from its methods: what goes wrong in Spark is the error that `stage_ended` is told.
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
    ) -> None:
        self._spark, self._chain = spark, TaskChain.of(chain)
        self._job_id, self._driver_id, self._parallelism = job_id, driver_id, parallelism
        self._endpoint, self._token, self._events = endpoint, token, events
        self._lock = threading.Lock()
        self._running: dict[int, threading.Thread] = {}
        self._cancelled: dict[int, str] = {}

    # --- Stage --------------------------------------------------------------------------------------------------------
    def submit(self, stage_run: int) -> None:
        """See `Stage`."""
        from pyspark import InheritableThread  # noqa: PLC0415, heavy, and only here

        thread = InheritableThread(target=self._run, args=(stage_run,))
        thread.name = f"coordlog-stage-{stage_run}"
        thread.daemon = True
        with self._lock:
            self._running[stage_run] = thread
        thread.start()

    def cancel(self, stage_run: int, reason: str) -> None:
        """See `Stage`."""
        with self._lock:
            if stage_run not in self._running:
                return
            self._cancelled[stage_run] = reason
        self._aside(lambda: self._cancel(stage_run, reason))

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """See `Stage`. Without a SparkContext the attempt has been told over its connection, and no more."""
        context = _context(self._spark)
        if context is not None:
            self._aside(lambda: _kill_task(context, task_attempt_id, reason))

    def end(self) -> None:
        """Wait for what runs to end by itself, for a moment; then cancel it, and wait within a bound."""
        self._join(2.0)
        with self._lock:
            left = sorted(self._running)
        for stage_run in left:
            self._cancelled.setdefault(stage_run, "the driver ends")
            self._cancel(stage_run, "the driver ends")
        if not self._join(STAGE_END_TIMEOUT_S):
            _log.warning(
                "job=%s its Spark stage has not ended within %g s", self._job_id, STAGE_END_TIMEOUT_S
            )

    # --- threads ------------------------------------------------------------------------------------------------------
    def _join(self, timeout_s: float) -> bool:
        with self._lock:
            threads = list(self._running.values())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)
        return not any(thread.is_alive() for thread in threads)

    def _group(self, stage_run: int) -> str:
        return f"coordlog-{self._job_id}-{self._driver_id}-{stage_run}"

    def _run(self, stage_run: int) -> None:
        error: str | None = None
        try:
            self._collect(stage_run)
        except BaseException as raised:  # noqa: BLE001, whatever Spark raises is the stage's end
            error = f"{type(raised).__name__}: {raised}"[:REASON_CHARS_MAX]
        with self._lock:
            reason = self._cancelled.get(stage_run)
            del self._running[stage_run]
        if reason is not None:
            error = f"cancelled: {reason}"
        self._events.stage_ended(stage_run, error)

    def _collect(self, stage_run: int) -> None:
        context = _context(self._spark)
        group = self._group(stage_run)
        if context is None:
            self._spark.addTag(group)
        else:
            context.setJobGroup(
                group, f"coordlog job {self._job_id}, stage run {stage_run}", interruptOnCancel=True
            )
            if str(context.master).startswith("local"):
                context.pythonExec = sys.executable
        work = TaskWork(
            job_id=self._job_id,
            driver_id=self._driver_id,
            stage_run=stage_run,
            endpoint=self._endpoint,
            token=self._token,
            chain=self._chain,
        )
        subtasks = self._spark.range(0, self._parallelism, 1, self._parallelism)
        subtasks.mapInArrow(spark_function(work), "subtask long").collect()

    def _cancel(self, stage_run: int, reason: str) -> None:
        _log.info("job=%s cancels stage run %d: %s", self._job_id, stage_run, reason)
        group = self._group(stage_run)
        context = _context(self._spark)
        try:
            if context is None:
                self._spark.interruptTag(group)
            else:
                context.cancelJobGroup(group)
        except Exception as error:  # noqa: BLE001, a JVM that is gone has ended the stage itself
            _log.warning("job=%s cancelling stage run %d: %s", self._job_id, stage_run, error)

    def _aside(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, name="coordlog-stage-call", daemon=True).start()


def _kill_task(context: Any, task_attempt_id: int, reason: str) -> None:  # noqa: ANN401, see `_context`
    """The one use of Spark's private interface: kill one attempt without counting it as a failure."""
    try:
        context._jsc.sc().killTaskAttempt(task_attempt_id, True, reason[:200])  # noqa: FBT003, SLF001
    except Exception as error:  # noqa: BLE001, best effort: the attempt has been told too
        _log.info("killing task %d: %s", task_attempt_id, error)
