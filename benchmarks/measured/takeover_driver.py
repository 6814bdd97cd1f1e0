"""A driver of the take-over benchmark, as a process of its own: says in JSON lines when it has come how far."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence

BEGAN_S = time.monotonic()
"""Before anything else is imported: the clock is the machine's, so that the parent can compare."""

# Imports are a part of what is measured.
from coordlog.log.interface import (  # noqa: E402
    Log,
    LogIdentity,
    LogWriter,
    StoredRecord,
    UnstoredRecord,
)
from coordlog.log.kafka import KafkaLog  # noqa: E402
from coordlog.restore.rebuild import Restored  # noqa: E402
from coordlog.schemas.record import Kind, Record  # noqa: E402
from coordlog.spark_integration import Callbacks, FileSource, Job, ParquetSink, local_session  # noqa: E402

SUBTASKS = 4


def say(what: str, at_s: float | None = None, **more: float) -> None:
    """One line to the parent."""
    line = {"what": what, "at": time.monotonic() if at_s is None else at_s, **more}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class TimedLog:
    """A log that says how long the restore waits for it, and when the epoch has begun."""

    def __init__(self, inner: KafkaLog) -> None:
        self._inner = inner
        self.read_s = 0.0

    @property
    def identity(self) -> LogIdentity:
        """See `Log`."""
        return self._inner.identity

    def start_offset(self) -> int:
        """See `Log`."""
        return self._inner.start_offset()

    def high_watermark(self) -> int:
        """See `Log`."""
        return self._inner.high_watermark()

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """See `Log`."""
        records = self._inner.read(from_offset, to_offset, stall_s=stall_s)
        while True:
            began = time.perf_counter()
            one = next(records, None)
            self.read_s += time.perf_counter() - began
            if one is None:
                return
            yield one

    def writer(self) -> LogWriter:
        """See `Log`."""
        return _TimedWriter(self._inner.writer())

    def close(self) -> None:
        """See `Log`."""
        self._inner.close()


class _TimedWriter:
    _said = False

    def __init__(self, inner: LogWriter) -> None:
        self._inner = inner

    def append(self, records: Sequence[UnstoredRecord], *, timeout_s: float) -> Sequence[int]:
        """See `LogWriter`."""
        is_first, _TimedWriter._said = not _TimedWriter._said, True
        if is_first:
            say("folded")
        offsets = self._inner.append(records, timeout_s=timeout_s)
        if is_first:
            say("epoch_started")
        return offsets

    def close(self, *, timeout_s: float) -> None:
        """See `LogWriter`."""
        self._inner.close(timeout_s=timeout_s)


class _Released:
    """What the new driver's attempts have come to."""

    def __init__(self) -> None:
        self.attempts = 0
        self.has_event = False
        self.checkpoints = 0

    def __call__(self, records: Sequence[Record]) -> None:
        for one in records:
            if one.kind is Kind.ATTEMPT_STARTED:
                self.attempts += 1
                if self.attempts in (1, SUBTASKS):
                    say("first_attempt" if self.attempts == 1 else "last_attempt")
            elif one.kind is Kind.EVENT_TO_COORDINATOR and not self.has_event:
                self.has_event = True
                say("first_event")
            elif one.kind is Kind.CHECKPOINT_COMPLETED:
                self.checkpoints += 1
                say("checkpoint")


def main(job_id: str, bootstrap_servers: str, source: str, destination: str) -> None:
    """Drive the job until killed."""
    say("process", BEGAN_S)
    say("imported")
    spark = local_session(SUBTASKS)
    spark.range(1).count()
    say("spark")
    log = TimedLog(KafkaLog.for_job(job_id, bootstrap_servers))
    checked: Log = log
    say("connected")

    def restored(found: Restored) -> None:
        say("restored", records=found.record_count, read_s=log.read_s)

    job = Job(
        job_id=job_id,
        log=checked,
        source=FileSource(source, format="csv", batch_rows=200),
        sink=ParquetSink(destination),
        parallelism=SUBTASKS,
        checkpoint_interval_s=1.0,
        callbacks=Callbacks(on_restored=restored, on_released=_Released()),
    )
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job.run(spark)
    say("ended")


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
