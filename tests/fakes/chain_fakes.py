"""What an operator or a reader is given in tests, and how a reader is run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from coordlog.api.operator import FinishedSplit, PollStatus, SourceReader
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import SplitsDiscovered


@dataclass(kw_only=True)
class FakeContext:
    """An OperatorContext that keeps what is sent."""

    operator_id: str = "op"
    job_id: str = "ingest"
    driver_id: str = "driver-a"
    subtask: int = 0
    attempt_number: int = 0
    parallelism: int = 1
    restored_checkpoint: int = -1
    is_batch: bool = False
    sent: list[Payload] = field(default_factory=list)

    def send_event(self, event: Payload) -> None:
        """Keep it."""
        self.sent.append(event)

    def check_alive(self) -> None:
        """It is."""


@dataclass(kw_only=True)
class ReadOut:
    """What a reader has given."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    finished: list[FinishedSplit] = field(default_factory=list)
    at_end: bool = False

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """All of them, as plain values."""
        return [
            tuple(row)
            for batch in self.batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]


def contents(found: SplitsDiscovered) -> list[bytes]:
    return [split.content for split in found.splits]


def read_on(reader: SourceReader, out: ReadOut, *, batches_max: int | None = None) -> None:
    """Poll until the end, until nothing comes, or until so many more batches have come."""
    wanted = None if batches_max is None else len(out.batches) + batches_max
    idle = 0
    while wanted is None or len(out.batches) < wanted:
        poll = reader.poll()
        idle = idle + 1 if poll.status is PollStatus.WAITING and poll.retry_s else 0
        if poll.status is PollStatus.BATCH:
            assert poll.batch is not None
            out.batches.append(poll.batch)
        elif poll.status is PollStatus.SPLIT_FINISHED:
            assert poll.finished is not None
            out.finished.append(poll.finished)
        elif poll.status is PollStatus.END:
            out.at_end = True
            return
        if idle:
            return


def read_all(reader: SourceReader, splits: Sequence[bytes]) -> ReadOut:
    """All rows of `splits`, by a reader that is opened, fed and closed here."""
    out = ReadOut()
    try:
        reader.open(FakeContext(), None)
        reader.add_splits(splits)
        reader.notify_no_more_splits()
        read_on(reader, out)
    finally:
        reader.close()
    return out
