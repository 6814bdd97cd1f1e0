"""The two coordinators again, their log on a real broker; everything else is on simulated time, so that a seed repeats.

A hundred runs: `make test ARGS="tests/simulation/test_exactly_once_on_kafka.py --dose=10"`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.log.kafka import KafkaLog
from simulation.log import SimulatedLog
from simulation.scenarios import two_coordinators
from simulation.world import CLEAR
from tiers import in_parts

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_numbers = itertools.count()


class LogOnBroker(SimulatedLog):
    """The simulated log with its records on a broker: each goes there, and drivers read them from there."""

    def __init__(self, log: KafkaLog) -> None:
        super().__init__()
        self.identity = log.identity
        self._log, self._writer = log, log.writer()

    def high_watermark(self) -> int:
        """As in the port."""
        return self._log.high_watermark()

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """As in the port."""
        return self._log.read(from_offset, to_offset, stall_s=stall_s)

    def store(self, records: Sequence[UnstoredRecord]) -> list[int]:
        """As in memory, and to the broker."""
        offsets = list(self._writer.append(records, timeout_s=30.0))
        assert offsets == super().store(records)
        return offsets

    def close(self) -> None:
        """The writer; the topic is closed by who opened it."""
        self._writer.close(timeout_s=5.0)


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedBroker]:
    """A broker of this module."""
    with embedded_broker() as broker:
        yield broker


@pytest.mark.flink("IT1")
@pytest.mark.clause("B1")
@pytest.mark.clause("D3")
@pytest.mark.clause("F3")
@in_parts(2)
def test_two_coordinators_are_exactly_once_with_their_log_on_a_broker(
    part: int, seed: int, dose: int, own_broker: EmbeddedBroker, request: pytest.FixtureRequest
) -> None:
    for each in range(seed, seed + 5 * dose):
        weather = replace(CLEAR, append_s=(0.0025, 0.01))
        topic = f"exactly-once-{os.getpid()}-{next(_numbers)}.log"
        with closing(KafkaLog(topic, own_broker.bootstrap_servers)) as log:
            log.create()
            try:
                with closing(LogOnBroker(log)) as on_broker:
                    two_coordinators(
                        each,
                        weather=weather,
                        log=on_broker,
                        losses=each % 3,
                        crashes=each % 2,
                        shrink=4,
                    )
            except BaseException:
                command = f"make test-all ARGS='{request.node.nodeid} --seed={each}'"
                print(f"seed {each}; to repeat this run alone: {command}")
                raise
            log.delete()
