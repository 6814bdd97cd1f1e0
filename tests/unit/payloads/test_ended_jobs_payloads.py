"""Stored payloads of a job that has ended: its epoch is over behind the last snapshot of its driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordlog.log.payload_store import PayloadStore
from coordlog.offline.prune import planned
from coordlog.payloads.gc import FileUse, payload_use
from coordlog.payloads.offload import PayloadOptions
from coordlog.schemas.payload_address import PayloadAddress, owner_of
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import Down, NotingProvider, chain_of, ended, inside

BIG = 300_000


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(str(tmp_path / "payloads"), "job")


def driver(provider: NotingProvider, store: PayloadStore) -> tuple[HandDrivenJob, FakeAttempt]:
    job = HandDrivenJob(chain_of(provider), payloads=PayloadOptions(store=store))
    (attempt,) = job.register_all()
    return job, attempt


def uses(job: HandDrivenJob, store: PayloadStore) -> list[FileUse]:
    return [file.use for file in payload_use(job.log, store).files]


def finish(job: HandDrivenJob, attempt: FakeAttempt) -> None:
    attempt.complete()
    job.trigger()
    assert job.history()[-1].kind is Kind.JOB_FINISHED


def test_an_unaddressed_payload_is_left_over_behind_the_last_snapshot(store: PayloadStore) -> None:
    job, attempt = driver(NotingProvider(), store)
    store.put(PayloadAddress.of(b"x", owner_of(0, "driver-0")), b"x")
    finish(job, attempt)
    assert uses(job, store) == [FileUse.IN_FORCE], "the snapshot that follows may address it"

    ended(job)

    assert job.history()[-1].kind is Kind.SNAPSHOT
    assert uses(job, store) == [FileUse.LEFT_OVER]


def test_a_prune_can_drop_the_payloads_of_a_finished_jobs_only_epoch(store: PayloadStore) -> None:
    provider = NotingProvider()
    job, attempt = driver(provider, store)
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Down(n=1, text="a" * BIG)))
    finish(job, attempt)
    ended(job)
    assert uses(job, store) == [FileUse.ADDRESSED]

    place = planned(job.log, "job").begins_with
    assert place is not None
    use = payload_use(job.log, store, begins_with=place.offset)
    assert len(use.of(FileUse.LEFT_OVER)) == 1

    job.log.delete_below(place.offset)
    use = payload_use(job.log, store)
    assert use.of(FileUse.IN_FORCE) == ()
    assert len(use.pruned) == 1, "an archive may address it"
