"""Watches a job that runs, by a streaming query over its history, and says when something is wrong.

    python examples/alert.py JOB BOOTSTRAP_SERVERS [--checkpoint-seconds 60] [--wait-seconds 3600]

It may be started before the job: it waits for the job's log, for at most `--wait-seconds`.

Two things: an execution attempt, or the whole job, has failed; a checkpoint takes too long, whether
it still runs or not. What had happened before this was started is not told again, but for what is
pending. It keeps nothing: the query begins with the log's first record each time. Ctrl-C ends it.
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
    """What is known of a job, and whom to tell."""

    checkpoint_s: float
    began_s: float
    tell: Callable[[str], None]
    pending: dict[int, float] = field(default_factory=dict)
    """When each checkpoint was triggered that has not ended; seconds since 1970."""
    told: set[int] = field(default_factory=set)
    """The checkpoints that are known to be late."""

    def see(self, row: Row) -> None:
        """One more record, in log order."""
        at_s = row.timestamp_us / 1_000_000
        if row.kind == "CHECKPOINT_TRIGGERED":
            self.pending[row.checkpoint_id] = at_s
        elif row.kind in ("CHECKPOINT_COMPLETED", "CHECKPOINT_ABORTED"):
            took_s = at_s - self.pending.pop(row.checkpoint_id, at_s)
            what = "completed" if row.kind == "CHECKPOINT_COMPLETED" else "was aborted"
            if at_s >= self.began_s and took_s > self.checkpoint_s:
                self.tell(f"checkpoint {row.checkpoint_id} {what} after {took_s:.1f} s")
        elif at_s >= self.began_s:
            attempt = f"attempt {row.attempt_number} of subtask {row.subtask}"
            whole = {"GLOBAL_FAILURE": "the whole job", "JOB_FAILED": "the job, for good,"}
            first_line = (row.reason or "for no reason").splitlines()[0]
            self.tell(f"{whole.get(row.kind, attempt)} failed: {first_line}")

    def look(self, now_s: float) -> None:
        """To be called now and then: a checkpoint that never ends writes no record."""
        for checkpoint_id, began_s in sorted(self.pending.items()):
            if now_s - began_s > self.checkpoint_s and checkpoint_id not in self.told:
                self.told.add(checkpoint_id)
                self.tell(f"checkpoint {checkpoint_id} runs since {now_s - began_s:.1f} s")


def wait_for_log(job: str, bootstrap_servers: str, limit_s: float) -> bool:
    """Wait until the job has a log, which its first start makes; False if it has none within `limit_s`."""
    until_s = time.monotonic() + limit_s
    is_said = False
    while job not in list_jobs(bootstrap_servers):
        if not is_said:
            print(f"waiting for job {job}: it has no log at {bootstrap_servers} yet", flush=True)
            is_said = True
        if time.monotonic() >= until_s:
            return False
        time.sleep(1)
    return True


def main() -> None:
    """Watch until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job")
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--checkpoint-seconds", type=float, default=60.0)
    parser.add_argument("--wait-seconds", type=float, default=3600.0)
    options = parser.parse_args()
    if not wait_for_log(options.job, options.bootstrap_servers, options.wait_seconds):
        parser.exit(1, f"job {options.job} has no log after {options.wait_seconds:g} s\n")

    def tell(what: str) -> None:
        print(f"ALERT {options.job}: {what}", flush=True)  # or a pager, a chat, a metric

    watch = Watch(options.checkpoint_seconds, time.time(), tell)

    def see(batch: DataFrame, _batch_id: int) -> None:
        for row in batch.orderBy("offset").collect():
            watch.see(row)

    spark = history_session(app_name="alert")
    records = history_stream(spark, options.job, bootstrap_servers=options.bootstrap_servers)
    query = (
        records.where("counts")
        .where(KINDS)
        .selectExpr(
            *("offset", "kind", "subtask", "attempt_number", "checkpoint_id", "reason"),
            "unix_micros(timestamp) AS timestamp_us",
        )
        .writeStream.foreachBatch(see)
        .start()
    )
    print(f"watching {options.job}", flush=True)
    with plain_interrupts():
        try:
            while query.isActive:
                time.sleep(1)
                watch.look(time.time())
        except KeyboardInterrupt:
            query.stop()
    query.awaitTermination()  # raises what has ended it


if __name__ == "__main__":
    main()
