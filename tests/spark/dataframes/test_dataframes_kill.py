"""A stream over a coordinated folder whose driver's process is killed in the middle of a batch, with its JVM."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.projections.tables.audit import audit_records
from coordlog.projections.tables.reads import ReadRow, reads
from coordlog.schemas.record import Kind, Record
from examples.demo_parts.follow import Follower, open_log
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.any_spark,
    pytest.mark.kafka,
    pytest.mark.kill,
    pytest.mark.slow,
]

FILES, ROWS, PER_BATCH = 36, 20, 10
LIMIT_S = 120.0
PROGRAM = Path(__file__).with_name("dataframes_program.py")


def start(folder: Path, servers: str, job_id: str, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), servers, job_id, str(seconds)],
        env={**os.environ, "COORDLOG_HOME": str(folder / "home")},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def rows_of_batches(folder: Path) -> dict[int, dict[str, list[int]]]:
    """What the last run of each batch held, by partition."""
    lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    return dict(map(json.loads, lines))


def reads_of(job_id: str, servers: str) -> tuple[ReadRow, ...]:
    log = KafkaLog.for_job(job_id, servers)
    try:
        return reads(audit_records(log.read(0, log.high_watermark())))
    finally:
        log.close()


def given_of(records: list[Record]) -> int:
    return sum(
        one.kind is Kind.RESPONSE and (one.payload_type or "").startswith("coordlog.splits_given@")
        for one in records
    )


@pytest.mark.timeout(300)
def test_the_batch_of_a_dead_driver_is_planned_again_with_the_same_splits(
    tmp_path: Path, broker: EmbeddedBroker
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        rows = "".join(f"{number * ROWS + i},x\n" for i in range(ROWS))
        (tmp_path / "in" / f"f{number:03}.csv").write_text(f"i,s\n{rows}", encoding="utf-8")
    job_id, servers = f"kill-{secrets.token_hex(4)}", broker.bootstrap_servers
    run = start(tmp_path, servers, job_id, 1.0)
    log = open_log(job_id, servers)
    try:
        follower = Follower(log)
        # In the middle of the second batch: it has been planned, and a task has got on.
        follower.wait_for(
            lambda _one: (
                sum(r.kind is Kind.RESPONSE and _is_plan(r) for r in follower.records) == 2
                and given_of(follower.records) > given_of(_before_second_plan(follower.records)) + 3
            ),
            is_over=lambda: run.poll() is not None,
            limit_s=LIMIT_S,
        )
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(LIMIT_S)
        log.close()
    _, interrupted = reads_of(job_id, servers)
    had = {one.split_id: one.partition for one in interrupted.splits}
    assert had
    assert 1 not in rows_of_batches(tmp_path), "it had not ended"

    assert start(tmp_path, servers, job_id, 0.0).wait(LIMIT_S) == 0

    batches = rows_of_batches(tmp_path)
    counted = Counter(i for parts in batches.values() for rows in parts.values() for i in rows)
    assert counted == Counter(range(FILES * ROWS))
    assert sorted(batches) == [0, 1, 2, 3]
    found = reads_of(job_id, servers)
    again = next(one for one in found if one.read_id == interrupted.read_id)
    assert again.plans == 2
    assert {one.split_id: one.partition for one in again.splits}.items() >= had.items()
    in_partition = {str(partition): 0 for partition in range(again.partitions)}
    for one in again.splits:
        in_partition[str(one.partition)] += ROWS
    assert {p: len(rows) for p, rows in batches[1].items()} == {
        p: count for p, count in in_partition.items() if count
    }, "the rows of each partition are those of its splits"


def _is_plan(record: Record) -> bool:
    return (record.payload_type or "").startswith("coordlog.read_planned@")


def _before_second_plan(records: list[Record]) -> list[Record]:
    plans = [n for n, one in enumerate(records) if one.kind is Kind.RESPONSE and _is_plan(one)]
    return records[: plans[1]]
