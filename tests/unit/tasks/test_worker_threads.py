"""What blocks on a worker is named, ends the driver within a bound, and never keeps the process."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordlog.limits import WORKER_COUNT
from coordlog.runtime.mailbox import Mailbox, WorkerThreads, WorkTimeoutError
from coordlog.runtime.requests import Requests
from coordlog.schemas.payload import PayloadTypes

WAIT_S = 10.0


def test_works_run_as_many_at_once_as_there_are_threads_and_each_once() -> None:
    workers = WorkerThreads(2, "w")
    inside, both, done = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)
    ran: list[int] = []

    def work(number: int) -> None:
        inside.release()
        assert both.wait(WAIT_S)
        ran.append(number)
        done.release()

    for number in range(5):
        assert workers.submit(partial(work, number))
    for _ in range(2):
        assert inside.acquire(timeout=WAIT_S)
    assert not inside.acquire(blocking=False), "two threads, two works at once"
    both.set()
    for _ in range(5):
        assert done.acquire(timeout=WAIT_S)
    assert sorted(ran) == [0, 1, 2, 3, 4]
    workers.end()
    assert not workers.submit(lambda: None)


def test_the_work_that_has_run_for_longest_is_told_with_its_stack() -> None:
    workers = WorkerThreads(2, "w")
    go, inside = threading.Event(), threading.Event()

    def hang_here() -> None:
        inside.set()
        go.wait(WAIT_S)

    assert workers.longest() is None
    workers.submit(hang_here)
    assert inside.wait(WAIT_S)
    longest = workers.longest()
    assert longest is not None
    assert longest.thread == "w_0"
    assert "hang_here" in longest.stack
    assert "hang_here" in str(WorkTimeoutError(longest, 5.0))
    assert "within 5 s" in str(WorkTimeoutError(longest, 5.0))
    go.set()


def test_what_waits_when_the_threads_end_is_never_begun() -> None:
    workers = WorkerThreads(1, "w")
    go, inside = threading.Event(), threading.Event()
    ran: list[str] = []

    def first() -> None:
        inside.set()
        go.wait(WAIT_S)
        ran.append("first")

    workers.submit(first)
    assert inside.wait(WAIT_S)
    workers.submit(lambda: ran.append("second"))
    workers.end()
    go.set()
    for thread in workers._threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert ran == ["first"]


def test_a_work_does_not_wait_for_a_thread_that_has_just_taken_another_one() -> None:
    taken, go, ran = threading.Event(), threading.Event(), threading.Event()

    works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def get() -> Callable[[], None] | None:
        """The first to take a work stands still before anybody can see that it has it."""
        work = works.get()
        if not taken.is_set():
            taken.set()
            go.wait(WAIT_S)
        return work

    slow_to_say = SimpleNamespace(
        get=get, put=works.put, qsize=works.qsize, get_nowait=works.get_nowait
    )
    workers = WorkerThreads(2, "w")
    workers._works = cast("Any", slow_to_say)
    workers.submit(lambda: None)
    assert taken.wait(WAIT_S)
    workers.submit(ran.set)
    assert len(workers._threads) == 2
    assert ran.wait(WAIT_S)
    go.set()
    workers.end()


def test_a_work_that_panics_leaves_the_other_works_their_thread() -> None:
    mailbox = Mailbox(requests=Requests(PayloadTypes(())))
    ran = threading.Event()

    def panic() -> None:
        raise SystemExit  # no subclass of Exception, like the panic of a library in Rust

    for _ in range(WORKER_COUNT):
        mailbox.run(panic)
    mailbox.run(ran.set)

    assert ran.wait(WAIT_S)
    mailbox.close()


def test_no_thread_is_started_while_one_is_free() -> None:
    workers = WorkerThreads(4, "w")
    for _ in range(3):
        done = threading.Event()
        workers.submit(done.set)
        assert done.wait(WAIT_S)
        while workers.longest() is not None:  # it has returned, and its thread is yet to say so
            pass
    assert len(workers._threads) == 1
    workers.end()


@pytest.mark.slow
def test_a_work_that_never_returns_does_not_keep_the_process() -> None:
    program = (
        "import threading\n"
        "from coordlog.runtime.mailbox import WorkerThreads\n"
        "inside = threading.Event()\n"
        "def hang(): inside.set(); threading.Event().wait()\n"
        "workers = WorkerThreads(4, 'w')\n"
        "workers.submit(hang)\n"
        "inside.wait()\n"
        "workers.end()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
