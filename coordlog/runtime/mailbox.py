"""Threads of a driver: the mailbox, the log thread, workers and a watchdog.

Only the mailbox uses kernel state and coordinators. Only the log thread uses the appender. They communicate through
queues; neither waits for the other.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from coordlog.causes import UNFIT_WORKERS
from coordlog.errors import CoordlogError, LogError, UsageError
from coordlog.kernel.inputs import RequestArrived
from coordlog.limits import (
    CALLBACK_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    LOG_LOOK_S,
    WORK_SLOW_S,
    WORK_TIMEOUT_S,
    WORKER_COUNT,
)
from coordlog.log.appender import Appender
from coordlog.log.interface import UnstoredRecord
from coordlog.messages import UpMessage
from coordlog.payloads.offload import HeldPayload
from coordlog.projections.telemetry.metrics import Pulse
from coordlog.runtime.requests import Requests
from coordlog.runtime.runtime import Runtime

__all__ = [
    "CallbackTimeoutError",
    "LongWork",
    "MachineClock",
    "Mailbox",
    "PanicError",
    "WorkTimeoutError",
    "WorkerThreads",
]

_log = logging.getLogger(__name__)

_Group = tuple[Sequence[HeldPayload], list[UnstoredRecord]]
"""Payloads to store first, then the records to append."""

_IDLE_S = 0.5
_PASS_MAX = 256
"""Works that the mailbox does before the next append may begin."""
_PASS_S = 0.05
"""Time after which it begins no further work before the next append: slow callbacks would delay it and all timers."""
_WATCH_S = 1.0


class CallbackTimeoutError(UsageError):
    """A coordinator's callback or a query did not return in time (clause A5)."""

    def __init__(self, callback: str, timeout_s: float, stack: str) -> None:
        super().__init__(callback, timeout_s, stack)
        self.callback, self.timeout_s, self.stack = callback, timeout_s, stack

    def __str__(self) -> str:
        return (
            f"{self.callback} has not returned within {self.timeout_s:g} s; block in `call_async` "
            f"instead. It is at:\n{self.stack}"
        )


class PanicError(CoordlogError):
    """A thread of the driver ended with an error that is no `Exception`: a library's panic, or `sys.exit`.

    Raised as it is, a `SystemExit` would end the process as if the job had been stopped.
    """

    def __init__(self, thread: str, cause: BaseException) -> None:
        super().__init__(thread, cause)
        self.thread, self.cause = thread, cause

    def __str__(self) -> str:
        return (
            f"thread {self.thread} of the driver ended with {type(self.cause).__name__}: {self.cause} (no "
            "`Exception`): remove its cause, whose traceback is in the driver's output, and run the job "
            "again; it continues from its log"
        )


