"""`coordlog ingest --bad-rows DIR`, whose worker and driver are killed: each line is a row or a reject, once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.schemas.record import Kind
from examples.demo_parts.processes import WrongProcessError
from jobs.ingest_case import FILES, LIMIT_S, ROWS, IngestCase, any_record_after
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kill,
    pytest.mark.slow,
]

BAD = 25
"""Bad rows in each file, among the good ones."""
RECORDS_BEFORE_A_KILL = 90

_TRANSFORM = """
import time

from coordlog.spark_integration import row_transform

@row_transform
def slowly(batch):
    if -1 in batch.column("amount").to_pylist():
        raise ValueError("an amount below 0")
    time.sleep(batch.num_rows * {seconds_per_row})
    return batch
"""


@dataclass(kw_only=True)
class BadRowsCase(IngestCase):
    """A case whose files have bad rows too, and rows at which the transform raises."""

    def __post_init__(self) -> None:
        super().__post_init__()  # which counts the good rows
        kinds = (
            "{},ragged\n",
            "no number {},x,1\n",
            "{},too,1,long\n",
            "{},refused,-1\n",
            '{},"open,1\n',
        )
        for number, path in enumerate(sorted(self.source.glob("*.csv"))):
            lines = path.read_text("utf-8").splitlines(keepends=True)
            for index in range(BAD):
                # A quote that is opened and not closed is the last of its file, or it would take rows with it.
                kind = kinds[4] if index == 0 else kinds[index % 4]
                at = len(lines) if index == 0 else 1 + index * 8 % ROWS
                lines.insert(at, kind.format(number * BAD + index))
            path.write_text("".join(lines), encoding="utf-8")

    def write_transform(self) -> None:
        """Write a function that works row by row."""
        text = _TRANSFORM.format(seconds_per_row=self.seconds_per_row)
        self.transform.write_text(text, encoding="utf-8")

    @property
    def rejects(self) -> Path:
        """The folder of rejects."""
        return self.folder / "rejects"

    def rejects_out(self) -> Counter[tuple[str, int | None, int | None, str]]:
        """The rejects that a reader finds now."""
        if not list(self.rejects.glob("*.parquet")):
            return Counter()
        table = ds.dataset(self.rejects, format="parquet", ignore_prefixes=[".", "_"]).to_table()
        assert table.column_names == ["file", "line", "offset", "reason", "row"]
        assert all(table.column("reason").to_pylist())
        columns = (table.column(name).to_pylist() for name in ("file", "line", "offset", "row"))
        return Counter(zip(*columns, strict=True))

    def rejects_in(self) -> Counter[tuple[str, int | None, int | None, str]]:
        """The bad rows of the source, found by their text alone."""
        found: Counter[tuple[str, int | None, int | None, str]] = Counter()
        for path in self.source.glob("*.csv"):
            offset = 0
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
                text = line.decode().rstrip("\n")
                if any(word in text for word in ("ragged", "no number", "too,1", '"open')):
                    found[str(path), number, offset, text] += 1
                if ",refused," in text:
                    row = json.dumps(
                        {"id": int(text.split(",")[0]), "name": "refused", "amount": -1}
                    )
                    found[str(path), None, None, row] += 1
                offset += len(line)
        return found

    def check_partial(self) -> None:
        """As for rows: nothing is there twice."""
        super().check_partial()
        assert not self.rejects_out() - self.rejects_in()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_rows_and_rejects_are_all_lines_each_once_whatever_dies(
    mode: str, tmp_path: Path, broker: EmbeddedBroker, seed: int
) -> None:
    chance = random.Random(seed)
    arguments = ["--batch"] if mode == "batch" else ["--checkpoint-interval", "0.5"]
    case = BadRowsCase(
        folder=tmp_path / "case",
        servers=broker.bootstrap_servers,
        arguments=[
            *arguments,
            "--schema",
            "id bigint, name string, amount bigint",
            "--bad-rows",
            str(tmp_path / "case" / "rejects"),
        ],
    )
    try:
        run = case.start()
        follower = case.follower()
        for victim in ("worker", "driver"):
            follower.wait_for(
                any_record_after(chance.randrange(RECORDS_BEFORE_A_KILL)),
                is_over=lambda: run.has_ended,
                limit_s=LIMIT_S,
            )
            if victim == "driver":
                run.kill()
            else:
                started = [o for o in follower.records if o.kind is Kind.ATTEMPT_STARTED]
                try:
                    run.kill_worker(int(chance.choice(started).attributes["pid"]))
                except WrongProcessError as error:
                    print(f"it had gone before: {error}")
            case.check_partial()
        last = case.finish()
        audit = case.check_whole()

        assert case.rejects_out() == case.rejects_in()
        assert case.rows_out().total() + case.rejects_out().total() == FILES * (ROWS + BAD)
        assert {one.rejected for one in audit.splits} == {BAD}
        assert any(
            f"{FILES * BAD:,} in {FILES} splits, written to {case.rejects}" in one
            for one in last.lines
        )
        shown = subprocess.run(
            [
                *(str(Path(sys.executable).with_name("coordlog")), "splits", case.job_id),
                *("--bootstrap-servers", broker.bootstrap_servers),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_S,
        )
        assert "BAD ROWS" in shown.stdout
    finally:
        case.clear()
