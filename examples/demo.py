"""Ingests real data twice, kills the processes that work on it, and shows that no row is lost or doubled.

    python examples/demo.py [--keep FOLDER] [--seconds-per-row S]

Part 1 streams: a Python worker is killed after the second completed checkpoint, the driver after
the fourth; it starts again and rolls back. Part 2 is batch: the driver is killed after 60 finished
files and resumes. The history in the Kafka topic, not a clock, decides when to kill.

The output is compared with a count made straight from the source by other means. The attempts and the
thrown-away work are read from the topic, by a fold in Python and by Spark SQL through
Spark's own Kafka source. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))  # this runs as a file; its parts are a package

from coordlog import Kind, audit, ensure_shared_broker
from examples.demo_parts.flights import as_text, cut, flights_csv
from examples.demo_parts.follow import Follower, NotSeenError, nth_of_kind, open_log
from examples.demo_parts.processes import IngestProcess, WrongProcessError
from examples.demo_parts.tables import (
    ATTEMPT_COLUMNS,
    THROWN_COLUMNS,
    Row,
    attempt_rows,
    print_table,
    thrown_rows,
    unequal,
)
from examples.demo_parts.tally import Tally, differences, tally_csv, tally_parquet
from examples.demo_parts.topic_sql import tables_in_sql

NULL: Final = "NA"
PARALLELISM: Final = 4
SECONDS_PER_ROW: Final = 0.0003
"""With four subtasks 336,776 rows take 25 s, and thrown-away work adds some more."""

WORKER_DIES_AFTER: Final = 2
DRIVER_DIES_AFTER: Final = 4
"""Completed checkpoints before the kill."""

SPLITS_BEFORE_KILL: Final = 60
LIMIT_S: Final = 120.0

WIDTH: Final = 120
"""Terminal columns that the tables need: a narrower terminal wraps them."""

console = Console(highlight=False, markup=False, emoji=False)
console.width = max(console.width, WIDTH)


@dataclass(kw_only=True)
class Part:
    """A part of the demo, and its errors."""

    job_id: str
    output: Path
    arguments: list[str]
    problems: list[str] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    thrown: list[Row] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Values that both parts share."""

    folder: Path
    source: Path
    servers: str
    tag: str
    expected: Tally
    seconds_per_row: float

    def start(self, part: Part) -> IngestProcess:
        """Start `coordlog ingest` of a part, in a session of its own."""
        transform = Path(__file__).parent / "demo_parts" / "slowed.py"
        arguments = [str(self.source), str(part.output), "--job-id", part.job_id]
        arguments += ["--null-value", NULL, "--parallelism", str(PARALLELISM)]
        arguments += ["--batch-rows", "500", "--transform", f"{transform}:slowed"]
        say("$ coordlog ingest " + " ".join([*arguments, *part.arguments]), style="dim")
        return IngestProcess(
            [*arguments, *part.arguments],
            tag=self.tag,
            environment={"DEMO_SECONDS_PER_ROW": str(self.seconds_per_row)},
            show=lambda line: say(f"    | {line}", style="dim"),
        )


Drive = Callable[[Setting, Part, Follower], None]


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there, remove nothing")
    parser.add_argument("--seconds-per-row", type=float, default=SECONDS_PER_ROW, metavar="S")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="coordlog-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    parts: list[Part] = []
    setting = None
    try:
        setting = set_up(folder, options.seconds_per_row)
        ready_s = time.monotonic()
        part = Part(
            job_id=f"demo-streaming-{setting.tag}",
            output=folder / f"streaming-{setting.tag}",
            arguments=["--checkpoint-interval", "1"],
        )
        parts.append(part)
        run_part("Part 1: streaming; a worker is killed, then the driver", setting, part, streaming)
        part = Part(
            job_id=f"demo-batch-{setting.tag}",
            output=folder / f"batch-{setting.tag}",
            arguments=["--batch"],
        )
        parts.append(part)
        run_part("Part 2: batch; the driver is killed", setting, part, batch)
        compare_with_sql(setting, [part for part in parts if part.attempts])
        status = conclude(parts, began_s, ready_s)
        if options.keep is not None:
            say(f"kept: {folder}, and the histories: coordlog history {parts[0].job_id}")
        return status
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
            forget(setting, parts)


