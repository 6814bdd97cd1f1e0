"""Facts of a report about checkpoints: trigger, cuts, barriers, acks and end of each."""

from __future__ import annotations

from collections.abc import Iterator

from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import AuditRecord
from coordlog.projections.tables.checkpoints import CheckpointFold, CheckpointStatus, subtasks_of
from coordlog.report.columns import Table, Texts
from coordlog.report.places import Places
from coordlog.schemas.payload_address import content_length
from coordlog.schemas.record import Kind, Record

__all__ = ["CheckpointFacts"]


class CheckpointFacts:
    """Checkpoints with their parts. `apply` takes each record that counts, in log order."""

    def __init__(self, places: Places, texts: Texts) -> None:
        self._places, self._texts = places, texts
        self._fold = CheckpointFold()
        self._triggered: dict[int, int] = {}
        self._expected: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._completed: dict[int, None] = {}
        """Completed checkpoints of the current branch."""
        self._abandoned: dict[int, int] = {}
        self._cuts: dict[int, list[tuple[str, int, int, int]]] = {}
        self._barriers: dict[tuple[int, int | None, int | None], int] = {}
        self._acks: dict[int, list[int]] = {}
        """Offsets of the acks of a checkpoint, in log order."""

    def begin(self, state: JobState) -> None:
        """Begin with the state at the first record of a pruned log."""
        self._fold.begin(state)
        for row in self._fold.rows():
            self._expected[row.checkpoint_id] = len(row.missing_subtasks)

    def apply(self, entry: AuditRecord, record: Record, _row: int) -> None:
        """Apply one record."""
        self._fold.apply(record)
        number, offset = record.checkpoint_id, entry.offset
        if number is None:
            return
        match record.kind:
            case Kind.CHECKPOINT_TRIGGERED:
                self._triggered[number] = offset
                self._acks.pop(number, None)
                self._expected[number] = len(subtasks_of(record))
            case Kind.COORDINATOR_CHECKPOINTED:
                size = content_length(record.payload)
                cut = (record.operator_id or "", offset, record.timestamp_us, size)
                self._cuts.setdefault(number, []).append(cut)
            case Kind.BARRIER_INJECTED:
                self._barriers[number, record.subtask, record.attempt_number] = offset
            case Kind.CHECKPOINT_ACKED:
                self._acks.setdefault(number, []).append(offset)
            case Kind.CHECKPOINT_COMPLETED:
                self._ended[number] = offset
                self._completed[number] = None
            case Kind.CHECKPOINT_ABORTED:
                self._ended[number] = offset
            case Kind.RESET_TO_CHECKPOINT:
                for other in [other for other in self._completed if other > number]:
                    del self._completed[other]
                    self._abandoned[other] = offset
            case _:
                pass

    def tables(self) -> Iterator[tuple[str, Table]]:
        """The tables."""
        text, since = self._texts.number, self._places.since
        table = Table(
            *("cp", "epoch", "off", "t", "expected", "cut_off", "cut_t"),
            *("end_off", "end_t", "end", "abandoned_off", "bytes", "reason", "missing"),
        )
        cuts = Table("checkpoint", "op", "off", "t", "bytes")
        acks = Table("checkpoint", "sub", "att", "barrier_off", "barrier_t", "off", "t", "bytes")
        for row in self._fold.rows():
            number = row.checkpoint_id
            of_row = self._cuts.get(number, [])
            is_pending = row.status is CheckpointStatus.PENDING
            is_aborted = row.status is CheckpointStatus.ABORTED
            end = None if is_pending else "aborted" if is_aborted else "completed"
            place = table.add(
                number,
                row.epoch,
                self._triggered.get(number),
                since(row.triggered_us),
                self._expected.get(number) or len({ack.subtask for ack in row.acked}),
                of_row[-1][1] if of_row else None,
                since(row.cut_us),
                self._ended.get(number),
                since(row.ended_us),
                text(end),
                self._abandoned.get(number),
                row.state_bytes,
                text(row.reason if is_aborted else None),
                text(row.missing or None),
            )
            for operator_id, offset, cut_us, size in of_row:
                cuts.add(place, text(operator_id), offset, since(cut_us), size)
            for ack, offset in zip(row.acked, self._acks.get(number, ()), strict=True):
                acks.add(
                    place,
                    ack.subtask,
                    ack.attempt_number,
                    self._barriers.get((number, ack.subtask, ack.attempt_number)),
                    since(ack.barrier_us),
                    offset,
                    since(ack.acked_us),
                    ack.snapshot_bytes,
                )
        yield "checkpoints", table
        yield "cuts", cuts
        yield "acks", acks
