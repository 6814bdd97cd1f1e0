"""A log in memory: the port's contract, with faults that a test scripts.

Nothing here is random: a fault is scripted, and a record in flight arrives when the test calls for
it. Events at a broker (a late arrival, a lost tail, another topic of the same name) are methods here.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from coordlog.errors import AppendRefusedError, LogUnavailableError, OutOfRangeError
from coordlog.log.interface import LogIdentity, LogWriter, StoredRecord, UnstoredRecord

__all__ = [
    "Fail",
    "Fault",
    "Faults",
    "Meanwhile",
    "MemoryLog",
    "OnTheWay",
    "Refuse",
    "Slow",
    "Unknown",
]

_RECORD_BYTES_MAX: Final = 1_048_588
"""Default of a Kafka topic's `max.message.bytes`."""

_topic_ids: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Fail:
    """The append's outcome is unknown to the writer; nothing of it is stored, now or later."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The append's outcome is unknown to the writer.

    Attributes:
        stored: Indices of the records that are stored at once. The others are in flight: see
            `MemoryLog.arrive`. None: all are stored, and only the acknowledgement is lost.
    """

    stored: tuple[int, ...] | None = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """The append is refused for good; nothing is stored."""

    problem: str = "scripted"


@dataclass(frozen=True, slots=True)
class Slow:
    """The append takes `seconds`.

    Above the writer's timeout its outcome is unknown, with all its records in flight.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """The append succeeds; before its record number `before` is stored, `do` is called."""

    do: Callable[[], None]
    before: int = 0


Fault = Fail | Unknown | Refuse | Slow | Meanwhile


@dataclass(frozen=True, slots=True)
class OnTheWay:
    """A record whose outcome is unknown and that has not arrived."""

    number: int
    """Number in the order of sending, for the whole life of the log."""
    seen_by: str
    """The name under which its writer's log was seen."""
    record: UnstoredRecord


class Faults:
    """The script of faults, by name, as in `MemoryLog.seen_by`; "" is the log itself."""

    def __init__(self) -> None:
        self._appends: dict[str, deque[Fault]] = defaultdict(deque)
        self._reads: dict[str, int] = defaultdict(int)
        self.is_gone = False
        """While True every call fails: appends store nothing, reads and queries find no log."""

    def next_append(self, *faults: Fault | None, of: str = "") -> None:
        """Script the next appends of the writers of `of`, one each; None is an append that succeeds."""
        self._appends[of].extend(
            Meanwhile(lambda: None) if fault is None else fault for fault in faults
        )

    def next_reads(self, count: int, *, of: str = "") -> None:
        """Let the next `count` reads and queries of `of` fail."""
        self._reads[of] += count

    def append_of(self, name: str) -> Fault | None:
        """Fault of the append that a writer of `name` begins now, or None; for the log."""
        if self.is_gone:
            return Fail()
        script = self._appends[name]
        return script.popleft() if script else None

    def read_fails(self, name: str) -> bool:
        """Whether the read or query that `name` begins now fails; for the log."""
        if self.is_gone:
            return True
        if self._reads[name]:
            self._reads[name] -= 1
            return True
        return False


class _Partition:
    """The stored records; shared by all views of the same log."""

    def __init__(self, identity: LogIdentity, record_bytes_max: int) -> None:
        self.lock = threading.RLock()
        self.identity = identity
        self.record_bytes_max = record_bytes_max
        self.start = 0
        self.records: list[StoredRecord] = []
        self.on_the_way: list[OnTheWay] = []
        self.sent = 0
        self.faults = Faults()

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def store(self, record: UnstoredRecord) -> int:
        with self.lock:
            offset = self.end
            self.records.append(
                StoredRecord(
                    offset=offset,
                    key=record.key,
                    value=record.value,
                    header_bytes=record.header or None,
                    timestamp_ms=record.timestamp_us // 1000,
                )
            )
            return offset

    def send(self, seen_by: str, records: Sequence[UnstoredRecord]) -> None:
        with self.lock:
            for record in records:
                self.on_the_way.append(OnTheWay(self.sent, seen_by, record))
                self.sent += 1


def _identity(name: str) -> LogIdentity:
    return LogIdentity(
        cluster_id="memory",
        topic_id=f"memory-{next(_topic_ids)}",
        name=f"{name} in memory",
        topic=name,
    )