def set_up(folder: Path, seconds_per_row: float) -> Setting:
    """Cut the input, count it by other means, and make sure that a broker runs."""
    console.rule("Setting up", style="bold")
    data = flights_csv()
    tag = secrets.token_hex(3)
    source = folder / f"flights-{tag}"
    paths = cut(data, source)
    sizes = sorted({path.read_bytes().count(b"\n") - 1 for path in paths}, reverse=True)
    say(f"{len(paths)} CSV files in {source}, of {', '.join(f'{n:,}' for n in sizes)} rows")
    began_s = time.monotonic()
    expected = tally_csv(as_text(data), null=NULL)
    say(
        f"counted straight from the source, by Python's csv module: {expected.rows:,} rows, "
        f"{len(expected.columns)} checksums, in {time.monotonic() - began_s:.1f} s"
    )
    say(
        f"the transform sleeps {seconds_per_row * 1000:g} ms for each row: "
        f"{expected.rows * seconds_per_row / PARALLELISM:.0f} s for {PARALLELISM} subtasks"
    )
    broker = ensure_shared_broker(notify=say)
    say(f"the shared broker is at {broker.bootstrap_servers}")
    return Setting(
        folder=folder,
        source=source,
        servers=broker.bootstrap_servers,
        tag=tag,
        expected=expected,
        seconds_per_row=seconds_per_row,
    )


def run_part(title: str, setting: Setting, part: Part, drive: Drive) -> None:
    """Run a part and kill its processes, then compare and show the results."""
    console.print()
    console.rule(title, style="bold")
    began_s = time.monotonic()
    log = open_log(part.job_id, setting.servers)
    try:
        follower = Follower(log)
        drive(setting, part, follower)
        audited = audit(log.read(log.start_offset(), log.high_watermark()))
    except (NotSeenError, WrongProcessError) as error:
        part.problems.append(str(error))
        return
    finally:
        log.close()
        say(f"this part took {time.monotonic() - began_s:.1f} s")
        for line in part.problems:
            say(f"WRONG: {line}", style="bold red")
    part.attempts, part.thrown = attempt_rows(audited.attempts), thrown_rows(audited.splits)
    compare_output(setting, part)
    show_tables(f"from the topic, {audited.record_count:,} records folded in Python", part)


def streaming(setting: Setting, part: Part, follower: Follower) -> None:
    """Kill a worker after the second completed checkpoint, the driver after the fourth."""
    process = setting.start(part)
    try:
        completed = nth_of_kind(Kind.CHECKPOINT_COMPLETED, WORKER_DIES_AFTER)
        offset, _ = follower.wait_for(completed, is_over=lambda: process.has_ended, limit_s=LIMIT_S)
        starts = [record for record in follower.records if record.kind is Kind.ATTEMPT_STARTED]
        newest = starts[-1]
        pid = int(newest.attributes["pid"])
        process.kill_worker(pid)
        say(
            f"KILLED the worker of attempt {newest.attempt_number} of subtask {newest.subtask} "
            f"(process {pid}) after checkpoint {WORKER_DIES_AFTER}, at offset {offset}",
            style="bold yellow",
        )
        more = nth_of_kind(Kind.CHECKPOINT_COMPLETED, DRIVER_DIES_AFTER - WORKER_DIES_AFTER)
        offset, _ = follower.wait_for(more, is_over=lambda: process.has_ended, limit_s=LIMIT_S)
        kill_driver(process, f"after {DRIVER_DIES_AFTER} completed checkpoints, at offset {offset}")
    finally:
        process.clear()
    finish(setting, part)


def batch(setting: Setting, part: Part, follower: Follower) -> None:
    """Kill the driver after a number of finished splits."""
    process = setting.start(part)
    try:
        finished = nth_of_kind(Kind.SPLIT_FINISHED, SPLITS_BEFORE_KILL)
        offset, _ = follower.wait_for(finished, is_over=lambda: process.has_ended, limit_s=LIMIT_S)
        kill_driver(process, f"after {SPLITS_BEFORE_KILL} finished splits, at offset {offset}")
    finally:
        process.clear()
    finish(setting, part)


