"""The two coordinators again, their log on a real broker; everything else is on simulated time, so that a seed repeats.

A hundred runs: `make test ARGS="tests/simulation/test_exactly_once_on_kafka.py --dose=5"`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.kafka import KafkaLog
from exactly_once_runs import two_coordinators
from exactly_once_world import Weather

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedBroker]:
    """A broker of this module."""
    with embedded_broker() as broker:
        yield broker


@pytest.mark.flink("IT1")
@pytest.mark.clause("B1")
@pytest.mark.clause("D3")
@pytest.mark.clause("F3")
@pytest.mark.parametrize("share", range(2))
def test_two_coordinators_are_exactly_once_both_ways_with_their_log_on_a_broker(
    share: int, seed: int, dose: int, own_broker: EmbeddedBroker, request: pytest.FixtureRequest
) -> None:
    for each in range(seed, seed + 10 * dose):
        weather = Weather(append_s=(0.005, 0.02), losses=each % 3, crashes=each % 2, horizon_s=0.4)
        topic = f"exactly-once-{os.getpid()}-{next(_numbers)}.log"
        with closing(KafkaLog(topic, own_broker.bootstrap_servers)) as log:
            log.create()
            try:
                two_coordinators(each, weather=weather, log=log, shrink=4)
            except BaseException:
                command = f"make test-all ARGS='{request.node.nodeid} --seed={each}'"
                print(f"seed {each}; to repeat this run alone: {command}")
                raise
            log.delete()
