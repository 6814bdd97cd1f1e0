"""What blocks on a worker is named, ends the driver within a bound, and never keeps the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest

from coordlog.worker_threads import WorkerThreads, WorkTimeoutError

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


@pytest.mark.slow
def test_a_work_that_never_returns_does_not_keep_the_process() -> None:
    program = (
        "import threading\n"
        "from coordlog.worker_threads import WorkerThreads\n"
        "inside = threading.Event()\n"
        "def hang(): inside.set(); threading.Event().wait()\n"
        "workers = WorkerThreads(4, 'w')\n"
        "workers.submit(hang)\n"
        "inside.wait()\n"
        "workers.end()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
