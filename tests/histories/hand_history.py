"""Histories written by hand, record by record, for the tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coordlog.log.interface import UnstoredRecord
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    CheckpointTriggered,
    SplitFinished,
    SplitSkipped,
)
from coordlog.schemas.codec import encode_record, header_of
from coordlog.schemas.header import encode_header
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind, Record, record_key
from coordlog.schemas.source_types import AddSplits, Split, SplitsDiscovered
from coordlog.spark_integration.files.payloads import PublishFiles

BEGAN_US = 1_700_000_000_000_000
"""2023-11-14 22:13:20 UTC; each turn is a millisecond later than the one before."""

SOURCE, SINK = "source", "sink"


def unstored(record: Record) -> UnstoredRecord:
    """The record as a driver hands it to a log."""
    return UnstoredRecord(
        key=record_key(record).encode(),
        value=encode_record(record),
        header=encode_header(header_of(record)),
        timestamp_us=record.timestamp_us,
    )


@dataclass
class HandHistory:
    """Records in log order. `turn` gives each its place; what is void is put in by name."""

    job_id: str = "ingest"
    epoch_number: int = -1
    sequence: int = 0
    now_us: int = BEGAN_US
    records: list[UnstoredRecord] = field(default_factory=list)
    registered: set[str] = field(default_factory=set)

    def epoch(self) -> None:
        """The next driver takes over; whatever turn was not finished is void."""
        self.epoch_number += 1
        self.now_us += 1000
        record = replace(self.record(Kind.EPOCH_STARTED), sequence=None)
        self.records.append(unstored(record))

    def record(
        self,
        kind: Kind,
        attempt: tuple[int, int] | None = None,
        *,
        value: Payload | None = None,
        operator_id: str | None = None,
        subtask: int | None = None,
        checkpoint_id: int | None = None,
        event_id: int | None = None,
        last_barrier: int | None = None,
        cause: int | None = None,
        reason: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Record:
        """A record that has no place yet."""
        return Record(
            epoch=self.epoch_number,
            driver_id=f"driver-{self.epoch_number}",
            sequence=self.sequence,
            kind=kind,
            timestamp_us=self.now_us,
            job_id=self.job_id,
            operator_id=operator_id,
            subtask=subtask if attempt is None else attempt[0],
            attempt_number=None if attempt is None else attempt[1],
            checkpoint_id=checkpoint_id,
            event_id=event_id,
            last_barrier=last_barrier,
            cause=cause,
            payload_type=None if value is None else payload_type_of(value).key,
            payload=None if value is None else payload_type_of(value).encode(value),
            reason=reason,
            attributes=attributes or {},
        )

    def turn(self, *records: Record) -> int:
        """A turn of these, types before their first use; the sequence of its last record."""
        self.now_us += 1000
        whole: list[Record] = []
        for one in records:
            if one.payload_type is not None and one.payload_type not in self.registered:
                whole.append(self._registration(one.payload_type))
            whole.append(one)
        for index, one in enumerate(whole):
            placed = replace(
                one,
                epoch=self.epoch_number,
                sequence=self.sequence,
                turn_remaining=len(whole) - 1 - index,
                timestamp_us=self.now_us,
            )
            self.records.append(unstored(placed))
            self.sequence += 1
        return self.sequence - 1

    def void(self, record: Record, *, epoch: int, sequence: int, remaining: int = 0) -> None:
        """A record that the driver of that epoch wrote at a place where it does not count, or not yet."""
        placed = replace(
            record,
            epoch=epoch,
            driver_id=f"driver-{epoch}",
            sequence=sequence,
            turn_remaining=remaining,
        )
        self.records.append(unstored(placed))

    def foreign(self) -> None:
        """What another program has written to the topic."""
        self.records.append(
            UnstoredRecord(key=b"\xffnobody", value=b"\x00garbage", header=b"", timestamp_us=0)
        )

    def _registration(self, key: str) -> Record:
        self.registered.add(key)
        declared = next(t for t in TYPES if payload_type_of(t).key == key)
        return replace(
            self.record(Kind.TYPE_REGISTERED),
            payload_type=key,
            payload=payload_type_of(declared).schema_json.encode(),
            attributes={"fingerprint": f"{payload_type_of(declared).fingerprint:016x}"},
        )

    # What recurs.

    def started(self, attempt: tuple[int, int], restored_from: int, task: int) -> Record:
        """An attempt has registered."""
        return self.record(
            Kind.ATTEMPT_STARTED,
            attempt,
            checkpoint_id=restored_from,
            attributes={
                "stage_run": "0",
                "spark_task_attempt_id": str(task),
                "spark_attempt_number": "0",
                "host": "worker-1",
                "pid": str(100 + task),
            },
        )

    def assigned(self, attempt: tuple[int, int], event_id: int, *split_ids: str) -> Record:
        """Splits for an attempt."""
        return self.record(
            Kind.EVENT_TO_SUBTASK,
            attempt,
            operator_id=SOURCE,
            event_id=event_id,
            value=AddSplits(splits=[Split(split_id=one, content=b"\x01") for one in split_ids]),
        )

    def acked(self, attempt: tuple[int, int], event_id: int) -> Record:
        """An event's ack."""
        return self.record(Kind.EVENT_ACKED, attempt, operator_id=SOURCE, event_id=event_id)

    def finished(
        self,
        attempt: tuple[int, int],
        split_id: str,
        rows: int,
        barrier: int,
        *,
        kept: bool = False,
    ) -> Record:
        """The end of a split."""
        return self.record(
            Kind.SPLIT_FINISHED,
            attempt,
            operator_id=SOURCE,
            last_barrier=barrier,
            value=SplitFinished(split_id=split_id, rows=rows, bytes_read=rows, committables=[]),
            attributes={"kept": "true"} if kept else {},
        )

    def skipped(
        self, split_id: str, reason: str, attempt: tuple[int, int] | None = None, *said: int
    ) -> Record:
        """A split is skipped: by a command, or by a reader with rows and last barrier."""
        rows, barrier = said or (None, None)
        value = SplitSkipped(split_id=split_id, rows=rows)
        return self.record(
            Kind.FACT,
            attempt,
            operator_id=SOURCE,
            last_barrier=barrier,
            value=value,
            reason=reason,
        )

    def failed(self, attempt: tuple[int, int], reason: str) -> Record:
        """An attempt's end."""
        return self.record(Kind.ATTEMPT_FAILED, attempt, reason=reason)

    def completed(self, attempt: tuple[int, int]) -> Record:
        """A subtask's end."""
        snapshot = AttemptSnapshot(states=[], committables=[])
        return self.record(Kind.SUBTASK_COMPLETED, attempt, value=snapshot)

    def reset_subtask(self, subtask: int, checkpoint_id: int) -> Record:
        """A local failover's reset."""
        return self.record(Kind.SUBTASK_RESET, subtask=subtask, checkpoint_id=checkpoint_id)

    def of_checkpoint(
        self, kind: Kind, checkpoint_id: int, attempt: tuple[int, int] | None = None
    ) -> Record:
        """One step of a checkpoint."""
        operator = SOURCE if kind is Kind.COORDINATOR_CHECKPOINTED else None
        return self.record(kind, attempt, checkpoint_id=checkpoint_id, operator_id=operator)

    def checkpoint(self, checkpoint_id: int, *attempts: tuple[int, int]) -> None:
        """A whole checkpoint, up to its completion: a turn for each step."""
        self.turn(self.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, checkpoint_id))
        self.turn(self.of_checkpoint(Kind.COORDINATOR_CHECKPOINTED, checkpoint_id))
        for attempt in attempts:
            self.turn(self.of_checkpoint(Kind.CHECKPOINT_ACKED, checkpoint_id, attempt))
        self.turn(self.of_checkpoint(Kind.CHECKPOINT_COMPLETED, checkpoint_id))

    def commit(self, checkpoint_id: int, value: Payload | None = None) -> None:
        """An intent, and its outcome."""
        intent = self.record(
            Kind.COMMIT_INTENT, operator_id=SINK, checkpoint_id=checkpoint_id, value=value
        )
        cause = self.turn(intent)
        outcome = self.record(
            Kind.COMMIT_OUTCOME,
            operator_id=SINK,
            checkpoint_id=checkpoint_id,
            cause=cause,
            attributes={"settled": "true"},
        )
        self.turn(outcome)


