"""`coordlog ingest` into partitions on a server with S3's protocol, whose driver is killed."""

from __future__ import annotations

import io
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.schemas.record import Kind
from jobs.ingest_case import LIMIT_S, IngestCase, kind_of
from servers.brokers import broker
from servers.s3_server import S3Server, s3_server, s3_store

__all__ = ["broker", "s3_server", "s3_store"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kill,
    pytest.mark.slow,
]


@dataclass(kw_only=True)
class S3Case(IngestCase):
    """A case whose destination is a bucket; the column `name` is in the keys alone."""

    server: S3Server
    bucket: str

    @property
    def destination(self) -> str:
        return f"s3://{self.bucket}/flights/out"

    def final_keys(self) -> list[str]:
        root = "flights/out/"
        keys = [one.removeprefix(root) for one in self.server.keys(self.bucket, root)]
        return [one for one in keys if not one.startswith(".coordlog/")]

    def rows_out(self) -> Counter[tuple[int, str, int]]:
        found: Counter[tuple[int, str, int]] = Counter()
        for key in self.final_keys():
            folder, _, _ = key.partition("/")
            assert folder.startswith("name=name ")
            content = self.server.get(self.bucket, f"flights/out/{key}")
            for row in pq.read_table(io.BytesIO(content)).to_pylist():
                found[row["id"], folder.removeprefix("name="), row["amount"]] += 1
        return found

    def staged(self) -> list[str]:
        return [
            *self.server.keys(self.bucket, "flights/out/.coordlog/staging/"),
            *self.server.uploads(self.bucket),
        ]


@pytest.mark.timeout(600)
@pytest.mark.clause("H3")
def test_a_driver_death_while_partitions_are_published_loses_nothing(
    tmp_path: Path, broker: EmbeddedBroker, s3_store: S3Server, seed: int
) -> None:
    """It is killed after a commit's intent: some of its files have their names, others not."""
    chance = random.Random(seed)
    case = S3Case(
        folder=tmp_path,
        servers=broker.bootstrap_servers,
        arguments=["--checkpoint-interval", "1.5", "--partition-by", "name", "--roll-rows", "100"],
        environment=s3_store.environment,
        server=s3_store,
        bucket=s3_store.new_bucket(),
    )
    try:
        run = case.start()
        follower = case.follower()
        for _ in range(chance.randrange(1, 3)):
            follower.wait_for(
                kind_of(Kind.COMMIT_INTENT), is_over=lambda: run.has_ended, limit_s=LIMIT_S
            )
        run.kill()
        case.check_partial()
        before = case.rows_out()
        last = case.finish()
        assert any(line.startswith("restored by rollback") for line in last.lines), last.lines
        assert any(case.destination in line for line in last.lines)
        found = case.check_whole()
        assert not before - case.rows_out()
    finally:
        case.clear()
    assert len(found.attempts) == 4
    partitions = {key.partition("/")[0] for key in case.final_keys()}
    assert partitions == {f"name=name {i}" for i in range(7)}
    assert len(case.final_keys()) >= len(case.expected) // 100
