"""`coordlog ingest`, whose workers and driver are killed at places that chance chooses."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.projections.tables.attempts import AttemptEnd
from coordlog.schemas.record import Kind
from examples.demo_parts.processes import WrongProcessError
from jobs.ingest_case import LIMIT_S, IngestCase, any_record_after
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kill,
    pytest.mark.slow,
]

MODES = {"streaming": ["--checkpoint-interval", "0.5"], "batch": ["--batch"]}
SUBTASKS = 2
RECORDS_BEFORE_A_KILL = 90
"""A run of a case has at least 300 records: a kill before this one comes before its end."""


def kill_and_go_on(case: IngestCase, chance: random.Random) -> None:
    """A worker dies, then the driver, each after a random record; the command goes on."""
    run = case.start()
    follower = case.follower()
    offset, record = follower.wait_for(
        any_record_after(chance.randrange(RECORDS_BEFORE_A_KILL)),
        is_over=lambda: run.has_ended,
        limit_s=LIMIT_S,
    )
    victim = chance.choice([o for o in follower.records if o.kind is Kind.ATTEMPT_STARTED])
    print(f"offset {offset}, {record.kind}: kill the worker of subtask {victim.subtask}")
    try:
        run.kill_worker(int(victim.attributes["pid"]))
    except WrongProcessError as error:
        print(f"it had gone before: {error}")
    case.check_partial()
    offset, record = follower.wait_for(
        any_record_after(chance.randrange(RECORDS_BEFORE_A_KILL)),
        is_over=lambda: run.has_ended,
        limit_s=LIMIT_S,
    )
    print(f"offset {offset}, {record.kind}: kill the driver")
    run.kill()
    case.check_partial()
    last = case.finish()
    assert any(line.startswith(("restored by", "started again")) for line in last.lines)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", list(MODES))
def test_workers_and_drivers_that_die_anywhere_lose_and_double_nothing(
    mode: str, tmp_path: Path, broker: EmbeddedBroker, dose: int, seed: int
) -> None:
    """For each dose a worker and a driver die, at random records; all rows come out, once."""
    chance = random.Random(seed)
    for number in range(dose):
        case = IngestCase(
            folder=tmp_path / str(number),
            servers=broker.bootstrap_servers,
            arguments=MODES[mode],
        )
        try:
            kill_and_go_on(case, chance)
            found = case.check_whole()
        finally:
            case.clear()
        ends = [one.end for one in found.attempts]
        assert ends.count(AttemptEnd.COMPLETED) == SUBTASKS
        assert len(ends) > SUBTASKS, "somebody was killed"
