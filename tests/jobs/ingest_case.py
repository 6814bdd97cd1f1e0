"""A small ingestion that is run as a command, killed, and compared with its source."""

from __future__ import annotations

import csv
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow.dataset as ds

from coordlog.log.kafka import KafkaLog
from coordlog.projections.tables.audit import Audit, audit
from coordlog.schemas.record import Kind, Record
from examples.demo_parts.follow import Follower, open_log
from examples.demo_parts.processes import IngestProcess, pids_with_tag

__all__ = ["FILES", "LIMIT_S", "ROWS", "IngestCase", "any_record_after", "kind_of"]

FILES: Final = 40
ROWS: Final = 200
"""In each file."""

LIMIT_S: Final = 120.0
"""Within which each run of the command must get where it is to get."""

_TRANSFORM: Final = """
import errno
import os
import signal
import time

FAILS = os.environ.get("TEST_TRANSFORM_FAILS")
SECONDS_PER_ROW = {seconds_per_row}

def slowly(batch):
    if FAILS == "space":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if FAILS == "killed":
        if 6650 in batch.column("id").to_pylist():
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory has run out
        return batch
    if FAILS:
        raise ValueError("this transform raises, on purpose")
    time.sleep(batch.num_rows * SECONDS_PER_ROW)
    return batch
"""


def any_record_after(count: int) -> Callable[[Record], bool]:
    """True at the first record of an attempt once so many records have counted."""
    seen = 0

    def is_it(record: Record) -> bool:
        nonlocal seen
        seen += 1
        return seen > count and record.attempt_number is not None

    return is_it


def kind_of(kind: Kind) -> Callable[[Record], bool]:
    """True at a record of that kind."""
    return lambda record: record.kind is kind


@dataclass(kw_only=True)
class IngestCase:
    """One job with its source, its destination and its command."""

    folder: Path
    servers: str
    arguments: list[str]
    seconds_per_row: float = 0.001
    environment: dict[str, str] = field(default_factory=dict)
    job_id: str = field(default_factory=lambda: f"case-{secrets.token_hex(4)}")
    runs: list[IngestProcess] = field(default_factory=list)
    logs: list[KafkaLog] = field(default_factory=list)
    expected: Counter[tuple[int, str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.source.mkdir(parents=True)
        for number in range(FILES):
            rows = (f"{i},name {i % 7},{i * 3}" for i in range(number * ROWS, (number + 1) * ROWS))
            text = "\n".join(["id,name,amount", *rows]) + "\n"
            (self.source / f"part-{number:02}.csv").write_text(text, encoding="utf-8")
        self.expected = self.rows_in()
        self.write_transform()

    def write_transform(self) -> None:
        """Write its function, as slow as it is to be from the next run on."""
        self.transform.write_text(
            _TRANSFORM.format(seconds_per_row=self.seconds_per_row), encoding="utf-8"
        )

    @property
    def source(self) -> Path:
        """Its folder of CSV files."""
        return self.folder / "in"

    @property
    def output(self) -> Path:
        """Its destination."""
        return self.folder / "out"

    @property
    def destination(self) -> str:
        """As the command is told."""
        return str(self.output)

    @property
    def transform(self) -> Path:
        """A file with a slow function."""
        return self.folder / "slow.py"

    @property
    def tag(self) -> str:
        """What all of its processes carry."""
        return self.job_id

    def start(
        self, *more: str, on_shared_broker: bool = False, **environment: str
    ) -> IngestProcess:
        """The command; `more` are further options."""
        arguments = [str(self.source), self.destination, "--job-id", self.job_id]
        if not on_shared_broker:
            arguments += ["--bootstrap-servers", self.servers]
        arguments += ["--parallelism", "2"]
        arguments += ["--batch-rows", "50", "--transform", f"{self.transform}:slowly"]
        run = IngestProcess(
            [*arguments, *self.arguments, *more],
            tag=self.tag,
            environment={
                "COORDLOG_HOME": str(self.folder / "home"),
                **self.environment,
                **environment,
            },
            show=lambda line: print(f"{self.job_id} | {line}"),
        )
        self.runs.append(run)
        return run

    def finish(self, *more: str, **environment: str) -> IngestProcess:
        """The command again, to its good end."""
        run = self.start(*more, on_shared_broker=False, **environment)
        assert run.wait(LIMIT_S) == 0, run.lines
        return run

    def follower(self) -> Follower:
        """Of its history; closed by `clear`."""
        log = open_log(self.job_id, self.servers)
        self.logs.append(log)
        return Follower(log)

    def clear(self) -> None:
        """End whatever is left of its runs."""
        for run in self.runs:
            run.clear()
        for log in self.logs:
            log.close()

    def rows_out(self) -> Counter[tuple[int, str, int]]:
        """What a reader finds now."""
        if not self.output.exists() or not list(self.output.glob("*.parquet")):
            return Counter()
        table = ds.dataset(self.output, format="parquet", ignore_prefixes=[".", "_"]).to_table(
            columns=["id", "name", "amount"]
        )
        return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def staged(self) -> list[str]:
        """What is left over of its attempts."""
        staged = self.output / ".coordlog" / "staging"
        return [str(path) for path in staged.rglob("*") if path.is_file()]

    def rows_in(self) -> Counter[tuple[int, str, int]]:
        """What the source holds, counted with the module `csv` alone."""
        counted: Counter[tuple[int, str, int]] = Counter()
        for path in self.source.glob("*.csv"):
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    counted[int(row["id"]), row["name"], int(row["amount"])] += 1
        return counted

    def check_partial(self) -> None:
        """No reader ever sees a row that is not in the source, or one twice."""
        assert not self.rows_out() - self.expected

    def check_whole(self) -> Audit:
        """All rows, each once; every split finished by one attempt; nothing left behind."""
        assert self.rows_out() == self.expected
        assert pids_with_tag(self.tag) == []
        assert self.staged() == []
        log = open_log(self.job_id, self.servers)
        try:
            found = audit(log.read(0, log.high_watermark()))
        finally:
            log.close()
        assert len(found.splits) == FILES
        assert {one.rows for one in found.splits} == {ROWS}
        return found
