"""Two drivers as processes on a real broker: one stands still, the other takes over. `make fencing` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fencing import PLANS, run_round
from chaos.fencing_plans import Outcome, Plan
from coordlog.log.embedded import EmbeddedBroker

pytestmark = [pytest.mark.kafka, pytest.mark.kill, pytest.mark.slow]

_ROUNDS = 8
_ALWAYS = ("before the token", "before sweeping")
"""Steps at which something late was once seen, beside the random ones."""
_TRIES = 3
"""On a machine that is busy with others a job may be over before the step comes."""
_RELEASED = (
    "before an answer",
    "before refusing a client",
    "before refusing a task",
    "before refusing a stranger",
    "before asynchronous work",
    "in asynchronous work",
)
"""Between release and effect: one step for each kind of effect that no random round need come to."""


_COMMANDS = {
    ("keep", "after the take-over"): "fenced",
    ("keep", "before append"): "fenced",
    ("skip", "before append"): "fenced",
    ("skip", "between ack and release"): "done before",
    ("prune", "before append"): "fenced",
    ("prune", "before removing records"): "done before",
    ("begin", "before the take-over"): "fenced",
    ("begin", "before append"): "done before",
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


def plan_at(step: str, seed: int, command: str | None = None) -> tuple[int, Plan]:
    """The plan with that step, of a driver or of a command, and a seed that draws it."""
    (number,) = [n for n, one in enumerate(PLANS) if (one.step, one.command) == (step, command)]
    return seed - seed % len(PLANS) + number, PLANS[number]


@pytest.mark.clause("K2")
@pytest.mark.clause("K1")
def test_a_driver_that_stood_still_while_another_took_over_ends_and_changes_nothing(
    seed: int, dose: int, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    always = [plan_at(step, 0)[0] for step in _ALWAYS]
    for each in (*always, *range(seed, seed + _ROUNDS * dose)):
        fenced(each, PLANS[each % len(PLANS)], broker, tmp_path)


@pytest.mark.clause("K2")
@pytest.mark.clause("K1")
@pytest.mark.parametrize("step", _RELEASED)
def test_what_a_loser_had_released_and_does_late_is_what_counts(
    seed: int, broker: EmbeddedBroker, tmp_path: Path, step: str
) -> None:
    first, plan = plan_at(step, seed)
    ended: list[str] = []
    for each in range(first, first + _TRIES * len(PLANS), len(PLANS)):
        outcome = fenced(each, plan, broker, tmp_path)
        ended.append(outcome.loser if outcome.has_stood else "it never came to the step")
        if ended[-1] == "fenced":
            return
    pytest.fail(f"no loser was fenced there: {ended}")


@pytest.mark.clause("K2")
@pytest.mark.parametrize(("command", "step"), list(_COMMANDS), ids=map(" ".join, _COMMANDS))
def test_a_command_that_stood_still_while_a_driver_took_over_is_fenced_or_was_done_before(
    seed: int, broker: EmbeddedBroker, tmp_path: Path, command: str, step: str
) -> None:
    outcome = fenced(*plan_at(step, seed, command), broker, tmp_path)
    assert outcome.loser == _COMMANDS[command, step]
