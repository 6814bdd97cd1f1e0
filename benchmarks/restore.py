"""What a restore costs: `python -m benchmarks.restore [--records N …] [--quick]`.

Of histories of several lengths: the fold from the log's start beside consuming and decoding alone, in interleaved
rounds; its memory, which is to be the state's and not the history's; and the restore from the newest snapshot, half the
way behind it to the next one, which is to cost the same whatever stands before. Each in a process of its own.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain as chained
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Final, ParamSpec, TypeVar

import click
import pyarrow as pa
from immutables import Map
from rich.console import Console
from rich.table import Table

from coordlog.limits import SNAPSHOT_EVERY_RECORDS
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState
from coordlog.projections.snapshot.codec import SNAPSHOT_TYPE, SnapshotCodec
from coordlog.projections.snapshot.splits_codec import SPLITS
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.splits.table import Assigned, Finished, SplitTable, WithEnumerator
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.life.collector import begin_slower_collector, end_slower_collector
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.source.split_bytes import encode_schema, encode_split

from .command import broker, broker_option, output_option
from .measured.long_history import LongHistory
from .measured.made_history import benchmark_chain
from .measured.rebuild import read_alone

__all__ = ["Restore", "measure_restore", "measure_snapshot"]

RESULTS: Final = Path(__file__).parent / "restore.json"
_BEHIND: Final = SNAPSHOT_EVERY_RECORDS // 2
_GROUP: Final = 1_000
_CHECKED_RECORDS: Final = 15_000
_ROUNDS: Final = 9
_WHOLE_RECORDS: Final = 300_000
"""Folded from the start in all rounds together, or once."""
_TARGET: Final = 1.3
_RATIO_TARGET: Final = 0.6

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A fold from the log's start."""

    record_count: int
    seconds: float
    bytes_before: int
    """Resident, when it began."""
    bytes_peak: int
    """The most that were resident since."""
    state_bytes: int
    snapshot: bytes
    """The payload of one of the state that it came to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What one history came to; seconds are medians."""

    record_count: int
    whole_count: int
    """Records that were there when it was folded from the start."""
    whole_seconds: float
    alone_seconds: float
    """Consumed and decoded only."""
    ratio: float
    """Of records per second: the median over the rounds."""
    rounds: int
    megabytes_before: float
    megabytes_peak: float
    state_bytes: int
    folded: int
    seconds: float
    """From the snapshot."""


def fold_whole(bootstrap_servers: str, job_id: str) -> Whole:
    """In a process of its own."""
    log = KafkaLog.for_job(job_id, bootstrap_servers, fsync=False)
    chain = benchmark_chain()
    projection = projection_of(chain)
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak counts from here
    before = _status_bytes("VmRSS")
    begin_slower_collector()  # as a driver
    began = time.perf_counter()
    made = rebuild(log, chain, projection, is_whole=True)
    seconds = time.perf_counter() - began
    peak = _status_bytes("VmHWM")
    snapshot = SnapshotCodec(projection).encode(
        made.state, checkpoint_offset=made.checkpoint_offset
    )
    log.close()
    return Whole(
        record_count=made.record_count,
        seconds=seconds,
        bytes_before=before,
        bytes_peak=peak,
        state_bytes=snapshot.state_bytes,
        snapshot=SNAPSHOT_TYPE.encode(snapshot),
    )


def restore(bootstrap_servers: str, job_id: str) -> tuple[float, int]:
    """In a process of its own: seconds, and records folded."""
    log = KafkaLog.for_job(job_id, bootstrap_servers, fsync=False)
    chain = benchmark_chain()
    projection = projection_of(chain)
    begin_slower_collector()
    began = time.perf_counter()
    made = rebuild(log, chain, projection)
    seconds = time.perf_counter() - began
    log.close()
    assert made.started_at is not None, "it started from the snapshot"
    return seconds, made.record_count


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def _apart(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *args, **kwargs).result()