TYPES: tuple[type[Payload], ...] = (
    AddSplits,
    AttemptSnapshot,
    CheckpointTriggered,
    PublishFiles,
    SplitFinished,
    SplitsDiscovered,
    SplitSkipped,
)


def discovery(history: HandHistory, *split_ids: str) -> Record:
    """A listing that has found these splits."""
    found = [Split(split_id=one, content=b"\x01") for one in split_ids]
    return history.record(
        Kind.FACT, operator_id=SOURCE, value=SplitsDiscovered(splits=found, is_complete=True)
    )


def streaming_history(job_id: str = "ingest") -> HandHistory:
    """Two subtasks, six splits: a local failover, another driver, a global failover, an end.

    With records that do not count: a doubled one, another program's, a turn that was cut off, a
    stale driver's.
    """
    one = HandHistory(job_id)
    one.epoch()
    one.turn(one.record(Kind.COORDINATORS_STARTED, attributes={"restore": "start"}))
    one.turn(discovery(one, "s0", "s1", "s2", "s3", "s4", "s5"))
    one.turn(one.started((0, 0), -1, 0))
    one.turn(one.started((1, 0), -1, 1))
    one.turn(one.assigned((0, 0), 0, "s0", "s1"), one.assigned((1, 0), 1, "s2"))
    one.turn(one.acked((0, 0), 0))
    one.turn(one.acked((1, 0), 1))
    one.turn(one.finished((0, 0), "s0", 100, -1))
    one.checkpoint(1, (0, 0), (1, 0))
    one.commit(1)
    one.turn(one.finished((1, 0), "s2", 50, 1))
    one.turn(one.assigned((1, 0), 2, "s3"))
    last = one.acked((1, 0), 2)
    acked = one.turn(last)
    one.void(last, epoch=0, sequence=acked)
    one.turn(one.failed((1, 0), "boom"), one.reset_subtask(1, 1))
    one.turn(one.started((1, 1), 1, 2))
    one.foreign()
    one.turn(one.assigned((0, 0), 3, "s3"))
    one.turn(one.finished((1, 1), "s2", 50, 1), one.finished((0, 0), "s1", 70, 1))
    one.void(one.acked((0, 0), 3), epoch=0, sequence=one.sequence, remaining=1)
    one.epoch()
    one.void(one.finished((0, 0), "s3", 20, 1), epoch=0, sequence=one.sequence)
    _after_the_take_over(one)
    return one


