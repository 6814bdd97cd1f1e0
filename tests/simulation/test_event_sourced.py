"""A user's event-sourced coordinator through failures, rollbacks and resumes at random: exactly once, both ways."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from coordlog.kernel.builder import KernelConfig
from coordlog.testing.driven_job import HandDrivenJob
from jobs.quota import User, quota_chain, quota_of

SUBTASKS, NUMBERS, RUNS = 3, 8, 30
_STEPS_MAX = 2_000


class World:
    """A job, its subtasks, and the chance that drives both."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.overlap = chance.random() < 0.5
        self.job = self._driver(None, None)
        self.users: dict[int, User] = {}
        self.restored: set[str] = set()

    def _driver(self, old: HandDrivenJob | None, restore: str | None) -> HandDrivenJob:
        def patient(config: KernelConfig) -> KernelConfig:
            # No backoff: time would pass in it, and acks that nobody gives would time out.
            return replace(
                config,
                restarts_max=10_000,
                restart_backoff_s=0.0,
                is_overlap_allowed=self.overlap,
            )

        return HandDrivenJob(
            quota_chain(),
            parallelism=SUBTASKS,
            log=None if old is None else old.log,
            configure=patient,
            restore=restore,
        )

    def register(self, subtask: int) -> None:
        """A newer attempt where there is one already."""
        self.users[subtask] = User.of(self.job.register(subtask))

    def crash(self) -> None:
        """Another driver takes over."""
        self.job.crash()
        self.users.clear()
        restore = self.chance.choice(["rollback", "resume"])
        self.job = self._driver(self.job, restore)
        self.restored.add(self.job.mode)

    def step(self) -> None:
        """One thing that may happen."""
        subtask = self.chance.randrange(SUBTASKS)
        user = self.users.get(subtask)
        what = self.chance.random()
        if what < 0.01:
            self.crash()
        elif what < 0.1:
            self.job.trigger()
        elif user is None or what < 0.11:
            self.register(subtask)
        elif what < 0.13:
            del self.users[subtask]
            user.attempt.lose()
        elif what < 0.5 and user.said < NUMBERS:
            user.say()
        else:
            user.handle()

    def is_done(self) -> bool:
        """Whether all has been said."""
        return len(self.users) == SUBTASKS and all(
            one.said == NUMBERS for one in self.users.values()
        )


@pytest.mark.clause("D3")
@pytest.mark.clause("D5")
@pytest.mark.slow
def test_each_report_is_counted_once_and_granted_once(seed: int, dose: int) -> None:
    restored: set[str] = set()
    for run in range(RUNS * dose):
        world = World(random.Random(f"{seed}/{run}"))
        steps = 0
        while not world.is_done():
            world.step()
            steps += 1
            assert steps < _STEPS_MAX, f"run {run} does not end"
        while any(user.handle() for user in world.users.values()):
            pass
        whole = sum(range(1, NUMBERS + 1))
        totals = [quota_of(world.job).totals(n) for n in range(SUBTASKS)]
        assert totals == [(whole, whole)] * SUBTASKS, f"run {run}"
        granted = [world.users[n].granted for n in range(SUBTASKS)]
        assert granted == [whole] * SUBTASKS, f"run {run}"
        restored |= world.restored
    assert restored == {"rollback", "resume"}
