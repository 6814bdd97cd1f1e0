"""What a restore reads and folds, which is to be bounded by what came since the newest snapshot (clause K3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordlog.api.chain import Chain
from coordlog.log.copy import to_append
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import NotingProvider, Up, chain_of


class CountingLog(MemoryLog):
    """Counts the records that are read of it."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__("counted")
        self.count = 0
        for one in log.records:
            self.store(to_append(one))

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        for one in super().read(from_offset, to_offset, stall_s=stall_s):
            self.count += 1
            yield one


def worked(chain: Chain, count: int) -> MemoryLog:
    """The log of a job whose attempt has sent so many events, with a snapshot every 20 records."""
    job = HandDrivenJob(chain, options=RuntimeOptions(snapshot_every=20))
    attempt = job.register(0)
    for n in range(count):
        attempt.send("source", Up(n=n))
    return job.log


@pytest.mark.clause("K3")
def test_a_restore_reads_only_from_the_newest_snapshot_in_any_history() -> None:
    counted: OperatorProjection[int] = OperatorProjection(
        name="test.counted",
        version=1,
        initial=0,
        apply=lambda state, _record, _value: state + 1,
        codec=DerivedCodec(int),
    )
    read, folded = [], []
    for count in (200, 600, 2000):
        provider = NotingProvider(projection=counted)
        chain = chain_of(provider)
        log = CountingLog(worked(chain, count))
        assert log.high_watermark() > count
        folded.append(rebuild(log, chain, projection_of(chain)).record_count)
        read.append(log.count)
    assert max(folded) < 25, folded
    assert max(read) < 100, read
