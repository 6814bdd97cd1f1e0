"""The simulated log: what is stored, and the book-keeper that says at once what counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from coordlog.log.interface import LogIdentity, StoredRecord, UnstoredRecord
from coordlog.schemas.header import Header, decode_header
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import NOTHING_COUNTED, Verdict, count

__all__ = ["SimulatedLog"]

Key = tuple[Kind, int, int | None, int | None, int | None]


class _Stored(StoredRecord):
    """A record that is decoded once: in a simulation each is read again and again."""

    @property
    def header(self) -> Header | None:
        """As in the port."""
        known = self.__dict__
        if "header" not in known:
            known["header"] = decode_header(self.header_bytes)
        header: Header | None = known["header"]
        return header

    def record(self, header: Header | None = None) -> Record:
        """As in the port."""
        known = self.__dict__
        if "decoded" not in known:
            known["decoded"] = super().record(header)
        record: Record = known["decoded"]
        return record


class SimulatedLog:
    """One partition in memory. Implements what a restore reads of `Log`; records come by `store`."""

    identity = LogIdentity(cluster_id="simulation", topic_id="simulation", name="the simulated log")

    def __init__(self) -> None:
        self.stored: list[StoredRecord] = []
        self.counting = NOTHING_COUNTED
        self.counted: list[Record] = []
        """The records that count, without `EPOCH_STARTED`, by sequence."""
        self.told: list[Record] = []
        """The same, each epoch's after its `EPOCH_STARTED`."""
        self.is_finished = False
        """Whether a `JOB_FINISHED` counts."""
        self.void_count = 0
        self.intents: set[bytes] = set()
        """The payloads of the `COMMIT_INTENT` that count."""
        self._keys: set[Key] = set()
        self._turn: list[Record] = []

    @property
    def driver_in_force(self) -> str | None:
        """The driver of the newest `EPOCH_STARTED` that counts; None before the first."""
        begun = (one for one in reversed(self.told) if one.kind is Kind.EPOCH_STARTED)
        return next((one.driver_id for one in begun), None)

    # --- the port, as far as a restore uses it ------------------------------------------------------------------------
    def start_offset(self) -> int:
        """Nothing is ever removed."""
        return 0

    def high_watermark(self) -> int:
        """As in the port."""
        return len(self.stored)

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """As in the port."""
        return iter(self.stored[from_offset:to_offset])

    def writer(self) -> NoReturn:
        """Records come by `store`."""
        raise NotImplementedError("the simulation stores records itself")

    def close(self) -> None:
        """As in the port."""

    # --- the simulation's side ----------------------------------------------------------------------------------------
    def store(self, records: Sequence[UnstoredRecord]) -> list[int]:
        """Records arrive; their offsets."""
        return [self._store(record) for record in records]

    def _store(self, record: UnstoredRecord) -> int:
        offset = len(self.stored)
        stored = _Stored(
            offset=offset,
            key=record.key,
            value=record.value,
            header_bytes=record.header,
            timestamp_ms=record.timestamp_us // 1000,
        )
        self.stored.append(stored)
        header = stored.header
        self.counting, verdict = count(self.counting, header)
        if verdict.is_void:
            self.void_count += 1
        else:
            decoded = stored.record(header)
            if verdict is Verdict.EPOCH:
                self._turn.clear()
                self.told.append(decoded)
            else:
                self._turn.append(decoded)
            if verdict is Verdict.COMPLETES:
                self._counts()
        return offset

    def _counts(self) -> None:
        for record in self._turn:
            assert record.sequence == len(self.counted), "sequences are dense"
            self.counted.append(record)
            self.told.append(record)
            self._keys.add(key_of(record))
            if record.kind is Kind.COMMIT_INTENT:
                self.intents.add(record.payload or b"")
            self.is_finished = self.is_finished or record.kind is Kind.JOB_FINISHED
        self._turn.clear()

    def counts(self, record: Record) -> bool:
        """Whether this very record counts."""
        sequence = record.sequence
        if sequence is None or sequence >= len(self.counted):
            return False
        there = self.counted[sequence]
        return (
            there.epoch == record.epoch
            and there.kind is record.kind
            and there.payload == record.payload
            and there.timestamp_us == record.timestamp_us
        )

    def has(self, key: Key) -> bool:
        """Whether a record with this key counts; see `key_of`."""
        return key in self._keys


def key_of(record: Record) -> Key:
    """What an effect can be told by: kind, epoch, subtask, attempt number, and the event or checkpoint.

    A completed checkpoint is told by its id alone: a later epoch tells of it again.
    """
    what = record.event_id if record.event_id is not None else record.checkpoint_id
    if record.kind is Kind.CHECKPOINT_COMPLETED:
        return record.kind, -1, None, None, record.checkpoint_id
    if record.kind is Kind.ATTEMPT_STARTED:
        what = None
    return record.kind, record.epoch, record.subtask, record.attempt_number, what