class MachineClock:
    """Clock of this machine."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class Mailbox:
    """Runs one `Runtime`. `start` once; `wait` on any thread; `close` always, last.

    Implements `Arrivals` and `StageEvents` for its surroundings, and `Workers` for the runtime.
    """

    def __init__(
        self,
        *,
        requests: Requests,
        callback_timeout_s: float = CALLBACK_TIMEOUT_S,
        work_timeout_s: float = WORK_TIMEOUT_S,
    ) -> None:
        self.requests = requests
        self._callback_timeout_s, self._work_timeout_s = callback_timeout_s, work_timeout_s
        self._slow_s = WORK_SLOW_S
        self._condition = threading.Condition()
        self._control: deque[Callable[[], None]] = deque()
        self._inputs: deque[Callable[[], None]] = deque()
        self._groups: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._workers = WorkerThreads(WORKER_COUNT, "coordlog-worker")
        self._calls: dict[int, WorkerThreads] = {}
        """Workers of each coordinator object: its calls may take long, and delay no others and no commits.

        Replaced, never changed: the watchdog reads it too."""
        self._threads: list[threading.Thread] = []
        self._done = threading.Event()
        self._is_ending = False
        self._is_waiting = False
        """Whether the mailbox waits, or is about to, and has to be woken for new work."""
        self._closers: list[threading.Thread] = []
        self.error: BaseException | None = None
        """Error that ended the driver; None if it was stopped, or the job has ended."""
        self._runtime: Runtime | None = None
        self._appender: Appender | None = None

    # --- Workers ------------------------------------------------------------------------------------------------------
    def run(self, work: Callable[[], None]) -> None:
        """Run `work` on a worker."""
        if not self._workers.submit(_logged(work)):
            _log.debug("work dropped: the driver ends")

    def run_call(self, generation: int, work: Callable[[], None]) -> None:
        """See `Workers`. On the mailbox."""
        if generation not in self._calls:
            self._calls = {
                **self._calls,
                generation: WorkerThreads(WORKER_COUNT, f"coordlog-call-{generation}"),
            }
        self._calls[generation].submit(_logged(work))

    def end_calls(self, generation: int) -> None:
        """See `Workers`. On the mailbox."""
        ended = self._calls.get(generation)
        if ended is not None:
            self._calls = {key: each for key, each in self._calls.items() if each is not ended}
            ended.end()

    def run_closing(self, work: Callable[[], None]) -> None:
        """See `Workers`. On a thread of its own: queued works of the workers are dropped at the driver's end."""
        thread = threading.Thread(target=_logged(work), name="coordlog-closer", daemon=True)
        with self._condition:
            self._closers = [closer for closer in self._closers if closer.is_alive()]
            thread.start()  # before `close` may join it
            self._closers.append(thread)

    def post(self, thunk: Callable[[], None]) -> None:
        """Run `thunk` on the mailbox, ahead of attempts' messages: acknowledgements, results, timers."""
        self._control.append(thunk)
        self._wake()

    # --- Arrivals and StageEvents -------------------------------------------------------------------------------------
    def arrived(self, connection_id: int, message: UpMessage) -> None:
        """See `Arrivals`."""
        self._inputs.append(partial(self._arrived, connection_id, message))
        self._wake()

    def _arrived(self, connection_id: int, message: UpMessage) -> None:
        assert self._runtime is not None, "started"
        self._runtime.arrived(connection_id, message)

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """See `Arrivals`."""
        self._offer(lambda runtime: runtime.connection_lost(connection_id, reason))

    def stage_ended(self, stage_run: int, error: str | None) -> None:
        """See `StageEvents`. Handled after all messages that attempts have sent before."""
        self._offer(lambda runtime: runtime.stage_ended(stage_run, error))

    def workers_unfit(self, stage_run: int, reason: str) -> None:
        """Fail the job at once, because its workers cannot load it, so no stage run can help. Any thread."""
        self._offer(lambda runtime: runtime.stage_ended(stage_run, reason, final=UNFIT_WORKERS))

    def session_lost(self, stage_run: int, error: CoordlogError) -> None:
        """End the driver, because no stage can run any more. After all messages of attempts so far; any thread.

        For a driver that is stopping already, it is the end of its stage.
        """

        def act(runtime: Runtime) -> None:
            if runtime.is_stopping:
                runtime.stage_ended(stage_run, str(error))
            else:
                self.end(error)

        self._offer(act)

    def connections_refused(self, count: int) -> None:
        """Set the number of refused connections so far. Any thread; nothing is queued."""
        if self._runtime is not None:
            self._runtime.refused_connections = count

    def _requested(self, request: RequestArrived) -> None:
        # After all messages of attempts so far, and delayed with them if the log is slow.
        self._offer(lambda runtime: runtime.handle(request))

    def _wake(self) -> None:
        """Wake the mailbox for queued work. Any thread; takes no lock while the mailbox is busy.

        No work is missed: the mailbox sets `_is_waiting` before it looks at the queues, and this reads it after the
        work was queued.
        """
        if self._is_waiting:
            with self._condition:
                self._condition.notify()

    def _offer(self, act: Callable[[Runtime], None]) -> None:
        def thunk() -> None:
            assert self._runtime is not None, "started"
            act(self._runtime)

        self._inputs.append(thunk)
        self._wake()

    # --- life ---------------------------------------------------------------------------------------------------------
    def start(self, runtime: Runtime, appender: Appender, first: Callable[[], None]) -> None:
        """Start the threads; the mailbox runs `first` before all else."""
        self._runtime, self._appender = runtime, appender
        self._control.appendleft(first)
        self.requests.begin(self._requested)
        for name, target in (
            ("coordlog-mailbox", self._run_mailbox),
            ("coordlog-log", self._run_log),
            ("coordlog-watchdog", self._run_watchdog),
        ):
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def is_started(self) -> bool:
        """Whether `start` has started a thread."""
        return bool(self._threads)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job, or of the driver by `error`. Returns whether it has come."""
        return self._done.wait(timeout_s)

    def end(self, error: BaseException | None = None) -> None:
        """End the driver. Any thread. An error after the end of the job is only logged: that end is in the log."""
        if error is not None and self.error is None:
            if not isinstance(error, Exception):
                error = _panic_of(error)
            if self._runtime is not None and self._runtime.outcome is not None:
                _log.warning("the driver ends without its last snapshot: %s", error)
            else:
                self.error = error
        self._done.set()
        with self._condition:
            self._condition.notify()

    def pulse(self) -> Pulse:
        """What waits in this driver at this moment. Any thread."""
        runtime = self._runtime
        messages = len(self._inputs) + len(self._control)
        now_us = time.time_ns() // 1000
        if runtime is None:
            return Pulse(now_us=now_us, mailbox_messages=messages)
        return Pulse(
            now_us=now_us,
            mailbox_messages=messages,
            unreleased_turns=len(runtime.turns),
            append_pending_s=runtime.turns.append_pending_s(),
        )

    def is_this_thread(self) -> bool:
        """Whether the caller runs on the mailbox, where a wait for the mailbox would never end."""
        return bool(self._threads) and self._threads[0] is threading.current_thread()

    def refuse_this_thread(self, call: str) -> None:
        """Refuse a call on the mailbox: it would wait for itself. On any other thread it does nothing.

        Raises:
            UsageError: Called on the mailbox.
        """
        if self.is_this_thread():
            raise UsageError(
                f"`{call}` was called on the mailbox, which would wait for itself: call it on another thread"
            )

    def close(self) -> None:
        """End the threads, within a time limit. Coordinators are closed on workers, with a short wait."""
        self.end()
        # Only those that have begun: the system may have had too few.
        threads = [thread for thread in self._threads if thread.ident is not None]
        for thread in threads[:1]:
            thread.join(CLOSE_TIMEOUT_S)
        self._end_callers()
        self._groups.put(None)
        for thread in threads[1:]:
            if thread is not threading.current_thread():
                thread.join(CLOSE_TIMEOUT_S)
        until_s = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._closers:
            thread.join(max(0.0, until_s - time.monotonic()))
        for workers in (self._workers, *self._calls.values()):
            workers.end()
        if self._appender is not None and not any(t.is_alive() for t in self._threads):
            self._appender.close()

    # --- threads ------------------------------------------------------------------------------------------------------
    def _run_mailbox(self) -> None:
        runtime = self._runtime
        assert runtime is not None, "started"
        watched_s = 0.0
        try:
            while not self._done.is_set():
                self._await_work(runtime)
                # All that has arrived is handled before the next append, which so has all of its records.
                until_s = time.monotonic() + _PASS_S
                for _ in range(_PASS_MAX):
                    thunk = self._next(runtime)
                    if thunk is None or self._done.is_set():
                        break
                    thunk()
                    self._end_if_over(runtime)
                    if time.monotonic() >= until_s:
                        break
                runtime.fire_timers()
                self._end_if_over(runtime)
                if time.monotonic() - watched_s > _WATCH_S:
                    watched_s = time.monotonic()
                    runtime.registrations.watch()
                append_due_s = runtime.turns.append_due_s
                if append_due_s is not None and append_due_s <= time.monotonic():
                    group = runtime.turns.take_group()
                    if group:
                        self._groups.put((runtime.turns.group_payloads(), group))
        except BaseException as error:  # noqa: BLE001, the mailbox's edge: an internal error ends the driver
            _log.exception("the mailbox ends")
            self.end(error)
        finally:
            runtime.host.close_all()
            self.end()
            self._end_callers()

    def _end_callers(self) -> None:
        """Answer all callers that wait for this driver: it is over."""
        self.requests.end()
        if self._runtime is not None:
            self._runtime.triggers.end()

    def _end_if_over(self, runtime: Runtime) -> None:
        """After the end of the job: take the last snapshot, once; the driver ends when the log has it."""
        if runtime.outcome is not None and not self._is_ending:
            self._is_ending = True
            runtime.take_last_snapshot(self.end)

    def _next(self, runtime: Runtime) -> Callable[[], None] | None:
        """The next work, or None. Only the mailbox takes works, so that it needs no lock."""
        if self._control:
            return self._control.popleft()
        if self._inputs and not runtime.turns.is_full:
            return self._inputs.popleft()
        return None

    def _await_work(self, runtime: Runtime) -> None:
        """Return once there is work, or a timer or an append is due, or after a moment."""
        with self._condition:
            self._is_waiting = True
            while not self._done.is_set():
                if self._control or (self._inputs and not runtime.turns.is_full):
                    break
                due = [
                    s for s in (runtime.next_timer_s(), runtime.turns.append_due_s) if s is not None
                ]
                wait_s = min(_IDLE_S, min(due) - time.monotonic()) if due else _IDLE_S
                if wait_s <= 0 or not self._condition.wait(wait_s):
                    break
            self._is_waiting = False

    def _run_log(self) -> None:
        appender, runtime = self._appender, self._runtime
        assert appender is not None, "started"
        assert runtime is not None, "started"
        while True:
            try:
                group = self._groups.get(timeout=LOG_LOOK_S)
            except queue.Empty:
                group = ([], [])
            if group is None:
                return
            payloads, records = group
            try:
                if not records:
                    appender.check_epoch()
                    continue
                runtime.payloads.keep(
                    payloads,
                    timeout_s=appender.log_timeout_s,
                    is_over=self._done.is_set,
                )
                offsets = appender.append(records)
            except (LogError, CoordlogError) as error:
                self.end(error)
                return
            except BaseException as error:  # noqa: BLE001, an internal error ends the driver, with its cause
                _log.exception("the log thread ends")
                self.end(error)
                return
            self.post(partial(runtime.acknowledged, offsets))

    def _run_watchdog(self) -> None:
        runtime = self._runtime
        assert runtime is not None, "started"
        mailbox = self._threads[0]
        period_s = min(_WATCH_S, self._callback_timeout_s / 4)
        last_number, called_s, looked_s = -1, 0.0, time.monotonic()
        while not self._done.wait(period_s):
            self._watch_workers()
            calling, number = runtime.calling
            # While the process is stopped or the machine sleeps no call runs: such time does not count.
            passed_s = min(time.monotonic() - looked_s, 2 * period_s)
            looked_s = time.monotonic()
            if calling is None or number != last_number:
                last_number, called_s = -1 if calling is None else number, 0.0
                continue
            called_s += passed_s
            if called_s > self._callback_timeout_s:
                frame = sys._current_frames().get(mailbox.ident or -1)  # noqa: SLF001, the only way
                stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
                self.end(CallbackTimeoutError(calling, self._callback_timeout_s, stack))
                return

    def _watch_workers(self) -> None:
        """Log works that have not returned for long; end the driver after the time limit."""
        pools = (self._workers, *self._calls.values())
        running = [work for pool in pools if (work := pool.longest()) is not None]
        longest = max(running, key=lambda work: work.since_s, default=None)
        if longest is None or longest.since_s < self._slow_s:
            self._slow_s = WORK_SLOW_S if longest is None else self._slow_s
            return
        if longest.since_s > self._work_timeout_s:
            self.end(WorkTimeoutError(longest, self._work_timeout_s))
            return
        self._slow_s = longest.since_s + WORK_SLOW_S
        _log.warning(
            "a listing, a commit or a `call_async` has not returned for %.0f s; after %.0f s the "
            "driver ends. It is at:\n%s",
            longest.since_s,
            self._work_timeout_s,
            longest.stack,
        )


def _panic_of(cause: BaseException) -> PanicError:
    error = PanicError(threading.current_thread().name, cause)
    error.__cause__ = cause
    return error


def _logged(work: Callable[[], None]) -> Callable[[], None]:
    """`work`, with unexpected errors logged."""

    def run() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001, its owner reports by posting; the thread has other works to run
            _log.exception("a worker's task raised")

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class LongWork:
    """A work that has not returned."""

    thread: str
    since_s: float
    """Seconds that it has taken so far."""
    stack: str
    """Present stack of its thread."""


class WorkTimeoutError(UsageError):
    """A work of a worker did not return: a listing, a commit, a `call_async`."""

    def __init__(self, work: LongWork, timeout_s: float) -> None:
        super().__init__(work, timeout_s)
        self.work, self.timeout_s = work, timeout_s

    def __str__(self) -> str:
        return (
            f"a listing, a commit or a `call_async` on {self.work.thread} has not returned within "
            f"{self.timeout_s:g} s: check that the service behind it responds, and run the job again; it "
            f"continues from its log. It is at:\n{self.work.stack}"
        )


class WorkerThreads:
    """A fixed number of threads that run works in the order of `submit`. Any thread.

    Daemons, unlike those of `concurrent.futures`: a work that never returns (a hanging file system) must not prevent
    the end of the process.

    Args:
        count: Maximum number of threads.
        name: Beginning of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._since: dict[int, float] = {}
        self._unreturned = 0
        """Number of works that are queued or running: more threads than that would be idle."""
        self._is_ended = False

    def submit(self, work: Callable[[], None]) -> bool:
        """Queue `work`, which raises nothing. Returns False if the threads are ending."""
        with self._lock:
            if self._is_ended:
                return False
            self._unreturned += 1
            self._works.put(work)
            if len(self._threads) < min(self._unreturned, self._count):
                thread = threading.Thread(
                    target=self._run, name=f"{self._name}_{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        return True

    def longest(self) -> LongWork | None:
        """Work that has been running for longest, or None."""
        with self._lock:
            running = [
                (since, thread)
                for thread in self._threads
                if (since := self._at(thread)) is not None
            ]
        if not running:
            return None
        since, thread = min(running, key=lambda entry: entry[0])
        frame = sys._current_frames().get(thread.ident or -1)  # noqa: SLF001, the only way
        return LongWork(
            thread=thread.name,
            since_s=time.monotonic() - since,
            stack="".join(traceback.format_stack(frame)) if frame is not None else "",
        )

    def end(self) -> None:
        """Begin no further work; running works are not waited for."""
        with self._lock:
            self._is_ended = True
            threads: Sequence[threading.Thread] = tuple(self._threads)
        while True:
            try:
                self._works.get_nowait()
            except queue.Empty:
                break
        for _ in threads:
            self._works.put(None)

    def _at(self, thread: threading.Thread) -> float | None:
        return self._since.get(thread.ident or -1)

    def _run(self) -> None:
        own = threading.get_ident()
        while True:
            work = self._works.get()
            with self._lock:
                if work is None or self._is_ended:
                    return
                self._since[own] = time.monotonic()
            try:
                work()
            finally:
                with self._lock:
                    self._since.pop(own, None)
                    self._unreturned -= 1
