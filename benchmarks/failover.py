"""From the SIGKILL of a worker to the first event or split of its replacement: `python -m benchmarks.failover`.

Beside it: a plain task of Spark whose worker is killed in the same way, until its second attempt runs its function; in
a plain session, and in turn in the session of coordlog, whose worker daemon serves plain tasks too. All have two tasks
and kill one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pyarrow as pa
from rich.console import Console

from coordlog.log.kafka import KafkaLog
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import FileSource, Job, ParquetSink, local_session
from coordlog.spark_integration.job_options import Callbacks

from .command import broker, broker_option, output_option
from .results import Row, show, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["measure_failover"]

RESULTS: Final = Path(__file__).parent / "failover.json"
_SUBTASKS: Final = 2
_FILES: Final = 600
_ROWS: Final = 2_000
_TARGET: Final = 1.2
_WAIT_S: Final = 60.0
_PLAIN_S: Final = 300.0
_WORK: Final = (Kind.EVENT_ACKED, Kind.EVENT_TO_COORDINATOR, Kind.SPLIT_FINISHED)
"""Kinds of records that show the work of an attempt."""
_CHECKPOINT: Final = 2
"""Checkpoint after which the worker is killed."""


@dataclass(eq=False)
class _Watch:
    """What the job has released so far. Filled on the mailbox's thread."""

    process_ids: dict[tuple[int, int], int] = field(default_factory=dict)
    """Process of each attempt, by subtask and number."""
    has_begun: threading.Event = field(default_factory=threading.Event)
    has_replacement: threading.Event = field(default_factory=threading.Event)
    handled_s: float = 0.0
    """Moment at which the replacement's first work was released, by the monotonic clock."""

    def released(self, records: Sequence[Record]) -> None:
        """See `Callbacks`."""
        for record in records:
            key = (record.subtask or 0, record.attempt_number or 0)
            if record.kind is Kind.ATTEMPT_STARTED:
                self.process_ids[key] = int(record.attributes["pid"])
            elif record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id == _CHECKPOINT:
                self.has_begun.set()
            elif record.kind in _WORK and key == (0, 1) and not self.handled_s:
                self.handled_s = time.monotonic()
                self.has_replacement.set()


def _slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.01)  # so that files are left when the worker is killed
    return batch


def local_failover(spark: SparkSession, bootstrap_servers: str, folder: Path) -> float:
    """Seconds from the kill of a worker of a job until work of its replacement is in the log."""
    job_id = f"failover-{uuid.uuid4().hex[:8]}"
    log = KafkaLog.for_job(job_id, bootstrap_servers)
    log.create()
    watch = _Watch()
    job = Job(
        job_id=job_id,
        log=log,
        source=FileSource(folder / "in", format="csv"),
        transform=_slow,
        sink=ParquetSink(folder / job_id),
        parallelism=_SUBTASKS,
        checkpoint_interval_s=0.5,
        callbacks=Callbacks(on_released=watch.released),
    )
    job.start(spark)
    try:
        assert watch.has_begun.wait(_WAIT_S), "no checkpoint completes"
        os.kill(watch.process_ids[0, 0], signal.SIGKILL)
        killed_s = time.monotonic()
        assert watch.has_replacement.wait(_WAIT_S), "no replacement works"
    finally:
        job.stop(with_checkpoint=False)
        job.wait(_WAIT_S)
        log.delete()
        log.close()
    return watch.handled_s - killed_s


def plain_retry(spark: SparkSession, folder: Path) -> float:
    """Seconds from the kill of a plain task's worker until the task's next attempt runs its function."""
    marks = folder / f"plain-{uuid.uuid4().hex[:8]}"
    marks.mkdir()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            tasks = spark.range(0, _SUBTASKS, 1, _SUBTASKS)
            tasks.mapInArrow(_plain_task(str(marks)), "id long").collect()
        except BaseException as error:  # noqa: BLE001, shown if it matters: by the wait below
            failures.append(error)

    thread = threading.Thread(target=run, name="plain tasks", daemon=True)
    thread.start()
    first = _content(marks / "0-0")
    os.kill(int(first.split()[0]), signal.SIGKILL)
    killed_s = time.monotonic()
    began_s = float(_content(marks / "0-1").split()[1])
    (marks / "end").touch()
    thread.join(_WAIT_S)
    assert not failures, failures
    return began_s - killed_s