class _History:
    """One in a log: up to a snapshot, and then behind it."""

    def __init__(self, bootstrap_servers: str, record_count: int) -> None:
        self.servers, self.job_id = bootstrap_servers, f"bench-{uuid.uuid4().hex[:8]}"
        self.record_count = record_count
        self.log = KafkaLog.for_job(self.job_id, bootstrap_servers, fsync=False)
        self.log.create()
        self._made = LongHistory()
        self._records = self._made.records()
        self._append(self._turns(record_count - _BEHIND, Kind.COORDINATOR_NOTIFIED))

    def _turns(self, record_count: int, last: Kind | None = None) -> Iterator[Record]:
        """At least so many records, whole turns, and up to one of a kind: behind a checkpoint the state is the same."""
        for number, one in enumerate(self._records, 1):
            yield one
            if number >= record_count and not one.turn_remaining and last in (None, one.kind):
                return

    def _append(
        self, records: Iterable[Record], *, snapshot_offset: int = -1, later: int = 0
    ) -> None:
        writer = self.log.writer()
        left = iter(records)
        while group := list(islice(left, _GROUP)):
            stored = [
                self._made.stored(one, snapshot_offset=snapshot_offset, later=later)
                for one in group
            ]
            writer.append(stored, timeout_s=30.0)
        writer.close(timeout_s=5.0)

    def go_on_behind(self, snapshot: bytes) -> None:
        """Append the snapshot, and records that name it."""
        following = next(self._records)
        place = self.log.high_watermark()
        taken = Record(
            epoch=following.epoch,
            driver_id=following.driver_id,
            sequence=following.sequence,
            kind=Kind.SNAPSHOT,
            timestamp_us=following.timestamp_us,
            job_id=following.job_id,
            payload_type=SNAPSHOT_TYPE.key,
            payload=snapshot,
        )
        self._append([taken])
        self._append(chained([following], self._turns(_BEHIND)), snapshot_offset=place, later=1)

    def rounds(self) -> tuple[list[Whole], list[float]]:
        """Folds from the start beside reading alone, in turn."""
        count = max(1, min(_ROUNDS, _WHOLE_RECORDS // self.record_count))
        end = self.log.high_watermark()
        wholes, alone = [], []
        for _ in range(count):
            alone.append(_apart(read_alone, self.servers, self.log.topic, end))
            wholes.append(_apart(fold_whole, self.servers, self.job_id))
        return wholes, alone


def _check_history() -> None:
    """What is measured is a history like any other: its invariants hold, and its checkpoints are what they say."""
    made, log = LongHistory(), MemoryLog("bench")
    records = islice(made.records(), _CHECKED_RECORDS)
    log.writer().append([made.stored(one) for one in records], timeout_s=1.0)
    found = verify(log.records)
    assert found.fault_count == 0, found.faults
    assert found.checkpoint_count > 3, "beyond what the kernel has made"  # noqa: PLR2004


def measure_restore(bootstrap_servers: str, record_counts: Sequence[int]) -> list[Restore]:
    """Each history from its start; then all of them in turn from their snapshots: all meet the same machine."""
    _check_history()
    histories: list[_History] = []
    measured: list[tuple[list[Whole], list[float]]] = []
    try:
        for count in record_counts:
            histories.append(_History(bootstrap_servers, count))
            measured.append(histories[-1].rounds())
            histories[-1].go_on_behind(measured[-1][0][0].snapshot)
        taken: list[list[float]] = [[] for _ in histories]
        folded = [0] * len(histories)
        for _ in range(_ROUNDS):
            for number, history in enumerate(histories):
                seconds, folded[number] = _apart(restore, bootstrap_servers, history.job_id)
                taken[number].append(seconds)
        return [
            Restore(
                record_count=history.log.high_watermark(),
                whole_count=wholes[0].record_count,
                whole_seconds=median(one.seconds for one in wholes),
                alone_seconds=median(alone),
                ratio=median(raw / one.seconds for one, raw in zip(wholes, alone, strict=True)),
                rounds=len(wholes),
                megabytes_before=median(one.bytes_before for one in wholes) / 1e6,
                megabytes_peak=median(one.bytes_peak for one in wholes) / 1e6,
                state_bytes=wholes[0].state_bytes,
                folded=folded[number],
                seconds=median(taken[number]),
            )
            for number, (history, (wholes, alone)) in enumerate(
                zip(histories, measured, strict=True)
            )
        ]
    finally:
        for history in histories:
            history.log.delete()
            history.log.close()


def measure_snapshot(split_count: int) -> tuple[float, float, int, int]:
    """Of a source of so many splits: CPU milliseconds to encode and to decode, bytes before compression and after."""
    codec = SnapshotCodec(JobProjection(PayloadTypes(()), {"source": SPLITS}))
    state = JobState(projections=Map({"source": _splits(split_count)}))
    begin_slower_collector()
    began = time.process_time()
    made = codec.encode(state)
    encoded = time.process_time()
    payload = SNAPSHOT_TYPE.encode(made)
    between = time.process_time()
    codec.decode(made)
    decoded_s = time.process_time() - between
    end_slower_collector()
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
    default=(10_000, 100_000, 1_000_000),
    show_default=True,
    help="Lengths of histories; the longest takes some minutes.",
)
@click.option("--quick", is_flag=True, help="20,000 and 50,000 records: a minute or two.")
@broker_option
@output_option(RESULTS)
def main(
    *, record_counts: tuple[int, ...], quick: bool, bootstrap_servers: str | None, output: Path
) -> None:
    """Measure restores of histories of several lengths, with snapshots and without."""
    logging.disable(logging.WARNING)
    counts = (20_000, 50_000) if quick else record_counts
    with broker(bootstrap_servers) as servers:
        rows = measure_restore(servers, counts)
    console = Console(width=110)
    _show_restores(rows, console)
    table = Table(title="one snapshot of a file source's splits")
    for column in ("splits", "encode, CPU ms", "decode, CPU ms", "bytes", "compressed"):
        table.add_column(column, justify="right")
    snapshots = []
    for count in (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000):
        encode_ms, decode_ms, before, after = measure_snapshot(count)
        snapshots.append([count, encode_ms, decode_ms, before, after])
        table.add_row(
            f"{count:,}", f"{encode_ms:.1f}", f"{decode_ms:.1f}", f"{before:,}", f"{after:,}"
        )
    console.print(table)
    content = {
        "load": os.getloadavg(),
        "restores": [asdict(row) for row in rows],
        "snapshots": snapshots,
    }
    output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {output}")


def _show_restores(rows: Sequence[Restore], console: Console) -> None:
    table = Table(title="folds from the start, beside consuming and decoding alone")
    for column in (
        "records",
        "fold, s",
        "records/s",
        "alone",
        "ratio",
        "MB before",
        "peak",
        "state",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        rate = row.whole_count / row.whole_seconds
        table.add_row(
            f"{row.whole_count:,}",
            f"{row.whole_seconds:.2f}",
            f"{rate:,.0f}",
            f"{row.whole_count / row.alone_seconds:,.0f}",
            f"{row.ratio:.2f}",
            f"{row.megabytes_before:,.1f}",
            f"{row.megabytes_peak:,.1f}",
            f"{row.state_bytes:,}",
        )
    console.print(table)
    ratio = min(row.ratio for row in rows)
    met = "met" if ratio >= _RATIO_TARGET else "missed"
    console.print(f"lowest ratio {ratio:.2f}; the target is {_RATIO_TARGET} or more: {met}")
    table = Table(title=f"restores, {_BEHIND:,} records behind a snapshot")
    for column in ("records", "folded", "restore, s"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(f"{row.record_count:,}", f"{row.folded:,}", f"{row.seconds:.3f}")
    console.print(table)
    seconds = [row.seconds for row in rows]
    ratio = max(seconds) / min(seconds)
    met = "met" if ratio < _TARGET else "missed"
    console.print(f"slowest to quickest {ratio:.2f}; the target is below {_TARGET}: {met}")


if __name__ == "__main__":
    main()