def _after_the_take_over(one: HandHistory) -> None:
    back = one.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=1, attributes={"restore": "rollback"})
    gone = "its driver is gone"
    one.turn(one.failed((0, 0), gone), one.failed((1, 1), gone), back)
    one.turn(one.started((0, 1), 1, 0))
    one.turn(one.started((1, 2), 1, 1))
    one.turn(one.assigned((1, 2), 4, "s3"), one.assigned((0, 1), 5, "s4"))
    one.turn(one.finished((0, 1), "s1", 70, 1))
    one.turn(one.finished((1, 2), "s2", 50, 1))
    one.turn(one.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 2))
    aborted = one.of_checkpoint(Kind.CHECKPOINT_ABORTED, 2)
    one.turn(replace(aborted, reason="not whole in time"))
    one.checkpoint(3, (0, 1), (1, 2))
    one.turn(one.record(Kind.GLOBAL_FAILURE, operator_id=SOURCE, reason="kaput"))
    back = one.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=3, attributes={"restore": "failover"})
    ends = [one.failed(attempt, "global failover") for attempt in ((0, 1), (1, 2))]
    one.turn(*ends, back)
    one.turn(one.started((0, 2), 3, 2))
    one.turn(one.started((1, 3), 3, 3))
    one.turn(one.finished((0, 2), "s4", 10, 3))
    one.turn(one.finished((1, 3), "s3", 20, 3))
    one.turn(one.completed((1, 3)))
    one.checkpoint(4, (0, 2))
    one.commit(4)


