"""Watches a running job by a streaming query over its history, and prints alerts.

    python examples/alert.py JOB BOOTSTRAP_SERVERS [--checkpoint-seconds 60] [--wait-seconds 3600]

It may be started before the job: it waits for the job's log, for at most `--wait-seconds`.

There is an alert if an execution attempt or the whole job has failed, and if a checkpoint takes too
long, whether it still runs or not. There is none for events before the start of this program, except
for checkpoints that are still running. It stores nothing: the query begins with the log's first record
each time. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Row

from coordlog import list_jobs
from coordlog.spark_integration import history_session, history_stream, plain_interrupts

KINDS = """kind IN ('ATTEMPT_FAILED', 'GLOBAL_FAILURE', 'JOB_FAILED', 'CHECKPOINT_TRIGGERED',
                    'CHECKPOINT_COMPLETED', 'CHECKPOINT_ABORTED')"""


@dataclass
class Watch:
    """The watched state of a job, and the receiver of its alerts."""

    checkpoint_s: float
    """Time after which a checkpoint takes too long, seconds."""
    began_s: float
    """Start of the watch; seconds since 1970."""
    alert: Callable[[str], None]
    """Called with each alert."""
    pending: dict[int, float] = field(default_factory=dict)
    """Trigger times of the running checkpoints, by id; seconds since 1970."""
    late: set[int] = field(default_factory=set)
    """Ids of the running checkpoints that had an alert."""

    def apply(self, row: Row) -> None:
        """Apply the next record, in log order."""
        at_s = row.timestamp_us / 1_000_000
        if row.kind == "CHECKPOINT_TRIGGERED":
            self.pending[row.checkpoint_id] = at_s
        elif row.kind in ("CHECKPOINT_COMPLETED", "CHECKPOINT_ABORTED"):
            took_s = at_s - self.pending.pop(row.checkpoint_id, at_s)
            end = "completed" if row.kind == "CHECKPOINT_COMPLETED" else "was aborted"
            if at_s >= self.began_s and took_s > self.checkpoint_s:
                self.alert(f"checkpoint {row.checkpoint_id} {end} after {took_s:.1f} s")
        elif at_s >= self.began_s:
            attempt = f"attempt {row.attempt_number} of subtask {row.subtask}"
            whole = {"GLOBAL_FAILURE": "the whole job", "JOB_FAILED": "the job, for good,"}
            first_line = (row.reason or "for no reason").splitlines()[0]
            self.alert(f"{whole.get(row.kind, attempt)} failed: {first_line}")

    def check_pending(self, now_s: float) -> None:
        """Alert for late checkpoints. Call it now and then: a checkpoint that never ends writes no record."""
        for checkpoint_id, began_s in sorted(self.pending.items()):
            if now_s - began_s > self.checkpoint_s and checkpoint_id not in self.late:
                self.late.add(checkpoint_id)
                self.alert(f"checkpoint {checkpoint_id} runs since {now_s - began_s:.1f} s")


def wait_for_log(job: str, bootstrap_servers: str, limit_s: float) -> bool:
    """Wait until the job has a log, which its first start makes; False if it has none within `limit_s`."""
    until_s = time.monotonic() + limit_s
    is_waiting = False
    while job not in list_jobs(bootstrap_servers):
        if not is_waiting:
            print(f"waiting for job {job}: it has no log at {bootstrap_servers} yet", flush=True)
            is_waiting = True
        if time.monotonic() >= until_s:
            return False
        time.sleep(1)
    return True


def main() -> None:
    """Watch until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job")
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--checkpoint-seconds", type=float, default=60.0)
    parser.add_argument("--wait-seconds", type=float, default=3600.0)
    options = parser.parse_args()
    if not wait_for_log(options.job, options.bootstrap_servers, options.wait_seconds):
        parser.exit(1, f"job {options.job} has no log after {options.wait_seconds:g} s\n")

    def alert(text: str) -> None:
        print(f"ALERT {options.job}: {text}", flush=True)  # or a pager, a chat, a metric

    watch = Watch(options.checkpoint_seconds, time.time(), alert)

    def apply(batch: DataFrame, _batch_id: int) -> None:
        for row in batch.orderBy("offset").collect():
            watch.apply(row)

    spark = history_session(app_name="alert")
    records = history_stream(spark, options.job, bootstrap_servers=options.bootstrap_servers)
    query = (
        records.where("counts")
        .where(KINDS)
        .selectExpr(
            *("offset", "kind", "subtask", "attempt_number", "checkpoint_id", "reason"),
            "unix_micros(timestamp) AS timestamp_us",
        )
        .writeStream.foreachBatch(apply)
        .start()
    )
    print(f"watching {options.job}", flush=True)
    with plain_interrupts():
        try:
            while query.isActive:
                time.sleep(1)
                watch.check_pending(time.time())
        except KeyboardInterrupt:
            query.stop()
    query.awaitTermination()  # raises the query's error, if any


if __name__ == "__main__":
    main()