class MemoryLog:
    """A log in memory, for tests and simulations; safe to use from any thread.

    Args:
        name: For messages.
        record_bytes_max: A larger record is refused.
        sleep: Called with the seconds of a slow append.
    """

    def __init__(
        self,
        name: str = "memory.log",
        *,
        record_bytes_max: int = _RECORD_BYTES_MAX,
        sleep: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._partition = _Partition(_identity(name), record_bytes_max)
        self._name = name
        self._seen_by = ""
        self._sleep = sleep

    # The port.

    @property
    def identity(self) -> LogIdentity:
        """The log's identity; another one after `recreate`."""
        return self._partition.identity

    def start_offset(self) -> int:
        """As in the port."""
        self._ask("asking for its start")
        return self._partition.start

    def high_watermark(self) -> int:
        """As in the port."""
        self._ask("asking for its high watermark")
        return self._partition.end

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """As in the port. Returns the records of this moment: later changes do not show."""
        del stall_s  # nothing here takes time
        self._ask("reading")
        partition = self._partition
        with partition.lock:
            if not partition.start <= from_offset <= to_offset <= partition.end:
                wrong = from_offset if from_offset < partition.start else to_offset
                raise OutOfRangeError(
                    partition.identity.name, wrong, partition.start, partition.end
                )
            return iter(
                partition.records[from_offset - partition.start : to_offset - partition.start]
            )

    def writer(self) -> LogWriter:
        """As in the port."""
        return _MemoryWriter(self._partition, self._seen_by, self._sleep)

    def delete_below(self, offset: int) -> None:
        """As in the port."""
        self._ask("deleting records")
        partition = self._partition
        with partition.lock:
            if offset > partition.end:
                raise OutOfRangeError(
                    partition.identity.name, offset, partition.start, partition.end
                )
            if offset > partition.start:
                self.remove_below(offset)

    def close(self) -> None:
        """As in the port; nothing is held."""

    def _ask(self, doing: str) -> None:
        if self._partition.faults.read_fails(self._seen_by):
            raise LogUnavailableError(self.identity.name, doing, 0.0, "scripted")

    # For tests.

    @property
    def faults(self) -> Faults:
        """The script of faults; shared by all views of this log."""
        return self._partition.faults

    def seen_by(self, name: str) -> MemoryLog:
        """A view of the same log for another user: faults scripted for `name` affect this view alone."""
        seen = MemoryLog(self._name, sleep=self._sleep)
        seen._partition = self._partition
        seen._seen_by = name
        return seen

    @property
    def records(self) -> tuple[StoredRecord, ...]:
        """All stored records."""
        with self._partition.lock:
            return tuple(self._partition.records)

    def store(self, *records: UnstoredRecord) -> None:
        """Store records that no writer here has sent. An empty header means none."""
        for record in records:
            self._partition.store(record)

    @property
    def on_the_way(self) -> tuple[OnTheWay, ...]:
        """Records that were sent, may arrive, and have not."""
        with self._partition.lock:
            return tuple(self._partition.on_the_way)

    def arrive(self, *numbers: int) -> None:
        """Let these records arrive, in this order; without numbers all, as they were sent."""
        partition = self._partition
        with partition.lock:
            waiting = {sent.number: sent for sent in partition.on_the_way}
            for number in numbers or tuple(waiting):
                partition.store(waiting.pop(number).record)
            partition.on_the_way = list(waiting.values())

    def never(self, *numbers: int) -> None:
        """Let these records never arrive; without numbers all that are in flight."""
        partition = self._partition
        with partition.lock:
            gone = frozenset(numbers or (sent.number for sent in partition.on_the_way))
            partition.on_the_way = [
                sent for sent in partition.on_the_way if sent.number not in gone
            ]

    def remove_below(self, offset: int) -> None:
        """Retention has removed every record below `offset`."""
        partition = self._partition
        with partition.lock:
            assert partition.start <= offset <= partition.end
            del partition.records[: offset - partition.start]
            partition.start = offset

    def lose_from(self, offset: int) -> None:
        """The log has lost every record from `offset` on, acknowledged or not."""
        partition = self._partition
        with partition.lock:
            assert partition.start <= offset <= partition.end
            del partition.records[offset - partition.start :]

    def recreate(self) -> None:
        """The topic has been deleted, and an empty topic of the same name was created."""
        partition = self._partition
        with partition.lock:
            partition.identity = _identity(self._name)
            partition.start = 0
            partition.records.clear()


class _MemoryWriter:
    """A writer of a `MemoryLog`."""

    def __init__(self, partition: _Partition, seen_by: str, sleep: Callable[[float], None]) -> None:
        self._partition = partition
        self._seen_by = seen_by
        self._sleep = sleep
        self._has_failed = False

    def append(self, records: Sequence[UnstoredRecord], *, timeout_s: float) -> Sequence[int]:
        """As in the port."""
        assert not self._has_failed, "a writer is discarded after its first failure"
        self._has_failed = True
        offsets = self._append(records, timeout_s)
        self._has_failed = False
        return offsets

    def _append(self, records: Sequence[UnstoredRecord], timeout_s: float) -> Sequence[int]:
        partition = self._partition
        fault = partition.faults.append_of(self._seen_by)
        self._refuse_large(records)
        match fault:
            case None:
                return self._store(records)
            case Fail():
                raise self._unknown(0.0)
            case Refuse(problem):
                raise AppendRefusedError(partition.identity.name, problem)
            case Unknown(stored):
                at_once = frozenset(range(len(records)) if stored is None else stored)
                with partition.lock:
                    self._store([record for i, record in enumerate(records) if i in at_once])
                    rest = [record for i, record in enumerate(records) if i not in at_once]
                    partition.send(self._seen_by, rest)
                raise self._unknown(0.0)
            case Slow(seconds):
                self._sleep(min(seconds, timeout_s))
                if seconds > timeout_s:
                    partition.send(self._seen_by, records)
                    raise self._unknown(timeout_s)
                return self._store(records)
            case Meanwhile(do, before):
                offsets = self._store(records[:before])
                do()
                return offsets + self._store(records[before:])
            case _:
                assert_never(fault)

    def _store(self, records: Sequence[UnstoredRecord]) -> list[int]:
        with self._partition.lock:
            return [self._partition.store(record) for record in records]

    def _refuse_large(self, records: Sequence[UnstoredRecord]) -> None:
        limit = self._partition.record_bytes_max
        for record in records:
            if record.size_bytes > limit:
                raise AppendRefusedError(
                    self._partition.identity.name,
                    f"a record of {record.size_bytes} bytes is above its limit of {limit}",
                )

    def _unknown(self, waited_s: float) -> LogUnavailableError:
        return LogUnavailableError(self._partition.identity.name, "appending", waited_s, "scripted")

    def close(self, *, timeout_s: float) -> None:
        """As in the port."""
        del timeout_s
        self._has_failed = True
