"""Two drivers as processes on a real broker: one stands still, the other takes over. `make fencing` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fencing import PLANS, run_round
from coordlog.log.embedded import EmbeddedBroker

pytestmark = [pytest.mark.kafka, pytest.mark.kill, pytest.mark.slow]

_ROUNDS = 8
_ALWAYS = ("before the token", "before sweeping")
"""Steps at which something late was once seen, beside the random ones."""


@pytest.mark.clause("K2")
@pytest.mark.clause("K1")
def test_a_driver_that_stood_still_while_another_took_over_ends_and_changes_nothing(
    seed: int, dose: int, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    always = [n for n, one in enumerate(PLANS) if one.step in _ALWAYS]
    for each in (*always, *range(seed, seed + _ROUNDS * dose)):
        root = tmp_path / str(each)
        root.mkdir(exist_ok=True)
        plan = PLANS[each % len(PLANS)]
        try:
            run_round(each, plan, broker.bootstrap_servers, root)
        except BaseException:
            print(f"the first driver stopped {plan.step or 'anywhere'!r}; to repeat this round:")
            print(f'make fencing ARGS="--rounds 1 --seed {each}"')
            raise
