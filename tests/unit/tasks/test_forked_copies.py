"""A fork in a user's code whose copy returns: the copy ends at once, and only the original goes on."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from coordlog.log.local.fork_guard import COPY_STATUS
from coordlog.messages import Complete
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.testing.driven_job import HandDrivenJob
from fakes.attempt_fakes import END, World, polled, runner_of
from fakes.kernel_fakes import NotingProvider, Up, chain_of

UNEXPECTED = 71
"""Exit status of a copy that has returned into the test."""


class Forking:
    """Forks at its first call; the copy returns, or raises."""

    def __init__(self, error: BaseException | None) -> None:
        self.error, self.original, self.copy = error, os.getpid(), -1

    def __call__(self, *_: object) -> None:
        if self.copy == -1:
            self.copy = os.fork()
        if os.getpid() != self.original and self.error is not None:
            raise self.error

    def run(self, work: Callable[[], object]) -> int:
        """Run `work`, in which this is called. Returns the exit status of the copy."""
        try:
            work()
        finally:
            if os.getpid() != self.original:
                os._exit(UNEXPECTED)
        _, status = os.waitpid(self.copy, 0)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("error", [None, SystemExit(0)], ids=["returns", "raises"])
@pytest.mark.parametrize("place", ["source.poll", "map.process", "sink.process"])
def test_a_copy_of_a_task_s_process_ends_with_the_call(
    place: str, error: BaseException | None, capfd: pytest.CaptureFixture[str]
) -> None:
    forking, world = Forking(error), World()
    world.polls, world.doing = [polled(1), END], {place: forking}

    runner = runner_of(world)

    def work() -> None:
        runner.open()
        runner.step()
        runner.step()

    assert forking.run(work) == COPY_STATUS
    runner.close()

    assert world.got(Complete), "the original goes on"
    assert f"the copy {forking.copy} of process {os.getpid()}" in capfd.readouterr().err


@pytest.mark.parametrize("error", [None, SystemExit(0)], ids=["returns", "raises"])
def test_a_copy_of_the_driver_s_process_ends_with_the_callback(
    error: BaseException | None,
) -> None:
    forking, provider = Forking(error), NotingProvider()
    provider.on["event"] = forking
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(ack_timeout_s=1e9))
    attempt = job.register(0)

    assert forking.run(lambda: attempt.send("source", Up(n=1))) == COPY_STATUS
    assert provider.said("event"), "the original goes on"
