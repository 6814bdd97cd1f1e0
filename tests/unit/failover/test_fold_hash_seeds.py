"""The fold gives the same state in other processes, under other hash seeds, in other pieces (clause K3)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from coordlog.kernel.builder import StepBuilder
from coordlog.log.copy import to_append
from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.job.state import JobState
from coordlog.restore.rebuild import projection_of
from coordlog.schemas.header import encode_header
from coordlog.schemas.record import Record
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, FakeSink, NotingProvider, Up, chain_of, inside, send_down
from fold_digests import chain_of_run, digests, fresh, write_history
from histories.sweep_runs import RUNS
from state_digest import digest, fold

TESTS = Path(__file__).parents[2]


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


@pytest.fixture(scope="module")
def logs() -> dict[str, MemoryLog]:
    """The logs of whole runs of all kinds, by name."""
    return {name: run.recorded().job.log for name, run in RUNS.items()}


@pytest.mark.slow
@pytest.mark.clause("K3")
def test_another_process_is_at_the_same_state_after_every_record(
    logs: dict[str, MemoryLog], tmp_path: Path
) -> None:
    paths, here = [], []
    for number, (name, log) in enumerate(logs.items()):
        paths.append(tmp_path / f"{number}.json")
        write_history(paths[-1], name, log.records)
        here += list(digests(name, log.records))
    assert len(set(here)) > len(here) // 3, "each turn changes the state"

    for seed in ("0", "1", "2"):
        assert _printed(seed, *map(str, paths)) == here, f"PYTHONHASHSEED={seed}"


def _printed(hash_seed: str, *arguments: str) -> list[str]:
    """The lines of `fold_digests.py`, run under this hash seed."""
    found = subprocess.run(
        [sys.executable, str(TESTS / "fold_digests.py"), *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return found.stdout.split()


@pytest.mark.slow
@pytest.mark.clause("K7")
def test_the_same_run_writes_the_same_bytes_under_any_hash_seed() -> None:
    """Nothing that decides or encodes goes through a map or a set in the order of its hashes."""
    logs = [_printed(seed) for seed in ("0", "1", "2")]

    assert len(set(logs[0])) > 500, "the records of all runs"
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.slow
@pytest.mark.clause("K3")
@pytest.mark.parametrize("name", RUNS)
def test_a_history_read_in_pieces_has_the_same_state_at_every_offset(
    logs: dict[str, MemoryLog], name: str, seed: int, dose: int
) -> None:
    """The pieces end anywhere, in the middle of turns too; some are read again from further back."""
    chance, log = random.Random(seed), logs[name]
    end = log.high_watermark()
    whole = [digest(fresh(name).state), *digests(name, log.records)]
    at_once = fresh(name)
    at_once.catch_up(log, end)
    for size_max in (2, 30, end) * dose:
        made = fresh(name)
        while made.end_offset < end:
            made.catch_up(log, min(made.end_offset + chance.randint(1, size_max), end))
            for stored in log.read(chance.randint(0, made.end_offset), made.end_offset):
                made.feed(stored)
            assert digest(made.state) == whole[made.end_offset]
        counts = (made.record_count, made.void_count, made.checkpoint_offset)
        assert counts == (at_once.record_count, at_once.void_count, at_once.checkpoint_offset)
        assert made.place == at_once.place


def _void_after(chance: random.Random, log: MemoryLog, place: int) -> UnstoredRecord:
    """A record that is worth nothing behind the first `place` records of `log`."""
    one = log.records[chance.randrange(place)]
    header = one.header
    if header is None or chance.random() < 0.2:
        return UnstoredRecord(key=b"", value=b"garbage", header=b"", timestamp_us=0)
    if not header.is_epoch_started and chance.random() < 0.3:
        header = header._replace(sequence=header.sequence + 1_000)
    elif chance.random() < 0.3:
        header = header._replace(epoch=header.epoch + 5)
    return to_append(one, header=encode_header(header))


@pytest.mark.slow
@pytest.mark.clause("K3")
@pytest.mark.clause("K4")
@pytest.mark.parametrize("name", RUNS)
def test_void_records_in_between_change_nothing_anywhere(
    logs: dict[str, MemoryLog], name: str, seed: int, dose: int
) -> None:
    """Copies of earlier records, records out of place, of epochs that were not, and of other programs."""
    chance, log = random.Random(seed), logs[name]
    whole = list(digests(name, log.records))
    for _ in range(dose):
        mixed, places = MemoryLog("mixed"), []
        for place, one in enumerate(log.records):
            mixed.store(to_append(one))
            places.append(place)
            for _ in range(chance.choice((0, 0, 1, 3))):
                mixed.store(_void_after(chance, log, place + 1))
                places.append(place)
        assert len(places) > len(whole)
        assert list(digests(name, mixed.records)) == [whole[place] for place in places]


@pytest.mark.clause("K3")
@pytest.mark.parametrize("name", RUNS)
def test_the_live_state_is_the_folded_one_after_every_record(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    projection = projection_of(
        chain_of_run(name)
    )  # a world of its own, whose records are not noted
    live: dict[int, JobState] = {}
    place = StepBuilder._place

    def noted(builder: StepBuilder, record: Record) -> Record:
        placed = place(builder, record)
        live[builder.state.next_sequence - 1] = builder.state
        return placed

    monkeypatch.setattr(StepBuilder, "_place", noted)
    job = RUNS[name].recorded().job

    state = projection.initial()
    for record in job.history():
        state = projection.apply(state, record)
        if record.sequence is not None:
            assert live[record.sequence] == state, record
    assert len(live) == state.next_sequence
    assert digest(job.runtime.state) == digest(state)


@pytest.mark.slow
@pytest.mark.clause("K3")
@pytest.mark.parametrize("size", [1, 7, 500])
def test_records_that_are_folded_in_runs_come_to_the_same_state(
    logs: dict[str, MemoryLog], size: int
) -> None:
    for name, log in logs.items():
        alone, together = fresh(name), fresh(name)
        for stored in log.records:
            alone.feed(stored)
        for first in range(0, len(log.records), size):
            # A record that was fed before is passed over.
            together.feed_all(log.records[max(0, first - 1) : first + size])
        assert digest(together.state) == digest(alone.state)
        assert together.place == alone.place
        assert together.newest_snapshot == alone.newest_snapshot
        assert (together.record_count, together.void_count) == (
            alone.record_count,
            alone.void_count,
        )
