"""`coordlog health` on a long log: read from a snapshot on, with the verdict of the whole log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from coordlog.cli import living
from coordlog.cli.commands.look import health as command
from coordlog.cli.main import main
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.verdict import Verdict, VerdictState
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.tables.audit import audit_records
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.spark_integration.driver.liveness import Liveness
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of
from histories.one_log import OneLog

INTERVAL_S = 10.0
EVERY = 20


class CountedLog(MemoryLog):
    """Counts the records that are read."""

    count = 0

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        for stored in super().read(from_offset, to_offset, stall_s=stall_s):
            self.count += 1
            yield stored


class Driven:
    """A job with periodic checkpoints, until `wait` leaves them without an ack."""

    def __init__(self, interval_s: float | None = INTERVAL_S, parallelism: int = 1) -> None:
        self.log = CountedLog("job")
        self.provider = NotingProvider(projection=HANDLED)
        self.job = HandDrivenJob(
            chain_of(self.provider),
            log=self.log,
            parallelism=parallelism,
            options=RuntimeOptions(snapshot_every=EVERY, checkpoint_interval_s=interval_s),
        )
        self.attempts: list[FakeAttempt] = self.job.register_all()
        self.sent = 0

    def send(self, seconds: float) -> None:
        """An event, and the time until the next one."""
        self.sent += 1
        self.attempts[0].send("source", Up(n=self.sent))
        self.job.advance(seconds)

    def work(self, seconds: float) -> None:
        """Events and completed checkpoints, once an interval."""
        until = self.job.clock.seconds + seconds
        while self.job.clock.seconds < until:
            self.send(INTERVAL_S)
            for number in list(self.job.runtime.state.pending):
                for attempt in self.attempts:
                    attempt.ack_checkpoint(number, committables=[("source", b"rows")])

    def wait(self, seconds: float) -> None:
        """Events alone, so many that there are snapshots during the wait."""
        until = self.job.clock.seconds + seconds
        while self.job.clock.seconds < until:
            self.send(5.0)

    def whole(self) -> Verdict:
        """The verdict by every record of the log."""
        fold = VerdictFold()
        for entry in audit_records(self.log.records):
            if entry.counts:
                fold.apply(entry.known())
        return fold.verdict(self.job.clock.now_us())


def works(driven: Driven) -> None:
    driven.work(60)


def waits_for_acks(driven: Driven) -> None:
    driven.wait(500)


def just_begins_to_wait(driven: Driven) -> None:
    driven.wait(20)


def misses_an_attempt(driven: Driven) -> None:
    driven.attempts[1].fail("bad row")
    driven.wait(400)


def has_an_open_commit(driven: Driven) -> None:
    driven.provider.is_committing = False
    driven.work(60)
    driven.wait(1_000)


def finishes(driven: Driven) -> None:
    for attempt in driven.attempts:
        attempt.complete()
    driven.job.advance(INTERVAL_S)


CASES = [works, waits_for_acks, just_begins_to_wait, misses_an_attempt, has_an_open_commit]


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _unknown_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = SimpleNamespace(liveness=Liveness.UNKNOWN)
    monkeypatch.setattr(living, "driver_liveness", lambda _driver: unknown)


def health_at(driven: Driven, monkeypatch: pytest.MonkeyPatch, *more: str) -> dict[str, Any]:
    """The JSON of the command at the time of the job's clock."""
    now = SimpleNamespace(time_ns=lambda: driven.job.clock.now_us() * 1000)
    monkeypatch.setattr(command, "time", now)
    driven.log.count = 0
    result = CliRunner().invoke(
        main, ("health", "job", "--json", *more), obj=lambda _servers: OneLog(driven.log)
    )
    value: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if value["is_healthy"] else 1)
    return value


@pytest.mark.may_fail("bad row")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_verdict_from_a_snapshot_is_that_of_the_whole_log(
    case: Callable[[Driven], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = Driven(parallelism=2)
    driven.work(1_000)
    case(driven)
    whole = driven.whole()
    shown = health_at(driven, monkeypatch)

    assert driven.log.count < driven.log.high_watermark() * 3 // 4, "the beginning is not read"
    assert shown["state"] == whole.state.value
    assert shown["since_us"] == whole.since_us or (
        shown["is_since_earlier"] and shown["since_us"] > whole.since_us
    )
    if whole.state is not VerdictState.PROGRESSING:
        assert shown["reason"] == whole.reason


def test_a_long_log_costs_a_snapshot_interval_and_the_longest_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = Driven()
    driven.work(1_000)
    health_at(driven, monkeypatch)
    short, length = driven.log.count, driven.log.high_watermark()
    driven.work(3_000)
    health_at(driven, monkeypatch)

    assert driven.log.high_watermark() > 3 * length
    assert driven.log.count <= short + 2 * EVERY


def test_a_log_without_a_recorded_interval_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(interval_s=None)
    for _ in range(40):
        driven.job.trigger()
        driven.work(10)
    driven.job.advance(700)
    shown = health_at(driven, monkeypatch)

    assert driven.log.count >= driven.log.high_watermark()
    assert shown["state"] == driven.whole().state.value == VerdictState.STUCK.value
    assert shown["reason"] == "no checkpoint has completed and none is pending"
