"""From the SIGKILL of a driver to the first event that the next one handles: `python -m benchmarks.takeover [--quick]`.

Real broker, real Spark, four subtasks. A driver reads many small files, until some checkpoints have completed; it is
killed, and another process is started at once. What that one says of itself is set on one time line: Spark's own start
is shown apart, as a driver on a cluster that is up does not pay for it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Final

import click
from rich.console import Console
from rich.table import Table

from coordlog.log.kafka import KafkaLog

from .command import broker, broker_option, output_option

RESULTS: Final = Path(__file__).parent / "takeover.json"
_CHECKPOINTS: Final = 4
_FILES: Final = 4_000
_WAIT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Seconds of one take-over, part by part."""

    process: float
    """From the kill to the new process's first line."""
    imports: float
    spark: float
    """A session that has run something."""
    connect: float
    """Making the log's object: it connects when it is asked."""
    read: float
    """What the restore has waited for the log."""
    fold: float
    """The rest of what is done before a record is appended: decoding, the fold, checks, the endpoint."""
    epoch_started: float
    """The append, until the log has acknowledged it."""
    stage: float
    """Until the first attempt is in the log: the rollback, the stage's submission, Python workers."""
    first_event: float
    """Until the first of its events is handled."""
    last_attempt: float
    """From the first attempt to the last one; not on the way to the first event."""
    records: int
    """Folded."""

    @property
    def whole(self) -> float:
        """To the first event."""
        return (
            self.process
            + self.imports
            + self.spark
            + self.connect
            + self.read
            + self.fold
            + self.epoch_started
            + self.stage
            + self.first_event
        )


class _Driver:
    """A process that says how far it has come."""

    def __init__(self, output: Path, *arguments: str) -> None:
        self._output = output
        # An installed package has its bytecode; here the first driver compiles, and the second one reads it.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(output.parent / "bytecode")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.measured.takeover_driver", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output.open("ab"),
            text=True,
        )
        self._said: queue.SimpleQueue[dict[str, float | str]] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            if line.startswith('{"what"'):
                self._said.put(json.loads(line))

    def wait_for(self, what: str, times: int = 1) -> dict[str, dict[str, float]]:
        """All that it has said up to the how many-th time of this."""
        found: dict[str, dict[str, float]] = {}
        deadline = time.monotonic() + _WAIT_S
        while times:
            try:
                said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                told = self._output.read_text("utf-8", "replace")[-4_000:]
                raise TimeoutError(f"no {what!r} after {found}:\n{told}") from None
            name = str(said.pop("what"))
            found[name] = {key: float(value) for key, value in said.items()}
            times -= name == what
        return found

    def kill(self) -> float:
        """The moment of it, by the monotonic clock."""
        at = time.monotonic()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        return at


def measure_takeover(bootstrap_servers: str, folder: Path, job_id: str) -> TakeOver:
    """One take-over of a job of its own."""
    source = folder / "source"
    if not source.exists():
        _make(source)
    with_log = KafkaLog.for_job(job_id, bootstrap_servers)
    with_log.create()
    arguments = (job_id, bootstrap_servers, str(source), str(folder / job_id))
    output = folder / "output"
    first = _Driver(output, *arguments)
    try:
        first.wait_for("checkpoint", _CHECKPOINTS)
    finally:
        killed = first.kill()
    second = _Driver(output, *arguments)
    try:
        said = second.wait_for("first_event")
        if "last_attempt" not in said:
            said |= second.wait_for("last_attempt")
    finally:
        second.kill()
        with_log.delete()
        with_log.close()
    at = {name: one["at"] for name, one in said.items()}
    read = said["restored"]["read_s"]
    return TakeOver(
        process=at["process"] - killed,
        imports=at["imported"] - at["process"],
        spark=at["spark"] - at["imported"],
        connect=at["connected"] - at["spark"],
        read=read,
        fold=at["folded"] - at["connected"] - read,
        epoch_started=at["epoch_started"] - at["folded"],
        stage=at["first_attempt"] - at["epoch_started"],
        first_event=at["first_event"] - at["first_attempt"],
        last_attempt=at["last_attempt"] - at["first_attempt"],
        records=int(said["restored"]["records"]),
    )


def _make(folder: Path) -> None:
    folder.mkdir()
    for number in range(_FILES):
        rows = "".join(f"{number},{row},some text\n" for row in range(500))
        (folder / f"{number:06d}.csv").write_text("file,row,text\n" + rows)


_SHOWN: Final = (
    ("process", "process start"),
    ("imports", "imports"),
    ("read", "log read"),
    ("fold", "connection, decode, fold, checks, endpoint"),
    ("epoch_started", "EPOCH_STARTED appended"),
    ("stage", "rollback, stage, first attempt in the log"),
    ("first_event", "first event handled"),
)


@click.command()
@click.option(
    "--rounds", default=5, show_default=True, help="Take-overs, each of a job of its own."
)
@click.option("--quick", is_flag=True, help="One: under a minute.")
@broker_option
@output_option(RESULTS)
def main(*, rounds: int, quick: bool, bootstrap_servers: str | None, output: Path) -> None:
    """Measure take-overs, part by part."""
    count = 1 if quick else rounds
    console = Console(width=100)
    taken: list[TakeOver] = []
    with tempfile.TemporaryDirectory() as folder, broker(bootstrap_servers) as servers:
        for number in range(count):
            taken.append(measure_takeover(servers, Path(folder), f"takeover-{number}"))
            without = taken[-1].whole - taken[-1].spark
            console.print(f"take-over {number + 1}: {without:.2f} s without Spark's start")
    table = Table(title=f"a take-over, medians of {count}, seconds")
    table.add_column("part")
    table.add_column("s", justify="right")
    for name, shown in _SHOWN:
        table.add_row(shown, f"{median(getattr(one, name) for one in taken):.3f}")
    without = median(one.whole - one.spark for one in taken)
    table.add_row("in all, without Spark's start", f"{without:.3f}", end_section=True)
    table.add_row("Spark's start", f"{median(one.spark for one in taken):.3f}")
    table.add_row("from the kill to the first event", f"{median(one.whole for one in taken):.3f}")
    last = median(one.last_attempt for one in taken)
    table.add_row("from the first attempt to the fourth", f"{last:.3f}")
    console.print(table)
    console.print(f"records folded: {', '.join(str(one.records) for one in taken)}")
    content = {"load": os.getloadavg(), "rounds": [asdict(one) for one in taken]}
    output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {output}")


if __name__ == "__main__":
    main()
