"""Sends rules to an operator while rows flow and processes die; shows that no rule and no row is lost.

    python examples/rules.py [--seconds S] [--keep FOLDER]

A custom operator with its own coordinator is in the middle of the chain. The coordinator makes a rule
ten times a second, and one in the middle of each checkpoint. A Python worker is killed,
then the driver, which starts again and rolls back. Then the history of every rule is read from the
Kafka topic. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # this runs as a file; its parts are a package

from coordlog import KafkaLog, Kind, ensure_shared_broker
from examples.demo_parts.follow import Follower, NotSeenError, nth_of_kind, open_log
from examples.demo_parts.processes import WrongProcessError
from examples.demo_parts.tables import print_table
from examples.rules_parts.account import Account, read_account
from examples.rules_parts.coordinator import rules_spec
from examples.rules_parts.processes import DriverProcess
from examples.rules_parts.proof import Found, amount_of, find, lost_rules, problems

ROOT: Final = Path(__file__).resolve().parents[1]
PARALLELISM: Final = 2
ROWS: Final = 24_000
FILES: Final = 12
BATCH_ROWS: Final = 500
"""Rows of a batch, which takes a third of a second with the pause: long enough to kill during a checkpoint."""
RULE_INTERVAL_S: Final = 0.1
CHECKPOINT_INTERVAL_S: Final = 0.5

SECONDS: Final = 8.0
"""Duration of the rows' flow, without thrown-away work."""

WORKER_DIES_AFTER: Final = 3
DRIVER_DIES_AFTER: Final = 8
"""Completed checkpoints before the kill, which follows once the coordinators have cut the next checkpoint."""

LIMIT_S: Final = 120.0
REASON_CHARS: Final = 60

console = Console(highlight=False, markup=False, emoji=False)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Job, broker and folders of the example."""

    job_id: str
    servers: str
    folder: Path
    pause_s: float

    @property
    def source(self) -> Path:
        """Folder of the input files."""
        return self.folder / "in"

    @property
    def output(self) -> Path:
        """Folder of the output files."""
        return self.folder / "out"

    @property
    def spark_output(self) -> Path:
        """File with the output of the drivers and of Spark."""
        return self.folder / "driver.log"

    def start(self) -> DriverProcess:
        """Start the driver as a process of its own."""
        command = [__file__, "--driver", self.job_id, "--servers", self.servers]
        command += ["--keep", str(self.folder), "--pause", str(self.pause_s)]
        return DriverProcess(command, tag=self.job_id, output=self.spark_output)


def main() -> int:
    """Run the example, or be its driver; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long the rows flow")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there, remove nothing")
    parser.add_argument("--driver", metavar="JOB_ID", help=argparse.SUPPRESS)
    parser.add_argument("--servers", help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver is not None:
        setting = Setting(
            job_id=options.driver,
            servers=options.servers,
            folder=options.keep,
            pause_s=options.pause,
        )
        return be_the_driver(setting)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="coordlog-rules-"))
    try:
        return run(folder.resolve(), options.seconds, is_kept=options.keep is not None)
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def be_the_driver(setting: Setting) -> int:
    """Run the job itself: this is all that a user's program needs."""
    from coordlog import FileSource, Job, ParquetSink, local_session  # noqa: PLC0415, the parent needs no Spark

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("kafka").setLevel(logging.ERROR)
    os.environ["PYTHONPATH"] = str(ROOT)  # the workers import the operator by its name
    spark = local_session(PARALLELISM, app_name=setting.job_id)
    log = KafkaLog.for_job(setting.job_id, setting.servers)
    log.create()
    job = Job(
        job_id=setting.job_id,
        log=log,
        operators=[
            FileSource(setting.source, batch_rows=BATCH_ROWS),
            rules_spec(interval_s=RULE_INTERVAL_S, pause_s=setting.pause_s),
            ParquetSink(setting.output),
        ],
        parallelism=PARALLELISM,
        checkpoint_interval_s=CHECKPOINT_INTERVAL_S,
    )
    try:
        job.run(spark)
    finally:
        log.close()
        spark.stop()
    return 0


def run(folder: Path, seconds: float, *, is_kept: bool) -> int:
    """Set up, run and kill, then read the topic and compare; returns the exit status."""
    began_s = time.monotonic()
    broker = ensure_shared_broker(notify=say)
    setting = Setting(
        job_id=f"rules-{secrets.token_hex(3)}",
        servers=broker.bootstrap_servers,
        folder=folder,
        pause_s=seconds * PARALLELISM * BATCH_ROWS / ROWS,
    )
    write_input(setting.source)
    say(f"{ROWS:,} rows in {FILES} files; Spark's output goes to {setting.spark_output}")
    log = open_log(setting.job_id, setting.servers)
    try:
        wrong = kill_and_finish(setting, Follower(log))
        account = read_account(log)
        found = find(account, setting.output)
        wrong += problems(account, found, parallelism=PARALLELISM, row_count=ROWS)
        show(account, found)
        for line in wrong:
            say(f"WRONG: {line}", style="bold red")
        if not wrong:
            say_what_is_proved(found)
    except (NotSeenError, WrongProcessError, subprocess.TimeoutExpired, ValueError) as error:
        say(f"WRONG: {error}", style="bold red")
        for line in setting.spark_output.read_text(errors="replace").splitlines()[-30:]:
            say(f"    | {line}", style="dim")
        return 1
    finally:
        if not is_kept:
            log.delete()
        log.close()
    say(f"took {time.monotonic() - began_s:.0f} s")
    return 1 if wrong else 0