def kill_driver(process: IngestProcess, when: str) -> None:
    """Send SIGKILL to the driver; the processes that it had started end by themselves."""
    pid = process.pid
    seconds = process.kill()
    say(f"KILLED the driver (process {pid}) {when}", style="bold yellow")
    say(f"its JVM and workers were gone {seconds:.1f} s later; the same command again:")


def finish(setting: Setting, part: Part) -> None:
    """Run the same command again, to its end."""
    process = setting.start(part)
    try:
        status = process.wait(LIMIT_S)
        if status:
            part.problems.append(f"coordlog ingest ended with status {status}")
    finally:
        process.clear()


def compare_output(setting: Setting, part: Part) -> None:
    """Compare the written files with the independent count."""
    tally = tally_parquet(part.output)
    wrong = differences(setting.expected, tally)
    part.problems += wrong
    for line in wrong:
        say(f"WRONG: {line}", style="bold red")
    if not wrong:
        nulls = sum(column.nulls for column in tally.columns.values())
        say(
            f"EXACT: {tally.rows:,} rows in {part.output}; the checksums of "
            f"{len(tally.columns) - 1} columns and of whole rows are those of the source, "
            f"and so are {nulls:,} nulls",
            style="bold green",
        )


def show_tables(by: str, part: Part) -> None:
    """Print both tables."""
    console.print()
    say(f"Execution attempts ({by}):", style="bold")
    print_table(console, ATTEMPT_COLUMNS, part.attempts)
    console.print()
    say(f"Work on splits that was thrown away ({len(part.thrown)}):", style="bold")
    print_table(console, THROWN_COLUMNS, part.thrown)


def compare_with_sql(setting: Setting, parts: Sequence[Part]) -> None:
    """Compare with the same tables from Spark SQL over the topics."""
    if not parts:
        return
    console.print()
    console.rule("The same, in Spark SQL over the topics: format('kafka'), from_avro", style="bold")
    began_s = time.monotonic()
    output = setting.folder / f"sql-{setting.tag}.log"
    say(f"Spark's output goes to {output}", style="dim")
    tables = tables_in_sql([part.job_id for part in parts], setting.servers, output)
    for part, (attempts, thrown) in zip(parts, tables, strict=True):
        wrong = unequal("attempts", part.attempts, attempts)
        wrong += unequal("thrown-away splits", part.thrown, thrown)
        part.problems += wrong
        console.print()
        say(f"{part.job_id}.log", style="bold")
        print_table(console, ATTEMPT_COLUMNS, attempts)
        console.print()
        print_table(console, THROWN_COLUMNS, thrown)
        for line in wrong:
            say(f"WRONG: {line}", style="bold red")
        if not wrong:
            say(
                f"EQUAL: {len(attempts)} attempts and {len(thrown)} thrown-away splits, "
                "the same as by the fold",
                style="bold green",
            )
    say(f"took {time.monotonic() - began_s:.1f} s")


def conclude(parts: Sequence[Part], began_s: float, ready_s: float) -> int:
    """Print all errors and the times; returns the exit status."""
    console.print()
    console.rule("The end", style="bold")
    problems = [f"{part.job_id}: {line}" for part in parts for line in part.problems]
    for line in problems:
        say(line, style="bold red")
    now_s = time.monotonic()
    say(
        f"{'SOMETHING DIFFERS' if problems else 'all is exact and equal'}: "
        f"{now_s - ready_s:.0f} s, and {ready_s - began_s:.0f} s of set-up before",
        style="bold red" if problems else "bold green",
    )
    return 1 if problems else 0


def forget(setting: Setting | None, parts: Sequence[Part]) -> None:
    """Remove the topics of the demo's jobs."""
    if setting is None:
        return
    for part in parts:
        log = open_log(part.job_id, setting.servers)
        try:
            log.delete()
        finally:
            log.close()


def say(line: str, *, style: str | None = None) -> None:
    """Print a line without wrapping it."""
    console.print(line, style=style, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
