"""The memory of a long job: `python -m benchmarks.memory [--splits 100000]`.

One job reads that many small files. While it runs, the resident memory of its driver (this process) and of its Python
workers is sampled; what is shown is the mean of each tenth of the splits, from the second tenth on.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Self

import click
from rich.console import Console
from rich.table import Table

from coordlog.log.broker.embedded import embedded_broker
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import FileSource, Job, KafkaLog, ParquetSink, local_session
from coordlog.spark_integration.job_options import Callbacks

from .measured.small_files import make_small_files

RESULTS = Path(__file__).parent / "memory.json"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SLOTS = 2


def _resident(process_id: int) -> int:
    """Bytes; 0 where the process has gone."""
    try:
        return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _descendants(process_id: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    left = [process_id]
    while left:
        for child in children.get(left.pop(), []):
            found.append(child)
            left.append(child)
    return found


def _workers() -> list[int]:
    """The Python workers that Spark has started below this process."""
    found = []
    for one in _descendants(os.getpid()):
        try:
            command = (Path("/proc") / str(one) / "cmdline").read_bytes()
        except OSError:
            continue
        if b"pyspark.daemon" in command or b"pyspark/daemon" in command:
            found.append(one)
    return found


class _Samples:
    """Memory beside the number of splits that have ended."""

    def __init__(self) -> None:
        self.ended = 0
        self.taken: list[tuple[int, int, int]] = []
        """Splits ended, bytes of the driver, bytes of the largest worker."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory samples", daemon=True)

    def released(self, records: Sequence[Record]) -> None:
        """On the mailbox."""
        self.ended += sum(one.kind is Kind.SPLIT_FINISHED for one in records)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._is_over.wait(0.5):
            worker = max((_resident(one) for one in _workers()), default=0)
            self.taken.append((self.ended, _resident(os.getpid()), worker))


@click.command()
@click.option("--splits", default=100_000, show_default=True, help="Small files to read.")
def main(splits: int) -> None:
    """Read many small files, and show the memory of driver and workers."""
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as folder, embedded_broker() as broker:
        source = Path(folder) / "source"
        make_small_files(source, splits)
        log = KafkaLog.for_job("memory", broker.bootstrap_servers)
        log.create()
        samples = _Samples()
        job = Job(
            job_id="memory",
            log=log,
            source=FileSource(str(source), format="csv"),
            sink=ParquetSink(str(Path(folder) / "out")),
            parallelism=_SLOTS,
            checkpoint_interval_s=10,
            callbacks=Callbacks(on_released=samples.released),
        )
        began = time.perf_counter()
        with samples:
            job.run(local_session(_SLOTS))
        seconds = time.perf_counter() - began
        records = log.high_watermark()
        log.close()
    table = Table(title=f"{splits:,} splits in {seconds:,.0f} s, {records:,} records")
    for column in ("splits ended", "driver MB", "largest worker MB"):
        table.add_column(column, justify="right")
    rows = []
    for tenth in range(1, 10):
        part = [
            one for one in samples.taken if tenth * splits <= one[0] * 10 < (tenth + 1) * splits
        ]
        if part:
            driver, worker = mean(one[1] for one in part), mean(one[2] for one in part)
            rows.append({"splits": tenth * splits // 10, "driver": driver, "worker": worker})
            table.add_row(
                f"{tenth * splits // 10:,}", f"{driver / 1e6:,.1f}", f"{worker / 1e6:,.1f}"
            )
    console.print(table)
    content = {"splits": splits, "seconds": seconds, "records": records, "rows": rows}
    RESULTS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