def write_input(folder: Path) -> None:
    """Write the rows, dealt out to the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        lines = [f"{n},{amount_of(n)}\n" for n in range(number, ROWS, FILES)]
        (folder / f"part-{number:02}.csv").write_text("id,amount\n" + "".join(lines))


def kill_and_finish(setting: Setting, follower: Follower) -> list[str]:
    """Kill a worker after some completed checkpoints, the driver after some more; returns the errors."""
    driver = setting.start()
    try:
        wait_for_checkpoints(follower, WORKER_DIES_AFTER, driver)
        starts = [record for record in follower.records if record.kind is Kind.ATTEMPT_STARTED]
        newest = starts[-1]
        pid = int(newest.attributes["pid"])
        driver.kill_worker(pid)
        say(
            f"KILLED the worker of attempt {newest.attempt_number} of subtask {newest.subtask} "
            f"(process {pid}) after {WORKER_DIES_AFTER} checkpoints, "
            "when the next had begun",
            style="bold yellow",
        )
        wait_for_checkpoints(follower, DRIVER_DIES_AFTER - WORKER_DIES_AFTER, driver)
        driver.kill()
        say(
            f"KILLED the driver (process {driver.pid}), its JVM and its workers, after "
            f"{DRIVER_DIES_AFTER} checkpoints, when the next had begun; "
            "starting it again",
            style="bold yellow",
        )
    finally:
        driver.kill()
    driver = setting.start()
    try:
        status = driver.wait(LIMIT_S)
    finally:
        driver.kill()
    return [f"the driver ended with status {status}"] if status else []


def wait_for_checkpoints(follower: Follower, count: int, driver: DriverProcess) -> None:
    """Wait until `count` more have completed and the next is in progress. Raises NotSeenError."""
    for awaited in (
        nth_of_kind(Kind.CHECKPOINT_COMPLETED, count),
        nth_of_kind(Kind.COORDINATOR_CHECKPOINTED, 1),
    ):
        follower.wait_for(awaited, is_over=lambda: driver.has_ended, limit_s=LIMIT_S)


def show(account: Account, found: Found) -> None:
    """Print the tables."""
    console.print()
    say(f"Fate of the rules (from the topic, {account.counted:,} records that count):")
    lost = lost_rules(account, found)
    held = [event_id for event_id, sent in account.sent.items() if sent.is_held]
    print_table(
        console,
        ["", "events"],
        [
            ("sent", len(account.sent)),
            ("held by a checkpoint", len(held)),
            ("    of these dropped", len(account.failed.keys() & set(held))),
            ("handled", len(account.acked)),
            ("dropped with their attempt", len(account.failed)),
            *((f"    {reason}", count) for reason, count in sorted(reasons(account).items())),
            ("lost", len(lost)),
        ],
    )
    console.print()
    say("State at the end:")
    print_table(
        console,
        ["subtask", "rules handled", "heard by coordinator", "rows", "rows committed"],
        [
            (
                subtask,
                operator.number,
                found.coordinator.view(subtask).applied,
                operator.rows,
                sum(row["subtask"] == subtask for row in found.rows),
            )
            for subtask, operator in sorted(found.operators.items())
        ],
    )
    console.print()
    kinds = account.kinds
    say(
        f"{kinds[Kind.EPOCH_STARTED]} drivers, {kinds[Kind.ATTEMPT_STARTED]} attempts, "
        f"{kinds[Kind.CHECKPOINT_COMPLETED]} checkpoints completed, "
        f"{kinds[Kind.CHECKPOINT_ABORTED]} aborted; {len(account.words):,} events to the "
        f"coordinator, {account.redelivered} redelivered"
    )
    say(f"lost: {len(lost)}", style="bold")


def reasons(account: Account) -> Counter[str]:
    """Number of dropped events by reason, which is shortened."""
    return Counter(
        textwrap.shorten(reason, REASON_CHARS, placeholder=" …")
        for reason in account.failed.values()
    )


def say_what_is_proved(found: Found) -> None:
    """Print the result in words."""
    say(
        "EXACT: each subtask has handled its rules 1, 2, 3 … once, in order, and the coordinator "
        "has heard so; "
        f"{len(found.rows):,} rows are committed, each input row once, counted without a gap, "
        "never with an older rule than the row before, each priced by its rule",
        style="bold green",
    )


def say(line: str, *, style: str | None = None) -> None:
    """Print a line without wrapping it."""
    console.print(line, style=style, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