def _plain_task(marks: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """A task that writes a mark when it begins, and ends once there is one that asks for it."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import os  # noqa: PLC0415, in the worker
        import time  # noqa: PLC0415, in the worker
        from pathlib import Path  # noqa: PLC0415, in the worker

        from pyspark import TaskContext  # noqa: PLC0415, in the worker

        for batch in batches:
            context = TaskContext.get()
            assert context is not None, "inside a Spark task"
            mark = Path(marks) / f"{batch.column(0)[0].as_py()}-{context.attemptNumber()}"
            draft = mark.with_suffix(".draft")
            draft.write_text(f"{os.getpid()} {time.monotonic()}")
            draft.rename(mark)
            while not (Path(marks) / "end").exists():
                time.sleep(0.02)
            yield batch

    return run


def _content(mark: Path) -> str:
    deadline = time.monotonic() + _WAIT_S
    while not mark.exists():
        assert time.monotonic() < deadline, f"no {mark.name}"
        time.sleep(0.01)
    return mark.read_text()


def _plain_session(rounds: int) -> list[float]:
    """Seconds of plain retries in a session without anything of coordlog's, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.failover", "--plain", "--rounds", str(rounds)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_PLAIN_S, check=True
    )
    return [float(line) for line in ran.stdout.splitlines()[-rounds:]]


def _show_plain(rounds: int) -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415, heavy

    master = f"local[{_SUBTASKS},1000]"
    spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        seconds = [plain_retry(spark, Path(folder)) for _ in range(rounds + 1)]
    print(*seconds[1:], sep="\n")
    spark.stop()


def measure_failover(bootstrap_servers: str, rounds: int) -> list[Row]:
    """Seconds from the kill of a worker, ours beside Spark's own; the first round of each does not count."""
    plain = _plain_session(rounds)
    spark = local_session(_SUBTASKS)
    ours: list[float] = []
    raw: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "in").mkdir()
        for number in range(_FILES):
            rows = "".join(f"{number},{row},some text\n" for row in range(_ROWS))
            (folder / "in" / f"{number:04}.csv").write_text("file,row,text\n" + rows)
        for _ in range(rounds + 1):
            raw.append(plain_retry(spark, folder))
            ours.append(local_failover(spark, bootstrap_servers, folder))
    task = "Spark's own retry of a task, worker killed → its function runs again"
    return [
        Row(
            name="local failover, worker killed → work in the log",
            unit="s",
            ours=tuple(ours[1:]),
            raw=tuple(plain),
            raw_is=f"{task}, in a plain session",
            better="lower",
            target=_TARGET,
        ),
        Row(
            name="the same, beside a plain task with coordlog's daemon",
            unit="s",
            ours=tuple(ours[1:]),
            raw=tuple(raw[1:]),
            raw_is=f"{task}, in coordlog's session",
            better="lower",
            target=None,
        ),
    ]


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Kills of each kind that count.")
@click.option("--quick", is_flag=True, help="One that counts: under a minute.")
@click.option("--plain", is_flag=True, hidden=True, help="Print the times of plain retries alone.")
@broker_option
@output_option(RESULTS)
def main(
    *, rounds: int, quick: bool, plain: bool, bootstrap_servers: str | None, output: Path
) -> None:
    """Measure local failovers beside Spark's own retries of tasks."""
    if plain:
        _show_plain(rounds)
        return
    console = Console(width=100)
    with broker(bootstrap_servers) as servers:
        rows = measure_failover(servers, 1 if quick else rounds)
    show(rows, console, "a local failover beside Spark's own retry")
    write(rows, output, quick=quick)
    console.print(f"written to {output}")


if __name__ == "__main__":
    main()
