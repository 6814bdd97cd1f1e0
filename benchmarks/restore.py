"""How long a restore takes by the length of the history: `python -m benchmarks.restore [--records N …]`.

Each history ends the same number of records after its newest snapshot, half the way to the next one: what is measured
is whether the rest of it costs anything. Beside it, the same fold from the log's start.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Final

import click
import pyarrow as pa
from immutables import Map
from rich.console import Console
from rich.table import Table

from coordlog.limits import SNAPSHOT_EVERY_RECORDS
from coordlog.log.embedded import embedded_broker
from coordlog.log.kafka import KafkaLog
from coordlog.projections.job import JobProjection
from coordlog.projections.snapshots import SNAPSHOT_TYPE, SnapshotCodec
from coordlog.projections.split_table import Assigned, Finished, SplitTable, WithEnumerator
from coordlog.projections.splits import SplitsState
from coordlog.projections.splits_codec import SPLITS
from coordlog.projections.state import JobState
from coordlog.restore import projection_of, rebuild
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.source_events import Split
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.split_bytes import encode_schema, encode_split

from .made_history import benchmark_chain, make_history
from .rebuild import fill

__all__ = ["Restore", "measure_restores", "measure_snapshot"]

_BEHIND: Final = SNAPSHOT_EVERY_RECORDS // 2
_ROUNDS: Final = 9
_TARGET: Final = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What one history came to; seconds are medians of interleaved rounds."""

    record_count: int
    folded: int
    seconds: float
    whole_seconds: float
    """From the log's start; one round."""


def measure_restores(bootstrap_servers: str, record_counts: Sequence[int]) -> list[Restore]:
    """Restore each history in turn, some rounds: all of them meet the same machine."""
    chain = benchmark_chain()
    projection = projection_of(chain)
    logs: list[KafkaLog] = []
    try:
        for count in record_counts:
            log = KafkaLog.for_job(f"bench-{uuid.uuid4().hex[:8]}", bootstrap_servers, fsync=False)
            log.create()
            logs.append(log)
            fill(log, make_history(count, after_snapshot=_BEHIND))
        taken: list[list[float]] = [[] for _ in logs]
        folded = [0] * len(logs)
        for _ in range(_ROUNDS):
            for number, log in enumerate(logs):
                began = time.perf_counter()
                made = rebuild(log, chain, projection)
                taken[number].append(time.perf_counter() - began)
                folded[number] = made.record_count
        rows: list[Restore] = []
        for number, log in enumerate(logs):
            began = time.perf_counter()
            rebuild(log, chain, projection, is_whole=True)
            rows.append(
                Restore(
                    record_count=log.high_watermark(),
                    folded=folded[number],
                    seconds=median(taken[number]),
                    whole_seconds=time.perf_counter() - began,
                )
            )
        return rows
    finally:
        for log in logs:
            log.delete()
            log.close()


def measure_snapshot(split_count: int) -> tuple[float, float, int, int]:
    """Of a source of so many splits: milliseconds to encode and to decode, bytes before compression and after."""
    codec = SnapshotCodec(JobProjection(PayloadTypes(()), {"source": SPLITS}))
    state = JobState(projections=Map({"source": _splits(split_count)}))
    began = time.perf_counter()
    made = codec.encode(state)
    encoded = time.perf_counter()
    payload = SNAPSHOT_TYPE.encode(made)
    between = time.perf_counter()
    codec.decode(made)
    decoded_s = time.perf_counter() - between
    return (encoded - began) * 1e3, decoded_s * 1e3, made.state_bytes, len(payload)


def _splits(count: int) -> SplitsState:
    """Most of them finished, as after a while; sizes and times as a listing finds them."""
    chance = Random(count)
    schema = encode_schema(pa.schema([(f"column_{n}", pa.int64()) for n in range(8)]))
    listed_by = uuid.uuid4().hex

    def split(n: int) -> Split:
        path = f"/data/warehouse/events/day={n // 1000:04d}/part-{n:07d}.csv"
        made = FileSplit(
            split_id=path,
            path=path,
            size_bytes=chance.randrange(10_000_000),
            mark=str(1_760_000_000_000_000_000 + chance.randrange(10**15)),
            real_path=path[len("/data/warehouse/events/") :],
            parts=1,
            listed_by=listed_by,
            start=0,
            end=-1,
            arrow_schema=schema,
        )
        return Split(split_id=path, content=encode_split(made))

    table = SplitTable().extended((split(n) for n in range(count)), lambda _: WithEnumerator())
    over = [Finished(subtask=n, sequence=-1, last_barrier=-1, is_kept=False) for n in range(16)]
    table = table.moved(
        {
            name: Assigned(subtask=n % 16, sequence=n * 7) if n > count - 16 else over[n % 16]
            for n, name in enumerate(table)
        }
    )
    return SplitsState(splits=table, fresh_from=count)


@click.command()
@click.option(
    "--records",
    "record_counts",
    type=int,
    multiple=True,
    default=(10_000, 100_000),
    show_default=True,
    help="Lengths of histories; 1000000 takes some minutes.",
)
@click.option("--bootstrap-servers", help="A broker that runs; by default one is started.")
def main(*, record_counts: tuple[int, ...], bootstrap_servers: str | None) -> None:
    """Measure restores of histories of several lengths, with snapshots and without."""
    logging.disable(logging.WARNING)
    if bootstrap_servers is not None:
        rows = measure_restores(bootstrap_servers, record_counts)
    else:
        with embedded_broker() as broker:
            rows = measure_restores(broker.bootstrap_servers, record_counts)
    console = Console(width=100)
    table = Table(title=f"a restore, a snapshot every {SNAPSHOT_EVERY_RECORDS:,} records")
    for column in ("records", "folded", "restore, s", "from the start, s"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row.record_count:,}",
            f"{row.folded:,}",
            f"{row.seconds:.3f}",
            f"{row.whole_seconds:.3f}",
        )
    console.print(table)
    seconds = [row.seconds for row in rows]
    ratio = max(seconds) / min(seconds)
    met = "met" if ratio < _TARGET else "missed"
    console.print(f"slowest to quickest {ratio:.2f}; the target is below {_TARGET}: {met}")
    table = Table(title="one snapshot of a source's splits")
    for column in ("splits", "encode, ms", "decode, ms", "bytes", "compressed"):
        table.add_column(column, justify="right")
    for count in (1_000, 10_000, 100_000, 1_000_000):
        encode_ms, decode_ms, before, after = measure_snapshot(count)
        table.add_row(
            f"{count:,}", f"{encode_ms:.1f}", f"{decode_ms:.1f}", f"{before:,}", f"{after:,}"
        )
    console.print(table)


if __name__ == "__main__":
    main()