def batch_history(job_id: str = "nightly") -> HandHistory:
    """One subtask, two splits, resets to -1: a local one keeps a split, a global one does not."""
    one = HandHistory(job_id)
    one.epoch()
    one.turn(one.record(Kind.COORDINATORS_STARTED, attributes={"restore": "start"}))
    one.turn(one.started((0, 0), -1, 0))
    one.turn(one.assigned((0, 0), 0, "a", "b"))
    one.turn(one.finished((0, 0), "a", 5, -1, kept=True))
    one.turn(one.failed((0, 0), "killed"), one.reset_subtask(0, -1))
    one.turn(one.started((0, 1), -1, 1))
    one.turn(one.assigned((0, 1), 1, "b"))
    back = one.record(
        Kind.RESET_TO_CHECKPOINT, checkpoint_id=-1, attributes={"restore": "failover"}
    )
    one.turn(one.failed((0, 1), "global failover"), back)
    one.turn(one.started((0, 2), -1, 2))
    one.turn(one.assigned((0, 2), 2, "a", "b"))
    one.turn(one.finished((0, 2), "a", 5, -1, kept=True))
    one.turn(one.finished((0, 2), "b", 7, -1, kept=True))
    notified = one.record(
        Kind.COORDINATOR_NOTIFIED,
        operator_id=SOURCE,
        checkpoint_id=-1,
        attributes={"what": "complete"},
    )
    one.turn(one.completed((0, 2)), notified)
    one.commit(-1)
    one.turn(one.record(Kind.JOB_FINISHED))
    return one


def skipping_history(job_id: str = "skipping") -> HandHistory:
    """Two subtasks, five splits, three of them skipped: one in a checkpoint, one again after it, one by command."""
    one = HandHistory(job_id)
    one.epoch()
    one.turn(one.record(Kind.COORDINATORS_STARTED, attributes={"restore": "start"}))
    one.turn(discovery(one, "s0", "s1", "s2", "s3", "s4"))
    one.turn(one.started((0, 0), -1, 0))
    one.turn(one.started((1, 0), -1, 1))
    one.turn(one.assigned((0, 0), 0, "s0", "s1"), one.assigned((1, 0), 1, "s2"))
    one.turn(one.skipped("s0", "bad row", (0, 0), 30, -1))
    one.checkpoint(1, (0, 0), (1, 0))
    one.turn(one.skipped("s2", "cut off", (1, 0), 12, 1))
    one.turn(one.assigned((1, 0), 2, "s3"))
    one.turn(one.failed((1, 0), "boom"), one.reset_subtask(1, 1))
    one.turn(one.started((1, 1), 1, 2))
    one.turn(one.skipped("s2", "cut off", (1, 1), 5, 1))
    one.turn(one.skipped("s4", "not wanted"))
    one.turn(one.finished((0, 0), "s1", 70, 1))
    one.turn(one.assigned((1, 1), 3, "s3"))
    one.checkpoint(2, (0, 0), (1, 1))
    one.turn(one.finished((1, 1), "s3", 20, 2))
    one.turn(one.record(Kind.GLOBAL_FAILURE, operator_id=SOURCE, reason="kaput"))
    back = one.record(Kind.RESET_TO_CHECKPOINT, checkpoint_id=2, attributes={"restore": "failover"})
    ends = [one.failed(attempt, "global failover") for attempt in ((0, 0), (1, 1))]
    one.turn(*ends, back)
    one.turn(one.started((0, 1), 2, 3))
    one.turn(one.started((1, 2), 2, 4))
    return one
