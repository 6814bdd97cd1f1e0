"""A history of a million records in seconds: rounds of events and a checkpoint, each like the one that the kernel made.

The kernel makes the first three rounds. Each further one is the third with its numbers moved on, so that it folds to
what the kernel would have come to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Final

from immutables import Map

from coordlog.log.interface import UnstoredRecord
from coordlog.projections.job.checkpoint_digest import digest_of_checkpoint
from coordlog.projections.job.state import CompletedCheckpoint, Cut
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.builtin_types import CheckpointMetadata
from coordlog.schemas.codec import decode_record
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.testing import HandDrivenJob

from .made_history import Report, benchmark_chain

__all__ = ["SUBTASKS", "LongHistory"]

SUBTASKS: Final = 16
_EVENTS_PER_SUBTASK: Final = 63
_EVENTS: Final = SUBTASKS * _EVENTS_PER_SUBTASK
_METADATA: Final = payload_type_of(CheckpointMetadata)


class LongHistory:
    """The records of one epoch, in order, as many as are taken; snapshots are for the taker to put in."""

    def __init__(self) -> None:
        job = HandDrivenJob(benchmark_chain(), parallelism=SUBTASKS, job_id="bench")
        attempts = job.register_all()
        ends: list[int] = []
        for number in range(3 * _EVENTS):
            attempt = attempts[number % SUBTASKS]
            attempt.send("source", Report(number=number, text="x" * 80))
            attempt.ack("source", number)
            if number % _EVENTS == _EVENTS - 1:
                checkpoint_id = job.trigger()
                assert checkpoint_id is not None, "nothing is pending"
                for one in attempts:
                    one.ack_checkpoint(checkpoint_id, states={"source": bytes(100)})
                    one.inbox.clear()
                ends.append(job.log.high_watermark())
        job.crash()
        records = [
            decode_record(one.offset, one.value, one.header_bytes)
            for one in job.log.read(0, ends[2])
        ]
        self._first, self._round = records[: ends[1]], records[ends[1] :]
        self._began = self._round[0].sequence or 0

    def records(self) -> Iterator[Record]:
        """Without an end."""
        yield from self._first
        for number in count():
            for one in self._round:
                yield self._moved(one, number) if number else one

    def _moved(self, record: Record, rounds: int) -> Record:
        """The same record so many rounds later."""
        by, changes = rounds * len(self._round), dict[str, object]()
        if record.cause is not None and record.cause >= self._began:
            changes["cause"] = record.cause + by
        if record.event_id is not None:
            is_up = record.kind is Kind.EVENT_TO_COORDINATOR
            events = _EVENTS_PER_SUBTASK if is_up else _EVENTS
            changes["event_id"] = record.event_id + rounds * events
        if record.checkpoint_id is not None:
            changes["checkpoint_id"] = record.checkpoint_id + rounds
        if record.last_barrier is not None:
            changes["last_barrier"] = record.last_barrier + rounds
        if record.kind is Kind.CHECKPOINT_COMPLETED:
            changes["payload"] = _moved_metadata(record.payload or b"", rounds, by)
        return replace(record, sequence=(record.sequence or 0) + by, **changes)  # type: ignore[arg-type]

    @staticmethod
    def stored(record: Record, *, snapshot_offset: int = -1, later: int = 0) -> UnstoredRecord:
        """As the log takes it, `later` records behind its place in `records`."""
        if later and record.sequence is not None:
            payload = record.payload
            if record.kind is Kind.CHECKPOINT_COMPLETED:
                payload = _moved_metadata(payload or b"", 0, later)
            record = replace(record, sequence=record.sequence + later, payload=payload)
        return to_unstored(record, snapshot_offset=snapshot_offset)


def _moved_metadata(payload: bytes, rounds: int, by: int) -> bytes:
    said = _METADATA.decode(payload)
    assert isinstance(said, CheckpointMetadata), "it is of that type"
    moved = replace(
        said,
        checkpoint_id=said.checkpoint_id + rounds,
        triggered_sequence=said.triggered_sequence + by,
        coordinators=[replace(one, sequence=one.sequence + by) for one in said.coordinators],
        oldest_retained=max(1, said.checkpoint_id + rounds - 2),
    )
    return _METADATA.encode(replace(moved, state_sha256=digest_of_checkpoint(_checkpoint(moved))))


def _checkpoint(metadata: CheckpointMetadata) -> CompletedCheckpoint:
    """The checkpoint as far as its hash has it."""
    assert not metadata.finished, "no subtask ends"
    assert not metadata.in_flight_events, "each event is before its checkpoint's cut"
    return CompletedCheckpoint(
        checkpoint_id=metadata.checkpoint_id,
        sequence=-1,
        parallelism=metadata.parallelism,
        cuts=Map(
            {
                cut.operator_id: Cut(sequence=cut.sequence, state=cut.state, projection=None)
                for cut in metadata.coordinators
            }
        ),
        states=Map({part.subtask: tuple(part.states) for part in metadata.subtasks}),
        finished=Map(),
        in_flight=(),
    )
