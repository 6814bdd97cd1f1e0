"""The fold gives the same state in other processes, under other hash seeds (clause K3)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordlog.testing.by_hand import HandDrivenJob
from kernel_fakes import HANDLED, FakeSink, NotingProvider, Up, chain_of, inside, send_down
from state_digest import digest, fold

TESTS = Path(__file__).parents[1]


def recorded() -> HandDrivenJob:
    """A history of a driver's death, a rollback, failovers, checkpoints and commits, all of which count."""
    provider = NotingProvider(projection=HANDLED, sink=FakeSink())
    job = HandDrivenJob(chain_of(provider), parallelism=7)
    for round_number in range(2):
        attempts = job.register_all()
        for attempt in attempts:
            attempt.send("source", Up(n=attempt.subtask))
            inside(attempt, provider, send_down(provider, attempt.subtask, 1, 2))
        n = job.trigger()
        assert n is not None
        for attempt in attempts:
            for event_id in list(job.runtime.state.gateways["source", attempt.subtask].unacked):
                attempt.ack("source", event_id)
        for attempt in attempts:
            attempt.send("source", Up(n=10 + attempt.subtask))
            attempt.ack_checkpoint(
                n, states={"source": b"s"}, committables=[("source", b"%d" % attempt.subtask)]
            )
        attempts[3].lose()
        if round_number == 0:
            job.crash()
            job = HandDrivenJob(job.chain, parallelism=7, log=job.log, clock=job.clock)
    job.trigger()
    return job


@pytest.mark.slow
@pytest.mark.clause("K3")
def test_a_history_folds_to_the_same_state_under_any_hash_seed(tmp_path: Path) -> None:
    job = recorded()
    stored = [
        ((one.value or b"").hex(), (one.header_bytes or b"").hex())
        for one in job.log.read(0, job.log.high_watermark())
    ]
    path = tmp_path / "history.json"
    path.write_text(json.dumps(stored), encoding="utf-8")
    live = digest(job.runtime.state)
    assert digest(fold(stored)) == live

    for seed in ("0", "1", "2"):
        found = subprocess.run(
            [sys.executable, str(TESTS / "state_digest.py"), str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert found.stdout == live, f"PYTHONHASHSEED={seed}"


@pytest.mark.clause("K3")
def test_a_digest_tells_states_apart() -> None:
    job = recorded()
    before = digest(job.runtime.state)
    job.register(3)

    assert digest(job.runtime.state) != before
