"""A whole job of files, in memory: the real driver, mailbox and attempts; threads where Spark has tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from coordlog.api.chain import Chain
from coordlog.log.interface import Log
from coordlog.log.memory import MemoryLog
from coordlog.restore.rebuild import Restored
from coordlog.runtime.driver import DriverOptions, JobDriver, JobResult
from coordlog.runtime.life.history_pruning import KeptHistory
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.transform import TransformFunction, transform_spec
from coordlog.testing.in_memory import InMemorySurroundings

__all__ = [
    "ALL_ROWS",
    "BATCH_ROWS",
    "FILES",
    "ROWS",
    "SUBTASKS",
    "WAIT_S",
    "KilledError",
    "Pipeline",
    "at",
    "kill_driver",
]

FILES, ROWS, BATCH_ROWS, SUBTASKS = 24, 40, 10, 3
ALL_ROWS = list(range(FILES * ROWS))
WAIT_S = 60.0


class KilledError(Exception):
    """The driver is killed by the test."""


class Pipeline:
    """Files in, Parquet out, one log; a driver after the other."""

    chain: Chain

    def __init__(self, folder: Path, *, is_batch: bool, transform: TransformFunction) -> None:
        self.folder, self.out = folder / "in", folder / "out"
        self.folder.mkdir()
        self.add_files(range(FILES))
        self.is_batch, self.transform, self.job_id = is_batch, transform, "job"
        self.source = FileSource(self.folder, batch_rows=BATCH_ROWS)
        self.log = MemoryLog("job")
        self.write_to(self.out)
        self.on_broker: Log | None = None
        """Instead of the one in memory."""
        self.restored: list[Restored] = []

    def skip_unreadable(self) -> None:
        """Go on without files that cannot be read. Before the first driver."""
        self.source = FileSource(self.folder, batch_rows=BATCH_ROWS, on_error="skip")
        self.write_to(self.out)

    def write_to(self, out: Path) -> None:
        """From the next driver on, write there."""
        self.out, self.sink = out, ParquetSink(out)
        self.chain = Chain(
            source=self.source.spec(),
            operators=[transform_spec(self.transform), self.sink.spec()],
        )

    def add_files(self, numbers: range) -> None:
        """Write some more files into the source, each with rows of its own."""
        for number in numbers:
            rows = range(number * ROWS, (number + 1) * ROWS)
            text = "a,b\n" + "".join(f"{row},x{row}\n" for row in rows)
            (self.folder / f"{number:03}.csv").write_text(text, encoding="utf-8")

    def drive(
        self,
        on_released: Callable[[JobDriver, InMemorySurroundings, Sequence[Record]], None]
        | None = None,
        *,
        restarts_max: int | None = None,
        parallelism: int = SUBTASKS,
        again: bool = False,
        from_checkpoint: int | None = None,
        is_take_over: bool = False,
    ) -> JobResult:
        """Run one driver to its end."""
        driver = self.begin(
            on_released,
            restarts_max=restarts_max,
            parallelism=parallelism,
            again=again,
            from_checkpoint=from_checkpoint,
            is_take_over=is_take_over,
        )
        result = driver.wait(WAIT_S)
        assert result is not None, f"not over within {WAIT_S} s"
        return result

    def begin(
        self,
        on_released: Callable[[JobDriver, InMemorySurroundings, Sequence[Record]], None]
        | None = None,
        *,
        restarts_max: int | None = None,
        parallelism: int = SUBTASKS,
        again: bool = False,
        from_checkpoint: int | None = None,
        is_take_over: bool = False,
        checkpoint_interval_s: float = 0.05,
        history: KeptHistory | None = None,
    ) -> JobDriver:
        """Start one driver."""
        self.sink.prepare(self.job_id)
        surroundings = InMemorySurroundings(self.chain, self.job_id, parallelism)

        def released(records: Sequence[Record]) -> None:
            if on_released is not None:
                on_released(driver, surroundings, records)

        driver = JobDriver(
            chain=self.chain,
            log=self.on_broker or self.log,
            options=DriverOptions(
                job_id=self.job_id,
                parallelism=parallelism,
                from_checkpoint=from_checkpoint,
                is_batch=self.is_batch,
                runtime=RuntimeOptions(
                    checkpoint_interval_s=None if self.is_batch else checkpoint_interval_s,
                    snapshot_every=20,
                ),
                restarts_max=restarts_max,
                restart_backoff_s=0.01,
                is_again=again,
                is_take_over=is_take_over,
                history=history,
            ),
            surroundings=surroundings,
            on_restored=self.restored.append,
            on_released=released,
        )
        driver.start()
        return driver

    def committed(self) -> list[int]:
        """The rows that anybody sees, sorted."""
        return sorted(pq.read_table(self.out).column("a").to_pylist())

    def left_over(self) -> list[Path]:
        """What is staged and not published."""
        return [p for p in (self.out / ".coordlog" / "staging").rglob("*") if p.is_file()]


Look = Callable[[JobDriver, InMemorySurroundings, Sequence[Record]], None]


def at(kind: Kind, count: int, act: Callable[[JobDriver, InMemorySurroundings], None]) -> Look:
    """Act once, when the history has so many records of a kind."""
    seen: list[Record] = []

    def look(
        driver: JobDriver, surroundings: InMemorySurroundings, records: Sequence[Record]
    ) -> None:
        before = len(seen)
        seen.extend(record for record in records if record.kind is kind)
        if before < count <= len(seen):
            act(driver, surroundings)

    return look


def kill_driver(driver: JobDriver, _surroundings: InMemorySurroundings) -> None:
    driver._mailbox.end(KilledError())
