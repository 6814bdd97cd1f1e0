"""Two drivers as processes on a real broker: one stands still, the other takes over. `make fencing` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fencing import PLANS, run_round
from chaos.fencing_plans import Outcome, Plan
from coordlog.log.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.kafka, pytest.mark.kill, pytest.mark.slow]

_ANYWHERE = 3
"""Rounds in which the first driver is stopped at no step, but from outside at some moment."""
_TRIES = 5
"""On a machine that is busy with others a job may be over before the step comes."""
_FINISHED_AT = ("before sweeping", "after the listing")
"""Where the first driver has finished its job: nothing is left by which it could be fenced."""
_STEPS = tuple(one.step for one in PLANS if one.command is None and one.step is not None)
"""Every one of a driver's: before and behind an append, and before each kind of effect."""
_COMMANDS = {
    ("savepoint", "after the take-over"): "fenced",
    ("savepoint", "before append"): "fenced",
    ("skip", "before append"): "fenced",
    ("skip", "between ack and release"): "done before",
    ("prune", "before removing records"): "done before",
    ("fork", "before the take-over"): "fenced",
    ("fork", "before append"): "done before",
}
"""Commands, the step at which each stands still, and how it ends."""


def fenced(seed: int, plan: Plan, broker: EmbeddedBroker, tmp_path: Path) -> Outcome:
    """A round, which `make fencing` would draw for this seed."""
    root = tmp_path / str(seed)
    root.mkdir(exist_ok=True)
    assert PLANS[seed % len(PLANS)] == plan
    try:
        return run_round(seed, plan, broker.bootstrap_servers, root)
    except BaseException:
        print(f"the first driver stopped {plan.shown!r}; to repeat this round:")
        print(f'make fencing ARGS="--rounds 1 --seed {seed}"')
        raise


def plan_at(step: str | None, seed: int, command: str | None = None) -> tuple[range, Plan]:
    """The plan with that step, of a driver or of a command, and seeds from `seed` on that draw it."""
    (number,) = [n for n, one in enumerate(PLANS) if (one.step, one.command) == (step, command)]
    first = seed - seed % len(PLANS) + number
    return range(first, first + 1000 * len(PLANS), len(PLANS)), PLANS[number]


@pytest.mark.clause("K2")
@pytest.mark.clause("K1")
def test_a_driver_paused_anywhere_during_a_take_over_changes_nothing(
    seed: int, dose: int, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    seeds, plan = plan_at(None, seed)
    for each in seeds[: _ANYWHERE * dose]:
        fenced(each, plan, broker, tmp_path)


@pytest.mark.clause("K2")
@pytest.mark.clause("K1")
@pytest.mark.parametrize("step", _STEPS)
def test_a_driver_paused_at_one_step_during_a_take_over_changes_nothing(
    seed: int, dose: int, broker: EmbeddedBroker, tmp_path: Path, step: str
) -> None:
    seeds, plan = plan_at(step, seed)
    wanted = "finished before" if step in _FINISHED_AT else "fenced"
    ended: list[str] = []
    for each in seeds[: _TRIES * dose]:
        outcome = fenced(each, plan, broker, tmp_path)
        ended.append(outcome.loser if outcome.has_stood else "it never came to the step")
        if ended.count(wanted) == dose:
            return
    pytest.fail(f"not {dose} times {wanted}: {ended}")


@pytest.mark.clause("K2")
@pytest.mark.parametrize(("command", "step"), list(_COMMANDS), ids=map(" ".join, _COMMANDS))
def test_a_command_paused_during_a_take_over_is_fenced_or_was_done_before(
    seed: int, dose: int, broker: EmbeddedBroker, tmp_path: Path, command: str, step: str
) -> None:
    seeds, plan = plan_at(step, seed, command)
    for each in seeds[:dose]:
        assert fenced(each, plan, broker, tmp_path).loser == _COMMANDS[command, step]
